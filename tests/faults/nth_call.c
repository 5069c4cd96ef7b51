// Loaded before the C library: the n-th call that changes a file fails, or ends the process.
//
// In: NTH_CALL, counted from 1; NTH_DOES, `full` (no space is left from then on) or `kill`. The file NTH_COUNT gets one
// byte for each call, so that a first run without NTH_CALL tells how many there are.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static int n_calls;

// Only files count: a terminal or a socket has no disk behind it.
static int is_file(int fd) {
  struct stat about;
  return fstat(fd, &about) == 0 && S_ISREG(about.st_mode);
}

// Whether this call is to fail.
static int fails(void) {
  static ssize_t (*own_write)(int, const void *, size_t);
  static int count = -2;
  int nth = getenv("NTH_CALL") ? atoi(getenv("NTH_CALL")) : 0;
  int now = __atomic_add_fetch(&n_calls, 1, __ATOMIC_SEQ_CST);
  if (!own_write) own_write = (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
  if (count == -2) {
    int (*own_open)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    count = getenv("NTH_COUNT") ? own_open(getenv("NTH_COUNT"), O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
  }
  if (count >= 0) (void)!own_write(count, ".", 1);
  if (!nth || now < nth) return 0;
  if (getenv("NTH_DOES") && !strcmp(getenv("NTH_DOES"), "kill")) {
    if (now == nth) kill(getpid(), SIGKILL);
    return 0;
  }
  errno = ENOSPC;
  return 1;
}

#define NEXT(name, type) static type next; if (!next) next = (type)dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *bytes, size_t n) {
  typedef ssize_t (*type)(int, const void *, size_t);
  NEXT(write, type);
  return is_file(fd) && fails() ? -1 : next(fd, bytes, n);
}

ssize_t writev(int fd, const struct iovec *all, int n) {
  typedef ssize_t (*type)(int, const struct iovec *, int);
  NEXT(writev, type);
  return is_file(fd) && fails() ? -1 : next(fd, all, n);
}

int fsync(int fd) {
  typedef int (*type)(int);
  NEXT(fsync, type);
  return fails() ? -1 : next(fd);
}

int fdatasync(int fd) {
  typedef int (*type)(int);
  NEXT(fdatasync, type);
  return fails() ? -1 : next(fd);
}

int ftruncate64(int fd, off64_t n) {
  typedef int (*type)(int, off64_t);
  NEXT(ftruncate64, type);
  return fails() ? -1 : next(fd, n);
}

int rename(const char *from, const char *to) {
  typedef int (*type)(const char *, const char *);
  NEXT(rename, type);
  return fails() ? -1 : next(from, to);
}

int mkdir(const char *path, mode_t mode) {
  typedef int (*type)(const char *, mode_t);
  NEXT(mkdir, type);
  return fails() ? -1 : next(path, mode);
}

int symlink(const char *target, const char *path) {
  typedef int (*type)(const char *, const char *);
  NEXT(symlink, type);
  return fails() ? -1 : next(target, path);
}

int open64(const char *path, int flags, ...) {
  typedef int (*type)(const char *, int, ...);
  NEXT(open64, type);
  va_list more;
  va_start(more, flags);
  int mode = (flags & O_CREAT) ? va_arg(more, int) : 0;
  va_end(more);
  return (flags & O_CREAT) && fails() ? -1 : next(path, flags, mode);
}
