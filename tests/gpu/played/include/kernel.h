// What a compiler of CUDA knows without being told, for g++. The source of a kernel comes behind it, and then PLAY.
#pragma once

#include "threads.h"

#include <utility>

#define __device__
#define __global__
#define __shared__
#define __restrict__ __restrict
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(threads, groups)

constexpr int warpSize = WARP;

inline void __syncthreads() { meet_all(); }

template <class Number>
Number __shfl_xor_sync(int, Number value, unsigned mask) {
    static_assert(sizeof(Number) == sizeof(unsigned));
    unsigned bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    bits = gathered({{bits}})[(threadIdx.x ^ mask) % WARP].of[0];
    __builtin_memcpy(&value, &bits, sizeof bits);
    return value;
}

// An operand of a tensor core: NaN here if it has more bits than TF32. So operands that were not rounded show, unless
// nobody reads the result.
struct Single {
    static constexpr unsigned N = 1;
    static float number(unsigned bits, unsigned) {
        float number;
        __builtin_memcpy(&number, &bits, sizeof bits);
        return bits & 0x1fff ? __builtin_nanf("") : number;
    }
};

// Two bfloat16 numbers, the first in the lower half.
struct Pair {
    static constexpr unsigned N = 2;
    static float number(unsigned bits, unsigned i) {
        bits = i ? bits & 0xffff0000 : bits << 16;
        float number;
        __builtin_memcpy(&number, &bits, sizeof bits);
        return number;
    }
};

// `mma.m16n8k8` in words: 16 by 8 sums of the products of eight words. A thread has, of the left operand, a word of row
// `lane / 4`, the one eight rows further, and the same four words further; of the right one, two of column `lane / 4`;
// of the sums, two neighbours of these two rows.
template <class Word>
void multiplied(const unsigned (&a)[4], const unsigned (&b)[2], const float (&c)[4], float* const (&d)[4]) {
    const Words* all = gathered({{a[0], a[1], a[2], a[3], b[0], b[1]}});
    const unsigned lane = threadIdx.x % WARP;
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = lane / 4, half = i / 2, column = lane % 4 * 2 + i % 2;
        float sum = c[i];
        for (unsigned k = 0; k < 8; k++) {
            const unsigned left = all[row * 4 + k % 4].of[half + k / 4 * 2], right = all[column * 4 + k % 4].of[4 + k / 4];
            for (unsigned n = 0; n < Word::N; n++) sum += Word::number(left, n) * Word::number(right, n);
        }
        *d[i] = sum;
    }
}

inline unsigned long __cvta_generic_to_shared(const void* at) { return reinterpret_cast<unsigned long>(at); }

// `ldmatrix`: up to four 8 by 8 blocks, of eight rows of four words each: threads give the addresses of rows, eight for
// the first block, and so on. A thread gets word `lane % 4` of row `lane / 4` of each.
template <unsigned N>
void loaded(unsigned* const (&to)[N], const void* row) {
    const unsigned long own = reinterpret_cast<unsigned long>(row);
    const Words* all = gathered({{unsigned(own), unsigned(own >> 32)}});
    const unsigned lane = threadIdx.x % WARP;
    for (unsigned i = 0; i < N; i++) {
        const Words& teller = all[i * 8 + lane / 4];
        const unsigned long at = teller.of[0] | static_cast<unsigned long>(teller.of[1]) << 32;
        if (at % 16) fail("a row of a matrix begins at no multiple of 16 bytes");
        *to[i] = reinterpret_cast<const unsigned*>(at)[lane % 4];
    }
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
