"""A run's report as one HTML page that opens without a network.

`render` fills ``template.html`` (Jinja2, autoescape) with tables and with ``data`` for the page's
own scripts: Apache ECharts (``echarts.min.js`` 6.1.0 as published on npm) draws bars, lines and
heat maps, ``lanes.js`` draws spans. The texts are in ``en.yaml`` and ``zh.yaml``.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import jinja2
import yaml
from markupsafe import Markup

from ppprof.analysis.report_data.run import ReportData
from ppprof.errors import UsageError
from ppprof.report.html.charts import chart_data
from ppprof.report.html.sections import headline, sections
from ppprof.report.html.words import Words
from ppprof.units import format_ranges

LANGUAGES = ("en", "zh")
"""Languages of the texts."""

_SCRIPTS = ("echarts.min.js", "words.js", "charts.js", "lanes.js", "tables.js", "page.js")
"""In the order in which the page runs them."""


def render(report: ReportData, language: str = "en") -> str:
    """Return the page: one file that loads nothing else.

    Raises:
        UsageError: unknown language.
    """
    if language not in LANGUAGES:
        raise UsageError(f"language {language!r}: expected one of {', '.join(LANGUAGES)}")
    words = Words(language, yaml.safe_load(_file(f"{language}.yaml")))
    scripts = [_file(name) for name in _SCRIPTS]
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment.from_string(_file("template.html")).render(
        words=words,
        head=_head(report, words),
        sections=sections(report, words),
        data={**chart_data(report, words), "words": words.for_scripts},
        style=Markup(_file("page.css")),
        scripts=[Markup(script) for script in scripts],
        policy=_policy(scripts),
    )


def _head(report: ReportData, words: Words) -> dict[str, Any]:
    """Return the texts of the page's header and footer."""
    steps, ranks = format_ranges("step", report.steps), format_ranges("rank", report.ranks)
    return {
        "what": report.what,
        "about": words("page.window", window=report.window, steps=steps, ranks=ranks),
        "tiles": headline(report, words),
        "made_by": words("page.made_by", version=version("ppprof"), num=len(report.sources)),
    }


def _file(name: str) -> str:
    return files("ppprof.report.html").joinpath(name).read_text("utf-8")


def _policy(scripts: list[str]) -> str:
    """Return the content security policy: run these scripts, style the page, load nothing."""
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
