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
STEPS, MATMULS = 30, 5
"""As in device_steps_job.py."""


def job(
    folder: Path,
    env: Callable[..., dict[str, str]],
    mode: str,
    block: dict[str, Any],
    **switches: int,
) -> tuple[pl.DataFrame, str]:
    """Train.

    Returns:
        The true steps 1 to 29, by the log of the test device; and what was printed. A step lasts from the
        end of the work of the one ahead of it to the end of its own: columns step, true_ns, busy_ns (of the
        device).
    """
    log = folder / "true"
    log.mkdir()
    switches = {"MEMORY_MB": MEMORY_MB, "KERNEL_MS": KERNEL_MS, **switches}
    done = run(
        folder, JOBS / "device_steps_job.py", mode, json.dumps(block), **env(LOG=log, **switches)
    )
    return _true_steps(log), done.stdout + done.stderr


def _true_steps(log: Path) -> pl.DataFrame:
    """Return the steps of the longest log: a child that probes the device has another."""
    names = ("start", "end", "stream", "correlation_id", "name")
    logs = (pl.read_csv(file, has_header=False, new_columns=names) for file in log.iterdir())
    work = max(logs, key=len).sort("start")
    is_matmul = pl.col("name").str.contains("gemm")
    step = (is_matmul.cum_sum() - 1) // MATMULS - 1  # one step is not counted
    steps = work.group_by(step=step).agg(
        pl.col("end").max(), busy_ns=(pl.col("end") - pl.col("start")).sum()
    )
    true = steps.sort("step").with_columns(true_ns=pl.col("end").diff())
    return true.filter(pl.col("step").is_between(1, STEPS - 1)).drop("end")


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
    assert times["step"].to_list() == list(range(STEPS))
    assert times["device_timed"].to_list() == [True] * STEPS
    assert times["device_peak_bytes"].min() > 0  # type: ignore[operator]
    assert times.filter(
        pl.col("device_peak_reserved_bytes") < pl.col("device_peak_bytes")
    ).is_empty()
    assert set(times["device_total_bytes"]) == {MEMORY_MB * 10**6}
    return times.filter(pl.col("excluded").not_())


def mean_ms(steps: pl.DataFrame, column: str) -> float:
    return float(steps[column].mean()) / 1e6  # type: ignore[arg-type]


def usual_ms(true: pl.DataFrame) -> float:
    """Return the median step: opening and saving a window stalls some."""
    return float(true["true_ns"].median()) / 1e6  # type: ignore[arg-type]


def differences(true: pl.DataFrame, steps: pl.DataFrame, column: str) -> tuple[float, float]:
    """Return the mean of a column, and that of the same steps by the device's log, in ms."""
    both = true.join(steps, on="step")
    assert both.height >= 4
    return mean_ms(both, column), mean_ms(both, "true_ns")


@pytest.mark.parametrize("mode", [covering(mode, "async") for mode in ("async", "read")])
def test_a_step_is_as_long_as_the_device_needs(
    tmp_path: Path, test_device: Switches, mode: str
) -> None:
    """Each mean is that of the same steps in the device's log: a busy machine makes kernels longer, too."""
    for folder in attempts(tmp_path):
        true, printed = job(folder, test_device, mode, {"scheduler": [12, 18], "formats": ["pb"]})
        assert true["true_ns"].min() > MATMULS * KERNEL_MS * 1e6  # type: ignore[operator]
        times, opened = logged(folder), ppprof.open(folder / "profiler_log")
        in_trace = opened.cluster().steps.filter(
            pl.col("step") > 12
        )  # opening stalls the first one
        pairs = {
            "outside": differences(true, times.filter(pl.col("window").is_null()), "batch_cost_ns"),
            "inside": differences(true, times.filter(window=0), "batch_cost_ns"),
            "in the trace": differences(true, in_trace, "step_ns"),
            "Perf Summary": (
                batch_cost_ms(printed),
                mean_ms(true.join(times.filter(pl.col("step") >= 10), on="step"), "true_ns"),
            ),
        }
        window = true.filter(pl.col("step").is_between(13, 17))
        idle_ratio = 1 - window["busy_ns"].sum() / window["true_ns"].sum()
        found = {finding.rule for finding in ppprof.advise(opened)}
        found &= {"host-bound", "tiny-kernels", "unexplained"}
        is_true = all(mine == pytest.approx(truth, rel=0.02) for mine, truth in pairs.values())
        if is_true and (not found or idle_ratio > 0.01):  # a host that others keep busy is late
            break
    else:
        pytest.fail(f"ppprof, and true, in ms: {pairs}; findings: {found}, idle {idle_ratio:.1%}")


@pytest.mark.parametrize("mode", ["async", "read"])
def test_without_a_window_the_steps_are_the_devices(
    tmp_path: Path, test_device: Switches, mode: str
) -> None:
    for folder in attempts(tmp_path):
        true, printed = job(folder, test_device, mode, {"timer_only": True})
        times = logged(folder)
        summed = mean_ms(true.filter(pl.col("step") >= 10), "true_ns")
        pairs = [(batch_cost_ms(printed), summed), differences(true, times, "batch_cost_ns")]
        if all(mine == pytest.approx(truth, rel=0.02) for mine, truth in pairs):
            return
    pytest.fail(f"ppprof, and true, in ms: {pairs}")


@pytest.mark.parametrize("switch", ["EVENTS", "HOOKS"])
def test_without_device_events_every_command_gives_the_devices_step(
    tmp_path: Path, test_device: Switches, switch: str
) -> None:
    """The trace holds the host's steps, of some 0.2 ms; the last waits for all work."""
    for folder in attempts(tmp_path):
        block = {"scheduler": [12, 18], "formats": ["pb"]}
        true_ms = usual_ms(job(folder, test_device, "async", block, **{switch: 0})[0])
        opened = ppprof.open(folder / "profiler_log")
        report = collect_report_data(opened)
        window = ppprof.diff(opened, opened, windows=0)
        means = {
            "ranks": opened.breakdown("rank")["step_ns"][0],
            "ranks, middle steps": opened.breakdown("rank", steps="14:17")["step_ns"][0],
            "advise": collect_evidence_of_run(opened).step_ns,
            "report": report.step_ns,
            "report's headline": report.costs.metrics["step_time_median"],
            "diff of a window": window.samples[0].times["step_ns"].mean(),
        }
        assert window.samples[0].basis == "recorded"
        assert set(opened.summary("overview", 0)["side"]) == {"cpu"}
        rules = [finding.rule for finding in ppprof.advise(opened)]
        assert [rule for rule in rules if rule != "busy-machine"] == ["no-device-events"]
        if {key: mean / 1e6 for key, mean in means.items()} == pytest.approx(
            dict.fromkeys(means, true_ms), rel=0.02
        ):
            return
    pytest.fail(f"true: {true_ms} ms; in ns: {means}")


def test_steps_are_synchronized_on_request(tmp_path: Path, test_device: Switches) -> None:
    """With ``sync_steps``, the host ends a recorded step after the device."""
    block = {"scheduler": [12, 18], "formats": ["json"]}
    spans = {}
    for sync in (True, False):
        folder = tmp_path / str(sync)
        folder.mkdir()
        true, _ = job(folder, test_device, "async", {"sync_steps": sync, **block})
        true_ms = usual_ms(true)
        trace = next((folder / "profiler_log").glob("*.paddle_trace.json"))
        events = json.loads(trace.read_text())["traceEvents"]
        steps = [e["dur"] / 1e3 for e in events if e.get("name", "").startswith("ProfileStep#")]
        spans[sync] = [dur for dur in steps[1:-1] if dur > true_ms * 0.9]
    assert (len(spans[True]), spans[False]) == (4, [])


def test_scalars_of_steps_whose_costs_come_late(tmp_path: Path, test_device: Switches) -> None:
    """VisualDL's reader has every step once, with the cost that the step log has."""
    pytest.importorskip("visualdl", reason="needs the visualdl wheel")
    block = {"scheduler": [12, 18], "formats": ["pb"], "visualdl_scalars": True}
    job(tmp_path, test_device, "async", block)
    times = logged(tmp_path)
    (path,) = (tmp_path / "profiler_log").rglob("*vdlrecords*")
    scalars = step_scalars.read(path)["time/batch_cost_ms"]
    assert [step for step, _ in scalars] == times["step"].to_list()
    costs = [cost / 1e6 for cost in times["batch_cost_ns"]]
    assert [cost for _, cost in scalars] == pytest.approx(costs, rel=1e-6)
    assert min(costs) > KERNEL_MS
