"""``ppprof predict``: the step time and memory of a configuration that was not run."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ppprof.choices import StepRange, check_time_unit
from ppprof.cli.options import (
    Checks,
    add_format,
    add_layout,
    add_paths,
    add_reading,
    whole_number,
)
from ppprof.cli.output import csv_or_markdown, problem_of_output
from ppprof.errors import InputError, UsageError
from ppprof.paths import read_bounded, to_path

if TYPE_CHECKING:
    from ppprof.analysis.predict.prediction import Row
    from ppprof.run.run import Run

EXAMPLES = {
    "ppprof predict profiler_log -o Distributed.pp_degree=4": "the step and memory with four stages",
    "ppprof predict micro_1 micro_2 -o Global.micro_batch_size=4": "from two runs, without a range",
    "ppprof predict micro_1 micro_2 --search --world-size 64 --memory 80GiB": "the ten best",
    "ppprof predict micro_1 micro_2 --history tuner_history.csv": "and what a tuner measured of them",
}
_TUNER, _MEMORY_TOOL = "paddle-tuner", "paddle-memory-tool"
_MOST_BYTES = 1 << 24
_UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Predicts the step time, bubble and memory of a pipeline training with another configuration, "
        "from the recorded times of RUN, beside the same prediction for the recorded configuration. A "
        "second run with another micro_batch_size separates fixed cost from cost for each sample."
    )
    add = parser.add_argument
    add_paths(parser, "one or two run directories, with a window on all ranks")
    add(
        "-o",
        "--override",
        action="append",
        default=[],
        metavar="K=V",
        help="change a key, such as Distributed.pp_degree=4; may be given again",
    )
    add("--search", action="store_true", help="the ten best configurations of --world-size ranks")
    add("--world-size", metavar="N", help="number of ranks, with --search")
    add("--memory", metavar="SIZE", help="of a device, such as 80GiB, with --search")
    add(
        "--to",
        nargs=2,
        metavar=("WHAT", "FILE"),
        help=f"write FILE for Paddle's auto-tuner, too; WHAT is {_TUNER}: its configs_csv, with --search; "
        f"{_MEMORY_TOOL}: its memory_estimation_tool",
    )
    add(
        "--history",
        metavar="FILE",
        help="history CSV of Paddle's auto-tuner: its configurations, predicted beside measured",
    )
    add("--force", action="store_true", help="replace FILE of --to where it exists")
    add("--steps", metavar="A:B", help="only steps A to B-1; also A:, :B or one number")
    add("--time-unit", metavar="UNIT", help="s, ms, us or ns, of tables; default: ms")
    add_format(parser, "json, csv and md are in nanoseconds; csv and md hold the first table")
    add_layout(parser)
    add_reading(parser)


def check(args: argparse.Namespace) -> None:
    """Replace the texts of options by their values, or raise UsageError."""
    checks = Checks(args)
    checks.parse("world_size", partial(whole_number, least=1))
    checks.parse("memory", _size)
    checks.parse("steps", StepRange.parse)
    checks.parse("time_unit", check_time_unit, "ms")
    checks.workers()
    checks.layout()
    if len(args.paths) > 2:
        checks.problems.append(f"RUN: {len(args.paths)} runs; expected one or two")
    if args.search:
        if args.override:
            checks.problems.append("-o: has no effect with --search, which tries configurations")
        if args.world_size is None:
            checks.problems.append("--search: expected --world-size N")
    else:
        checks.no_effect(["world_size", "memory"], "without --search")
    if args.history and (args.override or args.search):
        checks.problems.append("--history: has no effect with -o and --search")
    if args.to:
        what, file = args.to
        if what not in (_TUNER, _MEMORY_TOOL):
            checks.problems.append(f"--to {what}: expected {_TUNER} or {_MEMORY_TOOL}")
        elif what == _TUNER and not args.search:
            checks.problems.append(f"--to {what}: has no effect without --search")
        elif problem := problem_of_output(to_path(file), args.paths, args.force, replaces=False):
            checks.problems.append(f"--to {what} {file}: {problem}")
    elif args.force:
        checks.problems.append("--force: has no effect without --to")
    checks.done()


def _size(text: str) -> float:
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?) ?(MiB|GiB)", text.strip())
    if match is None:
        raise UsageError(f"{text!r}: expected a size with its unit: 80GiB, 512MiB")
    return float(match[1]) * _UNITS[match[2]]


def run(args: argparse.Namespace) -> int:
    """Print the prediction; return 0."""
    from ppprof.cli import executors
    from ppprof.cli.runs import open_run
    from ppprof.run import predict
    from ppprof.run.memory_tool import memory_tool

    runs = [open_run(path) for path in args.paths]
    num = sum(len(each.recordings) for each in runs)
    with executors.processes(args.workers, num) as executor:
        measured = [predict.measured_of(each, steps=args.steps, executor=executor) for each in runs]
    base = predict.base_of(runs, measured)
    if args.history:
        tables = predict.history(base, _text_in(args.history))
    elif args.search:
        tables = predict.search(base, args.world_size, args.memory)
    else:
        tables = predict.prediction(base, args.override)
    if args.to:
        what, file = args.to
        text = predict.tuner_csv(tables["search"]) if what == _TUNER else memory_tool(runs[0])
        to_path(file).write_text(text, encoding="utf-8")
    print(_text_of(args, runs, tables), end="")
    return 0


def _text_in(file: str) -> str:
    try:
        return read_bounded(to_path(file), _MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: {getattr(error, 'strerror', None) or error}") from error


def _text_of(args: argparse.Namespace, runs: Sequence[Run], tables: Mapping[str, list[Row]]) -> str:
    import polars as pl

    from ppprof.rundir.summaries import document, dumps

    if args.format == "json":
        return f"{dumps(document(tables, runs=[str(each.path) for each in runs]))}\n"
    if args.format != "table":
        return csv_or_markdown(pl.DataFrame(next(iter(tables.values()))), args.format)
    from ppprof.report.text.predict import render_predictions
    from ppprof.report.text.summary import TableOptions

    return render_predictions(tables, TableOptions(args.time_unit, layout=args.layout))
