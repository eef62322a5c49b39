// The C interface to products of fp32 matrices: a row's result depends on nothing but the row and what it is
// multiplied with. Sizes are the caller's to check (see __init__.py); 0 is success.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "kernels.h"
#include "scratch.h"
#include "threads.h"

using namespace jev;

namespace {

constexpr int64_t QUERIES = 64;  // most at once
constexpr int64_t SCORES = 1 << 21;  // most that a thread holds, if keys are not very many
constexpr int64_t NEAR = 6144;   // floats that the nearest cache holds beside what they are multiplied with

thread_local Scratch scratch;

// Keys and values [count, kv, dim] with a bias [rows, count], its rows `bias_step` apart; null = all are seen.
struct Part {
    const float* keys;
    const float* values;
    const float* bias;
    int64_t count;
    int64_t bias_step;
};

// Rows of queries that share a key/value head, as they ask its keys. Query `n` is head n % group of row n / group.
struct Queries {
    const float* q;
    int64_t rows, heads, kv, dim;

    int64_t group() const { return heads / kv; }
    int64_t count() const { return rows * group(); }
    int64_t offset(int64_t head, int64_t n) const {
        return (n / group() * heads + head * group() + n % group()) * dim;
    }
};

// A part without the keys before and behind those that any of the queries begin .. end - 1 sees.
Part seen(const Part& part, const Queries& queries, int64_t begin, int64_t end) {
    if (part.bias == nullptr) return part;
    int64_t first = part.count, last = 0;
    for (int64_t row = begin / queries.group(); row <= (end - 1) / queries.group(); ++row) {
        const float* bias = part.bias + row * part.bias_step;
        int64_t j = 0;
        while (j < first && bias[j] == -INFINITY) ++j;
        first = std::min(first, j);
        j = part.count;
        while (j > last && bias[j - 1] == -INFINITY) --j;
        last = std::max(last, j);
    }
    if (first >= last) return Part{part.keys, part.values, nullptr, 0, 0};
    const int64_t skipped = first * queries.kv * queries.dim;
    return Part{part.keys + skipped, part.values + skipped, part.bias + first, last - first, part.bias_step};
}

// Some of a head's keys, or values, `step` floats apart.
struct Near {
    const float* rows;
    int64_t step;

    // Row j and `some` - 1 more of [count, kv, dim]. What many queries read is brought together first: in place, rows
    // lie a power of two apart, so that they drive each other out of the nearest cache.
    Near(const float* all, const Queries& queries, int64_t head, int64_t j, int64_t some, bool many, float* memory)
        : rows(all + (j * queries.kv + head) * queries.dim), step(queries.kv * queries.dim) {
        if (!many) return;
        for (int64_t i = 0; i < some; ++i)
            memcpy(memory + i * queries.dim, rows + i * step, queries.dim * sizeof(float));
        rows = memory;
        step = queries.dim;
    }
};

// One head's queries begin .. end - 1, at work.
struct Work {
    const Kernels& kernels;
    const Queries& queries;
    int64_t head, begin, end;
    int64_t step;    // from the scores with one key to those with the next
    int64_t block;   // keys at once
    float* memory;   // [block, dim]

    bool many() const { return end - begin > TILE; }

    // Scores [keys, step] with the keys of one part.
    void score(const Part& part, float* scores) const {
        for (int64_t start = 0; start < part.count; start += block) {
            const int64_t some = std::min(block, part.count - start);
            const Near near(part.keys, queries, head, start, some, many(), memory);
            for (int64_t n = begin; n < end; n += TILE) {
                const float* x[TILE];
                for (int64_t i = 0; i < TILE; ++i) x[i] = queries.q + queries.offset(head, std::min(n + i, end - 1));
                for (int64_t j = 0; j < some; j += TILE) {
                    const float* keys[TILE];
                    for (int64_t m = 0; m < TILE; ++m) keys[m] = near.rows + std::min(j + m, some - 1) * near.step;
                    alignas(64) float out[TILE * TILE];
                    kernels.dots(keys, x, queries.dim, out);
                    for (int64_t m = 0; m < std::min<int64_t>(TILE, some - j); ++m)
                        memcpy(scores + (start + j + m) * step + n - begin, out + m * TILE, TILE * sizeof(float));
                }
            }
        }
        if (part.bias == nullptr) return;
        for (int64_t n = begin; n < end; ++n) {
            const float* bias = part.bias + n / queries.group() * part.bias_step;
            for (int64_t j = 0; j < part.count; ++j) scores[j * step + n - begin] += bias[j];
        }
    }

    // Add the values of one part, weighed, to `mixed` [step, dim].
    void mix(const Part& part, const float* weights, float* mixed) const {
        for (int64_t start = 0; start < part.count; start += block) {
            const int64_t some = std::min(block, part.count - start);
            const Near near(part.values, queries, head, start, some, many(), memory);
            for (int64_t n = 0; n < end - begin; n += TILE) {
                float* rows[TILE];
                for (int64_t i = 0; i < TILE; ++i) rows[i] = mixed + (n + i) * queries.dim;
                kernels.mix(weights + start * step + n, step, near.rows, near.step, some, queries.dim, rows);
            }
        }
    }
};

// One head's queries begin .. end - 1 over all parts; false without memory.
bool attend(const Kernels& kernels, const Queries& queries, const Part* all, int64_t part_count, int64_t head,
            int64_t begin, int64_t end, float* out) {
    const int64_t step = (end - begin + PANEL - 1) / PANEL * PANEL, dim = queries.dim;
    const int64_t block = std::max<int64_t>(TILE, NEAR / dim / TILE * TILE);
    int64_t keys = 0;
    for (int64_t p = 0; p < part_count; ++p) keys += all[p].count;
    if (!scratch.reserve(Scratch::bytes<Part>(part_count) + Scratch::bytes<float>(keys * step) +
                         Scratch::bytes<float>(step * dim) + Scratch::bytes<float>(step) +
                         Scratch::bytes<float>(block * dim)))
        return false;
    Part* parts = scratch.take<Part>(part_count);
    keys = 0;
    for (int64_t p = 0; p < part_count; ++p) {
        parts[p] = seen(all[p], queries, begin, end);
        keys += parts[p].count;
    }
    float* scores = scratch.take<float>(keys * step);
    float* mixed = scratch.take<float>(step * dim);
    float* inverse = scratch.take<float>(step);
    const Work work{kernels, queries, head, begin, end, step, block, scratch.take<float>(block * dim)};
    std::fill(scores, scores + keys * step, 0.0f);
    std::fill(mixed, mixed + step * dim, 0.0f);

    float* of_part = scores;
    for (int64_t p = 0; p < part_count; of_part += parts[p++].count * step) work.score(parts[p], of_part);
    for (int64_t n = 0; n < step; n += PANEL) kernels.softmax(scores + n, step, keys, inverse + n);
    of_part = scores;
    for (int64_t p = 0; p < part_count; of_part += parts[p++].count * step) work.mix(parts[p], of_part, mixed);
    for (int64_t n = begin; n < end; ++n) {
        float* row = out + queries.offset(head, n);
        for (int64_t c = 0; c < dim; ++c) row[c] = mixed[(n - begin) * dim + c] * inverse[n - begin];
    }
    return true;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// x [count, width] times the transpose of w [rows, width] -> out [count, rows].
int jev_dense(const float* w, int64_t rows, int64_t width, const float* x, int64_t count, float* out, int threads) {
    const Kernels& kernels = *chosen_kernels();
    constexpr int64_t HIGH = 4 * TILE, LONG = 8 * TILE;  // a task, so that what it reads stays near
    const int64_t across = (rows + HIGH - 1) / HIGH, down = (count + LONG - 1) / LONG;
    parallel(threads, across * down, [&](int64_t task) {
        const int64_t m_begin = task % across * HIGH, m_end = std::min(m_begin + HIGH, rows);
        const int64_t n_begin = task / across * LONG, n_end = std::min(n_begin + LONG, count);
        for (int64_t n = n_begin; n < n_end; n += TILE)
            for (int64_t m = m_begin; m < m_end; m += TILE) {
                const float *left[TILE], *right[TILE];
                for (int64_t i = 0; i < TILE; ++i) {
                    left[i] = x + std::min(n + i, n_end - 1) * width;
                    right[i] = w + std::min(m + i, m_end - 1) * width;
                }
                alignas(64) float products[TILE * TILE];
                kernels.dots(left, right, width, products);
                const int64_t some = std::min<int64_t>(TILE, m_end - m);
                for (int64_t i = 0; i < std::min<int64_t>(TILE, n_end - n); ++i)
                    memcpy(out + (n + i) * rows + m, products + i * TILE, some * sizeof(float));
            }
    });
    return 0;
}

// gelu_tanh(gate) * up, `count` values.
int jev_gate(const float* gate, const float* up, int64_t count, float* out, int threads) {
    const Kernels& kernels = *chosen_kernels();
    constexpr int64_t STEP = 128 * GROUP;
    parallel(threads, (count + STEP - 1) / STEP, [&](int64_t task) {
        int64_t i = task * STEP;
        const int64_t end = std::min(count, i + STEP);
        for (; i + GROUP <= end; i += GROUP) kernels.gate(gate + i, up + i, out + i);
        if (i == end) return;
        float rest[3][GROUP] = {};
        memcpy(rest[0], gate + i, (end - i) * sizeof(float));
        memcpy(rest[1], up + i, (end - i) * sizeof(float));
        kernels.gate(rest[0], rest[1], rest[2]);
        memcpy(out + i, rest[2], (end - i) * sizeof(float));
    });
    return 0;
}

// Softmax attention of q [rows, heads, dim] over the keys of all parts in turn -> out [rows, heads, dim]. Keys that a
// row does not see (bias -inf) change no bit of its result, wherever they stand.
int jev_attend(const float* q, int64_t rows, int64_t heads, int64_t kv, int64_t dim, const Part* parts,
               int64_t part_count, float* out, int threads) {
    const Kernels& kernels = *chosen_kernels();
    const Queries queries{q, rows, heads, kv, dim};
    int64_t keys = 0;
    for (int64_t p = 0; p < part_count; ++p) keys += parts[p].count;
    int64_t step = QUERIES;  // large tasks read keys less often, but every thread needs some, and room for scores
    const auto tasks = [&] { return (queries.count() + step - 1) / step; };
    while (step > PANEL && (tasks() * kv < 2 * threads || keys * step > SCORES)) step /= 2;
    std::atomic<bool> failed{false};
    parallel(threads, tasks() * kv, [&](int64_t task) {
        const int64_t begin = task / kv * step, end = std::min(begin + step, queries.count());
        if (!attend(kernels, queries, parts, part_count, task % kv, begin, end, out)) failed.store(true);
    });
    return failed ? 1 : 0;
}

}  // extern "C"
#pragma GCC visibility pop
