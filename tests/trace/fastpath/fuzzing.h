/* Memory that runs out after some allocations, and files in memory: for fuzz_scan.c, fuzz_events.c.
 *
 * FUZZED is the source to include with that memory, and ALSO_FUZZED another one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long num_left = -1; /* allocations that succeed; -1: all of them */

static int is_out_of_memory(void)
{
    if (num_left == 0)
        return 1;
    if (num_left > 0)
        num_left--;
    return 0;
}

static void *failing_malloc(size_t size)
{
    return is_out_of_memory() ? NULL : malloc(size);
}

static void *failing_calloc(size_t count, size_t size)
{
    return is_out_of_memory() ? NULL : calloc(count, size);
}

static void *failing_realloc(void *memory, size_t size)
{
    return is_out_of_memory() ? NULL : realloc(memory, size);
}

#define malloc failing_malloc
#define calloc failing_calloc
#define realloc failing_realloc
#include FUZZED
#ifdef ALSO_FUZZED
#include ALSO_FUZZED
#endif
#undef malloc
#undef calloc
#undef realloc

typedef struct {
    uint8_t *bytes;
    size_t length;
} Content;

static Content content_of(const char *path)
{
    FILE *file = fopen(path, "rb");
    Content content = {NULL, 0};
    if (!file || fseek(file, 0, SEEK_END))
        exit(2);
    content.length = (size_t)ftell(file);
    rewind(file);
    content.bytes = malloc(content.length ? content.length : 1);
    if (!content.bytes || fread(content.bytes, 1, content.length, file) != content.length)
        exit(2);
    fclose(file);
    return content;
}
