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
