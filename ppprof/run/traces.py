"""Read the windows of a run: one here, or many on an executor's processes.

Every window is read in this module, so each problem with a file is logged here, and once.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.steps import select_steps
from ppprof.analysis.profile.wholeness import checked
from ppprof.choices import ReadOptions, StepRange, SummaryOptions
from ppprof.errors import InputError, TraceError
from ppprof.messages import Message
from ppprof.paths import store_errors_as_oserror
from ppprof.rundir import JobContext
from ppprof.rundir.recordings import Recording
from ppprof.trace import Trace
from ppprof.trace.clock_jumps import clock_messages
from ppprof.trace.communication_names import look_alikes
from ppprof.trace.formats import read_ranks
from ppprof.trace.schema import unknown_device_kinds
from ppprof.trace.segments import join_segments
from ppprof.trace.steps import incomplete_time_ns, last_step_with_allocations
from ppprof.trace.unrecorded_device import with_device
from ppprof.units import format_ranges, format_skipped, format_time

T = TypeVar("T")
U = TypeVar("U")

FileProgress = Callable[[Path, int, int], None]
"""Called with a file, the number of bytes read so far, and the size of the file in bytes."""

MOST_BYTES = 256 << 20
"""Largest size of a window's segments, as ``.pb``, that are read together: some 2.5 GB of memory."""
_PER_PB = {".json": 4.5, ".json.gz": 0.5, ".pb.gz": 0.2}
"""Size of a trace divided by the size of its ``.pb``."""
_MOST_NAMES = 5
_NOTABLE_NS = 1_000_000
"""An incomplete step that took less is the end of the training's last call; nothing is left out."""

_log = logging.getLogger("ppprof")


@dataclass(frozen=True)
class WindowResult(Generic[T]):
    """The result of processing the trace of one rank's window."""

    recording: Recording
    """The rank and the window."""
    source: Path
    """The file that was read."""
    skipped: Mapping[str, int]
    """Kind -> number of parts of the file that were skipped because they are unreadable."""
    value: T
    """What the function that processed the trace returned."""
    errors: Sequence[str] = ()
    """Errors of unreadable files of the same window that are preferred to ``source``."""
    notes: Sequence[str] = ()
    """The result of `notes_on` for the trace."""

    def map(self, value: U) -> WindowResult[U]:
        """Return the same window with another value."""
        return replace(self, value=value)  # type: ignore[arg-type, return-value]


_OF_RUN = ("unrecorded", "missing_ranks")
"""Keys of notes that are logged for the first file only: they hold for each file of a run."""


class ProblemLog:
    """Logs problems with files, and notes on them, once for each file."""

    def __init__(self) -> None:
        self._reported: set[object] = set()

    def report(
        self,
        path: Path,
        skipped: Mapping[str, int],
        errors: Iterable[str] = (),
        notes: Iterable[str] = (),
    ) -> None:
        """Log the problems with a file, and notes on it; do nothing if they are logged already.

        Args:
            path: the file that was read.
            skipped: kind -> number of parts of the file that were skipped.
            errors: errors of unreadable files of the same window that are preferred to ``path``.
            notes: the result of `notes_on`.
        """
        if path in self._reported:
            return
        self._reported.add(path)
        _warn_each(errors)
        if skipped:
            _log.warning("%s", format_skipped(path, skipped))
        for note in notes:
            key = note.key if isinstance(note, Message) and note.key in _OF_RUN else note
            if key not in self._reported:
                self._reported.add(key)
                _log.warning("%s", note)


def _warn_each(messages: Iterable[str]) -> None:
    """Log each message as a warning."""
    for message in messages:
        _log.warning("%s", message)


class TraceReader:
    """Reads the windows of a run.

    It keeps the trace that was read last, and the `Profile` that was computed last from it, in
    memory.

    Args:
        progress: called while this process reads a long file (not while an executor's process
            does): with the file, the number of bytes read so far and its size. None: no calls.
        job: what the run's manifest says about the job; None if unknown.
        reading: how to read the traces; None for the defaults.
    """

    def __init__(
        self,
        progress: FileProgress | None = None,
        job: JobContext | None = None,
        reading: ReadOptions | None = None,
    ) -> None:
        self._reading = reading
        self._job = job or JobContext()
        self._progress = progress
        self._held: tuple[Path, dict[int, Trace]] | None = None
        self._trace: tuple[Recording, Path, Trace] | None = None
        self._profile: tuple[Recording, StepRange | None, SummaryOptions, Profile] | None = None
        self.problems = ProblemLog()
        """Logs the problems of the files."""

    def ranks_in(self, recording: Recording) -> list[Recording]:
        """Return the recordings in a file that may hold several ranks; itself if it is unreadable.

        The traces are kept until each was used once.
        """
        path = recording.files[0]
        try:
            progress = _file_progress(self._progress, path)
            traces = read_ranks(path, progress=progress, reading=self._reading)
        except TraceError:
            return [recording]  # reported where the trace is used
        self._held = path, traces
        if len(traces) == 1:
            return [recording]
        return [replace(recording, rank=rank, is_in_shared_file=True) for rank in traces]

    def _read(self, recording: Recording) -> tuple[Path, Trace, list[str]]:
        """Return the result of `read_first_readable`, of a kept trace if there is one."""
        if recording.is_in_shared_file and not self._has_held(recording):
            self.ranks_in(recording)
        if not self._has_held(recording):
            self._held = None
            return read_first_readable(recording, self._progress, self._job, self._reading)
        assert self._held is not None
        path, traces = self._held
        trace = traces.pop(recording.rank if recording.is_in_shared_file else next(iter(traces)))
        job = self._job
        if recording.is_in_shared_file:  # each process of which is a rank
            job = job._replace(num_ranks=None)
        return path, with_job_context(trace, job), []

    def _has_held(self, recording: Recording) -> bool:
        path, traces = self._held or (None, {})
        is_of_file = recording.files[:1] == (path,)
        return is_of_file and (
            recording.rank in traces if recording.is_in_shared_file else len(traces) == 1
        )

    def trace(self, recording: Recording) -> tuple[Path, Trace]:
        """Return the preferred readable file of a window, and its trace.

        The first time, log the unreadable files and the skipped parts of the file.

        Raises:
            InputError: no file of the window can be read.
        """
        if self._trace is None or self._trace[0] != recording:
            self._trace = self._profile = None  # first: memory holds one trace at a time
            path, trace, errors = self._read(recording)
            self.problems.report(path, trace.skipped, errors, notes_on(path, trace))
            self._trace = (recording, path, trace)
        return self._trace[1:]

    def profile(
        self, recording: Recording, steps: StepRange | None, options: SummaryOptions
    ) -> Profile:
        """Return the profile of a window.

        Args:
            recording: the window.
            steps: only these steps; None: all steps, and the events outside of them.
            options: the options of the summaries.

        Raises:
            InputError: no file of the window can be read.
        """
        trace = self.trace(recording)[1]
        if self._profile is None or self._profile[:3] != (recording, steps, options):
            profile = Profile(trace if steps is None else select_steps(trace, steps), options)
            self._profile = (recording, steps, options, profile)
        return self._profile[3]

    def map_works(
        self,
        works: Mapping[Recording, Callable[[Trace], T]],
        executor: Executor | None = None,
    ) -> Iterator[WindowResult[T]]:
        """Yield the result of each window's function for its trace, in the order of ``works``.

        A window that is unreadable, or whose process died, is logged and left out.

        Args:
            works: each turns the trace of its window into a small value. An executor of other
                processes must be able to pickle the function and the value.
            executor: any of ``concurrent.futures``, which reads several windows at once; None:
                this process reads one after the other.

        Raises:
            InputError: no window can be read.
        """
        self._trace = self._profile = None  # memory holds one trace at a time
        if executor is None:
            task = partial(process_window, reading=self._read)
            results: Iterable[WindowResult[T] | str] = itertools.starmap(task, works.items())
        else:
            reading = partial(read_first_readable, job=self._job, options=self._reading)
            results = _executed(executor, partial(process_window, reading=reading), works)
        errors = []
        is_any_read = False
        for result in results:
            if isinstance(result, str):
                errors.append(result)
                continue
            _warn_each(errors)
            errors, is_any_read = [], True
            self.problems.report(result.source, result.skipped, result.errors, result.notes)
            yield result
        if not is_any_read:
            raise InputError("\n".join(errors))
        _warn_each(errors)


def with_job_context(trace: Trace, job: JobContext) -> Trace:
    """Return the trace of a whole window with what is known about its job, and what it lacks."""
    world_size = trace.extra_info.get("world_size", "")
    if job.num_ranks and world_size.isdecimal() and job.num_ranks < int(world_size[:9]):
        missing = ("missing_ranks", {"num": job.num_ranks, "world_size": world_size})
        trace = replace(trace, notes=(*trace.notes, missing))
    return replace(
        checked(with_device(trace, job.device)),
        only_axis=job.only_axis,
        stated_flops=job.peak_flops,
        stated_bytes_per_s=job.peak_bytes_per_s,
        uses_tf32=job.uses_tf32,
    )


def notes_on(path: Path, trace: Trace) -> list[str]:
    """Return what a user of a trace's tables should know about the trace, one message each."""
    notes: list[str] = [Message(key, path=path, **values) for key, values in trace.notes]
    if trace.unrecorded_device and not trace.events["device"].count():
        notes.append(Message("unrecorded", path=path, device=trace.unrecorded_device))
    notes += [f"{path}: {message}" for message in clock_messages(trace)]
    step = last_step_with_allocations(trace.events)
    if step is not None:
        notes.append(Message("allocations_end", path=path, step=step))
    if alike := look_alikes(trace.events, trace.communicates):
        listed = ", ".join(
            f"{name} ({format_time(time_ns)}, {num} calls)"
            for name, num, time_ns in alike[:_MOST_NAMES]
        )
        notes.append(Message("look_alikes", path=path, names=listed, num=len(alike)))
    for kind, num in unknown_device_kinds(trace.events).items():
        notes.append(Message("unknown_kind", path=path, num=num, kind=kind))
    incomplete_ns = incomplete_time_ns(trace.events)
    if incomplete_ns >= _NOTABLE_NS:
        notes.append(Message("incomplete", path=path, time=format_time(incomplete_ns)))
    return notes


def read_first_readable(
    recording: Recording,
    progress: FileProgress | None = None,
    job: JobContext | None = None,
    options: ReadOptions | None = None,
) -> tuple[Path, Trace, list[str]]:
    """Return the first readable file of a window, its trace, and the errors of the files before it.

    Args:
        recording: the window, with its files in the order of preference.
        progress: as in `TraceReader`.
        job: as in `TraceReader`.
        options: as ``reading`` in `TraceReader`.

    Raises:
        InputError: no file of the window can be read.
    """
    if not recording.files:
        raise InputError(Message("only_tables", path=recording.saved))
    chosen, errors = sample_of_segments(recording)
    paths: list[Path] = []
    traces: list[Trace] = []
    for files in chosen:
        for path in files:
            try:
                traces.append(_read(path, recording, progress, options))
                paths.append(path)
                break
            except TraceError as error:
                errors.append(str(error))
    if not traces:
        raise TraceError("\n".join(errors))
    return paths[0], with_job_context(join_segments(traces), job or JobContext()), errors


def _read(
    path: Path, recording: Recording, progress: FileProgress | None, options: ReadOptions | None
) -> Trace:
    """Return the trace of a recording's rank from one of its files."""
    traces = read_ranks(path, progress=_file_progress(progress, path), reading=options)
    if recording.is_in_shared_file:
        return traces[recording.rank]
    if len(traces) > 1:
        ranks = format_ranges("rank", traces)
        raise TraceError(f"{path}: {ranks} in one file; give it alone, without other files")
    return next(iter(traces.values()))


def sample_of_segments(
    recording: Recording, most_bytes: float | None = None
) -> tuple[list[Sequence[Path]], list[str]]:
    """Return the segments to read of a window, and a message if they are not all.

    All, if their files, as ``.pb``, take at most so many bytes (None: `MOST_BYTES`); otherwise as many as
    do, at equal distances, the first one included. A window of one segment is always read.

    >>> _spread(7, 3)
    [0, 2, 4]
    """
    segments = recording.segments
    sizes = [_bytes_of_pb(files[0]) for files in segments]
    total, most = sum(sizes), MOST_BYTES if most_bytes is None else most_bytes
    if len(segments) < 2 or total <= most:
        return list(segments), []
    num_read = max(1, int(len(segments) * most / total))
    message = Message("sampled", path=segments[0][0], num=num_read, total=len(segments))
    return [segments[index] for index in _spread(len(segments), num_read)], [message]


def _spread(total: int, num: int) -> list[int]:
    return [index * total // num for index in range(num)]


def _bytes_of_pb(path: Path) -> float:
    """Return about how large a trace is, or would be, as ``.pb``."""
    try:
        with store_errors_as_oserror(path):
            size = path.stat().st_size
    except OSError:  # reported where it is read
        return 0
    return size / next((f for suffix, f in _PER_PB.items() if path.name.endswith(suffix)), 1.0)


def _file_progress(progress: FileProgress | None, path: Path) -> Callable[[int, int], None] | None:
    return partial(progress, path) if progress else None


def process_window(
    recording: Recording,
    work: Callable[[Trace], T],
    reading: Callable[[Recording], tuple[Path, Trace, list[str]]],
) -> WindowResult[T] | str:
    """Return the result of ``work`` for one window; an error message if the window is unreadable.

    An executor can call this function in another process.

    Args:
        recording: the window.
        work: turns the trace into a value.
        reading: returns the result of `read_first_readable`.
    """
    try:
        source, trace, errors = reading(recording)
    except InputError as error:
        return str(error)
    value = work(trace)
    return WindowResult(
        recording,
        source,
        trace.skipped,
        value,
        errors,
        notes_on(source, trace),
    )


def _executed(
    executor: Executor,
    task: Callable[[Recording, Callable[[Trace], T]], WindowResult[T] | str],
    works: Mapping[Recording, Callable[[Trace], T]],
) -> Iterator[WindowResult[T] | str]:
    """Yield the result of ``task`` for each window and its function, in the order of ``works``.

    If the process that ran the task died, yield an error message instead. Tasks that have not
    begun when the iteration ends are cancelled.
    """
    waiting = deque(_submitted(executor, task, *item) for item in works.items())
    try:
        for recording in works:
            try:
                yield waiting.popleft().result()
            except BrokenExecutor as error:
                where = recording.files[0] if recording.files else recording.name
                yield Message("died", path=where, error=error)
    finally:
        for future in waiting:
            future.cancel()


def _submitted(
    executor: Executor, task: Callable[[Recording, U], T], recording: Recording, work: U
) -> Future[T]:
    try:
        return executor.submit(task, recording, work)
    except BrokenExecutor as error:  # a process of the pool has already died
        future: Future[T] = Future()
        future.set_exception(error)
        return future
