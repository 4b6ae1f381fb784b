/* Functions that Python calls. All others are hidden: see -fvisibility=hidden in tools/build_core.py. */
#ifndef PPPROF_EXPORT_H
#define PPPROF_EXPORT_H

#define EXPORT __attribute__((visibility("default")))

#endif
