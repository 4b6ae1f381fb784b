"""Profile Paddle hybrid-parallel training from one YAML block."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ppprof import remote
    from ppprof.capture.attach import attach
    from ppprof.capture.spans import span
    from ppprof.run.advise import advise
    from ppprof.run.diff import diff
    from ppprof.run.report import collect_report_data
    from ppprof.run.run import open

__all__ = ["advise", "attach", "collect_report_data", "diff", "open", "remote", "span"]


_MODULES = {
    "advise": "ppprof.run.advise",
    "attach": "ppprof.capture.attach",
    "diff": "ppprof.run.diff",
    "open": "ppprof.run.run",
    "collect_report_data": "ppprof.run.report",
    "span": "ppprof.capture.spans",
}


def __getattr__(name: str) -> Any:
    """Import on first use: training does not need Polars, and reading a run does not need Paddle."""
    if name == "remote":
        return import_module("ppprof.remote")
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
