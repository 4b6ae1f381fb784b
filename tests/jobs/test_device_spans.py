"""Communication of Fleet's pipeline on the test device: every kernel is launched inside a span."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import ppprof
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.steps import with_step
from ppprof.analysis.ranks.rank_communication import communication_events
from tests import device
from tests.jobs.launching import JOBS, NO_DROPOUT, SMALL, run, train

pytestmark = [pytest.mark.paddle, pytest.mark.all]

SETTINGS = (
    *SMALL,
    *NO_DROPOUT,
    f"Global.device={device.NAME}",
    "Distributed.pp_degree=2",
    "Model.num_layers=4",
    "Global.local_batch_size=8",
    "Global.micro_batch_size=2",
    "Engine.max_steps=6",
    "Profiler.enable=True",
    "Profiler.scheduler=[2, 5]",
)


def test_every_communication_kernel_is_launched_inside_a_span(
    tmp_path: Path, test_device: Callable[..., dict[str, str]]
) -> None:
    train(tmp_path, *SETTINGS, processes=2, code=0, **test_device())
    events = ppprof.open(tmp_path / "profiler_log").events()
    kernels = events.filter(category="Kernel").filter(pl.col("name").cast(str).str.contains("nccl"))
    launches = events.filter(category="CudaRuntime").select(
        "rank", "correlation_id", launch_ns="start_ns", host="thread"
    )
    launched = kernels.join(launches, on=["rank", "correlation_id"])
    spans = events.filter(category="Communication").select(
        "rank", "axis", start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns"), host="thread"
    )
    inside = launched.join(spans, on=["rank", "host"]).filter(
        pl.col("launch_ns").is_between(pl.col("start"), pl.col("end"))
    )
    assert kernels["rank"].n_unique() == 2
    # The window begins later while the device is still being probed.
    num_steps = events.filter(category="ProfileStep").height
    assert 2 <= num_steps <= 2 * 3
    assert kernels["name"].cast(str).str.contains("SendRecv").sum() >= num_steps * 4 * 2
    assert len(launched) == len(kernels) == len(inside)
    sends = inside.filter(pl.col("name").cast(str).str.contains("SendRecv"))
    assert sends["axis_right"].cast(str).unique().to_list() == ["pp"]


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        pytest.param((2, 1), {"dp": 4}, id="dp"),
        pytest.param((2, 2), {"mp": 4, "?": 4}, id="dp and mp"),
    ],
)
def test_all_reduces_of_the_reducer_have_no_wrong_axis(
    tmp_path: Path,
    test_device: Callable[..., dict[str, str]],
    degrees: tuple[int, int],
    expected: dict[str, int],
) -> None:
    """In 4 recorded steps, C++ launches an all_reduce over dp, and Python one over mp if there is mp."""
    num_ranks = degrees[0] * degrees[1]
    run(tmp_path, JOBS / "reducer_job.py", *map(str, degrees), processes=num_ranks, **test_device())
    opened = ppprof.open(tmp_path / "profiler_log")
    assert opened.ranks == list(range(num_ranks))
    for rank in opened.ranks:
        profile = Profile(with_step(opened.trace(rank)))
        kernels = communication_events(profile)
        assert dict(kernels.group_by("axis").len().iter_rows()) == expected
