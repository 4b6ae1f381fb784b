"""Profilers of Python on scripts with one planted bottleneck: ``python -m benchmarks.line_peers --bin DIR SCRIPT...``.

DIR is the ``bin`` of an environment that has Paddle, pyinstrument, py-spy and scalene; SCRIPT is a name in
``tests/planted``. Prints what each profiler puts first, and its cost: the median iteration, by a stopwatch of the
script's own, over that of the runs without a profiler before and after all of them.

pyinstrument reports functions, the others lines. Imports do not count, and neither does the script's own code outside
functions, of which pyinstrument has one time. A profiler has found the bottleneck if what it puts first is one of its
lines, or its function.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import ppprof
from tests.jobs.planted_truth import marks

ROOT = Path(__file__).parents[1]
TRUTH = ROOT / "tests/jobs/planted_truth.py"
_OUT = "out.json"
_FRAME = re.compile(r"\(([^()]+):([0-9]+)\)$")
Times = Counter[str]
"""Time by place: the number of a line, or the name of a function."""


def no_places(folder: Path, script: str) -> Times:
    """Nothing: no profiler has run."""
    return Counter()


def ppprof_places(folder: Path, script: str) -> Times:
    """The first finding with a line."""
    findings = ppprof.advise(ppprof.open(folder / "profiler_log"))
    first = next((each.place for each in findings if each.place is not None), None)
    return Counter() if first is None else Counter({str(first[1]): 1})


def py_spy_places(folder: Path, script: str) -> Times:
    """Samples of each line, of the innermost frame in the script."""
    times: Times = Counter()
    for sample in (folder / _OUT).read_text(encoding="utf-8").splitlines():
        stack, _, count = sample.rpartition(" ")
        frames = [match for frame in stack.split(";") if (match := _FRAME.search(frame))]
        own = [match[2] for match in frames if match[1].endswith(script)]
        times.update({own[-1]: int(count)} if own else {})
    return times


def pyinstrument_places(folder: Path, script: str) -> Times:
    """Time of each function, with the comprehensions in it and what it calls outside the script."""
    times: Times = Counter()

    def add(frame: dict[str, Any], around: str | None) -> None:
        name = frame["function"]
        is_own = frame["file_path_short"].endswith(script) and not name.startswith("<")
        own = name if is_own else around
        inside = sum(child["time"] for child in frame["children"])
        if own is not None:
            times[own] += frame["time"] - inside
        for child in frame["children"]:
            add(child, own)

    add(json.loads((folder / _OUT).read_text(encoding="utf-8"))["root_frame"], None)
    return times


def scalene_places(folder: Path, script: str) -> Times:
    """Percent of each line, in Python, in C and in the system."""
    files = json.loads((folder / _OUT).read_text(encoding="utf-8"))["files"]
    kinds = ("n_cpu_percent_python", "n_cpu_percent_c", "n_sys_percent")
    lines: list[dict[str, Any]] = next(
        (each["lines"] for name, each in files.items() if name.endswith(script)), []
    )
    return Counter({str(line["lineno"]): sum(line[kind] for kind in kinds) for line in lines})


def commands(folder: Path, script: str) -> dict[str, list[str]]:
    """Return the command of each profiler, with its options, in front of the program."""
    python, out = str(folder / "python"), _OUT
    run = [
        "-m",
        "ppprof",
        "run",
        "-o",
        "Profiler.scheduler=[30,100]",
        "-o",
        "Profiler.trigger=False",
    ]
    spy = ["record", "-r", "100", "-f", "raw", "-o", out, "--", python]
    all_of = ["run", "--cpu-only", "--profile-all", "--profile-only", Path(script).stem, "-o", out]
    return {
        "nothing": [python],
        "ppprof": [python, *run],
        "py-spy": [str(folder / "py-spy"), *spy],
        "pyinstrument": [python, "-m", "pyinstrument", "-r", "json", "-o", out],
        "scalene": [str(folder / "scalene"), *all_of],
    }


READERS = {
    "nothing": no_places,
    "ppprof": ppprof_places,
    "py-spy": py_spy_places,
    "pyinstrument": pyinstrument_places,
    "scalene": scalene_places,
}


def median_of(command: list[str], script: str, folder: Path) -> float:
    """Run a script under a profiler in a folder; return the script's median iteration in seconds, NaN if it fails."""
    shutil.copy(ROOT / "tests/planted" / script, folder)
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*command, str(TRUTH), script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    match = re.search(r"^median ([0-9.]+)$", done.stdout, re.MULTILINE)
    return float(match[1]) if match is not None else math.nan


def functions(script: Path) -> Iterator[tuple[str, range]]:
    """Yield the functions of a script and their lines."""
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            yield node.name, range(node.lineno, (node.end_lineno or node.lineno) + 1)


def main() -> None:
    """Print a row for each script."""
    parser = argparse.ArgumentParser(description="Profilers of Python on planted bottlenecks.")
    parser.add_argument("--bin", type=Path, required=True, help="the bin folder of the peers")
    parser.add_argument("scripts", nargs="+", metavar="SCRIPT")
    args = parser.parse_args()
    for name in args.scripts:
        script = ROOT / f"tests/planted/{name}.py"
        found = marks(script)
        inside = {function for function, lines in functions(script) if found["planted"] & {*lines}}
        planted = {*map(str, found["planted"]), *inside}
        lines = script.read_text(encoding="utf-8").splitlines()
        imports = {str(n) for n, text in enumerate(lines, 1) if text.startswith(("import", "from"))}
        cells, costs = [], []
        with tempfile.TemporaryDirectory() as folder:
            for tool, command in commands(args.bin, script.name).items():
                costs.append(median_of(command, script.name, Path(folder)))
                if math.isnan(costs[-1]):
                    cells.append(f"{tool} ends the training")
                    continue
                times = READERS[tool](Path(folder), script.name)
                for place in imports:
                    del times[place]
                first = max(times, key=lambda each: times[each], default="-")
                cells.append(f"{tool} {first} ({'found' if first in planted else 'not found'})")
            again = commands(args.bin, script.name)["nothing"]
            costs.append(median_of(again, script.name, Path(folder)))
        plain = mean((costs[0], costs[-1]))
        cells = [f"{cell} x{cost / plain:.2f}" for cell, cost in zip(cells, costs)][1:]
        print(f"{name}: {'; '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
