// The C interface: products of quantised matrices with fp32 rows, whole expert layers, packing and decoding.
//
// Sizes are the caller's to check (see __init__.py). Nothing throws: 0 is success, other values say what failed.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "kernels.h"
#include "pack.h"
#include "scratch.h"
#include "threads.h"

using namespace jev;

namespace {

enum Status { OK = 0, NO_MEMORY = 1, BAD_INDEX = 2 };

const Kernels* kernels = nullptr;

thread_local Scratch call_scratch;   // of the thread that calls
thread_local Scratch panel_scratch;  // of each thread that works on panels

struct Matrix {
    int type;
    const Format& format;
    const uint8_t* panels;
    int64_t rows, width;

    Matrix(int type, const uint8_t* panels, int64_t rows, int64_t width)
        : type(type), format(*format_of(type)), panels(panels), rows(rows), width(width) {}
    int64_t groups() const { return width / GROUP; }
    int64_t bytes() const { return panels_of(rows) * panel_bytes(format, width); }
    const uint8_t* panel(int64_t number) const { return panels + number * panel_bytes(format, width); }
};

// What a thread needs beside a panel: its scales as floats, and room for its quants.
struct Panel {
    float* scale;
    float* minimum;
    uint8_t* quants;

    // Makes room for the panels of a matrix; false without memory.
    bool reserve(const Matrix& m) {
        const int64_t values = m.groups() * PANEL;
        if (!panel_scratch.reserve(Scratch::bytes<float>(values * m.format.parts) + Scratch::bytes<float>(values) +
                                   Scratch::bytes<uint8_t>(values * GROUP)))
            return false;
        scale = panel_scratch.take<float>(values * m.format.parts);
        minimum = panel_scratch.take<float>(values);
        quants = panel_scratch.take<uint8_t>(values * GROUP);
        return true;
    }

    // Products of one panel with `count` rows of activations, handed to put(first row, rows, products [rows, 16]).
    template <class Put>
    void multiply(const Matrix& m, const uint8_t* panel, const Record* const* x, int64_t count, const Put& put) {
        constexpr int64_t STEP = 64;
        alignas(64) float out[STEP * PANEL];
        kernels->scales(m.type, panel, m.width, scale, minimum);
        // The next panel is most likely next, and begins with its scales, which lie apart.
        const int64_t size = panel_bytes(m.format, m.width);
        for (int64_t byte = quant_bytes(m.format, m.width); byte < size; byte += 64)
            __builtin_prefetch(panel + size + byte);
        for (int64_t first = 0; first < count; first += STEP) {
            const int64_t rows = std::min(STEP, count - first);
            kernels->multiply(m.type, panel, scale, minimum, m.groups(), x + first, rows, quants, out);
            put(first, rows, out);
        }
    }
};

void quantize_rows(const float* x, int64_t rows, int64_t width, Record* out, int threads) {
    const int64_t groups = width / GROUP;
    parallel(threads, rows, [&](int64_t row) { kernels->quantize(x + row * width, groups, out + row * groups); });
}

// How many equal parts to cut `items` in, for `threads` threads that may be held up.
int64_t parts_of(int64_t items, int threads) { return std::min<int64_t>(items, threads == 1 ? 1 : 8 * threads); }

struct Range {
    int64_t begin, end;
    Range(int64_t items, int64_t parts, int64_t part)
        : begin(items * part / parts), end(items * (part + 1) / parts) {}
};

// The (row, choice) pairs of each expert, as begins[expert] .. begins[expert + 1] of `pairs`.
bool sort_pairs(const int64_t* index, int64_t count, int64_t experts, int64_t* begins, int64_t* pairs) {
    std::fill(begins, begins + experts + 1, 0);
    for (int64_t i = 0; i < count; ++i) {
        if (index[i] < 0 || index[i] >= experts) return false;
        ++begins[index[i] + 1];
    }
    for (int64_t e = 0; e < experts; ++e) begins[e + 1] += begins[e];
    for (int64_t i = 0; i < count; ++i) pairs[begins[index[i]]++] = i;
    for (int64_t e = experts; e > 0; --e) begins[e] = begins[e - 1];
    begins[0] = 0;
    return true;
}

}  // namespace

const Kernels* jev::chosen_kernels() { return kernels; }

#pragma GCC visibility push(default)
extern "C" {

// Choose kernels by name; "" is the best this machine has. Returns their name, or null if it has no such.
const char* jev_select(const char* name) {
    const Kernels* all[] = {avx512_kernels(), avxvnni_kernels(), avx2_kernels(), neon_kernels(), generic_kernels()};
    for (const Kernels* one : all)
        if (one != nullptr && (*name == 0 || strcmp(name, one->name) == 0)) {
            kernels = one;
            return one->name;
        }
    return nullptr;
}

// Bytes of a matrix [rows, width] in panels, or -1 for a type or width that there is no kernel for.
int64_t jev_packed_bytes(int type, int64_t rows, int64_t width) {
    const Format* f = format_of(type);
    if (f == nullptr || width <= 0 || width % f->block != 0) return -1;
    return panels_of(rows) * panel_bytes(*f, width);
}

// Ask for large pages under memory that was not touched yet: weights are read from end to end.
void jev_large_pages(void* memory, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
    constexpr uintptr_t page = 1u << 21;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + page - 1) / page * page;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + bytes) / page * page;
    if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

// Raw blocks of `matrices` matrices [rows, width] into panels.
void jev_pack(int type, const uint8_t* raw, int64_t matrices, int64_t rows, int64_t width, uint8_t* packed,
              int threads) {
    const Matrix m(type, packed, rows, width);
    const int64_t row_bytes = width / m.format.block * m.format.block_bytes, panels = panels_of(rows);
    parallel(threads, matrices * panels, [&](int64_t i) {
        const int64_t first = i % panels * PANEL;
        pack_panel(type, raw + (i / panels * rows + first) * row_bytes,
                   static_cast<int>(std::min<int64_t>(PANEL, rows - first)), width,
                   packed + i * panel_bytes(m.format, width));
    });
}

// Rows `index` [count] of a matrix as floats [count, width].
int jev_rows(int type, const uint8_t* packed, int64_t rows, int64_t width, const int64_t* index, int64_t count,
             float* out) {
    const Matrix m(type, packed, rows, width);
    Panel s;
    if (!s.reserve(m)) return NO_MEMORY;
    const uint8_t* loaded = nullptr;
    for (int64_t i = 0; i < count; ++i) {
        if (index[i] < 0 || index[i] >= rows) return BAD_INDEX;
        const uint8_t* panel = m.panel(index[i] / PANEL);
        if (panel != loaded) kernels->scales(type, loaded = panel, width, s.scale, s.minimum);
        unpack_row(type, panel, s.scale, s.minimum, width, static_cast<int>(index[i] % PANEL), out + i * width);
    }
    return OK;
}

// x [count, width] times the transpose of a matrix [rows, width] -> out [count, rows].
int jev_linear(int type, const uint8_t* packed, int64_t rows, int64_t width, const float* x, int64_t count,
               float* out, int threads) {
    const Matrix m(type, packed, rows, width);
    if (count == 0) return OK;
    if (!call_scratch.reserve(Scratch::bytes<Record>(count * m.groups()) + Scratch::bytes<Record*>(count)))
        return NO_MEMORY;
    Record* records = call_scratch.take<Record>(count * m.groups());
    const Record** pointers = call_scratch.take<const Record*>(count);
    for (int64_t n = 0; n < count; ++n) pointers[n] = records + n * m.groups();
    quantize_rows(x, count, width, records, threads);
    const int64_t panels = panels_of(rows), parts = parts_of(panels, threads);
    std::atomic<bool> failed{false};
    parallel(threads, parts, [&](int64_t part) {
        Panel work;
        if (!work.reserve(m)) return failed.store(true);
        const Range range(panels, parts, part);
        for (int64_t p = range.begin; p < range.end; ++p) {
            const size_t lanes = std::min<int64_t>(PANEL, rows - p * PANEL);
            work.multiply(m, m.panel(p), pointers, count, [&](int64_t first, int64_t n, const float* y) {
                for (int64_t i = 0; i < n; ++i)
                    memcpy(out + (first + i) * rows + p * PANEL, y + i * PANEL, lanes * sizeof(float));
            });
        }
    });
    return failed ? NO_MEMORY : OK;
}

// Gated experts: x [count, hidden], weights and index [count, k] -> out [count, hidden]. gate_up is
// [experts, 2 * inner, hidden], gate rows first, down [experts, hidden, inner]; 32 divides hidden and inner. A row's
// experts are summed in the order of their numbers.
int jev_experts(int gate_up_type, const uint8_t* gate_up, int down_type, const uint8_t* down, int64_t experts,
                int64_t hidden, int64_t inner, const float* x, int64_t count, const float* weights,
                const int64_t* index, int64_t k, float* out, int threads) {
    const Matrix gu(gate_up_type, gate_up, 2 * inner, hidden), dn(down_type, down, hidden, inner);
    const int64_t pairs = count * k, in_groups = gu.groups(), mid_groups = dn.groups();
    if (!call_scratch.reserve(Scratch::bytes<Record>(count * in_groups) + Scratch::bytes<Record>(pairs * mid_groups) +
                              2 * Scratch::bytes<Record*>(pairs) + Scratch::bytes<int64_t>(experts + 1) +
                              Scratch::bytes<int64_t>(pairs) + Scratch::bytes<int64_t>(experts)))
        return NO_MEMORY;
    Record* records = call_scratch.take<Record>(count * in_groups);
    Record* middle = call_scratch.take<Record>(pairs * mid_groups);
    const Record** inputs = call_scratch.take<const Record*>(pairs);
    const Record** middles = call_scratch.take<const Record*>(pairs);
    int64_t* begins = call_scratch.take<int64_t>(experts + 1);
    int64_t* order = call_scratch.take<int64_t>(pairs);
    int64_t* used = call_scratch.take<int64_t>(experts);
    if (!sort_pairs(index, pairs, experts, begins, order)) return BAD_INDEX;
    for (int64_t i = 0; i < pairs; ++i) {
        inputs[i] = records + order[i] / k * in_groups;
        middles[i] = middle + i * mid_groups;
    }
    int64_t chosen = 0;
    for (int64_t e = 0; e < experts; ++e)
        if (begins[e + 1] > begins[e]) used[chosen++] = e;
    quantize_rows(x, count, hidden, records, threads);

    std::atomic<bool> failed{false};
    // A task is some groups of 32 inner columns of one expert: two panels of gate rows and two of up rows each.
    const int64_t cuts = threads == 1 ? 1 : std::min<int64_t>(mid_groups, chosen >= 16 * threads ? 2 : 8);
    parallel(threads, chosen * cuts, [&](int64_t task) {
        Panel work;
        if (!work.reserve(gu)) return failed.store(true);
        const int64_t expert = used[task / cuts], begin = begins[expert], rows = begins[expert + 1] - begin;
        const uint8_t* panels = gate_up + expert * gu.bytes();
        const Range range(mid_groups, cuts, task % cuts);
        constexpr int64_t STEP = 64;  // rows at once
        alignas(64) float products[2][STEP][GROUP];
        for (int64_t g = range.begin; g < range.end; ++g)
            for (int64_t start = 0; start < rows; start += STEP) {
                const int64_t n = std::min(STEP, rows - start);
                for (int part = 0; part < 4; ++part) {
                    const int64_t number = part / 2 * (inner / PANEL) + 2 * g + part % 2;
                    const uint8_t* panel = panels + number * panel_bytes(gu.format, hidden);
                    work.multiply(gu, panel, inputs + begin + start, n, [&](int64_t first, int64_t some, const float* y) {
                        for (int64_t i = 0; i < some; ++i)
                            memcpy(products[part / 2][first + i] + part % 2 * PANEL, y + i * PANEL, PANEL * sizeof(float));
                    });
                }
                for (int64_t i = 0; i < n; ++i) {
                    alignas(64) float mixed[GROUP];
                    kernels->gate(products[0][i], products[1][i], mixed);
                    kernels->quantize(mixed, 1, middle + (begin + start + i) * mid_groups + g);
                }
            }
    });
    if (failed) return NO_MEMORY;

    // A task is some columns of the output, which it sums over all experts.
    const int64_t panels = panels_of(hidden), parts = parts_of(panels, threads);
    parallel(threads, parts, [&](int64_t part) {
        Panel work;
        if (!work.reserve(dn)) return failed.store(true);
        const Range range(panels, parts, part);
        const int64_t from = range.begin * PANEL, to = std::min(range.end * PANEL, hidden);
        for (int64_t n = 0; n < count; ++n) std::fill(out + n * hidden + from, out + n * hidden + to, 0.0f);
        for (int64_t u = 0; u < chosen; ++u) {
            const int64_t expert = used[u], begin = begins[expert], rows = begins[expert + 1] - begin;
            for (int64_t p = range.begin; p < range.end; ++p) {
                const int lanes = static_cast<int>(std::min<int64_t>(PANEL, hidden - p * PANEL));
                const uint8_t* panel = down + expert * dn.bytes() + p * panel_bytes(dn.format, inner);
                work.multiply(dn, panel, middles + begin, rows, [&](int64_t first, int64_t some, const float* y) {
                    for (int64_t i = 0; i < some; ++i) {
                        const int64_t pair = order[begin + first + i];
                        float* row = out + pair / k * hidden + p * PANEL;
                        for (int lane = 0; lane < lanes; ++lane) row[lane] += weights[pair] * y[i * PANEL + lane];
                    }
                });
            }
        }
    });
    return failed ? NO_MEMORY : OK;
}

}  // extern "C"
#pragma GCC visibility pop
