// What one instruction set implements: the inner loops, over one panel or one row.
#pragma once
#include "layout.h"

namespace jev {

struct Kernels {
    const char* name;
    // x [groups * 32] -> records [groups]. Groups with NaN or infinity become NaN.
    void (*quantize)(const float* x, int64_t groups, Record* out);
    // The scales of a panel as floats: scale [groups * parts, 16] and, where the type has them, minimum [groups, 16].
    void (*scales)(int type, const uint8_t* panel, int64_t width, float* scale, float* minimum);
    // The products of a panel's rows with `count` activation rows -> out [count, 16]; `memory` is room for the
    // panel's quants, 512 bytes a group.
    void (*multiply)(int type, const uint8_t* panel, const float* scale, const float* minimum, int64_t groups,
                     const Record* const* x, int64_t count, uint8_t* memory, float* out);
    // gelu_tanh(gate) * up, 32 values.
    void (*gate)(const float* gate, const float* up, float* out);
    // Dot products of 4 rows x with 4 rows w -> out [4, 4].
    void (*dots)(const float* const* x, const float* const* w, int64_t width, float* out);
    // out[n] [width] += weights[j * weights_step + n] * v[j * v_step ...], n < 4, for j = 0 .. count - 1 in turn.
    void (*mix)(const float* weights, int64_t weights_step, const float* v, int64_t v_step, int64_t count,
                int64_t width, float* const* out);
    // scores[j * step + r], r < 16, j < count -> exp(score - the largest of its r); inverse [16] of their sums.
    void (*softmax)(float* scores, int64_t step, int64_t count, float* inverse);
};

// What is in use.
const Kernels* chosen_kernels();

// Null where this build or this machine has no such instructions.
const Kernels* generic_kernels();
const Kernels* avx2_kernels();
const Kernels* avxvnni_kernels();
const Kernels* avx512_kernels();
const Kernels* neon_kernels();

}  // namespace jev
