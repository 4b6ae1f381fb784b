"""Compare what two checkouts print and write, byte by byte: after a change that should change nothing.

    python tools/compare_outputs.py OLD NEW [--data DIR] [--only summary,diff] [--keep DIR]

Runs every reading command on every run and trace below DIR (default: the fixtures of OLD), in a copy
of DIR for each checkout, and prints each command whose exit code, output, messages or files differ.
Exit code 1 if any does. The interpreter that runs this script runs both checkouts: the C core of each
has to be compiled, or is compared without (PPPROF_CORE=python).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

COMMANDS = {
    "summary": (
        ["summary", "IN"],
        ["summary", "IN", "--views", "all", "--thread-sep", "--sorted-by", "cpu_max"],
        ["summary", "IN", "--views", "shape,layer,efficiency", "--format", "md"],
        ["summary", "IN", "--views", "all", "--format", "json", "--row-limit", "none"],
        ["summary", "IN", "--views", "op", "--format", "csv", "--steps", "2:4"],
        ["summary", "IN", "--by", "name", "--rank", "all"],
        ["summary", "IN", "--by", "rank", "--rank", "all", "--format", "json"],
        ["summary", "IN", "--by", "shape", "--format", "csv"],
        ["summary", "IN", "--views", "overview,op", "--width", "60", "--time-unit", "us"],
    ),
    "ranks": (
        ["ranks", "IN"],
        ["ranks", "IN", "--what-if", "--width", "100"],
        ["ranks", "IN", "--format", "json", "--what-if"],
        ["ranks", "IN", "--by", "pp", "--format", "md"],
        ["ranks", "IN", "--by", "rank,step", "--format", "csv"],
    ),
    "advise": (
        ["advise", "IN"],
        ["advise", "IN", "--format", "json"],
        ["advise", "IN", "--format", "md", "--language", "zh"],
    ),
    "diff": (
        ["diff", "BASE", "IN"],
        ["diff", "BASE", "IN", "--format", "json", "--exact"],
        ["diff", "IN", "BASE", "--format", "md", "--views", "overview,op,kernel"],
        ["diff", "BASE", "IN", "--fail-if", "step_time > 5%", "--width", "80"],
    ),
    "report": (
        ["report", "IN", "-o", "OUT/page.html"],
        ["report", "IN", "--baseline", "BASE", "--language", "zh", "-o", "OUT/page.html"],
    ),
    "merge": (["merge", "IN", "-o", "OUT/merged.json"],),
    "convert": (
        ["convert", "IN", "OUT/trace.json"],
        ["convert", "IN", "OUT/trace.pb"],
        ["convert", "IN", "OUT/kineto", "--to", "kineto"],
    ),
    "finish": (["finish", "IN"],),
}
"""Command -> command lines. IN is each run and trace, BASE the first run or trace, OUT a new folder."""

ONCE = (
    *([command, "--help"] for command in (*COMMANDS, "run", "trigger", "doctor", "config")),
    ["--help"],
    ["completion", "bash"],
    ["completion", "zsh"],
    ["completion", "tcsh"],
    ["sumary"],
    ["summary"],
    ["summary", "missing"],
    ["summary", "BASE", "--view", "op,nothing"],
    ["summary", "BASE", "--rank", "99"],
    ["summary", "BASE", "--steps", "x"],
    ["ranks", "BASE", "--by", "nothing"],
    ["diff", "BASE", "BASE", "--fail-if", "nonsense"],
    ["trigger", "BASE"],
)
"""Command lines that are run once."""
_FILES = ("*.json", "*.json.gz", "*.pb")
_OWN = "manifest.json"
# One thread: with several, polars adds floats in an order that changes.
_SETTINGS = {"COLUMNS": "100", "POLARS_MAX_THREADS": "1"}


def inputs(data: Path) -> Iterator[str]:
    """Yield the runs, directories of traces and traces below a folder, as relative paths."""
    runs = sorted(path.parent for path in data.rglob(_OWN))
    for run in runs:
        yield str(run.relative_to(data))
    folders = set()
    for path in sorted(path for pattern in _FILES for path in data.rglob(pattern)):
        if any(run in path.parents for run in runs):
            continue
        yield str(path.relative_to(data))
        folders.add(path.parent)
    for folder in sorted(folders - {data}):
        if sum(len(list(folder.glob(pattern))) for pattern in _FILES) > 1:
            yield str(folder.relative_to(data))


def command_lines(data: Path, only: Sequence[str]) -> Iterator[list[str]]:
    """Yield every command line to compare."""
    paths = list(inputs(data))
    base = paths[0]
    for words in ONCE if not only else ():
        yield [base if word == "BASE" else word for word in words]
    for command, lines in COMMANDS.items():
        if only and command not in only:
            continue
        for path in paths:
            for words in lines:
                yield [{"IN": path, "BASE": base}.get(word, word) for word in words]


def outcome(checkout: Path, data: Path, words: Sequence[str]) -> dict[str, str]:
    """Run one command line of a checkout in a folder with the data; return what it left.

    Returns:
        ``code``, ``stdout``, ``stderr``, and the SHA-256 of each written file.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        command = [sys.executable, "-m", "ppprof", *(w.replace("OUT/", f"{out}/") for w in words)]
        environment = {**os.environ, "PYTHONPATH": str(checkout), **_SETTINGS}
        result = subprocess.run(
            command, cwd=data, env=environment, capture_output=True, check=False, timeout=600
        )
        left = {"code": str(result.returncode)}
        for name, text in (("stdout", result.stdout), ("stderr", result.stderr)):
            plain = text.decode("utf-8", "backslashreplace")
            left[name] = plain.replace(str(out), "OUT").replace(str(data), "DATA")
        for path in sorted(path for path in out.rglob("*") if path.is_file()):
            content = path.read_bytes()
            if path.suffix == ".gz":
                content = gzip.decompress(content)
            content = content.replace(str(out).encode(), b"OUT").replace(
                str(data).encode(), b"DATA"
            )
            left[str(path.relative_to(out))] = hashlib.sha256(content).hexdigest()
    return left


def outcomes(
    checkout: Path, data: Path, lines: Sequence[Sequence[str]], jobs: int
) -> list[dict[str, str]]:
    """Run all command lines of a checkout, each in a fresh copy of the data only if it writes there."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve() / "data"
        shutil.copytree(data, copy)
        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(lambda words: outcome(checkout, copy, words), lines))


def _short(left: Mapping[str, str], other: Mapping[str, str], name: str) -> str:
    """Return a text from shortly before its first difference on."""
    text, reference = left.get(name, "(missing)"), other.get(name, "(missing)")
    pairs = enumerate(zip(text, reference))
    same = next((index for index, (one, two) in pairs if one != two), len(reference))
    return repr(text[max(same - 100, 0) : same + 200])


def main() -> int:
    """Compare, print the differences, and return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--data", type=Path, help="default: tests/fixtures of OLD")
    parser.add_argument("--only", default="", help="commands, separated by commas")
    parser.add_argument("--keep", type=Path, help="file with the outcomes of OLD, made if missing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    data = (args.data or args.old / "tests/fixtures").resolve()
    lines = list(command_lines(data, [word for word in args.only.split(",") if word]))
    kept: dict[str, dict[str, str]] = {}
    if args.keep and args.keep.exists():
        kept = json.loads(args.keep.read_text(encoding="utf-8"))
    missing = [words for words in lines if " ".join(words) not in kept]
    for words, left in zip(missing, outcomes(args.old.resolve(), data, missing, args.jobs)):
        kept[" ".join(words)] = left
    if args.keep:
        args.keep.write_text(json.dumps(kept), encoding="utf-8")
    num_different = 0
    for words, new in zip(lines, outcomes(args.new.resolve(), data, lines, args.jobs)):
        old = kept[" ".join(words)]
        if old != new:
            num_different += 1
            print("ppprof", *words)
            for name in sorted(old.keys() | new.keys()):
                if old.get(name) != new.get(name):
                    print(f"  {name}:\n    {_short(old, new, name)}\n    {_short(new, old, name)}")
    print(f"{len(lines)} command lines, {num_different} differ")
    return int(num_different > 0)


if __name__ == "__main__":
    sys.exit(main())
