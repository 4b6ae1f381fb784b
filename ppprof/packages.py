"""Versions of installed packages."""

from __future__ import annotations


def installed_version(package: str) -> str | None:
    """Return the version that pip installed, without importing the package; None if it did not."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
