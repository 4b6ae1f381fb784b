"""Record the calls of ``paddle.distributed.rpc`` on the workers that execute them.

While a window is open, ``rpc_sync`` and ``rpc_async`` send a `profiled` function instead of the
function, and give the function's result. Results and exceptions are those of the function. A worker
that cannot import ppprof just calls the function, and a warning says so once.
"""

from __future__ import annotations

import logging
import operator
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from ppprof.capture.profiled_calls import RemoteResult, is_profiled, profiled, result
from ppprof.capture.recording.observers import WindowObserver
from ppprof.capture.recording.patches import Patches
from ppprof.capture.recording.recorder import open_span
from ppprof.remote_names import WAIT

log = logging.getLogger("ppprof")

_MODULE = "paddle.distributed.rpc.rpc"
_SEND = "_invoke_rpc"
"""The function of `_MODULE` through which both rpc_sync and rpc_async send a call."""

_MOST_CALLS = 200
"""Most calls recorded in a window; each costs some milliseconds and two small files."""

_Send = Callable[..., Any]


class RpcCalls(WindowObserver):
    """A wrapper around the sending of calls."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._is_open = False
        self._num_calls = 0
        self._can_record: dict[str, bool] = {}
        """Whether a worker can import ppprof, keyed by worker; missing if unknown."""

    def install(self) -> None:
        """Wrap the function that sends calls, if rpc is in use."""
        module = sys.modules.get(_MODULE)
        if module is not None:
            self._patches.install(module, _SEND, self._record)
        self._is_open, self._num_calls = True, 0

    def uninstall(self) -> None:
        """Restore the function, unless other code has replaced the wrapper since."""
        self._patches.uninstall()
        self._is_open = False

    def _record(
        self, send: _Send, to: str, fn: Callable[..., Any], args: Any, kwargs: Any, timeout: Any
    ) -> Any:
        """Send a call; return a future with ``wait``, like ``send``."""
        # Other code may keep the wrapper: between windows, or below the next window's.
        is_sent_already = isinstance(fn, _Call) or is_profiled(fn, "rpc")
        if is_sent_already or not self._is_open:
            return send(to, fn, args, kwargs, timeout)
        chosen = self._sent_instead(to, fn)
        if chosen is None:  # it is not recorded, but waited for
            return _Future(send(to, fn, args, kwargs, timeout), self._wait, to)
        return _Future(send(to, chosen, args, kwargs, timeout), self._answer_of, to)

    def _sent_instead(self, to: str, function: Callable[..., Any]) -> Any:
        """Return what is sent instead of the function; None if the call is not to be recorded."""
        can_record = self._can_record.get(to)
        if is_profiled(function) or can_record is False:
            return None
        if can_record is None and not _is_global(function):
            return None  # pickled beside its arguments, it might no longer share objects with them
        self._num_calls += 1
        if self._num_calls > _MOST_CALLS:
            if self._num_calls == _MOST_CALLS + 1:
                log.warning(f"{_MOST_CALLS} remote calls in this window: others are not recorded")
            return None
        recorded = profiled(function, to=to, carrier="rpc")
        if can_record:
            return recorded
        try:
            return _chosen_there(pickle.dumps(function), pickle.dumps(recorded))
        except Exception:  # Paddle itself reports it
            return None

    def _answer_of(self, to: str, future: Any) -> Any:
        """Wait for the answer of a call that is recorded, if the worker can."""
        answer = self._wait(to, future)
        self._learn(to, answer)
        return answer

    def _wait(self, to: str, future: Any) -> Any:
        """Wait for an answer and return it, in a span if a window is open."""
        if not self._is_open:
            return future.wait()
        span = open_span(f"{WAIT}{to})", "PythonUserDefined")
        try:
            return future.wait()
        finally:
            span.end()

    def _learn(self, to: str, answer: Any) -> None:
        if to not in self._can_record:
            self._can_record[to] = isinstance(answer, RemoteResult)
            if not self._can_record[to]:
                log.warning(f"{to}: cannot import ppprof: its calls are not recorded")


class _Call:
    """Pickled as the call of a function with arguments: what is unpickled is the call's result."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._function = function
        self._args = args

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._function, self._args

    def __call__(self) -> None:
        """Do nothing: pickle only accepts a function that can be called."""


def _chosen_there(plain: bytes, recorded: bytes) -> _Call:
    """Return an object that is unpickled as one of two pickled functions.

    It is the second if that can be unpickled there. An error in unpickling would end Paddle's agent,
    so a thread tries it: the future of its work holds the error. That needs nothing but Python's own
    library.
    """
    pool = _Call(ThreadPoolExecutor, 1)
    attempt = _Call(_Call(operator.methodcaller, "submit", pickle.loads, recorded), pool)
    error = _Call(_Call(operator.methodcaller, "exception"), attempt)
    is_possible = _Call(operator.is_, error, None)
    return _Call(pickle.loads, _Call(operator.getitem, (plain, recorded), is_possible))


def _is_global(function: Callable[..., Any]) -> bool:
    """Return whether a function is pickled as a mere name: a function of a module."""
    if isinstance(function, FunctionType):
        return True
    owner = getattr(function, "__self__", None)
    return isinstance(function, BuiltinFunctionType) and (
        owner is None or isinstance(owner, ModuleType)
    )


class _Future:
    """The future of a call, whose ``wait`` returns the result of the function."""

    def __init__(self, future: Any, answer_of: Callable[[str, Any], Any], to: str) -> None:
        self._future = future
        self._answer_of = answer_of
        self._to = to

    def wait(self) -> Any:
        """Return the result of the function; blocks until it is there."""
        return result(self._answer_of(self._to, self._future))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._future, name)
