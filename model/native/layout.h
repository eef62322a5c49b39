// How quantised matrices and activations lie in memory.
//
// A matrix [rows, width] of GGUF blocks is kept as panels of 16 rows. For each group of 32 columns a panel
// holds the quants of its rows side by side, four columns of a row together, so that a vector register is
// 16 (8, 4) rows wide and a dot product needs no horizontal sums:
//
//   4 bits   256 bytes  byte 64 * c + 4 * row + b: columns 4c + b (low half) and 16 + 4c + b (high half)
//   5 bits   + 64       bit c of byte 4 * row + b: bit 4 of column 4c + b
//   6 bits   + 128      bits 2 * (c % 4) of byte 64 * (c / 4) + 4 * row + b: bits 4 and 5 of column 4c + b
//   8 bits   512        byte 64 * c + 4 * row + b: column 4c + b, plus 128
//
// Behind the quants of all groups lie the scales as the file has them, each as 16 values, one a row. A panel
// takes as many bytes as its 16 rows take in the file (rounded up to 64).
#pragma once
#include <cstddef>
#include <cstdint>

namespace jev {

constexpr int PANEL = 16;
constexpr int GROUP = 32;
constexpr int TILE = 4;  // fp32 rows at once

// Numbers as in ggml's enum.
enum Type { Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14 };

struct Format {
    int block;        // columns of a block in the file
    int block_bytes;  // bytes of a block in the file
    int group_bytes;  // bytes of a group's quants in a panel
    int scale_bytes;  // bytes of a block's scales in a panel
    int bits;
    int offset;       // w = scale * (q - offset) - minimum
    bool minimum;
    int parts;        // scales a group
};

inline const Format* format_of(int type) {
    static const Format q5_0{32, 22, 320, 32, 5, 16, false, 1};
    static const Format q5_1{32, 24, 320, 64, 5, 0, true, 1};
    static const Format q8_0{32, 34, 512, 32, 8, 128, false, 1};
    static const Format q4_k{256, 144, 256, 256, 4, 0, true, 1};
    static const Format q5_k{256, 176, 320, 256, 5, 0, true, 1};
    static const Format q6_k{256, 210, 384, 288, 6, 32, false, 2};
    switch (type) {
        case Q5_0: return &q5_0;
        case Q5_1: return &q5_1;
        case Q8_0: return &q8_0;
        case Q4_K: return &q4_k;
        case Q5_K: return &q5_k;
        case Q6_K: return &q6_k;
        default: return nullptr;
    }
}

inline int64_t quant_bytes(const Format& f, int64_t width) { return width / GROUP * f.group_bytes; }

inline int64_t panel_bytes(const Format& f, int64_t width) {
    return (quant_bytes(f, width) + width / f.block * f.scale_bytes + 63) / 64 * 64;
}

inline int64_t panels_of(int64_t rows) { return (rows + PANEL - 1) / PANEL; }

// 32 activations of one row as int8 with one scale, and what offsets and minimums need of them.
struct Record {
    int8_t q[GROUP];
    float scale;
    float sum;      // scale * (sum of q)
    int32_t total;  // -(sum of q)
    int32_t first;  // -(sum of the first 16 of q)
};
static_assert(sizeof(Record) == 48, "records are read at fixed distances");

}  // namespace jev
