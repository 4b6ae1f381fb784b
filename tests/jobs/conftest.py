"""Fixtures of tests about jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ppprof
from tests.jobs import planted
from tests.jobs.devices import Machine, num_gpus


@pytest.fixture(scope="session", params=["committed", pytest.param("anew", marks=pytest.mark.all)])
def planted_run(
    request: pytest.FixtureRequest, once: Callable[[str, Callable[[Path], None]], Path]
) -> Callable[..., ppprof.Run]:
    """``planted_run(name)``: a run of `planted.RUNS`, the committed one or one recorded now.

    ``steps`` is how many steps one that is recorded now has; by default as many as the other.
    """

    def opened(name: str, steps: int | None = None) -> ppprof.Run:
        if request.param == "committed":
            return ppprof.open(planted.COMMITTED / name)
        folder = once(f"planted_{name}_{steps}", lambda folder: planted.record(name, folder, steps))
        return ppprof.open(folder / "profiler_log")

    return opened


@pytest.fixture
def machine(
    request: pytest.FixtureRequest, tmp_path: Path, test_device: Callable[..., dict[str, str]]
) -> Iterator[Machine]:
    """The device that a test is parametrized with, by one of the lists of `tests.jobs.devices`."""
    if request.param == "gpu" and not num_gpus():
        pytest.skip("needs a GPU that Paddle sees")
    machine = Machine(request.param, tmp_path, test_device)
    yield machine
    machine.keep(request.node.originalname)
