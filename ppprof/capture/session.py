"""The session that a training loop holds; the loop calls `ProfilerSession.step` after each step."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import TracebackType
from typing import TypeVar

from ppprof.capture import process
from ppprof.capture.output import log_to_stderr, text_of
from ppprof.capture.parts import Ending, FinishedStep, Part
from ppprof.capture.schedule import State
from ppprof.capture.signals import SignalGuard, raised_by_handler
from ppprof.capture.spans import span
from ppprof.capture.step_states import StepStates
from ppprof.capture.steps.timer import StepCost, StepTimer
from ppprof.capture.steps.visualdl_scalars import Loss
from ppprof.rundir import PAUSE_SPAN

log = logging.getLogger("ppprof")

_END_SECONDS = 3.0
"""How long a signal is delayed if it arrives after an exception has closed the session. Without the
delay the process would end by the signal; a launcher should pass on the failure's exit code."""

_MOST_OF_A_PAUSE = 40
"""Most characters of what a pause is for."""

_new = tuple.__new__  # of a named tuple's values: its own takes three times as long

Self = TypeVar("Self", bound="ProfilerSession")


class ProfilerSession:
    """The session that `ppprof.attach` returns, a context manager.

    No method raises, except what a signal handler of the training raises meanwhile.
    """

    @property
    def should_stop(self) -> bool:
        """Whether the training should end: ``stop_training`` is set and the last window has closed.

        Only windows of ``Profiler.scheduler`` count. So all ranks return the same value after the
        same step.
        """
        return False

    def step(
        self,
        num_samples: int | None = None,
        num_tokens: int | None = None,
        num_micro_batches: int | None = None,
        num_flops: int | None = None,
        loss: Loss = None,
    ) -> None:
        """End the current step and begin the next one; call `step` after each optimizer step.

        If the step was the last one of a window, this call saves the window. After `close` it does
        nothing. Calls of another thread than that of the first call do nothing either, until that
        thread has ended: spans of a thread must not cross.

        Args:
            num_samples: samples of the step in this rank's data-parallel replica, for ips in
                samples/s. Ranks that differ in mp or pp only share a replica and pass the same
                number.
            num_tokens: tokens of the step in this rank's data-parallel replica, for tokens/s.
            num_micro_batches: forward and backward passes of the step.
            num_flops: model FLOPs of the step on this rank alone, for MFU. Where mp and pp split
                the model, pass this rank's share; do not count recomputation.
            loss: the loss, for the step log, ``ppprof watch``, ``export`` and ``visualdl_scalars``.
                Pass a number at the steps where the loop reads the loss anyway. Ranks that write scalars
                also call a callable that returns one, and read a tensor on the host; a tensor on a device
                is not read, since reading it would wait for the device at every step.
        """

    def paused(self, what: str = "") -> AbstractContextManager[None]:
        """Return a context manager whose time counts in no step: an evaluation, a checkpoint.

        In a window, it is a span: ``paused``, or ``paused: evaluation`` with "evaluation" as ``what``.

        All ranks should pause. A rank that does not pause may wait in a collective for a paused
        rank, and counts that time.
        """
        return nullcontext()

    def close(self) -> None:
        """Save an open window, wait up to 60 s for tables and traces, and print the results.

        Later calls of `close` do nothing.
        """

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the session, as `close` does; an exception of the training is raised unchanged.

        After an exception, this rank does not wait for tables.
        """


class NoopSession(ProfilerSession):
    """The session of a profiler that is off: its methods do nothing."""


class RecordingSession(ProfilerSession):
    """The session of a profiler that is on.

    ::

        step n ends | parts: on_step(n) | states: advance(n + 1) | parts: on_transition | step n + 1

    A failure of a part is logged and ends the recording; it is never raised in the training. But an
    exception that a signal handler of the training raises meanwhile is: at the end of the method.

    Args:
        states: decides which steps are recorded.
        parts: the parts to call, in this order.
        timer: measures the steps; the first one begins when the session is made.
        communication_ns: returns the time in communication since the last call; None if it is unknown.
        rank: this process's rank.
        stop_training: whether `should_stop` becomes true after the last window.
        saves: whether the parts have something to save when a signal ends the process.
    """

    def __init__(
        self,
        states: StepStates,
        parts: Sequence[Part] = (),
        *,
        timer: StepTimer | None = None,
        communication_ns: Callable[[], int | None] | None = None,
        rank: int = 0,
        stop_training: bool = False,
        saves: bool = False,
    ) -> None:
        self._states = states
        self._parts = parts
        # A call costs as much as what most parts do in a step.
        self._stepping = [part for part in parts if _overrides(part.on_step, Part.on_step)]
        self._moving = [
            part for part in parts if _overrides(part.on_transition, Part.on_transition)
        ]
        self._stalling = [part for part in parts if _overrides(part.stalls, Part.stalls)]
        self._timer = timer or StepTimer()
        self._communication_ns = communication_ns
        self._spent_ns: int | None = 0
        """Communication of the step that goes on, as far as it was taken from the recorder; None if unknown."""
        self._rank = rank
        self._stop_training = stop_training
        self._first_step = self._step = states.schedule.first_step
        self._stall_ns = 0
        self._excluded = False
        self._num_working = 0
        """Number of steps that the parts got without a cost."""
        self._closed = self._training_failed = False
        self._failures: set[str] = set()
        self._interruption: BaseException | None = None
        """What a signal handler of the training has raised in a method that is not over yet."""
        self._left_out: set[str] = set()
        """Names of counts that were no numbers."""
        self._owner: threading.Thread | None = None
        """The thread that calls `step`."""
        self._was_called_elsewhere = False
        self._pid, self._forks = os.getpid(), process.num_forks
        self._steps_in_child = 0
        self._earlier_error = getattr(sys, "last_value", None)
        """The last exception that an interactive program has printed before."""
        self._lock = threading.RLock()  # between the training and a signal
        self._guard = SignalGuard.install(self._save_on_signal) if saves else None
        atexit.register(self._at_exit)
        self._timer.start()
        self._advance()

    @property
    def closed(self) -> bool:
        """Whether the session was closed: by `close`, by its ``with`` block, at exit or by a signal."""
        return self._closed

    @property
    def is_active(self) -> bool:
        """Whether `step` has an effect: not after the session is closed, and not in a forked child.

        A forked child is not a rank of the job.
        """
        return not self._closed and process.num_forks == self._forks

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self._rank

    @property
    def should_stop(self) -> bool:
        """Whether the training should end; see `ProfilerSession.should_stop`."""
        return self._stop_training and self._states.schedule.is_over(
            self._step + self._steps_in_child
        )

    def step(
        self,
        num_samples: int | None = None,
        num_tokens: int | None = None,
        num_micro_batches: int | None = None,
        num_flops: int | None = None,
        loss: Loss = None,
    ) -> None:
        """End the current step and begin the next one; see `ProfilerSession.step`.

        In a forked child, only count the step, for `should_stop`, and log a warning once.
        """
        if process.num_forks != self._forks:
            self._step_in_child()
            return
        with self._lock:
            if self._closed or not self._owns_steps():
                return
            if self._guard is not None:
                self._guard.check()
            try:
                step = self._finished_step(
                    loss, num_samples, num_tokens, num_micro_batches, num_flops
                )
            except Exception as error:
                self._report("timing a step", error)
            else:
                for part in self._stepping:
                    try:
                        part.on_step(step)
                    except Exception as error:
                        self._report(part.task, error)
            self._step += 1
            self._advance()
        if self._interruption is not None:
            self._raise_interruption()

    def _owns_steps(self) -> bool:
        """Return whether this thread ends steps; log once that another one does not."""
        owner, thread = self._owner, threading.current_thread()
        if owner is thread:
            return True
        if owner is None or not owner.is_alive():
            self._owner = thread
            return True
        if not self._was_called_elsewhere:
            self._was_called_elsewhere = True
            log_to_stderr()
            log.warning(
                f"rank {self._rank}: step() was called in thread {thread.name}, but thread "
                f"{owner.name} ends the steps: such calls have no effect; call step() in one thread"
            )
        return False

    def _step_in_child(self) -> None:
        self._steps_in_child += 1
        if self._steps_in_child > 1 or self._closed:
            return
        log_to_stderr()
        log.warning(
            f"rank {self._rank}: process {os.getpid()} was forked from process {self._pid}, which "
            "called ppprof.attach(): nothing is recorded here, the training goes on; to record it, "
            "call attach() in this process, after os.fork() or daemonising"
        )

    @contextmanager
    def paused(self, what: str = "") -> Iterator[None]:
        """Return a context manager whose time counts in no step; see `ProfilerSession.paused`."""
        if not self._may_end_steps():  # another thread pauses, and not the training
            yield
            return
        self._count_communication()
        with self._timer.paused(text_of(what)[:_MOST_OF_A_PAUSE]), self._pause_span(what):
            try:
                yield
            finally:
                self._count_communication()  # while the timer is paused: it counts in no step

    def _count_communication(self) -> None:
        """Add the communication since the last call to that of the step, unless it was in a pause."""
        if self._communication_ns is None or not self._may_end_steps():
            return
        spent_ns = self._communication_ns()
        if self._timer.is_paused():
            return
        before_ns = self._spent_ns
        self._spent_ns = None if before_ns is None or spent_ns is None else before_ns + spent_ns

    def _may_end_steps(self) -> bool:
        """Return whether the session is active, and no other thread than this one ends the steps."""
        return self.is_active and self._owner in (None, threading.current_thread())

    def _pause_span(self, what: str) -> AbstractContextManager[object]:
        if not self._states.state.records:
            return nullcontext()
        return span(f"{PAUSE_SPAN}: {what}" if what else PAUSE_SPAN)

    def close(self) -> None:
        """Save an open window, wait for tables and print the results; see `ProfilerSession.close`.

        In a forked child, do nothing.
        """
        self._close(None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        is_exit = isinstance(error, SystemExit) and not error.code
        # A generator that holds the loop gets the other one where its caller breaks.
        self._close(None if is_exit or isinstance(error, GeneratorExit) else error)

    def _finished_step(
        self,
        loss: Loss,
        samples: int | None,
        tokens: int | None,
        micro_batches: int | None,
        flops: int | None,
    ) -> FinishedStep:
        """End the step on the timer, and return its times and counts.

        The arguments are those of `step`. A count that is no whole number is logged and becomes None.
        """
        batch_cost_ns, reader_cost_ns, device_timed, *others = self._timer.step()
        self._count_communication()
        communication_ns = None if self._communication_ns is None else self._spent_ns
        self._spent_ns = 0
        states, cost = self._states, None
        if batch_cost_ns is None:  # a device may still work on the step
            if states.state is State.LAST:  # saving the window waits for the device in any case
                self._timer.finish()
            cost = self._pass_costs_on()
            self._num_working += cost is None
        whole = self._whole_number
        values = (
            self._step,
            batch_cost_ns,
            reader_cost_ns,
            None if samples is None else whole("num_samples", samples),
            None if tokens is None else whole("num_tokens", tokens),
            None if micro_batches is None else whole("num_micro_batches", micro_batches),
            None if flops is None else whole("num_flops", flops),
            loss,
            self._stall_ns,
            self._excluded,
            states.open_window,
            states.next_window,
            device_timed,
            communication_ns,
            *others,
        )
        step = _new(FinishedStep, values)
        return step if cost is None else step.costing(cost)

    def _pass_costs_on(self) -> StepCost | None:
        """Pass the costs of earlier steps, which have become known, on to the parts.

        Returns:
            The cost of the step that `_finished_step` is ending; None if it is not known.
        """
        for cost in self._timer.take():
            if not self._num_working:
                return cost
            self._num_working -= 1
            for part in self._parts:
                try:
                    part.on_cost(cost)
                except Exception as error:
                    self._report(part.task, error)
        return None

    def _whole_number(self, name: str, count: int) -> int | None:
        try:
            number = int(count)  # a numpy or Paddle scalar is a number too
        except Exception:  # a tensor of several elements, NaN, infinity, text
            number = -1
        if 0 <= number < 1 << 63:
            return number
        if name not in self._left_out:
            self._left_out.add(name)
            log_to_stderr()
            log.warning(
                f"rank {self._rank}: step({name}={text_of(count)[:40]}): expected a whole number from 0; "
                "it is left out"
            )
        return None

    def _advance(self) -> None:
        """Begin step number ``self._step``: call `on_transition` of every part.

        The `StepStates` decides whether the step is recorded.
        """
        try:
            transition = self._states.advance(self._step)
            if any(part.stalls(transition) for part in self._stalling):
                transition = transition._replace(excluded=True)
        except Exception as error:
            self._report("choosing steps", error)
            return
        stall_ns = 0
        if transition.excluded:
            self._timer.stall(begins=True)
        for part in self._moving:
            try:
                stall_ns += part.on_transition(transition)
            except Exception as error:
                self._report(part.task, error)
        if transition.excluded:
            self._timer.stall(begins=False)
        self._stall_ns = stall_ns
        self._excluded = transition.excluded or stall_ns > 0

    def _close(self, error: BaseException | None) -> None:
        if process.num_forks != self._forks:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            log_to_stderr()  # the program may have disabled the logger since `attach`
            self._training_failed = error is not None
            atexit.unregister(self._at_exit)
            is_in_window = self._states.state.records
            num_steps = self._step - self._first_step
            ending = Ending(error, num_steps, self._step, is_in_window, self._failures)
            self._end_timing(waits=error is None)
            self._call_parts(lambda part: part.close(ending), data_first=ending.failed)
            if self._guard is not None:
                self._guard.uninstall()
        if self._guard is not None and not ending.failed:  # an exception is printed first
            self._guard.end_if_signalled()
        self._call_parts(lambda part: part.wait(ending))
        self._raise_interruption()

    def _end_timing(self, *, waits: bool) -> None:
        """Pass the costs of all steps on to the parts, and end the timer."""
        try:
            self._timer.finish(waits=waits)
            self._pass_costs_on()
            self._timer.close()
        except Exception as error:
            self._report("timing a step", error)

    def _save_on_signal(self) -> None:
        """Save the data recorded so far: a signal is about to end the process.

        Runs in the guard's thread. If the session is closed, all data are saved already; after an
        exception, this only delays the signal (`_END_SECONDS`).
        """
        for part in self._parts:
            with suppress(Exception):
                part.on_signal()
        # Keep the lock, unless the session is closed: the training's next call waits for the end.
        self._lock.acquire()
        if self._closed:
            self._lock.release()
            if self._training_failed:  # without ppprof it would have ended before this signal
                time.sleep(_END_SECONDS)
            return
        self._closed = True
        with suppress(Exception):
            self._timer.finish(waits=False)
            for cost in self._timer.take():
                for part in self._parts:
                    with suppress(Exception):
                        part.on_cost(cost)
        for part in self._ordered(data_first=True):
            try:
                part.rescue()
            except Exception as error:  # `_report` would close Paddle's profiler, which is busy
                log.warning(f"rank {self._rank}: {part.task} failed: {_describe(error)}")

    def _at_exit(self) -> None:
        error = getattr(sys, "last_value", None)  # set when an exception ends the program
        self._close(None if error is self._earlier_error else error)

    def _ordered(self, *, data_first: bool) -> Sequence[Part]:
        """Return the parts, in the order of the session, or those with recorded data first."""
        if not data_first:
            return self._parts
        return sorted(self._parts, key=lambda part: not part.has_data)

    def _call_parts(self, call: Callable[[Part], None], *, data_first: bool = False) -> None:
        for part in self._ordered(data_first=data_first):
            try:
                call(part)
            except Exception as error:
                self._report(part.task, error)

    def _report(self, task: str, error: Exception) -> None:
        """Log a failure, once for each task, and end the recording."""
        self._interruption = self._interruption or raised_by_handler(error)
        log_to_stderr()  # the program may have disabled the logger since `attach`
        if task not in self._failures:  # what fails in a step fails in every step
            self._failures.add(task)
            why = _describe(error)
            log.warning(f"rank {self._rank}: {task} failed: {why}; the training goes on without")
        for part in self._parts:
            try:
                part.on_failure()
            except Exception as another:
                why = _describe(another)
                log.warning(f"rank {self._rank}: ending the recording failed: {why}")

    def _raise_interruption(self) -> None:
        error, self._interruption = self._interruption, None
        if error is not None:
            raise error


def _overrides(method: Callable[..., object], inherited: Callable[..., object]) -> bool:
    return getattr(method, "__func__", None) is not inherited


def _describe(error: Exception) -> str:
    return text_of(error) or type(error).__name__
