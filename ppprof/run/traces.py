"""Reads recordings, one here or many on an executor's processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from ppprof.errors import InputError, TraceError
from ppprof.rundir.recordings import Recording
from ppprof.trace import Trace, read

T = TypeVar("T")
U = TypeVar("U")

Progress = Callable[[Path, int, int], None]
"""Called with a file, its bytes that were read so far, and all of them."""


@dataclass(frozen=True)
class WindowResult(Generic[T]):
    """What was made of one window."""

    recording: Recording
    source: Path
    """The file that was read."""
    skipped: Mapping[str, int]
    """What of the file could not be used, kind -> how many."""
    value: T
    errors: Sequence[str] = ()
    """Of other files of this window, which could not be read."""

    def map(self, value: U) -> WindowResult[U]:
        """Return the same window with another value."""
        return WindowResult(self.recording, self.source, self.skipped, value, self.errors)


def read_first_readable(
    recording: Recording, cache: bool, progress: Progress | None = None
) -> tuple[Path, Trace, list[str]]:
    """From the best file that can be read; and what is wrong with those before it."""
    if not recording.files:
        raise InputError(f"{recording.saved}: only tables are left of this window, no trace")
    errors: list[str] = []
    for file in recording.files:
        try:
            told = partial(progress, file) if progress else None
            return file, read(file, progress=told, cache=cache), errors
        except TraceError as error:
            errors.append(str(error))
    raise TraceError("\n".join(errors))


def process_window(
    recording: Recording,
    work: Callable[[Trace], T],
    cache: bool,
    progress: Progress | None = None,
) -> WindowResult[T] | str:
    """What `Run.each` does of one window, in whatever process; or why it cannot be read."""
    try:
        source, trace, errors = read_first_readable(recording, cache, progress)
    except InputError as error:
        return str(error)
    return WindowResult(recording, source, trace.skipped, work(trace), tuple(errors))


def map_windows(
    executor: Executor,
    task: Callable[[Recording], WindowResult[T] | str],
    recordings: Sequence[Recording],
) -> Iterator[WindowResult[T] | str]:
    """What `process_window` gives of each, in their order; as an error where the executor lost it."""
    waiting = deque(_submitted(executor, task, recording) for recording in recordings)
    try:
        for recording in recordings:
            try:
                yield waiting.popleft().result()
            except BrokenExecutor as error:
                where = recording.files[0] if recording.files else recording.name
                yield f"{where}: the process that was to read it died: {error}"
    finally:
        for future in waiting:
            future.cancel()


def _submitted(
    executor: Executor, task: Callable[[Recording], T], recording: Recording
) -> Future[T]:
    try:
        return executor.submit(task, recording)
    except BrokenExecutor as error:  # a process of the pool has died already
        future: Future[T] = Future()
        future.set_exception(error)
        return future
