// 8 weight rows a register: the vector class of the instruction sets with 256 bits.
#pragma once
#include <immintrin.h>

#include "inner.h"

namespace {

struct Avx2 {
    static constexpr int LANES = 8, ROWS = 4;
    static constexpr int READY_FROM = 24;
    static constexpr bool SIGNED = true;
    using Bytes = __m256i;
    using Ints = __m256i;
    using Floats = __m256;
    using Partial = __m256i;

    static INLINE Bytes load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
    static INLINE void put(uint8_t* p, Bytes b) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), b); }
    template <int LEFT>
    static INLINE Bytes shift(Bytes b) {
        if constexpr (LEFT > 0) return _mm256_slli_epi16(b, LEFT);
        if constexpr (LEFT < 0) return _mm256_srli_epi16(b, -LEFT);
        return b;
    }
    static INLINE Bytes low4(Bytes b) { return _mm256_and_si256(b, _mm256_set1_epi8(15)); }
    template <int MASK>
    static INLINE Bytes join(Bytes low, Bytes high) {
        return _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(MASK)));
    }
    static INLINE Bytes eight(Bytes b) { return _mm256_xor_si256(b, _mm256_set1_epi8(-128)); }
    static INLINE Ints zeros() { return _mm256_setzero_si256(); }
    template <int OFFSET>
    static INLINE Ints offset(int32_t negative_sum) { return _mm256_set1_epi32(OFFSET * negative_sum); }
    template <int BITS, int CHUNK>
    static INLINE void dot(Ints& dots, Partial& partial, Bytes w, const int8_t* q) {
        // A pair of products is at most 2 * 127 * (2^BITS - 1) (8 bits: 2 * 127 * 128); int16 holds RUN of them.
        constexpr int RUN = BITS == 4 ? 8 : BITS == 5 ? 4 : BITS == 6 ? 2 : 1;
        int32_t four;
        memcpy(&four, q, 4);
        __m256i a = _mm256_set1_epi32(four);
        __m256i pairs = BITS == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w))
                                  : _mm256_maddubs_epi16(w, a);
        partial = CHUNK % RUN == 0 ? pairs : _mm256_add_epi16(partial, pairs);
        if constexpr (CHUNK % RUN == RUN - 1)
            dots = _mm256_add_epi32(dots, _mm256_madd_epi16(partial, _mm256_set1_epi16(1)));
    }
    static INLINE Floats float_zeros() { return _mm256_setzero_ps(); }
    static INLINE Floats floats(const float* p) { return _mm256_loadu_ps(p); }
    static INLINE void store(float* p, Floats f) { _mm256_storeu_ps(p, f); }
    static INLINE Floats times(Floats f, float by) { return _mm256_mul_ps(f, _mm256_set1_ps(by)); }
    static INLINE Floats product(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
    static INLINE Floats negative(Floats a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
    static INLINE Floats add_scaled(Floats sum, Ints dots, Floats scale) {
        return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), scale, sum);
    }
    static INLINE Floats subtract(Floats sum, Floats m, float by) {
        return _mm256_fnmadd_ps(m, _mm256_set1_ps(by), sum);
    }
    static INLINE void keep(Floats& f) { asm("" : "+x"(f)); }
    static INLINE Floats add_product(Floats sum, Floats a, Floats b) { return _mm256_fmadd_ps(a, b, sum); }
    static INLINE Floats add_times(Floats sum, Floats a, float by) {
        return _mm256_fmadd_ps(a, _mm256_set1_ps(by), sum);
    }
    // Four registers -> four sums in each half of one.
    static INLINE Floats halves_of(Floats a, Floats b, Floats c, Floats d) {
        return _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    }
    static INLINE void totals(const Floats (&a)[4][2], float* out) {
        const Floats low = halves_of(a[0][0], a[0][1], a[1][0], a[1][1]);
        const Floats high = halves_of(a[2][0], a[2][1], a[3][0], a[3][1]);
        store(out, _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)));
    }
    static INLINE Floats halves(const uint8_t* p) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    static INLINE Floats unsigned_bytes(const uint8_t* p) {
        return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
    }
    static INLINE Floats signed_bytes(const uint8_t* p) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
    }
};

}  // namespace
