"""The comparison of two runs as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import polars as pl

from ppprof.analysis.diff.diff import LEAST_CHANGE, Diff, work_change
from ppprof.analysis.diff.gate import Outcome, RateChange, rate_changes
from ppprof.analysis.diff.line_change import line_change
from ppprof.analysis.diff.run_costs import VALUES
from ppprof.analysis.profile.module_tree import UNKNOWN
from ppprof.messages import Counted
from ppprof.report.columns import TEXT, Column, Row, painted
from ppprof.report.diff_rows import (
    KINDS,
    MORE_IS_BETTER,
    RowSelection,
    is_clear_in_overview,
    num_left_out,
    select_rows,
    sort_key,
)
from ppprof.report.text.layout import Layout
from ppprof.report.text.summary import TableOptions
from ppprof.report.text.table import Line, Table, columns_for
from ppprof.units import escape_cell, format_more, format_time, short_names

_METRIC_NAMES = {"ips": "ips (samples/s)", "tokens_per_s": "tokens/s"}
_NOUNS = {view: kind.replace("_", " ") for view, kind in KINDS.items()}
_TITLES = {view: noun.capitalize() for view, noun in _NOUNS.items()}

_OVERVIEW_NOTE = """\
Step time, ips and tokens/s: of steps that were {words}. Computation to rest: of all recorded steps, slow
ones, too; they add up to one. Bubble includes transfers between pipeline stages here. ips and tokens/s: of the job, all replicas together."""

_RANK_NOTE = """\
Means over recorded steps. Each row is a pair of ranks at the same place of the topology; the largest change of
own time first. Own: the step without exposed communication and bubble, in which a rank waits for others.
+-: standard error of Delta Own."""

_NOTE = """\
Means per rank and step; the largest change first. Delta: experiment minus baseline, also in % of the
baseline. +-: standard error of the delta over steps."""

_NOTES = {
    "line": """
Time: by samples of Python stacks, of the line without the lines that it calls; waits for data belong to the line
that reads it, gradients to the line that called their operator if both runs know it. 7 -> 9: its number has
changed.""",
    "op": " Self: without the operators it calls. GPU: kernels, copies and memsets that it launched.",
    "kernel": "",
    "dist": """
Total: time of the kernels; without device events, of the calls on the host. It includes waiting for other ranks.""",
    "runtime": "",
    "shape": " Time: of the device, or of the CPU without one. Equal shapes are equal work in each call.",
}
"""The end of a table's note, keyed by view."""

_MODULE_NOTE = """\
Means per rank and step; modules of both runs side by side, in the order in which they begin.
Time: GPU time of modules that launch work on a device, CPU time of the others. Own: without the modules below.
+-: standard error of Delta Own (for the step: of Delta). Until: the sum of Own from the beginning of the step
to the end of the module, per run. (unknown): time of the step between its modules, at its place."""

_MAX_DIFFERENCES = 12


def render_diff(
    diff: Diff, selection: RowSelection, options: TableOptions, outcomes: Sequence[Outcome] = ()
) -> str:
    """Return a comparison as text: headline, tables and the outcomes of ``--fail-if``.

    The row limit is ``selection.limit``.
    """
    parts = [_painted_verdict(headline(diff), diff, options.layout)]
    for block in diff_blocks(diff, selection, options):
        parts.append(options.layout.table(block) if isinstance(block, Table) else f"{block}\n\n")
    parts += [
        f"{options.layout.paint(str(outcome), _MEANINGS[outcome.status])}\n" for outcome in outcomes
    ]
    return "".join(parts)


_MEANINGS = {
    **{"faster": "good", "slower": "bad"},
    **{"pass": "good", "fail": "bad", "inconclusive": "warning"},
}
"""How a terminal shows verdicts and outcomes of ``--fail-if``."""


def _painted_verdict(text: str, diff: Diff, layout: Layout) -> str:
    """Return the headline with the line of the verdict in its colour."""
    lines = [
        layout.paint(
            line, _MEANINGS.get(diff.change.verdict) if line.startswith("Step time:") else None
        )
        for line in text.split("\n")
    ]
    return "\n".join(lines)


def diff_blocks(
    diff: Diff, selection: RowSelection, options: TableOptions
) -> Iterator[Table | str]:
    """Yield each selected table; for a table without changed rows, yield a sentence instead.

    Tables without any data are left out. So is the table of ranks if it has a single row, unless it
    is the only selected table.
    """
    tables = select_rows(diff, selection)
    if "overview" in tables and tables["overview"].height:
        yield _overview(diff, tables["overview"], options)
    if "rank" in tables and (tables["rank"].height > 1 or tuple(selection.views) == ("rank",)):
        yield _ranks(tables["rank"], selection, options)
    for view, kind in KINDS.items():
        total = getattr(diff, kind).height
        if view not in tables or not total:
            continue
        if tables[view].height:
            yield _by_name(tables[view], view, diff, selection, options)
        else:
            yield f"{_TITLES[view]}: {_unchanged(total, selection)}"
    num_modules = diff.modules.filter((pl.col("depth") > 0) & (pl.col("name") != UNKNOWN)).height
    if "module" in tables and num_modules:
        if tables["module"].height:
            yield _modules(tables["module"], diff, selection, options)
        else:
            yield f"Modules: {_unchanged(num_modules, selection)}"


def _unchanged(num: int, selection: RowSelection) -> str:
    """Return "none of 12 changed by more than the noise and 0.1% of a step." or a similar sentence."""
    matching = f" that match {selection.pattern!r}" if selection.pattern else ""
    limits = _limits(selection)
    by_more = f" by more than {' and '.join(limits)}" if limits else ""
    return f"none of {num}{matching} changed{by_more}."


def _left_out(diff: Diff, view: str, shown: pl.DataFrame, selection: RowSelection) -> str:
    """Return a line break and "12 more kernels changed, by less than ...", or "" for none."""
    num = num_left_out(diff, view, shown, selection)
    if not num:
        return ""
    more = format_more(num, _NOUNS.get(view, "modules"))
    verb = "is" if num == 1 else "are"
    matching = f" that match {selection.pattern!r}" if selection.pattern else ""
    limits = " or ".join(_limits(selection))
    return f"\n{more}{matching} changed, by less than {limits}, and {verb} left out."


def _limits(selection: RowSelection) -> list[str]:
    """Return the limits that a change has to exceed to be shown: "the noise", "0.1% of a step"."""
    limits = [] if selection.include_noise else ["the noise"]
    if selection.min_delta_ns is not None:
        return [*limits, *[f"{selection.min_delta_ns:,.0f} ns"] * (selection.min_delta_ns > 0)]
    return [*limits, *["0.1% of a step"] * (not selection.include_noise)]


def headline(diff: Diff) -> str:
    """Return the lines above the tables, as one text that ends in an empty line.

    These are both runs' names, the `sentences`, and at most `_MAX_DIFFERENCES` differences in their
    config, versions, topology and framework.
    """
    differences = diff.comparability.differences
    lines = [
        f"baseline    {escape_cell(diff.baseline.what)}",
        f"experiment  {escape_cell(diff.experiment.what)}",
        "",
        *sentences(diff),
        *(f"  {difference}" for difference in differences[:_MAX_DIFFERENCES]),
    ]
    hidden = len(differences) - _MAX_DIFFERENCES
    if hidden > 0:
        lines.append(f"  and {hidden} more")
    return "\n".join([*lines, "", ""])


def sentences(diff: Diff) -> list[str]:
    """Return what the comparison says above its tables; the first one is the verdict on step time."""
    change = diff.change
    lines = [f"Step time: {change}"]
    if change.ratio is not None:
        baseline, experiment = (
            f"{Counted(number):step|steps} ({words})"
            for number, (_, words) in zip(
                (change.baseline_steps, change.experiment_steps), diff.samples
            )
        )
        lines[-1] += f"; {baseline} against {experiment}"
    lines += map(_rate_sentence, rate_changes(diff))
    if side := diff.unrecorded_side:
        lines.append(f"Only step times are compared: the {side} has recorded no step.")
    comparability = diff.comparability
    if comparability.shares:
        shares = ", ".join(f"{kind} {share:.0%}" for kind, share in comparability.shares.items())
        lines.append(f"Alike: {comparability.score:.0%} ({shares})")
    return [*lines, *_line_sentence(diff), *work_sentences(diff)]


def _rate_sentence(rate: RateChange) -> str:
    noun = {"ips": "samples", "tokens_per_s": "tokens"}[rate.metric]
    more = "more" if rate.count_ratio > 0 else "fewer"
    interval = ""
    if rate.low is not None and rate.high is not None:
        interval = f" (95% interval {rate.low:+.1%} to {rate.high:+.1%})"
    than = f"a step has {abs(rate.count_ratio):.1%} {more} {noun}"
    return f"{noun.capitalize()}/s: {rate.verdict}: {rate.ratio:+.1%}{interval}; {than}"


def _line_sentence(diff: Diff) -> list[str]:
    """Return the line that made the step longer, or shorter, if there is one."""
    change = line_change(diff)
    if change is None:
        return []
    how = "more" if change.delta_ns > 0 else "less"
    name = _name(change.name, change.status)
    on_rank = "" if change.rank is None else f" on rank {change.rank}"
    return [f"Line: {format_time(abs(change.delta_ns))} a step {how}{on_rank} in {name}"]


def work_sentences(diff: Diff) -> list[str]:
    """Return what the comparison says about the work of the operators, in up to three sentences."""
    change = work_change(diff)
    sentences = []
    if change.flops_ratio is not None and abs(change.flops_ratio) >= LEAST_CHANGE:
        more = "more" if change.flops_ratio > 0 else "fewer"
        sentence = f"Work: {abs(change.flops_ratio):.1%} {more} FLOPs per step"
        if change.dims is not None:
            sentence += "; {} became {} in the inputs of {} operators".format(*change.dims)
        sentences.append(sentence)
    if change.dtypes is not None:
        sentences.append(
            "Dtype: most FLOPs are computed in {1}, before in {0}".format(*change.dtypes)
        )
    if change.slower is not None:
        name, ratio = change.slower
        how = "slower" if ratio > 0 else "faster"
        sentences.append(f"Efficiency: {name} is {abs(ratio):.1%} {how} at equal work")
    return sentences


def _overview(diff: Diff, table: pl.DataFrame, options: TableOptions) -> Table:
    lines: list[Line] = []
    for row in table.rows(named=True):
        name = _METRIC_NAMES.get(row["metric"], row["metric"].replace("_", " "))
        if row["unit"] == "text":
            lines.append([name, row["baseline_text"] or "-", row["experiment_text"] or "-", "", ""])
            continue
        if row["baseline"] == row["experiment"] == 0:
            continue
        cells = [
            "-" if value is None else _value(value, row["unit"], options)
            for value in (row["baseline"], row["experiment"])
        ]
        delta, is_better = row["delta"], row["metric"] in MORE_IS_BETTER
        cells.append("-" if delta is None else _signed(delta, row["unit"], options, is_better))
        cells.append(_percent(row["delta_ratio"], is_better))
        is_clear = is_clear_in_overview(diff, row["metric"], delta)
        lines.append([name, *(cells if is_clear else map(str, cells))])  # plain text has no colour
    headers = ("Metric", "Baseline", "Experiment", "Delta", "Delta (%)")
    columns = columns_for(headers, 10)
    words = " and ".join(dict.fromkeys(words for _, words in diff.samples))
    note = _OVERVIEW_NOTE.format(words=words) if diff.baseline.steps.height else ""
    return Table("Overview", columns, lines, options.time_unit, note=note)


def _ranks(table: pl.DataFrame, selection: RowSelection, options: TableOptions) -> Table:
    rows = table.rows(named=True)
    shown = rows[: selection.limit]
    hidden = len(rows) - len(shown)
    rest = [f"{Counted(hidden):more rank|more ranks}: --row-limit"] if hidden else []
    return options.table("Ranks", _RANKS, shown, rest, note=_RANK_NOTE)


def _rank_numbers(row: Row) -> str:
    numbers = dict.fromkeys([row["baseline_rank"], row["experiment_rank"]])
    return " -> ".join("-" if rank is None else str(rank) for rank in numbers)


_RANKS = (
    Column(_rank_numbers, header="Rank"),
    Column("coordinate", header="Coordinate", text="word"),
    Column("baseline_step_ns", "ms", header="Step: Baseline"),
    Column("experiment_step_ns", "ms", header="Experiment"),
    Column("delta_step_ns", "ms", header="Delta", text="change"),
    Column("delta_ratio_step", "ratio", header="Delta (%)", text="change in %"),
    Column("delta_own_ns", "ms", header="Delta Own", text="change"),
    Column("noise_own_ns", "ms", header="+-"),
    Column("delta_computation_ns", "ms", header="Delta Computation", text="change"),
    Column("delta_exposed_ns", "ms", header="Delta Exposed", text="change"),
    Column("delta_bubble_ns", "ms", header="Delta Bubble", text="change"),
)


def _by_name(
    table: pl.DataFrame, view: str, diff: Diff, selection: RowSelection, options: TableOptions
) -> Table:
    values = VALUES[KINDS[view]]
    key = sort_key(diff, view, selection)
    pairs = [
        value
        for value in values
        if value == "calls"
        or (
            value != key
            and (table[f"baseline_{value}"] != 0).any() | (table[f"experiment_{value}"] != 0).any()
        )
    ]
    rows = table.rows(named=True)
    shown = rows[: selection.limit]
    hidden = len(rows) - len(shown)
    names = short_names(row["name"] for row in shown) if "calls" in values else {}
    kind, change = ("mean", "change of mean") if key == "calls" else ("ms", "change")
    columns = [
        Column(
            lambda row: _name(names.get(row["name"]) or row["name"], row["status"]), header="Name"
        ),
        Column(f"baseline_{key}", header=f"{_title(key)}: Baseline", text=kind),
        Column(f"experiment_{key}", header="Experiment", text=kind),
        Column(f"delta_{key}", header="Delta", text=change),
        Column(f"delta_ratio_{key.removesuffix('_ns')}", header="Delta (%)", text="change in %"),
        Column(f"noise_{key}", header="+-", text=kind),
        *(Column(partial(_pair, value, options), header=_title(value)) for value in pairs),
    ]
    rest = [f"{format_more(hidden, _NOUNS[view])}: --row-limit"] if hidden else []
    note = f"{_NOTE}{_NOTES[view]}{_left_out(diff, view, table, selection)}"
    return options.table(_TITLES[view], columns, shown, rest, note=note)


def _modules(
    table: pl.DataFrame, diff: Diff, selection: RowSelection, options: TableOptions
) -> Table:
    has_stages = table["stage"].n_unique() > 1
    rows = table.rows(named=True)
    shown = rows if selection.limit is None else _largest(rows, selection.limit)
    columns = [replace(_MODULES[0], source=partial(_module_name, has_stages)), *_MODULES[1:]]
    hidden = len(rows) - len(shown)
    rest = [f"{format_more(hidden, 'modules')}: --row-limit"] if hidden else []
    note = f"{_MODULE_NOTE}{_left_out(diff, 'module', table, selection)}"
    return options.table("Modules", columns, shown, rest, note=note)


def _module_name(has_stages: bool, row: Row) -> str:
    name = f"{'  ' * row['depth']}{_name(row['name'], row['status'])}"
    return f"{name} (stage {row['stage']})" if row["depth"] == 0 and has_stages else name


_MODULES = (
    Column("name", header="Module"),
    Column("baseline_time_ns", "ms", header="Baseline"),
    Column("experiment_time_ns", "ms", header="Experiment"),
    Column(lambda row: row["delta_time_ns"] or 0.0, "ms", header="Delta", text="change"),
    Column("delta_ratio", "ratio", header="Delta (%)", text="change in %"),
    Column(lambda row: row["delta_self_ns"] or 0.0, "ms", header="Delta Own", text="change"),
    Column(
        lambda row: row["noise_self_ns" if row["depth"] else "noise_time_ns"], "ms", header="+-"
    ),
    Column("baseline_until_ns", "ms", header="Baseline Until"),
    Column("experiment_until_ns", "ms", header="Experiment Until"),
)


def _largest(rows: Sequence[Mapping[str, Any]], limit: int) -> list[Mapping[str, Any]]:
    """Return the ``limit`` modules whose own time changed most, and those that contain them, in pre-order."""
    order = sorted(range(len(rows)), key=lambda row: -abs(rows[row]["delta_self_ns"] or 0.0))
    keep: set[int] = set()
    for row in order[:limit]:
        depth = rows[row]["depth"] + 1
        for ancestor in range(row, -1, -1):
            if rows[ancestor]["depth"] < depth:
                keep.add(ancestor)
                depth = rows[ancestor]["depth"]
            if not depth:
                break
    return [rows[row] for row in sorted(keep)]


def _value(value: float, unit: str, options: TableOptions) -> str:
    if unit == "ns":
        return options.time(value)
    if unit == "ratio":
        return f"{value:.2%}"
    if unit == "bytes":
        return _bytes(value)
    return f"{value:,.2f}"


def _signed(value: float, unit: str, options: TableOptions, more_is_better: bool = False) -> str:
    """Format a difference with its sign; a difference of ratios in percentage points.

    >>> _signed(-0.13, "ratio", TableOptions()), _signed(2e8, "bytes", TableOptions())
    ('-13.00 points', '+200.00 MB')
    """
    if unit == "ratio":
        return painted(f"{100 * value:+.2f} points", value, more_is_better)
    text = _value(abs(value), unit, options)
    return painted(f"{'-' if value < 0 else '+'}{text}", value, more_is_better)


def _bytes(value: float) -> str:
    """Format bytes in powers of 1000, as in the RFC's table (pytorch/kineto issue 342).

    >>> _bytes(1.5e9), _bytes(2.5e6), _bytes(12)
    ('1.50 GB', '2.50 MB', '12 B')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.0f} B"


def _percent(ratio: float | None, more_is_better: bool = False) -> str:
    return "-" if ratio is None else painted(f"{100 * ratio:+.2f}", ratio, more_is_better)


def _name(name: str, status: str) -> str:
    """Return a name with line breaks as blanks, followed by its status unless that is "both".

    The status is "new" if only the experiment has the name, "gone" if only the baseline has it.

    >>> _name("relu", "both"), _name("gelu", "new")
    ('relu', 'gelu (new)')
    """
    text = " ".join(name.split())
    return text if status == "both" else f"{text} ({status})"


def _pair(value: str, options: TableOptions, row: Row) -> str:
    """Return what a row has in both runs: calls, a time, or a number of FLOPs such as ``4.12e+11``."""
    kind = "mean" if value == "calls" else "ms" if value.endswith("_ns") else "number"
    before, after = (
        TEXT[kind](row[f"{side}_{value}"], options.time) for side in ("baseline", "experiment")
    )
    return before if before == after else f"{before} -> {after}"


def _title(value: str) -> str:
    """Return the header of a column of times: clock and kind, without the unit.

    >>> _title("gpu_total_ns"), _title("calls")
    ('GPU Total', 'Calls')
    """
    clock, _, kind = value.removesuffix("_ns").partition("_")
    return f"{clock.upper()} {kind.capitalize()}" if kind else clock.capitalize()
