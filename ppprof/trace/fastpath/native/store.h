/* What a reader of events returns: columns of tables, texts, and ranges of bytes that it cannot read.
 *
 * Included by scan.c and events.c, whose readers begin with a store. So the functions of scan.c that
 * return columns, texts and ranges serve both.
 */
#ifndef PPPROF_STORE_H
#define PPPROF_STORE_H

#include "columns.h"
#include "texts.h"

typedef struct {
    uint8_t *program; /* a copy; the literals that the reader compares lie in it */
    uint32_t num_tables, num_columns;
    Table *tables;
    Column *columns;
    Texts texts;
    int64_t *ranges; /* pairs: first byte and end of text that the caller has to decode */
    size_t num_ranges, ranges_capacity;
} Store;

static void free_store(Store *store)
{
    for (uint32_t index = 0; store->columns && index < store->num_columns; index++)
        free(store->columns[index].values);
    free(store->texts.slots);
    free(store->texts.bytes);
    free(store->texts.ends);
    free(store->ranges);
    free(store->tables);
    free(store->columns);
    free(store->program);
}

static int add_range(Store *store, int64_t first, int64_t end)
{
    if (store->num_ranges == store->ranges_capacity) {
        int64_t *ranges = grown(store->ranges, &store->ranges_capacity,
                                store->num_ranges + 1, 2 * sizeof *ranges);
        if (!ranges)
            return -1;
        store->ranges = ranges;
    }
    store->ranges[2 * store->num_ranges] = first;
    store->ranges[2 * store->num_ranges + 1] = end;
    store->num_ranges++;
    return 0;
}

#endif
