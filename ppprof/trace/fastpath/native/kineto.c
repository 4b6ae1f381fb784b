/* What the reader of Kineto's files does with whole columns. */
#include <stdint.h>

#include "export.h"

/* Number the texts of some rows of a column from 1, in the order of their first rows; 0 is no text.
 *
 * `values` has the number of each row's text in one reader, -1 for no text, and `number` the number of
 * each of its texts among those of all readers. `code` has what each of those is numbered as, 0 for
 * none yet; `used` has the text of each code but the first. `count` is the number of codes before this
 * call. `values` and `codes` have `num_rows` items.
 *
 * Return the number of codes.
 */
EXPORT int64_t ppprof_code_texts(const int32_t *values, int64_t num_rows, const int32_t *number,
                                 uint32_t *code, int32_t *used, int64_t count, uint32_t *codes)
{
    for (int64_t row = 0; row < num_rows; row++) {
        codes[row] = 0;
        if (values[row] < 0)
            continue;
        int32_t text = number[values[row]];
        if (!code[text]) {
            used[count++] = text;
            code[text] = (uint32_t)count;
        }
        codes[row] = code[text];
    }
    return count;
}

/* Whether the host event `row` begins at `time` of thread `key` or before, in their order. */
static int begins_by(const int64_t *thread, const int64_t *start, int64_t row, int64_t key,
                     int64_t time)
{
    return thread[row] < key || (thread[row] == key && start[row] <= time);
}

/* Find the innermost host event around each of some times.
 *
 * The host events come sorted by thread and start, in pre-order; `above` has the row of each one's
 * parent, -1 for none. `parent` gets the row for each of `num_times` times, -1 if none is around it,
 * and -2 if it is more than `most_levels` above the last event that began.
 *
 * Return the number of those.
 */
EXPORT int64_t ppprof_innermost(const int64_t *thread, const int64_t *start, const int64_t *end,
                                const int32_t *above, int64_t num_hosts, const int64_t *key,
                                const int64_t *time, int64_t num_times, int64_t most_levels,
                                int32_t *parent)
{
    int64_t num_deep = 0, num_begun = 0; /* host events that begin by the time */
    for (int64_t index = 0; index < num_times; index++) {
        /* Usually it is a few more than by the time before. */
        int64_t low = 0, high = num_hosts, step = 1;
        if (num_begun && begins_by(thread, start, num_begun - 1, key[index], time[index]))
            low = num_begun;
        else if (num_begun)
            high = num_begun - 1;
        for (; low && high - low > step; step *= 2) {
            if (!begins_by(thread, start, low + step - 1, key[index], time[index])) {
                high = low + step - 1;
                break;
            }
            low += step;
        }
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            if (begins_by(thread, start, middle, key[index], time[index]))
                low = middle + 1;
            else
                high = middle;
        }
        num_begun = low;
        int64_t row = low - 1, level = 0;
        if (row >= 0 && thread[row] != key[index])
            row = -1;
        /* The last host event that began before may have ended. Its parents end later. */
        for (; row >= 0 && end[row] <= time[index] && level < most_levels; level++)
            row = above[row];
        if (row >= 0 && end[row] <= time[index]) {
            row = -2;
            num_deep++;
        }
        parent[index] = (int32_t)row;
    }
    return num_deep;
}
