/* Read the events of a trace in the Trace Event Format, by the names of their keys.
 *
 * For writers whose text has no fixed layout: keys may come in any order and some are optional, as
 * in the files of torch's profiler, whose versions differ. Each event is parsed as JSON, once, and
 * only the wanted values are kept.
 *
 * A reader is created from a program, which events.py makes: tables, columns, the wanted keys of
 * `args`, and classes of events. A class is a condition on ph, cat, name and dur, and the tables
 * that its events get a row in.
 *
 *   1. The members of the event are checked as JSON. The places of wanted values are noted.
 *   2. The first class that fits the event decides. Some classes are only counted.
 *   3. The values go to the end of the columns. Texts are numbered (texts.h).
 *   4. An event that is odd is left to the caller, who decodes it: no class fits it, or a wanted
 *      value is not in the form that writers use. Its byte range is returned.
 *   5. If a block is not valid JSON, nothing of it is kept, and the caller reads the whole block.
 *
 * So the result equals that of a decoder: what this file accepts is a part of what the decoder
 * accepts, with the same values. Wherever the decoder might reject a text or round a number, the
 * event is odd.
 *
 * Bounds: no byte at or after the end of the block is read.
 *
 * Errors: the functions return -1 or NULL if memory runs out. The reader can then only be freed.
 *
 * Threads: nothing is global, so each thread may use a reader of its own.
 */
#include "export.h"
#include "program.h"
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define NOT_VALID (-2)
#define END (-2) /* in place of the number of a key */
#define MAX_DEPTH 64         /* brackets within brackets */
#define MAX_DIGITS 18        /* any 18 digits fit an int64 */
#define MAX_TIME_DIGITS 16   /* before the point: below 9e15 and times 1000, they fit an int64 */
#define MAX_REAL_DIGITS 15   /* fewer than 2**53: exact as a real number */
#define MAX_DECIMALS 22      /* 10**22 is exact, so that a quotient is rounded once */
#define NUM_SLOTS 256        /* of the hash table of keys; a power of two */
#define MAX_KEYS 100
#define MAX_CONDITION 32 /* bytes of a text that ph, cat or name is compared with */
#define GAP_WORDS 5      /* of 8 bytes; longer gaps are parsed each time */
#define NUM_GAPS 2       /* to try after each key */
#define NUM_CHOICES 32   /* a power of two */

/* Keys of an event. The keys of its args follow. */
enum { PH, CAT, NAME, PID, TID, TS, DUR, ARGS, NUM_OWN_KEYS };
static const char *const OWN_KEYS[NUM_OWN_KEYS] = {"ph",  "cat", "name", "pid",
                                                   "tid", "ts",  "dur",  "args"};

typedef enum { STRING, INTEGER, DECIMAL, OTHER_NUMBER, BOOLEAN, NULL_VALUE, NESTED } Kind;

/* A value of the current event: its text, for a string without the quotation marks. */
typedef struct {
    const uint8_t *text;
    size_t length;
    Kind kind;
    uint64_t event; /* the number of the event that has the value */
} Value;

typedef struct {
    const uint8_t *name;
    uint32_t length;
    int is_raw; /* any value is allowed; else only numbers, strings, true, false and null */
} Key;

/* How a value becomes an item of a column. */
typedef enum {
    INTEGER_ITEM = 'd', /* an integer, or its digits as a string */
    COUNT_ITEM = 'u',   /* likewise, not negative */
    TIME_ITEM = 't',    /* a number with at most three decimals, times 1000 */
    REAL_ITEM = 'g',
    TEXT_ITEM = 's', /* a string, or the digits of an integer */
    RAW_ITEM = 'r'   /* the JSON text of any value */
} Conversion;

typedef struct {
    uint32_t key, column;
    Conversion conversion;
    int is_present;
    int64_t integer;
    double real;
    const uint8_t *text;
    size_t length;
} Field;

/* The fields of a table, and the key that an event must have to get a row there. */
typedef struct {
    int32_t required; /* -1: none */
    uint32_t num_fields;
    Field *fields;
    size_t first_row; /* of the current block */
} Form;

typedef enum { ANY, EXACT, PREFIX, NOT_EMPTY } Match;

typedef struct {
    const uint8_t *text;
    uint32_t length;
    Match match;
} Condition;

/* A class of events. An event that misses a key matches only `ANY` there. */
typedef struct {
    Condition phs; /* EXACT: one of these letters */
    Condition cat, name;
    int64_t least_dur; /* in thousandths; -1: any */
    int32_t either, other; /* an event must have one of these keys; -1: none is needed */
    int is_odd;         /* the caller has to decode these events */
    uint32_t num_forms;
    const uint32_t *forms;
    int64_t num_events;
    int64_t first_num_events; /* of the current block */
} Class;

/* The text from a value, or from the bracket that opens an object, to the next value or to the end of
 * the object: `, "tid": `. Most events of a kind have the same gaps, so that a gap that was parsed
 * once can be compared in a few steps.
 */
typedef struct {
    uint64_t words[GAP_WORDS]; /* the text, then zeros */
    uint64_t mask;             /* of the last word that has text */
    uint8_t num_words;         /* 0: no gap */
    uint8_t length;
    uint8_t slot;  /* of the key */
    int8_t number; /* of the key, -1 if it is not wanted; END at the end of the object */
} Gap;

/* The gaps that were seen after each key. Which gaps are valid also depends on the object and on
 * whether it is the object's first one.
 */
typedef struct {
    Gap gaps[NUM_GAPS];
    uint8_t oldest;
} Place;

/* The classes that fit a `ph` of one letter and a short `cat`; what else they need is not checked. */
typedef struct {
    uint8_t ph; /* 0: none yet */
    uint8_t cat[MAX_CONDITION];
    size_t length;
    uint32_t num_classes;
    uint16_t *classes;
} Choice;

typedef struct Reader {
    Store store;
    uint32_t num_keys, num_fields, num_classes, num_links;
    Key keys[MAX_KEYS];
    uint8_t slots[NUM_SLOTS]; /* number of a key, and 1; 0 if the slot is free */
    Value values[MAX_KEYS];
    uint64_t event; /* the number of the current event */
    int is_odd;     /* whether the current event is odd */
    Form *forms;    /* as many as tables */
    Field *fields;
    Class *classes;
    uint32_t *links; /* the tables of all classes */
    Place firsts[2]; /* of an event, of its args */
    Place places[2][NUM_SLOTS];
    Choice choices[NUM_CHOICES + 1]; /* the last one is for any other event */
    uint16_t *choice_classes;
} Reader;

/* --------------------------------------------------------------------------------- JSON */

static int is_space(uint8_t byte)
{
    return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

static const uint8_t *skip_space(const uint8_t *cursor, const uint8_t *end)
{
    while (cursor < end && is_space(*cursor))
        cursor++;
    return cursor;
}

/* Return the length of the character in UTF-8 that begins at `cursor`; 0 if it is not valid. */
static size_t utf8_length(const uint8_t *cursor, const uint8_t *end)
{
    uint8_t lead = cursor[0];
    size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || (size_t)(end - cursor) < length)
        return 0;
    for (size_t index = 1; index < length; index++)
        if ((cursor[index] & 0xC0) != 0x80)
            return 0;
    /* Longer than needed, a surrogate, or above the last character. */
    if ((lead == 0xE0 && cursor[1] < 0xA0) || (lead == 0xED && cursor[1] > 0x9F) ||
        (lead == 0xF0 && cursor[1] < 0x90) || (lead == 0xF4 && cursor[1] > 0x8F))
        return 0;
    return length;
}

/* Return the length of the escape that begins at `cursor`; 0 if it is not valid.
 *
 * A surrogate counts as not valid, also in a pair.
 */
static size_t escape_length(const uint8_t *cursor, const uint8_t *end)
{
    if (end - cursor < 2)
        return 0;
    if (cursor[1] != 'u')
        return memchr("\"\\/bfnrt", cursor[1], 8) ? 2 : 0;
    if (end - cursor < 6)
        return 0;
    for (int index = 2; index < 6; index++) {
        uint8_t letter = cursor[index] | 0x20;
        if (!is_digit(cursor[index]) && (letter < 'a' || letter > 'f'))
            return 0;
    }
    return (cursor[2] | 0x20) == 'd' && !is_digit(cursor[3]) ? 0
           : (cursor[2] | 0x20) == 'd' && cursor[3] > '7'    ? 0
                                                             : 6;
}

/* Return the first byte from `cursor` on that is no plain character of a string, or `end`. */
static const uint8_t *skip_plain(const uint8_t *cursor, const uint8_t *end)
{
#ifdef __SSE2__
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\');
    const __m128i space = _mm_set1_epi8(0x20);
    for (; end - cursor >= 16; cursor += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)cursor);
        /* Bytes from 0x80 on are negative here, so below a space. */
        __m128i others = _mm_or_si128(
            _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash)),
            _mm_cmplt_epi8(bytes, space));
        int mask = _mm_movemask_epi8(others);
        if (mask)
            return cursor + __builtin_ctz((unsigned)mask);
    }
#elif __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    const uint64_t ones = UINT64_C(0x0101010101010101), highs = 0x80 * ones;
    for (; end - cursor >= 8; cursor += 8) {
        uint64_t word = load64(cursor);
        uint64_t quote = word ^ '"' * ones, backslash = word ^ '\\' * ones;
        /* The lowest bit that is set is right; a borrow may set higher ones. */
        uint64_t others = ((quote - ones) & ~quote) | ((backslash - ones) & ~backslash) |
                          ((word - 0x20 * ones) & ~word) | word;
        if (others & highs)
            return cursor + (__builtin_ctzll(others & highs) >> 3);
    }
#endif
    while (cursor < end && *cursor >= 0x20 && *cursor < 0x80 && *cursor != '"' && *cursor != '\\')
        cursor++;
    return cursor;
}

/* Return the closing quotation mark of the string whose text begins at `cursor`; NULL if the string
 * is not valid. `*has_escapes` is set if it has any.
 */
static const uint8_t *string_end(const uint8_t *cursor, const uint8_t *end, int *has_escapes)
{
    for (;;) {
        cursor = skip_plain(cursor, end);
        if (cursor == end)
            return NULL;
        if (*cursor == '"')
            return cursor;
        size_t length = 0;
        if (*cursor == '\\') {
            length = escape_length(cursor, end);
            *has_escapes = 1;
        } else if (*cursor >= 0x80) {
            length = utf8_length(cursor, end);
        }
        if (!length)
            return NULL;
        cursor += length;
    }
}

static const uint8_t *skip_digits(const uint8_t *cursor, const uint8_t *end)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    const uint64_t ones = UINT64_C(0x0101010101010101);
    for (; end - cursor >= 8; cursor += 8) {
        uint64_t word = load64(cursor) ^ '0' * ones;
        /* The lowest bit that is set is right; a carry may set higher ones. */
        uint64_t others = ((word + (0x80 - 10) * ones) | word) & 0x80 * ones;
        if (others)
            return cursor + (__builtin_ctzll(others) >> 3);
    }
#endif
    while (cursor < end && is_digit(*cursor))
        cursor++;
    return cursor;
}

/* Return the end of the number at `cursor`, NULL if it is not valid. */
static const uint8_t *number_end(const uint8_t *cursor, const uint8_t *end, Kind *kind)
{
    int is_negative = *cursor == '-';
    const uint8_t *first = cursor + is_negative;
    cursor = skip_digits(first, end);
    ptrdiff_t num_digits = cursor - first;
    if (!num_digits || (num_digits > 1 && *first == '0'))
        return NULL;
    /* "-0" may become a real number. */
    *kind = num_digits > MAX_DIGITS || (is_negative && num_digits == 1 && *first == '0')
                ? OTHER_NUMBER
                : INTEGER;
    if (cursor < end && *cursor == '.') {
        const uint8_t *decimals = ++cursor;
        cursor = skip_digits(cursor, end);
        if (cursor == decimals)
            return NULL;
        *kind = num_digits > MAX_DIGITS || cursor - decimals > MAX_DECIMALS ? OTHER_NUMBER : DECIMAL;
    }
    if (cursor < end && (*cursor == 'e' || *cursor == 'E')) {
        cursor++;
        if (cursor < end && (*cursor == '+' || *cursor == '-'))
            cursor++;
        const uint8_t *power = cursor;
        cursor = skip_digits(cursor, end);
        if (cursor == power)
            return NULL;
        *kind = OTHER_NUMBER;
    }
    return cursor;
}

static const uint8_t *word_end(const uint8_t *cursor, const uint8_t *end, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(end - cursor) < length || memcmp(cursor, word, length))
        return NULL;
    return cursor + length;
}

/* Return the end of the value at `cursor` that is no list and no object; NULL if it is not valid. */
static const uint8_t *scalar_end(Reader *reader, const uint8_t *cursor, const uint8_t *end,
                                 Kind *kind, int *has_escapes)
{
    switch (*cursor) {
    case '"':
        *kind = STRING;
        cursor = string_end(cursor + 1, end, has_escapes);
        return cursor ? cursor + 1 : NULL;
    case 't':
        *kind = BOOLEAN;
        return word_end(cursor, end, "true");
    case 'f':
        *kind = BOOLEAN;
        return word_end(cursor, end, "false");
    case 'n':
        *kind = NULL_VALUE;
        return word_end(cursor, end, "null");
    default:
        cursor = number_end(cursor, end, kind);
        if (*kind == OTHER_NUMBER)
            reader->is_odd = 1; /* the decoder may reject it */
        return cursor;
    }
}

/* Return the place after the colon of the member that begins at `cursor`; NULL if it is not valid. */
static const uint8_t *skip_key(const uint8_t *cursor, const uint8_t *end)
{
    int has_escapes;
    if (cursor == end || *cursor != '"' || !(cursor = string_end(cursor + 1, end, &has_escapes)))
        return NULL;
    cursor = skip_space(cursor + 1, end);
    return cursor < end && *cursor == ':' ? cursor + 1 : NULL;
}

/* Return the end of the list or object at `cursor`; NULL if it is not valid or too deep. */
static const uint8_t *nested_end(Reader *reader, const uint8_t *cursor, const uint8_t *end)
{
    uint64_t objects = 0; /* a bit for each open bracket, the innermost is the lowest: 1 for "{" */
    int depth = 0;
    for (;;) {
        /* A value begins here, or the bracket that was opened last is closed. */
        cursor = skip_space(cursor, end);
        if (cursor == end)
            return NULL;
        if (*cursor == '[' || *cursor == '{') {
            if (depth++ == MAX_DEPTH)
                return NULL;
            int is_object = *cursor == '{';
            objects = objects << 1 | (uint64_t)is_object;
            cursor = skip_space(cursor + 1, end);
            if (cursor == end)
                return NULL;
            if (*cursor != (is_object ? '}' : ']')) {
                if (is_object && !(cursor = skip_key(cursor, end)))
                    return NULL;
                continue;
            }
        } else {
            Kind kind = INTEGER;
            int has_escapes;
            cursor = scalar_end(reader, cursor, end, &kind, &has_escapes);
            if (!cursor)
                return NULL;
            cursor = skip_space(cursor, end);
        }
        /* After a value, or at a closing bracket. */
        while (cursor < end && *cursor == (objects & 1 ? '}' : ']')) {
            objects >>= 1;
            cursor++;
            if (--depth == 0)
                return cursor;
            cursor = skip_space(cursor, end);
        }
        if (cursor == end || *cursor != ',')
            return NULL;
        cursor++;
        if (objects & 1 && !(cursor = skip_key(skip_space(cursor, end), end)))
            return NULL;
    }
}

/* -------------------------------------------------------------------------------- events */

static size_t slot_of(const uint8_t *name, size_t length, const uint8_t *end, int is_arg)
{
    uint64_t word = 0;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (end - name >= 8) {
        word = load64(name);
        if (length < 8)
            word &= ~(~UINT64_C(0) << 8 * length);
    } else
#endif
        memcpy(&word, name, length < 8 ? length : (size_t)(end - name < 8 ? end - name : 8));
    word = (word ^ (uint64_t)length << 56 ^ (uint64_t)is_arg << 48) * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(word >> 32) & (NUM_SLOTS - 1);
}

/* Return the number of a key, -1 if it is not wanted; `slot` is from `slot_of`. */
static int key_of(const Reader *reader, const uint8_t *name, size_t length, size_t slot, int is_arg)
{
    for (; reader->slots[slot]; slot = (slot + 1) & (NUM_SLOTS - 1)) {
        int number = reader->slots[slot] - 1;
        const Key *key = &reader->keys[number];
        if (key->length == length && (number >= NUM_OWN_KEYS) == is_arg &&
            !memcmp(key->name, name, length))
            return number;
    }
    return -1;
}

/* Whether there is an escape in the part of a string that conditions compare. */
static int is_escaped(const uint8_t *first, const uint8_t *end)
{
    size_t length = (size_t)(end - first);
    return memchr(first, '\\', length < MAX_CONDITION + 1 ? length : MAX_CONDITION + 1) != NULL;
}

/* Remember a gap whose key has this number and slot. */
static void learn_gap(Place *place, const uint8_t *first, const uint8_t *end, int number, size_t slot)
{
    Gap *gap = &place->gaps[place->oldest];
    size_t length = (size_t)(end - first);
    if (length > sizeof gap->words)
        return;
    place->oldest = (uint8_t)((place->oldest + 1) % NUM_GAPS);
    memset(gap, 0, sizeof *gap);
    memcpy(gap->words, first, length);
    gap->num_words = (uint8_t)((length + 7) / 8);
    memset(&gap->mask, 0xFF, length - 8 * ((size_t)gap->num_words - 1));
    gap->length = (uint8_t)length;
    gap->slot = (uint8_t)slot;
    gap->number = (int8_t)number;
}

/* Return the gap at `cursor` if it was seen in this place, else NULL. */
static const Gap *known_gap(const Place *place, const uint8_t *cursor, const uint8_t *end)
{
    /* At its end stands a bracket or the colon, and a value follows the colon: else it is parsed. */
    if ((size_t)(end - cursor) <= 8 * GAP_WORDS)
        return NULL;
    for (int way = 0; way < NUM_GAPS; way++) {
        const Gap *gap = &place->gaps[way];
        uint64_t differences = gap->num_words ? 0 : 1;
        int last = gap->num_words - 1;
        for (int index = 0; index < last; index++)
            differences |= load64(cursor + 8 * index) ^ gap->words[index];
        if (!differences && !((load64(cursor + 8 * last) & gap->mask) ^ gap->words[last]))
            return gap;
    }
    return NULL;
}

/* Parse the gap at `cursor`; return its end, NULL if it is not valid. */
static const uint8_t *gap_end(Reader *reader, Place *place, const uint8_t *cursor,
                              const uint8_t *end, int is_arg, int *number, size_t *slot)
{
    int has_escapes = 0, is_first = place == &reader->firsts[is_arg];
    const uint8_t *first = cursor;
    cursor = skip_space(cursor, end);
    if (cursor == end)
        return NULL;
    *number = END;
    *slot = 0;
    if (*cursor == '}') {
        learn_gap(place, first, cursor + 1, END, 0);
        return cursor + 1;
    }
    if (!is_first) {
        if (*cursor != ',')
            return NULL;
        cursor = skip_space(cursor + 1, end);
    }
    if (cursor == end || *cursor != '"')
        return NULL;
    const uint8_t *name = cursor + 1, *quote = string_end(name, end, &has_escapes);
    if (!quote)
        return NULL;
    *slot = slot_of(name, (size_t)(quote - name), end, is_arg);
    *number = key_of(reader, name, (size_t)(quote - name), *slot, is_arg);
    cursor = skip_space(quote + 1, end);
    if (cursor == end || *cursor != ':')
        return NULL;
    cursor = skip_space(cursor + 1, end);
    if (cursor == end)
        return NULL;
    if (has_escapes)
        reader->is_odd = 1; /* it may be a wanted key */
    else
        learn_gap(place, first, cursor, *number, *slot);
    return cursor;
}

/* Note the values of the object whose members begin at `cursor`; return its end, NULL if it is not
 * valid.
 */
static const uint8_t *read_members(Reader *reader, const uint8_t *cursor, const uint8_t *end,
                                   int is_arg)
{
    Place *place = &reader->firsts[is_arg];
    for (;;) {
        int number, has_escapes = 0;
        size_t slot;
        const Gap *gap = known_gap(place, cursor, end);
        if (gap) {
            number = gap->number;
            slot = gap->slot;
            cursor += gap->length;
        } else {
            cursor = gap_end(reader, place, cursor, end, is_arg, &number, &slot);
            if (!cursor)
                return NULL;
        }
        if (number == END)
            return cursor;
        place = &reader->places[is_arg][slot];
        const uint8_t *first = cursor;
        Kind kind = NESTED;
        if (number == ARGS && *cursor == '{' && reader->values[ARGS].event != reader->event)
            cursor = read_members(reader, cursor + 1, end, 1);
        else if (*cursor == '{' || *cursor == '[')
            cursor = nested_end(reader, cursor, end);
        else
            cursor = scalar_end(reader, cursor, end, &kind, &has_escapes);
        if (!cursor)
            return NULL;
        if (number >= 0) {
            Value *value = &reader->values[number];
            int is_bad = number == ARGS ? kind != NULL_VALUE && *first != '{'
                         : number <= NAME
                             ? kind != STRING || (has_escapes && is_escaped(first, cursor))
                         : kind == NESTED ? !reader->keys[number].is_raw
                                          : 0;
            if (is_bad || value->event == reader->event)
                reader->is_odd = 1;
            value->event = reader->event;
            value->kind = kind;
            value->text = first + (kind == STRING);
            value->length = (size_t)(cursor - first) - (kind == STRING ? 2 : 0);
        }
    }
}

/* Return a value of the current event, NULL if it is missing or null. */
static const Value *value_of(const Reader *reader, uint32_t key)
{
    const Value *value = &reader->values[key];
    return value->event == reader->event && value->kind != NULL_VALUE ? value : NULL;
}

static int64_t digits(const uint8_t *text, size_t length)
{
    int64_t sum = 0;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (; length >= 8; text += 8, length -= 8) {
        /* Pairs of digits, then of pairs, then of fours. */
        uint64_t word = load64(text) - UINT64_C(0x3030303030303030);
        word = word * 10 + (word >> 8);
        word = ((word & UINT64_C(0x000000FF000000FF)) * UINT64_C(0x000F424000000064) +
                ((word >> 16) & UINT64_C(0x000000FF000000FF)) * UINT64_C(0x0000271000000001)) >>
               32;
        sum = sum * 100000000 + (int64_t)(uint32_t)word;
    }
#endif
    for (size_t index = 0; index < length; index++)
        sum = sum * 10 + (text[index] - '0');
    return sum;
}

/* Whether a text is an integer as JSON writes it, with at most MAX_DIGITS digits. */
static int is_integer(const uint8_t *text, size_t length)
{
    Kind kind;
    if (!length || (!is_digit(text[0]) && text[0] != '-'))
        return 0;
    return number_end(text, text + length, &kind) == text + length && kind == INTEGER;
}

static int64_t integer_of(const uint8_t *text, size_t length)
{
    int is_negative = text[0] == '-';
    int64_t magnitude = digits(text + is_negative, length - (size_t)is_negative);
    return is_negative ? -magnitude : magnitude;
}

/* Parse a number with or without decimals as an integer and a power of ten.
 *
 * Return the number of decimals, -1 if there are more digits than the limits.
 */
static int decimals_of(const Value *value, size_t most_digits, size_t most_decimals, int64_t *sum)
{
    const uint8_t *text = value->text, *end = text + value->length;
    int is_negative = *text == '-';
    text += is_negative;
    const uint8_t *point = skip_digits(text, end);
    size_t num_high = (size_t)(point - text);
    size_t num_low = point < end ? (size_t)(end - point) - 1 : 0;
    if (num_high > most_digits || num_low > most_decimals)
        return -1;
    *sum = digits(text, num_high);
    for (size_t index = 0; index < num_low; index++)
        *sum = *sum * 10 + (point[1 + index] - '0');
    if (is_negative)
        *sum = -*sum;
    return (int)num_low;
}

static int time_of(const Value *value, int64_t *time)
{
    if (value->kind != INTEGER && value->kind != DECIMAL)
        return -1;
    const uint8_t *first = value->text + (*value->text == '-');
    if (*first == '9' && (value->kind == INTEGER ? value->length : value->length - 2) >
                             MAX_TIME_DIGITS - 1)
        return -1;
    int num_decimals = decimals_of(value, MAX_TIME_DIGITS, 3, time);
    if (num_decimals < 0)
        return -1;
    for (; num_decimals < 3; num_decimals++)
        *time *= 10;
    return 0;
}

static int real_of(const Value *value, double *real)
{
    int64_t sum;
    if (value->kind != INTEGER && value->kind != DECIMAL)
        return -1;
    /* All digits together are at most 15, so the division is the only rounding. */
    if (value->length > MAX_REAL_DIGITS)
        return -1;
    int num_decimals = decimals_of(value, MAX_REAL_DIGITS, MAX_DECIMALS, &sum);
    if (num_decimals < 0 || (!sum && *value->text == '-'))
        return -1;
    *real = (double)sum / TENS[num_decimals];
    return 0;
}

/* Convert the value of a field; return -1 if it is not in the usual form. */
static int convert(const Reader *reader, Field *field)
{
    const Value *value = &reader->values[field->key];
    field->is_present = value->event == reader->event;
    if (!field->is_present) {
        field->text = NULL;
        field->length = 0;
        field->is_present = field->key == CAT || field->key == NAME; /* empty, if missing */
        return 0;
    }
    if (field->conversion == RAW_ITEM) {
        int quotes = value->kind == STRING;
        field->text = value->text - quotes;
        field->length = value->length + 2 * (size_t)quotes;
        return 0;
    }
    if (value->kind == NULL_VALUE) {
        field->is_present = 0;
        return field->conversion == TIME_ITEM ? -1 : 0;
    }
    field->text = value->text;
    field->length = value->length;
    switch (field->conversion) {
    case TIME_ITEM:
        return time_of(value, &field->integer);
    case REAL_ITEM:
        return real_of(value, &field->real);
    case TEXT_ITEM:
        return value->kind == STRING || value->kind == INTEGER ? 0 : -1;
    default:
        if (value->kind != INTEGER &&
            (value->kind != STRING || !is_integer(value->text, value->length)))
            return -1;
        field->integer = integer_of(value->text, value->length);
        return field->conversion == COUNT_ITEM && field->integer < 0 ? -1 : 0;
    }
}

static int put(Reader *reader, const Field *field, size_t row)
{
    Column *column = &reader->store.columns[field->column];
    switch (field->conversion) {
    case TEXT_ITEM:
    case RAW_ITEM: {
        int32_t number = number_of(&reader->store.texts, field->text, field->length);
        return number < 0 || put_text(column, row, number);
    }
    case REAL_ITEM:
        return put_real(column, row, field->real);
    default:
        return put_integer(column, row, field->integer);
    }
}

static int fits(const Reader *reader, const Condition *condition, uint32_t key)
{
    if (condition->match == ANY)
        return 1;
    const Value *value = value_of(reader, key);
    if (!value || value->length < condition->length ||
        (condition->match == EXACT && value->length != condition->length))
        return 0;
    if (condition->match == NOT_EMPTY)
        return value->length > 0;
    return !memcmp(value->text, condition->text, condition->length);
}

/* Whether ph and cat of the current event are those of a class. */
static int may_belong(const Reader *reader, const Class *class)
{
    if (class->phs.match != ANY) {
        const Value *ph = value_of(reader, PH);
        if (!ph || ph->length != 1 || !memchr(class->phs.text, *ph->text, class->phs.length))
            return 0;
    }
    return fits(reader, &class->cat, CAT);
}

/* Return the classes that the current event may belong to, ascending. */
static const Choice *choice_of(Reader *reader)
{
    const Value *ph = value_of(reader, PH), *cat = value_of(reader, CAT);
    int is_usual = ph && ph->length == 1 && cat && cat->length && cat->length <= MAX_CONDITION;
    Choice *choice = &reader->choices[NUM_CHOICES];
    if (is_usual) {
        size_t sum = *ph->text + cat->length + cat->text[0] + 3 * (size_t)cat->text[cat->length - 1];
        choice = &reader->choices[sum & (NUM_CHOICES - 1)];
        if (choice->ph == *ph->text && choice->length == cat->length &&
            !memcmp(choice->cat, cat->text, cat->length))
            return choice;
        choice->ph = *ph->text;
        choice->length = cat->length;
        memcpy(choice->cat, cat->text, cat->length);
    }
    choice->num_classes = 0;
    for (uint32_t number = 0; number < reader->num_classes; number++)
        if (may_belong(reader, &reader->classes[number]))
            choice->classes[choice->num_classes++] = (uint16_t)number;
    return choice;
}

/* Whether the current event is of a class of its `Choice`; it becomes odd if its dur cannot be
 * compared.
 */
static int belongs(Reader *reader, const Class *class)
{
    if (!fits(reader, &class->name, NAME))
        return 0;
    if (class->either >= 0 && !value_of(reader, (uint32_t)class->either) &&
        (class->other < 0 || !value_of(reader, (uint32_t)class->other)))
        return 0;
    if (class->least_dur >= 0) {
        int64_t dur;
        const Value *value = value_of(reader, DUR);
        if (!value)
            return 0;
        if (time_of(value, &dur)) {
            reader->is_odd = 1;
            return 0;
        }
        return dur >= class->least_dur;
    }
    return 1;
}

/* Add the rows of the current event, which begins at offset `position`.
 *
 * Return 1 if the event is odd, and -1 without memory.
 */
static int add_event(Reader *reader, int64_t position)
{
    const Choice *choice = choice_of(reader);
    uint32_t rank = 0;
    while (rank < choice->num_classes && !belongs(reader, &reader->classes[choice->classes[rank]]))
        rank++;
    if (reader->is_odd || rank == choice->num_classes)
        return 1;
    Class *class = &reader->classes[choice->classes[rank]];
    if (class->is_odd)
        return 1;
    for (uint32_t index = 0; index < class->num_forms; index++) {
        Form *form = &reader->forms[class->forms[index]];
        if (form->required >= 0 && !value_of(reader, (uint32_t)form->required))
            continue;
        for (uint32_t number = 0; number < form->num_fields; number++)
            if (convert(reader, &form->fields[number]))
                return 1;
    }
    for (uint32_t index = 0; index < class->num_forms; index++) {
        const Form *form = &reader->forms[class->forms[index]];
        Table *table = &reader->store.tables[class->forms[index]];
        if (form->required >= 0 && !value_of(reader, (uint32_t)form->required))
            continue;
        for (uint32_t number = 0; number < form->num_fields; number++)
            if (form->fields[number].is_present &&
                put(reader, &form->fields[number], table->num_rows))
                return -1;
        if (put_integer(&reader->store.columns[table->position], table->num_rows, position))
            return -1;
        table->num_rows++;
    }
    class->num_events++;
    return 0;
}

/* Read the events of a text that begins at offset `first`, after a comma if not `is_first`.
 *
 * `*done` becomes the end of the last complete event. Return -1 without memory, and NOT_VALID if what
 * is behind that event is no event.
 */
static int read_events(Reader *reader, const uint8_t *text, const uint8_t *end, int64_t first,
                       int is_first, const uint8_t **done)
{
    const uint8_t *cursor = text;
    int was_odd = 0;
    for (*done = text;; *done = cursor) {
        int num_commas = 0;
        for (; cursor < end && (is_space(*cursor) || *cursor == ','); cursor++)
            num_commas += *cursor == ',';
        if (cursor == end)
            return 0;
        if (*cursor != '{' || (!is_first && num_commas != 1))
            return NOT_VALID;
        is_first = 0;
        const uint8_t *start = cursor;
        reader->event++;
        reader->is_odd = 0;
        cursor = read_members(reader, cursor + 1, end, 0);
        if (!cursor)
            return NOT_VALID;
        int status = add_event(reader, first + (start - text));
        if (status < 0)
            return -1;
        if (status && was_odd)
            reader->store.ranges[2 * reader->store.num_ranges - 1] = first + (cursor - text);
        else if (status && add_range(&reader->store, first + (start - text), first + (cursor - text)))
            return -1;
        was_odd = status;
    }
}

/* ------------------------------------------------------------------------- the interface */

static void next_condition(Program *program, Condition *condition)
{
    condition->match = (Match)next_below(program, NOT_EMPTY + 1);
    condition->text = next_literal(program, &condition->length);
    if (condition->length > MAX_CONDITION)
        program->is_bad = 1;
}

/* Return -1 for 0, or a key. */
static int32_t next_optional_key(Program *program, const Reader *reader)
{
    return (int32_t)next_below(program, reader->num_keys + 1) - 1;
}

static void next_field(Program *program, const Reader *reader, uint32_t table, Field *field)
{
    field->key = next_below(program, reader->num_keys);
    field->column = next_below(program, reader->store.num_columns);
    field->conversion = (Conversion)next_number(program);
    if (program->is_bad)
        return;
    const Column *column = &reader->store.columns[field->column];
    int is_fitting = 0;
    switch (field->conversion) {
    case TEXT_ITEM:
    case RAW_ITEM:
        is_fitting = column->storage == TEXT;
        break;
    case REAL_ITEM:
        is_fitting = column->storage == FLOAT64;
        break;
    case INTEGER_ITEM:
    case COUNT_ITEM:
    case TIME_ITEM:
        is_fitting = column->storage == INT32 || column->storage == INT64;
    }
    int is_empty_if_missing = field->key == CAT || field->key == NAME;
    if (!is_fitting || column->table != table || field->key == ARGS ||
        (is_empty_if_missing && field->conversion != TEXT_ITEM))
        program->is_bad = 1;
}

static void next_class(Program *program, Reader *reader, Class *class, uint32_t *num_links)
{
    next_condition(program, &class->phs);
    next_condition(program, &class->cat);
    next_condition(program, &class->name);
    class->least_dur = (int64_t)next_number(program) - 1;
    class->either = next_optional_key(program, reader);
    class->other = next_optional_key(program, reader);
    class->is_odd = (int)next_below(program, 2);
    class->num_forms = next_below(program, reader->num_links - *num_links + 1);
    class->forms = reader->links + *num_links;
    for (uint32_t index = 0; index < class->num_forms; index++)
        reader->links[*num_links + index] = next_below(program, reader->store.num_tables);
    *num_links += class->num_forms;
}

static void add_key(Reader *reader, uint32_t number)
{
    const Key *key = &reader->keys[number];
    size_t slot = slot_of(key->name, key->length, key->name + key->length, number >= NUM_OWN_KEYS);
    while (reader->slots[slot])
        slot = (slot + 1) & (NUM_SLOTS - 1);
    reader->slots[slot] = (uint8_t)(number + 1);
}

/* Read the program of a reader; return -1 if it is contradictory or if there is no memory. */
static int read_program(Reader *reader, size_t length)
{
    Program program = {reader->store.program, reader->store.program + length, 0};
    reader->store.num_tables = next_below(&program, MOST_ITEMS);
    reader->store.num_columns = next_below(&program, MOST_ITEMS);
    uint32_t num_args = next_below(&program, MAX_KEYS - NUM_OWN_KEYS + 1);
    reader->num_fields = next_below(&program, MOST_ITEMS);
    reader->num_classes = next_below(&program, MOST_ITEMS);
    reader->num_links = next_below(&program, MOST_ITEMS);
    reader->num_keys = NUM_OWN_KEYS + num_args;
    if (program.is_bad)
        return -1;
    /* One item more than needed: no size is 0. */
    reader->forms = calloc((size_t)reader->store.num_tables + 1, sizeof *reader->forms);
    reader->fields = calloc((size_t)reader->num_fields + 1, sizeof *reader->fields);
    reader->classes = calloc((size_t)reader->num_classes + 1, sizeof *reader->classes);
    reader->links = calloc((size_t)reader->num_links + 1, sizeof *reader->links);
    size_t num_choices = (size_t)(NUM_CHOICES + 1) * ((size_t)reader->num_classes + 1);
    reader->choice_classes = calloc(num_choices, sizeof *reader->choice_classes);
    if (!reader->forms || !reader->fields || !reader->classes || !reader->links ||
        !reader->choice_classes || next_store(&program, &reader->store))
        return -1;
    for (size_t index = 0; index <= NUM_CHOICES; index++)
        reader->choices[index].classes = reader->choice_classes + index * reader->num_classes;
    for (uint32_t number = 0; number < reader->num_keys; number++) {
        Key *key = &reader->keys[number];
        if (number < NUM_OWN_KEYS) {
            key->name = (const uint8_t *)OWN_KEYS[number];
            key->length = (uint32_t)strlen(OWN_KEYS[number]);
            key->is_raw = number == TS || number == DUR;
        } else {
            key->is_raw = (int)next_below(&program, 2);
            key->name = next_literal(&program, &key->length);
        }
        add_key(reader, number);
    }
    uint32_t num_used = 0;
    for (uint32_t index = 0; index < reader->store.num_tables && !program.is_bad; index++) {
        Form *form = &reader->forms[index];
        form->required = next_optional_key(&program, reader);
        form->num_fields = next_below(&program, reader->num_fields - num_used + 1);
        form->fields = reader->fields + num_used;
        for (uint32_t number = 0; number < form->num_fields && !program.is_bad; number++)
            next_field(&program, reader, index, &form->fields[number]);
        num_used += form->num_fields;
    }
    uint32_t num_links = 0;
    for (uint32_t index = 0; index < reader->num_classes && !program.is_bad; index++)
        next_class(&program, reader, &reader->classes[index], &num_links);
    return program.is_bad || program.next != program.end ? -1 : 0;
}

EXPORT void ppprof_reader_free(Reader *reader)
{
    if (!reader)
        return;
    free_store(&reader->store);
    free(reader->forms);
    free(reader->fields);
    free(reader->classes);
    free(reader->links);
    free(reader->choice_classes);
    free(reader);
}

/* Return a new reader; NULL if the program is contradictory or if there is no memory. */
EXPORT Reader *ppprof_reader_new(const uint8_t *program, size_t length, const uint64_t *secret)
{
    Reader *reader = new_reader(sizeof *reader, program, length, secret);
    if (reader && read_program(reader, length)) {
        ppprof_reader_free(reader);
        return NULL;
    }
    return reader;
}

/* Read a block, which begins and ends between two events; `first` is its offset in the file.
 *
 * Return the number of byte ranges that the caller has to decode, which are added at the end of the
 * reader's ranges; -1 without memory; -2 if the block is not valid JSON, and then nothing is added.
 */
EXPORT int64_t ppprof_reader_add(Reader *reader, const uint8_t *text, size_t length, int64_t first)
{
    size_t num_before = reader->store.num_ranges;
    for (uint32_t index = 0; index < reader->store.num_tables; index++)
        reader->forms[index].first_row = reader->store.tables[index].num_rows;
    for (uint32_t index = 0; index < reader->num_classes; index++)
        reader->classes[index].first_num_events = reader->classes[index].num_events;
    const uint8_t *done;
    int status = read_events(reader, text, text + length, first, 1, &done);
    if (status == NOT_VALID) {
        reader->store.num_ranges = num_before;
        for (uint32_t index = 0; index < reader->store.num_tables; index++)
            reader->store.tables[index].num_rows = reader->forms[index].first_row;
        for (uint32_t index = 0; index < reader->store.num_columns; index++) {
            Column *column = &reader->store.columns[index];
            size_t num_rows = reader->store.tables[column->table].num_rows;
            if (column->num_rows > num_rows)
                column->num_rows = num_rows;
        }
        for (uint32_t index = 0; index < reader->num_classes; index++)
            reader->classes[index].num_events = reader->classes[index].first_num_events;
    }
    return status ? status : (int64_t)(reader->store.num_ranges - num_before);
}

/* Read the complete events of a block, for range.c: what is behind them may be the beginning of an
 * event, or not valid. Return the number of their bytes; -1 without memory.
 */
int64_t ppprof_reader_take(Reader *reader, const uint8_t *text, size_t length, int64_t first,
                           int is_first, int is_last)
{
    const uint8_t *done;
    int status = read_events(reader, text, text + length, first, is_first, &done);
    return status == -1 ? -1 : status == 0 && is_last ? (int64_t)length : done - text;
}

/* Return the number of events of a class that were read. */
EXPORT int64_t ppprof_reader_count(const Reader *reader, uint32_t number)
{
    return reader->classes[number].num_events;
}
