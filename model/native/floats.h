// The inner loops over fp32 matrices, written once over a vector class V (see inner.h).
//
// A tile is always whole: where rows are missing, the caller gives some twice. So each number of a result comes of
// the same operations in the same order, whatever stands beside it.
#pragma once
#include <cstring>

#include "kernels.h"

namespace {
namespace inner {

using jev::PANEL;
using jev::TILE;

#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))

INLINE uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

INLINE float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

// Dot products of TILE rows x with M rows w -> out [TILE, TILE], M columns of it.
template <class V, int M>
INLINE void dot_tile(const float* const* x, const float* const* w, int64_t width, float* out) {
    typename V::Floats sums[TILE][M];
#pragma GCC unroll 16
    for (int n = 0; n < TILE; ++n)
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) sums[n][m] = V::float_zeros();
    const auto add = [&](const float* const* left, const float* const* right, int64_t k) INLINE_LAMBDA {
        typename V::Floats a[TILE];
#pragma GCC unroll 16
        for (int n = 0; n < TILE; ++n) {
            a[n] = V::floats(left[n] + k);
            V::keep(a[n]);
        }
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
            const auto b = V::floats(right[m] + k);
#pragma GCC unroll 16
            for (int n = 0; n < TILE; ++n) sums[n][m] = V::add_product(sums[n][m], a[n], b);
        }
    };
    int64_t k = 0;
    for (; k + V::LANES <= width; k += V::LANES) add(x, w, k);
    if (k < width) {
        float rest[TILE + M][V::LANES] = {};
        const float* pointers[TILE + M];
        for (int i = 0; i < TILE + M; ++i) {
            memcpy(rest[i], (i < TILE ? x[i] : w[i - TILE]) + k, (width - k) * sizeof(float));
            pointers[i] = rest[i];
        }
        add(pointers, pointers + TILE, 0);
    }
    alignas(64) float totals[TILE][M];
    V::totals(sums, totals[0]);
    for (int n = 0; n < TILE; ++n) memcpy(out + n * TILE, totals[n], sizeof totals[n]);
}

// As many accumulators as there are registers for.
template <class V>
constexpr int WIDE = V::ROWS == 8 ? 4 : 2;

template <class V>
void dots(const float* const* x, const float* const* w, int64_t width, float* out) {
    for (int m = 0; m < TILE; m += WIDE<V>) dot_tile<V, WIDE<V>>(x, w + m, width, out + m);
}

// M registers of the sums of TILE rows.
template <class V, int M>
INLINE void mix_tile(const float* weights, int64_t weights_step, const float* v, int64_t v_step, int64_t count,
                     float* const* out) {
    typename V::Floats sums[TILE][M];
#pragma GCC unroll 16
    for (int n = 0; n < TILE; ++n)
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) sums[n][m] = V::floats(out[n] + m * V::LANES);
    for (int64_t j = 0; j < count; ++j, weights += weights_step, v += v_step) {
        typename V::Floats b[M];
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
            b[m] = V::floats(v + m * V::LANES);
            V::keep(b[m]);
        }
#pragma GCC unroll 16
        for (int n = 0; n < TILE; ++n)
#pragma GCC unroll 16
            for (int m = 0; m < M; ++m) sums[n][m] = V::add_times(sums[n][m], b[m], weights[n]);
    }
#pragma GCC unroll 16
    for (int n = 0; n < TILE; ++n)
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) V::store(out[n] + m * V::LANES, sums[n][m]);
}

template <class V>
void mix(const float* weights, int64_t weights_step, const float* v, int64_t v_step, int64_t count, int64_t width,
         float* const* out) {
    int64_t c = 0;
    float* at[TILE];
    const auto move = [&] { for (int n = 0; n < TILE; ++n) at[n] = out[n] + c; };
    for (; c + WIDE<V> * V::LANES <= width; c += WIDE<V> * V::LANES) {
        move();
        mix_tile<V, WIDE<V>>(weights, weights_step, v + c, v_step, count, at);
    }
    for (; c + V::LANES <= width; c += V::LANES) {
        move();
        mix_tile<V, 1>(weights, weights_step, v + c, v_step, count, at);
    }
    for (; c < width; ++c)
        for (int n = 0; n < TILE; ++n) {
            float sum = out[n][c];
            for (int64_t j = 0; j < count; ++j) sum += weights[j * weights_step + n] * v[j * v_step + c];
            out[n][c] = sum;
        }
}

// exp as in Cephes (2e-7 relative) for z <= 88; 0 below -87.
INLINE float exponential(float z) {
    const float clipped = z < -87.0f ? -87.0f : z;
    const float shifted = clipped * 1.44269504088896341f + 12582912.0f;
    const float n = shifted - 12582912.0f;
    float r = clipped - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const float e = p * float_of((bits_of(shifted) - 0x4b400000u + 127u) << 23);
    return z < -87.0f ? 0.0f : e;
}

// Keys that are not seen (-inf) become 0 and add exactly nothing, so it does not matter where they stand.
void softmax(float* scores, int64_t step, int64_t count, float* inverse) {
    float top[PANEL];
    double sums[PANEL] = {};
    for (int r = 0; r < PANEL; ++r) top[r] = scores[r];
    for (int64_t j = 1; j < count; ++j)
        for (int r = 0; r < PANEL; ++r) {
            const float s = scores[j * step + r];
            top[r] = s > top[r] ? s : top[r];
        }
    for (int64_t j = 0; j < count; ++j) {
        float* row = scores + j * step;
        for (int r = 0; r < PANEL; ++r) row[r] = exponential(row[r] - top[r]);
        for (int r = 0; r < PANEL; ++r) sums[r] += row[r];
    }
    for (int r = 0; r < PANEL; ++r) inverse[r] = static_cast<float>(1.0 / sums[r]);
}

}  // namespace inner
}  // namespace
