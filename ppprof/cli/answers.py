"""What ``ppprof mcp`` answers: the documents of the commands, the timeline and source lines, bounded.

Without the protocol: `ppprof.cli.mcp` offers the methods of `Answers` as tools.
"""

from __future__ import annotations

import functools
import inspect
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ppprof.analysis.advice import RULES
from ppprof.analysis.path.change_language import parse_change
from ppprof.choices import (
    ACROSS,
    ALL_VIEWS,
    DIFF_VIEWS,
    GROUPS,
    PATH_GROUPS,
    SummaryOptions,
)
from ppprof.cli.options import names_in
from ppprof.cli.runs import open_run
from ppprof.errors import UsageError
from ppprof.messages import logged_warnings
from ppprof.rundir.summaries import document, rows_of
from ppprof.topology import is_own_axis

if TYPE_CHECKING:
    from ppprof.run.run import Run
    from ppprof.run.summary import AcrossRanks, WindowTables

MOST_CHARACTERS = 40_000
"""Most characters of an answer: what an assistant can read along with other answers."""
MOST_ROWS = 200
"""Most rows of a table of an answer."""
_MOST_TEXT = 1_000
"""Most characters of a text in an answer."""
_MOST_KEYS = 200


@dataclass(frozen=True)
class _Ordered:
    """A list in an order of its own, of which `bounded` leaves off the least important items."""

    items: Sequence[Any]
    importance: Callable[[Any], int]

    def most_important(self, num: int) -> list[Any]:
        """Return at most ``num`` items, in the order of ``items``."""
        order = sorted(
            range(len(self.items)), key=lambda number: -self.importance(self.items[number])
        )
        return [self.items[number] for number in sorted(order[:num])]


def bounded(answer: Mapping[str, Any], most_rows: int) -> str:
    """Return an answer as JSON of at most `MOST_CHARACTERS`; ``left_off`` counts what it lacks.

    Lists have at most ``most_rows`` items, fewer where the text would be too long. Numbers have six
    digits, but for whole numbers.

    >>> bounded({"tables": {"op": [{"ns": 0.123456789}, {"ns": 2.0}]}}, 1)
    '{"tables":{"op":[{"ns":0.123457}]},"left_off":{"tables.op":1}}'

    Raises:
        UsageError: the answer is too long even with one item in each list.
    """
    rows = most_rows
    while rows:
        left_off: dict[str, int] = {}
        values = {**_cut(answer, "", rows, left_off), "left_off": left_off}
        text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        if len(text) <= MOST_CHARACTERS:
            return text
        rows //= 2
    raise UsageError("the answer is too long: ask for fewer views, ranks or groups")


def _cut(value: Any, path: str, rows: int, left_off: dict[str, int]) -> Any:
    def count(num: int) -> None:
        if num > 0:
            left_off[path] = left_off.get(path, 0) + num

    if isinstance(value, Mapping):
        count(len(value) - _MOST_KEYS)
        below = f"{path}." if path else ""
        pairs = list(value.items())[:_MOST_KEYS]
        return {str(key): _cut(each, f"{below}{key}", rows, left_off) for key, each in pairs}
    if isinstance(value, _Ordered):
        count(len(value.items) - rows)
        value = value.most_important(rows)
    if isinstance(value, (list, tuple)):
        count(len(value) - rows)
        return [_cut(each, path, rows, left_off) for each in value[:rows]]
    if isinstance(value, str) and len(value) > _MOST_TEXT:
        return f"{value[:_MOST_TEXT]}... ({len(value) - _MOST_TEXT:,} more characters)"
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _bounded(method: Callable[..., dict[str, Any]]) -> Callable[..., str]:
    """Turn a method that returns values into one that returns a bounded text, one call at a time."""
    default = inspect.signature(method).parameters["rows"].default

    @functools.wraps(method)
    def answer(self: Answers, *args: Any, **options: Any) -> str:
        rows = options.get("rows", default)
        if not 1 <= rows <= MOST_ROWS:
            raise UsageError(f"rows {rows}: expected 1 to {MOST_ROWS}")
        with self.lock, logged_warnings() as logged:
            values = method(self, *args, **options)
        return bounded({**values, **({"messages": logged} if logged else {})}, rows)

    answer.__annotations__ = {**method.__annotations__, "return": "str"}
    return answer


class Answers:
    """Answers about some runs, each a JSON text of at most `MOST_CHARACTERS`.

    Args:
        runs: the paths that the command line names; no other path is read.
    """

    def __init__(self, runs: Sequence[str]) -> None:
        self.runs = tuple(runs)
        self.lock = threading.Lock()

    def tools(self) -> Sequence[Callable[..., str]]:
        """Return the methods that an assistant may call, the first one first."""
        return (
            *(self.findings, self.ranks, self.tables, self.path, self.diff),
            *(self.timeline, self.source),
        )

    @_bounded
    def findings(
        self, run: str = "", steps: str = "", language: str = "en", rows: int = 20
    ) -> dict[str, Any]:
        """Call this first. What is slow in a run, the most severe first, and what to change.

        Each finding says what, where (rank, step, module, file, line, and a step that shows it), its cost
        in nanoseconds of a step, how sure that is, the rows that show it, and the proposal. ``recorded``
        names the run's ranks and windows, ``runs`` the runs that may be asked about.

        Args:
            run: one of ``runs``; "" for the first.
            steps: only steps A to B-1, as "A:B"; "" for all.
            language: en or zh.
            rows: most rows of each list.
        """
        from ppprof.report.text.advice import findings_document
        from ppprof.run.advise import advise

        opened = self._open(run)
        findings = advise(opened, steps=steps or None)
        recorded = {
            "ranks": opened.name_ranks(opened.ranks) if opened.recordings else None,
            "windows": opened.windows() if opened.recordings else [],
        }
        identity = {"run": str(opened), "runs": list(self.runs), "recorded": recorded}
        return findings_document(findings, language, **identity)

    @_bounded
    def ranks(
        self,
        run: str = "",
        by: str = "rank",
        steps: str = "",
        what_if: bool = False,
        rows: int = 20,
    ) -> dict[str, Any]:
        """What each rank spends a step on; slow ranks, lines, links; collectives; idle devices.

        Args:
            run: one of the runs; "" for the first.
            by: rank, step, host, dp, pp, sharding, sep or mp, or several with commas.
            steps: only steps A to B-1, as "A:B"; "" for all.
            what_if: also the step if slow ranks, stages and links were as fast as usual.
            rows: most rows of each table.
        """
        from ppprof.cli.ranks import ranks_document

        groups = names_in(by, GROUPS, is_own_axis)
        opened = self._open(run)
        return ranks_document(opened, opened.cluster(steps=steps or None), groups, what_if)

    @_bounded
    def tables(
        self,
        run: str = "",
        view: str = "op",
        rank: int | None = None,
        window: int | None = None,
        steps: str = "",
        by: str = "",
        sorted_by: str = "auto",
        rows: int = 20,
    ) -> dict[str, Any]:
        """One table: operators (op), kernels (kernel), phases (model), layers (layer), memory (mem) ...

        Args:
            run: one of the runs; "" for the first.
            view: device, overview, model, dist, op, kernel, memcpy, udf, mem, copies, shape, layer,
                efficiency or python (lines of Python); or several with commas.
            rank: of which rank; null for the first.
            window: of which window; null for the first.
            steps: only steps A to B-1, as "A:B"; "" for all.
            by: "name" compares all ranks, a row for each name; "rank" has a row for each rank and name.
            sorted_by: auto, cpu_total, cpu_avg, cpu_max, gpu_total, gpu_avg or gpu_max.
            rows: most rows of each table.
        """
        opened = self._open(run)
        chosen: dict[str, Any] = {"steps": steps or None, "options": SummaryOptions(sorted_by)}
        tables: AcrossRanks | WindowTables
        if by:
            ranks = None if rank is None else [rank]
            number = opened.windows(rank)[0] if window is None else window
            tables = opened.across(names_in(view, ACROSS), by, number, ranks=ranks, **chosen)
        else:
            first = opened.select(rank, window)[0]
            tables = opened.tables(names_in(view, ALL_VIEWS), first.rank, first.window, **chosen)
        return document(rows_of(tables.tables), **tables.identity())

    @_bounded
    def path(
        self,
        run: str = "",
        by: str = "kind,module",
        what_if: list[str] | None = None,
        steps: str = "",
        rows: int = 20,
    ) -> dict[str, Any]:
        """What the length of a step depends on across ranks (critical path), and what changes would win.

        Args:
            run: one of the runs; "" for the first.
            by: kind, name, operator, module, line, rank, link, axis or step, or several with commas.
            what_if: changes, such as "matmul: 0.7x", "module blocks.3: 0.5x", "line train.py:41: 0",
                "link mp: 2x", "rank 5: as usual", "data loading: 0", "overlap dp".
            steps: only steps A to B-1, as "A:B"; "" for all.
            rows: most rows of each table.
        """
        from ppprof.analysis.path.change_replay import what_if as replay
        from ppprof.cli.path import path_document

        changes = [parse_change(text) for text in what_if or ()]
        groups = names_in(by, PATH_GROUPS)
        opened = self._open(run)
        graph = opened.graph(steps=steps or None)
        table = replay(graph, changes, opened.stages) if changes else None
        return path_document(opened, graph, groups, table)

    @_bounded
    def diff(
        self, baseline: str, experiment: str, views: str = "overview,line,op,kernel", rows: int = 20
    ) -> dict[str, Any]:
        """What changed from one run to another: a verdict on the step time, and the largest changes.

        Args:
            baseline: one of the runs.
            experiment: another one of the runs.
            views: some of overview, rank, line, op, kernel, dist, runtime, shape and module.
            rows: most rows of each table.
        """
        from ppprof.report.diff_rows import RowSelection, diff_document
        from ppprof.run.diff import diff

        chosen = RowSelection(names_in(views, DIFF_VIEWS))
        return diff_document(diff(self._open(baseline), self._open(experiment)), chosen)

    @_bounded
    def timeline(
        self,
        run: str = "",
        rank: int | None = None,
        step: int | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
        name: str = "",
        rows: int = 40,
    ) -> dict[str, Any]:
        """The longest events of one rank in a step or a time, in order: what runs when, and inside what.

        Args:
            run: one of the runs; "" for the first.
            rank: of which rank; null for the first.
            step: of which step, as in a finding's where.time; null for the rank's longest step.
            start_ns: instead of a step: from this time on, as where.time.start_ns or origin_ns plus start_ns.
            end_ns: until this time; with start_ns only.
            name: only events whose name has this text.
            rows: most events.
        """
        from ppprof.run.timeline import timeline_around

        opened, between = self._open(run), None
        if start_ns is not None and end_ns is not None:
            between = (start_ns, end_ns)
        elif start_ns is not None or end_ns is not None:
            raise UsageError("a time needs both start_ns and end_ns")
        around = timeline_around(opened, rank, step, between, name, rows)
        return {
            **around.identity(),
            "about": "start_ns counts from origin_ns; self_ns is dur_ns without the host events inside",
            "events": _Ordered(
                [
                    {key: value for key, value in event.items() if value is not None}
                    for event in around.events.iter_rows(named=True)
                ],
                importance=itemgetter("dur_ns"),
            ),
            "num_shorter_events": around.num_shorter,
        }

    @_bounded
    def source(
        self, file: str, line: int, run: str = "", rank: int | None = None, rows: int = 21
    ) -> dict[str, Any]:
        """Lines of the user's source around a line, as they were recorded, with their sampled times.

        Args:
            file: as a finding names it in where.file.
            line: the number of the line.
            run: one of the runs; "" for the first.
            rank: of which rank; null for the first.
            rows: most lines.
        """
        from ppprof.run.timeline import source_lines

        lines = source_lines(self._open(run), rank, file, line)
        return {
            "file": file,
            "lines": _Ordered(
                sorted(lines[:rows], key=itemgetter("line")),
                importance=lambda each: -abs(each["line"] - line),
            ),
            "num_further_lines": max(0, len(lines) - rows),
        }

    def _open(self, run: str) -> Run:
        if run and run not in self.runs:
            raise UsageError(f"run {run!r}: expected one of {', '.join(self.runs)}")
        return open_run(run or self.runs[0])


def definitions() -> str:
    """Return what the numbers mean, as Markdown: the terms of the page, and the rules of advice."""
    from ppprof.report.html.blocks import Words
    from ppprof.report.text.advice import format_facts, read_catalogue

    terms = Words.in_language("en").texts["terms"].values()
    rules = read_catalogue("en")["rules"]
    thresholds = {rule.name: format_facts(rule.thresholds) for rule in RULES}
    return "\n".join(
        [
            "# Definitions",
            "",
            "Times are in nanoseconds and sums or means of a step, ratios from 0 to 1; units end a name.",
            "",
            *(f"- **{name}**: {meaning}" for name, meaning in terms),
            "",
            "## Rules of findings",
            "",
            *(
                f"- **{name}** ({texts['title']}): {texts['how'].format_map(thresholds[name])}"
                for name, texts in rules.items()
            ),
            "",
        ]
    )
