// Fragments of 16 rows and 16 columns, eight elements deep, in single precision with fewer bits.
#pragma once

namespace nvcuda::wmma {
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
namespace precision {
struct tf32 {};
}
enum Layout { mem_row_major };

template <class A, class B>
constexpr bool SAME = false;
template <class A>
constexpr bool SAME<A, A> = true;

template <class Use, int M, int N, int K, class Number, class Order = void>
struct fragment {
    // What is summed over comes last in either factor, as it is played; a right factor in rows has it first in memory.
    static constexpr int ROWS = SAME<Use, matrix_b> ? N : M;
    static constexpr int COLUMNS = SAME<Use, accumulator> ? N : K;
    static constexpr bool IS_FACTOR = !SAME<Use, accumulator>;
    static constexpr bool IS_TURNED = SAME<Use, matrix_b> && SAME<Order, row_major>;
    float v[ROWS][COLUMNS];
};

inline bool is_first() { return threadIdx.x % PLANE == 0; }

inline void hold(const float* place, unsigned row) {
    if (reinterpret_cast<unsigned long>(place) % 32 || row % 4) fail("a fragment wants aligned rows");
}

template <class F>
void load_matrix_sync(F& to, const float* from, unsigned row, Layout = mem_row_major) {
    hold(from, row);
    if (!is_first()) return;
    for (int i = 0; i < F::ROWS; i++) {
        for (int j = 0; j < F::COLUMNS; j++) {
            const float number = F::IS_TURNED ? from[j * row + i] : from[i * row + j];
            unsigned bits;
            __builtin_memcpy(&bits, &number, sizeof bits);
            // What is not rounded may only give what nobody reads.
            to.v[i][j] = F::IS_FACTOR && (bits & 0x1fff) ? __builtin_nanf("") : number;
        }
    }
}

template <class F>
void fill_fragment(F& to, float value) {
    if (!is_first()) return;
    for (auto& row : to.v) {
        for (float& number : row) number = value;
    }
}

template <class Sum, class A, class B>
void mma_sync(Sum& to, const A& a, const B& b, const Sum& from) {
    if (!is_first()) return;
    for (int i = 0; i < Sum::ROWS; i++) {
        for (int j = 0; j < Sum::COLUMNS; j++) {
            float sum = from.v[i][j];
            for (int k = 0; k < A::COLUMNS; k++) sum += a.v[i][k] * b.v[j][k];
            to.v[i][j] = sum;
        }
    }
}

template <class F>
void store_matrix_sync(float* to, const F& from, unsigned row, Layout) {
    hold(to, row);
    if (!is_first()) return;
    for (int i = 0; i < F::ROWS; i++) {
        for (int j = 0; j < F::COLUMNS; j++) to[i * row + j] = from.v[i][j];
    }
}
}  // namespace nvcuda::wmma
