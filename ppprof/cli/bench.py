"""``ppprof bench``: run two trainings in turn, several times each, and say whether their steps differ."""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from ppprof.cli.diff import limits_of_several, time_of_several
from ppprof.cli.options import Checks, whole_number
from ppprof.cli.terminal import log
from ppprof.errors import InputError, UsageError
from ppprof.units import format_time

EXAMPLES = {
    "ppprof bench -- train.py -- train.py --fused": "five runs of each, and whether the second is faster",
    "ppprof bench -n 8 --steps 200 -- --nproc 2 old.py -- --nproc 2 new.py": "each run ends after 200 steps",
    'ppprof bench --fail-if "step_time > 5%" -- base.py -- new.py': "exit code 1 if surely more than 5% slower",
}
_DASHES, _LOG = "--", "{log}"
_FOLDER, _RUNS, _STEPS = "ppprof_bench", 5, 60
_LEAST_STEPS = 7
"""Steps of a run: the first and the window do not count, and a comparison needs
`ppprof.analysis.profile.step_basis.LEAST_STEPS`."""
_NAMES = ("a", "b")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.usage = "ppprof bench [options] -- A ... -- B ..."
    parser.allow_abbrev = False
    parser.description = (
        "Runs two trainings in turn, in a random order in each round, and compares the step times of all "
        "runs as ppprof diff A... -- B... does: equal runs differ more than the steps within one run. A and "
        "B are arguments of ppprof run, such as a script, which measures step times alone (--timer-only); or any "
        "command with {log} in it, in whose place the run directory stands."
    )
    add = parser.add_argument
    add("-n", "--runs", metavar="N", help=f"runs of each, 2 or more; default: {_RUNS}")
    add(
        "--steps",
        metavar="S",
        help=f"steps of a run of ppprof run, {_LEAST_STEPS} or more; default: {_STEPS}",
    )
    add(
        "--log",
        metavar="DIR",
        default=_FOLDER,
        help=f"new directory of the runs; default: {_FOLDER}",
    )
    add(
        "--fail-if",
        metavar="RULE",
        action="append",
        default=[],
        help="as for ppprof diff: 'step_time > 5%%'; repeatable",
    )
    parser.set_defaults(commands=[])
    parse = parser.parse_known_args

    def parse_known_args(words: Any = None, namespace: Any = None) -> Any:
        """Parse the words up to the first dashes; those after them are the commands."""
        groups = [
            list(group)
            for is_end, group in groupby(words or (), key=lambda word: word == _DASHES)
            if not is_end
        ]
        has_own = bool(words) and words[0] != _DASHES
        parsed, unknown = parse(groups[0] if has_own else [], namespace)
        parsed.commands = groups[has_own:]
        return parsed, unknown

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign, assignment]


def check(args: argparse.Namespace) -> None:
    """Replace the texts of options by their values, or raise UsageError."""
    checks = Checks(args)
    checks.parse("runs", partial(whole_number, least=2), _RUNS)
    checks.parse("steps", partial(whole_number, least=_LEAST_STEPS), _STEPS)
    if len(args.commands) != len(_NAMES):
        num = len(args.commands)
        checks.problems.append(f"expected two commands, -- A ... -- B ...; there are {num}")
    limits_of_several(args, checks)
    args.log = checks.new_folder("--log", args.log)
    checks.done()


def run(args: argparse.Namespace) -> int:
    """Return what ``ppprof diff`` returns: 0, or 1 where a threshold of ``--fail-if`` fails."""
    from ppprof.cli import main

    try:
        args.log.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--log {args.log}: {error.strerror or error}") from error
    commands = dict(zip(_NAMES, args.commands))
    runs: dict[str, list[str]] = {name: [] for name in _NAMES}
    for number in range(1, args.runs + 1):
        lengths: dict[str, str] = {}
        for name in random.sample(_NAMES, len(_NAMES)):
            folder = args.log / f"{name}{number}"
            _train(commands[name], folder, args.steps)
            lengths[name] = _length(folder)
            runs[name].append(str(folder))
        log.info(f"round {number} of {args.runs}: {_round(lengths)}")
    limits = [word for limit in args.fail_if for word in ("--fail-if", limit)]
    return main(["diff", *limits, *runs["a"], _DASHES, *runs["b"]])


def _train(words: Sequence[str], folder: Path, steps: int) -> None:
    """Run a command to its end; its output is in a file beside the run directory.

    Raises:
        InputError: it fails.
    """
    output = folder.with_suffix(".out")
    with (
        output.open("wb") as file,
        subprocess.Popen(
            _command(words, folder, steps),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            # A script with a session of its own fails at once: that would not end after the steps.
            env=None if _has_log(words) else {**os.environ, "PPPROF_BENCH": "1"},
        ) as process,
    ):
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            raise
    if code:
        lines = output.read_text(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "no output")
        raise InputError(
            f"{' '.join(words)}: exit code {code}; its output: {output}, which ends: {last}"
        )


def _command(words: Sequence[str], folder: Path, steps: int) -> list[str]:
    """Return the command that records a run directory.

    >>> _command(["python", "job.py", "--to={log}"], Path("a1"), 60)
    ['python', 'job.py', '--to=a1']
    >>> _command(["--nproc", "2", "job.py"], Path("a1"), 60)[3:6]
    ['run', '--timer-only', '--log']
    """
    if _has_log(words):
        return [word.replace(_LOG, str(folder)) for word in words]
    # The last of the steps is the window after which the script ends; nothing is recorded in it.
    ends = ["-o", f"scheduler=[{steps - 1},{steps}]", "-o", "stop_training=True"]
    own = [sys.executable, "-m", "ppprof", "run", "--timer-only", "--log", str(folder)]
    return [*own, *ends, *words]


def _has_log(words: Sequence[str]) -> bool:
    """Return whether a command says itself where its run directory is."""
    return any(_LOG in word for word in words)


def _length(folder: Path) -> str:
    """Return the mean step of a run.

    Raises:
        InputError: too few of its steps have a time.
    """
    from ppprof.analysis.diff.several_runs import run_time
    from ppprof.cli.runs import open_run

    time = time_of_several(str(folder), run_time(open_run(str(folder)).step_times))
    return format_time(round(time.mean_ns))


def _round(lengths: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {lengths[name]}" for name in _NAMES)
