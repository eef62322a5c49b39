// The inner loops for AVX-512 VNNI: 16 weight rows a register, four columns an instruction.
#if defined(__x86_64__) && defined(__GNUC__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")
#endif
#include <immintrin.h>

#include "inner.h"

namespace {

struct Avx512 {
    static constexpr int LANES = 16, ROWS = 8;
    static constexpr int READY_FROM = 0;
    static constexpr bool SIGNED = false;
    using Bytes = __m512i;
    using Ints = __m512i;
    using Floats = __m512;
    struct Partial {};

    static INLINE Bytes load(const uint8_t* p) { return _mm512_loadu_si512(p); }
    static INLINE void put(uint8_t* p, Bytes b) { _mm512_storeu_si512(p, b); }
    template <int LEFT>
    static INLINE Bytes shift(Bytes b) {
        if constexpr (LEFT > 0) return _mm512_slli_epi16(b, LEFT);
        if constexpr (LEFT < 0) return _mm512_srli_epi16(b, -LEFT);
        return b;
    }
    static INLINE Bytes low4(Bytes b) { return _mm512_and_si512(b, _mm512_set1_epi8(15)); }
    template <int MASK>
    static INLINE Bytes join(Bytes low, Bytes high) {
        return _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi8(MASK), 0xf8);  // low | (high & mask)
    }
    static INLINE Bytes eight(Bytes b) { return b; }
    static INLINE Ints zeros() { return _mm512_setzero_si512(); }
    template <int OFFSET>
    static INLINE Ints offset(int32_t negative_sum) {
        constexpr int LOG = OFFSET == 16 ? 4 : OFFSET == 32 ? 5 : 7;
        static_assert(1 << LOG == OFFSET, "a power of two");
        return _mm512_slli_epi32(_mm512_set1_epi32(negative_sum), LOG);
    }
    template <int BITS, int CHUNK>
    static INLINE void dot(Ints& dots, Partial&, Bytes w, const int8_t* q) {
        int32_t four;
        memcpy(&four, q, 4);
        dots = _mm512_dpbusd_epi32(dots, w, _mm512_set1_epi32(four));
    }
    static INLINE Floats float_zeros() { return _mm512_setzero_ps(); }
    static INLINE Floats floats(const float* p) { return _mm512_loadu_ps(p); }
    static INLINE void store(float* p, Floats f) { _mm512_storeu_ps(p, f); }
    static INLINE Floats times(Floats f, float by) { return _mm512_mul_ps(f, _mm512_set1_ps(by)); }
    static INLINE Floats product(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
    static INLINE Floats negative(Floats a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
    static INLINE Floats add_scaled(Floats sum, Ints dots, Floats scale) {
        return _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scale, sum);
    }
    static INLINE Floats subtract(Floats sum, Floats m, float by) {
        return _mm512_fnmadd_ps(m, _mm512_set1_ps(by), sum);
    }
    static INLINE void keep(Floats& f) { asm("" : "+v"(f)); }
    static INLINE Floats add_product(Floats sum, Floats a, Floats b) { return _mm512_fmadd_ps(a, b, sum); }
    static INLINE Floats add_times(Floats sum, Floats a, float by) {
        return _mm512_fmadd_ps(a, _mm512_set1_ps(by), sum);
    }
    // Four registers -> four sums in each quarter of one.
    static INLINE Floats quarters(const Floats* a) {
        const Floats low = _mm512_add_ps(_mm512_unpacklo_ps(a[0], a[1]), _mm512_unpackhi_ps(a[0], a[1]));
        const Floats high = _mm512_add_ps(_mm512_unpacklo_ps(a[2], a[3]), _mm512_unpackhi_ps(a[2], a[3]));
        const __m512d l = _mm512_castps_pd(low), h = _mm512_castps_pd(high);
        return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(l, h)), _mm512_castpd_ps(_mm512_unpackhi_pd(l, h)));
    }
    static INLINE Floats halves_of(Floats a, Floats b) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
    static INLINE void totals(const Floats (&a)[4][4], float* out) {
        store(out, halves_of(halves_of(quarters(a[0]), quarters(a[1])), halves_of(quarters(a[2]), quarters(a[3]))));
    }
    static INLINE Floats halves(const uint8_t* p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static INLINE Floats unsigned_bytes(const uint8_t* p) {
        return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
    }
    static INLINE Floats signed_bytes(const uint8_t* p) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
    }
};

}  // namespace
#if defined(__clang__)
#pragma clang attribute pop
#endif

const jev::Kernels* jev::avx512_kernels() {
    const bool can = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                     __builtin_cpu_supports("avx512vnni");
    return can ? inner::kernels<Avx512>("avx512") : nullptr;
}

#else
#include "kernels.h"
const jev::Kernels* jev::avx512_kernels() { return nullptr; }
#endif
