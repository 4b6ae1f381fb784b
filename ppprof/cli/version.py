"""``ppprof --version``: what a report of a bug has to say."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

_PADDLES = ("paddlepaddle", "paddlepaddle-gpu", "paddlepaddle-xpu", "paddlepaddle-dcu")
"""Distributions that hold the package ``paddle``."""


def versions() -> str:
    """One line each: ppprof, Python, the platform, and the packages that results depend on.

    Nothing is imported for it, Paddle least of all: a Paddle that cannot be loaded has a version.
    """
    found = {
        "ppprof": _version("ppprof") or "not installed: run from a checkout",
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "polars": _version("polars") or "not installed",
        "numpy": _version("numpy") or "not installed",
        "paddle": _paddle(),
        "visualdl": _version("visualdl") or "not installed",
    }
    return "\n".join(f"{name} {told}" for name, told in found.items())


def _paddle() -> str:
    told = [f"{at} ({name})" for name in _PADDLES if (at := _version(name))]
    if told:
        return ", ".join(told)  # two at once overwrite each other: worth to be seen
    try:
        is_there = find_spec("paddle") is not None
    except (ImportError, ValueError):
        is_there = False
    return "of unknown version, not installed by pip" if is_there else "not installed"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
