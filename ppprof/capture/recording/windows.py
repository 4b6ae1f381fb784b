"""Open, close and save the windows of a rank that records, between two steps."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ppprof import rundir
from ppprof.capture import process
from ppprof.capture.output import reason
from ppprof.capture.recording.observers import WindowObserver
from ppprof.capture.recording.segments import SegmentLength
from ppprof.capture.recording.store import InMemory, WindowStore
from ppprof.capture.schedule import State
from ppprof.capture.signals import pass_interruption
from ppprof.capture.step_states import Transition, ends_provisional_steps
from ppprof.rundir.run_file import RunFile

if TYPE_CHECKING:  # the recorder imports Paddle, which this module does not need
    from ppprof.capture.recording.recorder import Recorder

log = logging.getLogger("ppprof")


_AHEAD = "the recording of the first steps, ahead of"
_IN_USE = "another profiler is open in this process"
_THEIRS = "the training has opened a profiler of its own"
_ONE = (
    "Paddle allows one profiler at a time; windows are recorded again once the training's "
    "paddle.profiler.Profiler is deleted (its stop() is not enough)"
)


_STEP_SECONDS = 30.0
"""How long a thread that creates a profiler of the training waits for the end of the step."""
_POLL_SECONDS = 0.05


@dataclass
class _OpenSegment:
    """The segment of a window that is recorded now."""

    name: rundir.TraceName
    first_step: int
    is_provisional: bool
    """Whether it holds the provisional steps ahead of the window."""
    num_before: int = 0
    """Steps in earlier segments of the window."""
    num_steps: int = 0
    """Steps that have ended in it."""
    started: float = field(default_factory=time.monotonic)

    @property
    def window_steps(self) -> int:
        """Steps of the window so far."""
        return self.num_before + self.num_steps

    @property
    def steps(self) -> range:
        """The steps of the segment."""
        return range(self.first_step, self.first_step + self.num_steps)

    def next(self) -> _OpenSegment:
        """Return the next segment of the window, which begins now."""
        name = replace(self.name, segment=self.name.segment + 1)
        return _OpenSegment(name, self.steps.stop, self.is_provisional, self.window_steps)


class Windows:
    """Calls the recorder and the observers as the states of steps require.

    ::

        window opens    recorder.prepare -> observers.install -> recorder.start -> observers.started
        each step       recorder.begin_step ... recorder.end_step -> observers.step
        segment ends    on a device: before_waiting -> recorder.take, recorder.write, which
                        writes the raw capture -> observers.saved -> store.add
                        -> recorder.prepare -> recorder.start -> observers.started
        window ends     observers.uninstall -> as where a segment ends, up to store.add
                        -> store.end_window
        first steps     uninstall, before_waiting -> recorder.take -> observers.kept, in memory
          written       recorder.write -> observers.saved -> store.add
          not written   observers.dropped
        deleted         observers.dropped -> store.delete

    Observers are called in their order. Before the step that precedes a window, and after each step of it, they
    are asked for their `limit`. Functions are wrapped only while Paddle records; the
    profiler exists from `Recorder.prepare` until the window ends, or until the training needs it
    (`preempt`).

    Args:
        recorder: drives Paddle's profiler.
        store: the files of the windows.
        observers: what happens besides.
        before_waiting: saves other data: Paddle's profiler is about to wait for the device, perhaps
            forever.
        now: returns the processor time of this thread in seconds; tests pass another function.
        first_step: number of the training's first step.
    """

    def __init__(
        self,
        recorder: Recorder,
        store: WindowStore,
        observers: Sequence[WindowObserver] = (),
        before_waiting: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.thread_time,
        first_step: int = 0,
    ) -> None:
        self._now = now
        self._recorder = recorder
        self._store = store
        self._observers = observers
        for observer in observers:
            observer.bind(self.end_within_step)
        self._before_waiting = before_waiting
        self._lock = threading.RLock()  # between the training and `preempt`
        self._thread = threading.get_ident()
        self._is_set_up = self._was_cut = False
        self._released: threading.Event | None = None
        """Set when Paddle's profiler is released; None if no other thread waits for that."""
        self._created = time.monotonic()
        self._first_step = first_step
        self._open: _OpenSegment | None = None
        self.call_folders: tuple[RunFile, ...] = ()
        """The folders for remote calls of the segments of the open window, also while one is saved."""
        self._length = SegmentLength()

    @property
    def calls(self) -> RunFile | None:
        """The folder for the remote calls of the open window; None without an open window."""
        segment = self._open
        return None if segment is None else self._store.calls(segment.name)

    def admit(self, transition: Transition) -> bool:
        """Admit the step that begins, or return False if it cannot be recorded; call it before `advance`.

        A CLOSED step is admitted. If another thread of the training waits for Paddle's profiler, the window ends here: it is saved, and the
        profiler released. If the budget has no room for the step, log a warning.

        Raises:
            OSError: the directory is gone.
        """
        before, after = transition.own_before, transition.own_after
        is_over = before is State.LAST or ends_provisional_steps(before, after)
        if self._released is not None and not is_over:
            self._cut_window(True)
        was_cut, self._was_cut = self._was_cut, False
        if was_cut and not is_over:
            return False
        if after is State.CLOSED:
            return True
        steps, effect = None, "is not recorded on this rank"
        if self._open is not None and not is_over:
            steps = self._open.num_steps + before.records
            total = self._open.num_before + steps
            effect = f"ends after {total} step{'s' * (total != 1)} on this rank"
        limit = next(filter(None, (each.limit(steps) for each in self._observers)), "")
        if limit:
            what = f"{_AHEAD} " * (after is State.PROVISIONAL) + f"window {transition.window}"
            log.warning(f"rank {self._store.rank}: {what} {effect}: {limit}")
        return not limit

    def ends_segment(self, transition: Transition) -> bool:
        """Return whether the open segment is to be saved, and the next one to begin, in `advance`."""
        segment = self._open
        is_within = transition.own_before is State.RECORD and transition.own_after.records
        if segment is None or segment.is_provisional or not is_within:
            return False
        return self._length.is_reached(
            segment.num_steps + 1,
            segment.window_steps + 1,
            self._num_operators(),
            time.monotonic() - segment.started,
        )

    def _num_operators(self) -> int | None:
        return next(filter(None, (each.num_operators() for each in self._observers)), None)

    def advance(self, transition: Transition) -> bool:
        """Save a window that ends (or keep provisional steps in memory), open or continue a window.

        Save a segment if it is time (`ends_segment`), and begin the next one.

        Returns:
            False if the window cannot be recorded, because the training's own profiler is open. The
            first such window is logged.

        Raises:
            RuntimeError: the window could not be saved.
        """
        before, after = transition.own_before, transition.own_after
        with self._lock:
            self._thread = threading.get_ident()
            ends_segment = self.ends_segment(transition)
            self._end_step(before)
            if before is State.LAST:
                self._save()
                self._free_provisional_steps()
                self._note_release()
            elif ends_provisional_steps(before, after):
                self._keep_in_memory()
                self._note_release()
            self._store.holds = transition.is_held
            if ends_segment and not self._next_segment():
                return False
            opens = after.records and self._open is None
            if self._is_postponed(transition):
                return True
            # Do not prepare twice: CUPTI accepts only one call.
            if not self._is_set_up and (after is State.READY or opens):
                if not self._recorder.prepare(self.preempt):
                    if after is not State.PROVISIONAL:
                        self._note_in_use(transition.window)
                    return False
                self._is_set_up = True
            if opens:
                name = self._store.new_name(transition.window)
                self.call_folders = (self._store.calls(name),)
                self._open = _OpenSegment(name, transition.step, after is State.PROVISIONAL)
                with process.without_collection():
                    for observer in self._observers:
                        observer.install()
                    self._recorder.start()
                    for observer in self._observers:
                        observer.started()
            if after.records:
                self._recorder.begin_step(transition.step)
            return True

    def _note_in_use(self, window: int | None) -> None:
        """Count a window that is not recorded, because another profiler is open; log the first one."""
        if not self._store.num_skipped:
            log.warning(
                f"rank {self._store.rank}: window {window} is not recorded: {_IN_USE}; {_ONE}"
            )
        self._store.num_skipped += 1

    def opens_late(self, transition: Transition) -> bool:
        """Return whether a window that was postponed is about to be opened, in `advance`."""
        before, after = transition.own_before, transition.own_after
        was_open = before is State.READY or before.records
        is_late = self._open is None and not self._is_set_up and was_open and after.records
        return is_late and before is not State.LAST and not self._is_postponed(transition)

    def _is_postponed(self, transition: Transition) -> bool:
        """Return whether the window has to begin later: the device's profiler is still probed.

        Provisional steps wait for nothing. A window waits if it would be over before the probe is.
        """
        after = transition.own_after
        if self._is_set_up or self._open is not None or after is State.CLOSED:
            return False
        seconds = self._recorder.probe_seconds_left
        if not seconds or after is State.PROVISIONAL:
            return bool(seconds)
        num_left = transition.num_left
        step_seconds = (time.monotonic() - self._created) / max(
            transition.step - self._first_step, 1
        )
        return num_left is not None and num_left > 1 and num_left * step_seconds > seconds

    def _next_segment(self) -> bool:
        """Save the open segment and begin the next one; return False if that is impossible."""
        segment = self._open
        assert segment is not None
        begin, operators = self._now() - self._recorder.wait_seconds, self._num_operators()
        self._save(is_last=False)
        if not self._recorder.prepare(self.preempt, continues=True):
            log.warning(
                f"rank {self._store.rank}: window {segment.name.window} was cut short: {_IN_USE}; "
                f"steps recorded: {segment.window_steps}; {_ONE}"
            )
            self.call_folders = ()
            self._uninstall()
            self._store.cut.add(segment.name.window)
            self._store.end_window()
            self._note_release()
            return False
        self._open = segment.next()
        self.call_folders += (self._store.calls(self._open.name),)
        self._recorder.start()
        for observer in self._observers:
            observer.started()
        stall_seconds = self._now() - self._recorder.wait_seconds - begin
        self._length.learn(segment.num_steps, operators, stall_seconds)
        return True

    def _end_step(self, before: State) -> None:
        self._recorder.end_step()
        if self._open is not None:
            self._count_step(self._open, before.records)
            if self._open.num_steps and not self._open.is_provisional:
                self._store.provisional.drop()

    def _count_step(self, segment: _OpenSegment, is_complete: bool) -> None:
        segment.num_steps += is_complete
        for observer in self._observers:
            observer.step(segment.num_steps)

    def preempt(self) -> None:
        """Save an open window and release Paddle's profiler: the training creates its own.

        Called in the thread that creates it, at any time. A window that cannot be saved is logged.
        Another thread than that of the steps waits until the current step ends: Paddle's
        profiler must not be stopped while the training is in an operator, which corrupts memory in
        C++. It does not wait if the thread of the steps waits for another thread, such as this one,
        and for 30 s at most.
        """
        if threading.get_ident() != self._thread:
            with self._lock:
                if not self._is_set_up:
                    return
                released = self._released = self._released or threading.Event()
            deadline = time.monotonic() + _STEP_SECONDS
            while not released.wait(_POLL_SECONDS):
                if _waits_for_threads(self._thread) or time.monotonic() >= deadline:
                    break
            else:
                return
        self._cut_window(False)

    def end_within_step(self, why: str) -> bool:
        """Save an open window, and record no more of it: the step is too long for Paddle's profiler.

        Call it in the thread of the steps.

        Returns:
            False in another thread: nothing has happened.
        """
        if threading.get_ident() != self._thread:
            return False
        self._cut_window(
            False, why, "for shorter windows: Profiler.scheduler, or call step() earlier"
        )
        return True

    def _cut_window(self, is_complete: bool, why: str = _THEIRS, remedy: str = _ONE) -> None:
        """Save an open window, cancel a prepared one, and release Paddle's profiler."""
        with self._lock:
            segment, rank = self._open, self._store.rank
            try:
                if segment is not None:
                    effect = self._end_early(segment, is_complete)
                    log.warning(
                        f"rank {rank}: {effect}: {why}; "
                        f"steps recorded: {segment.window_steps}; {remedy}"
                    )
                elif self._is_set_up:
                    self._store.num_skipped += 1
                    log.warning(f"rank {rank}: the next window is not recorded: {why}; {remedy}")
            except Exception as error:
                pass_interruption(error)
                log.warning(f"rank {rank}: {reason(error)}; {remedy}")
            finally:
                self._was_cut = self._was_cut or self._is_set_up
                try:
                    self._recorder.discard()
                finally:
                    self._note_release()

    def _end_early(self, segment: _OpenSegment, is_complete: bool) -> str:
        """Close the open segment within a step, and return what became of it."""
        self._recorder.end_step(is_complete=is_complete)
        if is_complete:
            self._count_step(segment, is_complete)
        window = segment.name.window
        if segment.is_provisional:
            self._keep_in_memory()
            return f"{_AHEAD} window {window} was cut short"
        if self._store.provisional and not segment.num_steps:
            self._abandon()
            return f"window {window} is not recorded"
        self._store.cut.add(window)
        self._save()
        return f"window {window} was cut short"

    def _note_release(self) -> None:
        """Notify the threads that wait for Paddle's profiler that it is released."""
        self._is_set_up = False
        released, self._released = self._released, None
        if released is not None:
            released.set()

    def close(self, keep_empty: bool, error: BaseException | None = None) -> None:
        """Release all held windows, save an open window, and release Paddle's profiler.

        If provisional steps are in memory, they are saved in place of the open window, in which no
        step has ended.

        Args:
            keep_empty: whether to save an open window in which no step has ended.
            error: the exception that ends the training.

        Raises:
            RuntimeError: the window could not be saved.
        """
        self._store.holds = False  # no keep decision will arrive
        with self._lock:
            if error is not None:
                self._recorder.ends_by(error)
            try:
                self._store.release_all()
                is_saved = self._save_provisional_steps()
                segment = None if is_saved else self._open
                if segment is not None and (keep_empty or segment.window_steps):
                    self._recorder.end_step(is_complete=False)
                    self._save()
            finally:
                self._abandon()
                self._store.end_window()
                self._free_provisional_steps()
                self._recorder.close()
                self._note_release()

    def settle(self, window: int, is_kept: bool) -> None:
        """Start to make tables and traces of a held window, or delete its raw captures and remote calls.

        Do nothing if the window is not held.

        Raises:
            OSError: the raw capture cannot be deleted.
        """
        if is_kept:
            self._store.release(window)
            return
        for name in self._store.drop(window):
            self._call_dropped(name)
            self._store.delete(name)

    def rescue(self) -> None:
        """Save an open window and release all held windows, since the process is about to end.

        This may be called in any thread. Paddle's profiler is not released, since the training may
        be inside an operator that uses it. The span of the incomplete step is on the thread that
        calls this.

        Raises:
            RuntimeError: the window could not be saved.
        """
        self._store.holds = False
        with self._lock:
            try:
                if not self._save_provisional_steps(brief=True):
                    self._recorder.end_step(is_complete=False)
                    self._save(brief=True)
            finally:
                self._store.end_window(brief=True)
            if self._open is not None:
                self._store.delete_calls(self._open.name)
            self._store.release_all(brief=True)
            self._free_provisional_steps()

    def _abandon(self) -> None:
        """Do not save the open window, if there is one."""
        segment, self._open, self.call_folders = self._open, None, ()
        self._uninstall()
        if segment is not None:
            self._lose(segment.name)

    def _keep_in_memory(self) -> None:
        """Close the window of the provisional steps; do nothing if it is closed already."""
        segment, self._open, self.call_folders = self._open, None, ()
        if segment is None:
            return
        name = segment.name
        with self._losing(name, segment.num_steps):
            self._before_stop()
            events = self._recorder.take()
        for observer in self._observers:
            observer.kept(name, segment.num_steps)
        if segment.num_steps:
            self._store.provisional.keep(InMemory(name, segment.steps, events))
        else:
            self._lose(name)

    def _save_provisional_steps(self, brief: bool = False) -> bool:
        """Save the provisional steps that are in memory; return whether there are any."""
        kept = self._store.provisional.take()
        if kept is None:
            return False
        with self._losing(kept.name, len(kept.steps)):
            self._recorder.write(kept.events, self._store.raw(kept.name), brief)
        self._saved(kept.name, kept.steps)
        self._store.end_window(brief)
        return True

    def _save(self, brief: bool = False, *, is_last: bool = True) -> None:
        """Save the open segment, the last one of its window or not; do nothing without one."""
        segment, self._open = self._open, None
        if segment is None:
            return
        if is_last:
            self.call_folders = ()
        try:
            with self._losing(segment.name, segment.num_steps):
                self._before_stop(uninstalls=is_last)
                events = self._recorder.take(brief)
                self._recorder.write(events, self._store.raw(segment.name), brief)
            self._saved(segment.name, segment.steps)
        finally:
            if is_last:
                self._store.end_window(brief)

    def _saved(self, name: rundir.TraceName, steps: range) -> None:
        with self._losing(name, len(steps)):
            for observer in self._observers:
                observer.saved(name, len(steps))
        self._store.add(name, steps)

    def _before_stop(self, *, uninstalls: bool = True) -> None:
        if uninstalls:
            self._uninstall()
        if self._recorder.waits:
            self._before_waiting()

    def _uninstall(self) -> None:
        with process.without_collection():
            # Of two that wrap a method, the later one has wrapped the other's wrapper.
            for observer in reversed(self._observers):
                observer.uninstall()

    def _free_provisional_steps(self) -> None:
        name = self._store.provisional.free()
        if name is not None:
            self._lose(name)

    def _lose(self, name: rundir.TraceName) -> None:
        """Delete what belongs to a segment that is not written."""
        self._call_dropped(name)
        self._store.delete_calls(name)

    def _call_dropped(self, name: rundir.TraceName) -> None:
        for observer in self._observers:
            observer.dropped(name)

    @contextmanager
    def _losing(self, name: rundir.TraceName, num_steps: int) -> Iterator[None]:
        """Name the window that is lost, and its steps, in the error that is raised."""
        try:
            yield
        except Exception as error:
            self._call_dropped(name)
            lost = _what_is_lost(name, num_steps)
            raise RuntimeError(f"{self._store.raw(name)}: {reason(error)}; {lost}") from error


def _what_is_lost(name: rundir.TraceName, num_steps: int) -> str:
    if name.segment:
        return (
            f"the last {num_steps} steps of window {name.window} are lost, earlier ones are saved"
        )
    return f"window {name.window} is lost, steps recorded: {num_steps}"


def _waits_for_threads(thread: int) -> bool:
    """Return whether a thread waits in Python's `threading`, and so is in no operator of Paddle."""
    frame = process.current_frames().get(thread)
    return frame is None or frame.f_code.co_filename == threading.__file__
