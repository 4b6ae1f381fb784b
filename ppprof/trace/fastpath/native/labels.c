/* Numbers for the texts of a column. */
#include <stdint.h>

#include "export.h"

/* Number the codes of a column from 0, in the order of their first rows; return how many there are.
 *
 * `number` gets the number of each row's code, -1 for a code that is not below `num_codes`. `first`
 * gets the first row of each number. `of_code` has -1 for each code, and gets its number. `codes` and
 * `number` have `num_rows` items, `of_code` and `first` have `num_codes`.
 */
EXPORT int64_t ppprof_number_codes(const uint32_t *codes, int64_t num_rows, int64_t num_codes,
                                   int32_t *of_code, int32_t *number, int64_t *first)
{
    int32_t count = 0;
    for (int64_t row = 0; row < num_rows; row++) {
        int64_t code = codes[row];
        number[row] = -1;
        if (code >= num_codes)
            continue;
        if (of_code[code] < 0) {
            first[count] = row;
            of_code[code] = count++;
        }
        number[row] = of_code[code];
    }
    return count;
}
