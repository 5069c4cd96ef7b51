// Runs the CUDA source of one product, of one attention, or of experts, on a processor, a thread for each thread of a
// workgroup, and compares it.
//
// In: the source as `kernel.inc`, and the sizes. Out: the relative error against double precision, at most 1e-3.
// Matrix units are played by loops: each thread of a plane computes the whole fragment, and they meet where one stores.
// What fragments want of addresses is held to, and a factor with more bits than they take is no number.

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

unsigned min(int a, unsigned b) { return std::min<unsigned>(a, b); }

// The number that the thread with another number in the same plane has.
float __shfl_xor_sync(int, float value, unsigned mask) {
    static float values[THREADS];
    auto& plane = *planes[threadIdx.x / PLANE];
    values[threadIdx.x] = value;
    plane.arrive_and_wait();
    const float other = values[threadIdx.x ^ mask];
    plane.arrive_and_wait();
    return other;
}

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
    // What is summed over comes last in either factor, as it is played; a right factor in rows has it first in memory.
    static constexpr int ROWS = std::is_same_v<Use, matrix_b> ? N : M;
    static constexpr int COLUMNS = std::is_same_v<Use, accumulator> ? N : K;
    static constexpr bool IS_FACTOR = !std::is_same_v<Use, accumulator>;
    static constexpr bool IS_TURNED = std::is_same_v<Use, matrix_b> && std::is_same_v<Order, row_major>;
    float v[ROWS][COLUMNS];
};

template <class F>
void load_matrix_sync(F& to, const float* from, unsigned row, Layout = mem_row_major) {
    hold(reinterpret_cast<std::uintptr_t>(from) % 32 == 0 && row % 4 == 0, "aligned rows");
    for (int i = 0; i < F::ROWS; i++) {
        for (int j = 0; j < F::COLUMNS; j++) {
            const float number = F::IS_TURNED ? from[j * row + i] : from[i * row + j];
            std::uint32_t bits;
            std::memcpy(&bits, &number, 4);
            // What is not rounded may only give what nobody reads.
            to.v[i][j] = F::IS_FACTOR && (bits & 0x1fff) != 0 ? NAN : number;
        }
    }
}

template <class F>
void fill_fragment(F& to, float value) {
    for (auto& row : to.v) std::fill_n(row, F::COLUMNS, value);
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

// Runs all threads of one workgroup after another.
template <class... Given>
void launch(Given*... given) {
    for (int plane = 0; plane < THREADS / PLANE; plane++) planes.push_back(std::make_unique<std::barrier<>>(PLANE));
    const info_st lengths{};
    for (unsigned group = 0; group < gridDim.x; group++) {
        std::vector<std::thread> threads;
        for (unsigned unit = 0; unit < THREADS; unit++) {
            threads.emplace_back([&, unit] {
                threadIdx = {unit, 0, 0};
                blockIdx = {group, 0, 0};
                kernel(given..., &lengths);
            });
        }
        for (std::thread& thread : threads) thread.join();
    }
}

// One row of numbers for all that is given, so that no two are alike.
std::mt19937 random_bits(1);

template <class Number>
std::vector<Number> numbers(int n) {
    std::normal_distribution<float> number;
    std::vector<Number> made(n);
    for (Number& value : made) value = static_cast<Number>(number(random_bits));
    return made;
}

// The relative error of `y` against what should be.
double error_of(const std::vector<float>& y, const std::vector<double>& expected) {
    double error = 0, all = 0;
    for (std::size_t i = 0; i < y.size(); i++) {
        error += std::pow(y[i] - expected[i], 2);
        all += expected[i] * expected[i];
    }
    return std::sqrt(error / all);
}

#ifdef ATTENTION
// What `T` tokens of two heads see of `P + T` cached rows of `D` numbers, of which there is room for `S`.
double error() {
    auto q = numbers<float>(T * 2 * D);
    auto k = numbers<__half>(S * D), v = numbers<__half>(S * D);
    std::vector<float> y(T * 2 * D, NAN);
    const int symbols[2] = {P, T};
    for (float& value : q) value /= std::sqrt(D);
    launch(y.data(), q.data(), k.data(), v.data(), symbols);
    std::vector<double> expected;
    for (int row = 0; row < T * 2; row++) {
        std::vector<double> mixed(D);
        double all = 0;
        for (int s = 0; s < P + T; s++) {
            double score = 0;
            for (int d = 0; d < D; d++) score += double(q[row * D + d]) * double(k[s * D + d]);
            for (int d = 0; d < D; d++) mixed[d] += std::exp(score) * double(v[s * D + d]);
            all += std::exp(score);
        }
        for (double sum : mixed) expected.push_back(sum / all);
    }
    return error_of(y, expected);
}
#elif defined(EXPERTS)
// Two products, multiplied, of the rows of each of `K` experts of `X` that `T` tokens pick; nobody picks the second.
double error() {
    auto x = numbers<float>(T * D), scale = numbers<float>(D);
    auto gate = numbers<__half>(X * R * D), up = numbers<__half>(X * R * D);
    std::vector<float> y(T * K * R, NAN);
    std::vector<int> picks(T * K);
    const int symbols[1] = {T};
    // Numbers beyond the last expert, and below the first, pick the nearest.
    for (int& pick : picks) pick = static_cast<int>(random_bits() % (X + 2)) - 1;
    std::replace(picks.begin(), picks.end(), 1, X - 1);
    launch(y.data(), x.data(), scale.data(), picks.data(), gate.data(), up.data(), symbols);
    std::vector<double> expected;
    for (int pair = 0; pair < T * K; pair++) {
        const int expert = std::clamp(picks[pair], 0, X - 1);
        for (int r = 0; r < R; r++) {
            double sums[2] = {};
            for (int d = 0; d < D; d++) {
                const double number = double(x[pair / K * D + d]) * double(scale[d]);
                sums[0] += number * double(gate[(expert * R + r) * D + d]);
                sums[1] += number * double(up[(expert * R + r) * D + d]);
            }
            expected.push_back(sums[0] * sums[1]);
        }
    }
    return error_of(y, expected);
}
#else
// Products of `T` tokens and `R` rows of `D` numbers.
double error() {
    auto x = numbers<float>(T * D);
    auto w = numbers<__half>(R * D);
    std::vector<float> y(T * R, NAN);
    const int symbols[1] = {0};
    launch(y.data(), x.data(), w.data(), symbols);
    std::vector<double> expected;
    for (int t = 0; t < T; t++) {
        for (int r = 0; r < R; r++) {
            double sum = 0;
            for (int d = 0; d < D; d++) sum += double(x[t * D + d]) * double(w[r * D + d]);
            expected.push_back(sum);
        }
    }
    const double found = error_of(y, expected);
    // What GPUs make where there is no number: rounding must not carry it into the sign.
    const std::uint32_t none = 0x7fffffff;
    std::memcpy(&x[(T - 1) * D], &none, 4);
    launch(y.data(), x.data(), w.data(), symbols);
    for (int i = 0; i < T * R; i++) hold(std::isnan(y[i]) == (i / R == T - 1), "no number where there was none");
    return found;
}
#endif

int main() {
    const double found = error();
    std::printf("%s: relative error %.1e\n", WHAT, found);
    return found < 1e-3 ? 0 : 1;
}
