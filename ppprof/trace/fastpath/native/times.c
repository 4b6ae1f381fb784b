/* Times of events: sets of intervals, and starts from what Paddle's JSON prints of them. */
#include <string.h>

#include "export.h"
#include "memory.h"

#define MISSING INT64_MIN

typedef struct {
    int64_t start, end;
} Interval;

/* Sums and differences wrap around, as numpy's do. */
static int64_t plus(int64_t left, int64_t right)
{
    return (int64_t)((uint64_t)left + (uint64_t)right);
}

static int64_t minus(int64_t left, int64_t right)
{
    return (int64_t)((uint64_t)left - (uint64_t)right);
}

/* Merge two neighbouring runs, each sorted by start: `items[first..middle)` and `[middle..last)`. */
static void merge(const Interval *items, int64_t first, int64_t middle, int64_t last, Interval *merged)
{
    int64_t left = first, right = middle;
    for (int64_t place = first; place < last; place++) {
        int is_left = right >= last || (left < middle && items[left].start <= items[right].start);
        merged[place] = items[is_left ? left++ : right++];
    }
}

/* Sort intervals by start. They are `num_runs` sorted runs; `run[i]` is where run i begins, and
 * `run[num_runs]` the number of intervals. Return the sorted ones: `items`, or `other` of equal length.
 */
static Interval *sort_runs(Interval *items, Interval *other, int64_t *run, int64_t num_runs)
{
    while (num_runs > 1) {
        int64_t num_merged = 0, last = run[num_runs];
        for (int64_t number = 0; number < num_runs; number += 2) {
            int64_t middle = run[number + 1];
            int64_t end = number + 2 <= num_runs ? run[number + 2] : middle;
            merge(items, run[number], middle, end, other);
            run[num_merged++] = run[number];
        }
        run[num_merged] = last;
        num_runs = num_merged;
        Interval *sorted = other;
        other = items;
        items = sorted;
    }
    return items;
}

/* Intervals, of which those that overlap or touch the one before them are joined with it. */
typedef struct {
    Interval *items;
    size_t count, capacity;
} Joined;

/* Add an interval. Events of a thread nest, so most are joined with the one before. */
static int add(Joined *joined, Interval interval)
{
    Interval *last = joined->count ? &joined->items[joined->count - 1] : NULL;
    if (last && interval.start >= last->start && interval.start <= last->end) {
        if (interval.end > last->end)
            last->end = interval.end;
        return 0;
    }
    if (joined->count == joined->capacity) {
        Interval *items = grown(joined->items, &joined->capacity, joined->count + 1, sizeof *items);
        if (!items)
            return -1;
        joined->items = items;
    }
    joined->items[joined->count++] = interval;
    return 0;
}

/* Sort the intervals, and join them again: then they are a union, disjoint and ascending. */
static int unite(Joined *joined)
{
    size_t num_runs = 1, num_items = joined->count;
    Interval *items = joined->items;
    for (size_t item = 1; item < num_items; item++)
        num_runs += items[item].start < items[item - 1].start;
    if (num_runs == 1)
        return 0;
    Interval *other = malloc(num_items * sizeof *other);
    int64_t *run = malloc((num_runs + 1) * sizeof *run);
    int outcome = other && run ? 0 : -1;
    if (!outcome) {
        num_runs = 0;
        for (size_t item = 0; item < num_items; item++)
            if (!item || items[item].start < items[item - 1].start)
                run[num_runs++] = (int64_t)item;
        run[num_runs] = (int64_t)num_items;
        const Interval *sorted = sort_runs(items, other, run, (int64_t)num_runs);
        joined->count = 0;
        for (size_t item = 0; item < num_items; item++) /* there is room for all of them */
            add(joined, sorted[item]);
    }
    free(other);
    free(run);
    return outcome;
}

/* Write the union of intervals to `first` and `last`: disjoint, ascending, touching ones joined.
 *
 * Return their number; -2 without memory. No interval ends before it starts. All arrays have room for
 * `num_intervals` items.
 */
EXPORT int64_t ppprof_union(const int64_t *start, const int64_t *end, int64_t num_intervals,
                            int64_t *first, int64_t *last)
{
    Joined joined = {NULL, 0, 0};
    int outcome = 0;
    for (int64_t item = 0; item < num_intervals && !outcome; item++)
        outcome = add(&joined, (Interval){start[item], end[item]});
    if (!outcome)
        outcome = unite(&joined);
    for (size_t item = 0; item < joined.count && !outcome; item++) {
        first[item] = joined.items[item].start;
        last[item] = joined.items[item].end;
    }
    free(joined.items);
    return outcome ? -2 : (int64_t)joined.count;
}

/* Return how many nanoseconds lie in at least one interval of a group; -2 without memory.
 *
 * `num_in_group` gets the number of its intervals. No interval ends before it starts.
 */
EXPORT int64_t ppprof_covered(const int32_t *groups, int64_t group, const int64_t *start,
                              const int64_t *end, int64_t num_intervals, int64_t *num_in_group)
{
    Joined joined = {NULL, 0, 0};
    int outcome = 0;
    int64_t covered = 0;
    *num_in_group = 0;
    for (int64_t item = 0; item < num_intervals && !outcome; item++)
        if (groups[item] == group) {
            ++*num_in_group;
            outcome = add(&joined, (Interval){start[item], end[item]});
        }
    if (!outcome)
        outcome = unite(&joined);
    for (size_t item = 0; item < joined.count; item++)
        covered = plus(covered, minus(joined.items[item].end, joined.items[item].start));
    free(joined.items);
    return outcome ? -2 : covered;
}

/* Write the value of the interval that holds each time to `held_by`, -1 if there is none.
 *
 * Of the intervals [first, last), sorted by `first`, the last one that has begun counts. Times that
 * follow one another are mostly in the same one, so that one is looked at first.
 */
EXPORT int64_t ppprof_values_at(const int64_t *first, const int64_t *last, const int64_t *value,
                                int64_t num_intervals, const int64_t *time, int64_t num_times,
                                int64_t *held_by)
{
    int64_t num_begun = 0;
    for (int64_t item = 0; item < num_times; item++) {
        int64_t now = time[item];
        if ((num_begun && first[num_begun - 1] > now) ||
            (num_begun < num_intervals && first[num_begun] <= now)) {
            int64_t low = 0, high = num_intervals; /* those below `low` have begun */
            while (low < high) {
                int64_t middle = low + (high - low) / 2;
                if (first[middle] <= now)
                    low = middle + 1;
                else
                    high = middle;
            }
            num_begun = low;
        }
        held_by[item] = num_begun && now < last[num_begun - 1] ? value[num_begun - 1] : -1;
    }
    return 0;
}

/* Return the possible error in ns of microseconds that were rounded to float32 twice; see _slack in
 * timestamps.py. `exact` is the first time that may have an error.
 */
static int64_t error_of(int64_t relative, int64_t exact)
{
    int64_t distance = relative < 0 ? -relative : relative;
    if (distance < exact)
        return 0;
    float microseconds = (float)distance / 1000.0f, next;
    uint32_t bits;
    memcpy(&bits, &microseconds, sizeof bits);
    bits++; /* the next larger float32 */
    memcpy(&next, &bits, sizeof next);
    double spacing = (double)(next - microseconds) * 1000;
    int64_t whole = (int64_t)spacing;
    return whole < spacing ? whole + 1 : whole;
}

/* Return `high` if `low` is above it, as numpy does. */
static int64_t clipped(int64_t time, int64_t low, int64_t high)
{
    int64_t least = time < low ? low : time;
    return least > high ? high : least;
}

/* Write the best estimate of each event's start to `start`, and its largest error to `slack`.
 *
 * The event began in the microsecond after `ts`, at `zero + begin` and at `zero + finish - dur`; see
 * TimestampEstimator.starts. `begin` and `finish` may be MISSING. `start` and `slack` may be the arrays
 * of `ts` and `begin`.
 */
EXPORT int64_t ppprof_starts(const int64_t *ts, const int64_t *dur, const int64_t *begin,
                             const int64_t *finish, int64_t num_events, int64_t zero, int64_t exact,
                             int64_t *start, int64_t *slack)
{
    for (int64_t event = 0; event < num_events; event++) {
        int64_t low = ts[event], high = plus(ts[event], 999);
        for (int side = 0; side < 2; side++) {
            int64_t relative = side ? finish[event] : begin[event];
            if (relative == MISSING)
                continue;
            int64_t error = error_of(relative, exact);
            int64_t estimate = minus(plus(zero, relative), side ? dur[event] : 0);
            low = clipped(minus(estimate, error), low, high);
            high = clipped(plus(estimate, error), low, high);
        }
        start[event] = plus(low, high) >> 1;
        slack[event] = plus(minus(high, low), 1) >> 1;
    }
    return 0;
}

static int64_t shared(int64_t start, int64_t end, int64_t other_start, int64_t other_end)
{
    return minus(end < other_end ? end : other_end, start > other_start ? start : other_start);
}

/* Write the parents of the events of a thread that come level by level; see nest_by_level in
 * nesting.py. Return 0; -1 if they do not come so; -3 if the starts of a level do not ascend.
 */
EXPORT int64_t ppprof_nest_by_level(const int64_t *start, const int64_t *end, const int64_t *slack,
                                    int64_t num_events, int32_t *parent)
{
    int64_t above = 0, here = 0; /* where the level above and this one begin */
    while (here < num_events) {
        int64_t after = here, outer = above;
        for (; after < num_events; after++) {
            int64_t event = after;
            if (event > here) {
                int64_t overlap = minus(end[event - 1], start[event]);
                if (overlap > plus(slack[event - 1], slack[event]))
                    break;
                if (start[event] < start[event - 1])
                    return -3;
            }
            parent[event] = -1;
            if (!here)
                continue;
            while (outer + 1 < here && start[outer + 1] <= start[event])
                outer++;
            int64_t best = outer, most = shared(start[best], end[best], start[event], end[event]);
            for (int side = -1; side <= 1; side += 2) {
                int64_t other = clipped(outer + side, above, here - 1);
                int64_t fit = shared(start[other], end[other], start[event], end[event]);
                if (fit > most) {
                    best = other;
                    most = fit;
                }
            }
            int64_t off = plus(slack[event], slack[best]);
            if (minus(start[best], start[event]) > off || minus(end[event], end[best]) > off)
                return -1;
            parent[event] = (int32_t)best;
        }
        above = here;
        here = after;
    }
    return 0;
}

/* Write the index of the last host event before each inner event in the file to `owner`; -2 if there
 * is none, it is of another thread, or its time does not agree (that is no matter if `has_depths`).
 *
 * The columns are those of HostTree in json_tree.py. Both sides are in the order of the file; if the
 * host events are not, `order` sorts them, else it is NULL.
 */
EXPORT int64_t ppprof_hosts_before(const int32_t *order, const int32_t *host_thread,
                                   const int64_t *host_position, const int64_t *host_start,
                                   const int64_t *host_dur, const int64_t *host_slack,
                                   int64_t num_hosts, const int32_t *thread, const int64_t *position,
                                   const int64_t *start, const int64_t *dur, const int64_t *slack,
                                   int64_t num_inner, int64_t has_depths, int32_t *owner)
{
    int64_t num_before = 0;
    for (int64_t event = 0; event < num_inner; event++) {
        while (num_before < num_hosts &&
               host_position[order ? order[num_before] : num_before] < position[event])
            num_before++;
        owner[event] = -2;
        if (!num_before)
            continue;
        int64_t host = order ? order[num_before - 1] : num_before - 1;
        if (host_thread[host] != thread[event])
            continue;
        int64_t off = plus(slack[event], host_slack[host]);
        if (has_depths ||
            (start[event] >= minus(host_start[host], off) &&
             plus(start[event], dur[event]) <= plus(plus(host_start[host], host_dur[host]), off)))
            owner[event] = (int32_t)host;
    }
    return 0;
}
