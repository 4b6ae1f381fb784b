/* The times of a graph's nodes, and the path that binds.
 *
 * Nodes are numbered in topological order. The edges into node v are `first[v]` to `first[v + 1] - 1`,
 * each with its source, which is below v, and its weight. The caller has checked all numbers.
 */
#include <stdint.h>

#include "export.h"

/* Write the earliest time of each node: the latest of its sources' times, each plus its edge's weight.
 * A node without an edge into it keeps the time that `time` holds.
 */
EXPORT int64_t ppprof_earliest(int64_t num_nodes, const int64_t *first, const int32_t *source,
                               const int64_t *weight, int64_t *time)
{
    for (int64_t node = 0; node < num_nodes; node++) {
        if (first[node] == first[node + 1])
            continue;
        int64_t latest = INT64_MIN;
        for (int64_t edge = first[node]; edge < first[node + 1]; edge++) {
            int64_t arrival = time[source[edge]] + weight[edge];
            latest = arrival > latest ? arrival : latest;
        }
        time[node] = latest;
    }
    return 0;
}

/* Write the edges of the path to `node`, the last one first; return their number. `binding` holds an
 * edge into each node, or -1. The path ends before a node whose time is at most `begin`.
 */
EXPORT int64_t ppprof_path(int64_t node, int64_t begin, const int32_t *binding, const int32_t *source,
                           const int64_t *time, int32_t *path)
{
    int64_t count = 0;
    while (time[node] > begin && binding[node] >= 0) {
        path[count++] = binding[node];
        node = source[binding[node]];
    }
    return count;
}
