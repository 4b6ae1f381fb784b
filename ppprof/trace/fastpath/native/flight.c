/* Note communication operations in a rank's ring: `ppprof.capture.ranks.flight_recorder` in C.
 *
 * `noted` and `waited` stand in the place of methods of Paddle. What a note needs beside numbers (texts, groups,
 * which code is the user's) is asked of Python once, and kept in `known` by the identity of the objects.
 *
 * Python passes the addresses of its own functions, so that the library needs none of its headers, and serves all
 * of its versions. All of this runs with the interpreter's lock, which protects what is static here. A frame that has
 * been seen is alive until its function ends, so that the references to frames and their codes are given back at once.
 */
#define _POSIX_C_SOURCE 199309L /* clock_gettime */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "export.h"

/* Where ranks share processors, the caches are cold whenever one goes on: code costs by its size. */
#define ONCE __attribute__((noinline))

typedef void *Object;

static struct {
    Object (*current_frame)(void);
    Object (*frame_back)(Object);
    Object (*frame_code)(Object);
    int (*frame_line)(Object);
    Object (*attribute)(Object, Object);
    Object (*item)(Object, Object);
    Object (*type)(Object);
    ptrdiff_t (*length)(Object);
    Object (*nth)(Object, ptrdiff_t);
    Object (*argument)(Object, ptrdiff_t);
    long long (*as_integer)(Object);
    Object (*integer)(long long);
    Object (*call)(Object, Object, Object);
    Object (*ask)(Object, ...);
    Object (*error)(void);
    void (*clear_error)(void);
    void (*keep)(Object);
    void (*release)(Object);
    unsigned long (*thread)(void);
    Object (*function)(void *, Object, Object);
} python;

/* What Python is asked: `FlightRecorder._answers` has the same order. The last two only tell it of a task on a device. */
enum { GROUP, KIND, PLACE, CONTEXT, DTYPE, SIZE, STARTED, WAITED };
enum { OTHER = 1, USERS, LAYER, FIRST_PHASE, PHASES_END = FIRST_PHASE + 3 }; /* kinds of code */
enum { ANY, ROOTED, SENDS, RECEIVES };                                       /* what an operation's argument `peer` says */
enum { FAILED = -1, RAISED = -2 };

struct group {
    int64_t number, is_host, num_ranks;
    const int32_t *ranks;
    uint32_t *sequences; /* of collectives, then of sends to each rank, then of receives from each */
};

struct method {
    struct {
        const char *name;
        Object (*call)(Object, Object, Object);
        int flags;
        const char *doc;
    } definition;
    Object original;
    int64_t name, way, peer, index, sharers;
    char text[64];
};

enum { MOST_METHODS = 256, NUM_SLOTS = 4096, WINDOW = 8, MOST_OPERATIONS = 2048, FIRST_WORD = 8 };

struct slot {
    uint64_t key, detail;
    int64_t value;
};

static struct {
    uint64_t *ring; /* NULL while no recorder is open */
    int64_t next;
    Object ask, tensor, parameter, task, shape, dtype, locals, self;
    unsigned long thread;
    int64_t spent_ns;
} recorder;
static struct slot known[NUM_SLOTS], tasks[NUM_SLOTS];
static struct method methods[MOST_METHODS];

/* Return the slot of a key, or the one to put it in: of some that it may have, a free one, or that of the least value. */
static ONCE struct slot *slot_of(struct slot *slots, uint64_t key, uint64_t detail)
{
    uint64_t hash = (key + detail * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u >> 52; /* below NUM_SLOTS */
    struct slot *least = &slots[hash & ~(uint64_t)(WINDOW - 1)];
    for (struct slot *slot = least, *end = least + WINDOW; slot < end; slot++) {
        if (slot->key == key && slot->detail == detail)
            return slot;
        if (slot->value < least->value)
            least = slot;
    }
    return least;
}

static ONCE int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * (int64_t)1000000000 + now.tv_nsec;
}

static ONCE int64_t failed(void)
{
    python.clear_error();
    return FAILED;
}

/* Return an answer of Python, from 0; FAILED, or RAISED if an exception is to reach the training. */
static ONCE int64_t ask(int what, Object first, Object second, Object third)
{
    Object question = python.integer(what);
    Object answer = python.ask(recorder.ask, question, first, second, third, NULL);
    python.release(question);
    if (!answer)
        return RAISED;
    int64_t value = python.as_integer(answer);
    python.release(answer);
    return value;
}

/* As `ask`, once for a key. */
static ONCE int64_t ask_once(Object key, uint64_t detail, int what, Object first, Object second, Object third)
{
    detail = detail << 8 | (uint64_t)what;
    struct slot *slot = slot_of(known, (uintptr_t)key, detail);
    if (slot->key == (uintptr_t)key && slot->detail == detail)
        return slot->value;
    int64_t value = ask(what, first, second, third);
    if (value >= 0) /* the answer may have changed the slots */
        *slot_of(known, (uintptr_t)key, detail) = (struct slot){(uintptr_t)key, detail, value};
    return value;
}

/* Return the bytes of an argument, shifted by 16 bits, and the number of the text for their type. Python knows that of several
 * tensors, behind which another argument may be the data. */
static int64_t size_of(Object args, int64_t index)
{
    Object data = python.argument(args, index);
    if (!data)
        return failed();
    Object type = python.type(data);
    python.release(type);
    if (type != recorder.tensor && type != recorder.parameter) {
        Object after = python.argument(args, index + 1);
        if (!after)
            python.clear_error();
        return ask(SIZE, data, after, NULL);
    }
    Object dtype = python.attribute(data, recorder.dtype);
    if (!dtype)
        return failed();
    int64_t width = ask_once(dtype, 0, DTYPE, data, NULL, NULL);
    python.release(dtype);
    if (width < 0)
        return width;
    Object shape = python.attribute(data, recorder.shape);
    if (!shape)
        return failed();
    int64_t size = width >> 16;
    for (ptrdiff_t dim = python.length(shape) - 1; dim >= 0; dim--) {
        Object extent = python.nth(shape, dim);
        if (!extent)
            break;
        size *= python.as_integer(extent);
        python.release(extent);
    }
    python.release(shape);
    return python.error() ? failed() : size << 16 | (width & 0xFFFF);
}

/* Return the layer whose call a frame is, or NULL. */
static Object layer_of(Object frame)
{
    Object locals = python.attribute(frame, recorder.locals), layer = NULL;
    if (locals) {
        layer = python.item(locals, recorder.self);
        python.release(locals);
    }
    if (layer)
        python.release(layer);
    else
        python.clear_error();
    return layer;
}

/* Return the numbers of two texts: of the phase and the module, shifted by 16 bits, and of the user's innermost line. */
static int64_t origin(void)
{
    Object user = NULL, users_code = NULL, inner = NULL, outer = NULL;
    int64_t phase = 0;
    for (Object frame = python.current_frame(); frame && !(user && phase);) {
        Object code = python.frame_code(frame);
        python.release(code);
        int64_t kind = ask_once(code, 0, KIND, code, NULL, NULL);
        if (kind < 0)
            return kind;
        if (kind == USERS && !user)
            user = frame, users_code = code;
        else if (kind == LAYER)
            inner = inner ? inner : frame, outer = frame;
        else if (kind >= FIRST_PHASE)
            phase = kind;
        frame = python.frame_back(frame);
        if (frame)
            python.release(frame);
    }
    int64_t place = 0;
    if (user)
        place = ask_once(users_code, (uint64_t)python.frame_line(user), PLACE, user, NULL, NULL);
    if (place < 0)
        return place;
    Object number = python.integer(phase);
    int64_t context = ask_once(inner ? layer_of(inner) : NULL, (uint64_t)phase, CONTEXT, number, inner, outer);
    python.release(number);
    return context < 0 ? context : context << 16 | place;
}

/* Note an operation that is about to be called. Return its number, shifted by a bit that says that no host executes it. */
static int64_t add(const struct method *method, Object args)
{
    Object process_group = python.argument(args, 0);
    if (!process_group)
        return failed();
    int64_t found = ask_once(process_group, 0, GROUP, process_group, NULL, NULL);
    if (found <= 0)
        return found ? found : FAILED;
    const struct group *group = (const struct group *)(uintptr_t)found;
    int64_t peer = -1, key = 0;
    if (method->way != ANY) {
        Object argument = python.argument(args, 1 + method->peer);
        int64_t rank = argument ? python.as_integer(argument) : FAILED;
        python.clear_error();
        int is_rank = rank >= 0 && rank < group->num_ranks;
        if (is_rank)
            peer = group->ranks[rank];
        else if (method->way != ROOTED)
            return FAILED;
        if (method->way != ROOTED)
            key = 1 + rank + (method->way == RECEIVES ? group->num_ranks : 0);
    }
    int64_t size = 0;
    if (method->index >= 0) {
        size = size_of(args, 1 + method->index);
        if (size < 0)
            return size;
    }
    if (method->sharers >= 0) {
        Object sharers = python.argument(args, 1 + method->sharers);
        int64_t num = sharers ? python.as_integer(sharers) : FAILED;
        if (num <= 0)
            return failed();
        size = (size >> 16) / num << 16 | (size & 0xFFFF);
    }
    int64_t texts = origin();
    if (texts < 0)
        return texts;
    int64_t number = recorder.next++;
    volatile uint64_t *record = recorder.ring + FIRST_WORD + number % MOST_OPERATIONS * 8;
    uint64_t low = (uint32_t)number;
    /* The second number first, the first one last: in between the record is one that is being written. */
    record[7] = low << 32 | (uint64_t)texts;
    __atomic_thread_fence(__ATOMIC_RELEASE);
    record[1] = recorder.ring[2] >> 32 << 32 | ++group->sequences[key];
    record[2] = (uint64_t)now_ns();
    record[3] = record[4] = 0;
    record[5] = (uint64_t)size >> 16;
    record[6] = (uint64_t)(size & 0xFFFF) << 48 | (uint64_t)method->name << 32 | (uint32_t)peer;
    __atomic_thread_fence(__ATOMIC_RELEASE);
    record[0] = (uint64_t)group->number << 32 | low;
    return number << 1 | !group->is_host;
}

/* Set a time of an operation, unless its record has been overwritten. */
static void set(int64_t number, int word, int64_t ns)
{
    if (recorder.next - number <= MOST_OPERATIONS)
        ((volatile uint64_t *)recorder.ring)[FIRST_WORD + number % MOST_OPERATIONS * 8 + word] = (uint64_t)ns;
}

static ONCE void spend(int64_t ns)
{
    if (python.thread() == recorder.thread)
        recorder.spent_ns += ns;
}

static Object noted(Object self, Object args, Object kwargs)
{
    const struct method *method = &methods[python.as_integer(self)];
    int64_t note = recorder.ring ? add(method, args) : FAILED;
    if (note == RAISED)
        return NULL;
    int64_t called_ns = now_ns();
    Object result = python.call(method->original, args, kwargs);
    if (!recorder.ring)
        return result;
    int64_t returned_ns = now_ns();
    if (note >= 0)
        set(note >> 1, 3, result ? returned_ns : -returned_ns);
    spend(returned_ns - called_ns); /* also of an operation that cannot be noted */
    if (!result)
        return NULL;
    Object type = python.type(result);
    python.release(type);
    if (type != recorder.task)
        return result;
    struct slot *slot = slot_of(tasks, (uintptr_t)result, 0);
    if (note >= 0)
        *slot = (struct slot){(uintptr_t)result, 0, note};
    else if (slot->key == (uintptr_t)result) /* of a task that is gone */
        *slot = (struct slot){0, 0, 0};
    if (note >= 0 && (note & 1) && ask(STARTED, result, NULL, NULL) == RAISED) {
        python.release(result);
        return NULL;
    }
    return result;
}

static Object waited(Object self, Object args, Object kwargs)
{
    const struct method *method = &methods[python.as_integer(self)];
    Object task = python.argument(args, 0);
    if (!task)
        python.clear_error();
    struct slot *slot = slot_of(tasks, (uintptr_t)task, 0);
    if (!task || !recorder.ring)
        return python.call(method->original, args, kwargs);
    int64_t note = FAILED;
    if (slot->key == (uintptr_t)task) {
        note = slot->value;
        *slot = (struct slot){0, 0, 0};
    }
    if (note >= 0 && (note & 1) && ask(WAITED, task, NULL, NULL) == RAISED)
        return NULL;
    int64_t begin_ns = now_ns();
    if (note >= 0)
        set(note >> 1, 4, -begin_ns);
    Object result = python.call(method->original, args, kwargs);
    if (!recorder.ring)
        return result;
    int64_t end_ns = now_ns();
    if (note >= 0 && !result)
        set(note >> 1, 3, -end_ns);
    else if (note >= 0) /* on a device, the host has waited for a place in the order of its work only */
        set(note >> 1, 4, note & 1 ? 0 : end_ns);
    spend(end_ns - begin_ns);
    return result;
}

/* Begin to note in a ring. `functions` are the addresses of Python's functions, in the order of `python`;
 * `objects` what is asked, the types of tensors, of parameters and of tasks, and "shape", "dtype", "f_locals" and "self", which live as
 * long as Python.
 */
EXPORT int64_t ppprof_flight_open(const void *functions, const Object *objects, uint64_t *ring)
{
    memcpy(&python, functions, sizeof python);
    memcpy(&recorder.ask, objects, 8 * sizeof *objects);
    memset(tasks, 0, sizeof tasks);
    memset(known, 0, sizeof known);
    recorder.next = 1;
    recorder.ring = ring;
    return 0;
}

/* End noting: functions that are called later call the method alone. */
EXPORT int64_t ppprof_flight_close(void)
{
    recorder.ring = NULL;
    return 0;
}

/* Forget a group or a layer that has died: its address may be another's. */
EXPORT int64_t ppprof_flight_forget(uint64_t key)
{
    struct slot *slot = slot_of(known, key, GROUP);
    if (slot->key == key)
        *slot = (struct slot){0, 0, 0};
    for (uint64_t phase = 0; phase < PHASES_END; phase++) {
        slot = slot_of(known, key, phase << 8 | CONTEXT);
        if (slot->key == key)
            *slot = (struct slot){0, 0, 0};
    }
    return 0;
}

/* Return the time in calls and waits of the thread that called this before, since then. */
EXPORT int64_t ppprof_flight_spent(void)
{
    int64_t spent_ns = recorder.spent_ns;
    recorder.spent_ns = 0;
    recorder.thread = python.thread();
    return spent_ns;
}

/* Return a function of Python that notes calls of a method; of `wait` if `name` is below 0. */
EXPORT Object ppprof_flight_method(int64_t number, const char *text, Object original, int64_t name, int64_t way,
                                   int64_t peer, int64_t index, int64_t sharers)
{
    if (number < 0 || number >= MOST_METHODS)
        return NULL;
    struct method *method = &methods[number];
    *method = (struct method){{method->text, name < 0 ? waited : noted, 1 | 2, NULL},
                              original, name, way, peer, index, sharers, ""};
    strncpy(method->text, text, sizeof method->text - 1);
    python.keep(original); /* for ever: a caller may hold the function */
    Object self = python.integer(number);
    Object function = python.function(&method->definition, self, NULL);
    python.release(self);
    return function;
}
