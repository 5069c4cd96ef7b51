// A fake `libcuda.so`: runs kernels on the CPU.
//
// In: the calls of a program, with machine code of the played compiler beside it. Out: what its kernels compute.
// A stream runs lazily: its work is done when somebody waits for it, and not before. Invalid addresses are errors, and so
// are waits or allocations inside a capture. A guard page follows each allocation.
// It has the calls of a driver for CUDA 12.4, and with PLAYED_VERSION=12080 those of a newer one; without graphs where
// PLAYED_WITHOUT_GRAPHS is set; PLAYED_MEMORY says how many MiB there are. At the end it tells what it was asked for.

#include "group.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace {
using Address = std::uintptr_t;
using Clock = std::chrono::steady_clock;

enum Result {
    FINE = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_IMAGE = 200,
    NOT_FOUND = 500,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_FAILED = 719,
    NOT_SUPPORTED = 801,
    IN_CAPTURE = 900,
};
// What programs ask a device for.
enum Attribute { N_UNITS = 16, KILOHERTZ = 36, BUS_BITS = 37, MAJOR = 75, HAS_POOLS = 115 };

constexpr Address ALIGNMENT = 256, PAGE = 4096, WORD = 16;
constexpr int TELLS_TIMES = 12080;

// The image of one kernel.
struct Module {
    // Kept open, because libraries are told apart by their names.
    int file;
    void* library;
    Start start;
    unsigned n_params;
};

struct Launch {
    std::shared_ptr<Module> module;
    Shape shape;
    std::vector<Address> params;
};

using Graph = std::vector<Launch>;

// A module as programs hold it.
struct Held {
    std::shared_ptr<Module> module;
};

struct Stream {
    bool is_capturing = false;
    Graph captured;
    std::vector<std::function<Result()>> asked;
};

struct Event {
    Stream* stream = nullptr;
    std::shared_ptr<Clock::time_point> time = std::make_shared<Clock::time_point>();
};

// Pieces of memory by their addresses.
std::mutex owner;
std::map<Address, std::size_t> pieces;
std::size_t n_taken;
std::atomic<long> n_launches, n_captured, n_replays, n_waits;
thread_local void* current;
thread_local const char* said = "the played driver refuses";

long number_of(const char* name, long otherwise) {
    const char* given = std::getenv(name);
    return given ? std::atol(given) : otherwise;
}

std::size_t room() { return static_cast<std::size_t>(number_of("PLAYED_MEMORY", 4096)) << 20; }
long version() { return number_of("PLAYED_VERSION", 12040); }

struct Teller {
    ~Teller() {
        const char* words = "driver: %ld launches, %ld of them captured, %ld replays of graphs, %ld waits\n";
        std::fprintf(stderr, words, n_launches.load(), n_captured.load(), n_replays.load(), n_waits.load());
    }
} teller;

Result refuse(Result result, const char* what) {
    said = what;
    return result;
}

// Whether so many bytes lie in one piece that was not handed back.
bool is_there(Address start, std::size_t length) {
    const std::lock_guard lock(owner);
    const auto after = pieces.upper_bound(start);
    return after != pieces.begin() && start + length <= std::prev(after)->first + std::prev(after)->second;
}

std::size_t mapped(std::size_t length) { return (length + ALIGNMENT + PAGE - 1) / PAGE * PAGE + PAGE; }

Result run(const Launch& launch) {
    static std::mutex device;
    const std::lock_guard lock(device);
    for (const Address& start : launch.params) {
        if (start % WORD || !is_there(start, 1)) return refuse(ILLEGAL_ADDRESS, "a parameter is no memory");
    }
    std::vector<void*> params;
    for (const Address& start : launch.params) params.push_back(const_cast<Address*>(&start));
    for (unsigned i = 0; i < launch.shape.n_groups; i++) {
        const char* fault = run_group(launch.module->start, params.data(), launch.shape, i);
        if (fault) return refuse(LAUNCH_FAILED, fault);
    }
    return FINE;
}

// Runs all work of a stream.
Result finish(Stream& stream) {
    const auto asked = std::move(stream.asked);
    stream.asked.clear();
    for (const auto& step : asked) {
        if (const Result result = step()) return result;
    }
    return FINE;
}

Result ask(Stream& stream, std::function<Result()> step) {
    if (stream.is_capturing) return refuse(IN_CAPTURE, "only launches are captured");
    stream.asked.push_back(std::move(step));
    return FINE;
}
}  // namespace

extern "C" {
Result cuInit(unsigned) { return FINE; }
Result cuDriverGetVersion(int* number) {
    *number = version();
    return FINE;
}
Result cuGetErrorString(Result, const char** text) {
    *text = said;
    return FINE;
}
Result cuDeviceGetCount(int* n) {
    *n = 1;
    return FINE;
}
Result cuDeviceGet(int* device, int number) {
    *device = number;
    return FINE;
}
Result cuDeviceGetName(char* name, int length, int) {
    std::snprintf(name, length, "a played GPU");
    return FINE;
}
Result cuDeviceGetAttribute(int* value, int what, int) {
    switch (what) {
        case N_UNITS: *value = 1; break;
        case KILOHERTZ: *value = 1'000'000; break;
        case BUS_BITS: *value = 800; break;
        case MAJOR: *value = 9; break;
        default: *value = what == HAS_POOLS;
    }
    return FINE;
}
Result cuDevicePrimaryCtxRetain(void** context, int) {
    *context = &pieces;
    return FINE;
}
Result cuDevicePrimaryCtxRelease_v2(int) { return FINE; }
Result cuCtxGetCurrent(void** context) {
    *context = current;
    return FINE;
}
Result cuCtxSetCurrent(void* context) {
    current = context;
    return FINE;
}

Result cuMemGetInfo_v2(std::size_t* free, std::size_t* all) {
    const std::lock_guard lock(owner);
    *all = room();
    *free = *all - n_taken;
    return FINE;
}
Result cuMemAllocAsync(Address* start, std::size_t length, Stream* stream) {
    if (stream->is_capturing) return refuse(IN_CAPTURE, "memory is not allocated inside a capture");
    const std::lock_guard lock(owner);
    if (length > room() - n_taken) return refuse(OUT_OF_MEMORY, "there is not so much memory");
    const std::size_t n_mapped = mapped(length);
    void* given = mmap(nullptr, n_mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (given == MAP_FAILED) return refuse(OUT_OF_MEMORY, "the processor has not so much memory");
    const Address end = reinterpret_cast<Address>(given) + n_mapped - PAGE;
    mprotect(reinterpret_cast<void*>(end), PAGE, PROT_NONE);
    *start = (end - length) / ALIGNMENT * ALIGNMENT;
    pieces[*start] = length;
    n_taken += length;
    return FINE;
}
Result cuMemFreeAsync(Address start, Stream* stream) {
    return ask(*stream, [start] {
        const std::lock_guard lock(owner);
        const auto piece = pieces.find(start);
        if (piece == pieces.end()) return refuse(INVALID_VALUE, "what is handed back is no memory");
        const std::size_t length = piece->second, n_mapped = mapped(length);
        const Address end = (start + length + PAGE - 1) / PAGE * PAGE + PAGE;
        pieces.erase(piece);
        n_taken -= length;
        munmap(reinterpret_cast<void*>(end - n_mapped), n_mapped);
        return FINE;
    });
}
Result cuMemsetD8Async(Address to, unsigned char value, std::size_t n, Stream* stream) {
    return ask(*stream, [=] {
        if (!is_there(to, n)) return refuse(ILLEGAL_ADDRESS, "what is filled is no memory");
        std::memset(reinterpret_cast<void*>(to), value, n);
        return FINE;
    });
}
// Of memory that it does not know, a driver makes a copy before it returns.
Result cuMemcpyHtoDAsync_v2(Address to, const unsigned char* from, std::size_t n, Stream* stream) {
    return ask(*stream, [to, bytes = std::vector(from, from + n)] {
        if (!is_there(to, bytes.size())) return refuse(ILLEGAL_ADDRESS, "what is written is no memory");
        std::memcpy(reinterpret_cast<void*>(to), bytes.data(), bytes.size());
        return FINE;
    });
}
Result cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t n, Stream* stream) {
    return ask(*stream, [=] {
        if (!is_there(from, n)) return refuse(ILLEGAL_ADDRESS, "what is read is no memory");
        std::memcpy(to, reinterpret_cast<void*>(from), n);
        return FINE;
    });
}

Result cuModuleLoadData(Held** held, const unsigned char* image) {
    if (std::memcmp(image, ELFMAG, SELFMAG)) return refuse(NO_IMAGE, "this is no machine code");
    // What describes its sections comes last.
    const auto head = reinterpret_cast<const Elf64_Ehdr*>(image);
    const ssize_t length = head->e_shoff + head->e_shnum * head->e_shentsize;
    const int file = memfd_create("kernel", 0);
    if (write(file, image, length) != length) return refuse(NO_IMAGE, "the image cannot be written");
    // What kernels call is this library, which programs load for themselves alone.
    Dl_info own;
    dladdr(reinterpret_cast<void*>(&cuInit), &own);
    dlopen(own.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    void* library = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) return refuse(NO_IMAGE, dlerror());
    const auto start = reinterpret_cast<Start>(dlsym(library, "start"));
    const auto n_params = static_cast<const unsigned*>(dlsym(library, "n_params"));
    if (!start || !n_params) return refuse(NO_IMAGE, "no image of the played compiler");
    const auto unload = [](Module* module) {
        dlclose(module->library);
        close(module->file);
        delete module;
    };
    *held = new Held{{new Module{file, library, start, *n_params}, unload}};
    return FINE;
}
Result cuModuleUnload(Held* held) {
    delete held;
    return FINE;
}
Result cuModuleGetFunction(Held** function, Held* module, const char* name) {
    *function = module;
    return dlsym(module->module->library, name) ? FINE : refuse(NOT_FOUND, "there is no such function");
}
// No thread has memory of its own.
Result cuFuncGetAttribute(int* value, int, Held*) {
    *value = 0;
    return FINE;
}
Result cuFuncSetAttribute(Held*, int, int value) {
    return value <= static_cast<int>(MOST_SHARED) ? FINE : refuse(INVALID_VALUE, "there is not so much shared memory");
}
Result cuLaunchKernel(Held* function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
                      unsigned threads_z, unsigned shared, Stream* stream, void** params, void**) {
    if (x == 0 || y * z * threads_y * threads_z != 1 || threads_x % WARP || shared > MOST_SHARED) {
        return refuse(INVALID_VALUE, "no such launch is played");
    }
    Launch launch{function->module, {x, threads_x, shared}, {}};
    for (unsigned i = 0; i < launch.module->n_params; i++) launch.params.push_back(*static_cast<Address*>(params[i]));
    n_launches++;
    if (stream->is_capturing) {
        n_captured++;
        stream->captured.push_back(std::move(launch));
        return FINE;
    }
    return ask(*stream, [launch = std::move(launch)] { return run(launch); });
}
Result cuLaunchHostFunc(Stream* stream, void (*function)(void*), void* data) {
    return ask(*stream, [=] {
        function(data);
        return FINE;
    });
}

Result cuStreamCreate(Stream** stream, unsigned) {
    *stream = new Stream;
    return FINE;
}
Result cuStreamDestroy_v2(Stream* stream) {
    const Result result = finish(*stream);
    delete stream;
    return result;
}
Result cuStreamSynchronize(Stream* stream) {
    n_waits++;
    return stream->is_capturing ? refuse(IN_CAPTURE, "nobody waits inside a capture") : finish(*stream);
}
Result cuStreamBeginCapture_v2(Stream* stream, int) {
    if (std::getenv("PLAYED_WITHOUT_GRAPHS")) return refuse(NOT_SUPPORTED, "the played driver has no graphs");
    stream->is_capturing = true;
    return FINE;
}
Result cuStreamEndCapture(Stream* stream, Graph** graph) {
    stream->is_capturing = false;
    *graph = new Graph(std::move(stream->captured));
    stream->captured.clear();
    return FINE;
}
Result cuGraphInstantiateWithFlags(Graph** made, Graph* graph, unsigned long long) {
    *made = new Graph(*graph);
    return FINE;
}
Result cuGraphLaunch(Graph* graph, Stream* stream) {
    n_replays++;
    for (const Launch& launch : *graph) {
        if (const Result result = ask(*stream, [launch] { return run(launch); })) return result;
    }
    return FINE;
}
Result cuGraphExecDestroy(Graph* graph) {
    delete graph;
    return FINE;
}
Result cuGraphDestroy(Graph* graph) {
    delete graph;
    return FINE;
}

Result cuEventCreate(Event** event, unsigned) {
    *event = new Event;
    return FINE;
}
Result cuEventRecord(Event* event, Stream* stream) {
    event->stream = stream;
    return ask(*stream, [time = event->time] {
        *time = Clock::now();
        return FINE;
    });
}
Result cuEventSynchronize(Event* event) { return finish(*event->stream); }
Result cuEventElapsedTime_v2(float* ms, Event* from, Event* to) {
    if (version() < TELLS_TIMES) return refuse(NOT_FOUND, "this driver does not know the call");
    *ms = std::chrono::duration<float, std::milli>(*to->time - *from->time).count();
    return FINE;
}
Result cuEventDestroy_v2(Event* event) {
    delete event;
    return FINE;
}
}
