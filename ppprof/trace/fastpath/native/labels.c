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

/* Replace each value by the new number of it; a value that has none becomes -1. */
EXPORT int64_t ppprof_renumber(int32_t *values, int64_t num_rows, const int32_t *number,
                               int64_t num_numbers)
{
    for (int64_t row = 0; row < num_rows; row++)
        values[row] = values[row] >= 0 && values[row] < num_numbers ? number[values[row]] : -1;
    return 0;
}

/* Write the number of rows, the sum, the largest and the smallest value of each group.
 *
 * `group` holds numbers from 0 to `num_groups - 1`; each group has a row. Sums wrap around, as
 * polars' do. The last four arrays have room for `num_groups` items.
 */
EXPORT int64_t ppprof_group_stats(const int32_t *group, const int64_t *value, int64_t num_rows,
                                  int64_t num_groups, int64_t *num_in_group, uint64_t *sum,
                                  int64_t *most, int64_t *least)
{
    for (int64_t number = 0; number < num_groups; number++) {
        num_in_group[number] = 0;
        sum[number] = 0;
        most[number] = INT64_MIN;
        least[number] = INT64_MAX;
    }
    for (int64_t row = 0; row < num_rows; row++) {
        int64_t number = group[row];
        num_in_group[number]++;
        sum[number] += (uint64_t)value[row];
        if (value[row] > most[number])
            most[number] = value[row];
        if (value[row] < least[number])
            least[number] = value[row];
    }
    return 0;
}

/* Sort the rows whose number is at least 0 by their number; rows of one number keep their order.
 *
 * Numbers are below `num_numbers`. `rows` gets the rows, and has room for all of them. `next` has
 * room for `num_numbers` + 1 items. Return how many rows have a number.
 */
EXPORT int64_t ppprof_rows_by_number(const int32_t *number, int64_t num_rows, int64_t num_numbers,
                                     int64_t *next, int32_t *rows)
{
    for (int64_t index = 0; index <= num_numbers; index++)
        next[index] = 0;
    for (int64_t row = 0; row < num_rows; row++)
        if (number[row] >= 0)
            next[number[row] + 1]++;
    for (int64_t index = 0; index < num_numbers; index++)
        next[index + 1] += next[index];
    for (int64_t row = 0; row < num_rows; row++)
        if (number[row] >= 0)
            rows[next[number[row]]++] = (int32_t)row;
    return next[num_numbers];
}
