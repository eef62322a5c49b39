// The inner loops in plain C++, and what a vector class must offer.
#include "inner.h"

namespace {

float float_of_half(uint16_t h) {
    const uint32_t sign = (h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest >= 0x7c00u) return inner::float_of(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    // Exponent and fraction at their fp32 places are a float 2^112 times too small, subnormals too.
    return inner::float_of(sign | inner::bits_of(inner::float_of(rest << 13) * 0x1p112f));
}

struct Generic {
    static constexpr int LANES = 4, ROWS = 4;
    static constexpr int READY_FROM = 24;  // rows from which decoding the quants once pays; 0 = never
    static constexpr bool SIGNED = true;  // whether 8-bit quants come out of `eight` without their offset
    struct Bytes { int8_t v[4 * LANES]; };
    struct Ints { int32_t v[LANES]; };
    struct Floats { float v[LANES]; };
    struct Partial {};

    static Bytes load(const uint8_t* p) {
        Bytes b;
        memcpy(&b, p, sizeof b);
        return b;
    }
    static void put(uint8_t* p, const Bytes& b) { memcpy(p, &b, sizeof b); }
    template <int LEFT>  // bits that cross into a neighbour are masked away later
    static Bytes shift(Bytes b) {
        for (auto& v : b.v) v = static_cast<int8_t>(LEFT > 0 ? uint8_t(v) << (LEFT & 7) : uint8_t(v) >> (-LEFT & 7));
        return b;
    }
    static Bytes low4(Bytes b) {
        for (auto& v : b.v) v &= 15;
        return b;
    }
    template <int MASK>
    static Bytes join(Bytes low, Bytes high) {
        for (int i = 0; i < 4 * LANES; ++i) low.v[i] |= high.v[i] & MASK;
        return low;
    }
    static Bytes eight(Bytes b) {
        for (auto& v : b.v) v = static_cast<int8_t>(v ^ 0x80);
        return b;
    }
    static Ints zeros() { return Ints{}; }
    template <int OFFSET>
    static Ints offset(int32_t negative_sum) {
        Ints r;
        for (auto& v : r.v) v = OFFSET * negative_sum;
        return r;
    }
    // dots += w * q over the four columns of chunk CHUNK.
    template <int BITS, int CHUNK>
    static void dot(Ints& dots, Partial&, const Bytes& w, const int8_t* q) {
        for (int i = 0; i < LANES; ++i)
            dots.v[i] += w.v[4 * i] * q[0] + w.v[4 * i + 1] * q[1] + w.v[4 * i + 2] * q[2] + w.v[4 * i + 3] * q[3];
    }
    static Floats float_zeros() { return Floats{}; }
    static Floats floats(const float* p) {
        Floats f;
        memcpy(&f, p, sizeof f);
        return f;
    }
    static void store(float* p, const Floats& f) { memcpy(p, &f, sizeof f); }
    static Floats times(Floats f, float by) {
        for (auto& v : f.v) v *= by;
        return f;
    }
    static Floats product(Floats a, const Floats& b) {
        for (int i = 0; i < LANES; ++i) a.v[i] *= b.v[i];
        return a;
    }
    static Floats negative(Floats a) {
        for (auto& v : a.v) v = -v;
        return a;
    }
    static Floats add_scaled(Floats sum, const Ints& dots, const Floats& scale) {
        for (int i = 0; i < LANES; ++i) sum.v[i] += static_cast<float>(dots.v[i]) * scale.v[i];
        return sum;
    }
    static Floats subtract(Floats sum, const Floats& m, float by) {
        for (int i = 0; i < LANES; ++i) sum.v[i] -= m.v[i] * by;
        return sum;
    }
    // Keeps a value in a register, where compilers would rather load it again for every use.
    static void keep(Floats&) {}
    static Floats add_product(Floats sum, const Floats& a, const Floats& b) {
        for (int i = 0; i < LANES; ++i) sum.v[i] += a.v[i] * b.v[i];
        return sum;
    }
    static Floats add_times(Floats sum, const Floats& a, float by) {
        for (int i = 0; i < LANES; ++i) sum.v[i] += a.v[i] * by;
        return sum;
    }
    // The sum over the lanes of each.
    static void totals(const Floats (&a)[4][2], float* out) {
        for (int i = 0; i < 8; ++i) {
            const float* v = a[i / 2][i % 2].v;
            out[i] = (v[0] + v[1]) + (v[2] + v[3]);
        }
    }
    static Floats halves(const uint8_t* p) {
        Floats f;
        for (int i = 0; i < LANES; ++i) f.v[i] = float_of_half(static_cast<uint16_t>(p[2 * i] | p[2 * i + 1] << 8));
        return f;
    }
    static Floats unsigned_bytes(const uint8_t* p) {
        Floats f;
        for (int i = 0; i < LANES; ++i) f.v[i] = p[i];
        return f;
    }
    static Floats signed_bytes(const uint8_t* p) {
        Floats f;
        for (int i = 0; i < LANES; ++i) f.v[i] = static_cast<int8_t>(p[i]);
        return f;
    }
};

}  // namespace

const jev::Kernels* jev::generic_kernels() { return inner::kernels<Generic>("generic"); }
