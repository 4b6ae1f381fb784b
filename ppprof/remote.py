"""Functions called on other processes, profiled there as part of the caller's window.

A callable made by `profiled` goes wherever pickles go: to a process pool, a Dask worker, through
``paddle.distributed.rpc``. If the caller records a window when it is sent, the function is recorded
on the other side, with the caller's settings; what comes back is an `Answer`, result and events in
one message, and `result` takes the result out::

    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        future = pool.submit(ppprof.remote.profiled(encode), batch)
        codes = ppprof.remote.result(future.result())

        codes = ppprof.remote.submit(pool, encode, batch).result()     # the same

    rpc_sync("worker1", ppprof.remote.profiled(encode), args=(batch,))  # paddle.distributed.rpc

Both sides look at their clocks when the call and the answer are pickled and unpickled
(`ppprof.rundir.remote_calls`), which costs no message of its own. The other side needs ppprof; where Paddle is
not loaded, or records already, only the call's times are known. Its own remote calls come back
within its answer. Paddle does not survive a fork: pools must spawn.
"""

from __future__ import annotations

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
from typing import Any

from ppprof.capture.attach import open_window
from ppprof.capture.output import log_to_stderr
from ppprof.rundir.remote_calls import RemoteCall, has_call, write_call

log = logging.getLogger("ppprof")

Recorded = tuple[RemoteCall, bytes]
"""A call and Paddle's ``.pb`` of it, empty where there is none."""


def profiled(
    function: Callable[..., Any], name: str | None = None, to: str | None = None
) -> Callable[..., Answer]:
    """The function as a callable that is recorded where it is carried to, and returns an `Answer`.

    Of other calls' answers among its arguments the function gets the results.

    Args:
        function: what the carrier can pickle.
        name: to be shown; its own without it.
        to: name of the worker; without it the one that ``paddle.distributed.rpc``, Dask or
            ``multiprocessing`` has for it.
    """
    return _Profiled(function, name or _name_of(function), to)


def result(answer: Any) -> Any:
    """The function's result; anything but an `Answer` is returned as it is."""
    return answer.value if isinstance(answer, Answer) else answer


def submit(executor: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
    """``executor.submit`` with `profiled` and `result` around it: a future of the plain result.

    Args:
        executor: a ``concurrent.futures.Executor`` or a Dask client.
        function: what it can pickle.
        args: of the function.
        kwargs: of the function, or of the client.
    """
    inner = executor.submit(profiled(function), *args, **kwargs)
    outer: Future[Any] = Future()

    def pass_on(done: Any) -> None:
        if done.cancelled():
            outer.cancel()
        if not outer.set_running_or_notify_cancel():
            return
        error = done.exception()
        if error is not None:
            outer.set_exception(error)
        else:
            outer.set_result(result(done.result()))

    outer.add_done_callback(lambda future: inner.cancel() if future.cancelled() else None)
    inner.add_done_callback(pass_on)
    return outer


class Answer:
    """What comes back: the result, and the calls that were recorded, the innermost last.

    Where it is unpickled on the caller's side, the calls are put to the caller's window.
    """

    def __init__(self, value: Any, origin: _Origin | None = None, calls: tuple[Recorded, ...] = ()):
        self.value = value
        """What the function returned."""
        self._origin = origin
        self._calls = calls

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_calls": self._stamped("left_ns")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # Several times where somebody passes it on; the last is where it stays.
        self._calls = self._stamped("received_ns", again=True)
        if self._origin is not None and self._calls:
            _keep(self._origin.scope, self._calls)

    def _stamped(self, when: str, again: bool = False) -> tuple[Recorded, ...]:
        if not self._calls or (getattr(self._calls[0][0], when) and not again):
            return self._calls
        (call, raw), *inner = self._calls
        times: dict[str, Any] = {when: time.time_ns()}
        return ((replace(call, **times), raw), *inner)


@dataclass(frozen=True)
class _Origin:
    """Where a call comes from, as it travels with it."""

    scope: str
    """The caller's window, or the call that the caller is itself: who keeps what comes back."""
    parent: str | None
    caller: str
    settings: Mapping[str, Any]
    sent_ns: int


@dataclass(frozen=True)
class _Scope:
    """A call that runs here: what it calls itself belongs to it."""

    id: str
    worker: str
    settings: Mapping[str, Any]
    calls: list[Recorded] = field(default_factory=list)


_running: ContextVar[_Scope | None] = ContextVar("_running", default=None)
_scopes: dict[str, _Scope] = {}
"""Calls that run here, by id; answers to theirs arrive in any thread."""
_sent: set[str] = set()
"""Windows of this process from which calls were sent."""
_warned: set[str] = set()


class _Profiled:
    """See `profiled`. Pickling sends it, unpickling is its arrival."""

    def __init__(self, function: Callable[..., Any], name: str, to: str | None) -> None:
        self._function = function
        self._name = self.__name__ = name  # the latter is what Dask shows
        self._to = to
        self._origin: _Origin | None = None
        self._arrived_ns = 0
        # Carriers pickle in threads of their own, to which the context does not reach.
        self._scope = _running.get()

    def __getstate__(self) -> dict[str, Any]:
        origin = self._origin or _origin(self._scope)  # a scheduler passes it on as it came
        return {**self.__dict__, "_origin": origin, "_scope": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._arrived_ns = time.time_ns()

    def __call__(self, *args: Any, **kwargs: Any) -> Answer:
        # Dask hands one call's answer to the next.
        args = tuple(map(result, args))
        kwargs = {name: result(value) for name, value in kwargs.items()}
        if self._origin is None:  # nobody records, or it has not left the process
            return Answer(self._function(*args, **kwargs))
        recording = _Recording(self._origin, self._name, self._to, self._arrived_ns)
        try:
            value = self._function(*args, **kwargs)
        except BaseException as error:
            answer = Answer(None, self._origin, recording.end())
            with suppress(Exception):  # an exception takes its attributes along
                error.__dict__["_ppprof_answer"] = answer
            raise
        return Answer(value, self._origin, recording.end())


def _origin(scope: _Scope | None) -> _Origin | None:
    """Where a call that is sent now comes from; None where nothing is recorded."""
    try:
        if scope is not None:
            known = _scopes.get(scope.id)
            if known is None:  # that call has ended
                return None
            return _Origin(scope.id, scope.id, scope.worker, scope.settings, time.time_ns())
        window = open_window()
        if window is None:
            return None
        _sent.add(str(window.calls))
        caller = _rpc_name() or f"worker{window.rank}"
        return _Origin(str(window.calls), None, caller, window.settings, time.time_ns())
    except Exception as error:
        _warn(f"a remote call is not recorded: {error}")
        return None


class _Recording:
    """A call while it runs here. Nothing of it ever raises."""

    def __init__(self, origin: _Origin, name: str, to: str | None, arrived_ns: int) -> None:
        self._recorder: Any = None
        self._note = ""
        self._scope = _Scope(uuid.uuid4().hex, _plain(to or _worker_name()), origin.settings)
        _scopes[self._scope.id] = self._scope
        self._token = _running.set(self._scope)
        self._call = RemoteCall(
            id=self._scope.id,
            parent=origin.parent,
            name=_plain(name),
            caller=_plain(origin.caller),
            worker=self._scope.worker,
            process=f"{socket.gethostname()}:{os.getpid()}",
            thread=threading.get_native_id(),
            sent_ns=origin.sent_ns,
            arrived_ns=arrived_ns,
            began_ns=0,
            ended_ns=0,
            left_ns=0,
            received_ns=0,
        )
        try:
            self._recorder = _recorder(origin.settings)
        except Exception as error:
            self._note = str(error) or repr(error)
        self._began_ns = time.time_ns()

    def end(self) -> tuple[Recorded, ...]:
        """The call, and the calls made in it."""
        ended_ns = time.time_ns()
        _running.reset(self._token)
        _scopes.pop(self._scope.id, None)
        raw = b""
        if self._recorder is not None:
            try:
                with tempfile.TemporaryDirectory(prefix="ppprof_") as folder:
                    path = Path(folder, "call.pb")
                    self._recorder.stop(path, brief=True)
                    raw = path.read_bytes()
            except Exception as error:
                self._note = str(error) or repr(error)
            with suppress(Exception):
                self._recorder.close()
        call = replace(self._call, began_ns=self._began_ns, ended_ns=ended_ns, note=self._note)
        return ((call, raw), *self._scope.calls)


def _recorder(settings: Mapping[str, Any]) -> Any:
    """Paddle's profiler, running.

    Raises:
        Exception: whatever keeps it from that.
    """
    if sys.modules.get("paddle") is None:  # to import it takes seconds, which are the caller's
        raise RuntimeError("Paddle is not loaded there")
    from ppprof.capture.recording.recorder import Recorder
    from ppprof.config import ProfilerConfig

    recorder = Recorder(ProfilerConfig.from_mapping(settings), prints=False)
    try:
        recorder.prepare()
        recorder.start()
    except Exception:
        recorder.close()
        raise
    return recorder


def _keep(scope_id: str, calls: tuple[Recorded, ...]) -> None:
    """Puts calls that came back to whoever made them, if that is here."""
    try:
        scope = _scopes.get(scope_id)
        if scope is not None:
            known = {call.id for call, _ in scope.calls}
            scope.calls.extend((call, raw) for call, raw in calls if call.id not in known)
            return
        if scope_id not in _sent:  # somebody who passes the answer on
            return
        window = open_window()
        first = calls[0][0]
        if window is None or str(window.calls) != scope_id:
            _warn_once(f"{first.span}: it came back after its window had closed, and is left out")
            return
        for call, raw in calls:
            if has_call(window.calls, call):  # an answer can be fetched again
                continue
            write_call(window.calls, call, raw)
            if call.note:
                _warn_once(f"{call.span}: only its times are known: {call.note}")
    except Exception as error:
        _warn_once(f"a remote call is not recorded: {error}")


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


def _plain(name: str) -> str:
    """As it can stand in ``rpc#name(caller -> worker)``."""
    return re.sub(r"[\s()]+", "_", str(name)) or "_"


def _rpc_name() -> str | None:
    """The name that ``paddle.distributed.rpc`` has for this process; None where it is not in use."""
    rpc = sys.modules.get("paddle.distributed.rpc")
    with suppress(Exception):
        return str(rpc.get_current_worker_info().name) if rpc else None
    return None


def _worker_name() -> str:
    name = _rpc_name()
    if name is not None:
        return name
    dask = sys.modules.get("distributed")
    with suppress(Exception):
        if dask is not None:
            name = dask.get_worker().name
            return name if isinstance(name, str) else f"dask-worker-{name}"
    process = multiprocessing.current_process().name
    if process == "MainProcess":  # every process that nobody named is called so
        return f"{socket.gethostname()}:{os.getpid()}"
    return process
