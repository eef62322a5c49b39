// The inner loops for Arm with dot product instructions: 4 weight rows a register.
#if defined(__aarch64__) && defined(__GNUC__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif
#include <arm_neon.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif

#include "inner.h"

namespace {

struct Neon {
    static constexpr int LANES = 4, ROWS = 8;
    static constexpr int READY_FROM = 24;
    static constexpr bool SIGNED = true;
    using Bytes = uint8x16_t;
    using Ints = int32x4_t;
    using Floats = float32x4_t;
    struct Partial {};

    static INLINE Bytes load(const uint8_t* p) { return vld1q_u8(p); }
    static INLINE void put(uint8_t* p, Bytes b) { vst1q_u8(p, b); }
    template <int LEFT>
    static INLINE Bytes shift(Bytes b) {
        if constexpr (LEFT > 0) return vshlq_n_u8(b, LEFT);
        if constexpr (LEFT < 0) return vshrq_n_u8(b, -LEFT);
        return b;
    }
    static INLINE Bytes low4(Bytes b) { return vandq_u8(b, vdupq_n_u8(15)); }
    template <int MASK>
    static INLINE Bytes join(Bytes low, Bytes high) { return vorrq_u8(low, vandq_u8(high, vdupq_n_u8(MASK))); }
    static INLINE Bytes eight(Bytes b) { return veorq_u8(b, vdupq_n_u8(0x80)); }
    static INLINE Ints zeros() { return vdupq_n_s32(0); }
    template <int OFFSET>
    static INLINE Ints offset(int32_t negative_sum) { return vdupq_n_s32(OFFSET * negative_sum); }
    template <int BITS, int CHUNK>
    static INLINE void dot(Ints& dots, Partial&, Bytes w, const int8_t* q) {
        int32_t four;
        memcpy(&four, q, 4);
        dots = vdotq_s32(dots, vreinterpretq_s8_u8(w), vreinterpretq_s8_s32(vdupq_n_s32(four)));
    }
    static INLINE Floats float_zeros() { return vdupq_n_f32(0); }
    static INLINE Floats floats(const float* p) { return vld1q_f32(p); }
    static INLINE void store(float* p, Floats f) { vst1q_f32(p, f); }
    static INLINE Floats times(Floats f, float by) { return vmulq_n_f32(f, by); }
    static INLINE Floats product(Floats a, Floats b) { return vmulq_f32(a, b); }
    static INLINE Floats negative(Floats a) { return vnegq_f32(a); }
    static INLINE Floats add_scaled(Floats sum, Ints dots, Floats scale) {
        return vfmaq_f32(sum, vcvtq_f32_s32(dots), scale);
    }
    static INLINE Floats subtract(Floats sum, Floats m, float by) { return vfmsq_n_f32(sum, m, by); }
    static INLINE void keep(Floats& f) { asm("" : "+w"(f)); }
    static INLINE Floats add_product(Floats sum, Floats a, Floats b) { return vfmaq_f32(sum, a, b); }
    static INLINE Floats add_times(Floats sum, Floats a, float by) { return vfmaq_n_f32(sum, a, by); }
    static INLINE void totals(const Floats (&a)[4][4], float* out) {
        for (int n = 0; n < 4; ++n)
            store(out + 4 * n, vpaddq_f32(vpaddq_f32(a[n][0], a[n][1]), vpaddq_f32(a[n][2], a[n][3])));
    }
    static INLINE Floats halves(const uint8_t* p) {
        float16x4_t h;
        memcpy(&h, p, sizeof h);
        return vcvt_f32_f16(h);
    }
    static INLINE Floats unsigned_bytes(const uint8_t* p) {
        uint32_t v[LANES];
        for (int i = 0; i < LANES; ++i) v[i] = p[i];
        return vcvtq_f32_u32(vld1q_u32(v));
    }
    static INLINE Floats signed_bytes(const uint8_t* p) {
        int32_t v[LANES];
        for (int i = 0; i < LANES; ++i) v[i] = static_cast<int8_t>(p[i]);
        return vcvtq_f32_s32(vld1q_s32(v));
    }
};

bool has_dot_product() {
#if defined(__linux__)
    constexpr unsigned long asimddp = 1ul << 20;
    return getauxval(AT_HWCAP) & asimddp;
#elif defined(__ARM_FEATURE_DOTPROD)
    return true;
#else
    return false;
#endif
}

}  // namespace
#if defined(__clang__)
#pragma clang attribute pop
#endif

const jev::Kernels* jev::neon_kernels() { return has_dot_product() ? inner::kernels<Neon>("neon") : nullptr; }

#else
#include "kernels.h"
const jev::Kernels* jev::neon_kernels() { return nullptr; }
#endif
