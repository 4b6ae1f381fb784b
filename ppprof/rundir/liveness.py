"""Which ranks of a job are in their session, and which have left it in what way.

::

    profiler_log/
      alive/00003.4711.node7-4026531836     rank 3 is process 4711 there, in its session
      failed/00003.txt                      or has left it by an exception: "RuntimeError: boom"
      failed/00003.sigterm                  or by a SIGTERM

A rank in ``alive/`` whose process is gone was killed, or has crashed. One that fails only because
of others leaves no word: the folder names the ranks that something happened to.
"""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from pathlib import Path

from ppprof.topology import Topology

_NAMED = 4
"""Ranks that one line names; a node that dies takes many along."""

# Other files are not ours: a desktop or a file system leaves some where it likes.
_ENTRY = re.compile(r"(?P<rank>\d{5,})\.(?P<pid>\d+)\.(?P<node>.+)")
_WORD = re.compile(r"(?P<rank>\d{5,})\.(?P<kind>txt|sigterm)")

_EXITING = 0x4  # PF_EXITING of the Linux kernel: sockets close before a process is a zombie


class LivenessRegistry:
    """A rank's view of the roster, for the length of its session.

    Raises:
        OSError: the run directory cannot be written.
    """

    def __init__(self, run: Path, topology: Topology, rank: int) -> None:
        self._topology = topology
        self._rank = rank
        self._alive = run / "alive"
        self._failed = run / "failed"
        self._node = _node()
        self._alive.mkdir(exist_ok=True)
        self._entry = self._alive / f"{rank:05d}.{os.getpid()}.{self._node}"
        self._entry.touch()

    def mark_finished(self) -> None:
        """The session ends well."""
        with suppress(OSError):
            self._entry.unlink()

    def mark_failed(self, error: BaseException | None) -> str:
        """The session ends by an exception, or by SIGTERM if that is None: says who was first.

        Returns:
            The ranks that are gone or that failed before this one, with how, as in "rank 3
            (dp1_pp0_sharding0_mp1) failed: RuntimeError: boom"; "" if none are known.
        """
        others = self._gone() or self._failures(sigterm=error is not None)
        with suppress(OSError):
            if not others:
                self._failed.mkdir(exist_ok=True)
                note = self._failed / f"{self._rank:05d}"
                if error is None:
                    note.with_suffix(".sigterm").touch()
                else:
                    note.with_suffix(".txt").write_text(
                        f"{_one_line(error)}\n", "utf-8", "backslashreplace"
                    )
            self._entry.unlink()
        more = len(others) - _NAMED
        return ", ".join(others[:_NAMED]) + (f" and {more} more ranks" if more > 0 else "")

    def _gone(self) -> list[str]:
        """Ranks of this machine that have not left their session and have no process any more."""
        found = []
        for name in _names(self._alive):
            entry = _ENTRY.fullmatch(name)
            if entry and entry["node"] == self._node and not _is_alive(int(entry["pid"])):
                named = self._name(int(entry["rank"]), f", pid {entry['pid']}")
                found.append(f"{named} is gone: killed, or it crashed")
        return found

    def _failures(self, sigterm: bool) -> list[str]:
        """Ranks that have left word; those that SIGTERM ended only if ``sigterm``."""
        found = []
        for name in _names(self._failed):
            word = _WORD.fullmatch(name)
            if word and word["kind"] == "txt":
                text = ""
                with suppress(OSError):
                    text = (self._failed / name).read_text("utf-8", "replace").strip()
                found.append(f"{self._name(int(word['rank']))} failed: {text}")
            elif word and sigterm:
                found.append(f"{self._name(int(word['rank']))} was ended by SIGTERM")
        return found

    def _name(self, rank: int, more: str = "") -> str:
        return f"rank {rank} ({self._topology.label(rank)}{more})"


def live_ranks(run: Path) -> set[int]:
    """Ranks that are in their session, as far as can be seen from this machine.

    One that was killed counts as long as it is of another machine.
    """
    entries = (_ENTRY.fullmatch(name) for name in _names(run / "alive"))
    node = _node()
    return {
        int(entry["rank"])
        for entry in entries
        if entry and (entry["node"] != node or _is_alive(int(entry["pid"])))
    }


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return sorted(path.name for path in folder.iterdir())
    return []


def _node() -> str:
    """This machine as far as a pid is valid: containers may share a host's name."""
    namespace = 0
    with suppress(OSError):
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    return f"{platform.node()}-{namespace}"


def _is_alive(pid: int) -> bool:
    """Whether the process runs: not when it is a zombie or about to be one."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    with suppress(OSError, ValueError, IndexError):
        # "4711 (python) S ppid pgrp session tty tpgid flags"; the name may hold blanks.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0] not in "ZX" and not int(fields[6]) & _EXITING
    return True


def _one_line(error: BaseException) -> str:
    text = ""
    with suppress(Exception):  # the training's exception may not know its own text
        text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip(" -\t")]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
