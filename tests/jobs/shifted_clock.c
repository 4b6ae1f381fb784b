/* A wall clock that is off and drifts, by LD_PRELOAD:
 *     CLOCK_OFFSET_NS=800000000 CLOCK_DRIFT_PPB=50000 LD_PRELOAD=./shifted_clock.so program
 * It is also set forward by CLOCK_JUMP_NS as soon as the file CLOCK_JUMP_FILE exists.
 * CLOCK_MONOTONIC stays as it is. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const long long SECOND = 1000000000;

static long long real_ns(void) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    return now.tv_sec * SECOND + now.tv_nsec;
}

static long long shifted_ns(void) {
    static long long started, offset_ns, drift_ppb;
    long long now = real_ns();
    if (!started) {
        offset_ns = atoll(getenv("CLOCK_OFFSET_NS"));
        drift_ppb = atoll(getenv("CLOCK_DRIFT_PPB"));
        started = now;
    }
    const char *jump_file = getenv("CLOCK_JUMP_FILE");
    long long jump_ns = jump_file && !access(jump_file, F_OK) ? atoll(getenv("CLOCK_JUMP_NS")) : 0;
    return now + offset_ns + jump_ns + (now - started) / 1000 * drift_ppb / 1000000;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (clock != CLOCK_REALTIME) return syscall(SYS_clock_gettime, clock, now);
    long long ns = shifted_ns();
    now->tv_sec = ns / SECOND;
    now->tv_nsec = ns % SECOND;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    long long ns = shifted_ns();
    now->tv_sec = ns / SECOND;
    now->tv_usec = ns % SECOND / 1000;
    return 0;
}

time_t time(time_t *now) {
    time_t seconds = shifted_ns() / SECOND;
    if (now) *now = seconds;
    return seconds;
}
