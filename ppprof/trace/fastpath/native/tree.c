/* Trees of events: their pre-order, given the parent of each node; and parents, given the times.
 *
 * To sort the nodes in pre-order, the children of a node become a linked list, sorted by index. A
 * walk then follows these lists: down to the first child, else to the next sibling, else to the next
 * sibling of a node above. So it takes two steps per node, no recursion, and no memory but the arrays
 * that the caller passes. The parents are not trusted: nodes of a cycle are in no list that the walk
 * reaches.
 *
 * Nodes are numbered by 32 bits, so that the arrays take half of the memory; there are at most 2**31 - 1.
 */
#include <stdint.h>

#include "export.h"

/* Write the nodes in pre-order to `order`, and the depth of each of them to `depth`, 0 for a root.
 * Return their number. The parent of a root is -1. A node with another parent below 0, or not below
 * `num_nodes`, is left out, as is all that is below it.
 *
 * All arrays have room for `num_nodes` items, `first_child` for one more.
 */
EXPORT int64_t ppprof_pre_order(const int32_t *parent, int64_t num_nodes, int32_t *first_child,
                                int32_t *next_sibling, int32_t *order, int32_t *depth)
{
    for (int64_t node = 0; node <= num_nodes; node++)
        first_child[node] = -1;
    for (int64_t node = num_nodes - 1; node >= 0; node--) {
        int64_t above = parent[node] == -1 ? num_nodes : parent[node]; /* the roots' list is last */
        if (above < 0 || above > num_nodes || (above == num_nodes && parent[node] != -1))
            continue;
        next_sibling[node] = first_child[above];
        first_child[above] = (int32_t)node;
    }
    int64_t count = 0, level = 0, node = first_child[num_nodes];
    while (node >= 0) {
        order[count] = (int32_t)node;
        depth[count++] = (int32_t)level;
        if (first_child[node] >= 0) {
            node = first_child[node];
            level++;
            continue;
        }
        while (next_sibling[node] < 0 && level > 0) {
            node = parent[node];
            level--;
        }
        node = next_sibling[node];
    }
    return count;
}

/* Write the index of each event's parent to `parent`, -1 for an outermost event.
 *
 * The events are sorted by thread, then by start; of two that start together, the longer comes first.
 * The parent is the last event before it, on its thread, that holds others and ends at or after
 * `end - slack`, but after the event's start. `holds` may be NULL: then every event may be a parent.
 *
 * `open` lists the events that may still be parents, their ends descend: an event that ends no later
 * than one after it is never the parent. So each search is a bisection of that list. All arrays have
 * room for `num_events` items.
 */
EXPORT int64_t ppprof_nest(const int64_t *thread, const int64_t *start, const int64_t *end,
                           const uint8_t *holds, int64_t num_events, int64_t slack, int32_t *open,
                           int32_t *parent)
{
    int64_t num_open = 0;
    for (int64_t event = 0; event < num_events; event++) {
        if (event && thread[event] != thread[event - 1])
            num_open = 0;
        while (num_open && end[open[num_open - 1]] <= start[event])
            num_open--;
        /* An event of no length at the last instant has no parent. */
        int64_t least = start[event] < INT64_MAX ? start[event] + 1 : INT64_MAX;
        if (end[event] >= INT64_MIN + slack && end[event] - slack > least)
            least = end[event] - slack;
        int64_t low = 0, high = num_open; /* those below `low` end late enough */
        if (num_open && end[open[num_open - 1]] >= least)
            low = num_open; /* mostly */
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            if (end[open[middle]] >= least)
                low = middle + 1;
            else
                high = middle;
        }
        parent[event] = low ? open[low - 1] : -1;
        if (holds && !holds[event])
            continue;
        while (num_open && end[open[num_open - 1]] <= end[event])
            num_open--;
        open[num_open++] = (int32_t)event;
    }
    return 0;
}
