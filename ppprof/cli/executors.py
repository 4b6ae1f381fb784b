"""Executors that read ranks: in this process, in several, or on a Dask cluster."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from importlib import import_module
from threading import Event, Thread
from typing import Any

from ppprof.cli import one_thread
from ppprof.errors import UsageError
from ppprof.trace.fastpath.threads import num_processors

ANSWER_S = 10
"""Seconds for a scheduler to answer, and for its first worker to appear."""
_ABSENT_S = 60
"""Seconds without any worker after which open tasks fail. A nanny restarts a worker that died
within seconds."""
_LOOK_S = 2
_WINDOWS_PER_PROCESS = 16
"""A new process is worth its start if it reads so many windows."""


@contextmanager
def processes(workers: int | None, num_windows: int) -> Iterator[Executor | None]:
    """Yield an executor of ``workers`` new processes; None for 1, which means this process.

    The processes are spawned: a fork of a process with polars' threads may hang. Each has one such
    thread: in several, small tables wait for each other. They start at once, and import what reads a
    trace while the caller does the same.

    Args:
        workers: number of processes; None for one per processor, if each of them reads
            `_WINDOWS_PER_PROCESS` windows.
        num_windows: the number of windows to read.
    """
    if workers is None:
        workers = max(1, min(num_processors(), num_windows // _WINDOWS_PER_PROCESS))
    if workers == 1:
        yield None
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as executor:
        with one_thread("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS"):  # in the new processes
            for _ in range(workers):
                executor.submit(_import_reader)
        yield executor


def _import_reader() -> None:
    """Import what every task needs: the first task of each process."""
    import_module("ppprof.run.run")


@contextmanager
def dask(address: str) -> Iterator[Executor]:
    """Yield an executor that runs tasks on the workers of a Dask cluster.

    The workers must be able to read the same files under the same paths; this is not checked. If a
    worker dies, Dask gives its task to another one. After as many deaths as Dask allows for a task,
    or after a minute without workers, the task's future raises `BrokenExecutor`.

    Args:
        address: the scheduler's address, such as ``tcp://10.0.0.1:8786``.

    Raises:
        UsageError: ``distributed`` is not installed; no scheduler answers within `ANSWER_S`
            seconds; the scheduler has no worker within `ANSWER_S` seconds; or ppprof is not
            installed on the scheduler or a worker.
    """
    try:
        # asyncio's, which until Python 3.10 is no TimeoutError
        from distributed import Client
        from distributed import TimeoutError as NoWorker
    except ImportError as error:
        raise UsageError(f'--dask: {error}: pip install "ppprof[dask]"') from error
    client, problem = None, ""
    try:
        client = Client(address, timeout=ANSWER_S, set_as_default=False)
    # TimeoutError is an OSError; distributed asserts that its thread starts within 10 s.
    except (OSError, ValueError, AssertionError) as error:
        problem = _line(error)
    if client is None:
        # The half-made client stops its loop when it is collected, and waits forever if that happens
        # while the next client starts one: collect it now, when no exception holds it any more.
        gc.collect()
        raise UsageError(
            f"--dask {address}: no scheduler answers within {ANSWER_S} s: {problem}; expected "
            "the address that `dask scheduler` prints, such as tcp://10.0.0.1:8786"
        )
    with client:
        try:
            client.wait_for_workers(1, timeout=ANSWER_S)
        except (NoWorker, TimeoutError) as error:
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
    """Return the workers, and "the scheduler", that cannot import ppprof: one would end at our first task."""

    def has() -> bool:  # a local function is sent as code; a module's would be imported there
        try:
            import ppprof.run.run  # noqa: F401  and its dependencies
        except ImportError:
            return False
        return True

    workers = client.run(has, on_error="return")
    answers = {"the scheduler": client.run_on_scheduler(has), **workers}
    return [who for who, answer in answers.items() if answer is not True]


class _DaskExecutor(Executor):
    """Dask's executor, with futures that always end and raise errors of `concurrent.futures`."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._inner = client.get_executor(pure=False)  # no cached results: a file may change
        self._ended = Event()
        Thread(target=self._watch, daemon=True).start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit a task; see `concurrent.futures.Executor.submit`."""
        outer: Future[Any] = Future()
        inner = self._inner.submit(fn, *args, **kwargs)
        outer.add_done_callback(lambda future: future.cancelled() and inner.cancel())
        inner.add_done_callback(lambda future: _copy_result(future, outer))
        return outer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel unfinished tasks without waiting; the arguments have no effect."""
        self._ended.set()
        self._inner.shutdown(wait=False)

    def _watch(self) -> None:
        """Fail open tasks after a minute without workers; Dask itself would wait forever."""
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
    except Exception:  # of many kinds, while the client is not connected
        return False


def _copy_result(inner: Future[Any], outer: Future[Any]) -> None:
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
    return " ".join(str(error).split()) or type(error).__name__
