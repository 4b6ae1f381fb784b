"""Sample the Python stacks of the training's threads, while a window is open.

A thread of ours wakes up some hundred times a second and reads their frames. No signal, trace
or profile function is set. Reading needs the interpreter's lock, so a sample is late if C++ keeps the
lock. It then finds the thread in the line that kept it, and stands for all instants at which a sample was
due meanwhile::

    lock      40 | held by line 41 ...................| 42
    due        x     x     x      x     x     x
    sample     x                                       x     line 41, for 5 of 6

A thread that runs Python gives the lock away when it enters an operator, or after Python's switch
interval: 5 ms, unless it is shortened. Shorter stretches of Python would never be found. So a window
shortens it to 0.2 ms. Two threads that both run Python take 1 to 6% longer with it than with 1 ms (medians of
five runs on two cores, Python 3.9 to 3.13). Not while two threads of DataLoaders read one dataset, as after
``next(iter(loader))``: if it keeps a state between samples, the shorter turns would break it.

Reads of a tensor's values are counted beside the samples: calls of the two methods in C++ through which
``.item()``, ``.numpy()``, ``float()``, ``bool()`` and ``print`` get at them. So are full garbage collections, which
get a span as well: all threads stand still in one. So are evaluations, from ``eval()`` to ``train()`` of a layer,
and the clearing of gradients, which keeps the lock and has no event.

Workers of DataLoaders, which are other processes, are sampled by `loader_stacks`. Their threads have no times.

The instants are due at random intervals, so that they do not keep step with the training. A
sample takes 40 to 130 us, the first one of a window up to 190 (two cores, Paddle 3.3.1, a stack of some 20 frames).
"""

from __future__ import annotations

import dataclasses
import dis
import gc
import itertools
import logging
import math
import os
import random
import sys
import threading
import time
from _thread import allocate_lock
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

from ppprof.arrays import Int64
from ppprof.capture.process import current_frames, stack_of, start_thread
from ppprof.capture.recording.loader_stacks import LoaderStacks
from ppprof.capture.recording.loader_threads import is_read_twice, thread_iterators
from ppprof.capture.recording.observers import FileObserver
from ppprof.capture.recording.user_files import OwnLines, UserFiles, function_name
from ppprof.capture.signals import ignoring_errors
from ppprof.rundir import GARBAGE_COLLECTION, TraceName
from ppprof.rundir.python_stacks import (
    COLUMNS,
    NOTED,
    Frame,
    Holder,
    PythonStacks,
    ThreadTime,
    joined_stacks,
    write_python_stacks,
)
from ppprof.rundir.run_file import RunFile

log = logging.getLogger("ppprof")

_COST_RATIO = 0.01
"""Part of the time that samples may take with ``auto``."""
_LEAST_INTERVAL_NS, _MOST_INTERVAL_NS = 1_000_000, 100_000_000
_SWITCH_SECONDS = 0.0002
"""Longest time, in a window, for which a thread that runs Python keeps the lock from another one."""
_FIRST_INTERVAL_NS = 4_000_000
"""Until the first samples have shown what one costs."""
_WORKER_INTERVAL_NS = 20_000_000
"""Mean time between two samples in a worker of a DataLoader: 2% of its time, with what passes them on."""
_SMOOTHING = 0.1
"""Weight of the latest sample in the mean cost."""
_MOST_DEPTH = 64
"""Frames of a stack, from the innermost on."""
_READS = ("numpy", "_getitem_from_offset")
"""Methods of tensors in C++ that copy values to Python."""
_CLEAR, _MOST_BETWEEN_CLEARS_NS = "clear_gradient", 100_000
"""Method of tensors in C++ that clears a gradient, and the longest time between two calls of one clearing."""
_FULL = 2
"""The oldest generation. The younger ones are collected many times a step, in microseconds."""
_MOST_READS = 200_000
"""Reads of a window that are kept, 8 MB."""
_LEAST_GROWTH_BYTES = 5 * 64 << 10
"""Memory of a window that grows by less is not looked for: `ppprof.analysis.advice.memory.growing_memory`."""
_PATIENCE_SECONDS = 1.0
"""Longest wait for the end of a sample: in a forked child, its thread may not exist."""
_MOST_THREADS = 32
_MOST_SAMPLES = 100_000
"""Samples of a window, 4 MB. Beyond, half of them are dropped, and half as many are taken."""
_MOST_STACKS = 20_000
_MOST_OWN_LINES, _LINES_AROUND, _MOST_LINE = 64, 2, 200
"""Lines of which the source is kept, with so many before and behind; longest line."""
_BACKWARDS = frozenset(("JUMP_BACKWARD", "JUMP_ABSOLUTE"))
_OUTERMOST = ("ppprof.capture.session", "paddle.io.dataloader.worker")
"""Modules at which stacks begin: what ppprof does as a step ends, for which the training's line waits; and the loop
of a DataLoader's worker, below which the stack is that of the training which forked it."""

StackKey = tuple[int, ...]
"""The id of the code and the instruction of each frame, in turns, the innermost first."""


class StackSampler(FileObserver["_Sampling"]):
    """Samples stacks from `started` to `uninstall`, and writes them with each saved window.

    Args:
        run: the run directory.
        rate: ``Profiler.python_stacks``, not False.
        keeps_source: whether lines of the training's source are kept.
    """

    what = "Python stacks"

    def __init__(self, run: Path, rate: bool | float | str, keeps_source: bool = True) -> None:
        # Here: `ppprof run` imports this module ahead of the script, which imports Paddle.
        from paddle import get_device
        from paddle.base import core
        from paddle.nn import Layer

        from ppprof.capture.recording.graph_chains import GraphChains
        from ppprof.capture.recording.holders import allocator_bytes, find_holders
        from ppprof.capture.recording.patches import Patches
        from ppprof.capture.recording.recorder import open_span

        super().__init__()
        self._run = run
        self._interval_ns = None
        if rate != "auto":
            per_second = 1000.0 if rate is True else float(rate)
            self._interval_ns = round(1e9 / per_second)
        self._keeps_source = keeps_source
        self._files = UserFiles(Path.cwd())  # the training may change it
        self._switch_s: float | None = None
        """The training's own switch interval; None outside windows."""
        self._sampling: _Sampling | None = None
        self._thread: threading.Thread | None = None
        self._last: _Sampling | None = None
        """The samples of the latest window until they are saved."""
        self._patches = Patches()
        self._tensor: type = core.eager.Tensor
        self._layer: type = Layer
        self._open_span = open_span
        self._find_holders = find_holders
        self._new_chains: Callable[[], GraphChains] | None = partial(GraphChains, self._files)
        self._chains: GraphChains | None = None
        self._num_steps = 0
        """Of the window that is open, or of the latest one."""
        self._used: Callable[[], int | None] = lambda: allocator_bytes(get_device(), "Allocated")
        self._collection: Any = None
        """The span of the garbage collection that goes on."""
        self._collection_ns = 0
        """When it began."""
        self._evaluated: dict[int, list[int]] = {}
        """When each layer was switched to evaluation since it trained, by its id."""
        self._used_bytes: int | None = None
        """Memory in use as the window began; None outside windows, and where it is unknown."""
        self._has_grown = False
        """Whether it had grown when the latest window ended, and who holds tensors has not been looked for."""

    def install(self) -> None:
        """Learn how Paddle shows graphs, which runs an operator: never ahead of a window, when the training may record."""
        new_chains, self._new_chains = self._new_chains, None
        if new_chains is not None:
            with ignoring_errors():  # another version of Paddle
                self._chains = new_chains()

    def started(self) -> None:
        """Start the thread that samples, and stop that of an earlier segment of the window."""
        if self._sampling is not None:
            self._sampling.stop()
        else:
            noting_reads = self._noting(partial(_Sampling.note, what="reads"))
            for name in _READS:
                self._patches.replace(self._tensor, name, noting_reads)
            self._patches.replace(self._tensor, _CLEAR, self._noting(_Sampling.note_clear))
            self._patches.replace(self._layer, "eval", partial(self._switching, default=False))
            self._patches.replace(self._layer, "train", partial(self._switching, default=True))
            for each in thread_iterators():
                self._patches.install(each, "_init_thread", self._begin_reading)
            gc.callbacks.append(self._collect)
            self._used_bytes, self._num_steps = self._used(), 0
            if self._chains is not None:
                with ignoring_errors():  # another thread changes what is looked at
                    self._chains.note(sys._getframe(1))
        if sys.getswitchinterval() > _SWITCH_SECONDS and not is_read_twice():
            self._switch_s = sys.getswitchinterval()
            sys.setswitchinterval(_SWITCH_SECONDS)
        self._sampling = self._last = _Sampling(self._interval_ns, OwnLines(self._files))
        self._thread = start_thread(self._sampling.run, "stacks")
        if _WORKERS is not None:
            _WORKERS.open(self._switch_s)

    def step(self, num_steps: int) -> None:
        """Count the steps."""
        self._num_steps += 1

    def uninstall(self) -> None:
        """Stop the thread, and wait until it holds no frame: its locals would outlive the call."""
        if self._sampling is not None:
            self._sampling.stop()
            self._sampling = None
            if self._thread is not None:
                self._thread.join(_PATIENCE_SECONDS)
            begin, end = self._used_bytes, self._used()
            grown = 0 if begin is None or end is None else end - begin
            self._has_grown = grown >= _LEAST_GROWTH_BYTES
        if _WORKERS is not None:
            _WORKERS.close()
        self._patches.uninstall()
        self._evaluated.clear()
        if self._collect in gc.callbacks:
            gc.callbacks.remove(self._collect)
        self._restore_interval()

    def _restore_interval(self) -> None:
        switch_s, self._switch_s = self._switch_s, None
        if switch_s is not None and abs(sys.getswitchinterval() - _SWITCH_SECONDS) < 1e-6:
            sys.setswitchinterval(switch_s)  # unless the training has set another one

    def _begin_reading(self, method: Callable[..., Any], iterator: Any) -> Any:
        """Start the thread of a DataLoader's iterator."""
        if is_read_twice(iterator):
            self._restore_interval()
        return method(iterator)

    def _collect(self, phase: str, info: dict[str, int]) -> None:
        """Begin or end the span. Python collects once at a time, and nothing while it calls this."""
        if info["generation"] < _FULL:
            return
        if phase == "start":
            self._collection_ns = time.time_ns()
            self._collection = self._open_span(GARBAGE_COLLECTION, "PythonUserDefined")
        elif self._collection is not None:
            self._collection.end()
            self._collection = None
            if self._sampling is not None:
                self._sampling.note(self._collection_ns, sys._getframe().f_back, "collections")

    def _noting(self, note: Callable[[_Sampling, int, FrameType], None]) -> Callable[..., Any]:
        """Return what wraps a method: each call is noted, with its begin and the caller's frame."""

        def wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                begin_ns = time.time_ns()
                result = method(*args, **kwargs)
                sampling = self._sampling
                if sampling is not None:
                    note(sampling, begin_ns, sys._getframe(1))
                return result

            return wrapper

        return wrapped

    def _switching(self, method: Callable[..., Any], *, default: bool) -> Callable[..., Any]:
        """Return what wraps ``train(mode=True)`` or ``eval()`` of a layer, which trains by default or not.

        A loop may call ``eval()`` for each batch, or ahead of a validation behind an attack, which has a Backward
        in evaluation: each call begins an evaluation of its own.
        """

        def wrapper(layer: Any, /, *args: Any, **kwargs: Any) -> Any:
            if (*args, *kwargs.values(), default)[0]:
                begins, sampling = self._evaluated.pop(id(layer), []), self._sampling
                if sampling is not None:
                    for begin_ns, end_ns in zip(begins, [*begins[1:], time.time_ns()]):
                        sampling.note(begin_ns, None, "evaluations", end_ns)
            else:
                self._evaluated.setdefault(id(layer), []).append(time.time_ns())
            return method(layer, *args, **kwargs)

        return wrapper

    def file(self, name: TraceName) -> RunFile:
        """Return the file of stacks."""
        return RunFile(self._run, name.stacks)

    def write(self, data: _Sampling, file: RunFile) -> None:
        """Write the samples."""
        data.stop()  # of a window that goes on in another segment, it still samples
        stacks = data.stacks(self._files)
        stacks = dataclasses.replace(
            joined_stacks([stacks, *data.of_workers]),
            interval_ns=stacks.interval_ns,
            threads=stacks.threads,
            holders=stacks.holders,
        )
        if self._keeps_source:
            source = _source(stacks, self._files)
            stacks = dataclasses.replace(stacks, source=source)
        write_python_stacks(file, stacks)

    def dropped(self, name: TraceName) -> None:
        """Forget the samples of a window that is not saved."""
        super().dropped(name)
        if self._sampling is None:
            self._last = None

    def take(self) -> _Sampling | None:
        """Return the samples of the latest window, and forget them; look for who holds tensors if memory has grown."""
        sampling, self._last = self._last, None
        has_grown, self._has_grown = self._has_grown, False
        if sampling is not None and has_grown:
            with (
                ignoring_errors()
            ):  # another thread changes what is looked at, or memory has run out
                sampling.holders = self._find_holders(sys._getframe(1), self._files)
            if self._chains is not None:
                with ignoring_errors():
                    names = self._chains.found(sys._getframe(1), self._num_steps)
                    sampling.holders += [Holder(name, [], is_chain=True) for name in names]
        if sampling is not None and _WORKERS is not None:
            with suppress(OSError):
                sampling.of_workers += _WORKERS.read()
        return sampling


class _Sampling:
    """The samples of one window."""

    def __init__(self, interval_ns: int | None, own_lines: OwnLines) -> None:
        self._own_lines = own_lines
        self._noted = {name: array("q") for name in NOTED}
        """Thread, end and duration of each call, number of its line or -1, and 0."""
        self._is_fixed = interval_ns is not None
        self._interval_ns = interval_ns or _FIRST_INTERVAL_NS
        self._thinned = 1
        self.stepping = threading.get_ident()
        """The thread whose steps are recorded."""
        self._stops = allocate_lock()
        self._stops.acquire()
        self._times = _thread_times()
        self._threads: dict[int, ThreadTime] | None = None
        """What each thread did until `stop`; None before."""
        self._begin_ns = self._counted_ns = time.perf_counter_ns()
        self._due_ns = self._begin_ns
        """When the next sample is due; the time until `_counted_ns` has its samples."""
        self._num_due = 0
        self._random = random.Random(0)  # not the training's
        self._rows: dict[StackKey, int] = {}
        """The row of each stack, from 0 on."""
        self._codes: dict[int, tuple[CodeType, str]] = {}
        """Code and module by the id of the code, which Python hashes faster than the code."""
        self._samples = array("q")
        """Thread, time of the sample, ns that it stands for, row of the stack or -1, ns that it was late."""
        self.of_workers: list[PythonStacks] = []
        self.holders: list[Holder] = []

    def run(self, seconds: float = math.inf) -> None:
        """Sample until `stop`, or for some seconds."""
        cost_ns = 0.0
        self._await_next()
        while self._due_ns < self._begin_ns + seconds * 1e9 and not self._stops.acquire(
            timeout=max(0, self._due_ns - time.perf_counter_ns()) / 1e9
        ):
            began_ns = time.thread_time_ns()
            self._sample()
            cost_ns += _SMOOTHING * (time.thread_time_ns() - began_ns - cost_ns)
            if not self._is_fixed:
                wanted_ns = cost_ns / _COST_RATIO
                self._interval_ns = self._thinned * round(
                    min(max(wanted_ns, _LEAST_INTERVAL_NS), _MOST_INTERVAL_NS)
                )
            if len(self._samples) >= COLUMNS * _MOST_SAMPLES:
                self._thin()

    def _await_next(self) -> None:
        self._num_due += 1
        self._due_ns += round(self._interval_ns * (0.5 + self._random.random()))

    def stop(self) -> None:
        """Let `run` end, unless it has been stopped already."""
        if self._threads is None:
            window_ns, begin = time.perf_counter_ns() - self._begin_ns, self._times
            self._threads = {}
            for thread, (ran_ns, waited_ns) in _thread_times().items():
                ran_before, waited_before = begin.get(thread, (0, 0))
                self._threads[thread] = ThreadTime(
                    max(0, ran_ns - ran_before), max(0, waited_ns - waited_before), window_ns
                )
        with suppress(RuntimeError):
            self._stops.release()

    def _sample(self) -> None:
        """Note the stacks of all other threads; the interpreter's lock is held meanwhile."""
        frames = current_frames()
        end_ns, now_ns = time.time_ns(), time.perf_counter_ns()
        begin_ns = self._counted_ns
        while self._due_ns <= now_ns:
            self._counted_ns = self._due_ns
            self._await_next()
        dur_ns = self._counted_ns - begin_ns
        idents: Iterable[int] = frames
        if len(frames) > _MOST_THREADS:
            idents = itertools.islice(frames, _MOST_THREADS)
            idents = dict.fromkeys((self.stepping, *idents))
        for ident in idents:
            if ident not in frames:
                continue
            thread = threading._active.get(ident)  # type: ignore[attr-defined]
            native = getattr(thread, "native_id", None)
            if native is not None:
                row = self._row(stack_of(frames[ident], _MOST_DEPTH))
                self._samples.extend((native, end_ns, dur_ns, row, now_ns - self._counted_ns))

    def note(
        self, begin_ns: int, frame: FrameType | None, what: str, end_ns: int | None = None
    ) -> None:
        """Note a call until now, or an end, one of `NOTED`, and the user's line in a frame or around it."""
        rows = self._noted[what]
        if len(rows) < COLUMNS * _MOST_READS:
            end_ns, line = end_ns or time.time_ns(), self._own_lines.around(frame)
            rows.extend((threading.get_native_id(), end_ns, end_ns - begin_ns, line, 0))

    def note_clear(self, begin_ns: int, frame: FrameType) -> None:
        """Note that a gradient was cleared, until now: in the row of the one before, if it follows at once."""
        rows, end_ns = self._noted["clears"], time.time_ns()
        thread, last_ns = rows[-COLUMNS : 2 - COLUMNS] or (-1, 0)
        follows = 0 <= begin_ns - last_ns <= _MOST_BETWEEN_CLEARS_NS
        if follows and thread == threading.get_native_id():
            rows[1 - COLUMNS] = end_ns
            rows[2 - COLUMNS] += end_ns - last_ns
        else:
            self.note(begin_ns, None, "clears")

    def _row(self, stack: list[FrameType]) -> int:
        """Return the row of a stack; -1 if there are too many."""
        parts: list[int] = []
        codes = self._codes
        for frame in stack:
            code = frame.f_code
            number = id(code)
            if number not in codes:
                module = frame.f_globals.get("__name__")
                codes[number] = code, module if type(module) is str else ""
            parts += (number, frame.f_lasti)
        key = tuple(parts)
        if len(self._rows) < _MOST_STACKS:
            return self._rows.setdefault(key, len(self._rows))
        return self._rows.get(key, -1)

    def _thin(self) -> None:
        """Drop every second tick; the one before it stands for its time, too."""
        table = _as_rows(self._samples)
        ends, tick = np.unique(table[:, 1], return_inverse=True)
        durations = np.zeros(len(ends), np.int64)
        durations[tick] = table[:, 2]
        durations[1::2] += durations[:-1:2] if len(ends) % 2 else durations[::2]
        table[:, 2] = durations[tick]
        self._samples = array("q", table[tick % 2 == 1].tobytes())
        self._thinned *= 2
        if self._is_fixed:
            self._interval_ns *= 2

    def stacks(self, files: UserFiles) -> PythonStacks:
        """Return the samples as columns, and the stacks that they found."""
        # In this order: the last sample may still be taken.
        samples, keys = _as_rows(self._samples), list(self._rows)
        codes = {number: code for number, (code, _) in list(self._codes.items())}
        lines = {number: _LinesOfCode(code) for number, code in codes.items()}
        frame_rows: dict[tuple[int, int], int] = {}
        frames: list[Frame] = []
        stacks: list[list[int]] = []
        is_stepping = samples[:, 0] == self._native_id
        own_codes = {number for number, code in codes.items() if files[code.co_filename][1]}
        has_own = np.array([not own_codes.isdisjoint(key[::2]) for key in keys] + [False])
        is_alone = not has_own[samples[~is_stepping, 3]].any()
        for key in keys:
            rows = []
            for depth, (code_id, instruction) in enumerate(zip(key[::2], key[1::2])):
                code, module = self._codes[code_id]
                may_wait = not depth and not is_alone
                line = lines[code_id].line(instruction, may_wait=may_wait)
                row = frame_rows.get((code_id, line))
                if row is None:
                    row = frame_rows[code_id, line] = len(frames)
                    path, is_own = files[code.co_filename]
                    frames.append(Frame(module, path, function_name(code), line, is_own))
                rows.append(row)
                if module in _OUTERMOST:
                    break
            stacks.append(rows)
        samples = samples[is_stepping | has_own[samples[:, 3]]]
        parts = [_as_rows(part) for part in self._noted.values()]
        ends, noted = np.cumsum([len(part) for part in parts]), np.concatenate(parts)
        for line in np.unique(noted[:, 3]).tolist():
            if line >= 0:
                file, name, number = self._own_lines.place(line)
                noted[noted[:, 3] == line, 3] = -2 - len(stacks)
                stacks.append([len(frames)])
                frames.append(Frame("", file, name, number, is_own=True))
        noted[:, 3] = np.where(noted[:, 3] < -1, -2 - noted[:, 3], -1)
        sampled = set(samples[:, 0].tolist())
        threads = {
            thread: each for thread, each in (self._threads or {}).items() if thread in sampled
        }
        interval_ns = (self._counted_ns - self._begin_ns) // max(1, self._num_due - 1)
        reads, collections, evaluations, clears = np.split(noted, ends[:-1])
        return PythonStacks(
            *(interval_ns, frames, stacks, samples),
            reads=reads,
            collections=collections,
            evaluations=evaluations,
            clears=clears,
            threads=threads,
            holders=self.holders,
        )

    @property
    def _native_id(self) -> int:
        thread = threading._active.get(self.stepping)  # type: ignore[attr-defined]
        return getattr(thread, "native_id", None) or -1


def _sample_worker(seconds: float) -> PythonStacks:
    """Return the samples of this worker of a DataLoader, for some time."""
    files = UserFiles(Path.cwd())
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(min(switch_s, _SWITCH_SECONDS))
    sampling = _Sampling(_WORKER_INTERVAL_NS, OwnLines(files))
    sampling.stepping = threading.main_thread().ident or 0
    sampling.run(seconds)
    sys.setswitchinterval(switch_s)
    stacks = sampling.stacks(files)
    is_own = [any(stacks.frames[row].is_own for row in stack) for stack in stacks.stacks]
    samples = stacks.samples[np.array([*is_own, False])[stacks.samples[:, 3]]]
    return dataclasses.replace(stacks, samples=samples)


_WORKERS: LoaderStacks | None = None
"""The samples of workers of DataLoaders, which may be forked ahead of any window; None without them."""
if hasattr(os, "memfd_create"):
    with suppress(OSError):
        _WORKERS = LoaderStacks(_sample_worker)


def _thread_times() -> dict[int, tuple[int, int]]:
    """Return for how long each thread ran, and waited for a processor, in ns, by its id; {} where that is unknown."""
    times = {}
    with suppress(OSError, ValueError):  # no Linux
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # the thread has just ended
                ran, waited, _ = (task / "schedstat").read_text(encoding="ascii").split()
                times[int(task.name)] = int(ran), int(waited)
    return times


def _as_rows(numbers: array[int]) -> Int64:
    rows: Int64 = np.frombuffer(numbers.tobytes(), np.int64).reshape(-1, COLUMNS).copy()
    return rows


class _LinesOfCode:
    """The lines of the instructions of a function."""

    def __init__(self, code: CodeType) -> None:
        self._code = code
        starts = [(start, line) for start, line in dis.findlinestarts(code) if line is not None]
        self._starts = [start for start, _ in starts]
        self._lines = [line for _, line in starts]

    def line(self, instruction: int, *, may_wait: bool) -> int:
        """Return the line of an instruction; where a thread may wait, the first line of a loop for its end.

        There, Python may give the lock away to a thread of the training. The instruction has the line of
        the loop's last statement, which is over. Without such a thread, a sample comes there if it was
        due during that statement.
        """
        code = self._code
        if may_wait and instruction >= 0 and dis.opname[code.co_code[instruction]] in _BACKWARDS:
            targets = (i.argval for i in dis.get_instructions(code) if i.offset == instruction)
            instruction = next(targets, instruction)
        number = bisect_right(self._starts, instruction)
        return self._lines[number - 1] if number else code.co_firstlineno


def _source(stacks: PythonStacks, files: UserFiles) -> Mapping[str, Mapping[int, str]]:
    """Return the lines around the own ones with the most time, of files below the folder."""
    times: dict[tuple[str, int], int] = {}
    for row, dur_ns in stacks.samples[:, 3:1:-1].tolist():
        own = (stacks.frames[frame] for frame in stacks.stacks[row]) if row >= 0 else ()
        for line in {(frame.file, frame.line) for frame in own if frame.is_own}:
            times[line] = times.get(line, 0) + dur_ns
    own_lines = sorted(times, key=lambda line: -times[line])[:_MOST_OWN_LINES]
    texts: dict[str, Sequence[str]] = {}
    source: dict[str, dict[int, str]] = {}
    for file, number in own_lines:
        if file not in texts:
            texts[file] = files.lines_of(file)
        lines = texts[file]
        for each in range(max(1, number - _LINES_AROUND), number + _LINES_AROUND + 1):
            if each <= len(lines):
                text = lines[each - 1].rstrip()[:_MOST_LINE]
                source.setdefault(file, {})[each] = text
    return source
