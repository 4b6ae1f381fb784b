"""What a worker notes of a remote call: the line that has most of its time, and how much is sent.

A thread reads the stack of the function's thread every `_INTERVAL_S`. The user's frames of a sample are a path
of lines, the outermost first. The line that is named is the innermost one that has half of the time::

    samples    60   60 > 49   60 > 50   60 > 51   61        60, box_ious(), has most of it
"""

from __future__ import annotations

import threading
import time
from _thread import allocate_lock
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from ppprof.capture.process import current_frames, stack_of, start_thread
from ppprof.capture.recording.user_files import UserFiles, function_name

_INTERVAL_S = 0.005
_PATIENCE_S = 1.0
"""Longest wait for the end of a sample."""
_LEAST_SAMPLES = 3
"""Fewest samples that say where the time goes."""
_MOST_VALUES, _MOST_ELEMENTS = 32, (32, 8, 2)
"""Values of a dict, a tuple or an object, and elements of a list, a list in a list and so on, of which the size is looked at
for all."""
_MOST_CONTAINERS, _MOST_DEPTH = 1000, 30
"""Containers in a value that are looked into, and in each other."""
_MOST_FRAMES = 64
_NUMBER_BYTES = 9
"""Of a pickled float."""

_Line = tuple[CodeType, int]


class LineSampler:
    """Samples the thread that makes it, until `stop`.

    Args:
        files: which code is the user's.
        caller: the code that calls the function: lines around it are not the function's.
    """

    def __init__(self, files: UserFiles, caller: CodeType) -> None:
        self._files = files
        self._caller = caller
        self._sampled = threading.get_ident()
        self._stops = allocate_lock()
        self._stops.acquire()
        self._times: Counter[tuple[_Line, ...]] = Counter()
        self._num_samples = 0
        self._thread = start_thread(self._run, "remote call")

    def _run(self) -> None:
        last_ns = time.perf_counter_ns()
        while not self._stops.acquire(timeout=_INTERVAL_S):
            path = self._path(current_frames().get(self._sampled))
            now_ns = time.perf_counter_ns()  # late, if C++ has kept the interpreter's lock
            self._times[path] += now_ns - last_ns
            self._num_samples += 1
            last_ns = now_ns

    def _path(self, innermost: FrameType | None) -> tuple[_Line, ...]:
        path: list[_Line] = []
        for frame in () if innermost is None else stack_of(innermost, _MOST_FRAMES):
            if frame.f_code is self._caller:
                break
            if self._files[frame.f_code.co_filename][1]:
                path.append((frame.f_code, frame.f_lineno or 0))
        return tuple(reversed(path))

    def stop(self) -> str:
        """Return the line with most of the time, ``File "train.py", line 60, in assign``; "" without one."""
        self._stops.release()
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)
        whole_ns, named = sum(self._times.values()), None
        for depth in range(max(map(len, self._times), default=0)):
            of_line: Counter[tuple[_Line, ...]] = Counter()
            for path, time_ns in self._times.items():
                if len(path) > depth:
                    of_line[path[: depth + 1]] += time_ns
            ((path, time_ns),) = of_line.most_common(1)
            if 2 * time_ns < whole_ns:
                break
            named = path[-1]
        if named is None or self._num_samples < _LEAST_SAMPLES:
            return ""
        code, line = named
        return f'File "{self._files[code.co_filename][0]}", line {line}, in {function_name(code)}'


def size_of(value: object) -> tuple[int, int]:
    """Return about how many bytes a value takes when it is pickled, and of how many Python objects it is made.

    The elements of a long container count as the mean of its first ones; an object that is there twice counts once.

    >>> size_of([[1.0] * 1000] * 10)[1] < 1012
    True
    >>> size_of(b"1234"), size_of({"loss": 1.0})
    ((4, 1), (9, 2))
    """
    return _size_of(value, set(), 0, 0)


def _size_of(value: object, seen: set[int], depth: int, num_lists: int) -> tuple[int, int]:
    kind = type(value)  # no attribute of the value itself: a proxy would ask another process for it
    if isinstance(value, (bytes, bytearray, str)):
        return len(value), 1
    if hasattr(kind, "nbytes"):
        return int(getattr(value, "nbytes", 0)), 1
    if hasattr(kind, "element_size") and hasattr(kind, "numel"):  # a tensor
        return int(value.element_size()) * int(value.numel()), 1  # type: ignore[attr-defined]
    parts: Any = value
    if not isinstance(value, (Mapping, Sequence, Set)):
        with suppress(AttributeError):
            parts = object.__getattribute__(value, "__dict__")
        if parts is value:
            return _NUMBER_BYTES, 1
    if id(value) in seen or len(seen) == _MOST_CONTAINERS or depth == _MOST_DEPTH:
        return 0, 1
    seen.add(id(value))
    most = _MOST_VALUES
    if isinstance(parts, Mapping):
        parts = parts.values()
    elif not isinstance(parts, tuple):
        most = _MOST_ELEMENTS[min(num_lists, len(_MOST_ELEMENTS) - 1)]
        num_lists += 1
    sizes = [_size_of(part, seen, depth + 1, num_lists) for part in islice(parts, most)]
    if not sizes:
        return 0, 1
    num_bytes, num_objects = (sum(each) * len(parts) // len(sizes) for each in zip(*sizes))
    return num_bytes, num_objects + 1
