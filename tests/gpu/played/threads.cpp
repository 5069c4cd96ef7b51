// The threads of a workgroup, one after the other: one workgroup at a time.
//
// Each is a fiber with its own stack and runs until it waits. They are scheduled in order, or backwards where
// PLAYED_BACKWARDS is set: a result that depends on the order lacks a barrier. Shared memory starts with no numbers in it,
// and what lies behind the memory that was asked for must stay as it is. Memory that is not there ends the workgroup.

#include "group.h"

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <ucontext.h>
#include <vector>

// What is looked at behind the shared memory of a workgroup.
constexpr unsigned BEHIND = 4096;

Place threadIdx, blockIdx, blockDim, gridDim;
alignas(128) unsigned char dynamic_shared_mem[MOST_SHARED + BEHIND];

namespace {
// Not a power of two, so that not all stacks meet in the same lines of a cache.
constexpr std::size_t STACK = (128 << 10) + 320;
constexpr unsigned char NO_NUMBER = 0xff;

// Where threads wait for each other: who sees another round than at his arrival goes on.
struct Meeting {
    unsigned n_expected, n_arrived, round;
};

struct Thread {
    jmp_buf place;
    bool is_started, has_ended;
    Meeting* meeting;
    unsigned round, n_exchanges;
};

struct Warp {
    Meeting meeting;
    // A thread may be one exchange ahead of others, never two.
    Words words[2][WARP];
};

struct Group {
    const Start* start;
    void** params;
    std::vector<Thread> threads;
    std::unique_ptr<unsigned char[]> stacks;
    std::vector<Warp> warps;
    Meeting all;
    jmp_buf scheduler;
    unsigned running;
    bool is_running;
    const char* fault;
};

Group group;

void leave() {
    if (!_setjmp(group.threads[group.running].place)) _longjmp(group.scheduler, 1);
}

void meet(Meeting& meeting) {
    Thread& thread = group.threads[group.running];
    thread.meeting = &meeting;
    thread.round = meeting.round;
    if (++meeting.n_arrived == meeting.n_expected) {
        meeting.n_arrived = 0;
        meeting.round++;
    } else {
        leave();
    }
}

// A thread takes part in one workgroup after the other.
void live() {
    for (;;) {
        (*group.start)(group.params);
        group.threads[group.running].has_ended = true;
        leave();
    }
}

bool is_ready(const Thread& thread) {
    return !thread.has_ended && (!thread.meeting || thread.meeting->round != thread.round);
}

void resume(unsigned number) {
    Thread& thread = group.threads[number];
    group.running = number;
    threadIdx = {number, 0, 0};
    thread.meeting = nullptr;
    group.is_running = true;
    if (_setjmp(group.scheduler)) {
        group.is_running = false;
        return;
    }
    if (thread.is_started) _longjmp(thread.place, 1);
    thread.is_started = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = group.stacks.get() + number * STACK;
    context.uc_stack.ss_size = STACK;
    makecontext(&context, live, 0);
    setcontext(&context);
}

// What others do where memory is not there.
struct sigaction before;

void touch(int) {
    if (group.is_running) fail("a thread touched memory that is not there");
    sigaction(SIGSEGV, &before, nullptr);
}

[[gnu::constructor]] void watch() {
    struct sigaction action {};
    action.sa_handler = touch;
    action.sa_flags = SA_NODEFER | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &before);
}

// Runs every thread of a warp that is not waiting, until all are.
bool run_warp(unsigned first, unsigned end, bool is_backwards) {
    bool has_moved = false;
    for (bool is_moving = true; is_moving && !group.fault;) {
        is_moving = false;
        for (unsigned i = first; i < end && !group.fault; i++) {
            const unsigned number = is_backwards ? first + end - 1 - i : i;
            if (!is_ready(group.threads[number])) continue;
            resume(number);
            is_moving = has_moved = true;
        }
    }
    return has_moved;
}

void prepare(unsigned n_threads) {
    if (group.threads.size() != n_threads) {
        group.threads = std::vector<Thread>(n_threads);
        group.stacks = std::make_unique_for_overwrite<unsigned char[]>(n_threads * STACK);
    }
    group.warps.assign(n_threads / WARP, {{WARP, 0, 0}, {}});
    group.all = {n_threads, 0, 0};
    group.fault = nullptr;
    for (Thread& thread : group.threads) {
        thread.has_ended = false;
        thread.meeting = nullptr;
        thread.n_exchanges = 0;
    }
}
}  // namespace

void meet_all() { meet(group.all); }

const Words* gathered(const Words& own) {
    Thread& thread = group.threads[group.running];
    Warp& warp = group.warps[group.running / WARP];
    Words* slots = warp.words[thread.n_exchanges++ % 2];
    slots[group.running % WARP] = own;
    meet(warp.meeting);
    return slots;
}

void fail(const char* what) {
    group.fault = what;
    _longjmp(group.scheduler, 1);
}

const char* run_group(const Start& start, void** params, const Shape& shape, unsigned number) {
    static const bool is_backwards = std::getenv("PLAYED_BACKWARDS") != nullptr;
    group.start = &start;
    group.params = params;
    prepare(shape.n_threads);
    blockIdx = {is_backwards ? shape.n_groups - 1 - number : number, 0, 0};
    blockDim = {shape.n_threads, 1, 1};
    gridDim = {shape.n_groups, 1, 1};
    unsigned char* const behind = dynamic_shared_mem + shape.n_shared_bytes;
    std::fill(dynamic_shared_mem, behind + BEHIND, NO_NUMBER);
    const unsigned n_warps = group.warps.size();
    for (bool is_moving = true; is_moving && !group.fault;) {
        is_moving = false;
        for (unsigned i = 0; i < n_warps && !group.fault; i++) {
            const unsigned first = WARP * (is_backwards ? n_warps - 1 - i : i);
            is_moving |= run_warp(first, first + WARP, is_backwards);
        }
    }
    for (const Thread& thread : group.threads) {
        if (!thread.has_ended && !group.fault) group.fault = "threads wait for others that never come";
    }
    if (std::count(behind, behind + BEHIND, NO_NUMBER) != BEHIND && !group.fault) {
        group.fault = "a thread wrote behind its shared memory";
    }
    // Who was left in the middle never goes on.
    for (Thread& thread : group.threads) thread.is_started &= !group.fault;
    return group.fault;
}
