/* Run the compiled core's scanner on files, for sanitizers: fuzz_scan PROGRAM FILE...
 *
 * Each file is scanned whole and in pieces, each in memory of exactly its length. A short file is
 * also scanned with its first bytes replaced by the start of an event, for any number of bytes. Then
 * the file is scanned again and again with one allocation more before memory "runs out", until it no
 * longer does. At last it is scanned from the disk, in blocks of several lengths.
 * Prints the events, texts and ranges of all files. A sanitizer ends the program at the first read
 * out of bounds, at undefined behaviour, and for memory that was not freed.
 */
#define _XOPEN_SOURCE 700
#define FUZZED "scan.c"
#define ALSO_FUZZED "range.c"
#include "fuzzing.h"
#include <fcntl.h>

/* range.c is also for the reader in events.c. */
int64_t ppprof_reader_take(struct Reader *reader, const uint8_t *text, size_t length, int64_t first,
                           int is_first, int is_last)
{
    (void)reader, (void)text, (void)length, (void)first, (void)is_first, (void)is_last;
    abort();
}

/* Scan a text in pieces of `piece` bytes; return -1 if memory ran out. */
static int scan(Content program, Content text, size_t piece, int is_printed)
{
    static const uint64_t secret[2] = {1, 2};
    int64_t num_events = 0, num_texts = 0, num_ranges = 0;
    int result = -1;
    Scanner *scanner = ppprof_scanner_new(program.bytes, program.length, secret);
    if (!scanner)
        return -1;
    for (size_t first = 0; first < text.length; first += piece) {
        size_t length = text.length - first < piece ? text.length - first : piece;
        uint8_t *copy = malloc(length);
        if (!copy)
            exit(2);
        memcpy(copy, text.bytes + first, length);
        int64_t num_new = ppprof_scanner_add(scanner, copy, length, (int64_t)first);
        free(copy);
        if (num_new < 0)
            goto done;
    }
    if (ppprof_store_finish(&scanner->store))
        goto done;
    for (uint32_t number = 0; number < scanner->store.num_columns; number++) {
        int64_t num_rows;
        int32_t storage;
        uint8_t *values = ppprof_store_take(&scanner->store, number, &num_rows, &storage);
        for (int64_t row = 0; values && row < num_rows; row++) {
            int32_t text_number;
            memcpy(&text_number, values + row * (int64_t)item_bytes((Storage)storage), 4);
            if (storage == TEXT && text_number >= scanner->store.texts.num_texts)
                abort();
        }
        num_events += number == scanner->store.tables[scanner->store.columns[number].table].position ? num_rows : 0;
        ppprof_free(values);
    }
    const int64_t *ends;
    const uint8_t *bytes = ppprof_store_texts(&scanner->store, &ends, &num_texts);
    uint8_t sum = 0;
    for (int64_t index = 0; num_texts && index < ends[num_texts - 1]; index++)
        sum ^= bytes[index];
    const int64_t *ranges = ppprof_store_ranges(&scanner->store, &num_ranges);
    for (int64_t index = 0; index < num_ranges; index++)
        if (ranges[2 * index] >= ranges[2 * index + 1])
            abort();
    if (is_printed)
        printf("%lld events, %lld flows, %lld texts, %lld ranges, checksum %d\n",
               (long long)num_events, (long long)ppprof_scanner_flows(scanner),
               (long long)num_texts, (long long)num_ranges, sum);
    result = 0;
done:
    ppprof_scanner_free(scanner);
    return result;
}

/* Scan a file from the disk in blocks of `usual` bytes. Return the number of its events and flows; -1
 * if memory ran out. */
static int64_t scan_file(Content program, const char *path, size_t usual)
{
    static const uint64_t secret[2] = {1, 2};
    int descriptor = open(path, O_RDONLY);
    Scanner *scanner = ppprof_scanner_new(program.bytes, program.length, secret);
    int64_t num_events = -1;
    Control control = {0, 0};
    if (descriptor < 0)
        exit(2);
    int64_t length = (int64_t)lseek(descriptor, 0, SEEK_END);
    /* The file is shorter than expected, as one that is cut while it is read. */
    if (scanner && !ppprof_scanner_add_range(scanner, scanner->start, scanner->num_start, descriptor,
                                             0, length + 5, usual, 1 << 24, &control)) {
        num_events = ppprof_scanner_flows(scanner);
        for (uint32_t table = 0; table < scanner->store.num_tables; table++)
            num_events += (int64_t)scanner->store.tables[table].num_rows;
        if (control.position != length)
            abort();
    }
    ppprof_scanner_free(scanner);
    close(descriptor);
    return num_events;
}

/* Scan events that lack any number of bytes after their start. */
static void scan_short_events(Content program, Content text)
{
    static const uint64_t secret[2] = {1, 2};
    Scanner *scanner = ppprof_scanner_new(program.bytes, program.length, secret);
    if (!scanner)
        exit(2);
    for (size_t first = 0; first < text.length; first++) {
        size_t length = scanner->num_start + text.length - first;
        uint8_t *event = malloc(length);
        if (!event)
            exit(2);
        memcpy(event, scanner->start, scanner->num_start);
        memcpy(event + scanner->num_start, text.bytes + first, text.length - first);
        if (ppprof_scanner_add(scanner, event, length, 0) < 0)
            exit(2);
        free(event);
    }
    ppprof_scanner_free(scanner);
}

/* Reject every program that ends too early, without reading behind its end. */
static void check_short_programs(Content program)
{
    static const uint64_t secret[2] = {1, 2};
    for (size_t length = 0; length < program.length; length++) {
        uint8_t *copy = malloc(length ? length : 1);
        if (!copy)
            exit(2);
        memcpy(copy, program.bytes, length);
        if (ppprof_scanner_new(copy, length, secret))
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
        size_t whole = text.length ? text.length : 1;
        const size_t pieces[] = {whole, 4096, 337};
        for (size_t index = 0; index < sizeof pieces / sizeof *pieces; index++)
            if (text.length < 1 << 16 || !index)
                if (scan(program, text, pieces[index], !index))
                    return 1;
        if (text.length < 1 << 12)
            scan_short_events(program, text);
        /* Later failures are those of the same places with more memory. */
        long num_allowed = 0;
        for (int is_failing = 1; is_failing && num_allowed < 400; num_allowed++) {
            num_left = num_allowed;
            is_failing = text.length < 1 << 15 && scan(program, text, whole, 0);
            num_left = -1;
        }
        int64_t num_events = scan_file(program, argv[number], whole);
        if (num_events < 0 || scan_file(program, argv[number], 700) != num_events ||
            (text.length < 1 << 16 && scan_file(program, argv[number], 1) != num_events))
            abort();
        for (num_left = 0; text.length < 1 << 12 && scan_file(program, argv[number], 64) < 0;)
            num_left = ++num_allowed;
        num_left = -1;
        free(text.bytes);
    }
    free(program.bytes);
    return 0;
}
