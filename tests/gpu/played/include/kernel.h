// What a compiler of CUDA knows without being told, for g++. The source of a kernel comes behind it, and then PLAY.
#pragma once

#include "threads.h"

#include <utility>

#define __global__
#define __shared__
#define __restrict__ __restrict
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(threads, groups)

constexpr int warpSize = PLANE;

inline void __syncthreads() { meet_all(); }

template <class Number>
Number __shfl_xor_sync(int, Number value, unsigned mask) {
    static_assert(sizeof(Number) == sizeof(unsigned));
    unsigned bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    bits = exchanged(bits, mask);
    __builtin_memcpy(&value, &bits, sizeof bits);
    return value;
}

template <class A, class B>
auto min(A a, B b) -> decltype(a + b) { return decltype(a + b)(a) < decltype(a + b)(b) ? a : b; }
template <class A, class B>
auto max(A a, B b) -> decltype(a + b) { return decltype(a + b)(a) > decltype(a + b)(b) ? a : b; }
inline float min(float a, float b) { return __builtin_fminf(a, b); }
inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
inline float abs(float x) { return __builtin_fabsf(x); }
inline float exp(float x) { return __builtin_expf(x); }
inline float log(float x) { return __builtin_logf(x); }
inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline float rint(float x) { return __builtin_rintf(x); }
inline float rsqrt(float x) { return 1 / __builtin_sqrtf(x); }

// One workgroup runs after the other, and of its threads one at a time.
inline unsigned atomicOr(unsigned* at, unsigned bits) { return std::exchange(*at, *at | bits); }
inline unsigned atomicAnd(unsigned* at, unsigned bits) { return std::exchange(*at, *at & bits); }
inline unsigned atomicExch(unsigned* at, unsigned bits) { return std::exchange(*at, bits); }

template <class... Given, std::size_t... AT>
void called(void (*kernel)(Given...), void** params, std::index_sequence<AT...>) {
    kernel(*static_cast<Given*>(params[AT])...);
}

template <class... Given>
constexpr unsigned n_given(void (*)(Given...)) { return sizeof...(Given); }

#define PLAY(kernel)                                                                                   \
    extern "C" {                                                                                       \
    extern const unsigned n_params = n_given(kernel);                                                  \
    void start(void** params) { called(kernel, params, std::make_index_sequence<n_given(kernel)>()); } \
    }
