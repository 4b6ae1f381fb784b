"""Installed packages: their paths and versions."""

from __future__ import annotations

import re

INSTALLED = re.compile(r"(?:^|[/\\])(?:site|dist)-packages[/\\]")
"""Part of the path of an installed package's file, in any environment."""


def installed_version(package: str) -> str | None:
    """Return the version that pip installed, without importing the package; None if it did not."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
