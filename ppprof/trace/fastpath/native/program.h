/* Read a program: what Python tells a reader about tables, columns and literal texts. Also what both
 * readers need for digits.
 *
 * All numbers are unsigned 32-bit integers, little-endian. A literal is its length and its bytes.
 * Included by scan.c and events.c.
 */
#ifndef PPPROF_PROGRAM_H
#define PPPROF_PROGRAM_H

#include "store.h"

#define MOST_ITEMS (1 << 16) /* of anything; a program has some hundred fields */

static const double TENS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                              1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                              1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}; /* all are exact */

static int is_digit(uint8_t byte)
{
    return (uint8_t)(byte - '0') < 10;
}

/* Parts of a program, read one after another; `is_bad` if it ends too early or is contradictory. */
typedef struct {
    const uint8_t *next, *end;
    int is_bad;
} Program;

/* Return a new reader of `size` bytes, which begins with a store, and has a copy of the program; NULL
 * without memory.
 *
 * `secret` is two random numbers, the seed of the hash table of texts.
 */
static void *new_reader(size_t size, const uint8_t *program, size_t length, const uint64_t *secret)
{
    Store *store = calloc(1, size);
    uint8_t *copy = malloc(length + 1);
    if (!store || !copy) {
        free(store);
        free(copy);
        return NULL;
    }
    memcpy(store->texts.secret, secret, sizeof store->texts.secret);
    if (length)
        memcpy(copy, program, length);
    store->program = copy;
    return store;
}

static uint32_t next_number(Program *program)
{
    if (program->is_bad || program->end - program->next < 4) {
        program->is_bad = 1;
        return 0;
    }
    const uint8_t *bytes = program->next;
    program->next += 4;
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

/* Return a number below `limit`. */
static uint32_t next_below(Program *program, uint32_t limit)
{
    uint32_t number = next_number(program);
    if (number >= limit)
        program->is_bad = 1;
    return program->is_bad ? 0 : number;
}

static const uint8_t *next_literal(Program *program, uint32_t *length)
{
    *length = next_number(program);
    if (program->is_bad || (size_t)(program->end - program->next) < *length) {
        program->is_bad = 1;
        *length = 0;
        return program->next;
    }
    const uint8_t *literal = program->next;
    program->next += *length;
    return literal;
}

/* Read the storage and the table of each column, then the column of positions of each table.
 *
 * Return -1 if the program is contradictory or if there is no memory.
 */
static int next_store(Program *program, Store *store)
{
    /* One item more than needed: no size is 0. */
    store->tables = calloc((size_t)store->num_tables + 1, sizeof *store->tables);
    store->columns = calloc((size_t)store->num_columns + 1, sizeof *store->columns);
    if (!store->tables || !store->columns)
        return -1;
    for (uint32_t index = 0; index < store->num_columns; index++) {
        uint32_t storage = next_number(program);
        if (storage != INT32 && storage != INT64 && storage != FLOAT64 && storage != TEXT)
            program->is_bad = 1;
        store->columns[index].storage = (Storage)storage;
        store->columns[index].table = next_below(program, store->num_tables);
    }
    for (uint32_t index = 0; index < store->num_tables && !program->is_bad; index++) {
        uint32_t position = next_below(program, store->num_columns);
        store->tables[index].position = position;
        if (program->is_bad || store->columns[position].storage != INT64 ||
            store->columns[position].table != index)
            return -1;
    }
    return program->is_bad ? -1 : 0;
}

#endif
