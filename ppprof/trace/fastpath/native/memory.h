/* Memory that grows. Included by columns.h and texts.h. */
#ifndef PPPROF_MEMORY_H
#define PPPROF_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Return memory for at least `needed` items, or NULL; `*capacity` becomes their number.
 *
 * `size` is the number of bytes of an item.
 */
static void *grown(void *items, size_t *capacity, size_t needed, size_t size)
{
    size_t wanted = *capacity ? *capacity : 64;
    while (wanted < needed) {
        if (wanted > SIZE_MAX / 2)
            return NULL;
        wanted *= 2;
    }
    if (wanted > PTRDIFF_MAX / size)
        return NULL;
    void *moved = realloc(items, wanted * size);
    if (moved)
        *capacity = wanted;
    return moved;
}

#endif
