/* Columns of a table whose rows come one by one. Included by store.h.
 *
 * A column gets memory with its first value. Rows before it, and later rows without a value, are
 * missing: MISSING for an integer, NaN for a real number, NO_TEXT for a text.
 */
#ifndef PPPROF_COLUMNS_H
#define PPPROF_COLUMNS_H

#include "memory.h"
#include <string.h>

#define MISSING INT64_MIN
#define NO_TEXT (-1)

typedef enum {
    INT32 = 'i', /* becomes INT64 when a value does not fit, or is missing */
    INT64 = 'q',
    FLOAT64 = 'd',
    TEXT = 't' /* int32 numbers of texts */
} Storage;

typedef struct {
    uint32_t table;
    Storage storage;
    void *values;    /* NULL until the first value */
    size_t num_rows; /* rows with a value; the table may have more, which miss this column */
    size_t capacity;
} Column;

typedef struct {
    uint32_t position; /* the column of the events' byte offsets */
    size_t num_rows;
} Table;

static size_t item_bytes(Storage storage)
{
    return storage == INT64 || storage == FLOAT64 ? 8 : 4;
}

/* Make an INT32 column an INT64 column. */
static int widen(Column *column)
{
    if (column->capacity > PTRDIFF_MAX / sizeof(int64_t))
        return -1;
    int64_t *wide = NULL;
    if (column->capacity) {
        wide = malloc(column->capacity * sizeof *wide);
        if (!wide)
            return -1;
        const int32_t *narrow = column->values;
        for (size_t row = 0; row < column->num_rows; row++)
            wide[row] = narrow[row];
    }
    free(column->values);
    column->values = wide;
    column->storage = INT64;
    return 0;
}

/* Make room for `num_rows` rows, and mark those from the last value on as missing. */
static int fill_up(Column *column, size_t num_rows)
{
    if (column->storage == INT32 && column->num_rows < num_rows && widen(column))
        return -1;
    if (column->capacity <= num_rows) {
        void *values =
            grown(column->values, &column->capacity, num_rows + 1, item_bytes(column->storage));
        if (!values)
            return -1;
        column->values = values;
    }
    for (; column->num_rows < num_rows; column->num_rows++) {
        size_t row = column->num_rows;
        if (column->storage == INT64)
            ((int64_t *)column->values)[row] = MISSING;
        else if (column->storage == TEXT)
            ((int32_t *)column->values)[row] = NO_TEXT;
        else {
            const uint64_t nan = UINT64_C(0x7ff8000000000000);
            memcpy((double *)column->values + row, &nan, sizeof nan);
        }
    }
    return 0;
}

static int put_integer(Column *column, size_t row, int64_t value)
{
    if ((column->num_rows < row || column->capacity <= row) && fill_up(column, row))
        return -1;
    if (column->storage == INT32) {
        if (value >= INT32_MIN && value <= INT32_MAX) {
            ((int32_t *)column->values)[row] = (int32_t)value;
            column->num_rows = row + 1;
            return 0;
        }
        if (widen(column))
            return -1;
    }
    ((int64_t *)column->values)[row] = value;
    column->num_rows = row + 1;
    return 0;
}

static int put_real(Column *column, size_t row, double value)
{
    if ((column->num_rows < row || column->capacity <= row) && fill_up(column, row))
        return -1;
    ((double *)column->values)[row] = value;
    column->num_rows = row + 1;
    return 0;
}

static int put_text(Column *column, size_t row, int32_t number)
{
    if ((column->num_rows < row || column->capacity <= row) && fill_up(column, row))
        return -1;
    ((int32_t *)column->values)[row] = number;
    column->num_rows = row + 1;
    return 0;
}

#endif
