"""Profile functions called on other processes as part of the caller's window.

`profiled` returns a picklable callable: send it to a process pool, a Dask worker, or through
any other carrier. If the caller records a window at that time, the worker records the
function with the caller's settings. It returns a `RemoteResult`, which holds result and events in one
message. `result` extracts the result::

    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        future = pool.submit(ppprof.remote.profiled(encode), batch)
        codes = ppprof.remote.result(future.result())

        codes = ppprof.remote.submit(pool, encode, batch).result()  # both lines above in one

`ppprof.capture.recording.rpc` sends the calls of ``paddle.distributed.rpc`` in this way.

Both sides read their clocks when the call and the answer are pickled and unpickled
(`ppprof.rundir.remote_calls`), so no extra message is needed. The worker needs ppprof. If Paddle is
not loaded on the worker, or a profiler is open there already, only the call's times are recorded.
If the worker makes remote calls itself, its answer carries them too. Pools must spawn their
processes, since Paddle does not survive a fork.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import re
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from ppprof.capture.attached import open_calls_folder, open_window
from ppprof.capture.output import log_to_stderr
from ppprof.capture.ranks.job import rpc_name
from ppprof.capture.recording.call_samples import LineSampler, size_of
from ppprof.capture.recording.user_files import OwnLines, UserFiles
from ppprof.rundir.remote_calls import RemoteCall, has_call, write_call
from ppprof.rundir.run_file import RunFile

log = logging.getLogger("ppprof")

Recorded = tuple[RemoteCall, bytes]
"""A call, and the bytes of its recording (Paddle's ``.pb``); empty if nothing was recorded."""


def profiled(
    function: Callable[..., Any], name: str | None = None, to: str | None = None, carrier: str = ""
) -> Callable[..., RemoteResult]:
    """Return a callable that runs the function, records it on the worker, and returns a `RemoteResult`.

    If an argument of the callable is a `RemoteResult` of another call, the function gets its result. The
    function runs without recording if no window is open when the callable is pickled, or if the
    callable is never pickled. An exception of the function is raised unchanged.

    Args:
        function: any function that can be pickled.
        name: the call's name in traces and tables; by default the function's name.
        to: the worker's name in traces and tables. By default its name in
            ``paddle.distributed.rpc``, in Dask or in ``multiprocessing``, or else ``host:pid``.
        carrier: ``rpc`` if the caller records its waits as spans `ppprof.remote_names.WAIT`.
    """
    return _Profiled(function, name or _name_of(function), to, carrier)


def is_profiled(function: Any, carrier: str = "") -> bool:
    """Return whether ``function`` comes from `profiled`, called with this ``carrier``."""
    return isinstance(function, _Profiled) and function._carrier == carrier


def result(answer: Any) -> Any:
    """Return the function's result from a `RemoteResult`; return any other value unchanged."""
    return answer.value if isinstance(answer, RemoteResult) else answer


def submit(executor: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
    """Submit a `profiled` function; return a future of the function's result, not of a `RemoteResult`.

    Cancelling the future also tries to cancel the call.

    Args:
        executor: a ``concurrent.futures.Executor`` or a Dask client.
        function: a function that the executor can pickle.
        args: arguments of the function.
        kwargs: keyword arguments of the function or of the client's ``submit``.
    """
    inner = executor.submit(profiled(function), *args, **kwargs)
    outer: Future[Any] = Future()

    def copy_result(future: Any) -> None:
        if future.cancelled():
            outer.cancel()
        if not outer.set_running_or_notify_cancel():
            return
        error = future.exception()
        if error is not None:
            outer.set_exception(error)
        else:
            outer.set_result(result(future.result()))

    outer.add_done_callback(lambda future: inner.cancel() if future.cancelled() else None)
    inner.add_done_callback(copy_result)
    return outer


class RemoteResult:
    """The result of a call, and its recording: the call itself, then the remote calls it made.

    Unpickling an answer in the caller's process has an effect: it adds the recording to the window,
    or to the remote call, that made the call. If the window has closed, the recording is skipped
    with a warning.
    """

    def __init__(self, value: Any, origin: _Origin | None = None, calls: tuple[Recorded, ...] = ()):
        self.value = value
        """The function's return value; None if the function raised an exception."""
        self._origin = origin
        self._calls = calls

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_calls": self._stamped("left_ns")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # A process that forwards the answer also unpickles it. The last time stamp counts.
        self._calls = self._stamped("received_ns", again=True)
        if self._origin is not None and self._calls:
            _store_calls(self._origin.scope, self._calls)

    def _stamped(self, when: str, again: bool = False) -> tuple[Recorded, ...]:
        if not self._calls or (getattr(self._calls[0][0], when) and not again):
            return self._calls
        (call, raw), *inner = self._calls
        times: dict[str, Any] = {when: time.time_ns()}
        return ((replace(call, **times), raw), *inner)


@dataclass(frozen=True)
class _Origin:
    """The data that a worker needs about the caller; it is pickled with the call."""

    scope: str
    """Path of the calls folder of the caller's segment of its window. For a call that a remote call
    sends, the id of that remote call."""
    parent: str | None
    """Id of the remote call that makes this one; None if the recorded rank itself makes it."""
    caller: str
    """Name of the calling process."""
    settings: Mapping[str, Any]
    """The caller's ``Profiler`` block as plain values."""
    sent_ns: int
    line: str = ""  # here and below, a caller with an earlier ppprof sends none
    """The caller's line that makes the call: `RemoteCall.line`."""
    carrier: str = ""
    """`RemoteCall.carrier`."""


@dataclass(frozen=True)
class _Scope:
    """A remote call that runs in this process, and the recorded remote calls that it made."""

    id: str
    worker: str
    settings: Mapping[str, Any]
    calls: list[Recorded] = field(default_factory=list)


_running: ContextVar[_Scope | None] = ContextVar("_running", default=None)
_scopes: dict[str, _Scope] = {}
"""Remote calls that run in this process, keyed by id. The remote calls that they make may be
answered in any thread."""
_sent: set[str] = set()
"""Calls folders of the segments of windows in which this process has sent remote calls."""
_warned: set[str] = set()


class _Profiled:
    """The callable that `profiled` returns: pickled when it is sent, unpickled when it arrives."""

    _line = _carrier = ""  # of one that a process with an earlier ppprof has made

    def __init__(
        self, function: Callable[..., Any], name: str, to: str | None, carrier: str
    ) -> None:
        self._function = function
        self._name = self.__name__ = name  # Dask shows __name__
        self._to = to
        self._origin: _Origin | None = None
        self._arrived_ns = 0
        # Read it now: executors pickle in their own threads, which do not have this context.
        self._scope = _running.get()
        self._line = _line_of(sys._getframe(1)) if self._scope or open_window() else ""
        self._carrier = carrier

    def __getstate__(self) -> dict[str, Any]:
        origin = self._origin  # a scheduler forwards its origin
        if origin is None:
            origin = _current_origin(self._scope, self._line, self._carrier)
        return {**self.__dict__, "_origin": origin, "_scope": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._arrived_ns = time.time_ns()

    def __call__(self, *args: Any, **kwargs: Any) -> RemoteResult:
        called_ns = time.time_ns()
        # Dask passes the answer of one call as an argument of the next.
        args = tuple(map(result, args))
        kwargs = {name: result(value) for name, value in kwargs.items()}
        if self._origin is None:  # the caller does not record, or the call is local
            return RemoteResult(self._function(*args, **kwargs))
        call = _RecordedCall(self._origin, self._name, self._to, self._arrived_ns, called_ns)
        try:
            value = self._function(*args, **kwargs)
        except BaseException as error:
            answer = RemoteResult(None, self._origin, call.end((args, kwargs)))
            with suppress(Exception):  # attributes of an exception are pickled with it
                error.__dict__["_ppprof_answer"] = answer
            raise
        return RemoteResult(value, self._origin, call.end((args, kwargs, value)))


def _current_origin(scope: _Scope | None, line: str, carrier: str) -> _Origin | None:
    """Return the origin of a call that is sent now; None if the call will not be recorded.

    A call is not recorded if no window is open, or if the remote call that sends it has ended
    already. An unexpected error is logged, and the call is not recorded.
    """
    try:
        if scope is not None:
            if scope.id not in _scopes:  # that call has ended
                return None
            return _Origin(
                scope.id, scope.id, scope.worker, scope.settings, time.time_ns(), line, carrier
            )
        window = open_window()
        if window is None:
            return None
        _sent.add(str(window.calls))
        caller = rpc_name() or f"worker{window.rank}"
        return _Origin(
            str(window.calls), None, caller, window.settings, time.time_ns(), line, carrier
        )
    except Exception as error:
        _warn(f"a remote call is not recorded: {error}")
        return None


class _RecordedCall:
    """The recording of a call that runs in this process. Its methods never raise.

    If Paddle's profiler fails, the call is recorded without events, and its ``note`` says why.
    """

    def __init__(
        self, origin: _Origin, name: str, to: str | None, arrived_ns: int, called_ns: int
    ) -> None:
        self._recorder: Any = None
        self._lines: LineSampler | None = None
        self._note = ""
        self._scope = _Scope(uuid.uuid4().hex, _sanitize(to or _worker_name()), origin.settings)
        _scopes[self._scope.id] = self._scope
        self._token = _running.set(self._scope)
        self._call = RemoteCall(
            id=self._scope.id,
            parent=origin.parent,
            name=_sanitize(name),
            caller=_sanitize(origin.caller),
            worker=self._scope.worker,
            process=f"{socket.gethostname()}:{os.getpid()}",
            thread=threading.get_native_id(),
            sent_ns=origin.sent_ns,
            arrived_ns=arrived_ns,
            began_ns=0,
            ended_ns=0,
            left_ns=0,
            received_ns=0,
            called_ns=called_ns,
            line=getattr(origin, "line", ""),
            carrier=getattr(origin, "carrier", ""),
        )
        try:
            self._recorder = _start_recorder(origin.settings)
        except Exception as error:
            self._note = str(error) or repr(error)
        if origin.settings.get("python_stacks") is not False:
            with suppress(Exception):
                self._lines = LineSampler(_user_files(), _Profiled.__call__.__code__)
        self._began_ns = time.time_ns()

    def end(self, values: object) -> tuple[Recorded, ...]:
        """Stop recording; return the call, with the size of its values, then the remote calls that it made."""
        ended_ns = time.time_ns()
        line, size = "", (0, 0)
        with suppress(Exception):
            line = self._lines.stop() if self._lines is not None else ""
            size = size_of(values)
        _running.reset(self._token)
        _scopes.pop(self._scope.id, None)
        raw = b""
        if self._recorder is not None:
            try:
                with tempfile.TemporaryDirectory(prefix="ppprof_") as folder:
                    file = RunFile(Path(folder), "call.pb")
                    self._recorder.write(self._recorder.take(brief=True), file, brief=True)
                    raw = file.path.read_bytes()
            except Exception as error:
                self._note = str(error) or repr(error)
            with suppress(Exception):
                self._recorder.close()
        call = replace(
            self._call,
            began_ns=self._began_ns,
            ended_ns=ended_ns,
            note=self._note,
            function_line=line,
            num_bytes=size[0],
            num_objects=size[1],
        )
        return ((call, raw), *self._scope.calls)


def _start_recorder(settings: Mapping[str, Any]) -> Any:
    """Start Paddle's profiler in this process; return the `Recorder` that holds it."""
    if sys.modules.get("paddle") is None:  # importing it would cost the caller seconds
        raise RuntimeError("Paddle is not loaded there")
    import paddle
    from paddle.base import core

    from ppprof.capture.recording.recorder import Recorder
    from ppprof.capture.steps.device_timer import holds_cuda
    from ppprof.config import ProfilerConfig

    has_gpu = core.is_compiled_with_cuda() and not core.is_compiled_with_rocm()
    if has_gpu and paddle.device.cuda.device_count() and not holds_cuda():
        # It waits for all GPUs that the process sees, whatever it records and wherever it computes.
        raise RuntimeError(
            "Paddle's profiler would start CUDA there, which takes 0.5 GB of each GPU"
        )
    # In another thread than this, the process may train.
    is_guest = threading.current_thread() is not threading.main_thread()
    config = ProfilerConfig.from_mapping(settings)
    recorder = Recorder(config, prints=False, is_guest=is_guest)
    try:
        if not recorder.prepare():
            raise RuntimeError("another profiler is open in this process")
        recorder.start()
    except Exception:
        recorder.close()
        raise
    return recorder


def _store_calls(scope_id: str, calls: tuple[Recorded, ...]) -> None:
    """Add returned calls to the remote call or the window that made them.

    A process that did not make the calls ignores them: it only forwards the answer. Calls that are
    added already are not added again. Calls of a closed window are skipped with a warning.
    """
    try:
        scope = _scopes.get(scope_id)
        if scope is not None:
            ids = {call.id for call, _ in scope.calls}
            scope.calls.extend((call, raw) for call, raw in calls if call.id not in ids)
            return
        if scope_id not in _sent:  # this process only forwards the answer
            return
        folder = open_calls_folder(scope_id)
        first = calls[0][0]
        if folder is None:
            _warn_once(f"{first.span}: skipped: it returned after its window had closed")
            return
        for call, raw in calls:
            if has_call(folder, call):  # an answer can be fetched twice
                continue
            write_call(folder, call, raw)
            if call.note:
                _warn_once(f"{call.span}: only its times were recorded: {call.note}")
    except Exception as error:
        _warn_once(f"a remote call is not recorded: {error}")


@functools.lru_cache(1)
def _user_files() -> UserFiles:
    return UserFiles(Path.cwd())


def _line_of(frame: FrameType) -> str:
    """Return the user's innermost line around a frame, as `RemoteCall.line`."""
    lines = OwnLines(_user_files())
    return lines.call_stack(lines.around(frame))


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        _warn(message)


def _warn(message: str) -> None:
    log_to_stderr()  # a worker process has not attached
    log.warning(message)


def _name_of(function: Callable[..., Any]) -> str:
    if isinstance(function, partial):
        return _name_of(function.func)
    return str(getattr(function, "__name__", type(function).__name__))


def _sanitize(name: str) -> str:
    """Replace spaces and parentheses, which separate the parts of ``rpc#name(caller -> worker)``.

    >>> _sanitize("my worker (2)")
    'my_worker_2_'
    """
    return re.sub(r"[\s()]+", "_", str(name)) or "_"


def _worker_name() -> str:
    name = rpc_name()
    if name is not None:
        return name
    dask = sys.modules.get("distributed")
    with suppress(Exception):
        if dask is not None:
            name = dask.get_worker().name
            return name if isinstance(name, str) else f"dask-worker-{name}"
    process = multiprocessing.current_process().name
    if process == "MainProcess":  # the default name, which is not unique
        return f"{socket.gethostname()}:{os.getpid()}"
    return process
