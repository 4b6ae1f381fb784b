"""``ppprof run``: record a training script that knows nothing of ppprof.

The script runs in a program of its own, which replaces this one: its exit code, its signals and its
output are those that it has without ppprof.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ppprof
from ppprof.choices import StepRange
from ppprof.cli.options import Checks, whole_number
from ppprof.cli.output import problem_of_output
from ppprof.errors import NO_PADDLE
from ppprof.paths import to_path

EXAMPLES = {
    "ppprof run train.py --epochs 1": "train, record 10 steps once their times have settled",
    "ppprof run --steps 10:20 --report page.html train.py": "steps 10 to 19, and a page of them",
    "ppprof run --nproc 8 train.py": "8 processes; options of the launcher are passed on to it",
    'python -m paddle.distributed.launch "$(command -v ppprof)" run train.py': (
        "where the job has a launcher of its own"
    ),
}
LAUNCHER_OPTIONS = (
    *("devices", "gpus", "npus", "xpus", "nproc_per_node", "nnodes", "master", "rank", "ips"),
    *("host", "start_port", "log_dir", "log_level", "log_overwrite", "job_id", "run_mode"),
    *("max_restart", "elastic_level", "elastic_timeout", "sort_ip", "enable_gpu_log", "legacy"),
    *("auto_parallel_config", "auto_cluster_config", "auto_tuner_json"),
    *("servers", "trainers", "trainer_num", "server_num", "gloo_port", "with_gloo"),
)
"""Options of ``paddle.distributed.launch``; each has a value."""

_SETTLED = ("trigger={'settled': auto}", "row_limit=10", "op_detail=False")
"""Without a config: record a window once step times have settled; short tables."""
_STEPS = ("scheduler", "profiler_options")
"""Keys of the Profiler block that choose the steps to record."""
_TABLES = ("summary", "detailed", "with_flops", "brief")
"""Those that choose the tables to print."""

_PROGRAM = Path(ppprof.__file__).parent / "integrations" / "launched.py"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.usage = "ppprof run [options] SCRIPT ... | -m MODULE ..."
    parser.allow_abbrev = False
    parser.description = (
        "Runs a training script that knows nothing of ppprof. Calls of its optimizer end the "
        "steps. Once their times have settled, at step 20 at the latest, 10 steps are recorded (where "
        "steps are short, as many as take a second, at most 100), the same ones on all ranks. A script "
        "that ends before that leaves its first steps, at most 10 from step 1 on. A script that calls "
        "ppprof.attach() keeps its own profiler."
    )
    parser.epilog = (
        "All options of the launcher are passed on to it, such as --devices 0,1 or --master."
    )
    add = parser.add_argument
    add("--steps", metavar="A:B", help="record steps A to B-1, counted from 0")
    add("-c", "--config", metavar="CFG", help="YAML with a Profiler block, or with its keys")
    add(
        *("-o", "--override"),
        action="append",
        default=[],
        metavar="K=V",
        help="set a key of the Profiler block, such as profile_memory=False; repeatable",
    )
    add("--timer-only", action="store_true", help="measure step times alone, write no trace")
    add("--tables", action="store_true", help="print all nine tables instead of the largest parts")
    add("--log", metavar="DIR", help="write to this directory; default: profiler_log")
    add("--report", type=to_path, metavar="PAGE", help="afterwards, write a page as report does")
    add("--force", action="store_true", help="replace PAGE where it exists")
    add("--optimizer", metavar="N", help="of several optimizers, the N-th that steps ends a step")
    add("--nproc", metavar="N", help="start N processes with paddle.distributed.launch")
    for name in LAUNCHER_OPTIONS:
        add(f"--{name}", dest=f"launcher_{name}", metavar="VALUE", help=argparse.SUPPRESS)
    add("-m", dest="module", metavar="MODULE ...", help="run a module, as python -m does")
    add("script", nargs="?", metavar="SCRIPT ...", help="the script and its arguments")
    parser.set_defaults(program=[])
    parse = parser.parse_known_args

    def parse_known_args(words: Any = None, namespace: Any = None) -> Any:
        """Parse the words up to the program; those of the program are not ours."""
        own, program = _parted(list(words or ()))
        parsed, unknown = parse(own, namespace)
        parsed.program = program
        return parsed, unknown

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign, assignment]


_FLAGS = ("-h", "--help", "--timer-only", "--tables", "--force")
"""Options without a value."""


def _parted(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the options of ``ppprof run``, and the program: a script or ``-m`` and a module.

    >>> _parted(["--steps", "1:2", "train.py", "--steps", "3", "--", "x"])
    (['--steps', '1:2'], ['train.py', '--steps', '3', '--', 'x'])
    >>> _parted(["-ck.yaml", "-mpackage.module", "--epochs", "3"])
    (['-ck.yaml'], ['-m', 'package.module', '--epochs', '3'])
    """
    place = 0
    while place < len(words):
        word = words[place]
        if word == "--":
            return words[:place], words[place + 1 :]
        if word.startswith("-m"):
            glued = [word[2:]] if word[2:] else []
            return words[:place], ["-m", *glued, *words[place + 1 :]]
        if not word.startswith("-") or word == "-":
            return words[:place], words[place:]
        has_own_value = "=" in word or (word[1] != "-" and len(word) > 2)
        place += 1 if has_own_value or word in _FLAGS else 2
    return words, []


def check(args: argparse.Namespace) -> None:
    """Replace the texts of options by their values, or raise UsageError."""
    checks = Checks(args)
    steps_text = args.steps
    checks.parse("steps", StepRange.parse)
    checks.parse("optimizer", partial(whole_number, least=1))
    checks.parse("nproc", partial(whole_number, least=1))
    if args.nproc is not None and args.launcher_nproc_per_node is not None:
        checks.problems.append("--nproc: the same as --nproc_per_node; give one of them")
    launcher = _launcher_options(args)
    if launcher and "PADDLE_TRAINER_ID" in os.environ:
        checks.problems.append(
            f"{launcher[0]}: this process was started by the launcher; give it to the launcher"
        )
    _check_master(args, checks)
    _check_program(args.program, checks)
    if args.steps is not None and args.steps.stop is None:
        checks.problems.append(
            f"--steps {steps_text}: expected an end, as in {args.steps.start}:20"
        )
    checks.problems += [
        f"--{name}: has no effect beside --timer-only; give one of them"
        for name in ("steps", "report", "tables")
        if args.timer_only and getattr(args, name)
    ]
    if args.report is not None:
        problem = problem_of_output(args.report, (), args.force)
        checks.problems += [f"--report {args.report}: {problem}"] if problem else []
    if args.log == "":
        checks.problems.append("--log: empty; expected a directory")
    if importlib.util.find_spec("paddle") is None:
        checks.problems.append(NO_PADDLE)
    checks.done()


def _check_master(args: argparse.Namespace, checks: Checks) -> None:
    """Add a problem if ``--master`` is a host name, for which the launcher would wait for ever.

    It compares the text with the node's IP address, to know which node serves the others
    (paddle/distributed/launch/controllers/master.py).
    """
    master = args.launcher_master
    if master is None or "://" in master or args.launcher_nnodes in (None, "1"):
        return
    host = master.partition(":")[0]
    if not re.fullmatch(r"[0-9.]+", host):
        checks.problems.append(
            f"--master {master}: a host name, for which Paddle's launcher waits for ever; "
            f"expected an IP address: see getent ahostsv4 {host}"
        )


def _check_program(program: Sequence[str], checks: Checks) -> None:
    """Add a problem unless it is a script and its arguments, or ``-m``, a module and its arguments."""
    if not program:
        checks.problems.append("expected a script and its arguments, or -m and a module")
    elif program == ["-m"]:
        checks.problems.append("-m: expected a module and its arguments")
    elif program[0] != "-m" and not Path(program[0]).is_file():
        checks.problems.append(f"{program[0]}: no such file; expected a Python script")


def run(args: argparse.Namespace) -> int:
    """Replace this process by the script, or by the launcher, which starts the script on each rank."""
    command = [str(_PROGRAM), *_recorder_options(args), "--", *args.program]
    if launcher := _launcher_options(args):
        command = ["-m", "paddle.distributed.launch", *launcher, *command]
    else:
        # As this interpreter was started: -W, -X, -O; -u is not among these.
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        is_unbuffered = getattr(sys.stdout, "write_through", False)
        command = [*flags, *(["-u"] if is_unbuffered else []), *command]
    command.insert(0, sys.executable)
    if os.name != "posix":
        return subprocess.run(command, check=False).returncode
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command)
    raise AssertionError("the process was not replaced")


def _launcher_options(args: argparse.Namespace) -> list[str]:
    """Return the arguments of ``paddle.distributed.launch``; without any, it is not needed."""
    words = [
        word
        for name in LAUNCHER_OPTIONS
        if (value := getattr(args, f"launcher_{name}")) is not None
        for word in (f"--{name}", value)
    ]
    return words if args.nproc is None else [*words, "--nproc_per_node", str(args.nproc)]


def _recorder_options(args: argparse.Namespace) -> list[str]:
    """Return the arguments of `ppprof.integrations.launched`, ahead of the program."""
    blocks = ["enable=True"]
    own = [text.removeprefix("Profiler.") for text in args.override]
    keys = {re.split("[.=]", text, maxsplit=1)[0].strip() for text in own}
    has_steps = args.steps is not None or not keys.isdisjoint(_STEPS)
    values = {
        name.strip(): value.strip().lower() for name, _, value in (t.partition("=") for t in own)
    }
    only_times = args.timer_only or values.get("timer_only") in ("true", "yes", "on")
    if not (args.config or only_times or has_steps):
        blocks += _SETTLED
    if args.tables:
        blocks += ["brief=False", "detailed=True"]
    elif not (args.config or only_times) and keys.isdisjoint(_TABLES):
        blocks.append("brief=True")
    if args.steps is not None:
        blocks.append(f"scheduler=[{args.steps.start}, {args.steps.stop}]")
    blocks += ["timer_only=True"] if args.timer_only else []
    blocks += [f"profiler_log={args.log!r}"] if args.log is not None else []
    blocks += own
    options = [
        word
        for text in blocks
        for word in ("-o", text if text.startswith("Global.") else f"Profiler.{text}")
    ]
    options += ["-c", args.config] if args.config is not None else []
    options += ["--report", str(args.report.absolute())] if args.report is not None else []
    options += ["--optimizer", str(args.optimizer)] if args.optimizer is not None else []
    return options
