/* Read the events of a range of a file without the interpreter: block by block, each block
 * overwriting the one before.
 *
 * A caller that reads the blocks itself needs the interpreter's lock between any two of them. While
 * another thread imports modules, that lock is hardly ever free.
 *
 * What is left of a block behind its last complete event is the beginning of the next block. A
 * scanner's blocks are those of TraceStream.blocks in source.py: each ends before the last event that
 * begins in it.
 */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif
#define _FILE_OFFSET_BITS 64
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "export.h"

#define MARGIN 128 /* bytes before and after a block, which the scanner may read; as in source.py */

/* Outcomes. The numbers are repeated in store.py. */
enum {
    DONE = 0,
    NOT_ENDED = 1,
    CANCELLED = 2,
    NO_MEMORY = -1,
    NOT_READ = -2 /* the file cannot be read, no event ends in `most` bytes, or one is not valid */
};

/* What other threads see and set while a range is read. */
typedef struct {
    volatile int64_t position; /* the end of the part that is read, set after every block */
    volatile int32_t is_cancelled; /* not 0: end after this block */
} Control;

/* What reads the events, and the text with which each of them begins; NULL if there is none. */
typedef struct {
    void *reader;
    const uint8_t *start;
    size_t num_start;
} Target;

/* Read the complete events of a block, whose first byte is the file's byte `first`. At the end of the
 * block, the range ends if `is_last`. Return the number of their bytes, 0 without one; -1 without
 * memory. */
typedef int64_t (*Take)(const Target *target, const uint8_t *text, size_t length, int64_t first,
                        int is_first, int is_last);

struct Scanner; /* of scan.c */
int64_t ppprof_scanner_add(struct Scanner *scanner, const uint8_t *text, size_t length,
                           int64_t first);
struct Reader; /* of events.c */
int64_t ppprof_reader_take(struct Reader *reader, const uint8_t *text, size_t length, int64_t first,
                           int is_first, int is_last);

/* Fill `room` bytes from the file's byte `offset` on. Return their number, fewer at the end of the
 * file; -1 if the file cannot be read. */
static int64_t fill(int descriptor, uint8_t *place, size_t room, int64_t offset)
{
    size_t done = 0;
    while (done < room) {
        ssize_t num = pread(descriptor, place + done, room - done, (off_t)(offset + (int64_t)done));
        if (num < 0 && errno == EINTR)
            continue;
        if (num < 0)
            return -1;
        if (num == 0)
            break;
        done += (size_t)num;
    }
    return (int64_t)done;
}

/* Return the place of the last `start` in `text`; 0 if there is none behind its first byte. */
static size_t last_start(const uint8_t *text, size_t length, const uint8_t *start, size_t num_start)
{
    for (size_t place = length - num_start; length > num_start && place > 0; place--)
        if (text[place] == start[0] && !memcmp(text + place, start, num_start))
            return place;
    return 0;
}

static int64_t take_by_scanner(const Target *target, const uint8_t *text, size_t length,
                               int64_t first, int is_first, int is_last)
{
    size_t kept = is_last ? length : last_start(text, length, target->start, target->num_start);
    (void)is_first;
    return ppprof_scanner_add(target->reader, text, kept, first) < 0 ? -1 : (int64_t)kept;
}

static int64_t take_by_reader(const Target *target, const uint8_t *text, size_t length,
                              int64_t first, int is_first, int is_last)
{
    return ppprof_reader_take(target->reader, text, length, first, is_first, is_last);
}

/* Read the bytes [first, end) of an open file; at `end`, an event begins or the file ends.
 *
 * `usual` is the length of a block, and `most` the length of the longest event.
 */
static int32_t read_range(Take take, const Target *target, int32_t descriptor, int64_t first,
                          int64_t end, size_t usual, size_t most, Control *control)
{
    size_t room = usual, capacity = usual, held = 0; /* bytes of a block, for it, and read for it */
    uint8_t *buffer = calloc(1, capacity + 2 * MARGIN);
    int32_t outcome = buffer ? NOT_ENDED : NO_MEMORY;
    int64_t begin = first;
    while (outcome == NOT_ENDED) {
        uint8_t *text = buffer + MARGIN;
        size_t length = end - first < (int64_t)room ? (size_t)(end - first) : room;
        if (held < length) {
            int64_t num = fill(descriptor, text + held, length - held, first + (int64_t)held);
            if (num < 0) {
                outcome = NOT_READ;
                break;
            }
            held += (size_t)num;
        }
        int is_last = held < length || first + (int64_t)length == end;
        length = held < length ? held : length;
        memset(text + held, 0, MARGIN);
        int64_t taken = take(target, text, length, first, first == begin, is_last);
        if (taken < 0) {
            outcome = NO_MEMORY;
        } else if (is_last) {
            outcome = (size_t)taken == length ? DONE : NOT_READ;
        } else if (taken == 0 && length > most) {
            outcome = NOT_READ;
        } else if (taken == 0) { /* an event that is longer than a block */
            room = 2 * room + MARGIN; /* as TraceStream.blocks */
            if (room > capacity) {
                uint8_t *larger = realloc(buffer, room + 2 * MARGIN);
                outcome = larger ? NOT_ENDED : NO_MEMORY;
                buffer = larger ? larger : buffer;
                capacity = room;
            }
            continue;
        } else if (control->is_cancelled) {
            outcome = CANCELLED;
        }
        if (taken > 0) {
            first += taken;
            held -= (size_t)taken;
            memmove(text, text + taken, held);
        }
        control->position = first;
        room = usual;
    }
    free(buffer);
    return outcome;
}

/* Read a range with a scanner. `start` is the text with which every event begins. */
EXPORT int32_t ppprof_scanner_add_range(struct Scanner *scanner, const uint8_t *start,
                                        size_t num_start, int32_t descriptor, int64_t first,
                                        int64_t end, size_t usual, size_t most, Control *control)
{
    Target target = {scanner, start, num_start};
    return read_range(take_by_scanner, &target, descriptor, first, end, usual, most, control);
}

/* Read a range with a reader of events. */
EXPORT int32_t ppprof_reader_add_range(struct Reader *reader, int32_t descriptor, int64_t first,
                                       int64_t end, size_t usual, size_t most, Control *control)
{
    Target target = {reader, NULL, 0};
    return read_range(take_by_reader, &target, descriptor, first, end, usual, most, control);
}
