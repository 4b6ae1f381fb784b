/* Read messages in protobuf's wire format into columns.
 *
 * A file is one message. A message is a sequence of fields, each with a number and one of four
 * types: a base-128 number ("varint"), 8 bytes, 4 bytes, or a length and that many bytes. A field
 * of the last type holds a text or another message. One call of `ppprof_protobuf_read` reads all
 * messages of one type, given their byte ranges, and writes the wanted fields into columns. The
 * byte ranges of the messages inside them are such columns; the next call reads those. So this file
 * knows the wire format only; the field numbers of Paddle's trace are in paddle/pb_messages.py.
 *
 * The bytes are not trusted:
 * - The caller appends 32 zero bytes. A field begins before the end of the file, and its number, its
 *   type and its value or length take at most 20 bytes. So these reads need no check against the end
 *   of the file. The content of a field is read only after its range has been checked.
 * - Nothing is allocated here. The caller allocates all columns, sized by the number of messages.
 *   Columns with an unknown number of rows have a capacity. One that is too small ends the call; the
 *   caller enlarges it and calls again. So memory is bounded by the bytes that are in the file.
 * - There is no recursion: each call reads one level of messages.
 * - Texts are compared byte by byte. Their hashes depend on a random number, so that no file can be
 *   written whose texts all have the same hash.
 *
 * There is no global state: threads may read different files at the same time.
 *
 * Source: https://protobuf.dev/programming-guides/encoding/
 */
#include <stdint.h>
#include <string.h>

#include "export.h"

/* Outcomes of a call. The numbers are repeated in protobuf_native.py. */
enum {
    DONE = 0,
    FULL = 1, /* a column is too small: enlarge it, and call again with the same state */
    LONG_NUMBER = 2,
    UNKNOWN_TYPE = 3,
    BEYOND_FILE = 4,
    BEYOND_MESSAGE = 5,
    BAD_REQUEST = 6, /* an error of the caller */
};

/* What to write about a field. The numbers are repeated in protobuf_messages.py. */
enum {
    NUMBER = 0,   /* its value */
    TEXT = 1,     /* the number of its text among the distinct texts of the column */
    MESSAGE = 2,  /* its byte range */
    MESSAGES = 3, /* the byte range of each of its occurrences, and the index of the message */
};

enum { VARINT = 0, I64 = 1, LEN = 2, I32 = 5 };

enum { MAX_FIELD = 63, MAX_COLUMNS = 16, MESSAGES_AHEAD = 8 };

/* One wanted field. Members that its kind does not need are 0. A range is the first byte and the
 * byte after the last one. */
typedef struct {
    int32_t field;        /* field number, 1 to MAX_FIELD */
    int32_t kind;         /* NUMBER, TEXT, MESSAGE or MESSAGES */
    int32_t width;        /* NUMBER: bytes of a value: 1, 2, 4 or 8 */
    int32_t wanted_width; /* NUMBER: the width that the caller must change it to, or 0 */
    void *values;         /* NUMBER: a value for each message. The caller has set all to 0. */
    int32_t *rows;        /* TEXT: text number for each message; MESSAGES: index of the message */
    int64_t *first;       /* MESSAGE: range for each message, 0 and 0 if missing; */
    int64_t *end;         /* MESSAGES: for each occurrence; TEXT: for each distinct text */
    int64_t capacity;     /* TEXT and MESSAGES: room for this many ranges */
    int64_t count;        /* TEXT and MESSAGES: this many of them are used */
    uint64_t *slots;      /* TEXT: hash table of the distinct texts, see `number_of` */
    int64_t num_slots;    /* TEXT: a power of two, at least twice the capacity */
    uint64_t seed;        /* TEXT: a random number */
    int64_t text_first;   /* TEXT: range in the message that is being read */
    int64_t text_end;
} Column;

/* Where a call ended, and where the next one goes on. */
typedef struct {
    int64_t message; /* index of the message that is being read */
    int64_t cursor;  /* byte of its next field; -1: it is not begun */
    int64_t error;   /* byte to report if the outcome is an error */
} State;

/* Return 8 bytes as a little-endian number. Compilers make this expression a single load. */
static uint64_t word_at(const uint8_t *bytes)
{
    return (uint64_t)bytes[0] | (uint64_t)bytes[1] << 8 | (uint64_t)bytes[2] << 16 |
           (uint64_t)bytes[3] << 24 | (uint64_t)bytes[4] << 32 | (uint64_t)bytes[5] << 40 |
           (uint64_t)bytes[6] << 48 | (uint64_t)bytes[7] << 56;
}

/* Read the base-128 number at `bytes`. Return the byte after it; NULL if it has more than 10. */
static const uint8_t *read_varint(const uint8_t *bytes, uint64_t *value)
{
    if (bytes[0] < 0x80) {
        *value = bytes[0];
        return bytes + 1;
    }
    if (bytes[1] < 0x80) {
        *value = (bytes[0] & 0x7F) | (uint64_t)bytes[1] << 7;
        return bytes + 2;
    }
    uint64_t word = word_at(bytes);
    uint64_t stops = ~word & UINT64_C(0x8080808080808080); /* bytes without a continuation bit */
    uint64_t stop = stops & (~stops + 1);                  /* the first one; 0: none of the 8 */
    uint64_t low = word & (stop | (stop - 1)) & UINT64_C(0x7F7F7F7F7F7F7F7F);
    /* Close the gaps: 8 groups of 7 bits in 8 bytes each -> 4 of 14 in 16 -> 2 of 28 -> 56. */
    low = (low & UINT64_C(0x007F007F007F007F)) | (low & UINT64_C(0x7F007F007F007F00)) >> 1;
    low = (low & UINT64_C(0x00003FFF00003FFF)) | (low & UINT64_C(0x3FFF00003FFF0000)) >> 2;
    low = (low & UINT64_C(0x000000000FFFFFFF)) | (low & UINT64_C(0x0FFFFFFF00000000)) >> 4;
    if (stop) {
        *value = low;
        int length = 3;
        while (stop > UINT64_C(0x800000)) {
            stop >>= 8;
            length++;
        }
        return bytes + length;
    }
    low |= (uint64_t)(bytes[8] & 0x7F) << 56;
    if (bytes[8] < 0x80) {
        *value = low;
        return bytes + 9;
    }
    *value = low | (uint64_t)bytes[9] << 63;
    return bytes[9] < 0x80 ? bytes + 10 : NULL;
}

/* Return the two halves of a 128-bit product, combined by exclusive or. */
static uint64_t folded_product(uint64_t a, uint64_t b)
{
    uint64_t a_high = a >> 32, a_low = (uint32_t)a, b_high = b >> 32, b_low = (uint32_t)b;
    uint64_t high = a_high * b_high, low = a_low * b_low;
    uint64_t left = a_high * b_low, right = a_low * b_high;
    uint64_t carry = ((low >> 32) + (uint32_t)left + (uint32_t)right) >> 32;
    high += (left >> 32) + (right >> 32) + carry;
    low += (left << 32) + (right << 32);
    return high ^ low;
}

static uint64_t hash_of(const uint8_t *text, int64_t length, uint64_t seed)
{
    const uint64_t odd = UINT64_C(0x9E3779B97F4A7C15);
    uint64_t hash = seed ^ (uint64_t)length;
    while (length >= 8) {
        hash = folded_product(hash ^ word_at(text), seed ^ odd);
        text += 8;
        length -= 8;
    }
    uint64_t rest = 0;
    for (int64_t i = 0; i < length; i++)
        rest |= (uint64_t)text[i] << (8 * i);
    hash = folded_product(hash ^ rest, seed ^ odd);
    return hash ^ hash >> 32;
}

/* Return the number of a text among the distinct texts of a column. A new text gets the next one.
 *
 * A slot of the hash table is 0, or half of a hash and a text number plus 1. A text is in the first
 * free slot at or after the one that its hash selects. There is room for one more text.
 */
static int32_t number_of(const uint8_t *data, int64_t first, int64_t end, Column *column)
{
    const uint64_t half = UINT64_C(0xFFFFFFFF00000000);
    uint64_t hash = hash_of(data + first, end - first, column->seed);
    uint64_t mask = (uint64_t)column->num_slots - 1;
    uint64_t place = hash & mask;
    while (column->slots[place]) {
        uint64_t slot = column->slots[place];
        if ((slot & half) == (hash & half)) {
            int32_t number = (int32_t)(slot & ~half) - 1;
            int64_t other = column->first[number];
            if (column->end[number] - other == end - first &&
                !memcmp(data + other, data + first, (size_t)(end - first)))
                return number;
        }
        place = (place + 1) & mask;
    }
    int32_t number = (int32_t)column->count++;
    column->slots[place] = (hash & half) | (uint64_t)(number + 1);
    column->first[number] = first;
    column->end[number] = end;
    return number;
}

/* Fill the hash table of a column that has been enlarged. The caller has set all slots to 0. */
EXPORT void ppprof_protobuf_rehash(const uint8_t *data, Column *column)
{
    int64_t count = column->count;
    column->count = 0;
    for (int64_t number = 0; number < count; number++)
        number_of(data, column->first[number], column->end[number], column);
}

/* Write a number. Return 0 if it needs more bytes than the column has.
 *
 * Columns begin with one byte a value, because most numbers of a trace are small: without that, the
 * columns would take more memory than the file.
 */
static int write_number(Column *column, int64_t message, uint64_t value)
{
    if (column->width == 8) {
        ((uint64_t *)column->values)[message] = value;
        return 1;
    }
    if (value >> (8 * column->width)) {
        column->wanted_width = value >> 32 ? 8 : value >> 16 ? 4 : 2;
        return 0;
    }
    if (column->width == 4)
        ((uint32_t *)column->values)[message] = (uint32_t)value;
    else if (column->width == 2)
        ((uint16_t *)column->values)[message] = (uint16_t)value;
    else
        ((uint8_t *)column->values)[message] = (uint8_t)value;
    return 1;
}

/* Write one field of the message `message`. Return 0 if its column is too small. */
static int write_field(Column *column, int64_t message, int is_number, uint64_t value, int64_t first)
{
    if (is_number != (column->kind == NUMBER))
        return 1; /* of another type than expected: an unknown field */
    switch (column->kind) {
    case NUMBER: /* the last occurrence wins, here and below, as protobuf demands */
        return write_number(column, message, value);
    case TEXT:
        column->text_first = first;
        column->text_end = first + (int64_t)value;
        return 1;
    case MESSAGE:
        column->first[message] = first;
        column->end[message] = first + (int64_t)value;
        return 1;
    default:
        if (column->count == column->capacity)
            return 0;
        column->rows[column->count] = (int32_t)message;
        column->first[column->count] = first;
        column->end[column->count] = first + (int64_t)value;
        column->count++;
        return 1;
    }
}

/* Read the rest of a message: its fields from `state->cursor` to the byte `limit`. */
static int read_fields(const uint8_t *data, int64_t size, int64_t limit, Column *columns,
                       const int8_t *column_of, State *state)
{
    int64_t cursor = state->cursor;
    while (cursor < limit) {
        uint64_t tag, value;
        const uint8_t *next = read_varint(data + cursor, &tag);
        int64_t after;
        if (!next) {
            state->error = cursor + 10;
            return LONG_NUMBER;
        }
        int64_t begin = next - data;
        int kind = (int)(tag & 7);
        switch (kind) {
        case VARINT:
        case LEN:
            next = read_varint(next, &value);
            if (!next) {
                state->error = begin + 10;
                return LONG_NUMBER;
            }
            after = next - data;
            break;
        case I64:
            value = word_at(next);
            after = begin + 8;
            break;
        case I32:
            value = word_at(next) & UINT64_C(0xFFFFFFFF);
            after = begin + 4;
            break;
        default:
            state->error = cursor;
            return UNKNOWN_TYPE;
        }
        int64_t first = after;
        if (kind == LEN) {
            if (value > (uint64_t)size) {
                state->error = begin;
                return BEYOND_FILE;
            }
            after += (int64_t)value;
        }
        if (after > limit) {
            state->error = after;
            return BEYOND_MESSAGE;
        }
        int column = tag >> 3 <= MAX_FIELD ? column_of[tag >> 3] : -1;
        if (column >= 0 &&
            !write_field(columns + column, state->message, kind != LEN, value, first)) {
            state->cursor = cursor;
            return FULL;
        }
        cursor = after;
    }
    state->cursor = cursor;
    return DONE;
}

/* Read messages [state->message, num_messages), whose bytes are data[first[i]] to data[end[i] - 1].
 *
 * `data` has `size` bytes and 32 zero bytes after them. Before the first call,
 * `state->message` is 0, `state->cursor` is -1, and each `count` is 0.
 */
EXPORT int32_t ppprof_protobuf_read(const uint8_t *data, int64_t size, const int64_t *first,
                                    const int64_t *end, int64_t num_messages, Column *columns,
                                    int32_t num_columns, State *state)
{
    int8_t column_of[MAX_FIELD + 1];
    int32_t texts[MAX_COLUMNS], num_texts = 0;
    if (num_columns > MAX_COLUMNS || num_messages > INT32_MAX)
        return BAD_REQUEST;
    memset(column_of, -1, sizeof column_of);
    for (int32_t i = 0; i < num_columns; i++) {
        if (columns[i].field < 1 || columns[i].field > MAX_FIELD)
            return BAD_REQUEST;
        column_of[columns[i].field] = (int8_t)i;
        if (columns[i].kind == TEXT)
            texts[num_texts++] = i;
    }
    for (; state->message < num_messages; state->message++, state->cursor = -1) {
        int64_t message = state->message;
        int64_t limit = end[message];
        if (state->cursor < 0) {
            if (first[message] < 0 || limit > size)
                return BAD_REQUEST;
            /* Messages of one type are far apart in the file. So without these hints, most of the time
             * would be spent on waiting for the memory. */
            if (message + MESSAGES_AHEAD < num_messages) {
                __builtin_prefetch(data + first[message + MESSAGES_AHEAD]);
                __builtin_prefetch(data + first[message + MESSAGES_AHEAD] + 64);
            }
            for (int32_t i = 0; i < num_texts; i++) {
                Column *column = columns + texts[i];
                if (column->count == column->capacity)
                    return FULL;
                column->text_first = column->text_end = 0;
            }
            state->cursor = first[message];
        }
        int outcome = read_fields(data, size, limit, columns, column_of, state);
        if (outcome != DONE)
            return outcome;
        for (int32_t i = 0; i < num_texts; i++) {
            Column *column = columns + texts[i];
            column->rows[message] = number_of(data, column->text_first, column->text_end, column);
        }
    }
    return DONE;
}
