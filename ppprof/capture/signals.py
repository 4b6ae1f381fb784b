"""Save data when a signal is about to end the process, and let it end the process afterwards.

SIGTERM: a launcher sends it to all ranks when one rank fails, and kills 3 s later. SIGHUP: the terminal
or the connection is gone. SIGQUIT: the terminal's quit key, which writes a core dump too. SIGXCPU: the limit of
processor time is reached.
"""

from __future__ import annotations

import ctypes
import inspect
import logging
import os
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from ppprof.capture import process
from ppprof.capture.process import Descriptor
from ppprof.rundir.liveness import HANG

log = logging.getLogger("ppprof")

_GUARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU)
_PATIENCE = 20.0
"""Seconds after which the process ends even if saving has not finished, since a disk may hang."""
_TOGETHER_SECONDS = 4.0
"""How far apart ranks may notice that the job hangs."""
CHECK_NS = 10_000_000
"""How often the end of the pipe for reading is looked at, which takes 0.7 us: the training hardly closes
it alone."""
CHECK_WRITER_NS = 1_000_000
"""How often, at most, the end for writing is looked at, which takes 1 us: as often as `check` is
called, unless steps are so short that this would be felt."""

_active: SignalGuard | None = None
_mask = threading.local()


class SignalGuard:
    """Calls a function when a signal arrives that ends the process; then the process dies of it.

    ::

        SIGTERM -> C handler -> pipe -> thread of the guard: save, die of SIGTERM
                                        (the main thread may hang in a collective)

    Only signals are guarded whose action is the default one: a signal that the program handles, or
    ignores as under ``nohup``, is left alone. A handler that the program installs later replaces the
    guard's.

    The thread is needed because Python runs signal handlers in the main thread, and only when that
    thread has returned from C++. The write to the wakeup fd, however, happens at once, in whichever
    thread gets the signal; the guard's thread reads it. Masking the signal and waiting for it in a
    thread would work too. But it would have to be masked before Paddle starts its threads, and
    every child process would inherit the mask.

    The process dies by the signal's default action, with the exit status and the core dump that it
    has without a guard. Paddle's own handler of SIGTERM, which Python does not see, is not called: it
    would print a dump and die of the same signal, or hang if the signal interrupted malloc.
    """

    def __init__(self, save: Callable[[], None], numbers: list[int]) -> None:
        self._save = save
        self._numbers = numbers
        self._actions: dict[int, int] = {}
        """The C functions that call our handler, by signal."""
        self._ends = threading.Event()
        self._ending: str | None = None
        self._exit_code: int | None = None
        """What `end_process` ends the process with; None without it."""
        self._thread: threading.Thread | None = None
        self._has_warned = self._is_over = self._is_uninstalled = False
        self._next_check = 0
        self._next_check_of_writer = 0
        self._open_pipe()

    @classmethod
    def install(cls, save: Callable[[], None]) -> SignalGuard | None:
        """Install a guard and return it; return None if no guard can be installed.

        That is so if the program handles all these signals itself, if it uses the wakeup fd (as an
        event loop does), if no descriptor or thread is left, and outside the main thread.

        Args:
            save: called once, in the guard's thread, before the process ends.
        """
        global _active
        if threading.current_thread() is not threading.main_thread():
            return None
        if _active is not None and _active._is_over:  # its session was closed in another thread
            _active.uninstall()
        numbers = [int(number) for number in _GUARDED if _is_default(number)]
        if not numbers:
            return None
        try:
            guard = cls(save, numbers)
        except OSError:  # no descriptor is left
            return None
        previous = signal.set_wakeup_fd(guard._writer.fd, warn_on_full_buffer=False)
        if previous != -1:  # of an event loop
            signal.set_wakeup_fd(previous)
            guard._close_pipe()
            return None
        for number in numbers:
            guard._handle_in_python(number)
            guard._actions[number] = _action(number)
        _active = guard
        try:
            guard._start()
        except RuntimeError:  # no further thread can start: the signals keep their effect
            guard.uninstall()
            guard._close_pipe()
            return None
        return guard

    def uninstall(self) -> None:
        """Restore the state before `install`: a signal ends the process at once.

        Outside the main thread, the next `install` does it. Does nothing if this guard is not the latest
        one.
        """
        global _active
        self._is_over = True
        if threading.current_thread() is threading.main_thread() and _active is self:
            _active = None
            self._is_uninstalled = True
            self._restore_signals()
            self._writer.close()  # ends the thread, which closes the other end

    def end_if_signalled(self) -> None:
        """After `uninstall`: let a signal that arrived before it end the process now.

        The guard's thread needs Python's lock for that, and the training may soon keep it in C++, for example
        where it deletes a stream of a stuck device. Call it without a lock that saving needs.
        """
        if self._is_uninstalled and self._thread is not None:
            self._thread.join(_PATIENCE)

    def check(self) -> None:
        """Open a new pipe if the training has closed ours; call this between steps.

        Until then a signal is still saved if the main thread runs Python. Does nothing outside the
        main thread. Our end for writing is looked at unless `CHECK_WRITER_NS` have not passed
        since the last time, the other one every `CHECK_NS`.
        """
        now = time.monotonic_ns()
        if now < self._next_check_of_writer:
            return
        self._next_check_of_writer = now + CHECK_WRITER_NS
        if self._writer.is_ours:
            if now < self._next_check:
                return
            self._next_check = now + CHECK_NS
            if self._reader.is_ours:
                return
        if _active is not self:
            return
        if threading.current_thread() is not threading.main_thread() or self._ends.is_set():
            return
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "the training has closed file descriptors of ppprof, as os.closerange() does; the "
                "recording goes on; to avoid this, call ppprof.attach() after closing descriptors"
            )
        current = signal.set_wakeup_fd(-1)
        if current not in (-1, self._writer.fd):  # the program uses it now
            signal.set_wakeup_fd(current)
            return
        self._close_pipe()
        with suppress(OSError, RuntimeError):  # no descriptor or thread is left: the next step asks
            self._open_pipe()
            signal.set_wakeup_fd(self._writer.fd, warn_on_full_buffer=False)
            try:
                self._start()
            except BaseException:
                self._close_pipe()
                raise

    def _start(self) -> None:
        reader = self._reader
        self._thread = process.start_thread(lambda: self._watch(reader), "signals")

    def _watch(self, reader: Descriptor) -> None:
        while True:
            try:
                arrived = os.read(reader.fd, 64) if reader.is_ours else b""
            except OSError:
                arrived = b""
            if not arrived:  # the writer is closed
                reader.close()
                return
            number = next(filter(self._is_guarded, arrived), None)
            if number is not None:
                self._end(number)

    def _is_guarded(self, number: int) -> bool:
        """Return whether a signal ends the process: the program does not handle it."""
        mine = (self._handle, signal.SIG_DFL)
        return number in self._numbers and signal.getsignal(number) in mine

    def _end(self, number: int) -> None:
        if self._exit_code is not None:
            os._exit(self._exit_code)
        self._ending = signal.Signals(number).name
        self._ends.set()
        try:
            _send_after(_PATIENCE + 1, number)
            deadline = threading.Timer(_PATIENCE, lambda: _die(number))
            deadline.daemon = True
            with suppress(RuntimeError):  # no further thread can start
                deadline.start()
            self._save()
        finally:
            _die(number)

    def _handle(self, number: int, frame: object) -> None:
        if _active is not self:  # another handler, installed later, has called this one
            _die(number)
        elif self._writer.is_ours:
            with suppress(OSError):  # the program may have set another wakeup fd since
                os.write(self._writer.fd, bytes([number]))
        elif not self._ends.is_set():
            try:
                self._thread = process.start_thread(lambda: self._end(number), "signals")
            except RuntimeError:  # no further thread can start
                self._end(number)

    def _handle_in_python(self, number: int) -> None:
        signal.signal(number, self._handle)
        signal.siginterrupt(number, False)

    def _restore_signals(self) -> None:
        for number in self._numbers:
            # The C function differs if the program has installed one, as `faulthandler` does.
            is_ours = _action(number) == self._actions[number]
            if is_ours and signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL)
        current = signal.set_wakeup_fd(-1)
        if current not in (-1, self._writer.fd):
            signal.set_wakeup_fd(current)

    def _open_pipe(self) -> None:
        self._reader, self._writer = (Descriptor(process.with_high_number(fd)) for fd in os.pipe())
        os.set_blocking(self._writer.fd, False)

    def _close_pipe(self) -> None:
        self._reader.close()
        self._writer.close()


def is_ending() -> bool:
    """Return whether a signal has arrived, so that a guard saves data and ends the process.

    A long wait in the training has to end then: the guard may need a lock that the training holds.
    """
    return _active is not None and _active._ends.is_set()


def ending_signal() -> str | None:
    """Return the name of the signal that ends the process, such as "SIGHUP"; None before one has.

    `HANG` if `end_process` does.
    """
    return _active._ending if _active is not None else None


def end_process(exit_code: int) -> None:
    """Save data as for a signal, wait a little, and end this process with an exit code.

    Other ranks do the same at nearly the same time. A launcher that sees the first one end sends SIGTERM
    to those that wait, and reports the exit code of any of them.
    """
    guard = _active
    _send_after(_PATIENCE, signal.SIGKILL)
    if guard is not None and not guard._ends.is_set():
        guard._ending, guard._exit_code = HANG, exit_code
        guard._ends.set()
        guard._save()
    time.sleep(_TOGETHER_SECONDS)
    os._exit(exit_code)


def write_to_pipe(fd: int, data: bytes) -> None:
    """Write to a pipe; SIGPIPE does not end the process, even if that is its action.

    A training that restores the default action, as programs that print into ``head`` do, would end
    when a process that reads from the pipe has ended.

    Raises:
        BrokenPipeError: no process reads from the pipe any more.
        BlockingIOError: the pipe is full, and non-blocking.
    """
    if not hasattr(signal, "sigtimedwait"):  # not on macOS
        os.write(fd, data)
        return
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])
    try:
        os.write(fd, data)
    except BrokenPipeError:
        signal.sigtimedwait([signal.SIGPIPE], 0)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def raised_by_handler(error: BaseException) -> BaseException | None:
    """Return the exception that a signal handler of the training has raised in ppprof's code.

    None if no handler has raised one: ppprof's own code has failed.

    Args:
        error: an exception that was caught in ppprof's code; those that it comes from count too.
    """
    codes: list[types.CodeType | None] | None = None
    waiting, seen = [error], set[int]()
    while waiting:
        cause = waiting.pop()
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
        # The training's `except` block that has called us may handle an earlier one.
        names = [str(frame.f_globals.get("__name__")) for frame in frames]
        others = [frame for frame, name in zip(frames, names) if not name.startswith("ppprof.")]
        if others and names[0].startswith("ppprof."):
            if codes is None:  # to ask for all handlers takes some 0.1 ms
                codes = [_code(signal.getsignal(number)) for number in signal.valid_signals()]
            if any(frame.f_code is code for frame in others for code in codes):
                return cause
        waiting += [each for each in (cause.__context__, cause.__cause__) if each is not None]
    return None


def pass_interruption(error: BaseException) -> None:
    """Raise what a signal handler of the training has raised; return if it has raised nothing.

    Call it first where any exception is caught: a watchdog's exception is the training's.
    """
    interruption = raised_by_handler(error)
    if interruption is not None:
        raise interruption


@contextmanager
def ignoring_errors() -> Iterator[None]:
    """Ignore any exception of a block, but for what a signal handler of the training raises in it."""
    try:
        yield
    except Exception as error:
        pass_interruption(error)


def _code(handler: object) -> types.CodeType | None:
    """Return the code that a signal handler of the training runs; None for any other value.

    Attributes are not looked up on the handler itself, which may be a proxy for something else.
    """
    if handler is None or type(handler) is signal.Handlers:
        return None
    while type(handler) is partial:
        handler = handler.func
    if type(handler) is types.MethodType:
        handler = handler.__func__
    if type(handler) is not types.FunctionType:
        handler = inspect.getattr_static(type(handler), "__call__", None)
    if type(handler) is not types.FunctionType or handler is SignalGuard._handle:
        return None
    return handler.__code__


@contextmanager
def default_actions() -> Iterator[None]:
    """Within it, guarded signals end the process at once, even while C++ code holds Python's lock.

    No thread of Python can run then, so nothing could be saved anyway. Does nothing without an
    installed guard, and for a signal that the program handles itself. In the guard's thread, which
    saves because of a signal, a second signal has that effect from then on: that of the guard's own
    timer, or of an impatient sender.
    """
    guard = _active
    numbers = guard._numbers if guard is not None else []
    numbers = [n for n in numbers if guard is not None and signal.getsignal(n) == guard._handle]
    if guard is None or not numbers:
        yield
    elif threading.current_thread() is threading.main_thread():
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        try:
            yield
        finally:
            for number in numbers:
                guard._handle_in_python(number)
    else:
        if threading.current_thread() is guard._thread:
            for number in numbers:
                _restore_default_action(number)
        yield


def _die(number: int) -> None:
    _restore_default_action(number)
    # The main thread may block it meanwhile; a thread of ours blocks all signals.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)


def _restore_default_action(number: int) -> None:
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal.restype = ctypes.c_void_p
    libc.signal(number, None)  # SIG_DFL; Python's own call works in the main thread only


def _is_default(number: int) -> bool:
    """Return whether a signal has the default action; Paddle's own handler of SIGTERM counts as it."""
    if signal.getsignal(number) is not signal.SIG_DFL:
        return False
    # Python does not know the handlers that C code installs, such as those of `faulthandler`.
    return number == signal.SIGTERM or _action(number) == 0


def _action(number: int) -> int:
    """Return the address of the C function that handles a signal; 0 for the default action."""
    action = ctypes.create_string_buffer(256)  # struct sigaction begins with it
    if ctypes.CDLL(None).sigaction(ctypes.c_int(number), None, action) != 0:
        return -1
    return int.from_bytes(action.raw[: ctypes.sizeof(ctypes.c_void_p)], sys.byteorder)


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


def _send_after(seconds: float, number: int) -> None:
    """Let the kernel of Linux send a signal to this process: Python's timers need Python's lock."""
    sigev_signal, clock_monotonic = 0, 1
    for library in (None, "librt.so.1"):  # glibc before 2.34 has the functions in librt
        with suppress(OSError, AttributeError):
            libc = ctypes.CDLL(library)
            event = _SignalEvent(signal=number, notify=sigev_signal)
            timer = ctypes.c_void_p()
            setting = _TimerSetting((0, 0, int(seconds), int(seconds % 1 * 1e9)))
            if libc.timer_create(clock_monotonic, ctypes.byref(event), ctypes.byref(timer)) == 0:
                libc.timer_settime(timer, 0, ctypes.byref(setting), None)
                return


# A forked child, such as a worker of a DataLoader, shares the pipe. A signal to the child
# would look like one to this process. So they are blocked until the child has removed the guard.


def _before_fork() -> None:
    if _active is not None:
        _mask.previous = signal.pthread_sigmask(signal.SIG_BLOCK, _active._numbers)


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


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
)
