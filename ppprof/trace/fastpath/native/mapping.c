/* Map a file into memory, and survive that it becomes shorter meanwhile.
 *
 * To read a page of a mapped file that the file no longer has, or that its disk cannot deliver, raises
 * SIGBUS, which ends a process. While a file is mapped, a handler of this signal puts zeros in the
 * place of the rest of the file and notes it, and the reader goes on. A signal at any other address is
 * left to the handler that was there before.
 */
#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "export.h"

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif

#define MOST_FILES 64

typedef struct {
    char *first; /* NULL: no file */
    char *end;   /* the end of the last page */
    int is_cut;
} File;

/* The caller holds a lock: one thread at a time maps or unmaps. The handler only reads, and marks a
 * file as cut, while another thread may change another slot. `first` is set last, and reset first. */
static File files[MOST_FILES];
static int num_files;
static struct sigaction before;

static void *read_now(char **place)
{
    return __atomic_load_n(place, __ATOMIC_ACQUIRE);
}

static void write_now(char **place, char *value)
{
    __atomic_store_n(place, value, __ATOMIC_RELEASE);
}

/* Do with a signal that somebody sent what would be done with it without us. */
static void on_sent_signal(int number, siginfo_t *info, void *context)
{
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, context);
    } else if (before.sa_handler == SIG_DFL) {
        sigaction(SIGBUS, &before, NULL);
        raise(number);
    } else if (before.sa_handler != SIG_IGN) {
        before.sa_handler(number);
    }
}

static void on_missing_page(int number, siginfo_t *info, void *context)
{
    if (info->si_code <= 0) { /* by kill or raise: there is no address */
        on_sent_signal(number, info, context);
        return;
    }
    char *place = info->si_addr;
    for (int slot = 0; slot < MOST_FILES; slot++) {
        File *file = &files[slot];
        char *end = read_now(&file->end), *first = read_now(&file->first);
        /* A slot that changes meanwhile is not that of the page: its reader still has the file. */
        if (!first || place < first || place >= end || read_now(&file->end) != end)
            continue;
        char *page = place - (uintptr_t)place % (uintptr_t)sysconf(_SC_PAGESIZE);
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        if (mmap(page, (size_t)(end - page), PROT_READ, flags, -1, 0) != MAP_FAILED) {
            __atomic_store_n(&file->is_cut, 1, __ATOMIC_RELEASE);
            return; /* the read is repeated, and finds a zero */
        }
    }
    sigaction(SIGBUS, &before, NULL); /* the read is repeated, and raises the signal again */
}

/* Map the first `num_bytes` bytes of the open file `descriptor`, and at least `padding` zeros behind
 * them. Write the address to `address`. Return the number of the mapping; -1 if it cannot be mapped.
 */
EXPORT int64_t ppprof_map(int64_t descriptor, int64_t num_bytes, int64_t padding, int64_t *address)
{
    int64_t page = sysconf(_SC_PAGESIZE);
    int slot = 0;
    while (slot < MOST_FILES && files[slot].first)
        slot++;
    if (slot == MOST_FILES || page <= 0 || num_bytes <= 0 || padding < 0 || padding > page ||
        num_bytes > PTRDIFF_MAX - 3 * page)
        return -1;
    size_t length = (size_t)((num_bytes + page - 1) / page * page);
    /* The zeros behind the last page of the file are a page of no file. */
    char *first = mmap(NULL, length + (size_t)page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (first == MAP_FAILED)
        return -1;
    if (mmap(first, length, PROT_READ, MAP_PRIVATE | MAP_FIXED, (int)descriptor, 0) == MAP_FAILED) {
        munmap(first, length + (size_t)page);
        return -1;
    }
    if (!num_files) {
        struct sigaction ours;
        memset(&ours, 0, sizeof ours);
        ours.sa_sigaction = on_missing_page;
        ours.sa_flags = SA_SIGINFO | SA_NODEFER;
        sigemptyset(&ours.sa_mask);
        if (sigaction(SIGBUS, &ours, &before)) {
            munmap(first, length + (size_t)page);
            return -1;
        }
    }
    num_files++;
    __atomic_store_n(&files[slot].is_cut, 0, __ATOMIC_RELEASE);
    write_now(&files[slot].end, first + length);
    write_now(&files[slot].first, first);
    *address = (int64_t)(intptr_t)first;
    return slot;
}

/* Return whether a page of a mapped file was missing. */
EXPORT int64_t ppprof_is_cut(int64_t slot)
{
    return __atomic_load_n(&files[slot].is_cut, __ATOMIC_ACQUIRE);
}

/* Unmap a file, and forget it. */
EXPORT int64_t ppprof_unmap(int64_t slot)
{
    File *file = &files[slot];
    int64_t page = sysconf(_SC_PAGESIZE);
    char *first = file->first;
    write_now(&file->first, NULL);
    munmap(first, (size_t)(file->end - first) + (size_t)page);
    if (!--num_files) {
        struct sigaction now;
        if (!sigaction(SIGBUS, NULL, &now) && (now.sa_flags & SA_SIGINFO) &&
            now.sa_sigaction == on_missing_page)
            sigaction(SIGBUS, &before, NULL);
    }
    return 0;
}
