"""A run's report as one HTML page that opens without a network.

`render` fills ``template.html`` (Jinja2, autoescape) with tables and with ``data`` for the scripts
in the page. Apache ECharts (``echarts.min.js`` 6.1.0 as published on npm) draws bars, lines and
heat maps. ``lanes.js`` draws pipelines,
``modules.js`` trees of modules, ``timeline/`` the timeline.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ppprof.analysis.report_data.report import ReportData
from ppprof.choices import StepRange
from ppprof.errors import UsageError
from ppprof.messages import LANGUAGES
from ppprof.packages import installed_version
from ppprof.paths import to_path, write_atomically
from ppprof.report.html.blocks import Chart, Section, Words
from ppprof.report.html.charts import chart_data
from ppprof.report.html.links import Links
from ppprof.report.html.sections import head, key_figures, sections
from ppprof.report.html.timeline import Blobs, timeline_data
from ppprof.report.notebook import Page
from ppprof.run.report import collect_report_data
from ppprof.run.run import Run, opened
from ppprof.topology import RankSelector
from ppprof.units import escape_control_chars

_TIMELINE = ("store", "tracks", "paint", "links", "panel", "input", "timeline")
"""The scripts of the timeline, in ``timeline/``."""

_SCRIPTS = (
    *("echarts.min.js", "words.js", "charts.js", "lanes.js", "modules.js", "flame.js", "tables.js"),
    *(f"timeline/{name}.js" for name in _TIMELINE),
    "page.js",
)
"""The scripts in the page, in the order in which the page runs them."""


def render(report: ReportData, language: str = "en") -> str:
    """Return the HTML of the page, which loads no other file.

    Raises:
        UsageError: unknown language.
    """
    _check_language(language)
    words = Words.in_language(language, ranks_are_traces=report.is_numbered)
    scripts = [_file(name) for name in _SCRIPTS]
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    links = Links(report)
    packed = Blobs()
    data = {**chart_data(report, words, links), "timeline": timeline_data(report, packed)}
    made, left_out = sections(report, words, links)
    shown = _drawable(made, data)
    for block in [block for section in shown for block in section.blocks]:
        if isinstance(block, Chart):
            for term in _shown_terms(block, data[block.name]):
                words.term(term)
    return environment.from_string(_file("template.html")).render(
        words=words,
        head=head(report, words, links),
        figures=key_figures(report, words, links),
        sections=shown,
        left_out=[
            words("page.without_data", section=words(f"sections.{key}"), reason=reason)
            for key, reason in left_out
        ],
        made_by=words(
            "page.made_by", version=installed_version("ppprof") or "", num=len(report.sources)
        ),
        data=_visible({**data, "words": words.for_scripts}),
        packed=list(map(Markup, packed.texts)),
        style=Markup(_file("page.css")),
        scripts=[Markup(script) for script in scripts],
        policy=_policy(scripts),
    )


def write_report(
    run: Run | str | Path,
    path: str | Path | None = None,
    *,
    baseline: Run | str | Path | None = None,
    ranks: RankSelector = "all",
    window: int | None = None,
    steps: StepRange | str | int | None = None,
    language: str = "en",
    executor: Executor | None = None,
) -> Page | None:
    """Write a run as one page of HTML that opens without a network.

        ppprof.write_report("profiler_log", "report.html")
        ppprof.write_report("profiler_log")    # in a notebook: below the cell

    Args:
        run: the run, or its path for `ppprof.open`.
        path: the file to write, local or in a store; an existing file is replaced. None: write no
            file, and return the page for a notebook.
        baseline: a run to compare with, or its path; None for a page without a comparison.
        ranks: the ranks to read: ``"all"``, ``3``, ``"0,8-15"`` or coordinates such as
            ``{"pp": 0}``, as for `ppprof.run.run.Run.select_ranks`.
        window: number of the window to read; None reads the last window.
        steps: only steps A to B-1, as ``"A:B"``, ``"A:"`` or ``":B"``, or a single step as one
            number; None for all steps of the window.
        language: ``en`` or ``zh``.
        executor: any executor of ``concurrent.futures``, to read several ranks at once; None reads
            one rank after another.

    Returns:
        Without a ``path``, the page, which a notebook shows below the cell.

    Raises:
        UsageError: no such ranks, window, steps or language; the message names the existing ones.
        InputError: a run cannot be read, or it has no steps.
        OSError: the page cannot be written.
    """
    _check_language(language)
    report = collect_report_data(
        opened(run),
        baseline=None if baseline is None else opened(baseline),
        ranks=ranks,
        window=window,
        steps=steps,
        executor=executor,
    )
    page = render(report, language)
    if path is None:
        return Page(page)
    write_atomically(to_path(path), page.encode(errors="backslashreplace"))
    return None


def _drawable(all_of_them: Iterable[Section], data: Mapping[str, Any]) -> list[Section]:
    """Return the sections without the charts that have no data, and those in which a block is left."""
    drawable = [
        replace(
            section,
            blocks=[
                block
                for block in section.blocks
                if not isinstance(block, Chart) or data.get(block.name)
            ],
        )
        for section in all_of_them
    ]
    return [section for section in drawable if section.blocks or section.key == "findings"]


def _shown_terms(chart: Chart, data: Any) -> Iterable[str]:
    """Return the terms of a chart that its script shows: those with data."""
    entries = data if isinstance(data, Mapping) else {}
    groups = [entries[key] for key in ("parts", "families") if key in entries]
    named = {entry["term"] for group in groups for entry in group}
    return (
        [term for term in chart.terms if term in named]
        if groups
        else [
            term for term in chart.terms if "metrics" not in entries or term in entries["metrics"]
        ]
    )


def _visible(value: Any) -> Any:
    """Return a value with the invisible characters of its texts written out, as on a terminal."""
    if isinstance(value, str):
        return value if isinstance(value, Markup) else escape_control_chars(value)
    if isinstance(value, Mapping):
        return {_visible(key): _visible(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_visible(item) for item in value]
    return value


def _check_language(language: str) -> None:
    if language not in LANGUAGES:
        raise UsageError(f"language {language!r}: expected one of {', '.join(LANGUAGES)}")


def _file(name: str) -> str:
    return files("ppprof.report.html").joinpath(name).read_text("utf-8")


def _policy(scripts: list[str]) -> str:
    """Return the content security policy of the page.

    It allows only the given scripts (by hash), inline styles, and images in ``data:`` and ``blob:``
    URLs. Everything else is forbidden.
    """
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    allowed: dict[str, Any] = {
        "default-src": "'none'",
        "script-src": " ".join(f"'sha256-{digest}'" for digest in hashes),
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in allowed.items())
