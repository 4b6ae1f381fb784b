"""The bodies of the self-test: a training each, and what must hold of its recording."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.runtime_calls import name_of_call
from ppprof.analysis.ranks.rank_communication import communication_events
from ppprof.run.run import Run
from ppprof.rundir.step_times import read_step_times
from ppprof.selftest import FLOATS
from ppprof.selftest.trained import Machine, Trained, end_by_signal, train
from ppprof.units import format_time


@dataclass(frozen=True)
class Claim:
    """One thing that must hold of a training or of its recording."""

    holds: bool
    measured: str
    expected: str
    is_timed: bool = False
    """Whether other programs on the same processors can make it fail."""


def _equal(name: str, value: object, expected: object) -> Claim:
    return Claim(value == expected, f"{name}: {_text(value)}", _text(expected))


def _near(
    name: str, value_ns: object, expected_ns: float, ratio: float, *, is_timed: bool = True
) -> Claim:
    """Claim that a time differs from another by at most a ratio of the other."""
    difference = abs(float(str(value_ns)) - expected_ns) if value_ns is not None else expected_ns
    expected = f"{format_time(round(expected_ns))}, within {ratio:.0%}"
    holds = difference <= ratio * expected_ns
    return Claim(holds, f"{name}: {_time(value_ns)}", expected, is_timed)


def _time(value_ns: object) -> str:
    return "unknown" if value_ns is None else format_time(round(float(str(value_ns))))


def _text(value: object) -> str:
    return ", ".join(map(str, value)) or "0" if isinstance(value, list) else str(value)


def kernels_of(run: Run) -> pl.DataFrame:
    """Return the kernels with their launches: columns launch, launch_ns and launch_id."""
    events = run.events().with_columns(
        name=pl.col("name").cast(pl.String),
        row=pl.int_range(pl.len()).over("rank", "window"),
        end_ns=pl.col("start_ns") + pl.col("dur_ns"),
    )
    launches = events.filter(category="CudaRuntime").select(
        *("rank", "window"),
        parent="row",
        launch="name",
        launch_ns="start_ns",
        launch_id="correlation_id",
        thread_of_launch="thread",
    )
    return events.filter(category="Kernel").join(
        launches, on=["rank", "window", "parent"], how="left"
    )


def num_steps(run: Run, rank: int = 0) -> int:
    """Return the number of a rank's recorded steps.

    On devices of plugins, a window of 3 steps may hold fewer: it begins when the probe has ended.
    """
    return run.cluster().steps.filter(rank=rank).height


def _launched(kernels: pl.DataFrame) -> Iterator[Claim]:
    """Claim that each kernel has its launch and starts after it."""
    own = kernels.filter(pl.col("correlation_id") == pl.col("launch_id")).height
    most = max(1, kernels.height)
    yield Claim(own == most, f"kernels with their launch: {own} of {kernels.height}", "all")
    early = kernels.filter(pl.col("start_ns") < pl.col("launch_ns")).height
    yield _equal("kernels that start before their launch", early, 0)


def _kernels(trained: Trained) -> Iterator[Claim]:
    kernels = kernels_of(trained.run)
    yield from _launched(kernels)
    adamw = int(kernels["name"].str.contains("(?i)adamw").sum())
    yield _equal("AdamW kernels of 4 parameters", adamw, 4 * num_steps(trained.run))


def _static(trained: Trained) -> Iterator[Claim]:
    yield from _launched(kernels_of(trained.run))
    operators = trained.run.summary("op").filter(pl.col("name").str.contains("matmul"))
    calls = operators["calls"].max()
    yield _equal("calls of matmul by 2 layers", calls, 2 * num_steps(trained.run))


def _mixed_precision(trained: Trained) -> Iterator[Claim]:
    kernels = kernels_of(trained.run)
    yield from _launched(kernels)
    halves = kernels.filter(pl.col("name").str.contains("(?i)bf16|bfloat16|fp16|float16|half"))
    least = num_steps(trained.run)
    found = f"kernels of a 16-bit dtype: {halves.height}"
    yield Claim(halves.height >= least, found, f"at least {least}")


def _flash_attention(trained: Trained) -> Iterator[Claim]:
    kernels = kernels_of(trained.run)
    yield from _launched(kernels)
    for way, pattern in (("forward", "(?i)flash.*fwd"), ("backward", "(?i)flash.*bwd_dq_dk_dv")):
        count = int(kernels["name"].str.contains(pattern).sum())
        yield _equal(f"{way} kernels of flash attention", count, num_steps(trained.run))


def _captures(trained: Trained) -> Iterator[Claim]:
    """Steps 4 to 7 end in captures; window 0 ends ahead of them, window 1 would begin in one."""
    yield _equal("the last step was trained", "step 7" in trained.output, True)
    yield _equal("recorded windows", trained.run.windows(), [0])
    said = "Paddle's profiler would break the capture" in trained.output
    yield _equal("a message says why window 1 is not recorded", said, True)
    steps = trained.run.step_times.sort("step")
    timed = steps["device_timed"].to_list()
    yield _equal("steps whose end is the device's", timed, [True] * 4 + [False] * 4)
    excluded = steps["excluded"].to_list()[4:]
    yield _equal("steps that end in a capture and are excluded from means", excluded, [True] * 4)


def _graph(trained: Trained) -> Iterator[Claim]:
    kernels = kernels_of(trained.run)
    yield from _launched(kernels)
    launches = {name_of_call(str(name)) for name in kernels["launch"]}
    is_graph = bool(launches) and all("GraphLaunch" in name for name in launches)
    yield Claim(is_graph, f"launches: {', '.join(sorted(launches))}", "of a graph")
    replays = kernels.group_by("step", "correlation_id").agg(pl.len()).sort("step")
    steps = trained.run.cluster().steps.sort("step")
    yield _equal("steps of the replays", replays["step"].to_list(), steps["step"].to_list())
    yield _equal("replays", replays["correlation_id"].n_unique(), steps.height)
    sizes = sorted(set(replays["len"].to_list()))
    yield Claim(
        len(sizes) == 1 and sizes[0] >= 3,
        f"kernels of a replay: {_text(sizes)}",
        "3 or more, alike",
    )
    calls = trained.run.summary("kernel")["calls"].sum()
    yield _equal("calls in the Kernel Summary", calls, kernels.height)
    busy = steps["computation_ns"].sum()
    in_kernels = float(kernels["dur_ns"].sum())
    yield _near("computation of the steps", busy, in_kernels, 0.01, is_timed=False)
    longer = steps.filter(pl.col("computation_ns") > pl.col("step_ns")).height
    yield _equal("steps with more computation than time", longer, 0)


def _asynchronous(trained: Trained) -> Iterator[Claim]:
    true_ns = trained.measured["step"] * 1e9
    yield _near("step in the trace", trained.run.cluster().steps["step_ns"].median(), true_ns, 0.2)
    yield _near("step outside of windows", outside_ns(trained), true_ns, 0.2)


def outside_ns(trained: Trained) -> object:
    """Return the median step outside of windows, in nanoseconds; None without one."""
    times = read_step_times(trained.folder / "log").filter(~pl.col("excluded"))
    return times.filter(pl.col("window").is_null())["batch_cost_ns"].median()


def _memory(trained: Trained) -> Iterator[Claim]:
    peaks = trained.measured["peaks"]
    grown = [peaks[step + 1] - peaks[step] for step in range(3)]
    yield _equal("growth of Paddle's peak in the first steps", grown, [1 << 22] * 3)
    logged = read_step_times(trained.folder / "log")["device_peak_bytes"].to_list()
    yield _equal("peaks in the step log", logged, peaks)


_LIMIT_MB = 0.1


def _budget(trained: Trained) -> Iterator[Claim]:
    windows = {recording.window for recording in trained.run.recordings}
    found = f"recorded windows of 10: {len(windows)}"
    yield Claim(0 in windows and len(windows) < 10, found, "the first ones")
    text = f"rank 0: window {max(windows, default=-1) + 1} is not recorded on this rank"
    is_said = text in trained.output and f"Profiler.max_trace_mb {_LIMIT_MB}" in trained.output
    yield _equal("a message names the first window that is not recorded", is_said, True)
    size = sum(recording.files[0].stat().st_size for recording in trained.run.recordings)
    yield Claim(size <= _LIMIT_MB * 1e6, f"traces: {size} bytes", f"at most {_LIMIT_MB} MB")


def _copies(trained: Trained) -> Iterator[Claim]:
    """From memory that is not pinned, a copy returns when the stream has reached it."""
    calls = trained.run.events().filter(category="CudaRuntime")
    copies = [name_of_call(name) for name in calls["name"].cast(pl.String)].count("cudaMemcpyAsync")
    yield _equal("copies", copies, num_steps(trained.run))
    steps = trained.run.cluster().steps
    for column, name in (("host_launch_ns", "launches"), ("host_bound_ns", "Host Bound")):
        ratio = float(str((steps[column] / steps["computation_ns"]).max()))
        found = f"{name} of a step: at most {ratio:.0%} of its computation"
        expected = "below 50%: the host waits in the copies"
        yield Claim(ratio < 0.5, found, expected, is_timed=True)


def _communicate(trained: Trained) -> Iterator[Claim]:
    run = trained.run
    kernels = kernels_of(run).filter(pl.col("name").str.contains("(?i)nccl"))
    spans = run.events().filter(category="Communication")
    spans = spans.filter(~pl.col("name").cast(pl.String).str.contains(".", literal=True))
    own = spans.select(
        *("rank", "name", "axis", "peers", "bytes", "dtype"),
        thread_of_launch="thread",
        start="start_ns",
        end=pl.col("start_ns") + pl.col("dur_ns"),
    )
    inside = kernels.join(own, on=["rank", "thread_of_launch"], suffix="_span").filter(
        pl.col("launch_ns").is_between(pl.col("start"), pl.col("end"))
    )
    per_step = inside.group_by("rank", "name_span").agg(pl.len())
    counts = {
        (rank, str(name)): count / num_steps(run, rank)
        for rank, name, count in per_step.iter_rows()
    }
    for rank, alone in ((0, "send"), (1, "recv")):
        names = ["all_reduce", "broadcast", "all_gather", "reduce_scatter", alone]
        found = [name for name in names if counts.get((rank, name)) == 1]
        yield _equal(f"rank {rank}: operations with one kernel a step", found, names)
        grouped = counts.get((rank, "batch_isend_irecv"), 0)
        yield Claim(
            grouped >= 1,
            f"rank {rank}: kernels of batch_isend_irecv a step: {grouped:.0f}",
            "1 or more",
        )
    yield _equal("spans with other values than their call's", _misdescribed(spans), [])
    # C++ launches those of the reducer, outside of spans: the group's stream says their axis.
    outside = kernels.height - inside.height
    yield Claim(outside > 0, f"kernels of the reducer: {outside}", "1 or more")
    for recording in run.recordings:
        found_axes = communication_events(Profile(run.trace(recording.rank)))
        of_rank = kernels.filter(rank=recording.rank).height
        name = f"rank {recording.rank}: communication kernels with an axis"
        yield _equal(name, found_axes.filter(axis="dp").height, of_rank)
    least = run.cluster().steps["exposed_dp_ns"].min()
    yield Claim(float(str(least)) > 0, f"exposed communication: {_time(least)}, or more", "above 0")


def _misdescribed(spans: pl.DataFrame) -> list[str]:
    """Return the spans whose axis, peers, bytes or dtype is not that of the training's call."""
    size = 4 * FLOATS
    found = []
    for rank, name, *values in spans.select(
        "rank", pl.col("name").cast(pl.String), "axis", "peers", "bytes", "dtype"
    ).iter_rows():
        peers, num_bytes = "0,1", size
        if name in ("send", "recv"):
            peers = str(1 - rank)
        if name == "batch_isend_irecv":
            peers, num_bytes = f">{1 - rank}:{size},<{1 - rank}:{size}", 2 * size
        if values != ["dp", peers, num_bytes, "float32"]:
            found.append(f"{name} of rank {rank}: {_text(values)}")
    return found


def last_arrivals(run: Run) -> pl.DataFrame:
    """Return the row of each step of the rank that came last, which does not wait for the other."""
    steps = run.cluster().steps.sort("communication_dp_ns")
    return steps.group_by("step", maintain_order=True).first()


def _overlap(trained: Trained) -> Iterator[Claim]:
    """Of an all-reduce beside two matmuls, the part beside the matmuls is hidden.

    ::

    compute  ##########_
    dp       ####################
    hidden   ##########
    """
    measured = trained.measured
    last = last_arrivals(trained.run)
    both_ns = last["computation_ns"] + last["communication_dp_ns"] - last["hidden_dp_ns"]
    yield _near("computation and communication", both_ns.median(), measured["both"] * 1e9, 0.15)
    saved_ns = (measured["compute"] + measured["communicate"] - measured["both"]) * 1e9
    hidden = last["hidden_dp_ns"].median()
    yield Claim(
        float(str(hidden)) >= 0.85 * saved_ns,
        f"hidden communication: {_time(hidden)}",
        f"at least 85% of {_time(saved_ns)}, which the training saves by it",
        is_timed=True,
    )


def _ended(trained: Trained) -> Iterator[Claim]:
    """With SIGTERM's exit code, within the 20 s of the rescue, and with the step times on disk."""
    yield _equal("exit codes after SIGTERM", list(trained.exit_codes), [-15, -15])
    times = read_step_times(trained.folder / "log")
    for rank in range(2):
        steps = times.filter(rank=rank)["step"].to_list()[:3]
        yield _equal(f"rank {rank}: steps on disk", steps, [0, 1, 2])


def _refused(trained: Trained) -> Iterator[Claim]:
    said = "is not recorded" in trained.output and "what to do" in trained.output
    yield _equal("a message says why the device is not recorded", said, True)
    yield _equal("the last step was trained", "step 7" in trained.output, True)
    events = trained.run.events()
    yield _equal("recorded kernels", events.filter(category="Kernel").height, 0)
    operators = events.filter(category="Operator").height
    yield Claim(operators > 0, f"recorded operators: {operators}", "1 or more")


@dataclass(frozen=True)
class Body:
    """A training, and what must hold of it."""

    claims: Callable[[Trained], Iterator[Claim]]
    training: str
    settings: Sequence[str] = ()
    """Keys of its ``Profiler`` block."""
    num_devices: int = 1
    needs_kernels: bool = True
    """Whether it concerns only devices whose kernels are recorded."""
    ends_by_signal: bool = False

    def train(self, machine: Machine, folder: Path) -> Trained:
        """Run the training in a folder, to its end."""
        if self.ends_by_signal:
            return end_by_signal(machine, folder, self.training)
        processes = self.num_devices if self.num_devices > 1 else 0
        return train(machine, folder, self.training, self.settings, processes)

    def check(self, trained: Trained) -> Iterator[Claim]:
        """Return the claims; of a training that failed, how it ended."""
        if not self.ends_by_signal and list(trained.exit_codes) != [0]:
            last = [line for line in trained.output.splitlines() if line.strip()][-1:]
            yield _equal("exit code of the training", list(trained.exit_codes), [0])
            yield Claim(False, f"its last line: {_text(last)[:200]}", "no error")
            return
        without = trained.without_device
        if self.needs_kernels and without:
            yield Claim(False, without, "windows that hold the device's kernels")
            return
        yield from self.claims(trained)


_Two = partial(Body, num_devices=2)
BODIES = {
    "kernels": Body(_kernels, "kernels"),
    "to_static": Body(_static, "static"),
    "mixed precision": Body(_mixed_precision, "mixed_precision"),
    "flash attention": Body(_flash_attention, "flash_attention"),
    "captures": Body(
        _captures, "captures", ["scheduler={closed: 1, ready: 0, record: 2, repeat: 2}"]
    ),
    "CUDA graph": Body(_graph, "graph"),
    "asynchronous": Body(_asynchronous, "asynchronous"),
    "memory": Body(_memory, "memory", needs_kernels=False),
    "disk budget": Body(
        _budget,
        "long",
        [
            "scheduler={closed: 0, ready: 1, record: 4, repeat: 10}",
            f"max_trace_mb={_LIMIT_MB}",
        ],
    ),
    "copies": Body(_copies, "copies"),
    "communication": _Two(_communicate, "communicate"),
    "overlap": _Two(_overlap, "overlap"),
    "stuck rank": _Two(_ended, "left_alone", needs_kernels=False, ends_by_signal=True),
}
"""The bodies by the names that ``ppprof doctor --selftest`` prints."""
REFUSED = Body(_refused, "kernels", needs_kernels=False)
"""The body for a device whose profiler refuses."""
