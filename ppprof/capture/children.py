"""Child processes that end in time, whatever they do."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ppprof.capture.process import ScratchFile

_LAUNCHER = ("PADDLE_", "FLAGS_", "MASTER_", "POD_", "TRAINING_ROLE")
"""Prefixes of the launcher's environment variables. A child must not see these variables, since it
is not one of the job's ranks."""

_REAP_SECONDS = 1.0
"""How long to wait for a killed child: a child inside a driver may stay forever."""
_MOST_BYTES = 1 << 20
"""Largest part of a child's output that is read, from its end."""


@dataclass(frozen=True)
class Ended:
    """The result of a child process."""

    exit_code: int | None
    """As for a shell, so 255 after C++'s ``exit(-1)``; negative for a signal; None after a time-out
    and for a child that could not be started."""
    stdout: str
    stderr: str
    """The end of each output; the error's text for a child that could not be started."""
    is_started: bool = True

    @property
    def is_late(self) -> bool:
        """Whether the child was killed after a time-out."""
        return self.exit_code is None and self.is_started


def environment(*, keeps_flags: bool = False) -> dict[str, str]:
    """Return a child's environment: without the launcher's variables, with this package's path.

    Args:
        keeps_flags: whether to keep Paddle's ``FLAGS_*``, for a child that computes with Paddle.
    """
    removed = tuple(name for name in _LAUNCHER if not (keeps_flags and name == "FLAGS_"))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(removed)}
    package = str(Path(__file__).parents[2])
    paths = [path for path in (kept.get("PYTHONPATH"), package) if path]
    # SAFEPATH: do not import modules from the directory where the training was started.
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


def run(
    command: Sequence[str],
    timeout: float,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Ended:
    """Run a command and return its result; after ``timeout`` seconds, kill it and its children.

    Never raises for a command that fails, hangs or does not exist. The output goes to files, so
    that a killed child's own children cannot hold a pipe open. If a daemon thread calls this, the
    end of Python kills the child too.

    Args:
        command: the program and its arguments.
        timeout: seconds.
        env: the environment; None means this process's.
        folder: the working directory; None means this process's.
    """
    try:
        with closing(ScratchFile()) as out, closing(ScratchFile()) as err:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out.fd,
                stderr=err.fd,
                env=env,
                cwd=folder,
                start_new_session=True,
            )
            exit_code: int | None = None
            with _at_the_end(lambda: _kill(process)), suppress(subprocess.TimeoutExpired):
                exit_code = process.wait(timeout)
            return Ended(exit_code, _end_of(out), _end_of(err))
    except (OSError, ValueError) as error:
        return Ended(None, "", str(error), is_started=False)


@contextmanager
def temporary_folder() -> Iterator[str]:
    """Make a folder for a child, and remove it with its files at the end.

    A killed child's children may still write there; then the folder stays.

    Raises:
        OSError: the folder cannot be made.
    """
    folder = tempfile.mkdtemp(prefix="ppprof-")
    with _at_the_end(lambda: shutil.rmtree(folder, ignore_errors=True)):
        yield folder


@contextmanager
def _at_the_end(clean: Callable[[], None]) -> Iterator[None]:
    """Return a context manager that cleans up at its end, and when Python ends before.

    Python ends a daemon thread without its ``finally``.
    """
    pid = os.getpid()

    def clean_at_exit() -> None:
        if os.getpid() == pid:  # a forked child must not clean up for its parent
            clean()

    atexit.register(clean_at_exit)
    try:
        yield
    finally:
        atexit.unregister(clean_at_exit)
        clean()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a child with its children, and wait a moment for it."""
    if process.returncode is None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_SECONDS)
    if process.returncode is None:
        process.returncode = -signal.SIGKILL  # Popen warns about a child that is still running


def _end_of(file: ScratchFile) -> str:
    return file.read(_MOST_BYTES).decode(errors="replace")


_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def available_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int | None:
    """Return the available bytes of the machine or of the container, whichever is less.

    None if the kernel reports neither, as on systems other than Linux. The container's limit is
    known only with cgroups of version 2.
    """
    sizes = [_of_machine(proc / "meminfo"), _of_cgroup(proc / "self/cgroup", cgroups)]
    return min((size for size in sizes if size is not None), default=None)


def _of_machine(meminfo: Path) -> int | None:
    for line in lines_of(meminfo):
        name, _, size = line.partition(":")
        if name == "MemAvailable":
            return int(size.split()[0]) << 10
    return None


def _of_cgroup(own: Path, cgroups: Path) -> int | None:
    paths = [line.partition("::")[2] for line in lines_of(own) if line.startswith("0::")]
    folder = cgroups / (paths[0].lstrip("/") if paths else "")
    limit, used = (lines_of(folder / f"memory.{name}") for name in ("max", "current"))
    if not limit or not used or limit[0] == "max":
        return None
    # The page cache counts as used, but is freed when memory is needed.
    stat = dict(line.split() for line in lines_of(folder / "memory.stat"))
    cache = sum(int(stat.get(f"{kind}_file", 0)) for kind in ("active", "inactive"))
    return int(limit[0]) - int(used[0]) + cache


def lines_of(file: Path) -> list[str]:
    """Return the lines of a file of the system, such as one below ``/proc``; empty without the file."""
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []
