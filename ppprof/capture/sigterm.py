"""SIGTERM: what a launcher sends to the other ranks when one has failed, and kills 3 s later."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

_PATIENCE = 20.0
"""Seconds after which the process ends whether or not all is saved: a disk may hang."""

_active: SigtermGuard | None = None
_mask = threading.local()


class SigtermGuard:
    """Has something saved when SIGTERM comes; then the signal ends the process as ever.

    ::

        SIGTERM -> C handler -> pipe -> thread of ours: save, die of SIGTERM
                                        (the main thread may sit in a collective for ever)

    Python runs a signal's handler in the main thread, and only once that is back from C++. What
    Python does at once, in whichever thread, is to write to the wakeup fd; a thread reads that.
    Masking the signal and waiting for it in a thread would do too, but only where it is masked
    before Paddle starts its threads, and every child would inherit the mask.

    The process dies by the default action. Paddle's own handler, which Python does not know of,
    would die of the same signal after a dump, or hang in it when it interrupts malloc.
    """

    def __init__(self, save: Callable[[], None]) -> None:
        self._save = save
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)

    @classmethod
    def install(cls, save: Callable[[], None]) -> SigtermGuard | None:
        """A guard that is on; None where the program minds its signals itself, or cannot.

        Args:
            save: what to do first; called once, in a thread of the guard's.
        """
        global _active
        if (
            os.name != "posix"
            or threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        ):
            return None
        guard = cls(save)
        before = signal.set_wakeup_fd(guard._writer, warn_on_full_buffer=False)
        if before != -1:  # an event loop's
            signal.set_wakeup_fd(before)
            guard._close_pipe()
            return None
        signal.signal(signal.SIGTERM, guard._handle)
        signal.siginterrupt(signal.SIGTERM, False)
        threading.Thread(target=guard._watch, name="ppprof SIGTERM", daemon=True).start()
        _active = guard
        return guard

    def uninstall(self) -> None:
        """SIGTERM ends the process at once again; does nothing outside the main thread."""
        global _active
        if threading.current_thread() is threading.main_thread() and _active is self:
            _active = None
            self._let_go()
            os.close(self._writer)  # ends the thread, which closes the other end

    def _watch(self) -> None:
        heard = b""
        while signal.SIGTERM not in heard:
            heard = os.read(self._reader, 64)
            if not heard:
                os.close(self._reader)
                return
            if signal.getsignal(signal.SIGTERM) not in (self._handle, signal.SIG_DFL):
                heard = b""  # the program has a handler of its own by now
        deadline = threading.Timer(_PATIENCE, _die)
        deadline.daemon = True
        deadline.start()
        try:
            self._save()
        finally:
            _die()

    def _handle(self, number: int, frame: object) -> None:
        with suppress(OSError):  # somebody may have taken the wakeup fd since
            os.write(self._writer, bytes([number]))

    def _let_go(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        now = signal.set_wakeup_fd(-1)
        if now not in (-1, self._writer):
            signal.set_wakeup_fd(now)

    def _close_pipe(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


def _die() -> None:
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal.restype = ctypes.c_void_p
    libc.signal(signal.SIGTERM, None)  # SIG_DFL; Python's own call works in the main thread alone
    os.kill(os.getpid(), signal.SIGTERM)


# A forked child (a DataLoader's worker) shares the pipe: its SIGTERM would be taken for ours. It
# waits until the child is rid of the guard.


def _before_fork() -> None:
    if _active is not None:
        _mask.old = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _after_fork() -> None:
    old = _mask.__dict__.pop("old", None)
    if old is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


def _after_fork_in_child() -> None:
    global _active
    if _active is not None:
        _active._let_go()
        _active._close_pipe()
        _active = None
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
    )
