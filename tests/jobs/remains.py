"""What a job leaves behind: processes and files."""

from __future__ import annotations

import json
import time
from pathlib import Path

from ppprof.trace import read


def processes(folder: Path) -> list[int]:
    """Those that work in the folder: ranks, their DataLoaders' workers, and ``ppprof finish``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if entry.joinpath("cwd").resolve() == folder.resolve():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_until_all_have_ended(folder: Path) -> None:
    deadline = time.monotonic() + 30
    while processes(folder):
        assert time.monotonic() < deadline, processes(folder)
        time.sleep(0.1)


def check_files(log: Path) -> None:
    """Every file of a run directory is whole, but for a line without its end."""
    for file in log.rglob("*"):
        assert not file.name.startswith("."), file
        if file.suffix == ".json":
            json.loads(file.read_bytes())
        if file.suffix == ".jsonl":
            [json.loads(line) for line in file.read_text().split("\n")[:-1]]
        if file.suffix == ".pb":
            read(file)


def left_by_paddle(log: Path) -> str:
    """What its profiler left: "whole" traces, one that is "cut", or "nothing"."""
    traces = list(log.glob("*.paddle_trace.json"))
    try:
        [json.loads(trace.read_bytes()) for trace in traces]
    except ValueError:
        return "cut"
    return "whole" if traces else "nothing"


def arrived(folder: Path, pattern: str, num_files: int = 1, seconds: float = 200.0) -> list[Path]:
    """Return the files of a pattern once there are so many; those there are when the time is up.

    A process of ppprof writes them after the training, which waits a minute for it.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = sorted(folder.glob(pattern))
        if len(found) >= num_files or time.monotonic() > deadline:
            return found
        time.sleep(0.1)
