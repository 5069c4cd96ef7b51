// What the driver asks of `threads.cpp`.
#pragma once

#include "threads.h"

// The code of a kernel: takes the addresses of its parameters.
using Start = void (*)(void** params);

struct Shape {
    unsigned n_groups, n_threads, n_shared_bytes;
};

// Runs one workgroup of many, and says what went wrong, if anything did.
const char* run_group(const Start& start, void** params, const Shape& shape, unsigned number);
