"""Steps on a device last as long as the device works on them, read or not, recorded or not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import ppprof
from ppprof.run.advise import collect_evidence_of_run
from ppprof.run.report import collect_report_data
from ppprof.rundir.step_times import read_step_times
from tests.fixtures import step_scalars
from tests.jobs.launching import JOBS, covering, run

pytestmark = [pytest.mark.paddle, pytest.mark.all]

Switches = Callable[..., dict[str, str]]
KERNEL_MS, MEMORY_MB, ATTEMPTS = 20, 1000, 3


def job(folder: Path, env: dict[str, str], mode: str, **block: Any) -> tuple[float, str]:
    """Train, and return the true time of a step in ms and what was printed."""
    done = run(folder, JOBS / "device_steps_job.py", mode, json.dumps(block), **env)
    return float(done.stdout.splitlines()[-1]), done.stdout + done.stderr


def attempts(folder: Path) -> Iterator[Path]:
    """Yield folders for attempts: on a busy machine, compared steps may not have had the same time."""
    for attempt in range(ATTEMPTS):
        own = folder / str(attempt)
        own.mkdir()
        yield own


def batch_cost_ms(printed: str) -> float:
    """Return the average of the Perf Summary."""
    found = re.search(r"batch_cost +\| +(\S+)", printed)
    assert found is not None, printed
    return float(found[1]) * 1e3


def logged(folder: Path) -> pl.DataFrame:
    times = read_step_times(folder / "profiler_log")
    assert times["step"].to_list() == list(range(30))
    assert times["device_timed"].to_list() == [True] * 30
    assert times["device_peak_bytes"].min() > 0  # type: ignore[operator]
    assert times.filter(
        pl.col("device_peak_reserved_bytes") < pl.col("device_peak_bytes")
    ).is_empty()
    assert set(times["device_total_bytes"]) == {MEMORY_MB * 10**6}
    return times.filter(pl.col("excluded").not_())


@pytest.mark.parametrize("mode", [covering(mode, "async") for mode in ("async", "read")])
def test_a_step_is_as_long_as_the_device_needs(
    tmp_path: Path, test_device: Switches, mode: str
) -> None:
    for folder in attempts(tmp_path):
        env = test_device(MEMORY_MB=MEMORY_MB, KERNEL_MS=KERNEL_MS)
        true_ms, printed = job(folder, env, mode, scheduler=[12, 18], formats=["pb"])
        assert true_ms > 5 * KERNEL_MS
        times, opened = logged(folder), ppprof.open(folder / "profiler_log")
        outside = times.filter(pl.col("window").is_null())["batch_cost_ns"]
        inside = times.filter(pl.col("window") == 0)["batch_cost_ns"]
        assert min(len(outside), len(inside)) >= 4
        in_trace = opened.cluster().steps["step_ns"]
        means = [float(each.mean()) / 1e6 for each in (outside, inside, in_trace)]  # type: ignore[arg-type]
        # On a busy machine, the host may be late by 1% of a step.
        found = {finding.rule for finding in ppprof.advise(opened)}
        found &= {"host-bound", "tiny-kernels", "unexplained"}
        is_true = [batch_cost_ms(printed), *means] == pytest.approx([true_ms] * 4, rel=0.02)
        if is_true and not found:
            break
    else:
        pytest.fail(
            f"true: {true_ms} ms; Perf Summary and means: {batch_cost_ms(printed)}, {means}; "
            f"findings: {found}"
        )


@pytest.mark.parametrize("mode", ["async", "read"])
def test_without_a_window_the_steps_are_the_devices(
    tmp_path: Path, test_device: Switches, mode: str
) -> None:
    for folder in attempts(tmp_path):
        true_ms, printed = job(
            folder, test_device(MEMORY_MB=MEMORY_MB, KERNEL_MS=KERNEL_MS), mode, timer_only=True
        )
        median_ms = float(logged(folder)["batch_cost_ns"].median()) / 1e6  # type: ignore[arg-type]
        if [batch_cost_ms(printed), median_ms] == pytest.approx([true_ms] * 2, rel=0.02):
            return
    pytest.fail(
        f"true: {true_ms} ms; Perf Summary and median: {batch_cost_ms(printed)}, {median_ms}"
    )


@pytest.mark.parametrize("switch", ["EVENTS", "HOOKS"])
def test_without_device_events_every_command_gives_the_devices_step(
    tmp_path: Path, test_device: Switches, switch: str
) -> None:
    """The trace holds the host's steps, of some 0.2 ms; the last waits for all work."""
    for folder in attempts(tmp_path):
        env = test_device(MEMORY_MB=MEMORY_MB, KERNEL_MS=KERNEL_MS, **{switch: 0})
        true_ms, _ = job(folder, env, "async", scheduler=[12, 18], formats=["pb"])
        opened = ppprof.open(folder / "profiler_log")
        report = collect_report_data(opened)
        window = ppprof.diff(opened, opened, windows=0)
        means = {
            "ranks": opened.breakdown("rank")["step_ns"][0],
            "ranks, middle steps": opened.breakdown("rank", steps="14:17")["step_ns"][0],
            "advise": collect_evidence_of_run(opened).step_ns,
            "report": report.step_ns,
            "report's headline": report.costs.metrics["step_time_median"],
            "diff of a window": window.step_times[0][0]["step_ns"].mean(),
        }
        assert window.step_times[0][1] == "recorded"
        assert set(opened.summary("overview", 0)["side"]) == {"cpu"}
        assert [finding.rule for finding in ppprof.advise(opened)] == ["no-device-events"]
        if {key: mean / 1e6 for key, mean in means.items()} == pytest.approx(
            dict.fromkeys(means, true_ms), rel=0.02
        ):
            return
    pytest.fail(f"true: {true_ms} ms; in ns: {means}")


def test_steps_are_synchronized_on_request(tmp_path: Path, test_device: Switches) -> None:
    """With ``sync_steps``, the host ends a recorded step after the device."""
    env = test_device(MEMORY_MB=MEMORY_MB, KERNEL_MS=KERNEL_MS)
    block = {"scheduler": [12, 18], "formats": ["json"]}
    spans = {}
    for sync in (True, False):
        folder = tmp_path / str(sync)
        folder.mkdir()
        true_ms, _ = job(folder, env, "async", sync_steps=sync, **block)
        trace = next((folder / "profiler_log").glob("*.paddle_trace.json"))
        events = json.loads(trace.read_text())["traceEvents"]
        steps = [e["dur"] / 1e3 for e in events if e.get("name", "").startswith("ProfileStep#")]
        spans[sync] = [dur for dur in steps[1:-1] if dur > true_ms * 0.9]
    assert (len(spans[True]), spans[False]) == (4, [])


def test_scalars_of_steps_whose_costs_come_late(tmp_path: Path, test_device: Switches) -> None:
    """VisualDL's reader has every step once, with the cost that the step log has."""
    pytest.importorskip("visualdl", reason="needs the visualdl wheel")
    env = test_device(MEMORY_MB=MEMORY_MB, KERNEL_MS=KERNEL_MS)
    job(tmp_path, env, "async", scheduler=[12, 18], formats=["pb"], visualdl_scalars=True)
    times = logged(tmp_path)
    (path,) = (tmp_path / "profiler_log").rglob("*vdlrecords*")
    scalars = step_scalars.read(path)["time/batch_cost_ms"]
    assert [step for step, _ in scalars] == times["step"].to_list()
    costs = [cost / 1e6 for cost in times["batch_cost_ns"]]
    assert [cost for _, cost in scalars] == pytest.approx(costs, rel=1e-6)
    assert min(costs) > KERNEL_MS
