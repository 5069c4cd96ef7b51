// Runs the CUDA source of one product on a processor, a thread for each thread of a workgroup, and compares it.
//
// In: the source as `kernel.inc`, for numbers `x` [T, D] and half-precision weights `w` [R, D]. Out: the relative error
// against sums in double precision, at most 1e-3.
// Matrix units are played by loops: each thread of a plane computes the whole fragment, and they meet where one stores.
// What fragments want of addresses, and of the bits of factors, is held to.

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#define __global__
#define __launch_bounds__(threads)
#define __restrict__

using __half = _Float16;
using std::max;
using std::min;

struct Place {
    unsigned x, y, z;
};

constexpr int THREADS = 256, PLANE = 32;
constexpr int warpSize = PLANE;
thread_local Place threadIdx, blockIdx;
Place blockDim{THREADS, 1, 1}, gridDim{3, 1, 1};
std::barrier<> everyone(THREADS);
std::vector<std::unique_ptr<std::barrier<>>> planes;
alignas(32) unsigned char dynamic_shared_mem[1 << 20];

void __syncthreads() { everyone.arrive_and_wait(); }

void hold(bool is_kept, const char* what) {
    if (!is_kept) {
        std::printf("a fragment wants %s\n", what);
        std::exit(1);
    }
}

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

template <class Use, int M, int N, int K, class Number, class Order = void>
struct fragment {
    // A factor has what is summed over side by side, whichever it is.
    static constexpr int ROWS = std::is_same_v<Use, matrix_b> ? N : M;
    static constexpr int COLUMNS = std::is_same_v<Use, accumulator> ? N : K;
    static constexpr bool IS_FACTOR = !std::is_same_v<Use, accumulator>;
    float v[ROWS][COLUMNS];
};

template <class F>
void load_matrix_sync(F& to, const float* from, unsigned row, Layout = mem_row_major) {
    hold(reinterpret_cast<std::uintptr_t>(from) % 32 == 0 && row % 4 == 0, "aligned rows");
    for (int i = 0; i < F::ROWS; i++) {
        for (int j = 0; j < F::COLUMNS; j++) {
            std::uint32_t bits;
            std::memcpy(&bits, &from[i * row + j], 4);
            hold(!F::IS_FACTOR || (bits & 0x1fff) == 0, "rounded factors");
            to.v[i][j] = from[i * row + j];
        }
    }
}

template <class Sum, class A, class B>
void mma_sync(Sum& to, const A& a, const B& b, const Sum& from) {
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
    planes[threadIdx.x / PLANE]->arrive_and_wait();
    for (int i = 0; i < F::ROWS; i++) std::copy_n(from.v[i], F::COLUMNS, to + i * row);
    planes[threadIdx.x / PLANE]->arrive_and_wait();
}
}  // namespace nvcuda::wmma

#include "kernel.inc"

int main() {
    std::mt19937 random(1);
    std::normal_distribution<float> number;
    std::vector<float> x(T * D), y(T * R, NAN);
    std::vector<__half> w(R * D);
    for (float& value : x) value = number(random);
    for (__half& value : w) value = static_cast<__half>(number(random));
    for (int plane = 0; plane < THREADS / PLANE; plane++) planes.push_back(std::make_unique<std::barrier<>>(PLANE));
    const int symbols[1] = {0};
    const info_st lengths{};
    for (unsigned group = 0; group < gridDim.x; group++) {
        std::vector<std::thread> threads;
        for (unsigned unit = 0; unit < THREADS; unit++) {
            threads.emplace_back([&, unit] {
                threadIdx = {unit, 0, 0};
                blockIdx = {group, 0, 0};
                kernel(y.data(), x.data(), w.data(), symbols, &lengths);
            });
        }
        for (std::thread& thread : threads) thread.join();
    }
    double error = 0, all = 0;
    for (int t = 0; t < T; t++) {
        for (int r = 0; r < R; r++) {
            double expected = 0;
            for (int d = 0; d < D; d++) expected += double(x[t * D + d]) * double(w[r * D + d]);
            error += std::pow(y[t * R + r] - expected, 2);
            all += expected * expected;
        }
    }
    error = std::sqrt(error / all);
    std::printf("%d tokens, %d rows of %d: relative error %.1e\n", T, R, D, error);
    return error < 1e-3 ? 0 : 1;
}
