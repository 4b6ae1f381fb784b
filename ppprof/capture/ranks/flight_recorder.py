"""Note the communication operations of this rank, in and outside of windows: the last ones before a hang.

The methods of Paddle's process groups are wrapped while a session is open. ``paddle.distributed``, Fleet's
pipeline, its tensor parallel layers and sharding all come down to them. Not seen: what C++ starts, which is
the gradients' all-reduce of ``paddle.DataParallel`` and the resharding of semi-automatic parallelism.

A call takes 9 us longer in a loop under 9 layers, and some 95 us in a job whose caches are cold. Nothing is sent; a thread looks once a second whether steps end. See
`ppprof.rundir.flight` for the file, and `ppprof.run.hang` for what is read from it.
"""

from __future__ import annotations

import faulthandler
import functools
import logging
import math
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import paddle
from paddle.base import core
from paddle.distributed import collective
from paddle.nn import Layer

from ppprof.capture import process
from ppprof.capture.parts import Ending, FinishedStep, Part
from ppprof.capture.recording.collectives import METHODS, process_groups
from ppprof.capture.recording.patches import Patches, dtype_key
from ppprof.capture.recording.user_files import UserFiles
from ppprof.capture.signals import end_process, pass_interruption
from ppprof.rundir.flight import (
    POINT_TO_POINT,
    FlightRing,
    answer_line,
    open_stacks,
    requested_stacks,
)
from ppprof.topology import Topology

log = logging.getLogger("ppprof")

_ROOTED = frozenset(["broadcast", "reduce"])
"""Operations whose second argument is the root, as a rank of the group."""
_MORE_METHODS = {"barrier": ("barrier", None), "gather": ("gather", 0), "scatter": ("scatter", 0)}
"""As `METHODS`; None without data."""
_HOST_GROUP: tuple[type, ...] = tuple(filter(None, [getattr(core, "ProcessGroupGloo", None)]))
_USERS, _LAYER = "user's", "layer"
_LAYER_CALLS = frozenset(
    getattr(Layer, name).__code__
    for name in ("__call__", "_dygraph_call_func")
    if hasattr(Layer, name)
)
_PHASES = {
    **dict.fromkeys(["backward", "_backward_step"], "backward"),
    **dict.fromkeys(["_forward_step"], "forward"),
    **dict.fromkeys(["minimize", "_apply_optimize", "reduce_gradients"], "optimizer"),
}
"""Phases by the name of a function of Paddle that runs in them; the outermost one counts."""
_PADDLE = str(Path(paddle.__file__).parent)
_LOOK_SECONDS = 1.0
"""How often the watch looks whether steps end."""
_REQUEST_SECONDS = 5.0
"""How long no step has ended before the watch looks for a request, and how often it does."""
_DUMP_SECONDS = 2.0
"""How much later than its stacks a rank ends: others write theirs at nearly the same time."""


class FlightRecorder(Part):
    """Writes the ring of a rank, and the stacks of its threads if no step ends for long.

    Args:
        run: the run directory, an absolute path.
        topology: of the job.
        rank: of this process.
        hang_after: seconds without a step after which the stacks of all threads are written; None to
            write none.
        hang_exit_code: what the process ends with then; None to let it run.
        is_paused: returns whether the training has paused its steps: that time does not count.
        first_step: number of the training's first step.

    Raises:
        OSError: the ring cannot be written.
    """

    task = "noting communication"

    def __init__(
        self,
        run: Path,
        topology: Topology,
        rank: int,
        hang_after: float | None,
        hang_exit_code: int | None,
        is_paused: Callable[[], bool],
        first_step: int = 0,
    ) -> None:
        self._topology = topology
        self._ring = FlightRing(run, rank)
        self._step = first_step
        self._groups: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._sequences: Counter[tuple[int, str, int]] = Counter()
        self._tasks: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._on_host: weakref.WeakSet[Any] = weakref.WeakSet()
        self._dtypes: dict[int, int] = {}
        self._files = UserFiles(Path.cwd())
        self._places: dict[tuple[int, int], int] = {}
        self._contexts: weakref.WeakKeyDictionary[Layer, dict[str, str]] = (
            weakref.WeakKeyDictionary()
        )
        self._kinds: dict[int, str] = {}
        self._codes: list[CodeType] = []
        self._inside = threading.local()
        self._thread = threading.get_ident()
        self._spent_ns = 0
        self._step_spent_ns = 0
        self._ring.step(first_step, time.time_ns())
        self._methods = Patches()
        for kind in process_groups():
            for method, (name, index) in {**METHODS, **_MORE_METHODS}.items():
                call = functools.partial(self._call, self._ring.text(name), name, index)
                for each in (method, f"{method}_on_calc_stream"):
                    self._methods.install(kind, each, call)
        self._methods.install(core.task, "wait", self._wait)
        self._watch = _Watch(run, rank, self.step_number, hang_after, hang_exit_code, is_paused)

    def step_number(self) -> int:
        """Return the number of the step that has not ended."""
        return self._step

    def on_step(self, step: FinishedStep) -> None:
        """Note that a step has ended."""
        self._step_spent_ns, self._spent_ns = self._spent_ns, 0
        self._thread = threading.get_ident()
        self._step = step.step + 1
        self._ring.step(self._step, time.time_ns())

    def communication_ns(self) -> int:
        """Return for how long the thread that ends steps was in calls of communication, or waited for them.

        In the step that has ended last.
        """
        return self._step_spent_ns

    def device_tasks(self) -> list[Any]:
        """Return the operations on a device that were started, and that the training has not waited for."""
        return [task for task in self._tasks if task not in self._on_host]

    def close(self, ending: Ending) -> None:
        """Restore the methods. The ring stays, for a rank that waits for this one."""
        self._methods.uninstall()
        self._watch.close()

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
        called_ns = time.time_ns()
        try:
            task = method(group, *args, **kwargs)
        finally:
            self._inside.call = False
        returned_ns = time.time_ns()
        self._ring.times(number, returned_ns, 0)
        self._spend(returned_ns - called_ns)
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
                size += math.prod(tensor.shape) * tensor.element_size()  # `size` takes 5 us
            if tensors:
                dtype = self._dtype(tensors[0].dtype)
        return self._ring.add(
            *(number, self._sequences[key], self._step, time.time_ns(), size, peer),
            *(text, dtype, *self._origin()),
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

    def _origin(self) -> tuple[int, int]:
        """Return the numbers of two texts: the user's innermost line, and the phase and module."""
        frame: FrameType | None = sys._getframe(3)
        user = inner = outer = None
        phase, kinds = "", self._kinds
        while frame is not None:
            kind = kinds.get(id(frame.f_code))  # hashing a code hashes its names and constants
            if kind is None:
                kind = self._kind(frame.f_code)
            if kind:  # most frames have none, and this loop takes most of the time of a note
                if kind == _USERS:
                    user = user or frame
                elif kind == _LAYER:
                    inner, outer = inner or frame, frame
                else:
                    phase = kind
            frame = frame.f_back
        context = self._context(phase or ("forward" if inner else "?"), inner, outer)
        return self._line(user) if user else 0, context

    def _kind(self, code: CodeType) -> str:
        """Return `_USERS`, `_LAYER`, the phase that a function of Paddle runs in, or "" for any other; keep it."""
        self._codes.append(code)  # so that its id stays its own
        kind = self._kinds[id(code)] = self._kind_of(code)
        return kind

    def _kind_of(self, code: CodeType) -> str:
        if self._files[code.co_filename][1]:
            return _USERS
        if code in _LAYER_CALLS:
            return _LAYER
        if not code.co_filename.startswith(_PADDLE):
            return ""
        is_optimizer = code.co_name == "step" and "optimizer" in code.co_filename
        return "optimizer" if is_optimizer else _PHASES.get(code.co_name, "")

    def _line(self, frame: FrameType) -> int:
        code, line = frame.f_code, frame.f_lineno or 0
        key = id(code), line
        if key not in self._places:
            shown = self._files[code.co_filename][0]
            self._places[key] = self._ring.text(f"{shown}:{line} {code.co_name}")
        return self._places[key]

    def _context(self, phase: str, inner: FrameType | None, outer: FrameType | None) -> int:
        """Return the number of the text for a phase and the innermost of the layers that are called.

        Only locals of Paddle's own frames are read: those that are read stay alive until their frame ends.
        """
        layer = inner.f_locals.get("self") if inner else None
        if not isinstance(layer, Layer):
            return self._ring.text(phase)
        texts = self._contexts.get(layer)
        if texts is None:  # forward comes first: within a backward, the outermost layer is no model
            model = outer.f_locals["self"] if outer else layer
            texts = self._contexts[layer] = {"": layer_name(layer, model)}
        if phase not in texts:
            texts[phase] = f"{phase} of {texts['']}"
        return self._ring.text(texts[phase])

    def _wait(self, wait: Callable[..., Any], task: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for a task between two notes."""
        number, returned_ns = self._tasks.pop(task, (0, 0))
        if not number:
            return wait(task, *args, **kwargs)
        begin_ns = time.time_ns()
        self._ring.times(number, returned_ns, -begin_ns)
        result = wait(task, *args, **kwargs)
        end_ns = time.time_ns()
        self._ring.times(number, returned_ns, end_ns)
        self._spend(end_ns - begin_ns)
        return result

    def _spend(self, ns: int) -> None:
        if threading.get_ident() == self._thread:
            self._spent_ns += max(ns, 0)


def layer_name(layer: Layer, model: Layer) -> str:
    """Return the attribute that leads from a model to a layer, and its class: ``blocks.0 (Block)``."""
    names = (name for name, each in model.named_sublayers() if each is layer)
    kind, name = type(layer).__name__, next(names, "")
    return f"{name} ({kind})" if name else kind


class _Watch:
    """Writes the stacks of all threads after a crash, on request, and if no step ends for long.

    Python's faulthandler does, in C: after a crash and for ``hang_after`` it needs no lock of the
    interpreter. A request is answered by the thread of the watch, which needs it.
    """

    def __init__(
        self,
        run: Path,
        rank: int,
        step_number: Callable[[], int],
        hang_after: float | None,
        hang_exit_code: int | None,
        is_paused: Callable[[], bool],
    ) -> None:
        self._run, self._rank = run, rank
        self._step_number = step_number
        self._seconds = hang_after
        self._patience = math.inf if hang_after is None else hang_after + _DUMP_SECONDS
        self._exit_code = hang_exit_code
        self._is_paused = is_paused
        self._file = process.Descriptor(process.with_high_number(open_stacks(run, rank)))
        self._handles_crashes = not faulthandler.is_enabled()
        if self._handles_crashes:
            faulthandler.enable(self._file.fd)
        self._ends = threading.Event()
        self._arm()
        self._thread = process.start_thread(self._look, "the flight recorder")

    def close(self) -> None:
        """End the watch."""
        self._ends.set()
        self._thread.join(_LOOK_SECONDS)
        if self._seconds is not None:
            faulthandler.cancel_dump_traceback_later()
        if self._handles_crashes:
            faulthandler.disable()
        self._file.close()

    def _arm(self) -> None:
        if self._seconds is not None and self._file.is_ours:
            faulthandler.dump_traceback_later(self._seconds, repeat=True, file=self._file.fd)

    def _look(self) -> None:
        step, since = self._step_number(), time.monotonic()
        next_request, answered = since + _REQUEST_SECONDS, ""
        while not self._ends.wait(_LOOK_SECONDS):
            now = time.monotonic()
            if step != self._step_number() or self._is_paused():
                step, since = self._step_number(), now
                next_request = now + _REQUEST_SECONDS
                self._arm()
            elif now >= next_request:
                next_request = now + _REQUEST_SECONDS
                request = requested_stacks(self._run, self._rank)
                if request not in ("", answered) and self._file.is_ours:
                    answered = request
                    os.write(self._file.fd, answer_line(request))
                    faulthandler.dump_traceback(self._file.fd)
            if self._exit_code is not None and now - since >= self._patience:
                log.error(
                    f"rank {self._rank}: no step has ended for {now - since:.0f} s: this process ends with "
                    f"exit code {self._exit_code} (Profiler.hang_exit_code); the cause: "
                    f"ppprof hang {self._run}"
                )
                end_process(self._exit_code)
