/* Functions that Python calls. All others are hidden: see -fvisibility=hidden in tools/build_core.py. */
#ifndef PPPROF_EXPORT_H
#define PPPROF_EXPORT_H

#if defined(__GNUC__)
#define EXPORT __attribute__((visibility("default")))
#else
#define EXPORT
#endif

#endif
