"""Threads beside the training's own."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable

log = logging.getLogger("ppprof")


def start(target: Callable[[], None], name: str) -> threading.Thread:
    """Start a daemon thread that receives no signals, and return it.

    An exception of ``target`` is logged.

    A signal goes to any thread of the process that does not block it. So a training that blocks
    SIGTERM in its own thread would end by a SIGTERM that arrives in a thread of ours. A process that
    the thread starts inherits the blocked signals, and has to unblock those that it needs.
    """

    def run() -> None:
        try:
            target()
        except Exception as error:
            log.warning(f"the thread of {name} failed: {error!r}; the training goes on without it")

    thread = threading.Thread(target=run, name=f"ppprof {name}", daemon=True)
    if not hasattr(signal, "pthread_sigmask"):
        thread.start()
        return thread
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return thread
