"""Two runs compared, as text, JSON and Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from ppprof.analysis.diff.diff import Diff
from ppprof.analysis.diff.gate import Outcome
from ppprof.analysis.diff.module_changes import UNKNOWN
from ppprof.analysis.diff.run_costs import KERNEL_VALUES, OPERATOR_VALUES
from ppprof.report.markdown import code
from ppprof.report.text.summary import TableOptions
from ppprof.report.text.table import Column, Line, Table

VIEWS = ("overview", "rank", "op", "kernel", "module")
"""The tables, in their order."""

_NAMES = {"ips": "ips (samples/s)", "tokens_per_s": "tokens/s"}
_TITLES = {"op": "Operators", "kernel": "Kernels"}
_WORDS = {"op": "operators", "kernel": "kernels", "module": "modules"}
_NOTE = """\
Per rank and step, means; the biggest change on top. Delta: experiment minus baseline, and in % of the
baseline. +-: standard error of the delta, from step to step. What changed by less than 5 of these, or by
less than 0.1% of a step, is left out. Self: without the operators it calls. GPU: kernels, copies and sets launched in it."""
_KERNEL_NOTE = """\
Per rank and step, means; the biggest change on top. Delta: experiment minus baseline, and in % of the
baseline. +-: standard error of the delta, from step to step. What changed by less than 5 of these, or by
less than 0.1% of a step, is left out."""
_MODULE_NOTE = """\
Per rank and step, means; modules in the order in which they begin, those of both runs side by side.
Time: of what launches onto a device the time there, else CPU time. Own: what lies in no module below.
+-: standard error of Delta Own (of the step: of Delta). Until: all Own from the beginning of the step to
the end of the module, in either run. (unknown): what of a step lies in no module."""


@dataclass(frozen=True)
class Shown:
    """What a reader wants to see of the tables."""

    views: Sequence[str] = VIEWS
    every: bool = False
    """Also what changed by less than the noise."""
    limit: int | None = 20
    """Rows of a table; None for all."""
    min_delta_ns: float | None = None
    """What changed by less is left out; None: by less than 0.1% of the baseline's step."""
    pattern: str | None = None
    """A regular expression that names have to match somewhere."""
    sort: str | None = None
    """One of the values of operators, ``cpu_total``; None: the self time in force."""


_LEAST_SHARE = 0.001


def tables(diff: Diff, shown: Shown) -> dict[str, pl.DataFrame]:
    """The tables of a comparison, with the rows that a reader wants to see, but for the limit."""
    if shown.min_delta_ns is None:
        step_ns = diff.baseline.steps["step_ns"].cast(pl.Float64).mean()
        least = 0.0 if shown.every or not isinstance(step_ns, float) else _LEAST_SHARE * step_ns
        shown = replace(shown, min_delta_ns=least)
    found: dict[str, pl.DataFrame] = {}
    if "overview" in shown.views:
        found["overview"] = diff.overview
    if "rank" in shown.views:
        found["rank"] = diff.ranks
    for view in ("op", "kernel"):
        if view in shown.views:
            by = _sorted_by(view, diff.clock, shown)
            table = diff.operators_by(by) if view == "op" else diff.kernels_by(by)
            found[view] = _chosen(table, by, shown)
    if "module" in shown.views:
        found["module"] = _branches(diff.modules, shown)
    return found


def _chosen(table: pl.DataFrame, by: str, shown: Shown) -> pl.DataFrame:
    delta = pl.col(f"delta_{by}").abs()
    values = [name for name in table.columns if name.startswith("delta_") and "_ratio_" not in name]
    changed = table.filter(pl.any_horizontal(pl.col(values) != 0))
    if not shown.every:
        # A changed number of calls is a change whatever the noise; so is what nothing is known of.
        changed = changed.filter(pl.col("is_clear").fill_null(True) | (pl.col("delta_calls") != 0))
    if shown.pattern:
        changed = changed.filter(pl.col("name").str.contains(shown.pattern))
    if shown.min_delta_ns and by != "calls":
        changed = changed.filter((delta >= shown.min_delta_ns) | (pl.col("status") != "both"))
    return changed


def _sorted_by(view: str, clock: str, shown: Shown) -> str:
    values = OPERATOR_VALUES if view == "op" else KERNEL_VALUES
    for value in values:
        if shown.sort is not None and value.removesuffix("_ns") == shown.sort:
            return value
    return f"{clock}_self_ns" if view == "op" else "gpu_total_ns"


def _branches(modules: pl.DataFrame, shown: Shown) -> pl.DataFrame:
    """Modules that changed themselves, and those that these lie in."""
    delta = pl.col("delta_self_ns").abs()
    is_chosen = (delta > 0) & (delta >= (shown.min_delta_ns or 0.0))
    if not shown.every:
        is_chosen &= pl.col("is_clear").fill_null(True) | (pl.col("status") != "both")
    if shown.pattern:
        is_chosen &= pl.col("name").str.contains(shown.pattern)
    chosen = modules.select(is_chosen.fill_null(False)).to_series().to_list()
    depths = modules["depth"].to_list()
    keep, wanted = [False] * len(depths), -1
    for at in range(len(depths) - 1, -1, -1):  # what lies in a module comes after it
        if chosen[at] or depths[at] < wanted:
            keep[at], wanted = True, depths[at]
    return modules.filter(pl.Series(keep, dtype=pl.Boolean))


def render_diff(
    diff: Diff, shown: Shown, layout: TableOptions, outcomes: Sequence[Outcome] = ()
) -> str:
    """All of it as text."""
    found = tables(diff, shown)
    parts = [headline(diff)]
    for drawn in _drawn(diff, found, shown, layout):
        parts.append(str(drawn) if isinstance(drawn, Table) else f"{drawn}\n\n")
    parts += [f"{outcome}\n" for outcome in outcomes]
    return "".join(parts)


def _drawn(
    diff: Diff, found: Mapping[str, pl.DataFrame], shown: Shown, layout: TableOptions
) -> Iterator[Table | str]:
    """Each table or, where there is nothing in it to show, a line that says so."""
    if "overview" in found and found["overview"].height:
        yield _overview(diff, found["overview"], layout)
    if "rank" in found and (found["rank"].height > 1 or tuple(shown.views) == ("rank",)):
        yield _ranks(found["rank"], shown, layout)
    for view in ("op", "kernel"):
        whole = (diff.operators if view == "op" else diff.kernels).height
        if view not in found or not whole:
            continue
        if found[view].height:
            yield _by_name(found[view], view, diff, shown, layout)
        else:
            yield f"{_TITLES[view]}: {_none(whole, shown)}"
    modules = diff.modules.filter((pl.col("depth") > 0) & (pl.col("name") != UNKNOWN)).height
    if "module" in found and modules:
        if found["module"].height:
            yield _modules(found["module"], shown, layout)
        else:
            yield f"Modules: {_none(modules, shown)}"


def _none(num: int, shown: Shown) -> str:
    matching = f" that match {shown.pattern!r}" if shown.pattern else ""
    least = f"{shown.min_delta_ns:,.0f} ns" if shown.min_delta_ns else "0.1% of a step"
    known = ["the noise"] * (not shown.every) + [least] * (
        not shown.every or bool(shown.min_delta_ns)
    )
    by_more = f" by more than {' and '.join(known)}" if known else ""
    return f"none of {num}{matching} changed{by_more}."


def headline(diff: Diff) -> str:
    """What was compared, what came of it, and what else differs between the two."""
    one, other = diff.baseline.what, diff.experiment.what
    change = diff.change
    lines = [f"baseline    {one}", f"experiment  {other}", "", f"Step time: {change}"]
    if change.ratio is not None:
        steps = [
            f"{number} steps {words}"
            for number, (_, words) in zip(
                (change.baseline_steps, change.experiment_steps), diff.step_times
            )
        ]
        lines[-1] += f"; {steps[0]} against {steps[1]}"
    found = diff.comparability
    if found.shares:
        alike = ", ".join(f"{kind} {share:.0%}" for kind, share in found.shares.items())
        lines.append(f"Alike: {found.score:.0%} ({alike})")
    lines += [f"  {difference}" for difference in found.differences[:_MOST_DIFFERENCES]]
    hidden = len(found.differences) - _MOST_DIFFERENCES
    if hidden > 0:
        lines.append(f"  and {hidden} more")
    return "\n".join([*lines, "", ""])


_MOST_DIFFERENCES = 12


_OVERVIEW_NOTE = """\
Step time, ips and tokens/s: of steps {words}. Computation to rest: of recorded steps, which they add up to;
transfers between pipeline stages count as bubble here. ips and tokens/s: of the job, all its replicas."""


def _overview(diff: Diff, table: pl.DataFrame, layout: TableOptions) -> Table:
    lines: list[Line] = []
    for row in table.rows(named=True):
        name = _NAMES.get(row["metric"], row["metric"].replace("_", " "))
        if row["unit"] == "text":
            lines.append([name, row["baseline_text"] or "-", row["experiment_text"] or "-", "", ""])
            continue
        if row["baseline"] == row["experiment"] == 0:
            continue
        cells = [
            "-" if value is None else _value(value, row["unit"], layout)
            for value in (row["baseline"], row["experiment"])
        ]
        delta = row["delta"]
        cells.append("-" if delta is None else _signed(delta, row["unit"], layout))
        lines.append([name, *cells, _percent(row["delta_ratio"])])
    columns = [
        Column(header, 10, grows=True)
        for header in ("Metric", "Baseline", "Experiment", "Delta", "Delta (%)")
    ]
    words = " and ".join(dict.fromkeys(words for _, words in diff.step_times))
    note = _OVERVIEW_NOTE.format(words=words) if diff.baseline.steps.height else ""
    return Table("Overview", columns, lines, layout.time_unit, note=note)


_RANK_NOTE = """\
Means over recorded steps; ranks that stand in the same place, whose own part of a step changed most on
top. Own: the step without exposed communication and bubble, in which a rank waits for nobody.
+-: standard error of Delta Own."""


def _ranks(table: pl.DataFrame, shown: Shown, layout: TableOptions) -> Table:
    rows = table.rows(named=True)
    kept = rows if shown.limit is None else rows[: shown.limit]
    lines: list[Line] = []
    for row in kept:
        numbers = [row["baseline_rank"], row["experiment_rank"]]
        pair = " -> ".join("-" if at is None else str(at) for at in dict.fromkeys(numbers))
        lines.append(
            [
                pair,
                row["coordinate"] or "-",
                *(layout.time(row[f"{of}_step_ns"]) for of in ("baseline", "experiment")),
                _signed(row["delta_step_ns"], "ns", layout),
                _percent(row["delta_ratio_step"]),
                _signed(row["delta_own_ns"], "ns", layout),
                _time(row["noise_own_ns"], layout),
                *(
                    _signed(row[f"delta_{part}_ns"], "ns", layout)
                    for part in ("computation", "exposed", "bubble")
                ),
            ]
        )
    if len(rows) > len(kept):
        lines.append(f"{len(rows) - len(kept)} more ranks: --limit")
    headers = [
        "Rank",
        "Coordinate",
        "Step: Baseline",
        "Experiment",
        "Delta",
        "Delta (%)",
        "Delta Own",
        "+-",
        "Delta Computation",
        "Delta Exposed",
        "Delta Bubble",
    ]
    columns = [Column(header, max(6, len(header)), grows=True) for header in headers]
    return Table("Ranks", columns, lines, layout.time_unit, note=_RANK_NOTE)


def _value(value: float, unit: str, layout: TableOptions) -> str:
    if unit == "ns":
        return layout.time(value)
    if unit == "ratio":
        return f"{value:.2%}"
    if unit == "bytes":
        return _bytes(value)
    return f"{value:g}" if unit == "calls" else f"{value:,.2f}"


def _signed(value: float, unit: str, layout: TableOptions) -> str:
    """A difference; of ratios in percentage points.

    >>> _signed(-0.13, "ratio", TableOptions()), _signed(2e8, "bytes", TableOptions())
    ('-13.00 points', '+200.00 MB')
    """
    if unit == "ratio":
        return f"{100 * value:+.2f} points"
    text = _value(abs(value), unit, layout)
    return f"{'-' if value < 0 else '+'}{text}"


def _bytes(value: float) -> str:
    """As the RFC has it, in powers of 1000.

    >>> _bytes(1.5e9), _bytes(2.5e6), _bytes(12)
    ('1.50 GB', '2.50 MB', '12 B')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:.0f} B"


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:+.2f}"


def _by_name(
    table: pl.DataFrame, view: str, diff: Diff, shown: Shown, layout: TableOptions
) -> Table:
    values = OPERATOR_VALUES if view == "op" else KERNEL_VALUES
    by = _sorted_by(view, diff.clock, shown)
    others = [
        value
        for value in values
        if value not in (by, "calls")
        and (table[f"baseline_{value}"] != 0).any() | (table[f"experiment_{value}"] != 0).any()
    ]
    rows = table.rows(named=True)
    kept = rows if shown.limit is None else rows[: shown.limit]
    lines: list[Line] = []
    unit = "calls" if by == "calls" else "ns"
    for row in kept:
        noise = row[f"noise_{by}"]
        times = [
            _value(row[f"baseline_{by}"], unit, layout),
            _value(row[f"experiment_{by}"], unit, layout),
            _signed(row[f"delta_{by}"], unit, layout),
            _percent(row[f"delta_ratio_{by.removesuffix('_ns')}"]),
            "-" if noise is None else _value(noise, unit, layout),
        ]
        name = _named(row["name"], row["status"])
        calls = _pair(row["baseline_calls"], row["experiment_calls"], lambda calls: f"{calls:g}")
        pairs = [
            _pair(row[f"baseline_{value}"], row[f"experiment_{value}"], layout.time)
            for value in others
        ]
        lines.append([name, *times, calls, *pairs])
    if len(rows) > len(kept):
        lines.append(f"{len(rows) - len(kept)} more {_WORDS[view]}: --limit")
    headers = [
        "Name",
        f"{_title(by)}: Baseline",
        "Experiment",
        "Delta",
        "Delta (%)",
        "+-",
        "Calls",
        *map(_title, others),
    ]
    columns = [Column(header, max(6, len(header)), grows=True) for header in headers]
    note = _NOTE if view == "op" else _KERNEL_NOTE
    return Table(_TITLES[view], columns, lines, layout.time_unit, note=note)


def _named(name: str, status: str) -> str:
    """On one line, with its status where it is in one run only."""
    text = " ".join(name.split())
    return text if status == "both" else f"{text} ({status})"


def _pair(before: float, after: float, text: Any) -> str:
    one, other = text(before), text(after)
    return one if one == other else f"{one} -> {other}"


def _title(value: str) -> str:
    """``cpu_self_ns`` to ``CPU Self``.

    >>> _title("gpu_total_ns")
    'GPU Total'
    """
    clock, _, kind = value.removesuffix("_ns").partition("_")
    return f"{clock.upper()} {kind.capitalize()}"


def _modules(table: pl.DataFrame, shown: Shown, layout: TableOptions) -> Table:
    stages = table["stage"].n_unique() > 1
    rows = table.rows(named=True)
    kept = rows if shown.limit is None else _largest(rows, shown.limit)
    lines: list[Line] = []
    for row in kept:
        name = f"{'  ' * row['depth']}{_named(row['name'], row['status'])}"
        if row["depth"] == 0 and stages:
            name = f"{name} (stage {row['stage']})"
        times = [_time(row[f"{of}_time_ns"], layout) for of in ("baseline", "experiment")]
        own = row["delta_self_ns"]
        lines.append(
            [
                name,
                *times,
                _signed(row["delta_time_ns"] or 0.0, "ns", layout),
                _percent(row["delta_ratio"]),
                _signed(own or 0.0, "ns", layout),
                _time(row["noise_self_ns" if row["depth"] else "noise_time_ns"], layout),
                *(_time(row[f"{of}_until_ns"], layout) for of in ("baseline", "experiment")),
            ]
        )
    if len(rows) > len(kept):
        lines.append(f"{len(rows) - len(kept)} more modules: --limit")
    headers = [
        "Module",
        "Baseline",
        "Experiment",
        "Delta",
        "Delta (%)",
        "Delta Own",
        "+-",
        "Baseline Until",
        "Experiment Until",
    ]
    columns = [Column(header, max(6, len(header)), grows=True) for header in headers]
    return Table("Modules", columns, lines, layout.time_unit, note=_MODULE_NOTE)


def _largest(rows: Sequence[Mapping[str, Any]], limit: int) -> list[Mapping[str, Any]]:
    """The rows that changed most themselves, with those that they lie in."""
    order = sorted(range(len(rows)), key=lambda at: -abs(rows[at]["delta_self_ns"] or 0.0))
    keep: set[int] = set()
    for at in order[:limit]:
        depth = rows[at]["depth"] + 1
        for above in range(at, -1, -1):
            if rows[above]["depth"] < depth:
                keep.add(above)
                depth = rows[above]["depth"]
            if not depth:
                break
    return [row for at, row in enumerate(rows) if at in keep]


def _time(value: float | None, layout: TableOptions) -> str:
    return "-" if value is None else layout.time(value)


SCHEMA_VERSION = 1
"""Of `as_data`; goes up when a reader of the older form would misread it."""


def as_data(diff: Diff, shown: Shown, outcomes: Sequence[Outcome] = ()) -> dict[str, Any]:
    """All of it as what JSON can hold: times in nanoseconds, ratios from 0 to 1 and beyond."""
    change, alike = diff.change, diff.comparability
    return {
        "schema_version": SCHEMA_VERSION,
        "baseline": diff.baseline.what,
        "experiment": diff.experiment.what,
        "step_time": {
            "verdict": change.verdict,
            "ratio": change.ratio,
            "low": change.low,
            "high": change.high,
            "baseline_steps": change.baseline_steps,
            "experiment_steps": change.experiment_steps,
            "steps_are": [words for _, words in diff.step_times],
        },
        "comparability": {
            "score": alike.score,
            "shares": dict(alike.shares),
            "differences": list(alike.differences),
        },
        "rules": [outcome._asdict() for outcome in outcomes],
        "tables": {view: table.rows(named=True) for view, table in tables(diff, shown).items()},
    }


def as_markdown(
    diff: Diff, shown: Shown, layout: TableOptions, outcomes: Sequence[Outcome] = ()
) -> str:
    """For a comment on a pull request: the verdict, what rules say, and the tables."""
    lines = [f"**Step time: {diff.change}**"]
    lines += [""] if outcomes or diff.comparability.differences else []
    lines += [f"- {outcome}" for outcome in outcomes]
    lines += [f"- {difference}" for difference in diff.comparability.differences]
    for drawn in _drawn(diff, tables(diff, shown), shown, layout):
        lines += ["", _table(drawn) if isinstance(drawn, Table) else drawn]
    return "\n".join([*lines, ""])


def _table(grid: Table) -> str:
    from tabulate import tabulate

    rows = [[code(str(line[0])), *line[1:]] for line in grid.lines if not isinstance(line, str)]
    headers = [grid.title, *(column.header for column in grid.columns[1:])]
    text: str = tabulate(rows, headers, tablefmt="github", disable_numparse=True)
    more = [line for line in grid.lines if isinstance(line, str)]
    return "\n".join([text, "", *more, f"Times in {grid.unit}, per rank and step."])
