// The inner loops for AVX-VNNI, what processors without AVX-512 have: AVX2 with four columns an instruction.
#if defined(__x86_64__) && defined(__GNUC__) && (__GNUC__ >= 11 || __clang_major__ >= 12)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avxvnni"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avxvnni")
#endif
#include <cpuid.h>

#include "avx2.h"

namespace {

struct AvxVnni : Avx2 {
    static constexpr bool SIGNED = false;
    struct Partial {};

    static INLINE Bytes eight(Bytes b) { return b; }
    template <int BITS, int CHUNK>
    static INLINE void dot(Ints& dots, Partial&, Bytes w, const int8_t* q) {
        int32_t four;
        memcpy(&four, q, 4);
        dots = _mm256_dpbusd_avx_epi32(dots, w, _mm256_set1_epi32(four));
    }
};

bool has_vnni() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

}  // namespace
#if defined(__clang__)
#pragma clang attribute pop
#endif

const jev::Kernels* jev::avxvnni_kernels() {
    const bool can = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_vnni();
    return can ? inner::kernels<AvxVnni>("avxvnni") : nullptr;
}

#else
#include "kernels.h"
const jev::Kernels* jev::avxvnni_kernels() { return nullptr; }
#endif
