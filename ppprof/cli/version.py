"""``ppprof --version``: the versions that a bug report has to name."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from ppprof.trace.fastpath import core

_PADDLES = ("paddlepaddle", "paddlepaddle-gpu", "paddlepaddle-xpu", "paddlepaddle-dcu")
"""Distributions that hold the package ``paddle``."""


def versions() -> str:
    """Return a line each for ppprof, Python, the platform, and packages that results depend on.

    No package is imported for it: a Paddle that cannot be loaded still has a version.
    """
    lines = {
        "ppprof": _version("ppprof") or "not installed: run from a checkout",
        "core": core.describe(),
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "polars": _version("polars") or "not installed",
        "numpy": _version("numpy") or "not installed",
        "paddle": _paddle(),
        "visualdl": _version("visualdl") or "not installed",
    }
    return "\n".join(f"{name} {text}" for name, text in lines.items())


def _paddle() -> str:
    installed = [f"{number} ({name})" for name in _PADDLES if (number := _version(name))]
    if installed:
        return ", ".join(installed)  # two at once overwrite each other, so show both
    try:
        is_importable = find_spec("paddle") is not None
    except (ImportError, ValueError):
        is_importable = False
    return "of unknown version, not installed by pip" if is_importable else "not installed"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
