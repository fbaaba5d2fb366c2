/* Loaded before the C library (LD_PRELOAD): makes reads, writes or syncs of files below some folders fail with EIO.

Environment: FAULT_KIND r, w or s; FAULT_AT the number of the call that fails (0: none); FAULT_STAYS 1: so do all later ones;
FAULT_COUNTER a file of 8 bytes, in which all processes count calls of that kind; FAULT_BELOW folders, by ":". */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long *counter;
static long at, stays;
static char kind;
static const char *below = "";

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAULT_COUNTER"), *wanted = getenv("FAULT_KIND");
    if (!path || !wanted) return;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    void *mapped = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED) return;
    kind = *wanted;
    at = atol(getenv("FAULT_AT") ? getenv("FAULT_AT") : "0");
    stays = atol(getenv("FAULT_STAYS") ? getenv("FAULT_STAYS") : "0");
    below = getenv("FAULT_BELOW") ? getenv("FAULT_BELOW") : "";
    counter = mapped;
}

static int fails(char wanted, int file) {
    if (!counter || wanted != kind) return 0;
    char link[40], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    for (const char *folder = below; *folder;) {
        size_t size = strcspn(folder, ":");
        if (size && !strncmp(path, folder, size)) {
            long number = 1 + atomic_fetch_add(counter, 1);
            if (at && (stays ? number >= at : number == at)) {
                errno = EIO;
                return 1;
            }
            return 0;
        }
        folder += size + (folder[size] == ':');
    }
    return 0;
}

#define WRAP(result, name, wanted, parameters, arguments)                          \
    result name parameters {                                                      \
        static result(*plain) parameters;                                         \
        if (!plain) plain = (result(*) parameters)dlsym(RTLD_NEXT, #name);        \
        return fails(wanted, file) ? -1 : plain arguments;                        \
    }

WRAP(ssize_t, read, 'r', (int file, void *to, size_t size), (file, to, size))
WRAP(ssize_t, pread, 'r', (int file, void *to, size_t size, off_t place), (file, to, size, place))
WRAP(ssize_t, pread64, 'r', (int file, void *to, size_t size, off64_t place), (file, to, size, place))
WRAP(ssize_t, readv, 'r', (int file, const struct iovec *to, int count), (file, to, count))
WRAP(ssize_t, preadv, 'r', (int file, const struct iovec *to, int count, off_t place), (file, to, count, place))
WRAP(ssize_t, preadv64, 'r', (int file, const struct iovec *to, int count, off64_t place), (file, to, count, place))
WRAP(ssize_t, preadv2, 'r', (int file, const struct iovec *to, int count, off_t place, int flags), (file, to, count, place, flags))
WRAP(ssize_t, preadv64v2, 'r', (int file, const struct iovec *to, int count, off64_t place, int flags), (file, to, count, place, flags))
WRAP(ssize_t, write, 'w', (int file, const void *from, size_t size), (file, from, size))
WRAP(ssize_t, pwrite, 'w', (int file, const void *from, size_t size, off_t place), (file, from, size, place))
WRAP(ssize_t, pwrite64, 'w', (int file, const void *from, size_t size, off64_t place), (file, from, size, place))
WRAP(ssize_t, writev, 'w', (int file, const struct iovec *from, int count), (file, from, count))
WRAP(ssize_t, pwritev2, 'w', (int file, const struct iovec *from, int count, off_t place, int flags), (file, from, count, place, flags))
WRAP(ssize_t, pwritev64v2, 'w', (int file, const struct iovec *from, int count, off64_t place, int flags), (file, from, count, place, flags))
WRAP(int, fsync, 's', (int file), (file))
WRAP(int, fdatasync, 's', (int file), (file))
