"""``python -m tests.stress_worker KIND FOLDER SEED COUNT``: hostile inputs, one command for each.

``KIND`` is ``runs``, ``traces`` or ``configs``. The inputs follow from the seed. Ends at the first
input for which a command raises, takes too long or too much memory, shows a traceback, or reads or
changes a file outside the run; the message names the seed that makes this input alone.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random
import resource
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ppprof import rundir
from ppprof.cli import main
from ppprof.rundir.liveness import LivenessRegistry
from ppprof.rundir.triggers import TriggerResponse, accept_requests, append_response
from ppprof.topology import Topology
from tests.fixtures import gpu_traces
from tests.fixtures.timeline import write
from tests.trace.test_fuzz import KINETO, mutated

MOST_SECONDS = 30
"""Time of one command on a small input."""
MOST_BYTES = 2 << 30
"""Address space that all commands together may take, above that of one command on a sound run."""
ROOT = Path(__file__).parents[1]
RUNS = [ROOT / "tests/fixtures/runs" / name for name in ("slow_rank_of_two", "small_net")]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
CANARY = "ZZ_outside_of_the_run_ZZ"
ODD: list[Any] = [
    *(
        None,
        -1,
        0,
        1 << 70,
        1e308,
        True,
        "",
        "\x1b[2J\u202e",
        "9" * 5000,
        [],
        {},
        [None],
        {"a": []},
    ),
]
COMMANDS: dict[str, list[str]] = {
    "summary": ["{run}", "--rank", "all", "--views", "all"],
    "ranks": ["{run}"],
    "advise": ["{run}"],
    "report": ["{run}", "-o", "{out}/page.html"],
    "merge": ["{run}", "-o", "{out}/merged.json"],
    "diff": ["{run}", str(RUNS[0])],
    "finish": ["{run}"],
    "trigger": ["{run}", "--wait", "--timeout", "0.2"],
}
TRACE_COMMANDS: dict[str, list[str]] = {
    "summary": ["{run}"],
    "ranks": ["{run}"],
    "advise": ["{run}"],
    "report": ["{run}", "-o", "{out}/page.html"],
    "convert": ["{run}", "{out}/a.json"],
    "diff": ["{run}", "{run}"],
    "merge": ["{run}", "{run}", "-o", "{out}/merged.json"],
}


def deeply_nested(rng: random.Random) -> bytes:
    """Return JSON that is nested deeply."""
    return rng.choice([b"[", b'{"a":']) * rng.choice([200, 100_000])


def odd_value(content: bytes, rng: random.Random) -> bytes:
    """Replace a value of a JSON document or of one of its lines; other content is mutated."""
    lines = content.split(b"\n") if content.count(b"\n{") else [content]
    number = rng.randrange(len(lines))
    try:
        value = json.loads(lines[number])
    except (ValueError, RecursionError):
        return mutated(content, rng)
    inner = value
    while isinstance(inner, (dict, list)) and inner:
        keys = list(inner) if isinstance(inner, dict) else range(len(inner))
        key = rng.choice(keys)
        if rng.random() < 0.4 or not isinstance(inner[key], (dict, list)):
            inner[key] = rng.choice(ODD)
            break
        inner = inner[key]
    lines[number] = json.dumps(value).encode()
    return b"\n".join(lines)


def marked(content: bytes) -> bytes:
    """Return a trace in which names are the canary, so that reading it shows."""
    if content.startswith(b"\x1f\x8b"):
        return gzip.compress(marked(gzip.decompress(content)))
    for name in (b"matmul", b"linear", b"Linear"):
        content = content.replace(name, CANARY.encode())
    return content


def plant(path: Path, outside: Path, rng: random.Random) -> None:
    """Put something else in place of a file or folder of a run."""
    content = path.read_bytes() if path.is_file() else b""
    kind = rng.randrange(10)
    if kind < 5 and path.is_file():
        changes: list[Callable[[bytes, random.Random], bytes]] = [
            *(mutated, odd_value, odd_value, odd_value),
            lambda _, rng: deeply_nested(rng),
        ]
        path.write_bytes(rng.choice(changes)(content, rng))
        return
    name = path.name
    if path.is_dir():
        shutil.move(path, outside / name)
    else:
        (outside / name).write_bytes(marked(content))
        path.unlink()
    if kind == 5:
        os.mkfifo(path)
    elif kind == 6:
        path.symlink_to(rng.choice(["/dev/zero", name, "nowhere", "/proc/self/mem"]))
    elif kind == 7:
        path.mkdir()
    elif kind == 8:
        with socket.socket(socket.AF_UNIX) as listener, contextlib.suppress(OSError):
            listener.bind(os.path.relpath(path))  # a path of a socket has at most 107 bytes
    else:
        path.symlink_to(outside / name)


def add_files(run: Path, outside: Path, rng: random.Random) -> None:
    """Add files that no capture writes."""
    names = [
        *("raw/.writing_rank_00000_dp0_time_20261120T201530_000.pb." + "0" * 32, "raw/x.pb"),
        *(
            "failed/00099.txt",
            f"alive/00000.{10**30}.node",
            "alive/999999.1.node",
            "trigger/request",
        ),
        *("trigger/answers.jsonl", "steps/rank_999999.jsonl", "clocks/rank_00002.jsonl"),
        *("summary/rank_00000_w0.json", "summary/rank_00005_w999999.json", "nodes/00000.\x1b[2J"),
        *("rank_00000_dp0_pp0_sharding0_mp0_time_20261120T201530_000.paddle_trace.json", "a.pb"),
    ]
    for name in rng.sample(names, rng.randint(1, 4)):
        path = run / name
        if os.path.lexists(path):  # writing to a FIFO that was planted there would wait for ever
            continue
        with contextlib.suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(rng.choice([b"", b"{}\n", b"[]", b"\x00" * 99, deeply_nested(rng)]))
            if rng.random() < 0.5:
                plant(path, outside, rng)


def hostile_run(case: Path, rng: random.Random) -> tuple[str, list[str]]:
    """Return a command for a run with odd files; the run is ``case/run``."""
    run, outside = case / "run", case / "outside"
    shutil.copytree(rng.choice(RUNS), run)
    (run / "raw").mkdir(exist_ok=True)
    name = "rank_00000_dp0_pp0_sharding0_mp0_time_20261122T011146_000"
    if rng.random() < 0.5:
        for path in run.glob("rank_00000_*"):
            path.unlink()
        write(run / f"raw/{name}.pb", *gpu_traces.training(2))
    command = rng.choice(list(COMMANDS))
    if command == "trigger":
        attach(run)
    paths = sorted(path for path in run.rglob("*") if rng.random() < 0.9)
    for path in rng.sample(paths, min(len(paths), rng.randint(0, 3))):
        if os.path.lexists(path) and not path.is_symlink():
            plant(path, outside, rng)
    if rng.random() < 0.7:
        add_files(run, outside, rng)
    return command, COMMANDS[command]


def attach(run: Path) -> None:
    """Make this process rank 0 of the run, with an answer."""
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["profiler"]["trigger"] = {}
    (run / "manifest.json").write_text(json.dumps(manifest))
    LivenessRegistry(run, Topology.of(dp=2), 0)
    rundir.write_node_marker(run, 0)
    accept_requests(run)
    append_response(run, TriggerResponse("x", "id", None, 0, 1, 2, [0]))


def hostile_trace(case: Path, rng: random.Random) -> tuple[str, list[str]]:
    """Return a command for a trace with mutations; the trace is ``case/run``."""
    seeds = [KINETO.read_bytes(), *(path.read_bytes() for path in RUNS[1].glob("*.json*"))]
    (case / "run").write_bytes(mutated(rng.choice(seeds), rng))
    command = rng.choice(list(TRACE_COMMANDS))
    return command, TRACE_COMMANDS[command]


def hostile_config(case: Path, rng: random.Random) -> tuple[str, list[str]]:
    """Return ``config`` for a YAML file with mutations; the file is ``case/run``."""
    path = rng.choice(CONFIGS)
    text = path.read_bytes().replace(b"_base_: ", b"_base_: " + str(path.parent).encode() + b"/")
    if rng.random() < 0.2:
        lines = text.splitlines(keepends=True)
        lines[rng.randrange(len(lines))] = rng.choice([b"a: " + deeply_nested(rng), b"<<: *x\n"])
        text = b"".join(lines)
    (case / "run").write_bytes(mutated(text, rng))
    return "config", ["{run}"]


CASES = {"runs": hostile_run, "traces": hostile_trace, "configs": hostile_config}


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change of everything below a folder."""
    found = {}
    for path in folder.rglob("*"):
        state = path.lstat()
        found[str(path)] = (state.st_size, state.st_mtime_ns)
    return found


def end_late(*_: object) -> NoReturn:
    """End a command that hangs."""
    raise TimeoutError(f"more than {MOST_SECONDS} s")


def check(kind: str, case: Path, seed: int) -> int:
    """Make the input of a seed in ``case`` and run its command; return the exit code."""
    rng = random.Random(f"{kind} {seed}")
    (case / "outside").mkdir(parents=True)
    (case / "out").mkdir()
    (case / "outside/canary").write_text(CANARY)
    command, arguments = CASES[kind](case, rng)
    argv = [command, *(text.format(run=case / "run", out=case / "out") for text in arguments)]
    before = tree(case / "outside")
    out = io.StringIO()
    signal.alarm(MOST_SECONDS)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = main(argv)
        except SystemExit as exit:
            code = int(exit.code or 0)
    signal.alarm(0)
    said = out.getvalue()
    assert code in (0, 1, 2, 3), (code, said)
    assert "Traceback" not in said, said
    pages = [path.read_text("utf-8", "replace") for path in (case / "out").iterdir()]
    assert CANARY not in said + "".join(pages), said
    assert tree(case / "outside") == before
    return code


def work(kind: str, folder: Path, first: int, count: int) -> None:
    """Check the inputs of ``count`` seeds from ``first`` on; print how many ended with each code."""
    signal.signal(signal.SIGALRM, end_late)
    codes: dict[int, int] = {}
    for warm_up in (COMMANDS["summary"], ["{run}"]):
        with contextlib.redirect_stdout(io.StringIO()):
            main(["summary", *(text.format(run=RUNS[0]) for text in warm_up)])
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MOST_BYTES,) * 2)
    for seed in range(first, first + count):
        case = folder / f"{kind}{seed}"
        try:
            code = check(kind, case, seed)
        except BaseException:
            print(f"tests.stress_worker {kind} FOLDER {seed} 1", file=sys.stderr)
            raise
        codes[code] = codes.get(code, 0) + 1
        shutil.rmtree(case)
    print(json.dumps(codes))


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
