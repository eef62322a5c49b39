// The inner loops, written once over a vector class V; included by one file for each instruction set.
//
// V has LANES weight rows a register; see generic.cpp for what it must offer. Everything here has internal
// linkage: the same template compiled for two instruction sets must never be merged.
//
// Each activation row goes through the same operations in the same order whatever rows stand beside it, so its
// result depends on nothing but itself.
#pragma once
#include <cstring>

#include "floats.h"

namespace {
namespace inner {

using jev::Format;
using jev::GROUP;
using jev::PANEL;
using jev::Record;
using jev::TILE;

// Bytes that are fetched ahead: a processor's own guesses reach less far, and end at each page.
constexpr int AHEAD = 4096;

// The quants' bits, the offset they are stored with, scales a group, and whether there are minimums.
template <int BITS_, int OFFSET_, int PARTS_, bool MINIMUM_>
struct Quant {
    static constexpr int BITS = BITS_, OFFSET = OFFSET_, PARTS = PARTS_;
    static constexpr bool MINIMUM = MINIMUM_;
};

// Columns 16 * HALF + 4 * C and on of a group, four bytes a row.
template <class V, class Q, int HALF, int C>
INLINE typename V::Bytes decode(const uint8_t* group) {
    if constexpr (Q::BITS == 8) {
        return V::eight(V::load(group + (4 * HALF + C) * 64));
    } else {
        auto low = V::low4(V::template shift<-4 * HALF>(V::load(group + C * 64)));
        if constexpr (Q::BITS == 5) {
            auto high = V::load(group + 256);
            return V::template join<0x10>(low, V::template shift<4 - (4 * HALF + C)>(high));
        } else if constexpr (Q::BITS == 6) {
            auto high = V::load(group + 256 + HALF * 64);
            return V::template join<0x30>(low, V::template shift<4 - 2 * C>(high));
        }
        return low;
    }
}

// A group's quants as decoded before, chunk by chunk.
template <class V>
constexpr int EXPANDED = 8 * 4 * V::LANES;

template <class V, class Q, bool READY, int HALF, int C>
INLINE typename V::Bytes bytes_of(const uint8_t* group) {
    if constexpr (READY)
        return V::load(group + (4 * HALF + C) * 4 * V::LANES);
    else
        return decode<V, Q, HALF, C>(group);
}

template <class V, class Q, int N, bool READY>
struct Tile {
    typename V::Floats sums[N];
    typename V::Ints dots[N];
    typename V::Partial partial[N];

    template <int HALF, int C>
    INLINE void chunk(const uint8_t* group, const Record* const* x, int64_t g) {
        auto w = bytes_of<V, Q, READY, HALF, C>(group);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n)
            V::template dot<Q::BITS, 4 * HALF + C>(dots[n], partial[n], w, x[n][g].q + 16 * HALF + 4 * C);
    }

    template <int HALF>
    INLINE void half(const uint8_t* group, const Record* const* x, int64_t g) {
        chunk<HALF, 0>(group, x, g);
        chunk<HALF, 1>(group, x, g);
        chunk<HALF, 2>(group, x, g);
        chunk<HALF, 3>(group, x, g);
    }

    template <int PART>
    INLINE void begin(const Record* const* x, int64_t g) {
        constexpr int offset = Q::BITS == 8 && V::SIGNED ? 0 : Q::OFFSET;
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) {
            const Record& r = x[n][g];
            if constexpr (offset == 0)
                dots[n] = V::zeros();
            else if constexpr (Q::PARTS == 1)
                dots[n] = V::template offset<offset>(r.total);
            else
                dots[n] = V::template offset<offset>(PART == 0 ? r.first : r.total - r.first);
        }
    }

    INLINE void finish(const float* scale, const Record* const* x, int64_t g) {
        auto s = V::floats(scale);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n)
            sums[n] = V::add_scaled(sums[n], dots[n], V::times(s, x[n][g].scale));
    }

    INLINE void subtract(const float* minimum, const Record* const* x, int64_t g) {
        auto m = V::floats(minimum);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) sums[n] = V::subtract(sums[n], m, x[n][g].sum);
    }
};

// One register of weight rows with N rows of activations: `quants` as they lie in the panel, or ready to use.
template <class V, class Q, int N, bool READY>
void tile(const uint8_t* quants, const float* scale, const float* minimum, int64_t groups, const Record* const* rows,
          float* out) {
    constexpr int group_bytes = READY ? EXPANDED<V> : Q::BITS == 8 ? 512 : 256 + 64 * (Q::BITS - 4);
    const Record* x[N];
    for (int n = 0; n < N; ++n) x[n] = rows[n];
    Tile<V, Q, N, READY> t;
    for (int n = 0; n < N; ++n) t.sums[n] = V::float_zeros();
    for (int64_t g = 0; g < groups; ++g, quants += group_bytes) {
        const float* s = scale + g * Q::PARTS * PANEL;
        if constexpr (!READY)
            for (int line = 0; line < group_bytes; line += 64) __builtin_prefetch(quants + line + AHEAD);
        t.template begin<0>(x, g);
        t.template half<0>(quants, x, g);
        if constexpr (Q::PARTS == 2) {
            t.finish(s, x, g);
            t.template begin<1>(x, g);
        }
        t.template half<1>(quants, x, g);
        t.finish(s + (Q::PARTS - 1) * PANEL, x, g);
        if constexpr (Q::MINIMUM) t.subtract(minimum + g * PANEL, x, g);
    }
    for (int n = 0; n < N; ++n) V::store(out + n * PANEL, t.sums[n]);
}

template <class V, class Q, int N, bool READY>
void tiles(const uint8_t* quants, const float* scale, const float* minimum, int64_t groups, const Record* const* x,
           int count, float* out) {
    if (count == N) return tile<V, Q, N, READY>(quants, scale, minimum, groups, x, out);
    if constexpr (N > 1) tiles<V, Q, N - 1, READY>(quants, scale, minimum, groups, x, count, out);
}

template <class V, class Q>
void expand(const uint8_t* panel, int64_t groups, uint8_t* out) {
    constexpr int group_bytes = Q::BITS == 8 ? 512 : 256 + 64 * (Q::BITS - 4);
    constexpr int step = 4 * V::LANES;
    for (int64_t g = 0; g < groups; ++g, panel += group_bytes, out += EXPANDED<V>) {
        V::put(out, decode<V, Q, 0, 0>(panel));
        V::put(out + step, decode<V, Q, 0, 1>(panel));
        V::put(out + 2 * step, decode<V, Q, 0, 2>(panel));
        V::put(out + 3 * step, decode<V, Q, 0, 3>(panel));
        V::put(out + 4 * step, decode<V, Q, 1, 0>(panel));
        V::put(out + 5 * step, decode<V, Q, 1, 1>(panel));
        V::put(out + 6 * step, decode<V, Q, 1, 2>(panel));
        V::put(out + 7 * step, decode<V, Q, 1, 3>(panel));
    }
}

template <class V, class Q, bool READY>
void blocks(const uint8_t* quants, const float* scale, const float* minimum, int64_t groups, const Record* const* x,
            int64_t count, float* out) {
    for (int64_t first = 0; first < count; first += V::ROWS) {
        const int rows = static_cast<int>(count - first < V::ROWS ? count - first : V::ROWS);
        tiles<V, Q, V::ROWS, READY>(quants, scale, minimum, groups, x + first, rows, out + first * PANEL);
    }
}

template <class V, class Q>
void products(const uint8_t* panel, const float* scale, const float* minimum, int64_t groups, const Record* const* x,
              int64_t count, uint8_t* memory, float* out) {
    for (int lane = 0; lane < PANEL; lane += V::LANES) {
        const uint8_t* quants = panel + 4 * lane;
        if constexpr (V::READY_FROM > 0 && Q::BITS < 8) {
            if (count >= V::READY_FROM) {
                expand<V, Q>(quants, groups, memory);
                blocks<V, Q, true>(memory, scale + lane, minimum + lane, groups, x, count, out + lane);
                continue;
            }
        }
        blocks<V, Q, false>(quants, scale + lane, minimum + lane, groups, x, count, out + lane);
    }
}

template <class V>
void multiply(int type, const uint8_t* panel, const float* scale, const float* minimum, int64_t groups,
              const Record* const* x, int64_t count, uint8_t* memory, float* out) {
    switch (type) {
        case jev::Q4_K:
            return products<V, Quant<4, 0, 1, true>>(panel, scale, minimum, groups, x, count, memory, out);
        case jev::Q5_K:
        case jev::Q5_1:
            return products<V, Quant<5, 0, 1, true>>(panel, scale, minimum, groups, x, count, memory, out);
        case jev::Q5_0:
            return products<V, Quant<5, 16, 1, false>>(panel, scale, minimum, groups, x, count, memory, out);
        case jev::Q6_K:
            return products<V, Quant<6, 32, 2, false>>(panel, scale, minimum, groups, x, count, memory, out);
        case jev::Q8_0:
            return products<V, Quant<8, 128, 1, false>>(panel, scale, minimum, groups, x, count, memory, out);
        default: return;
    }
}

// The scales of one block: 16 fp16 values, times 16 small integers each.
template <class V>
void scales(int type, const uint8_t* panel, int64_t width, float* scale, float* minimum) {
    const Format& f = *jev::format_of(type);
    const uint8_t* s = panel + jev::quant_bytes(f, width);
    const int64_t blocks = width / f.block;
    for (int64_t b = 0; b < blocks; ++b, s += f.scale_bytes) {
        if (type == jev::Q4_K || type == jev::Q5_K) {
            uint8_t small[2][8 * PANEL];  // scales and minimums of 6 bits, packed as in ggml's K-quants
            const uint8_t* packed = s + 64;
            for (int i = 0; i < 4 * PANEL; ++i) {
                const uint8_t low = packed[i], mid = packed[4 * PANEL + i], high = packed[8 * PANEL + i];
                small[0][i] = low & 63;
                small[1][i] = mid & 63;
                small[0][4 * PANEL + i] = (high & 15) | ((low >> 2) & 48);
                small[1][4 * PANEL + i] = (high >> 4) | ((mid >> 2) & 48);
            }
            for (int lane = 0; lane < PANEL; lane += V::LANES) {
                auto d = V::halves(s + 2 * lane), m = V::halves(s + 2 * PANEL + 2 * lane);
                for (int j = 0; j < 8; ++j) {
                    V::store(scale + (8 * b + j) * PANEL + lane, V::product(d, V::unsigned_bytes(small[0] + j * PANEL + lane)));
                    V::store(minimum + (8 * b + j) * PANEL + lane,
                             V::product(m, V::unsigned_bytes(small[1] + j * PANEL + lane)));
                }
            }
        } else if (type == jev::Q6_K) {
            for (int lane = 0; lane < PANEL; lane += V::LANES) {
                auto d = V::halves(s + 2 * lane);
                for (int j = 0; j < 16; ++j) {
                    const uint8_t* small = s + 2 * PANEL + j * PANEL + lane;
                    V::store(scale + (16 * b + j) * PANEL + lane, V::product(d, V::signed_bytes(small)));
                }
            }
        } else {
            for (int lane = 0; lane < PANEL; lane += V::LANES) {
                V::store(scale + b * PANEL + lane, V::halves(s + 2 * lane));
                if (type == jev::Q5_1)
                    V::store(minimum + b * PANEL + lane, V::negative(V::halves(s + 2 * PANEL + 2 * lane)));
            }
        }
    }
}

// Largest magnitude -> 127, rounded to nearest even.
void quantize(const float* x, int64_t groups, Record* out) {
    constexpr float round = 12582912.0f;  // 1.5 * 2^23: adding it leaves the rounded integer in the low bits
    for (int64_t g = 0; g < groups; ++g, x += GROUP, ++out) {
        uint32_t top = 0;
        for (int i = 0; i < GROUP; ++i) {
            const uint32_t magnitude = bits_of(x[i]) & 0x7fffffffu;
            top = magnitude > top ? magnitude : top;
        }
        const float largest = float_of(top);
        const bool finite = top < 0x7f800000u;
        const bool some = finite && largest > 1e-30f;
        const float inverse = some ? 127.0f / largest : 0.0f;
        int32_t first = 0, second = 0;
        int32_t q[GROUP];
        if (some) {
            for (int i = 0; i < GROUP; ++i)
                q[i] = static_cast<int32_t>(bits_of(x[i] * inverse + round)) - static_cast<int32_t>(0x4b400000);
        } else {
            memset(q, 0, sizeof q);
        }
        for (int i = 0; i < 16; ++i) first += q[i];
        for (int i = 16; i < 32; ++i) second += q[i];
        for (int i = 0; i < GROUP; ++i) out->q[i] = static_cast<int8_t>(q[i]);
        out->scale = finite ? (some ? largest / 127.0f : 0.0f) : float_of(0x7fc00000u);
        out->sum = out->scale * static_cast<float>(first + second);
        out->total = -(first + second);
        out->first = -first;
    }
}

// gelu_tanh(x) = x / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
void gate(const float* gates, const float* up, float* out) {
    for (int i = 0; i < GROUP; ++i) {
        const float x = gates[i];
        float z = -1.5957691216057308f * (x + 0.044715f * x * x * x);
        z = z > 88.0f ? 88.0f : z;
        out[i] = x / (1.0f + exponential(z)) * up[i];
    }
}

template <class V>
const jev::Kernels* kernels(const char* name) {
    static const jev::Kernels made{name, quantize, scales<V>, multiply<V>, gate, dots<V>, mix<V>, softmax};
    return &made;
}

}  // namespace inner
}  // namespace
