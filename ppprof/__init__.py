"""Profile Paddle hybrid-parallel training from one YAML block."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ppprof import remote
    from ppprof.capture.attach import attach
    from ppprof.capture.spans import span
    from ppprof.report.html import write_report
    from ppprof.run.advise import advise
    from ppprof.run.diff import diff
    from ppprof.run.run import open

__all__ = ["advise", "attach", "diff", "open", "remote", "span", "write_report"]


_MODULES = {
    "advise": "ppprof.run.advise",
    "attach": "ppprof.capture.attach",
    "diff": "ppprof.run.diff",
    "open": "ppprof.run.run",
    "span": "ppprof.capture.spans",
    "write_report": "ppprof.report.html",
}


def __getattr__(name: str) -> Any:
    """Import on first use: training needs no polars, and reading a run needs no Paddle."""
    if name == "remote":
        return import_module("ppprof.remote")
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
