"""Which ranks of a job have an open session, and how failed ranks ended.

::

    profiler_log/
      alive/00003.4711.node7-4026531836     rank 3 has an open session in process 4711 on node7; when that began
      failed/00003.txt                      rank 3 ended by an exception: "RuntimeError: boom, at train.py:41 step"
      failed/00003.sigterm                  rank 3 ended by SIGTERM; so .sighup, .sigquit, .sigxcpu
      failed/00003.hang                     rank 3 ended itself: Profiler.hang_exit_code

A rank in ``alive/`` whose process is gone was killed or has crashed. A rank that fails after
another rank failed writes nothing, so ``failed/`` lists root causes.
"""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ppprof.messages import Counted
from ppprof.rundir.run_file import RunFile, matches
from ppprof.topology import Topology
from ppprof.units import without_cpp_stack

_MAX_NAMED = 4
"""Most ranks that one message names. When a node dies, many ranks die."""

# Other names are ignored: desktops and file systems write files of their own.
_ENTRY = re.compile(r"(?P<rank>[0-9]{5,6})\.(?P<pid>[0-9]{1,10})\.(?P<node>.+)")
_FAILURE = re.compile(r"(?P<rank>[0-9]{5,6})\.(?P<kind>txt|hang|sigterm|sighup|sigquit|sigxcpu)")
HANG = "HANG"
"""What ends a rank in which no step ends, in place of a signal's name."""
_MOST_BYTES = 1 << 14
_MOST_CHARACTERS = 400

_EXITING = 0x4  # PF_EXITING of the Linux kernel: sockets close before a process is a zombie


class LivenessRegistry:
    """One rank's entry in ``alive/`` for the length of its session, and a check of other ranks.

    Creating the object writes the entry; `mark_finished` and `mark_failed` delete it.

    Args:
        run: the run directory.
        topology: of the job; names ranks in messages.
        rank: of this process.

    Raises:
        OSError: the run directory cannot be written.
    """

    def __init__(self, run: Path, topology: Topology, rank: int) -> None:
        self._topology = topology
        self._rank = rank
        self._run = run
        self._node = _node()
        self._entry = RunFile(run, f"alive/{rank:05d}.{os.getpid()}.{self._node}")
        with suppress(FileExistsError):
            self._entry.create(_began(os.getpid()))

    def mark_finished(self) -> None:
        """Record that the session ends without an error: delete this rank's file in ``alive/``."""
        with suppress(OSError):
            self._entry.remove()

    def mark_failed(
        self, error: BaseException | None, signal: str = "SIGTERM", place: str = ""
    ) -> str:
        """Record that the session ends by an error, and return which ranks ended before this rank.

        Deletes this rank's entry in ``alive/``. Writes a file in ``failed/`` only if no rank that
        ended before is known. Errors while writing are ignored.

        Args:
            error: the exception that ends the session; None for a signal.
            signal: the signal that ends a session without an ``error``.
            place: the user's line that raised the ``error``, ``train.py:41 step``; "" if unknown.

        Returns:
            Ranks and causes, as in "rank 3 (dp1_pp0_sharding0_mp1) failed: RuntimeError: boom"; ""
            if no rank that ended before is known. Ranks of this machine whose process is gone come
            first: if there are any, only they are named. Otherwise the ranks in ``failed/`` are
            named. If a signal ends this rank, ranks that a signal ended are left out.
        """
        others = self._dead_ranks() or self._failures(signals=error is not None)
        with suppress(OSError):
            if not others and error is None:
                RunFile(self._run, f"failed/{self._rank:05d}.{signal.lower()}").create()
            elif not others and error is not None:
                at = f", at {place}" if place else ""
                what = _one_line(error)[: max(_MOST_CHARACTERS - len(at), 0)]
                text = f"{what}{at}\n".encode("utf-8", "backslashreplace")
                RunFile(self._run, f"failed/{self._rank:05d}.txt").create(text)
        self.mark_finished()
        more = len(others) - _MAX_NAMED
        return ", ".join(others[:_MAX_NAMED]) + (
            f" and {Counted(more):more rank|more ranks}" if more > 0 else ""
        )

    def _dead_ranks(self) -> list[str]:
        """Return texts on this machine's ranks that are in ``alive/`` but have no process."""
        dead = []
        for entry in matches(self._run, "alive", _ENTRY):
            if entry["node"] == self._node and not _is_running(self._run, entry):
                rank = self._name(int(entry["rank"]), f", pid {entry['pid']}")
                dead.append(f"{rank} is gone: killed, or it crashed")
        return dead

    def _failures(self, signals: bool) -> list[str]:
        """Return texts on the ranks in ``failed/``, each with its cause."""
        failures: list[str] = []
        for entry in matches(self._run, "failed", _FAILURE):
            if entry["kind"] == "txt":
                is_named = len(failures) < _MAX_NAMED  # others are only counted
                text = _cause(self._run, entry[0]) if is_named else ""
                failures.append(f"{self._name(int(entry['rank']))} failed: {text}")
            elif signals:
                failures.append(f"{self._name(int(entry['rank']))} was {_ended_by(entry['kind'])}")
        return failures

    def _name(self, rank: int, more: str = "") -> str:
        # An entry may be planted, or the remains of a larger job.
        is_known = rank < self._topology.world_size
        label = self._topology.label(rank) if is_known else "not a rank of this job"
        return f"rank {rank} ({label}{more})"


_GONE = "its process is gone: killed, or it crashed"


class RankState(NamedTuple):
    """What the run directory and this machine know about a rank's process."""

    pid: int | None
    """Its process on this machine; None if it ended, or runs on another machine or in another container."""
    text: str
    """How it ended, or that it is stopped; "" if it runs, or if that cannot be seen from here."""

    @property
    def has_ended(self) -> bool:
        """Whether its process is known to have ended."""
        return self.pid is None and bool(self.text)

    @property
    def is_unseen(self) -> bool:
        """Whether it runs on another machine or in another container, as far as is known."""
        return self.pid is None and not self.text

    @property
    def is_gone(self) -> bool:
        """Whether it ended without a word: nothing in it can have waited for others since."""
        return self.text == _GONE


def rank_states(run: Path) -> dict[int, RankState]:
    """Return the state of each rank that has, or had, a session and did not end it in peace.

    Raises:
        OSError: the run directory cannot be read.
    """
    node, states = _node(), {}
    for entry in matches(run, "alive", _ENTRY):
        pid = int(entry["pid"]) if entry["node"] == node else None
        text = ""
        if pid is not None and not _is_running(run, entry):
            pid, text = None, _GONE
        elif pid is not None and _status(pid)[:1] in (["T"], ["t"]):
            text = "its process is stopped, as by SIGSTOP or a debugger"
        states[int(entry["rank"])] = RankState(pid, text)
    for entry in matches(run, "failed", _FAILURE):
        failed = entry["kind"] == "txt"
        text = f"failed: {_cause(run, entry[0])}" if failed else _ended_by(entry["kind"])
        states[int(entry["rank"])] = RankState(None, text)
    return states


def has_failed(run: Path) -> bool:
    """Return whether an exception or a signal ended a rank's session."""
    return any(True for _ in matches(run, "failed", _FAILURE))


def _ended_by(kind: str) -> str:
    return f"ended by {'Profiler.hang_exit_code' if kind.upper() == HANG else kind.upper()}"


def _cause(run: Path, file: str) -> str:
    """Return the exception in a file of ``failed/``; "" if the file is unreadable."""
    with suppress(OSError):
        content = RunFile(run, f"failed/{file}").read(_MOST_BYTES)
        return content.decode("utf-8", "replace").strip()[:_MOST_CHARACTERS]
    return ""


def live_ranks(run: Path, *, here: bool = False) -> set[int]:
    """Return the ranks with an open session, as far as this machine can see.

    A killed rank of another machine or container is included, since its process cannot be checked
    from here.

    Args:
        run: the run directory.
        here: whether only ranks of this machine or container count.
    """
    node = _node()
    return {
        int(entry["rank"])
        for entry in matches(run, "alive", _ENTRY)
        if (not here if entry["node"] != node else _is_running(run, entry))
    }


def _node() -> str:
    """Return host name and pid namespace of this process, such as ``node7-4026531836``.

    A pid is valid only in its pid namespace. The host name alone is not enough, since two
    containers may have the same host name. Without ``/proc`` the namespace is 0.
    """
    namespace = 0
    with suppress(OSError):
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    return f"{platform.node()}-{namespace}"


def _is_running(run: Path, entry: re.Match[str]) -> bool:
    """Return whether the process of an entry in ``alive/`` of this machine runs, and is not another one with its pid."""
    pid, began = int(entry["pid"]), b""
    with suppress(OSError):
        began = RunFile(run, f"alive/{entry[0]}").read(_MOST_BYTES)
    now = _began(pid)  # unknown of a process that this user may not inspect
    return _is_alive(pid) and (not began or not now or began == now)


def _began(pid: int) -> bytes:
    """Return what no earlier process with this pid has: the id of the machine's start, and the ticks since then."""
    with suppress(OSError, IndexError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {_status(pid)[19]}".encode()
    return b""


def _is_alive(pid: int) -> bool:
    """Return whether a process of this machine runs; False for a zombie or an exiting process.

    True for a process that this user may not inspect.
    """
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    fields = _status(pid)
    with suppress(ValueError, IndexError):
        return fields[0] not in "ZX" and not int(fields[6]) & _EXITING
    return True


def _status(pid: int) -> list[str]:
    """Return the state, the parent and further fields of a process; empty where there is no ``/proc``."""
    with suppress(OSError):
        # "4711 (python) S ppid pgrp session tty tpgid flags"; the name may contain blanks.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _one_line(error: BaseException) -> str:
    text = ""
    with suppress(Exception):  # the exception's own __str__ may fail
        text = without_cpp_stack(str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip(" -\t")]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
