"""Which ranks and links of a run without a window are slow, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import polars as pl

from ppprof.analysis.ranks.unrecorded import LEAST_STEPS, notes_communication
from ppprof.messages import Counted
from ppprof.report.text.summary import TableOptions
from ppprof.slow_ranks import LEAST_RATIO
from ppprof.units import format_more, format_ranges

_TIMES = {"step": "step_ns", "wait": "communication_ns", "data": "reader_ns", "own": "own_ns"}
"""Headers, and columns of times."""
_WIDTH = 10
"""Least width of a column."""


def render_unrecorded(
    name: str,
    table: pl.DataFrame,
    links: pl.DataFrame,
    roles: Mapping[int, str],
    options: TableOptions,
    selected: Collection[int] | None = None,
) -> str:
    """Return the ranks of a run without a window, its slow links, and a verdict on both.

    Args:
        name: of the run.
        table: the result of `ppprof.run.ranks.ranks_without_window`.
        links: the result of `ppprof.run.ranks.links_without_window`.
        roles: the result of `ppprof.run.ranks.roles_without_window`: the kind of work of each rank of the job.
        options: how to print tables.
        selected: the ranks to show; None for all.
    """
    if selected is None:
        selected = roles
    is_noted = table.height < 2 or notes_communication(table)
    shown = table.filter(pl.col("rank").is_in(list(selected)))
    num_steps = Counted(shown["num_steps"].max() or 0)
    slow = shown.filter("is_slow")["rank"]
    maybe = shown.filter(pl.col("excess_ns") > LEAST_RATIO * pl.col("own_ns"))["rank"]
    named = slow if len(slow) else maybe
    lines = [
        f"{name}: no window; by the times of {num_steps:step|steps}, medians in {options.time_unit}:",
        *_rows(shown, roles, named, options, is_noted=is_noted),
    ]
    if missing := sorted({*selected} - {*shown["rank"]}):
        ranks = format_ranges("rank", missing)
        lines.append(f"Unknown: {ranks}: no step times on the host with their communication.")
    slow_links = links.filter("is_slow")
    lines += ["", *_links(slow_links, options)]
    are_links_known = links["siblings"].sum() > 0
    if not are_links_known:
        lines.append(
            "Links: unknown; no two groups side by side with three steps of last operations."
        )
    if len(slow) or slow_links.height:
        slow_ones = [format_ranges("rank", slow)] * (len(slow) > 0)
        slow_ones += [f"the link of ranks {members}" for members in slow_links["members"]]
        verdict = f"slow: {', '.join(slow_ones)}"
    elif not is_noted:
        verdict = (
            "unknown: next to no communication is noted (paddle.DataParallel communicates in C++), so a rank "
            "that waits for a slow one looks as busy"
        )
    else:
        verdict = _doubt(shown, maybe) or _all_clear(shown, roles, are_links_known=are_links_known)
    return "\n".join([*lines, f"Verdict: {verdict}.", ""])


def _rows(
    shown: pl.DataFrame,
    roles: Mapping[int, str],
    named: pl.Series,
    options: TableOptions,
    *,
    is_noted: bool,
) -> Iterator[str]:
    """Yield the header, and a line for each rank up to the row limit and for each one that the verdict names."""
    limit = shown.height if options.row_limit is None else options.row_limit
    is_named = pl.col("rank").is_in(named.to_list())
    listed = shown.filter((pl.int_range(pl.len()) < limit) | is_named)
    rows = [
        ([options.time(row[name]) for name in _TIMES.values()], row)
        for row in listed.iter_rows(named=True)
    ]
    width = max([_WIDTH, *(len(text) + 2 for texts, _ in rows for text in texts)])
    headers = "".join(f"{header:>{width}}" for header in _TIMES)
    yield f"{'rank':>6}{headers}  longer than its peers, 95% interval"
    num_of_role = Counter(roles.values())
    for texts, row in rows:
        has_peers = num_of_role[row["role"]] > 1
        why = "unknown" if not is_noted else "no step times of peers" if has_peers else "no peers"
        words = [why] if row["excess_ns"] is None else [_excess(row, options)]
        words += [f"({row['role']})"] * bool(row["role"])
        words += [f"slow since step {row['since_step']:,}"] if row["is_slow"] else []
        yield f"{row['rank']:>6}{''.join(f'{text:>{width}}' for text in texts)}  {' '.join(words)}"
    if num_hidden := shown.height - listed.height:
        yield f"{format_more(num_hidden, 'ranks')}; {options.where}"


def _excess(row: Mapping[str, Any], options: TableOptions) -> str:
    """Return by how much a rank works longer than its peers, and the interval."""

    def signed(time_ns: float) -> str:
        text = options.time(time_ns)
        return text if text.startswith("-") else f"+{text}"

    interval = f"interval unknown: fewer than {LEAST_STEPS} steps"
    if row["excess_low_ns"] is not None:
        interval = f"{signed(row['excess_low_ns'])} to {signed(row['excess_high_ns'])}"
    return f"{signed(row['excess_ns'])} ({interval})"


def _links(slow: pl.DataFrame, options: TableOptions) -> Iterator[str]:
    """Yield a line for each slow link."""
    for row in slow.iter_rows(named=True):
        yield (
            f"Slow link, by the last operations: ranks {row['members']} ({row['axis'] or '?'}): "
            f"{options.time(row['excess_ns'])} {options.time_unit} a step "
            f"(± {options.time(2 * row['noise_ns'])}) more in transfers than the "
            f"{Counted(row['siblings']):group|groups} beside it"
        )


def _doubt(shown: pl.DataFrame, maybe: pl.Series) -> str:
    """Return why the steps are too few to call the ranks healthy; "" if they are not."""
    if len(maybe):
        ranks = format_ranges("rank", maybe)
        return f"unknown: too few steps to say whether {ranks} worked longer by chance"
    is_short = pl.col("excess_ns").is_not_null() & pl.col("excess_low_ns").is_null()
    if short := shown.filter(is_short)["rank"].to_list():
        return f"unknown: fewer than {LEAST_STEPS} steps of {format_ranges('rank', short)}"
    return ""


def _all_clear(shown: pl.DataFrame, roles: Mapping[int, str], *, are_links_known: bool) -> str:
    """Return that no rank or link is slow, of those that are compared with others."""
    ranks = shown.filter(pl.col("excess_ns").is_not_null())["rank"].to_list()
    if {*ranks} == {*roles}:
        return f"no rank{' or link' * are_links_known} is slow"
    parts = ["no link is slow"] * are_links_known
    if ranks:
        names = format_ranges("rank", ranks)
        parts.insert(0, f"none of {names} is slow" if len(ranks) > 1 else f"{names} is not slow")
    elif not are_links_known:
        has_peers = max(Counter(roles.values()).values(), default=0) > 1
        parts = [f"unknown: no {'step times of peers' if has_peers else 'rank has peers'}"]
    return "; ".join(parts)
