/* Numbers for texts: an exact hash table. Included by store.h.
 *
 * A trace of a million events has a few hundred distinct names.
 */
#ifndef PPPROF_TEXTS_H
#define PPPROF_TEXTS_H

#include "memory.h"
#include <string.h>

typedef struct {
    uint64_t hash;
    int32_t number; /* -1: a free slot */
} Slot;

typedef struct {
    uint64_t secret[2]; /* chosen at random, so that no file can be made to collide on purpose */
    Slot *slots;
    size_t num_slots; /* a power of two; at most half of the slots are used */
    uint8_t *bytes;   /* the texts, one after another */
    size_t bytes_capacity;
    int64_t *ends; /* ends[n]: byte after text n in `bytes` */
    size_t ends_capacity;
    int32_t num_texts;
} Texts;

static uint64_t load64(const uint8_t *from)
{
    uint64_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

static uint64_t load32(const uint8_t *from)
{
    uint32_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

/* Return whether two texts of one length are equal. Mostly they are, and have up to 30 bytes: a call of
 * memcmp would take longer.
 */
static int are_equal(const uint8_t *one, const uint8_t *other, size_t length)
{
    uint64_t left, right;
    if (length < 8) {
        for (size_t place = 0; place < length; place++)
            if (one[place] != other[place])
                return 0;
        return 1;
    }
    for (size_t place = 0; place + 8 <= length; place += 8) {
        memcpy(&left, one + place, 8);
        memcpy(&right, other + place, 8);
        if (left != right)
            return 0;
    }
    memcpy(&left, one + length - 8, 8);
    memcpy(&right, other + length - 8, 8);
    return left == right;
}

/* Return the two halves of the 128-bit product, combined by exclusive or. */
static uint64_t folded_product(uint64_t a, uint64_t b)
{
#ifdef __SIZEOF_INT128__
    __extension__ typedef unsigned __int128 Wide;
    Wide product = (Wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
#else
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t middle = (a0 * b0 >> 32) + (uint32_t)(a1 * b0);
    uint64_t carry = (uint32_t)middle + a0 * b1;
    uint64_t high = a1 * b1 + (a1 * b0 >> 32) + (middle >> 32) + (carry >> 32);
    return (a * b) ^ high;
#endif
}

static uint64_t hash_of(const Texts *texts, const uint8_t *from, size_t length)
{
    uint64_t hash = texts->secret[0], secret = texts->secret[1], low = 0, high = 0;
    size_t rest = length;
    for (; rest > 16; from += 16, rest -= 16)
        hash = folded_product(load64(from) ^ secret, load64(from + 8) ^ hash);
    if (rest >= 8) {
        low = load64(from);
        high = load64(from + rest - 8);
    } else if (rest >= 4) {
        low = load32(from);
        high = load32(from + rest - 4);
    } else if (rest > 0) {
        low = (uint64_t)from[0] << 16 | (uint64_t)from[rest >> 1] << 8 | from[rest - 1];
    }
    hash = folded_product(low ^ secret, high ^ hash);
    return folded_product(hash ^ texts->secret[0], (uint64_t)length ^ secret);
}

static int rehash(Texts *texts)
{
    size_t num_slots = texts->num_slots ? texts->num_slots * 2 : 1024;
    if (num_slots > PTRDIFF_MAX / sizeof(Slot))
        return -1;
    Slot *slots = malloc(num_slots * sizeof *slots);
    if (!slots)
        return -1;
    for (size_t index = 0; index < num_slots; index++)
        slots[index].number = -1;
    for (size_t index = 0; index < texts->num_slots; index++) {
        if (texts->slots[index].number < 0)
            continue;
        size_t place = (size_t)texts->slots[index].hash & (num_slots - 1);
        while (slots[place].number >= 0)
            place = (place + 1) & (num_slots - 1);
        slots[place] = texts->slots[index];
    }
    free(texts->slots);
    texts->slots = slots;
    texts->num_slots = num_slots;
    return 0;
}

/* Return the number of a text, which is added if it is new; -1 without memory. */
static int32_t number_of(Texts *texts, const uint8_t *from, size_t length)
{
    if (texts->num_slots <= 2 * (size_t)texts->num_texts && rehash(texts))
        return -1;
    uint64_t hash = hash_of(texts, from, length);
    size_t place = (size_t)hash & (texts->num_slots - 1);
    for (; texts->slots[place].number >= 0; place = (place + 1) & (texts->num_slots - 1)) {
        if (texts->slots[place].hash != hash)
            continue;
        int32_t number = texts->slots[place].number;
        size_t first = number ? (size_t)texts->ends[number - 1] : 0;
        if ((size_t)texts->ends[number] - first == length &&
            are_equal(texts->bytes + first, from, length))
            return number;
    }
    int32_t number = texts->num_texts;
    size_t first = number ? (size_t)texts->ends[number - 1] : 0;
    if (number == INT32_MAX || length > PTRDIFF_MAX - first)
        return -1;
    if (texts->bytes_capacity - first < length) {
        uint8_t *bytes = grown(texts->bytes, &texts->bytes_capacity, first + length, 1);
        if (!bytes)
            return -1;
        texts->bytes = bytes;
    }
    if (texts->ends_capacity == (size_t)number) {
        int64_t *ends = grown(texts->ends, &texts->ends_capacity, (size_t)number + 1, sizeof *ends);
        if (!ends)
            return -1;
        texts->ends = ends;
    }
    if (length)
        memcpy(texts->bytes + first, from, length);
    texts->ends[number] = (int64_t)(first + length);
    texts->slots[place].hash = hash;
    texts->slots[place].number = number;
    texts->num_texts++;
    return number;
}

#endif
