// Plays a driver of NVIDIA that computes nothing, for programs that look for `libcuda.so`.
//
// In: the calls of a program. Out: memory that is zero until the program writes it, times of this processor, and an
// error wherever a call names memory that is not there, or waits or allocates inside a capture.
// It has the calls of a driver for CUDA 12.4, so a program that wants more ends here. With REFUSE_CAPTURE it has no
// graphs. At the end it says how many launches it was asked for.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long long address;
typedef unsigned char byte;

enum { FINE = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_IMAGE = 200, ILLEGAL_ADDRESS = 700 };
enum { NOT_SUPPORTED = 801, IN_CAPTURE = 900 };
enum { UNITS = 16, MAJOR = 75, POOLS = 115 };
enum { MOST = 1 << 20, ROOM = 1 << 30, ALIGNMENT = 256 };

static struct { address start; size_t length; void *given; } pieces[MOST];
static struct { long graph; address start; } captured[MOST];
static int n_graphs, n_addresses;
static int n_pieces, n_launches, n_captured, n_replays, is_capturing;
static __thread void *current;

// Whether so many bytes lie in one piece that was not handed back.
static int is_there(address start, size_t length) {
  for (int i = 0; i < n_pieces; i++)
    if (pieces[i].given && start >= pieces[i].start && start + length <= pieces[i].start + pieces[i].length) return 1;
  return 0;
}

// How many parameters the one kernel of a file of machine code has: an entry of its notes for each.
static long n_params(const byte *code) {
  size_t end = *(const size_t *)(code + 40) + 64 * *(const unsigned short *)(code + 60);
  long n = 0;
  for (size_t at = 0; at + 4 <= end; at += 4) n += memcmp(code + at, "\x04\x17\x0c\x00", 4) == 0;
  return n;
}

__attribute__((destructor)) static void tell(void) {
  const char *words = "driver: %d launches, %d of them captured, %d replays of graphs\n";
  fprintf(stderr, words, n_launches, n_captured, n_replays);
}

int cuInit(unsigned flags) { return FINE; }
int cuDriverGetVersion(int *version) { *version = 12040; return FINE; }
int cuGetErrorString(int code, const char **text) { *text = "a played driver refuses"; return FINE; }
int cuDeviceGetCount(int *n) { *n = 1; return FINE; }
int cuDeviceGet(int *device, int number) { *device = number; return FINE; }
int cuDeviceGetName(char *name, int length, int device) { snprintf(name, length, "a played GPU"); return FINE; }
int cuDeviceGetAttribute(int *value, int what, int device) {
  *value = what == UNITS ? 132 : what == MAJOR ? 9 : what == POOLS;
  return FINE;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = pieces; return FINE; }
int cuDevicePrimaryCtxRelease_v2(int device) { return FINE; }
int cuCtxGetCurrent(void **context) { *context = current; return FINE; }
int cuCtxSetCurrent(void *context) { current = context; return FINE; }

int cuMemGetInfo_v2(size_t *free, size_t *all) { *free = *all = ROOM; return FINE; }
int cuMemAllocAsync(address *start, size_t length, void *stream) {
  if (is_capturing) return IN_CAPTURE;
  void *given = length <= ROOM && n_pieces < MOST ? malloc(length + ALIGNMENT) : NULL;
  if (!given) return OUT_OF_MEMORY;
  *start = ((address)given + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  pieces[n_pieces].start = *start, pieces[n_pieces].length = length, pieces[n_pieces++].given = given;
  return FINE;
}
int cuMemFreeAsync(address start, void *stream) {
  for (int i = 0; i < n_pieces; i++)
    if (pieces[i].given && pieces[i].start == start) return free(pieces[i].given), pieces[i].given = NULL, FINE;
  return INVALID_VALUE;
}
int cuMemsetD8Async(address to, byte value, size_t n, void *stream) {
  return is_there(to, n) ? memset((void *)to, value, n), FINE : ILLEGAL_ADDRESS;
}
int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t n, void *stream) {
  return is_there(to, n) ? memcpy((void *)to, from, n), FINE : ILLEGAL_ADDRESS;
}
int cuMemcpyDtoHAsync_v2(void *to, address from, size_t n, void *stream) {
  return is_there(from, n) ? memcpy(to, (void *)from, n), FINE : ILLEGAL_ADDRESS;
}

// A module and its function are the number of its parameters.
int cuModuleLoadData(void **module, const void *code) {
  if (memcmp(code, "\x7f" "ELF", 4)) return NO_IMAGE;
  *module = (void *)(n_params(code) + 1);
  return FINE;
}
int cuModuleUnload(void *module) { return FINE; }
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = module; return FINE; }
int cuFuncGetAttribute(int *value, int what, void *function) { *value = 0; return FINE; }
int cuFuncSetAttribute(void *function, int what, int value) { return value <= 227 << 10 ? FINE : INVALID_VALUE; }
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
                   unsigned threads_z, unsigned shared, void *stream, void **params, void **extra) {
  n_launches++, n_captured += is_capturing;
  if ((long)function == 1) return INVALID_VALUE;
  for (long i = 0; i < (long)function - 1; i++) {
    address start = *(address *)params[i];
    if (start % 16 || !is_there(start, 1)) return ILLEGAL_ADDRESS;
    if (!is_capturing || n_addresses == MOST) continue;
    captured[n_addresses].graph = n_graphs, captured[n_addresses++].start = start;
  }
  return x > 0 && y == 1 && z == 1 && shared <= 227 << 10 ? FINE : INVALID_VALUE;
}
int cuLaunchHostFunc(void *stream, void (*function)(void *), void *data) { return function(data), FINE; }

int cuStreamCreate(void **stream, unsigned flags) { *stream = pieces; return FINE; }
int cuStreamDestroy_v2(void *stream) { return FINE; }
int cuStreamSynchronize(void *stream) { return is_capturing ? IN_CAPTURE : FINE; }
int cuStreamBeginCapture_v2(void *stream, int mode) {
  return getenv("REFUSE_CAPTURE") ? NOT_SUPPORTED : (is_capturing = 1, FINE);
}

// A graph is its number behind one; what its launches named must still be there.
int cuStreamEndCapture(void *stream, void **graph) {
  is_capturing = 0;
  *graph = (void *)(long)++n_graphs;
  return FINE;
}
int cuGraphInstantiateWithFlags(void **made, void *graph, address flags) { *made = graph; return FINE; }
int cuGraphLaunch(void *graph, void *stream) {
  n_replays++;
  for (int i = 0; i < n_addresses; i++)
    if (captured[i].graph == (long)graph - 1 && !is_there(captured[i].start, 1)) return ILLEGAL_ADDRESS;
  return FINE;
}
int cuGraphExecDestroy(void *graph) { return FINE; }
int cuGraphDestroy(void *graph) { return FINE; }
