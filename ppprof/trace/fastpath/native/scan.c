/* Read the events of a trace whose writer prints them with a few format strings.
 *
 * layouts.py explains the idea: a program that prints every event with the same format string leaves
 * text that needs no parser.
 *
 * A scanner is created from a program, which scanner.py makes of the format strings in layouts.py:
 * tables (a kind of event each), columns, and layouts. A layout is a list of fields. Each field has
 * a type and the literal text that follows it.
 *
 *   1. memchr finds the next "{". If the bytes around it are those with which every event begins,
 *      the event before it is complete.
 *   2. The layouts are tried in their order, and the first one that matches the whole event wins.
 *      After the literal at the event's start, a layout is compared from the event's end: the
 *      literal after a field must be equal, then the field is read backwards from there. A wrong
 *      layout fails at its first different literal, mostly the last one of the event.
 *   3. The values go to the end of the columns of the layout's table. Texts are numbered: an exact
 *      hash table returns the number of a known text.
 *   4. The byte ranges of events without a layout are returned; the caller decodes them as JSON.
 *
 * Bounds: an event is the range [start, end) of the caller's text. The cursor starts at the end,
 * only moves down, and never below `floor`, the end of the layout's first literal. Every read is
 * above the floor, or compares that first literal, whose length was checked before.
 *
 * Errors: the functions return -1 or NULL if memory runs out. The scanner can then only be freed.
 *
 * Threads: nothing is global, so each thread may use a scanner of its own.
 */
#include "export.h"
#include "program.h"

#ifndef PPPROF_SOURCE_HASH
#define PPPROF_SOURCE_HASH ""
#endif

#define MAX_DIGITS 18            /* any 18 digits fit an int64 */
#define MAX_WORD 64              /* bytes back to the quotation mark of a %w */
#define MAX_LINE 65536           /* bytes back to the start of a %l's line, or of a %o */
#define MAX_THOUSANDTHS INT64_C(9223372036854774) /* times 1000, plus 999, fits an int64 */
#define EMPTY_INPUT 2            /* bytes of "{}", which is stored as no text */
#define MIN_DURATION 5           /* bytes of "[1 s]" */

/* ------------------------------------------------------------------------------- layouts */

typedef enum {
    WHOLE = 0,
    WITHOUT_DURATION = 1, /* the text ends before an appended "[1.2 ms]" */
    INPUT = 2             /* "{}" counts as no text */
} Treatment;

typedef struct {
    uint8_t spec; /* one of d, f, g, w, l, o, s: see EventPattern in layouts.py */
    uint8_t treatment;
    int32_t column;  /* -1: the value is dropped */
    uint32_t num_after;
    const uint8_t *after; /* the literal text after the field */
    uint32_t indent; /* of a %l: bytes before it on its line */
} Field;

typedef struct {
    int32_t table;     /* -1: the events are only counted */
    uint32_t num_head; /* bytes of the literal text before the first field */
    const uint8_t *head;
    uint32_t num_fields;
    const Field *fields; /* from the last to the first */
} Layout;

typedef struct {
    int64_t integer;
    double real;
    const uint8_t *text;
    size_t length;
} Value;

typedef struct Scanner {
    Store store;
    uint32_t num_start;
    uint32_t brace; /* place of the first "{" in `start` */
    const uint8_t *start;
    uint32_t num_layouts, num_fields;
    Layout *layouts;
    Field *fields;
    Value *values; /* of the event that is read, a value for each field */
    int64_t num_flows;
} Scanner;

/* Read up to eight digits that end at `cursor`: return their number, and their value.
 *
 * The eight bytes before the cursor must be readable. All of them are handled at once, as a word.
 */
static int eight_digits(const uint8_t *cursor, int64_t *value)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    const uint64_t ones = UINT64_C(0x0101010101010101);
    uint64_t word = load64(cursor - 8) ^ 0x30 * ones; /* a digit becomes its value */
    uint64_t others = (((word & 0x7F * ones) + 0x76 * ones) | word) & 0x80 * ones;
    int count = others ? __builtin_clzll(others) >> 3 : 8;
    if (count == 0)
        return 0;
    word = word >> (64 - 8 * count) << (64 - 8 * count);
    /* Join digits to pairs, pairs to fours, and both fours. */
    word = (word * (10 << 8 | 1) >> 8) & UINT64_C(0x00FF00FF00FF00FF);
    word = (word * (100 << 16 | 1) >> 16) & UINT64_C(0x0000FFFF0000FFFF);
    *value = (int64_t)(word * (UINT64_C(10000) << 32 | 1) >> 32);
    return count;
#else
    int count = 0;
    *value = 0;
    for (int64_t ten = 1; count < 8 && is_digit(cursor[-1 - count]); count++, ten *= 10)
        *value += (cursor[-1 - count] - '0') * ten;
    return count;
#endif
}

/* Read the digits that end at `cursor`: return their first byte, and their value.
 *
 * Of more than MAX_DIGITS digits, only one digit more is counted, and the value is meaningless.
 */
static const uint8_t *digits_before(const uint8_t *cursor, const uint8_t *floor, int64_t *value)
{
    const uint8_t *lowest = cursor - floor > MAX_DIGITS ? cursor - MAX_DIGITS : floor;
    int64_t sum = 0, ten = 1;
    while (cursor - lowest >= 8) {
        int64_t part;
        int count = eight_digits(cursor, &part);
        if (count) {
            sum += part * ten;
            ten *= 100000000;
            cursor -= count;
        }
        if (count < 8) {
            *value = sum;
            return cursor;
        }
    }
    while (cursor > lowest && is_digit(cursor[-1])) {
        sum += (*--cursor - '0') * ten;
        ten *= 10;
    }
    *value = sum;
    return cursor > floor && cursor == lowest && is_digit(cursor[-1]) ? cursor - 1 : cursor;
}

/* Whether digits [first, end) are no number of JSON, as "007" is none. */
static int has_leading_zero(const uint8_t *first, const uint8_t *end)
{
    return end - first > 1 && *first == '0';
}

/* Each of the following functions reads a field that ends at `cursor`.
 *
 * They return the field's first byte, or NULL if the text there is no such field.
 */
static const uint8_t *read_integer(const uint8_t *cursor, const uint8_t *floor, Value *value)
{
    const uint8_t *first = digits_before(cursor, floor, &value->integer);
    if (first == cursor || cursor - first > MAX_DIGITS || has_leading_zero(first, cursor))
        return NULL;
    if (first > floor && first[-1] == '-') {
        value->integer = -value->integer;
        first--;
    }
    return first;
}

static const uint8_t *read_thousandths(const uint8_t *cursor, const uint8_t *floor, Value *value)
{
    int64_t high;
    if (cursor - floor < 5 || cursor[-4] != '.' || !is_digit(cursor[-1]) ||
        !is_digit(cursor[-2]) || !is_digit(cursor[-3]))
        return NULL;
    int64_t low = (cursor[-3] - '0') * 100 + (cursor[-2] - '0') * 10 + (cursor[-1] - '0');
    const uint8_t *point = cursor - 4;
    const uint8_t *first = digits_before(point, floor, &high);
    if (first == point || point - first > MAX_DIGITS - 2 || high > MAX_THOUSANDTHS ||
        has_leading_zero(first, point))
        return NULL;
    value->integer = high * 1000 + low;
    if (first > floor && first[-1] == '-') {
        value->integer = -value->integer;
        first--;
    }
    return first;
}

static const uint8_t *read_real(const uint8_t *cursor, const uint8_t *floor, Value *value)
{
    int64_t low, high;
    if (cursor - floor < 3)
        return NULL;
    if (!memcmp(cursor - 3, "inf", 3) || !memcmp(cursor - 3, "nan", 3)) {
        const uint64_t nan = UINT64_C(0x7ff8000000000000);
        memcpy(&value->real, &nan, sizeof nan);
        cursor -= 3;
        return cursor > floor && cursor[-1] == '-' ? cursor - 1 : cursor;
    }
    const uint8_t *decimals = digits_before(cursor, floor, &low);
    if (decimals == cursor || cursor - decimals > MAX_DIGITS)
        return NULL;
    if (decimals == floor || decimals[-1] != '.')
        return NULL;
    const uint8_t *point = decimals - 1;
    const uint8_t *first = digits_before(point, floor, &high);
    if (first == point || point - first > MAX_DIGITS || has_leading_zero(first, point))
        return NULL;
    value->real = (double)high + (double)low / TENS[cursor - decimals];
    if (first > floor && first[-1] == '-') {
        value->real = -value->real;
        first--;
    }
    return first;
}

/* Return the place of the last `byte` in [floor, cursor), at most `reach` bytes back, or NULL. */
static const uint8_t *last_before(const uint8_t *cursor, const uint8_t *floor, uint8_t byte,
                                  ptrdiff_t reach)
{
    if (cursor - floor > reach)
        floor = cursor - reach;
    while (cursor > floor)
        if (*--cursor == byte)
            return cursor;
    return NULL;
}

/* The mark before a word may be the last byte below the floor, which the first literal contains. */
static const uint8_t *read_word(const uint8_t *cursor, const uint8_t *floor, Value *value)
{
    const uint8_t *quote = last_before(cursor, floor - 1, '"', MAX_WORD);
    if (!quote)
        return NULL;
    for (const uint8_t *byte = quote + 1; byte < cursor; byte++)
        if (*byte == '\\' || *byte < ' ')
            return NULL;
    value->text = quote + 1;
    value->length = (size_t)(cursor - value->text);
    return value->text;
}

/* `start` is the first byte of the event: a line begins above it. */
static const uint8_t *read_line(const Field *field, const uint8_t *cursor, const uint8_t *floor,
                                const uint8_t *start, Value *value)
{
    const uint8_t *line = last_before(cursor, start, '\n', MAX_LINE);
    if (!line || cursor - line < 1 + (ptrdiff_t)field->indent)
        return NULL;
    const uint8_t *first = line + 1 + field->indent;
    if (first < floor)
        return NULL;
    value->text = first;
    value->length = (size_t)(cursor - first);
    return first;
}

static const uint8_t *read_object(const uint8_t *cursor, const uint8_t *floor, Value *value)
{
    const uint8_t *end = cursor;
    if (cursor == floor || *--cursor != '}')
        return NULL;
    if (end - floor > MAX_LINE)
        floor = end - MAX_LINE;
    while (cursor > floor) {
        uint8_t byte = *--cursor;
        if (byte == '}')
            return NULL;
        if (byte == '{') {
            value->text = cursor;
            value->length = (size_t)(end - cursor);
            return cursor;
        }
    }
    return NULL;
}

/* Return the length of a name without an appended duration, such as "[1.2 ms]". */
static size_t length_without_duration(const uint8_t *name, size_t length)
{
    const uint8_t *end = name + length;
    if (length < MIN_DURATION || end[-1] != ']' || end[-2] != 's')
        return length;
    int is_prefixed = end[-4] == ' ' && (end[-3] == 'm' || end[-3] == 'u' || end[-3] == 'n');
    if (end[-3] != ' ' && !is_prefixed)
        return length;
    const uint8_t *bracket = last_before(end, name, '[', MAX_WORD);
    return bracket && is_digit(bracket[1]) ? (size_t)(bracket - name) : length;
}

/* Whether a name holds a quotation mark that may end it: a decoder of JSON has to say what the event is.
 *
 * That is so where the line break between two events is missing.
 */
static int may_end_within(const uint8_t *name, size_t length)
{
    const uint8_t *end = name + length;
    while ((name = memchr(name, '"', (size_t)(end - name)))) {
        do
            name++;
        while (name < end && (*name == ' ' || *name == '\t' || *name == '\r' || *name == '\n'));
        if (name == end || *name == ',' || *name == ':' || *name == '}')
            return 1;
    }
    return 0;
}

/* Whether the event [start, end) has this layout; its values go to `values`. */
static int matches(const Layout *layout, const uint8_t *start, const uint8_t *end, Value *values)
{
    if ((size_t)(end - start) < layout->num_head ||
        !are_equal(start, layout->head, layout->num_head))
        return 0;
    const uint8_t *floor = start + layout->num_head, *cursor = end;
    for (uint32_t index = 0; index < layout->num_fields; index++) {
        const Field *field = &layout->fields[index];
        if ((size_t)(cursor - floor) < field->num_after)
            return 0;
        cursor -= field->num_after;
        if (!are_equal(cursor, field->after, field->num_after))
            return 0;
        Value *value = &values[index];
        switch (field->spec) {
        case 'd':
            cursor = read_integer(cursor, floor, value);
            break;
        case 'f':
            cursor = read_thousandths(cursor, floor, value);
            break;
        case 'g':
            cursor = read_real(cursor, floor, value);
            break;
        case 'w':
            cursor = read_word(cursor, floor, value);
            break;
        case 'l':
            cursor = read_line(field, cursor, floor, start, value);
            break;
        case 'o':
            cursor = read_object(cursor, floor, value);
            break;
        default: /* s: only the first field */
            value->text = floor;
            value->length = (size_t)(cursor - floor);
            cursor = may_end_within(floor, value->length) ? NULL : floor;
        }
        if (!cursor)
            return 0;
    }
    return cursor == floor;
}

static int add_row(Scanner *scanner, const Layout *layout, int64_t position)
{
    Table *table = &scanner->store.tables[layout->table];
    size_t row = table->num_rows;
    for (uint32_t index = 0; index < layout->num_fields; index++) {
        const Field *field = &layout->fields[index];
        if (field->column < 0)
            continue;
        Column *column = &scanner->store.columns[field->column];
        const Value *value = &scanner->values[index];
        int failed;
        if (field->spec == 'd' || field->spec == 'f') {
            failed = put_integer(column, row, value->integer);
        } else if (field->spec == 'g') {
            failed = put_real(column, row, value->real);
        } else {
            size_t length = value->length;
            int32_t number = NO_TEXT;
            if (field->treatment == WITHOUT_DURATION)
                length = length_without_duration(value->text, length);
            if (field->treatment != INPUT || length > EMPTY_INPUT) {
                number = number_of(&scanner->store.texts, value->text, length);
                if (number < 0)
                    return -1;
            }
            failed = put_text(column, row, number);
        }
        if (failed)
            return -1;
    }
    if (put_integer(&scanner->store.columns[table->position], row, position))
        return -1;
    table->num_rows++;
    return 0;
}

/* Read the event [start, end) of a block. `*is_odd` is whether the event before it had no layout. */
static int add_event(Scanner *scanner, const uint8_t *text, const uint8_t *start,
                     const uint8_t *end, int64_t first, int *is_odd)
{
    for (uint32_t index = 0; index < scanner->num_layouts; index++) {
        const Layout *layout = &scanner->layouts[index];
        if (!matches(layout, start, end, scanner->values))
            continue;
        *is_odd = 0;
        if (layout->table < 0) {
            scanner->num_flows++;
            return 0;
        }
        return add_row(scanner, layout, first + (start - text));
    }
    if (*is_odd) {
        scanner->store.ranges[2 * scanner->store.num_ranges - 1] = first + (end - text);
        return 0;
    }
    *is_odd = 1;
    return add_range(&scanner->store, first + (start - text), first + (end - text));
}

/* ------------------------------------------------------------------------- the interface */

static int is_text(uint32_t spec)
{
    return spec == 'w' || spec == 'l' || spec == 'o' || spec == 's';
}

static void next_field(Program *program, const Scanner *scanner, const Layout *layout, Field *field)
{
    uint32_t spec = next_number(program);
    uint32_t column = next_below(program, scanner->store.num_columns + 1);
    if (!is_text(spec) && spec != 'd' && spec != 'f' && spec != 'g')
        program->is_bad = 1;
    field->spec = (uint8_t)spec;
    field->treatment = (uint8_t)next_below(program, INPUT + 1);
    field->after = next_literal(program, &field->num_after);
    field->indent = next_number(program);
    field->column = (int32_t)column - 1;
    if (program->is_bad || field->column < 0)
        return;
    Storage storage = scanner->store.columns[field->column].storage;
    int is_fitting = is_text(spec)  ? storage == TEXT
                     : spec == 'g' ? storage == FLOAT64
                                   : storage == INT32 || storage == INT64;
    if (!is_fitting || layout->table < 0 ||
        scanner->store.columns[field->column].table != (uint32_t)layout->table)
        program->is_bad = 1;
}

/* Read the program of a scanner; return -1 if it is contradictory or if there is no memory. */
static int read_program(Scanner *scanner, size_t length)
{
    Program program = {scanner->store.program, scanner->store.program + length, 0};
    scanner->store.num_tables = next_below(&program, MOST_ITEMS);
    scanner->store.num_columns = next_below(&program, MOST_ITEMS);
    scanner->num_layouts = next_below(&program, MOST_ITEMS);
    scanner->num_fields = next_below(&program, MOST_ITEMS);
    scanner->start = next_literal(&program, &scanner->num_start);
    const uint8_t *brace =
        scanner->num_start ? memchr(scanner->start, '{', scanner->num_start) : NULL;
    if (program.is_bad || !brace)
        return -1;
    scanner->brace = (uint32_t)(brace - scanner->start);
    /* One item more than needed: no size is 0. */
    scanner->layouts = calloc((size_t)scanner->num_layouts + 1, sizeof *scanner->layouts);
    scanner->fields = calloc((size_t)scanner->num_fields + 1, sizeof *scanner->fields);
    scanner->values = calloc((size_t)scanner->num_fields + 1, sizeof *scanner->values);
    if (!scanner->layouts || !scanner->fields || !scanner->values ||
        next_store(&program, &scanner->store))
        return -1;
    uint32_t num_used = 0;
    for (uint32_t index = 0; index < scanner->num_layouts && !program.is_bad; index++) {
        Layout *layout = &scanner->layouts[index];
        layout->table = (int32_t)next_below(&program, scanner->store.num_tables + 1) - 1;
        layout->head = next_literal(&program, &layout->num_head);
        layout->num_fields = next_below(&program, scanner->num_fields - num_used + 1);
        layout->fields = scanner->fields + num_used;
        if (!layout->num_head)
            return -1;
        for (uint32_t number = 0; number < layout->num_fields; number++) {
            Field *field = &scanner->fields[num_used + number];
            next_field(&program, scanner, layout, field);
            if (field->spec == 's' && number + 1 < layout->num_fields)
                return -1;
        }
        num_used += layout->num_fields;
    }
    return program.is_bad || program.next != program.end ? -1 : 0;
}

/* Return the SHA-256 of the sources that this library was compiled from. */
EXPORT const char *ppprof_source_hash(void)
{
    return PPPROF_SOURCE_HASH;
}

EXPORT void ppprof_scanner_free(Scanner *scanner)
{
    if (!scanner)
        return;
    free_store(&scanner->store);
    free(scanner->layouts);
    free(scanner->fields);
    free(scanner->values);
    free(scanner);
}

/* Return a new scanner; NULL if the program is contradictory or if there is no memory. */
EXPORT Scanner *ppprof_scanner_new(const uint8_t *program, size_t length, const uint64_t *secret)
{
    Scanner *scanner = new_reader(sizeof *scanner, program, length, secret);
    if (scanner && read_program(scanner, length)) {
        ppprof_scanner_free(scanner);
        return NULL;
    }
    return scanner;
}

/* Read a block, which begins and ends between two events; `first` is its offset in the file.
 *
 * Return the number of byte ranges in no layout, which are added at the end of the scanner's
 * ranges; -1 without memory.
 */
EXPORT int64_t ppprof_scanner_add(Scanner *scanner, const uint8_t *text, size_t length,
                                  int64_t first)
{
    size_t num_before = scanner->store.num_ranges;
    const uint8_t *end = text + length, *start = NULL, *next = text;
    int is_odd = 0;
    while (next < end) {
        const uint8_t *brace = memchr(next, '{', (size_t)(end - next));
        if (!brace)
            break;
        next = brace + 1;
        if ((size_t)(brace - text) < scanner->brace ||
            (size_t)(end - brace) < scanner->num_start - scanner->brace)
            continue;
        const uint8_t *begin = brace - scanner->brace;
        if (!are_equal(begin, scanner->start, scanner->num_start))
            continue;
        if (start) {
            if (add_event(scanner, text, start, begin, first, &is_odd))
                return -1;
        } else if (begin > text && add_range(&scanner->store, first, first + (begin - text))) {
            return -1;
        }
        start = begin;
    }
    if (start) {
        if (add_event(scanner, text, start, end, first, &is_odd))
            return -1;
    } else if (length && add_range(&scanner->store, first, first + (int64_t)length)) {
        return -1;
    }
    return (int64_t)(scanner->store.num_ranges - num_before);
}

/* Give every column that has a value as many rows as its table. Return -1 without memory. */
EXPORT int ppprof_store_finish(Store *store)
{
    for (uint32_t index = 0; index < store->num_columns; index++) {
        Column *column = &store->columns[index];
        size_t num_rows = store->tables[column->table].num_rows;
        if (column->values && column->num_rows < num_rows && fill_up(column, num_rows))
            return -1;
    }
    return 0;
}

/* Return the values of a column, and their number and storage; the caller has to free them.
 *
 * NULL if no event has the column. Called once for a column, after ppprof_store_finish.
 */
EXPORT void *ppprof_store_take(Store *store, uint32_t number, int64_t *num_rows,
                                 int32_t *storage)
{
    Column *column = &store->columns[number];
    void *values = column->values;
    *num_rows = (int64_t)column->num_rows;
    *storage = (int32_t)column->storage;
    if (values && !column->num_rows) { /* its rows were taken back */
        free(values);
        values = NULL;
    } else if (values) {
        /* Give back the room for rows that did not come. */
        void *shrunk = realloc(values, column->num_rows * item_bytes(column->storage));
        values = shrunk ? shrunk : values;
    }
    column->values = NULL;
    column->num_rows = column->capacity = 0;
    return values;
}

EXPORT void ppprof_free(void *values)
{
    free(values);
}

/* Return the bytes of all texts, one after another, their ends and their number. */
EXPORT const uint8_t *ppprof_store_texts(const Store *store, const int64_t **ends,
                                           int64_t *num_texts)
{
    *ends = store->texts.ends;
    *num_texts = store->texts.num_texts;
    return store->texts.bytes;
}

/* Return the byte ranges that the caller has to decode, as pairs, and their number. */
EXPORT const int64_t *ppprof_store_ranges(const Store *store, int64_t *num_ranges)
{
    *num_ranges = (int64_t)store->num_ranges;
    return store->ranges;
}

EXPORT int64_t ppprof_scanner_flows(const Scanner *scanner)
{
    return scanner->num_flows;
}
