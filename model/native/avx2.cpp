// The inner loops for AVX2: int16 partial sums as far as they cannot overflow.
#if defined(__x86_64__) && defined(__GNUC__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
#include "avx2.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif

const jev::Kernels* jev::avx2_kernels() {
    const bool can = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return can ? inner::kernels<Avx2>("avx2") : nullptr;
}

#else
#include "kernels.h"
const jev::Kernels* jev::avx2_kernels() { return nullptr; }
#endif
