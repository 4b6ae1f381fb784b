"""``ppprof watch``: a live view of a running job in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import subprocess
import sys
import tempfile
import termios
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ppprof.cli.options import Checks, add_layout, add_run
from ppprof.cli.trigger import request_window
from ppprof.errors import PpprofError
from ppprof.rundir import name_of, nodes
from ppprof.rundir.triggers import read_completion, read_response

if TYPE_CHECKING:
    from ppprof.run.watch import Watch

EXAMPLES = {
    "ppprof watch profiler_log": "until q is pressed; w records a window, p opens its page",
    "ppprof watch profiler_log --once": "the same screen once, as text",
}
_EVERY_S = 2.0
_KEYS = "w record a window   p page of that window   q quit"
_ONCE_HEIGHT = 24
_LEAST_HEIGHT = 12


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Shows a running job every 2 seconds: its step time, speed, waits and memory, a cell for each rank "
        "by its coordinates, and what needs a look: ranks that are gone or slow, or that no step ends. "
        "It reads RUN only, and writes into it only the request for a window. A rank writes its steps "
        "every 10 seconds. Without a terminal, it prints one screen."
    )
    add_run(parser, "run directory (the newest run in it)")
    parser.add_argument("--once", action="store_true", help="print one screen and end")
    add_layout(parser, tables=False)
    parser.set_defaults(format="text")


def check(args: argparse.Namespace) -> None:
    """Check the options, or raise UsageError."""
    checks = Checks(args)
    checks.layout()
    checks.done()


def run(args: argparse.Namespace) -> int:
    """Show the job until q is pressed; return 0."""
    from ppprof.report.text.watch import screen
    from ppprof.run.watch import Watch

    watch = Watch(args.run)
    if args.once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        print(*screen(watch.look(), args.layout, _ONCE_HEIGHT), sep="\n")
        return 0
    page = _Page(watch.run)
    with _full_screen() as descriptor:
        _show(watch, page, args, descriptor)
    if page.path is not None and page.path.exists():
        print(page.path)
    return 0


def _show(watch: Watch, page: _Page, args: argparse.Namespace, descriptor: int) -> None:
    """Draw the screen again and again until q is pressed."""
    from ppprof.report.text.layout import Layout
    from ppprof.report.text.watch import screen

    drawn, view = "", watch.look()
    while True:
        size = os.get_terminal_size(sys.stdout.fileno())
        width = args.layout.width if args.width else size.columns
        layout = Layout(width or 80, args.layout.has_colour)
        lines = screen(view, layout, max(size.lines or 24, _LEAST_HEIGHT), [page.note or _KEYS])
        # Lines are replaced in place, and only if something has changed: a slow connection flickers else.
        text = "\x1b[H" + "\r\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J"
        if text != drawn:
            _write(text)
            drawn = text
        key = ""
        if select.select([descriptor], [], [], _EVERY_S)[0]:
            key = os.read(descriptor, 1).decode("ascii", "replace") or "q"
        if key == "q":
            return
        if key == "w":
            page.request(watch.run)
        elif key == "p":
            page.open()
        else:
            view = watch.look()
        page.look()


class _Page:
    """The window that was requested, and the page that is made of it."""

    def __init__(self, run: Path) -> None:
        self.note = ""
        self.path: Path | None = None
        self._run = run
        self._request = ""
        self._window: int | None = None
        self._shown: int | None = None
        """The window that the page shows."""
        self._ranks: list[int] = []
        self._wants_page = False
        self._process: subprocess.Popen[bytes] | None = None

    def request(self, run: Path) -> None:
        """Ask the job for a window."""
        try:
            self._request, text = request_window(run, None, None)
            self._run = run  # the job may have been started again
            self._window, self.note = None, f"requested {text}"
        except PpprofError as error:
            self.note = str(error)

    def open(self) -> None:
        """Make the page of the requested window, once all its files are complete, and open it."""
        if not self._request:
            self.note = "no window was requested: press w"
        else:
            self._wants_page = True

    def look(self) -> None:
        """Look at what has become of the window and of the page."""
        if self._process is not None:
            if self._process.poll() is not None:
                self._made(self._process.returncode)
            return
        if not self._request:
            return
        if self._window is None:
            answer = read_response(self._run, self._request)
            if answer is None:
                return
            if answer.refused or answer.window is None:
                self._request, self.note = "", f"no window: {answer.refused}"
                return
            here = nodes(self._run)  # ranks on other disks complete their files there
            self._window = answer.window
            self._ranks = [rank for rank in answer.ranks or [] if rank in here]
            end = (answer.start or 0) + (answer.steps or 1) - 1
            self.note = f"window {self._window}: steps {answer.start} to {end}"
        missing = [
            rank for rank in self._ranks if read_completion(self._run, rank, self._window) is None
        ]
        if missing:
            waits = f"waiting for {len(missing)} of {len(self._ranks)} ranks"
            self.note = f"{self.note.partition(';')[0]}; {waits}"
        elif self._wants_page:
            self._make()
        else:
            self.note = f"window {self._window} is ready: p opens its page"

    def _make(self) -> None:
        if self.path is None:  # others may write into the folder for temporary files, too
            self.path = Path(tempfile.mkdtemp(prefix="ppprof-")) / "report.html"
        command = [sys.executable, "-m", "ppprof", "report", str(name_of(self._run)), "--force"]
        command += ["--window", str(self._window), "-o", str(self.path)]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
        self.note = f"window {self._window}: making its page"
        # Another window may be requested meanwhile.
        self._request, self._wants_page, self._shown = "", False, self._window

    def _made(self, code: int) -> None:
        self._process = None
        if code or self.path is None:
            self.note = f"no page: try ppprof report {name_of(self._run)} --window {self._shown}"
            return
        self.note = f"window {self._shown}: {self.path}"
        if sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
            import webbrowser  # without a display it may start a browser in this terminal

            webbrowser.open(self.path.as_uri())


@contextlib.contextmanager
def _full_screen() -> Iterator[int]:
    """Take the terminal's other screen, with keys that arrive at once; yield the keys' descriptor."""
    keys = sys.stdin.fileno()
    settings = termios.tcgetattr(keys)
    try:
        tty.setcbreak(keys)
        _write("\x1b[?1049h\x1b[?25l")
        yield keys
    finally:
        _write("\x1b[?25h\x1b[?1049l")
        termios.tcsetattr(keys, termios.TCSADRAIN, settings)


def _write(text: str) -> None:
    """Write to the terminal, past the stream that escapes control characters."""
    data = text.encode(sys.stdout.encoding or "utf-8", "replace")
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]
