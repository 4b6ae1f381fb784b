"""From the first command to the answer: `paddle.profiler` and VisualDL against ppprof.

::

    python -m benchmarks.stopwatch

Each task of `TASKS` has a planted cause. Its commands run in an empty folder, as a user types them;
seconds are medians over rounds in which all tasks run in turn. ``stopwatch_job/train.py`` knows no
profiler; ``train_profiled.py`` is the same with the lines of `paddle.profiler` added. VisualDL's
seconds end when its server has sent the data of two pages for each run and rank, Overview and
Operator. What a person reads and compares is counted, not timed.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.trace_reading import machine
from tests.jobs.launching import environment
from tests.oracles import visualdl_server

JOB = Path(__file__).with_name("stopwatch_job")
ALONE = "train.py"
PROFILED = "train_profiled.py"
_VISUALDL = "visualdl --logdir ."
# VisualDL 2.5.3 shows nothing of a trace by Paddle 3.2 or later without the key of Paddle 3.1.
_MEND = """sed -i '0,/"span_index"/s//"span_indx": "0", "span_index"/' {}"""
_LAUNCH = "python -m paddle.distributed.launch --nproc_per_node 8"


class Way(NamedTuple):
    """How one set of tools answers a question."""

    commands: Sequence[str]
    answers: Sequence[str] = ()
    """Patterns of the parts of the answer in all that the commands print; empty if none print it."""
    script: str = ALONE
    runs: Mapping[str, int] = {}
    """The folders that VisualDL shows, and their number of ranks; empty without VisualDL."""


TASKS: Mapping[str, Mapping[str, Way]] = {
    "slow": {
        "alone": Way((f"python {ALONE} data neck",)),
        "raw": Way(
            (f"python {PROFILED} data neck", _MEND.format("profiler_log/*.json"), _VISUALDL),
            (r"^  Dataloader +\d+ +[\d.]+ +([\d.]+) ",),
            PROFILED,
            {"profiler_log": 1},
        ),
        "ppprof": Way(
            (f"ppprof run {ALONE} data neck", "ppprof advise profiler_log"),
            (r"^rank 0, window 0: (recorded step .*)",),
        ),
    },
    "changed": {
        "alone": Way((f"python {ALONE}", f"python {ALONE} neck")),
        "raw": Way(
            (
                f"python {PROFILED}",
                "mv profiler_log before",
                f"python {PROFILED} neck",
                "mv profiler_log after",
                _MEND.format("before/*.json after/*.json"),
                _VISUALDL,
            ),
            script=PROFILED,
            runs={"before": 1, "after": 1},
        ),
        "ppprof": Way(
            (
                f"ppprof run --log before {ALONE}",
                f"ppprof run --log after {ALONE} neck",
                "ppprof diff before after",
            ),
            (r"^(Step time: .*?);", r"^ +Neck +[\d.]+ +[\d.]+ +[+]([\d.]+) "),
        ),
    },
    "ranks": {
        "alone": Way((f"{_LAUNCH} {ALONE} rank",)),
        "raw": Way(
            (f"{_LAUNCH} {PROFILED} rank", _MEND.format("profiler_log/*.json"), _VISUALDL),
            script=PROFILED,
            runs={"profiler_log": 8},
        ),
        "ppprof": Way(
            (f"ppprof run --nproc 8 {ALONE} rank", "ppprof ranks profiler_log"),
            (
                r"^(Slow computation: rank 5[^:]*: \S+ ms a step|Most time of its own.* rank 5 in \d+)",
            ),
        ),
    },
}
"""Question -> tools -> commands; `alone` is the script without tools."""


QUESTIONS = {
    "slow": "What is slow?",
    "changed": "Two runs: what changed?",
    "ranks": "Eight ranks: which one is slow?",
}

_TOOLS = {"raw": "paddle.profiler + VisualDL", "ppprof": "ppprof"}


class Measured(NamedTuple):
    """What one way took."""

    seconds: list[float]
    """Of each command."""
    answers: Sequence[str] = ()
    num_pages: int = 0
    """Pages of VisualDL with tables, over all runs and ranks."""


Results = Mapping[str, Mapping[str, Measured]]
"""Question -> tools -> what they took."""


def measure(way: Way, folder: Path) -> Measured:
    """Run the commands of one way in a folder.

    Raises:
        subprocess.CalledProcessError: a command fails.
        LookupError: no command prints the answer.
    """
    folder.mkdir(parents=True)
    shutil.copy(JOB / way.script, folder)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    seconds, outputs, num_pages = [], [], 0
    for command in way.commands:
        begin = time.perf_counter()
        if command == _VISUALDL:
            num_pages = _open_pages(folder, way.runs)
        else:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=folder,
                env=environment(folder, PATH=programs),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=True,
            )
            outputs.append(done.stdout)
        seconds.append(time.perf_counter() - begin)
    return Measured(seconds, _answers(way.answers, "\n".join(outputs)), num_pages)


def _open_pages(folder: Path, runs: Mapping[str, int]) -> int:
    """Start VisualDL and load Overview and Operator of each rank; return the number of pages."""
    num_pages = 0
    with visualdl_server.serve(folder) as server:
        for name, num_workers in runs.items():
            run = server.run_of(folder / name, num_workers)
            for worker in run.workers("Overview"):
                query = {"worker": worker, "span": run.span(worker), "time_unit": "ms"}
                assert run.get("overview/model_perspective", **query)["cpu"]
                by_name = {"group_by": "op_name", "search_name": ""}
                assert run.get("operator/table", **by_name, **query)["events"]
                num_pages += 2
    return num_pages


def _answers(patterns: Sequence[str], text: str) -> list[str]:
    matches = [re.search(pattern, text, re.MULTILINE) for pattern in patterns]
    missing = [pattern for pattern, match in zip(patterns, matches) if match is None]
    if missing:
        raise LookupError(f"no command printed {missing[0]!r} but:\n{text[-3000:]}")
    return [match[1] for match in matches if match]


def added_lines(script: str) -> int:
    """Return how many lines a script has more than the one without a profiler."""
    lines = [(JOB / name).read_text(encoding="utf-8").splitlines() for name in (ALONE, script)]
    return sum(line.startswith("+ ") for line in difflib.ndiff(*lines))


def measure_all(rounds: int) -> Results:
    """Return what each way took: the median of each command's seconds, the last round's rest."""
    measured: dict[str, dict[str, list[Measured]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for turn in range(rounds):
            for question, ways in TASKS.items():
                print(f"round {turn + 1} of {rounds}: {question}", file=sys.stderr, flush=True)
                for tools, way in ways.items():
                    all_rounds = measured.setdefault(question, {}).setdefault(tools, [])
                    all_rounds.append(measure(way, Path(scratch, str(turn), question, tools)))
    return {
        question: {
            tools: all_rounds[-1]._replace(
                seconds=[
                    statistics.median(times)
                    for times in zip(*(measure.seconds for measure in all_rounds))
                ]
            )
            for tools, all_rounds in ways.items()
        }
        for question, ways in measured.items()
    }


def report(results: Results) -> str:
    """Return the table, and what ppprof prints for each question."""
    head = (
        "Question",
        "Tools",
        "Commands",
        "Lines added",
        "Seconds",
        "Script alone",
        "Pages to open",
    )
    rows = [list(head), ["---"] * 2 + ["---:"] * (len(head) - 2)]
    texts = []
    for question, ways in results.items():
        alone_s = sum(ways["alone"].seconds)
        for tools, title in _TOOLS.items():
            way, measure = TASKS[question][tools], ways[tools]
            numbers = [len(way.commands), added_lines(way.script), sum(measure.seconds), alone_s]
            cells = [f"{number:.0f}" for number in (*numbers, measure.num_pages)]
            rows.append([QUESTIONS[question], title, *cells])
        texts.append(f"{QUESTIONS[question]} ppprof prints {ways['ppprof'].answers[0]}\n")
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return table + "\n" + "".join(texts)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3, help="medians of so many rounds (3)")
    options = parser.parse_args(argv)
    print(f"{machine()}\n\n{report(measure_all(options.rounds))}")


if __name__ == "__main__":
    main()
