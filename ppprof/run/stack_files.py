"""Samples of Python stacks as files of other tools: speedscope, and collapsed stacks for flame graphs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import numpy as np

from ppprof.trace import Frame, PythonStacks

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def speedscope(windows: Mapping[str, PythonStacks]) -> str:
    """Return samples as a file of https://www.speedscope.app: one profile a window and thread.

    Args:
        windows: the samples, keyed by the name of their window, such as ``rank 0, window 0``.

    Source: https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources
    """
    rows: dict[tuple[str, str, int], int] = {}
    profiles = []
    for title, stacks in windows.items():
        frames = [
            rows.setdefault((frame.function, frame.file, frame.line), len(rows))
            for frame in stacks.frames
        ]
        paths = [[frames[row] for row in reversed(stack)] for stack in stacks.stacks] + [[]]
        for thread in np.unique(stacks.samples[:, 0]).tolist():
            samples = stacks.samples[stacks.samples[:, 0] == thread]
            profiles.append(
                {
                    "type": "sampled",
                    "name": f"{title}, thread {thread}",
                    "unit": "nanoseconds",
                    "startValue": 0,
                    "endValue": int(samples[:, 2].sum()),
                    "samples": [paths[row] for row in samples[:, 3].tolist()],
                    "weights": samples[:, 2].tolist(),
                }
            )
    shared = [{"name": name, "file": file, "line": line} for name, file, line in rows]
    document = {
        "$schema": _SCHEMA,
        "exporter": "ppprof",
        "shared": {"frames": shared},
        "profiles": profiles,
    }
    return json.dumps(document, separators=(",", ":")) + "\n"


def collapsed(windows: Mapping[str, PythonStacks]) -> str:
    """Return samples as collapsed stacks: ``rank 0, window 0;thread 7;main (a.py:3);f (a.py:9) 1200``.

    The number is the time in microseconds. flamegraph.pl, inferno and speedscope read such files.

    Args:
        windows: the samples, keyed by the name of their window.
    """
    times: dict[str, int] = {}
    for title, stacks in windows.items():
        names = [_name(frame) for frame in stacks.frames]
        for thread, _, weight_ns, row in stacks.samples.tolist():
            path = [names[each] for each in reversed(stacks.stacks[row])] if row >= 0 else []
            line = ";".join([title, f"thread {thread}", *path])
            times[line] = times.get(line, 0) + weight_ns
    return "".join(f"{line} {round(time_ns / 1000)}\n" for line, time_ns in sorted(times.items()))


def _name(frame: Frame) -> str:
    return f"{frame.function} ({frame.file}:{frame.line})".replace(";", ",")


STACK_FORMATS: Mapping[str, Callable[[Mapping[str, PythonStacks]], str]] = {
    "speedscope": speedscope,
    "collapsed": collapsed,
}
"""Function that writes each format of ``ppprof convert --to``."""
