"""Make tables and traces of saved windows, in a process beside the training."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ppprof.capture.children import available_bytes
from ppprof.capture.helper import Finished, Helper
from ppprof.capture.output import forward_stderr, print_result, reason
from ppprof.capture.signals import is_ending
from ppprof.units import escape_control_chars

log = logging.getLogger("ppprof")

_COMMAND = (sys.executable, "-m", "ppprof", "finish")

_REDRAW_SECONDS = 0.2
_POLL_SECONDS = 0.02
_BRIEF_SECONDS = 1.0

_BASE_BYTES, _BYTES_A_RAW_BYTE = 200 << 20, 10
"""Upper bound of a helper's memory. Helpers took 180, 280 and 660 MiB for raw captures of 3, 16 and
65 MiB. The bound is compared with the free memory ahead of a window, but it is not enforced: polars
reserves far more than it uses, so a limit would make good captures fail."""


class PostProcessor:
    """Has a `Helper` make tables and traces of one window after another.

    The helper gets a window as soon as it is saved. The helper runs

    - at the lowest priority, so that it only uses CPU time that the training leaves;
    - as the first process that the kernel kills when memory runs out;
    - in a session of its own, so that a signal that ends the training does not end the helper;
    - with a limit on its CPU time for each window.

    It ends after a minute without a window, or once it takes much memory; the next window starts
    another one. Its output for a window is printed when the window is finished. If the helper
    fails, or if there is too little memory, the raw capture stays and a warning is logged.

    Args:
        run: the run directory.
        rank: this process's rank.
        prints: whether to print the tables.
        command: the helper's command instead of ``ppprof finish``.
        background: whether the helper runs beside the training, as above. If False, `add` waits for
            the helper, which has the usual priority.
        then: a command that the helper runs after each window (``Profiler.on_window_end``); empty
            for no command.
    """

    def __init__(
        self,
        run: Path,
        rank: int,
        prints: bool,
        command: Sequence[str] | None = None,
        background: bool = True,
        then: Sequence[str] = (),
    ) -> None:
        self._rank = rank
        self._run = run
        self._prints = prints
        where = [str(run), "--rank", str(rank)]
        self._command = [*(_COMMAND if command is None else command), *where]
        self._with_verdict = ["--verdict"] if prints else []
        self._background = background
        self._then = ["--then", shlex.join(then)] if then else []
        self._raws: dict[int, Path] = {}
        """Raw captures of the windows that the helper is not done with."""
        self._helper: Helper | None = None
        self._lock = threading.RLock()
        """Between the training and a thread of it that opens a profiler, which saves the window."""
        self.verdict = ""
        """What is slow in the window that was finished last, in a sentence; "" if unknown."""

    def add(self, window: int, raw: Path, brief: bool = False) -> None:
        """Send a window to the helper; start a helper if none runs.

        Args:
            window: number of the window.
            raw: path of the window's raw capture.
            brief: whether to return at once even if ``background`` is False, since the process is
                about to end.
        """
        shortage = _memory_shortage(raw)
        if shortage:
            self._log_failure(window, raw, shortage)
            return
        # The training may hold the lock for ever: its stdout, on which it prints tables, may hang.
        if not self._lock.acquire(timeout=_BRIEF_SECONDS if brief else -1):
            self._log_failure(window, raw, "the process is about to end")
            return
        try:
            helper = self._helper
            if helper is not None and not helper.has_ended and not helper.add(window):
                self._log_failure(window, raw, f"{len(self._raws)} windows wait for the helper")
            else:
                self._raws[window] = raw
            self.poll()
        finally:
            self._lock.release()
        while not self._background and not brief and not is_ending() and self.poll():
            time.sleep(_POLL_SECONDS)

    @property
    def is_working(self) -> bool:
        """Whether a window waits for its tables."""
        return bool(self._raws)

    @property
    def has_finished_window(self) -> bool:
        """Whether a window is finished, so that `poll` will print its tables."""
        if not self._raws:
            return False
        with self._lock:
            return self._helper is not None and self._helper.has_output

    def poll(self) -> bool:
        """Print the output for finished windows; start another helper if one is needed. Never wait.

        Returns:
            Whether windows are left.
        """
        with self._lock:
            while self._raws:
                if self._helper is None and not self._start():
                    break
                assert self._helper is not None
                has_ended = self._helper.has_ended
                for finished in self._helper.poll():
                    self._report(finished)
                if not has_ended:
                    break
                self._helper.close()
                self._helper = None
            return bool(self._raws)

    def wait(self, seconds: float, patience: float = 3.0) -> None:
        """Wait until all windows have tables and traces; then, or after ``seconds``, call `leave`.

        Args:
            seconds: the longest time to wait.
            patience: seconds after which a progress bar appears on a terminal, or a log message
                elsewhere.

        Raises:
            KeyboardInterrupt: the user stopped waiting; the helper goes on.
        """
        start = time.monotonic()
        has_logged = False
        bar = _Bar(len(self._raws), patience)
        try:
            while True:
                if self.has_finished_window:
                    bar.clear()
                if not self.poll() or time.monotonic() - start > seconds:
                    break
                if self._helper is not None:
                    self._helper.raise_priority()
                if not bar.draw(left=len(self._raws)) and not has_logged:
                    has_logged = time.monotonic() - start > patience
                    if has_logged:
                        log.info(
                            f"rank {self._rank}: making tables and traces of the recorded steps..."
                        )
                time.sleep(_POLL_SECONDS)
        finally:
            bar.close()
            self.leave()

    def leave(self) -> None:
        """Leave the helper to itself: it finishes the windows that are left, and ends.

        If windows are left, a log message gives the command that makes missing tables.
        """
        with self._lock:
            if self._helper is not None:
                self._helper.close()
                if self._raws:
                    log.info(
                        f"rank {self._rank}: exiting before the tables in {self._run} are written; "
                        f"if they do not appear, run: ppprof finish {shlex.quote(str(self._run))}"
                    )
            self._helper = None
            self._raws.clear()

    def _start(self) -> bool:
        """Start a helper for all windows that are left; return whether there is one."""
        try:
            nice = 19 if self._background else 0
            self._helper = Helper([*self._command, *self._with_verdict, *self._then], nice)
        except OSError as error:
            for window, raw in self._raws.items():
                self._log_failure(window, raw, str(error))
            self._raws.clear()
            return False
        waiting = len(self._raws)
        for window in list(self._raws):
            if not self._helper.add(window):
                why = f"{waiting} windows wait for the helper"
                self._log_failure(window, self._raws.pop(window), why)
        return True

    def _report(self, finished: Finished) -> None:
        raw = self._raws.pop(finished.window)
        self.verdict = finished.verdict
        if self._prints and finished.unprinted:
            _log_unprinted(finished.unprinted, raw)
        elif self._prints:
            _print_tables(finished.out, raw)
        lines = (line.removeprefix("ppprof: ") for line in finished.err.splitlines())
        visible = (escape_control_chars(line) for line in lines if line.strip())
        forward_stderr("".join(f"ppprof: {line}\n" for line in visible))
        if finished.failure:
            self._log_failure(finished.window, raw, finished.failure)

    def _log_failure(self, window: int, raw: Path, why: str) -> None:
        again = shlex.join([*self._command, "--window", str(window), *self._then])
        log.warning(f"{raw}: no tables and traces were made ({why}); to try again, run: {again}")


def helper_bytes(raw_bytes: int, ranks: int) -> int:
    """Return an upper bound of the memory that one helper of each of ``ranks`` ranks takes.

    Args:
        raw_bytes: size of each rank's raw capture.
        ranks: ranks on this machine.
    """
    return ranks * (_BASE_BYTES + _BYTES_A_RAW_BYTE * raw_bytes)


def _memory_shortage(raw: Path) -> str:
    """Return why memory is too short for one helper of each local rank.

    "" if there is enough memory, or if the free memory is unknown.
    """
    left = available_bytes()
    with suppress(OSError, ValueError):
        ranks = int(os.environ.get("PADDLE_LOCAL_SIZE", "1"))
        needed = helper_bytes(raw.stat().st_size, ranks)
        if left is not None and left < needed:
            return f"{left >> 20} MiB of memory are left, up to {needed >> 20} MiB may be needed"
    return ""


def _print_tables(text: str, raw: Path) -> None:
    try:
        print_result(text)
    except (OSError, ValueError) as error:  # a closed pipe must not end the recording
        _log_unprinted(reason(error), raw)


def _log_unprinted(why: str, raw: Path) -> None:
    again = shlex.join(["ppprof", "summary", str(raw.parents[1])])
    log.warning(f"tables were not printed: {why}; to see them, run: {again}")


class _Bar:
    """A progress bar that counts finished windows; only on a terminal, after ``patience`` seconds."""

    def __init__(self, total: int, patience: float) -> None:
        self._total = total
        self._next = time.monotonic() + patience
        self._bar: Any = None

    def draw(self, left: int) -> bool:
        """Draw or redraw the bar; return whether stderr is a terminal.

        Args:
            left: number of unfinished windows.
        """
        try:
            if not sys.stderr.isatty():
                return False
        except (AttributeError, ValueError):  # no stderr, a stand-in without isatty(), or closed
            return False
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _REDRAW_SECONDS
            if self._bar is None:
                from tqdm import tqdm

                words = "ppprof: making tables and traces"
                layout = "{desc}: {n} of {total} windows {bar} {elapsed}"
                self._bar = tqdm(desc=words, total=self._total, bar_format=layout, leave=False)
            self._bar.update(self._total - left - self._bar.n)
            self._bar.refresh()
        return True

    def clear(self) -> None:
        """Remove the bar until the next `draw`, so that other text can be printed."""
        if self._bar is not None:
            self._bar.clear()

    def close(self) -> None:
        """Remove the bar for good."""
        if self._bar is not None:
            self._bar.close()
