"""Memory that a child process may use without taking it from the training."""

from __future__ import annotations

from pathlib import Path

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def available_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int | None:
    """Return the available bytes of the machine or of the container, whichever is less.

    None if the kernel reports neither, as on systems other than Linux. The container's limit is
    known only with cgroups of version 2.

    Args:
        proc: the folder ``/proc``; tests pass another one.
        cgroups: the folder ``/sys/fs/cgroup``; tests pass another one.
    """
    sizes = [_of_machine(proc / "meminfo"), _of_cgroup(proc / "self/cgroup", cgroups)]
    return min((size for size in sizes if size is not None), default=None)


def _of_machine(meminfo: Path) -> int | None:
    for line in _lines(meminfo):
        name, _, size = line.partition(":")
        if name == "MemAvailable":
            return int(size.split()[0]) << 10
    return None


def _of_cgroup(own: Path, cgroups: Path) -> int | None:
    paths = [line.partition("::")[2] for line in _lines(own) if line.startswith("0::")]
    folder = cgroups / (paths[0].lstrip("/") if paths else "")
    limit, used = (_lines(folder / f"memory.{name}") for name in ("max", "current"))
    if not limit or not used or limit[0] == "max":
        return None
    # The page cache counts as used, but is freed when memory is needed.
    stat = dict(line.split() for line in _lines(folder / "memory.stat"))
    return int(limit[0]) - int(used[0]) + int(stat.get("inactive_file", 0))


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
