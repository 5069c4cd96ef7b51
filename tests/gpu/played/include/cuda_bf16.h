// The other half precision of CUDA, for g++.
#pragma once

struct __nv_bfloat16 {
    unsigned short bits;

    __nv_bfloat16() = default;
    // Ties go to even; what is no number stays none.
    explicit __nv_bfloat16(float x) {
        unsigned all;
        __builtin_memcpy(&all, &x, sizeof all);
        bits = (x == x ? all + 0x7fff + (all >> 16 & 1) : all | 0x400000) >> 16;
    }
    explicit operator float() const {
        const unsigned all = unsigned(bits) << 16;
        float x;
        __builtin_memcpy(&x, &all, sizeof x);
        return x;
    }
};
