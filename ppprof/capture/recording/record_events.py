"""The events of Paddle's ``RecordEvent`` in windows: layers, backward, optimizers, the training's own.

Paddle has one switch for all of them, and looks at it when an event begins. A training never sees the
switch on without ppprof, or without its own profiler. So what the events do then must not reach
it: an event that cannot be recorded is left out.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from paddle.base.dygraph import tensor_patch_methods
from paddle.io.dataloader import dataloader_iter
from paddle.profiler import utils as paddle_profiler

from ppprof.capture.output import reason, text_of
from ppprof.capture.recording import instance
from ppprof.capture.recording.patches import Patches
from ppprof.capture.signals import pass_interruption

log = logging.getLogger("ppprof")


class _LeftOut:
    """Replaces the C++ event of a ``RecordEvent`` that `RecordEvents.leave_open_ones` has taken."""

    def __init__(self, event: Any, report: Callable[[str], None]) -> None:
        self._event = event
        self._report = report

    def end(self) -> None:
        """Report the event, and leave it as it is outside windows."""
        _forget(self._event)
        self._report(text_of(getattr(self._event, "name", "")))

    def __reduce__(self) -> Any:
        # The training may copy or save the object that holds the event.
        return type(None), ()


class RecordEvents:
    """Switches the events on and off.

    They are on in windows; with ``emit_nvtx`` they are on until `close`. Afterwards the training's
    own setting is restored: a profiler of the training may be open.

    Args:
        reports: whether to log the first event that cannot be recorded.
    """

    active: RecordEvents | None = None
    """The events that are on because of a window."""

    def __init__(self, nvtx: bool, reports: bool) -> None:
        self._reports = reports
        self._nvtx = nvtx and not paddle_profiler._is_profiler_used
        self._previous: bool | None = None
        self._patches = Patches()
        self._begun: list[tuple[int, weakref.ref[Any]]] = []
        """Thread and ``RecordEvent`` of each event that has begun in the current step."""
        self.left: list[Any] = []
        """C++ events that `leave_open_ones` has taken, to be released when the window is stopped:
        an event that is released is recorded."""
        _pair_events(True)
        if self._nvtx:
            paddle_profiler._is_profiler_used = True

    def start(self) -> None:
        """Switch the events on."""
        if self._previous is None:
            self._previous = paddle_profiler._is_profiler_used
            self._patches.install(paddle_profiler.RecordEvent, "begin", self._begin)
            self._patches.install(paddle_profiler.RecordEvent, "end", _end)
            RecordEvents.active = self
        paddle_profiler._is_profiler_used = True

    def stop(self) -> None:
        """Restore the setting before `start`; do nothing if it is restored."""
        if self._previous is not None:
            RecordEvents.active = None
            self._patches.uninstall()
            self._begun.clear()
            paddle_profiler._is_profiler_used = self._previous
            self._previous = None

    def _begin(self, begin: Callable[[Any], None], event: Any) -> None:
        try:
            begin(event)
        except Exception as error:  # a name that is no text: outside windows it is not looked at
            pass_interruption(error)
            _forget(event)
            name = text_of(getattr(event, "name", ""))[:80]
            self._report(f"{name!r} is not recorded: {reason(error)}")
        else:
            self._begun.append((threading.get_ident(), weakref.ref(event)))

    @classmethod
    def has_open(cls, category: str) -> bool:
        """Return whether this thread is in an event of a category, such as "Optimization", of the current step."""
        begun = [] if cls.active is None else cls.active._begun[::-1]
        thread = threading.get_ident()
        events = (reference() for its_thread, reference in begun if its_thread == thread)
        return any(
            event is not None and event.event is not None and event.event_type.name == category
            for event in events
        )

    def leave_open_ones(self, *, reports: bool) -> None:
        """Leave the events of this thread that the step does not end out of the window.

        ::

            step              |--------------|       |-------
            RecordEvent             |--------------------|      in one thread

        Paddle refuses a window in which two events of a thread overlap like this: its ``stop()``
        raises. Here that would be ours, or that of a ``paddle.profiler.Profiler`` that the training
        opens within the event.

        Args:
            reports: whether to log the first event that was left out, once in a session.
        """
        begun, self._begun = self._begun, []
        thread = threading.get_ident()
        for event in (reference() for its_thread, reference in begun if its_thread == thread):
            with suppress(Exception):  # a subclass of the training's may do anything
                if event is not None and event.event is not None:
                    left = event.event
                    event.event = _LeftOut(event, self._report_left if reports else _nothing)
                    self.left.append(left)

    def _report_left(self, name: str) -> None:
        self._report(f"{name!r} is not recorded: it began in one step and ended in another")

    def _report(self, what: str) -> None:
        if self._reports:
            self._reports = False
            log.warning(f"RecordEvent {what}")

    def close(self) -> None:
        """Restore Paddle's functions, and its setting unless a profiler of the training is open."""
        self.stop()
        _pair_events(False)
        if self._nvtx and instance.is_free():
            paddle_profiler._is_profiler_used = False


def _pair_events(always: bool) -> None:
    """Make Paddle's DataLoader iterators and ``Tensor.backward`` always begin and end their event.

    Both check whether a profiler is in use before their work, and again after it. If another thread
    opens a window in between, they end an event that was never begun, which raises UnboundLocalError
    in the training. The additional events record nothing outside a window.
    """
    for module in (dataloader_iter, tensor_patch_methods):
        if hasattr(module, "in_profiler_mode"):
            module.in_profiler_mode = (lambda: True) if always else paddle_profiler.in_profiler_mode


def _end(end: Callable[[Any], None], event: Any) -> None:
    end(event)
    _forget(event)  # what is left of an event that is over cannot be copied or saved


def _forget(event: Any) -> None:
    with suppress(Exception):  # a subclass of the training's may do anything
        event.event = None


def _nothing(name: str) -> None:
    pass


def _after_fork_in_child() -> None:
    """Record no events in a worker that is forked within a window: they would never be taken."""
    if RecordEvents.active is not None:
        RecordEvents.active.stop()


os.register_at_fork(after_in_child=_after_fork_in_child)
