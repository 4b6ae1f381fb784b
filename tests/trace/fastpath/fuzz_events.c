/* Run the compiled core's reader of events on files, for sanitizers: fuzz_events PROGRAM FILE...
 *
 * Each file is read whole, in memory of exactly its length. A short file is also read up to each of
 * its bytes. Then the file is read again and again with one allocation more before memory "runs out",
 * until it no longer does.
 * Two threads also read each file at the same time, each with a reader of its own. At last a file is
 * read from the disk, in blocks of several lengths.
 * Prints the rows, texts and ranges of all files. A sanitizer ends the program at the first read out
 * of bounds, at undefined behaviour, and for memory that was not freed.
 */
#define _XOPEN_SOURCE 700
#define FUZZED "events.c"
#define ALSO_FUZZED "range.c"
#include "fuzzing.h"
#include <fcntl.h>
#include <pthread.h>

/* range.c is also for the scanner in scan.c. */
int64_t ppprof_scanner_add(struct Scanner *scanner, const uint8_t *text, size_t length, int64_t first)
{
    (void)scanner, (void)text, (void)length, (void)first;
    abort();
}

static const uint64_t secret[2] = {1, 2};

/* Read a text twice with one reader; return -1 if memory ran out. */
static int read_twice(Content program, const uint8_t *text, size_t length, int is_printed)
{
    Reader *reader = ppprof_reader_new(program.bytes, program.length, secret);
    if (!reader)
        return -1;
    int64_t status = 0;
    for (int turn = 0; turn < 2 && status != -1; turn++) {
        uint8_t *copy = malloc(length ? length : 1);
        if (!copy)
            exit(2);
        memcpy(copy, text, length);
        status = ppprof_reader_add(reader, copy, length, turn * (int64_t)length);
        free(copy);
    }
    int64_t num_rows = 0, num_events = 0;
    for (uint32_t number = 0; status != -1 && number < reader->store.num_columns; number++) {
        const Column *column = &reader->store.columns[number];
        if (column->num_rows > reader->store.tables[column->table].num_rows)
            abort();
        for (size_t row = 0; column->storage == TEXT && row < column->num_rows; row++)
            if (((int32_t *)column->values)[row] >= reader->store.texts.num_texts)
                abort();
        num_rows += (int64_t)column->num_rows;
    }
    for (size_t index = 0; index < reader->store.num_ranges; index++)
        if (reader->store.ranges[2 * index] >= reader->store.ranges[2 * index + 1])
            abort();
    for (uint32_t number = 0; number < reader->num_classes; number++)
        num_events += ppprof_reader_count(reader, number);
    if (is_printed)
        printf("%lld status, %lld events, %lld values, %lld texts, %lld ranges\n",
               (long long)status, (long long)num_events, (long long)num_rows,
               (long long)reader->store.texts.num_texts, (long long)reader->store.num_ranges);
    ppprof_reader_free(reader);
    return status == -1 ? -1 : 0;
}

static int64_t num_events_of(const Reader *reader)
{
    int64_t num_events = 0;
    for (uint32_t number = 0; number < reader->num_classes; number++)
        num_events += ppprof_reader_count(reader, number);
    for (size_t index = 0; index < reader->store.num_ranges; index++)
        if (reader->store.ranges[2 * index] >= reader->store.ranges[2 * index + 1])
            abort();
    return num_events;
}

/* Read a file from the disk in blocks of `usual` bytes. Return the number of events; -1 if memory ran
 * out, and -2 if the text is not valid. */
static int64_t read_file(Content program, const char *path, size_t usual)
{
    int descriptor = open(path, O_RDONLY);
    Reader *reader = ppprof_reader_new(program.bytes, program.length, secret);
    Control control = {0, 0};
    if (descriptor < 0)
        exit(2);
    int64_t length = (int64_t)lseek(descriptor, 0, SEEK_END), num_events = -1;
    if (reader) {
        int outcome = ppprof_reader_add_range(reader, descriptor, 0, length, usual, 1 << 24, &control);
        num_events = outcome ? outcome : num_events_of(reader);
        if (!outcome && control.position != length)
            abort();
    }
    ppprof_reader_free(reader);
    close(descriptor);
    return num_events;
}

/* Read a file in blocks of several lengths: the result is that of the whole text. */
static void read_in_blocks(Content program, Content text, const char *path)
{
    Reader *reader = ppprof_reader_new(program.bytes, program.length, secret);
    if (!reader)
        exit(2);
    int64_t status = ppprof_reader_add(reader, text.bytes, text.length, 0);
    int64_t expected = status < 0 ? status : num_events_of(reader);
    ppprof_reader_free(reader);
    for (size_t usual = 1; usual < (1 << 20); usual *= 7)
        if (read_file(program, path, usual) != expected)
            abort();
    long num_allowed = 0;
    for (int is_failing = 1; is_failing && num_allowed < 400; num_allowed++) {
        num_left = num_allowed;
        is_failing = text.length < 1 << 15 && read_file(program, path, 700) == -1;
        num_left = -1;
    }
}

typedef struct {
    Content program;
    const uint8_t *text;
    size_t length;
    int status;
} Part;

static void *read_part(void *argument)
{
    Part *part = argument;
    part->status = read_twice(part->program, part->text, part->length, 0);
    return NULL;
}

static void read_in_threads(Content program, Content text)
{
    Part parts[2] = {{program, text.bytes, text.length, 0}, {program, text.bytes, text.length, 0}};
    pthread_t threads[2];
    for (int number = 0; number < 2; number++)
        if (pthread_create(&threads[number], NULL, read_part, &parts[number]))
            exit(2);
    for (int number = 0; number < 2; number++)
        if (pthread_join(threads[number], NULL) || parts[number].status)
            abort();
}

/* Reject every program that ends too early, without reading behind its end. */
static void check_short_programs(Content program)
{
    for (size_t length = 0; length < program.length; length++) {
        uint8_t *copy = malloc(length ? length : 1);
        if (!copy)
            exit(2);
        memcpy(copy, program.bytes, length);
        if (ppprof_reader_new(copy, length, secret))
            abort();
        free(copy);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    Content program = content_of(argv[1]);
    check_short_programs(program);
    for (int number = 2; number < argc; number++) {
        Content text = content_of(argv[number]);
        if (read_twice(program, text.bytes, text.length, 1))
            return 1;
        read_in_threads(program, text);
        read_in_blocks(program, text, argv[number]);
        for (size_t length = 0; text.length < 1 << 12 && length < text.length; length++)
            if (read_twice(program, text.bytes, length, 0))
                return 1;
        long num_allowed = 0;
        for (int is_failing = 1; is_failing && num_allowed < 400; num_allowed++) {
            num_left = num_allowed;
            is_failing = text.length < 1 << 15 && read_twice(program, text.bytes, text.length, 0);
            num_left = -1;
        }
        free(text.bytes);
    }
    free(program.bytes);
    return 0;
}
