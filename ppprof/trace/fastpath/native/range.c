/* Scan a range of a file without the interpreter: read it block by block, each block overwriting the
 * one before, and scan the blocks.
 *
 * A caller that reads the blocks itself needs the interpreter's lock between any two of them. While
 * another thread imports modules, that lock is hardly ever free.
 *
 * The blocks are those of TraceStream.blocks in source.py: each ends before the last event that
 * begins in it, whose text is the beginning of the next block.
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

/* Outcomes. The numbers are repeated in scanner.py. */
enum {
    DONE = 0,
    NOT_ENDED = 1,
    NO_MEMORY = -1,
    CANCELLED = 2,
    NOT_READ = -2 /* the file cannot be read, or no event begins in `most` bytes */
};

/* What other threads see and set while a range is scanned. */
typedef struct {
    volatile int64_t position; /* the end of the part that is scanned, set after every block */
    volatile int32_t is_cancelled; /* not 0: end after this block */
} Control;

struct Scanner; /* of scan.c */
int64_t ppprof_scanner_add(struct Scanner *scanner, const uint8_t *text, size_t length,
                           int64_t first);

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

/* Scan the bytes [first, end) of an open file; at `end`, an event begins or the file ends.
 *
 * `start` is the text with which every event begins, `usual` the length of a block, and `most` the
 * length of the longest event.
 */
EXPORT int32_t ppprof_scanner_add_range(struct Scanner *scanner, int32_t descriptor,
                                        int64_t first, int64_t end, const uint8_t *start,
                                        size_t num_start, size_t usual, size_t most,
                                        Control *control)
{
    size_t room = usual, capacity = usual, held = 0; /* bytes of a block, for it, and read for it */
    uint8_t *buffer = calloc(1, capacity + 2 * MARGIN);
    int32_t outcome = buffer ? NOT_ENDED : NO_MEMORY;
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
        size_t kept = is_last ? length : last_start(text, length, start, num_start);
        if (kept || is_last) {
            memset(text + held, 0, MARGIN);
            if (ppprof_scanner_add(scanner, text, kept, first) < 0)
                outcome = NO_MEMORY;
            else if (is_last)
                outcome = DONE;
            else if (control->is_cancelled)
                outcome = CANCELLED;
            first += (int64_t)kept;
            held -= kept;
            control->position = first;
            memmove(text, text + kept, held);
            room = usual;
        } else if (length > most) {
            outcome = NOT_READ;
        } else { /* an event that is longer than a block */
            room = 2 * room + MARGIN; /* as TraceStream.blocks */
            if (room > capacity) {
                uint8_t *larger = realloc(buffer, room + 2 * MARGIN);
                outcome = larger ? NOT_ENDED : NO_MEMORY;
                buffer = larger ? larger : buffer;
                capacity = room;
            }
        }
    }
    free(buffer);
    return outcome;
}
