#pragma once
#include "layout.h"

namespace jev {

// 16 rows of GGUF blocks, or fewer, into a panel; missing rows become zeros.
void pack_panel(int type, const uint8_t* raw, int rows, int64_t width, uint8_t* panel);

// One row of a panel as floats [width], bit for bit as the `gguf` package decodes it, given the panel's scales
// (see Kernels::scales).
void unpack_row(int type, const uint8_t* panel, const float* scale, const float* minimum, int64_t width, int row,
                float* out);

}  // namespace jev
