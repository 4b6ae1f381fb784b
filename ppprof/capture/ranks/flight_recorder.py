"""Note the communication operations of this rank, in and outside of windows: the last ones before a hang.

The methods of Paddle's process groups are wrapped while a session is open. ``paddle.distributed``, Fleet's
pipeline, its tensor parallel layers and sharding all come down to them. Not seen: what C++ starts, which is
the gradients' all-reduce of ``paddle.DataParallel`` and the resharding of semi-automatic parallelism.

A call takes some 10 us longer. Nothing is sent, and no thread runs. See `ppprof.rundir.flight` for the
file, and `ppprof.run.hang` for what is read from it.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any, BinaryIO

from paddle.base import core
from paddle.distributed import collective

from ppprof.capture.parts import Ending, FinishedStep, Part
from ppprof.capture.recording.collectives import METHODS, process_groups
from ppprof.capture.recording.patches import Patches, dtype_key
from ppprof.capture.recording.user_files import UserFiles
from ppprof.capture.signals import pass_interruption
from ppprof.rundir.flight import POINT_TO_POINT, FlightRing, stacks_path
from ppprof.rundir.run_file import RunFile
from ppprof.topology import Topology

_ROOTED = frozenset(["broadcast", "reduce"])
"""Operations whose second argument is the root, as a rank of the group."""
_MORE_METHODS = {"barrier": ("barrier", None), "gather": ("gather", 0), "scatter": ("scatter", 0)}
"""As `METHODS`; None without data."""
_HOST_GROUP: tuple[type, ...] = tuple(filter(None, [getattr(core, "ProcessGroupGloo", None)]))
_MOST_FRAMES = 40
_ARM_NS = 1_000_000_000
"""How often the watchdog starts anew at most: that makes a thread."""


class FlightRecorder(Part):
    """Writes the ring of a rank, and the stacks of its threads if no step ends for long.

    Args:
        run: the run directory, an absolute path.
        topology: of the job.
        rank: of this process.
        hang_after: seconds without a step after which the stacks of all threads are written; None to
            write none.

    Raises:
        OSError: the ring cannot be written.
    """

    task = "noting communication"

    def __init__(
        self, run: Path, topology: Topology, rank: int, hang_after: float | None = None
    ) -> None:
        self._topology = topology
        self._ring = FlightRing(run, rank)
        self._step = 0
        self._groups: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._sequences: Counter[tuple[int, str, int]] = Counter()
        self._tasks: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._on_host: weakref.WeakSet[Any] = weakref.WeakSet()
        self._dtypes: dict[int, int] = {}
        self._files = UserFiles(Path.cwd())
        self._is_own: dict[CodeType, bool] = {}
        self._places: dict[tuple[CodeType, int], int] = {}
        self._inside = threading.local()
        self._watchdog = _Watchdog(run, rank, hang_after) if hang_after is not None else None
        self._ring.step(0, time.time_ns())
        self._methods = Patches()
        for kind in process_groups():
            for method, (name, index) in {**METHODS, **_MORE_METHODS}.items():
                call = functools.partial(self._call, self._ring.text(name), name, index)
                for each in (method, f"{method}_on_calc_stream"):
                    self._methods.install(kind, each, call)
        self._methods.install(core.task, "wait", self._wait)

    def on_step(self, step: FinishedStep) -> None:
        """Note that a step has ended."""
        self._step = step.step + 1
        self._ring.step(self._step, time.time_ns())
        if self._watchdog is not None:
            self._watchdog.arm()

    def device_tasks(self) -> list[Any]:
        """Return the operations on a device that were started, and that the training has not waited for."""
        return [task for task in self._tasks if task not in self._on_host]

    def close(self, ending: Ending) -> None:
        """Restore the methods. The ring stays, for a rank that waits for this one."""
        self._methods.uninstall()
        if self._watchdog is not None:
            self._watchdog.cancel()

    def _call(
        self,
        text: int,
        name: str,
        index: int | None,
        method: Callable[..., Any],
        group: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call a method of a process group between two notes."""
        number = 0
        if not getattr(self._inside, "call", False):
            try:
                number = self._note(text, name, index, group, args)
            except Exception as error:  # other arguments than those that are known
                pass_interruption(error)
        if not number:
            return method(group, *args, **kwargs)
        self._inside.call = True
        try:
            task = method(group, *args, **kwargs)
        finally:
            self._inside.call = False
        returned_ns = time.time_ns()
        self._ring.times(number, returned_ns, 0)
        if isinstance(task, core.task):
            self._tasks[task] = number, returned_ns
            if isinstance(group, _HOST_GROUP):
                self._on_host.add(task)
        return task

    def _note(self, text: int, name: str, index: int | None, group: Any, args: Any) -> int:
        known = self._groups.get(id(group)) or self._group(group)
        number, ranks = known
        peer = -1
        if name in POINT_TO_POINT or (name in _ROOTED and type(args[1]) is int):
            peer = ranks[args[1]]
        key = number, name if name in POINT_TO_POINT else "", peer if name in POINT_TO_POINT else -1
        self._sequences[key] += 1
        size = dtype = 0
        if index is not None:
            data = args[index]
            tensors = data if isinstance(data, (list, tuple)) else (data,)
            for tensor in tensors:
                size += int(tensor.size) * tensor.element_size()
            if tensors:
                dtype = self._dtype(tensors[0].dtype)
        return self._ring.add(
            *(number, self._sequences[key], self._step, time.time_ns(), size, peer),
            *(text, dtype, self._place()),
        )

    def _group(self, process_group: Any) -> tuple[int, tuple[int, ...]]:
        """Return the number and the ranks of a group, which is noted when it is first used."""
        for group in collective._get_group_map().values():
            if group.process_group is process_group:
                ranks = tuple(group.ranks)
                axis = self._topology.axis_of(group.ranks)
                self._ring.group(group.id, group.ranks, axis)
                self._groups[id(process_group)] = group.id, ranks
                return group.id, ranks
        raise LookupError("a process group without a number")

    def _dtype(self, dtype: Any) -> int:
        key = dtype_key(dtype)
        if key not in self._dtypes:
            self._dtypes[key] = self._ring.text(str(dtype).rpartition(".")[2])
        return self._dtypes[key]

    def _place(self) -> int:
        """Return the number of the text of the user's innermost line."""
        frame = sys._getframe(3)
        for _ in range(_MOST_FRAMES):
            code = frame.f_code
            is_own = self._is_own.get(code)
            if is_own is None:
                is_own = self._is_own[code] = self._files[code.co_filename][1]
            if is_own:
                key = code, frame.f_lineno or 0
                if key not in self._places:
                    shown = self._files[code.co_filename][0]
                    self._places[key] = self._ring.text(f"{shown}:{key[1]} {code.co_name}")
                return self._places[key]
            if frame.f_back is None:
                break
            frame = frame.f_back
        return 0

    def _wait(self, wait: Callable[..., Any], task: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for a task between two notes."""
        number, returned_ns = self._tasks.pop(task, (0, 0))
        if not number:
            return wait(task, *args, **kwargs)
        self._ring.times(number, returned_ns, -time.time_ns())
        result = wait(task, *args, **kwargs)
        self._ring.times(number, returned_ns, time.time_ns())
        return result


class _Watchdog:
    """Writes the stacks of all threads if it is not armed again in time.

    A thread of Python's faulthandler does, in C: it needs no lock of the interpreter.
    """

    def __init__(self, run: Path, rank: int, seconds: float) -> None:
        self._seconds = seconds
        self._next_ns = 0
        file = RunFile(run, stacks_path(rank))
        file.create()
        with file.appending() as opened:
            self._file: BinaryIO = os.fdopen(os.dup(opened.fileno()), "ab", buffering=0)
        self.arm()

    def arm(self) -> None:
        """Wait for the next step from now on."""
        now = time.monotonic_ns()
        if now >= self._next_ns:
            self._next_ns = now + _ARM_NS
            faulthandler.dump_traceback_later(self._seconds, repeat=True, file=self._file)

    def cancel(self) -> None:
        """End the watch."""
        with suppress(ValueError):
            faulthandler.cancel_dump_traceback_later()
        self._file.close()
