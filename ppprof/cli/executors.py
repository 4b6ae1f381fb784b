"""Where ranks are read: in this process, in some beside it, or on a Dask cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from ppprof.errors import UsageError

ANSWER_S = 10
"""How long a scheduler, and a first worker of it, may take to answer."""
_ABSENT_S = 60
"""How long a cluster may be without any worker before what it still owes is given up; a nanny
starts a worker that died again within seconds."""
_LOOK_S = 2


@contextmanager
def processes(workers: int) -> Iterator[Executor | None]:
    """Processes of their own, started afresh: a fork of one with polars' threads may hang.

    None for a single one, which is this one.
    """
    if workers == 1:
        yield None
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as executor:
        yield executor


@contextmanager
def dask(address: str) -> Iterator[Executor]:
    """The workers of a Dask cluster, which find the files under the same paths.

    Dask gives a task whose worker died to another one. The future of one that it gives up after
    some deaths, or that waits while no worker is left for a minute, raises `BrokenExecutor`.

    Args:
        address: of the scheduler, such as ``tcp://10.0.0.1:8786``.

    Raises:
        UsageError: ``distributed`` is not installed, nobody answers there within `ANSWER_S`, or
            somebody there has no ppprof.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError(f'--dask: {error}: pip install "ppprof[dask]"') from error
    try:
        client = Client(address, timeout=ANSWER_S, set_as_default=False)
    except (OSError, ValueError) as error:  # TimeoutError is an OSError
        raise UsageError(
            f"--dask {address}: no scheduler answers within {ANSWER_S} s: {_line(error)}; expected "
            "the address that `dask scheduler` prints, such as tcp://10.0.0.1:8786"
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=ANSWER_S)
        except TimeoutError as error:
            raise UsageError(
                f"--dask {address}: the scheduler has had no worker for {ANSWER_S} s; start some: "
                f"dask worker {address}"
            ) from error
        lacking = _lacking(client)
        if lacking:
            raise UsageError(
                f"--dask {address}: no ppprof on {', '.join(lacking)}; scheduler and workers need "
                "the one that is installed here"
            )
        with _DaskExecutor(client) as executor:
            yield executor


def _lacking(client: Any) -> list[str]:
    """Who cannot import ppprof: a worker would end on a task of ours instead of refusing it."""

    def has() -> bool:  # sent as code, being no module's: the others have to be imported
        try:
            import ppprof.run.run  # noqa: F401  with all that it needs
        except ImportError:
            return False
        return True

    workers = client.run(has, on_error="return")
    answers = {"the scheduler": client.run_on_scheduler(has), **workers}
    return [who for who, answer in answers.items() if answer is not True]


class _DaskExecutor(Executor):
    """Dask's own executor, whose futures always end, with the errors of `concurrent.futures`."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._inner = client.get_executor(pure=False)  # a file may change, so nothing is looked up
        self._ended = Event()
        Thread(target=self._watch, daemon=True).start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As of any executor."""
        outer: Future[Any] = Future()
        inner = self._inner.submit(fn, *args, **kwargs)
        outer.add_done_callback(lambda future: future.cancelled() and inner.cancel())
        inner.add_done_callback(lambda future: _pass_on(future, outer))
        return outer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """What is not done is cancelled: whoever still waited for it has left."""
        self._ended.set()
        self._inner.shutdown(wait=False)

    def _watch(self) -> None:
        """Gives up what nobody is left to do; Dask itself would wait for ever."""
        seen = time.monotonic()
        while not self._ended.wait(_LOOK_S):
            if _has_workers(self._client):
                seen = time.monotonic()
            elif time.monotonic() - seen > _ABSENT_S:
                self._inner.shutdown(wait=False)
                return


def _has_workers(client: Any) -> bool:
    try:
        return bool(client.nthreads())
    except Exception:  # of many kinds, while it is not connected
        return False


def _pass_on(inner: Future[Any], outer: Future[Any]) -> None:
    from distributed import KilledWorker

    if not outer.set_running_or_notify_cancel():
        return
    error = None if inner.cancelled() else inner.exception()
    if inner.cancelled():
        outer.set_exception(BrokenExecutor("the cluster has lost its scheduler or every worker"))
    elif isinstance(error, KilledWorker):
        outer.set_exception(BrokenExecutor(_line(error)))
    elif error is not None:
        outer.set_exception(error)
    else:
        outer.set_result(inner.result())


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
