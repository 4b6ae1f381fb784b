"""Save data on SIGTERM: a launcher sends it to all ranks when one rank fails, and kills 3 s later."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ppprof.capture import threads

_PATIENCE = 20.0
"""Seconds after which the process ends even if saving has not finished, since a disk may hang."""

_active: SigtermGuard | None = None
_mask = threading.local()


class SigtermGuard:
    """Calls a function when SIGTERM arrives; then SIGTERM ends the process, as without a guard.

    ::

        SIGTERM -> C handler -> pipe -> thread of the guard: save, die of SIGTERM
                                        (the main thread may hang in a collective)

    The thread is needed because Python runs signal handlers in the main thread, and only when that
    thread has returned from C++. The write to the wakeup fd, however, happens at once, in whichever
    thread gets the signal; the guard's thread reads it. Masking the signal and waiting for it in a
    thread would work too. But it would have to be masked before Paddle starts its threads, and
    every child process would inherit the mask.

    The process dies by the signal's default action. Paddle's own handler, which Python does not
    see, is not called: it would print a dump and die of the same signal, or hang if the signal
    interrupted malloc.
    """

    def __init__(self, save: Callable[[], None]) -> None:
        self._save = save
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)

    @classmethod
    def install(cls, save: Callable[[], None]) -> SigtermGuard | None:
        """Install a guard and return it; return None if no guard can be installed.

        That is so if the program handles SIGTERM itself, if it uses the wakeup fd (as an event loop
        does), outside the main thread, and on systems that are not POSIX.

        Args:
            save: called once, in the guard's thread, before the process ends.
        """
        global _active
        if (
            os.name != "posix"
            or threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        ):
            return None
        guard = cls(save)
        previous = signal.set_wakeup_fd(guard._writer, warn_on_full_buffer=False)
        if previous != -1:  # of an event loop
            signal.set_wakeup_fd(previous)
            guard._close_pipe()
            return None
        signal.signal(signal.SIGTERM, guard._handle)
        signal.siginterrupt(signal.SIGTERM, False)
        _active = guard
        guard._thread = threads.start(guard._watch, "SIGTERM")
        return guard

    def uninstall(self) -> None:
        """Restore the state before `install`: SIGTERM ends the process at once.

        Does nothing outside the main thread, or if this guard is not the latest one.
        """
        global _active
        if threading.current_thread() is threading.main_thread() and _active is self:
            _active = None
            self._restore_signals()
            os.close(self._writer)  # ends the thread, which closes the other end

    def _watch(self) -> None:
        signals = b""
        while signal.SIGTERM not in signals:
            signals = os.read(self._reader, 64)
            if not signals:
                os.close(self._reader)
                return
            if signal.getsignal(signal.SIGTERM) not in (self._handle, signal.SIG_DFL):
                signals = b""  # the program has installed a handler of its own since
        self._ends.set()
        deadline = threading.Timer(_PATIENCE, _die)
        deadline.daemon = True
        deadline.start()
        _send_sigterm_after(_PATIENCE + 1)
        try:
            self._save()
        finally:
            _die()

    def _handle(self, number: int, frame: object) -> None:
        with suppress(OSError):  # the program may have set another wakeup fd since
            os.write(self._writer, bytes([number]))

    def _restore_signals(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        current = signal.set_wakeup_fd(-1)
        if current not in (-1, self._writer):
            signal.set_wakeup_fd(current)

    def _close_pipe(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


def is_ending() -> bool:
    """Return whether SIGTERM has arrived, so that a guard saves data and ends the process.

    A long wait in the training has to end then: the guard may need a lock that the training holds.
    """
    return _active is not None and _active._ends.is_set()


@contextmanager
def default_sigterm() -> Iterator[None]:
    """Within it, SIGTERM ends the process at once, even while C++ code holds Python's lock.

    No thread of Python can run then, so nothing could be saved anyway. Does nothing without an
    installed guard, as when the program handles SIGTERM itself. In the guard's thread, which saves
    because of a SIGTERM, a second SIGTERM has that effect from then on: that of the guard's own
    timer, or of an impatient sender.
    """
    guard = _active
    if guard is None or signal.getsignal(signal.SIGTERM) != guard._handle:
        yield
    elif threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, guard._handle)
            signal.siginterrupt(signal.SIGTERM, False)
    else:
        if threading.current_thread() is guard._thread:
            _restore_default_action()
        yield


def _die() -> None:
    _restore_default_action()
    # The main thread may block it meanwhile; a thread of ours blocks all signals.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    os.kill(os.getpid(), signal.SIGTERM)


def _restore_default_action() -> None:
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal.restype = ctypes.c_void_p
    libc.signal(signal.SIGTERM, None)  # SIG_DFL; Python's own call works in the main thread only


class _SignalEvent(ctypes.Structure):
    """``struct sigevent`` of Linux."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("padding", ctypes.c_char * 48),
    )


class _TimerSetting(ctypes.Structure):
    """``struct itimerspec``: the interval, then the time until the first expiration."""

    _fields_ = (("times", ctypes.c_long * 4),)


def _send_sigterm_after(seconds: float) -> None:
    """Let the kernel send SIGTERM to this process: Python's timers need Python's lock.

    Does nothing on systems other than Linux.
    """
    sigev_signal, clock_monotonic = 0, 1
    for library in (None, "librt.so.1"):  # glibc before 2.34 has the functions in librt
        with suppress(OSError, AttributeError):
            libc = ctypes.CDLL(library)
            event = _SignalEvent(signal=signal.SIGTERM, notify=sigev_signal)
            timer = ctypes.c_void_p()
            setting = _TimerSetting((0, 0, int(seconds), int(seconds % 1 * 1e9)))
            if libc.timer_create(clock_monotonic, ctypes.byref(event), ctypes.byref(timer)) == 0:
                libc.timer_settime(timer, 0, ctypes.byref(setting), None)
                return


# A forked child, such as a worker of a DataLoader, shares the pipe. A SIGTERM to the child would
# look like one to this process. So SIGTERM is blocked until the child has removed the guard.


def _before_fork() -> None:
    if _active is not None:
        _mask.previous = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _after_fork() -> None:
    previous = _mask.__dict__.pop("previous", None)
    if previous is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _after_fork_in_child() -> None:
    global _active
    if _active is not None:
        _active._restore_signals()
        _active._close_pipe()
        _active = None
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
    )
