"""Profile Paddle hybrid-parallel training from one YAML block."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ppprof import remote
    from ppprof.capture.attach import attach
    from ppprof.capture.spans import span
    from ppprof.report.html import write_report
    from ppprof.run.advise import advise
    from ppprof.run.convert import write_kineto
    from ppprof.run.diff import diff
    from ppprof.run.run import open

__all__ = ["advise", "attach", "diff", "open", "remote", "span", "write_kineto", "write_report"]


_MODULES = {
    "advise": "ppprof.run.advise",
    "attach": "ppprof.capture.attach",
    "diff": "ppprof.run.diff",
    "open": "ppprof.run.run",
    "span": "ppprof.capture.spans",
    "write_kineto": "ppprof.run.convert",
    "write_report": "ppprof.report.html",
}


if not TYPE_CHECKING:  # a type checker would take any name to exist

    def __getattr__(name: str) -> Any:
        """Import on first use: training needs no polars, and reading a run needs no Paddle."""
        if name == "remote":
            return import_module("ppprof.remote")
        if name in _MODULES:
            return getattr(import_module(_MODULES[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


def load_ipython_extension(shell: Any) -> None:
    """Show runs, comparisons and findings as HTML; IPython calls this for ``%load_ext ppprof``."""
    import_module("ppprof.report.notebook").register(shell.display_formatter.formatters)


# A module in sys.modules may be None, or a stub that some test or script put there.
_shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
if _shell is not None:
    load_ipython_extension(_shell)
