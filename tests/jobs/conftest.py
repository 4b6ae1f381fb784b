"""Fixtures of tests about jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ppprof
from tests.jobs import planted


@pytest.fixture(scope="session", params=["committed", pytest.param("anew", marks=pytest.mark.all)])
def planted_run(
    request: pytest.FixtureRequest, once: Callable[[str, Callable[[Path], None]], Path]
) -> Callable[[str], ppprof.Run]:
    """``planted_run(name)``: a run of `planted.RUNS`, the committed one or one recorded now."""

    def opened(name: str) -> ppprof.Run:
        if request.param == "committed":
            return ppprof.open(planted.COMMITTED / name)
        folder = once(f"planted_{name}", lambda folder: planted.record(name, folder))
        return ppprof.open(folder / "profiler_log")

    return opened
