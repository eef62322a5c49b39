// GGUF blocks into panels (see layout.h) and panels into floats.
#include "pack.h"

#include <cstring>

namespace jev {
namespace {

// The quants of group j of a block, without their offset (8 bits: plus 128).
void group_quants(int type, const uint8_t* block, int j, uint8_t* q) {
    switch (type) {
        case Q4_K:
        case Q5_K: {
            const uint8_t* high = block + 16;
            const uint8_t* low = block + (type == Q4_K ? 16 : 48) + j / 2 * 32;
            const int shift = j % 2 * 4;
            for (int i = 0; i < 32; ++i) q[i] = low[i] >> shift & 15;
            if (type == Q5_K)
                for (int i = 0; i < 32; ++i) q[i] |= (high[i] >> j & 1) << 4;
            return;
        }
        case Q6_K: {
            const uint8_t* low = block + j / 4 * 64 + j % 2 * 32;
            const uint8_t* high = block + 128 + j / 4 * 32;
            const int shift = j % 4 / 2 * 4, place = j % 4 * 2;
            for (int i = 0; i < 32; ++i) q[i] = (low[i] >> shift & 15) | (high[i] >> place & 3) << 4;
            return;
        }
        case Q5_0:
        case Q5_1: {
            const uint8_t* bits = block + (type == Q5_0 ? 2 : 4);
            const uint32_t high = bits[0] | bits[1] << 8 | bits[2] << 16 | static_cast<uint32_t>(bits[3]) << 24;
            for (int i = 0; i < 16; ++i) {
                q[i] = (bits[4 + i] & 15) | (high >> i & 1) << 4;
                q[16 + i] = bits[4 + i] >> 4 | (high >> (16 + i) & 1) << 4;
            }
            return;
        }
        default:
            for (int i = 0; i < 32; ++i) q[i] = block[2 + i] ^ 0x80;
    }
}

// Four quants at a time, as bytes of a word.
uint32_t word(const uint8_t* q, int c) {
    uint32_t w;
    memcpy(&w, q + 4 * c, 4);
    return w;
}

void put_group(int bits, const uint8_t* q, int row, uint8_t* group) {
    uint8_t* out = group + 4 * row;
    if (bits == 8) {
        for (int c = 0; c < 8; ++c) memcpy(out + 64 * c, q + 4 * c, 4);
        return;
    }
    for (int c = 0; c < 4; ++c) {
        const uint32_t both = (word(q, c) & 0x0f0f0f0fu) | (word(q, c + 4) & 0x0f0f0f0fu) << 4;
        memcpy(out + 64 * c, &both, 4);
    }
    if (bits == 5) {
        uint32_t high = 0;
        for (int c = 0; c < 8; ++c) high |= (word(q, c) >> 4 & 0x01010101u) << c;
        memcpy(out + 256, &high, 4);
    }
    if (bits == 6)
        for (int half = 0; half < 2; ++half) {
            uint32_t high = 0;
            for (int c = 0; c < 4; ++c) high |= (word(q, 4 * half + c) >> 4 & 0x03030303u) << 2 * c;
            memcpy(out + 256 + 64 * half, &high, 4);
        }
}

uint8_t quant(int bits, const uint8_t* group, int row, int column) {
    const int i = column % 16, half = column / 16, b = column % 4;
    const uint8_t* at = group + 4 * row;
    if (bits == 8) return at[column / 4 * 64 + b];
    const uint8_t low = at[i / 4 * 64 + b] >> 4 * half & 15;
    if (bits == 5) return low | (at[256 + b] >> column / 4 & 1) << 4;
    if (bits == 6) return low | (at[256 + 64 * half + b] >> 2 * (i / 4) & 3) << 4;
    return low;
}

}  // namespace

void pack_panel(int type, const uint8_t* raw, int rows, int64_t width, uint8_t* panel) {
    const Format& f = *format_of(type);
    const int64_t blocks = width / f.block, row_bytes = blocks * f.block_bytes;
    const int groups = f.block / GROUP;
    memset(panel, 0, panel_bytes(f, width));
    uint8_t* scales = panel + quant_bytes(f, width);
    for (int64_t b = 0; b < blocks; ++b, scales += f.scale_bytes) {
        uint8_t* quants = panel + b * groups * f.group_bytes;
        for (int row = 0; row < rows; ++row) {
            const uint8_t* block = raw + row * row_bytes + b * f.block_bytes;
            for (int j = 0; j < groups; ++j) {
                uint8_t q[GROUP];
                group_quants(type, block, j, q);
                put_group(f.bits, q, row, quants + j * f.group_bytes);
            }
            if (type == Q6_K) {
                memcpy(scales + 2 * row, block + 208, 2);
                for (int j = 0; j < 16; ++j) scales[2 * PANEL + j * PANEL + row] = block[192 + j];
                continue;
            }
            memcpy(scales + 2 * row, block, 2);
            if (f.minimum) memcpy(scales + 2 * PANEL + 2 * row, block + 2, 2);
            if (f.block == 256)
                for (int j = 0; j < 12; ++j) scales[4 * PANEL + j * PANEL + row] = block[4 + j];
        }
    }
}

void unpack_row(int type, const uint8_t* panel, const float* scale, const float* minimum, int64_t width, int row,
                float* out) {
    const Format& f = *format_of(type);
    const int span = GROUP / f.parts;
    for (int64_t column = 0; column < width; ++column) {
        const int64_t g = column / GROUP;
        const int q = quant(f.bits, panel + g * f.group_bytes, row, static_cast<int>(column % GROUP)) - f.offset;
        const float w = scale[column / span * PANEL + row] * static_cast<float>(q);
        out[column] = f.minimum ? w - minimum[g * PANEL + row] : w;
    }
}

}  // namespace jev
