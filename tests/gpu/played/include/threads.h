// What the code of a kernel and a played driver know of each other: the threads of a workgroup.
//
// All functions are the driver's. A thread calls them while a workgroup runs; they return to it later, when all that
// it waits for have come.
#pragma once

struct Place {
    unsigned x, y, z;
};

// Registers that the threads of a warp exchange at once.
struct Words {
    unsigned of[6];
};

constexpr unsigned WARP = 32;
constexpr unsigned MOST_SHARED = 227 << 10;

extern "C" {
extern Place threadIdx, blockIdx, blockDim, gridDim;
extern unsigned char dynamic_shared_mem[];

// Waits for all threads of the workgroup.
void meet_all();
// Waits for all threads of the warp, and returns what each of them has brought.
const Words* gathered(const Words& own);
// Ends the workgroup with what went wrong.
[[noreturn]] void fail(const char* what);
}
