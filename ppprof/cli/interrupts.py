"""Ctrl-C while an object is freed: Python only prints such an exception, and goes on."""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LATER_S = 0.01


@contextmanager
def late_interrupts() -> Iterator[None]:
    """Raise a ``KeyboardInterrupt`` again if Python ignores it during the block."""
    print_it = sys.unraisablehook
    timers: list[threading.Timer] = []

    def interrupt_again(ignored: sys.UnraisableHookArgs) -> None:
        if not issubclass(ignored.exc_type, KeyboardInterrupt):
            print_it(ignored)
            return
        timer = threading.Timer(_LATER_S, _thread.interrupt_main)
        timer.daemon = True
        timers.append(timer)
        timer.start()

    sys.unraisablehook = interrupt_again
    try:
        yield
    finally:
        sys.unraisablehook = print_it
        for timer in timers:
            timer.cancel()
