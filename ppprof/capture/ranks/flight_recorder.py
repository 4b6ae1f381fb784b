"""Note the communication operations of this rank, in and outside of windows: the last ones before a hang.

The methods of Paddle's process groups are wrapped while a session is open. ``paddle.distributed``, Fleet's
pipeline, its tensor parallel layers and sharding all come down to them. Not seen: what C++ starts, which is
the resharding of semi-automatic parallelism, and operators that communicate by the number of a group: in Fleet's
``ParallelCrossEntropy``, with ``gather_output=True`` (``c_concat``), and between the experts of MoE layers
(``global_scatter``, ``global_gather``). ``paddle.DataParallel`` reduces gradients in C++ while a backward runs: that
backward is noted as one operation of its group.

The compiled core notes: a call and its wait take 1.9 us longer in a loop, and 15 us where eight ranks share two cores,
so that caches are cold whenever one goes on. Without it, Python notes, in 10 and 67 us: cold code and data are what
it costs. Nothing is sent; a thread looks once a second whether steps end. See `ppprof.rundir.flight` for the file,
and `ppprof.run.hang` for what is read from it.
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
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

import paddle
from paddle.base import core
from paddle.base.framework import EagerParamBase
from paddle.distributed import collective
from paddle.nn import Layer

from ppprof.capture import process
from ppprof.capture.parts import Ending, FinishedStep, Part
from ppprof.capture.ranks.flight_core import FlightCore
from ppprof.capture.recording.collectives import METHODS, data_of, process_groups
from ppprof.capture.recording.patches import Patches, dtype_key
from ppprof.capture.recording.user_files import UserFiles
from ppprof.capture.signals import end_process, ending_signal, pass_interruption
from ppprof.rundir.flight import (
    POINT_TO_POINT,
    REDUCTION,
    STEPS_WENT_ON,
    FlightRing,
    answer_line,
    ending_line,
    open_stacks,
    requested_stacks,
)
from ppprof.topology import Topology

log = logging.getLogger("ppprof")

_ROOTED, _SENDS, _RECEIVES = 1, 2, 3
_WAYS = {
    "broadcast": (_ROOTED, 1),
    "reduce": (_ROOTED, 1),
    "gather": (_ROOTED, 2),
    "scatter": (_ROOTED, 2),
    "send": (_SENDS, 1),
    "recv": (_RECEIVES, 1),
}
"""What one argument of an operation is, as a rank of the group: the root, who receives, or who sends; and its index."""
_MORE_METHODS = {
    "barrier": ("barrier", None),
    "gather": ("gather", 0),
    "scatter": ("scatter", 0),
    "scatter_tensor": ("scatter", 0),
}
"""As `METHODS`; None without data."""
_SHARERS = 2
"""Index of the argument of a ``partial`` method with the number of ranks that share the tensor."""
_HOST_GROUP: tuple[type, ...] = tuple(filter(None, [getattr(core, "ProcessGroupGloo", None)]))
_OTHER, _USERS, _LAYER = 1, 2, 3
"""Kinds of code; from 4 on the phases of `_PHASES`."""
_LAYER_CALLS = frozenset(
    getattr(Layer, name).__code__
    for name in ("__call__", "_dygraph_call_func")
    if hasattr(Layer, name)
)
_PHASES = ("backward", "forward", "optimizer")
_PHASE_OF = {
    **dict.fromkeys(["backward", "_backward_step"], "backward"),
    **dict.fromkeys(["_forward_step"], "forward"),
    **dict.fromkeys(["minimize", "_apply_optimize", "reduce_gradients"], "optimizer"),
}
"""Phases by the name of a function of Paddle that runs in them. The search for it goes outwards, and ends at the
first one that runs the user's line or is run by it."""
_PADDLE = str(Path(paddle.__file__).parent)
_FIRST_OWN_GROUP = 1 << 31
"""From here on groups are numbered that Paddle has not numbered: its numbers count from 0."""
_LOOK_SECONDS = 1.0
"""How often the watch looks whether steps end."""
_REQUEST_SECONDS = 5.0
"""How long no step has ended before the watch looks for a request, and how often it does."""
_Value = TypeVar("_Value")
_DUMP_SECONDS = 2.0
"""How much later than its stacks a rank ends: others write theirs at nearly the same time."""


class _ByObject(dict[int, _Value]):
    """Values by the id of an object, for as long as it lives: a WeakKeyDictionary hashes it, in Python."""

    def __init__(self, forget: Callable[[int], object]) -> None:
        super().__init__()
        self._references: dict[int, weakref.ref[Any]] = {}
        self._called = forget

    def keep(self, key: Any, value: _Value) -> _Value:
        """Set and return the value of an object."""
        self[id(key)] = value
        self._references[id(key)] = weakref.ref(key, functools.partial(self._forget, id(key)))
        return value

    def _forget(self, key: int, _: object) -> None:
        del self[key], self._references[key]
        self._called(key)


class _Group:
    """A group of ranks that communicate."""

    def __init__(self, number: int, ranks: Sequence[int], is_host: bool) -> None:
        self.number = number
        self.ranks = array("i", ranks)
        self.is_host = is_host
        self.sequences = array("I", bytes(4 + 8 * len(ranks)))
        """How many collectives it has called; sends to each rank; receives from each."""
        addresses = self.ranks.buffer_info()[0], self.sequences.buffer_info()[0]
        self._struct = array("q", [number, is_host, len(ranks), *addresses])

    @property
    def address(self) -> int:
        """Of the ``struct group`` of ``flight.c``; 0 for a group of unknown ranks."""
        return self._struct.buffer_info()[0] if self.ranks else 0


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
        self._core: FlightCore | None = None
        self._groups: _ByObject[_Group] = _ByObject(self._forget)
        self._num_own_groups = 0
        self._tasks: dict[int, int] = {}
        """Number of the operation of a task that was not waited for, by the task's id."""
        self._on_device: dict[int, weakref.ref[Any]] = {}
        """Those of `_tasks` that no host executes."""
        self._dtypes: dict[int, int] = {}
        """As `_dtype` returns it, by `dtype_key`."""
        self._files = UserFiles(Path.cwd())
        self._lines: dict[tuple[int, int], int] = {}
        self._names: weakref.WeakKeyDictionary[Layer, str] = weakref.WeakKeyDictionary()
        self._contexts: _ByObject[dict[int, int]] = _ByObject(self._forget)
        """Number of the text for each phase of a layer."""
        self._kinds: dict[int, int] = {}
        self._codes: list[CodeType] = []
        self._thread = threading.get_ident()
        self._spent_ns = 0
        self._reduces_unseen = False
        """Whether C++ has reduced gradients since `take_communication_ns` was called."""
        self._groups_of_reducers: _ByObject[Any] = _ByObject(self._forget_reducer)
        self._due: dict[int, Any] = {}
        """The process groups in which the next backwards reduce gradients, by the id of the reducer."""
        self._ring.step(first_step, time.time_ns())
        self._answers: tuple[Callable[..., int], ...] = (
            *(self._address, self._kind, self._line, self._context),
            *(self._dtype, self._size_of, self._started, self._waited),
        )
        """By the numbers of the questions of ``flight.c``."""
        if dtype_key is id:
            tensors = core.eager.Tensor, EagerParamBase
            with suppress(LookupError, AttributeError):
                self._core = FlightCore(self._ring.address, self._answer, tensors, core.task)
        self._methods = Patches()
        # Other ranks wait for one that has crashed. A single process keeps its own handlers of crashes.
        takes_crashes = topology.world_size > 1 or hang_after is not None
        hang = hang_after, hang_exit_code
        self._watch = _Watch(run, rank, self.step_number, *hang, is_paused, takes_crashes)
        try:
            self._wrap_methods()
        except BaseException:
            self.release()
            raise

    def _wrap_methods(self) -> None:
        for kind, method, name, index in _noted_methods():
            self._methods.replace(kind, method, functools.partial(self._noted, name, index))
        self._methods.replace(core.task, "wait", self._noted_wait)
        if hasattr(core, "EagerReducer"):  # a forward of paddle.DataParallel calls it
            self._methods.install(core.EagerReducer, "prepare_for_backward", self._prepared)
            self._reduced = self._noted(REDUCTION, None, _run_reduction)
            self._methods.install(core.eager, "run_backward", self._backward)

    def _prepared(self, prepare: Callable[..., Any], reducer: Any, *args: Any) -> Any:
        self._reduces_unseen = True
        try:
            group = self._groups_of_reducers.get(id(reducer))
            if group is None:
                # Of the model whose forward calls the wrapper of this method.
                group = sys._getframe(2).f_locals["self"].group.process_group
                self._groups_of_reducers.keep(reducer, group)
            self._due.setdefault(id(reducer), group)
        except Exception as error:  # a reducer of another class
            pass_interruption(error)
        return prepare(reducer, *args)

    def _backward(self, run_backward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a backward behind a forward of ``paddle.DataParallel``: it reduces gradients.

        Of two models in one group, each reduces in a backward of its own.
        """
        if not self._due:
            return run_backward(*args, **kwargs)
        self._reduces_unseen = True
        run, groups = functools.partial(run_backward, *args, **kwargs), list[Any]()
        for reducer, group in list(self._due.items()):
            if group not in groups:  # else in a backward of its own
                self._due.pop(reducer, None)
                groups.append(group)
                run = functools.partial(self._reduced, group, run)
        return run()

    def step_number(self) -> int:
        """Return the number of the step that has not ended."""
        return self._step

    def on_step(self, step: FinishedStep) -> None:
        """Note that a step has ended."""
        self._step = step.step + 1
        self._ring.step(self._step, time.time_ns())

    def take_communication_ns(self) -> int | None:
        """Return for how long the thread that ends steps was in calls of communication, or waited for them.

        Since the last call, which is in the thread that ends steps, too. None if `paddle.DataParallel` has
        reduced gradients since then: it waits for other ranks in C++, for an unknown time.
        """
        self._thread = threading.get_ident()
        spent_ns, self._spent_ns = self._spent_ns, 0
        if self._core is not None:
            spent_ns = self._core.spent_ns()
        is_known, self._reduces_unseen = not self._reduces_unseen, False
        return spent_ns if is_known else None

    def device_tasks(self) -> list[Any]:
        """Return the operations on a device that were started, and that the training has not waited for."""
        tasks = [reference() for reference in self._on_device.values()]
        return [task for task in tasks if task is not None]

    def close(self, ending: Ending) -> None:
        """Release, as the training ends."""
        self.release()

    def on_signal(self) -> None:
        """Write where all threads are: a rank that others waited for has no last words else."""
        self._watch.write(ending_line(ending_signal() or "SIGTERM", time.time_ns()))

    def release(self) -> None:
        """Restore the methods, and end the watch. The ring stays, for a rank that waits for this one."""
        self._methods.uninstall()
        if self._core is not None:
            self._core.close()
        self._watch.close()

    def _noted(
        self, name: str, index: int | None, method: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return a method of a process group that calls ``method`` between two notes."""
        text, (way, peer_index) = self._ring.text(name), _WAYS.get(name, (0, 0))
        sharers = _SHARERS if "partial" in method.__name__ else None
        if self._core is not None:
            return self._core.noted(method, text, index, way, peer_index, sharers)

        def noted(group: Any, /, *args: Any, **kwargs: Any) -> Any:
            number = 0
            try:
                number = self._note(text, index, way, peer_index, sharers, group, args)
            except Exception as error:  # other arguments than those that are known
                pass_interruption(error)
            called_ns = time.time_ns()
            try:
                task = method(group, *args, **kwargs)
            except BaseException:
                if number:
                    self._ring.returned(number, -time.time_ns())
                raise
            returned_ns = time.time_ns()
            if number:
                self._ring.returned(number, returned_ns)
            self._spend(returned_ns - called_ns)  # also of an operation that cannot be noted
            if isinstance(task, core.task):
                self._tasks[id(task)] = number
                if number and not isinstance(group, _HOST_GROUP):
                    self._started(task)
            return task

        return noted

    def _note(
        self,
        text: int,
        index: int | None,
        way: int,
        peer_index: int,
        sharers: int | None,
        process_group: Any,
        args: tuple[Any, ...],
    ) -> int:
        """Note a call of a method; return the operation's number, 0 if its group is unknown."""
        group = self._group(process_group)
        if not group.ranks:
            return 0
        peer, key = -1, 0
        if way >= _SENDS:
            peer = group.ranks[args[peer_index]]
            key = 1 + args[peer_index] + (len(group.ranks) if way == _RECEIVES else 0)
        elif way and type(root := next(iter(args[peer_index:]), None)) is int:
            peer = group.ranks[root]
        size = 0 if index is None else self._size(data_of(index, args))
        if sharers is not None:
            size = (size >> 16) // args[sharers] << 16 | size & 0xFFFF
        place, context = self._origin()
        group.sequences[key] += 1
        return self._ring.add(
            *(group.number, group.sequences[key], self._step, time.time_ns(), size >> 16, peer),
            *(text, size & 0xFFFF, place, context),
        )

    def _spend(self, ns: int) -> None:
        if threading.get_ident() == self._thread:
            self._spent_ns += ns

    # Answers to the compiled core, which keeps them. Without it, the methods above ask the same.

    def _answer(self, question: int, *about: Any) -> int:
        """Return the answer to a question of ``flight.c``; -1 if the operation cannot be noted."""
        try:
            return self._answers[question](*about)
        except Exception as error:
            pass_interruption(error)
            return -1

    def _forget(self, key: int) -> None:
        """Let the compiled core ask again: an object has died, and its id may be another's."""
        if self._core is not None:
            self._core.forget(key)

    def _forget_reducer(self, key: int) -> None:
        self._due.pop(key, None)

    def _address(self, process_group: Any) -> int:
        return self._group(process_group).address

    def _started(self, task: Any) -> int:
        self._on_device[id(task)] = weakref.ref(task)
        return 0

    def _waited(self, task: Any) -> int:
        self._on_device.pop(id(task), None)
        return 0

    def _dtype(self, tensor: Any) -> int:
        """Return the bytes of an element, shifted by 16 bits, and the number of the text for its type."""
        key = dtype_key(tensor.dtype)
        if key not in self._dtypes:
            text = self._ring.text(str(tensor.dtype).rpartition(".")[2])
            self._dtypes[key] = tensor.element_size() << 16 | text
        return self._dtypes[key]

    def _size_of(self, *args: Any) -> int:
        """Return the size of an argument that is no tensor, as `_size`; the argument behind it may be the data."""
        return self._size(data_of(0, args))

    def _size(self, data: Any) -> int:
        """Return the bytes of a tensor or of several, shifted by 16 bits, and the number of the text for the first one's type."""
        tensors = data if isinstance(data, (list, tuple)) else (data,)
        size = 0
        for tensor in tensors:
            size += (self._dtype(tensor) >> 16) * math.prod(tensor.shape)  # `size` takes 5 us
        return size << 16 | (self._dtype(tensors[0]) & 0xFFFF if tensors else 0)

    def _group(self, process_group: Any) -> _Group:
        """Return a group, which is noted when it is first used; one of no ranks if its ranks are unknown."""
        known = self._groups.get(id(process_group))
        if known is not None:
            return known
        number, ranks = self._members(process_group)
        is_host = isinstance(process_group, _HOST_GROUP)
        if ranks:
            self._ring.group(number, ranks, self._topology.axis_of(ranks), not is_host)
        return self._groups.keep(process_group, _Group(number, ranks, is_host))

    def _members(self, process_group: Any) -> tuple[int, Sequence[int]]:
        """Return the number and the ranks of a group.

        A group that was made without Paddle's `new_group` has no number there. If it has as many ranks as the
        job, they are known, and it is the 1st, 2nd... of these: ranks use them in one order.
        """
        for group in collective._get_group_map().values():
            if group.process_group is process_group:
                return group.id, group.ranks
        if process_group.size() != self._topology.world_size:
            return 0, ()
        self._num_own_groups += 1
        return _FIRST_OWN_GROUP + self._num_own_groups, range(self._topology.world_size)

    def _origin(self) -> tuple[int, int]:
        """Return the numbers of two texts: the user's innermost line, and the phase and module."""
        frame: FrameType | None = sys._getframe(3)
        user = inner = outer = None
        phase, kinds = 0, self._kinds
        while frame is not None and not (user and phase):
            kind = kinds.get(id(frame.f_code))  # hashing a code hashes its names and constants
            if kind is None:
                kind = self._kind(frame.f_code)
            if kind == _USERS:
                user = user or frame
            elif kind == _LAYER:
                inner, outer = inner or frame, frame
            elif kind > _LAYER:
                phase = kind
            frame = frame.f_back
        context = self._context(phase, inner, outer)
        return self._line(user) if user else 0, context

    def _kind(self, code: CodeType) -> int:
        """Return `_USERS`, `_LAYER`, the phase that a function of Paddle runs in, or `_OTHER`; keep it."""
        self._codes.append(code)  # so that its id stays its own
        kind = self._kinds[id(code)] = self._kind_of(code)
        return kind

    def _kind_of(self, code: CodeType) -> int:
        if self._files[code.co_filename][1]:
            return _USERS
        if code in _LAYER_CALLS:
            return _LAYER
        if not code.co_filename.startswith(_PADDLE):
            return _OTHER
        is_optimizer = code.co_name == "step" and "optimizer" in code.co_filename
        phase = "optimizer" if is_optimizer else _PHASE_OF.get(code.co_name, "")
        return _LAYER + 1 + _PHASES.index(phase) if phase else _OTHER

    def _line(self, frame: FrameType) -> int:
        code = frame.f_code
        key = id(code), frame.f_lasti
        if key not in self._lines:
            shown, line = self._files[code.co_filename][0], frame.f_lineno or 0
            self._lines[key] = self._ring.text(f"{shown}:{line} {code.co_name}")
        return self._lines[key]

    def _context(
        self, kind: int, inner: FrameType | None = None, outer: FrameType | None = None
    ) -> int:
        """Return the number of the text for a phase and the innermost of the layers that are called.

        Only locals of Paddle's own frames are read: those that are read stay alive until their frame ends.
        """
        phase = _PHASES[kind - _LAYER - 1] if kind else "forward" if inner else "?"
        layer = inner.f_locals.get("self") if inner else None
        if not isinstance(layer, Layer):
            return self._ring.text(phase)
        contexts = self._contexts.get(id(layer))
        if contexts is None:
            contexts = self._contexts.keep(layer, {})
        if kind not in contexts:
            if (
                layer not in self._names
            ):  # forward comes first: in a backward, the outermost layer is no model
                self._names[layer] = layer_name(layer, outer.f_locals["self"] if outer else layer)
            contexts[kind] = self._ring.text(f"{phase} of {self._names[layer]}")
        return contexts[kind]

    def _noted_wait(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        """Return a task's ``wait`` that notes when it begins and ends."""
        if self._core is not None:
            return self._core.noted_wait(wait)

        def noted(task: Any, /, *args: Any, **kwargs: Any) -> Any:
            number = self._tasks.pop(id(task), 0)
            is_on_device = id(task) in self._on_device
            begin_ns = time.time_ns()
            if number:
                self._waited(task)
                self._ring.waited(number, -begin_ns)
            try:
                result = wait(task, *args, **kwargs)
            except BaseException:
                if number:
                    self._ring.returned(number, -time.time_ns())
                raise
            end_ns = time.time_ns()
            if number:
                self._ring.waited(number, 0 if is_on_device else end_ns)
            self._spend(end_ns - begin_ns)
            return result

        return noted


def _run_reduction(group: Any, run: Callable[[], Any]) -> Any:
    """Run a backward, as a method of the process group in which it reduces gradients."""
    return run()


def _noted_methods() -> Iterator[tuple[type, str, str, int | None]]:
    """Yield class and method, and for these the operation's name and the index of the argument with its data."""
    for kind in process_groups():
        for method, (name, index) in {**METHODS, **_MORE_METHODS}.items():
            for each in (method, f"{method}_on_calc_stream"):
                yield kind, each, name, index


def transfer_methods() -> list[tuple[type, str]]:
    """Return the methods of process groups that send or receive: each class, and a method's name."""
    return [(kind, method) for kind, method, name, _ in _noted_methods() if name in POINT_TO_POINT]


def layer_name(layer: Layer, model: Layer) -> str:
    """Return the attribute that leads from a model to a layer, and its class: ``blocks.0 (Block)``."""
    names = (name for name, each in model.named_sublayers() if each is layer)
    kind, name = type(layer).__name__, next(names, "")
    return f"{name} ({kind})" if name else kind


_handling: weakref.WeakSet[_Watch] = weakref.WeakSet()
"""The watch that handles crashes."""


def _disable_in_child() -> None:
    """Let a forked process crash without writing stacks, which would be taken for the rank's."""
    if _handling:
        faulthandler.disable()


os.register_at_fork(after_in_child=_disable_in_child)


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
        takes_crashes: bool = True,
    ) -> None:
        self._run, self._rank = run, rank
        self._step_number = step_number
        self._seconds = hang_after
        self._patience = math.inf if hang_after is None else hang_after + _DUMP_SECONDS
        self._exit_code = hang_exit_code
        self._is_paused = is_paused
        self._file = process.Descriptor(process.with_high_number(open_stacks(run, rank)))
        self._size = os.fstat(self._file.fd).st_size
        """Of the file, when its last stacks were known to be old."""
        self._handles_crashes = takes_crashes and not faulthandler.is_enabled()
        self._ends = threading.Event()
        try:
            self._thread = process.start_thread(self._look, "the flight recorder")
        except BaseException:
            self._file.close()
            raise
        if self._handles_crashes:
            faulthandler.enable(self._file.fd)
            _handling.add(self)
        self._arm()

    def close(self) -> None:
        """End the watch."""
        self._ends.set()
        self._thread.join(_LOOK_SECONDS)
        if self._seconds is not None:
            faulthandler.cancel_dump_traceback_later()
        if self._handles_crashes:
            faulthandler.disable()
            _handling.discard(self)
        self._file.close()

    def _arm(self) -> None:
        if self._seconds is not None and self._file.is_ours:
            faulthandler.dump_traceback_later(self._seconds, repeat=True, file=self._file.fd)

    def _look(self) -> None:
        step, looked = self._step_number(), time.monotonic()
        idle = 0.0
        next_request, answered, is_written = looked + _REQUEST_SECONDS, "", False
        while not self._ends.wait(_LOOK_SECONDS):
            now = time.monotonic()
            # A job that is suspended for long, as by its scheduler, does not hang.
            idle += min(now - looked, 2 * _LOOK_SECONDS)
            looked = now
            has_moved = step != self._step_number()
            if has_moved:
                next_request, is_written = now + _REQUEST_SECONDS, False
                self._end_stacks()
            if has_moved or self._is_paused():  # a pause may hang, too: it answers requests
                step, idle = self._step_number(), 0.0
                self._arm()
            if now >= next_request:
                next_request = now + _REQUEST_SECONDS
                if not is_written:
                    is_written = True
                    self._write_through()
                request = requested_stacks(self._run, self._rank)
                if request not in ("", answered):
                    answered = request
                    self.write(answer_line(request))
                    self._write_through()
            if self._exit_code is not None and idle >= self._patience:
                log.error(
                    f"rank {self._rank}: no step has ended for {idle:.0f} s: this process ends with "
                    f"exit code {self._exit_code} (Profiler.hang_exit_code); the cause: "
                    f"ppprof hang {self._run}"
                )
                end_process(self._exit_code)

    def _end_stacks(self) -> None:
        """Say behind stacks that have been written since the last call that they are old."""
        if self._file.is_ours and os.fstat(self._file.fd).st_size != self._size:
            os.write(self._file.fd, f"{STEPS_WENT_ON}\n".encode())
            self._size = os.fstat(self._file.fd).st_size

    def write(self, reason: bytes) -> None:
        """Write the stacks of all threads behind a line with the reason."""
        if self._file.is_ours:
            os.write(self._file.fd, reason)
            faulthandler.dump_traceback(self._file.fd)

    def _write_through(self) -> None:
        """Write the ring and the stacks to the disk: on NFS, other hosts see them some 30 s later else.

        Unlike the flush of a mapped file, it lets other threads run.
        """
        with suppress(OSError):
            os.fsync(self._file.fd)
