"""Profile Paddle hybrid-parallel training from one YAML block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ppprof import remote
    from ppprof.advise import advise
    from ppprof.capture.attach import attach
    from ppprof.capture.spans import span
    from ppprof.compare import diff
    from ppprof.reporting import picture
    from ppprof.run import open

__all__ = ["advise", "attach", "diff", "open", "picture", "remote", "span"]


def __getattr__(name: str) -> Any:
    """Loads on first use: training needs no polars, and reading a run no Paddle."""
    if name == "advise":
        from importlib import import_module

        return import_module("ppprof.advise")  # which can be called
    if name == "attach":
        from ppprof.capture import attach

        return attach
    if name == "span":
        from ppprof.capture.spans import span

        return span
    if name == "diff":
        from ppprof.compare import diff

        return diff
    if name == "picture":
        from ppprof.reporting import picture

        return picture
    if name == "open":
        from ppprof.run import open

        return open
    if name == "remote":
        from importlib import import_module

        return import_module("ppprof.remote")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
