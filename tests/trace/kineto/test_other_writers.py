"""Files of other writers are read, or named: Ascend's, rocprof's, begin and end events, quoted numbers."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import ppprof
from ppprof.analysis.profile.profile import Profile
from ppprof.errors import TraceError
from ppprof.trace import read
from tests.fixtures.torch_traces import BASE_US, Event, TorchTrace, training, write_events


def breakdown_ms(path: Path) -> dict[str, float]:
    row = ppprof.open(path).breakdown("rank").row(0, named=True)
    times = {name: value for name, value in row.items() if name.endswith("_ns") and value}
    return {name: round(value / 1e6, 3) for name, value in times.items()}


def quoted(event: Event) -> Event:
    return {
        **event,
        **{key: str(event[key]) for key in ("pid", "tid", "ts", "dur") if key in event},
    }


def in_pairs(events: list[Event]) -> list[Event]:
    """Each span as its begin and its end, by time; what encloses another begins first and ends last."""
    order: list[tuple[Decimal, int, Decimal, Event]] = []
    for event in events:
        begin = Decimal(str(event["ts"]))
        if event["ph"] != "X":
            order.append((begin, 0, Decimal(0), event))
            continue
        dur = Decimal(str(event["dur"]))
        opened = {key: value for key, value in event.items() if key != "dur"} | {"ph": "B"}
        closed = {key: event[key] for key in ("pid", "tid", "name")} | {"ph": "E"}
        order.append((begin, 2, -dur, opened))
        order.append((begin + dur, 1, -begin, {**closed, "ts": float(begin + dur)}))
    return [event for _, _, _, event in sorted(order, key=lambda item: item[:3])]


@st.composite
def trainings(draw: st.DrawFn) -> TorchTrace:
    trace = TorchTrace()
    for step in range(draw(st.integers(1, 3))):
        trace.step(step, step * 10_000, 9_000)
        for number in range(draw(st.integers(1, 4))):
            at = step * 10_000 + number * 2000 + draw(st.integers(0, 500))
            trace.op("aten::linear", at, 300)
            trace.op("aten::mm", at + 1, 200)
            trace.launch(at + 5, f"kernel{number}", at + 20, draw(st.integers(1, 1500)))
    return trace


@given(trainings())
@settings(max_examples=15)
@pytest.mark.parametrize(
    "written", [lambda e: [quoted(x) for x in e], in_pairs], ids=["text", "pairs"]
)
def test_other_spellings_of_a_trace_give_the_same_tables(tmp_path_factory, written, trace):
    folder = tmp_path_factory.mktemp("file")
    usual = read(write_events(folder / "a.json", trace.events))
    other = read(write_events(folder / "b.json", written(trace.events)))
    assert other.skipped == {}
    for table in ("events", "kernels", "memory"):
        assert_frame_equal(getattr(other, table), getattr(usual, table), categorical_as_str=True)


def test_both_cores_read_pairs_and_quoted_numbers(tmp_path, each_core):
    expected = {"step_ns": 10, "computation_ns": 7.2}
    for name, events in (
        ("a", [quoted(event) for event in training().events]),
        ("b", in_pairs(training().events)),
        ("c", [{**event, "pid": f"process {event['pid']}"} for event in training().events]),
    ):
        path = write_events(tmp_path / f"{name}.json", events)
        found = breakdown_ms(path)
        assert {key: found[key] for key in expected} == expected, name


@pytest.mark.parametrize(
    ("device", "stream"), [("GPU 0", "stream 7"), ("[TP01] 0", "[TP01] 7"), ("cuda:0", "7 (nccl)")]
)
def test_devices_and_streams_have_the_numbers_in_their_ids(tmp_path, device, stream, each_core):
    trace = training(num_steps=1)
    for kernel in trace.kernels():
        del kernel["args"]["device"], kernel["args"]["stream"]
        kernel.update(pid=device, tid=stream)
    kernels = read(write_events(tmp_path / "a.json", trace.events)).events.filter(ppprof_device())
    assert kernels.select("device", "stream").unique().rows() == [(0, 7)]


def test_an_intel_trace_is_whole(tmp_path, each_core):
    """oneCCL's call is a host event; a wait for the device is no work."""
    trace = training(num_steps=1, num_kernels=1)
    for event in trace.events:
        if event.get("cat") == "cuda_runtime":
            event["cat"] = "xpu_runtime"
    trace.span("collective_comm", "xccl::allreduce", 300, 200)
    trace.span("xpu_sync", "zeEventHostSynchronize", 600, 100)
    read_trace = read(write_events(tmp_path / "a.json", trace.events))
    call = read_trace.events.filter(name="xccl::allreduce")
    assert call.select("category", "dur_ns", "depth", "step").rows() == [
        ("Communication", 200_000, 1, 0)
    ]
    assert read_trace.skipped == {}
    assert read_trace.ignored["xpu_sync"] == 1


def test_a_begin_without_an_end_is_counted(tmp_path):
    events = in_pairs(training(num_steps=1, num_kernels=2).events)
    lost = next(event for event in events if event["ph"] == "E" and event["name"] == "aten::mm")
    events.remove(lost)
    trace = read(write_events(tmp_path / "a.json", events))
    assert trace.skipped == {"begins of spans without an end": 1}
    assert trace.events.filter(category="Operator").height == 1


class Ascend:
    """Events as torch_npu and msprof write them."""

    def __init__(self) -> None:
        names = {1: "Python", 2: "CANN", 3: "Ascend Hardware", 4: "HCCL", 5: "Overlap Analysis"}
        self.events: list[Event] = [
            {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
            for pid, name in names.items()
        ]
        self._connection = 0

    def span(self, pid: int, name: str, ts: float, dur: float, tid: int = 2, **more: Any) -> None:
        time = {"ts": f"{BASE_US + ts:.3f}", "dur": dur}
        self.events.append({"ph": "X", "name": name, "pid": pid, "tid": tid, **time, **more})

    def python(self, name: str, ts: float, dur: float) -> None:
        self.span(1, name, ts, dur, 1001, cat="cpu_op", args={})

    def task(self, name: str, ts: float, dur: float, kind: str = "AI_CORE") -> None:
        """Add a call of CANN and the task that it starts."""
        self._connection += 1
        link = {"connection_id": self._connection}
        self.span(2, "AscendCL@aclopExecute", ts - 20, 10, 1001, args=link)
        self.span(3, name, ts, dur, args={"Task Type": kind, "Stream Id": 2, **link})
        self.span(5, "Computing", ts, dur)

    def collective(self, ts: float, dur: float) -> None:
        self.span(4, "hcom_allReduce__428_0_1", ts, dur, args={"connection_id": 10**6})
        for name in ("Notify_Wait", "Reduce_Inline", "Memcpy"):
            self.span(4, name, ts, dur / 3, 3, args={})
        self.span(3, "hcom_allReduce__428_0_1", ts, dur, 9, args={"Task Type": "COMMUNICATION"})
        self.span(3, "Notify_Wait", ts, dur, 9, args={"Task Type": "NOTIFY_WAIT_SQE"})
        self.span(5, "Communication", ts, dur, 1)


def ascend_training() -> Ascend:
    trace = Ascend()
    for step in range(3):
        begin = step * 10_000
        trace.python(f"ProfilerStep#{step}", begin, 10_000)
        for number in range(8):
            at = begin + 50 + number * 1200
            trace.python("aten::mm", at, 100)
            trace.task("MatMulV2", at + 40, 900)
        trace.collective(begin + 9650, 300)
    return trace


@pytest.mark.parametrize("top", [None, {}], ids=["list", "object"])
def test_a_trace_of_torch_npu(tmp_path, top, each_core):
    """Case 18: 3 steps of 10 ms, computation 7.2 ms, one all-reduce of 0.3 ms, exposed."""
    path, events = tmp_path / "trace_view.json", ascend_training().events
    path.write_text(json.dumps(events if top is None else {**top, "traceEvents": events}))
    found = breakdown_ms(path)
    assert (found["step_ns"], found["computation_ns"]) == (10, 7.2)
    assert [value for name, value in found.items() if name.startswith("exposed")] == [0.3]
    operators = ppprof.open(path).summary("op").filter(name="aten::mm")
    assert operators.select("calls", "gpu_total_ns").row(0) == (24, 24 * 900_000)


@pytest.mark.parametrize("number", [str, float], ids=["text", "numbers"])
def test_a_task_of_a_queue_belongs_to_the_operator_that_enqueued_it(tmp_path, number, each_core):
    """The other thread is 1.2 ms behind, and takes tasks of step 0 out in step 1::

    main     aten::mm       aten::mm       ProfilerStep#1
               enqueue        enqueue
    other                   dequeue            dequeue
                              CANN               CANN
    """
    trace = Ascend()
    for step in range(2):
        trace.python(f"ProfilerStep#{step}", step * 1000, 1000)
        for task in range(2):
            at, own = step * 1000 + 100 + task * 400, {"correlation_id": 2 * step + task}
            trace.python("aten::mm", at, 100)
            trace.span(1, "Enqueue@aclnnMm", at + 50, 5, 1001, cat="enqueue", args=own)
            trace.span(1, "Dequeue@aclnnMm", at + 1200, 60, 1002, cat="dequeue", args=own)
            link = {"connection_id": 1 + 2 * step + task}
            trace.span(2, "AscendCL@aclnnMm", at + 1210, 30, 1002, args=link)
            trace.span(3, "MatMulV3", at + 1300, 90, args={"Task Type": "AI_CORE", **link})
    trace.span(2, "AscendCL@aclrtSynchronize", 50, 10, 1001, args={"connection_id": 99})
    trace.span(2, "AscendCL@aclrtMalloc", 3000, 10, 1002, args={"connection_id": 98})
    for event in trace.events[5:]:
        event["ts"] = number(event["ts"])
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps(trace.events))
    found = read(path)
    assert found.skipped == {}
    assert (found.ignored["enqueue"], found.ignored["dequeue"]) == (4, 4)
    events = found.events
    assert events.filter(ppprof_device())["step"].to_list() == [0, 0, 1, 1]
    calls = events.filter(category="CudaRuntime").sort("start_ns")
    assert ((calls["start_ns"] - BASE_US * 1000) // 1000).to_list() == [
        *(50, 150, 550, 1150, 1550),
        3000,
    ]
    operators = ppprof.open(path).summary("op").filter(name="aten::mm")
    assert operators.select("calls", "gpu_total_ns").row(0) == (4, 4 * 90_000)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["MatMulV2", "Add", "EVENT_WAIT", "hcom", "MEMCPY_ASYNC"]),
            st.integers(1, 40),
        ),
        min_size=1,
        max_size=12,
    )
)
@settings(max_examples=25)
def test_each_task_of_an_ascend_device_counts_once(tmp_path_factory, tasks):
    trace = Ascend()
    trace.python("ProfilerStep#0", 0, 10_000)
    expected: Counter[tuple[str, int]] = Counter()
    for number, (name, dur) in enumerate(tasks):
        at = 50 + number * 200
        if name == "hcom":
            trace.collective(at, dur * 3)
            expected["hcom_allReduce__428_0_1", dur * 3000] += 1
        else:
            trace.task(name, at, dur, name)
            expected[name, dur * 1000] += name != "EVENT_WAIT"
    path = tmp_path_factory.mktemp("file") / "trace_view.json"
    path.write_text(json.dumps(trace.events))
    found = read(path).events.filter(ppprof_device())
    rows = found.select("name", "dur_ns").cast({"name": str}).iter_rows()
    assert Counter(rows) == +expected
    assert set(found["step"]) <= {0, None}


def ppprof_device() -> Any:
    import polars as pl

    return pl.col("device").is_not_null()


def rocprof() -> list[Event]:
    """As roctracer's scripts write: an arrow from the call to its kernel, exact times in the args."""
    names = {2: "CPU HIP API", 1: "COPY", 6: "GPU0"}
    events: list[Event] = [{}]
    events += [
        {"args": {"name": name}, "ph": "M", "pid": pid, "name": "process_name", "sort_index": 0}
        for pid, name in names.items()
    ]

    def span(pid: int, tid: int, name: str, begin: int, end: int, **args: str) -> Event:
        times = {"BeginNs": str(begin), "EndNs": str(end), "DurationNs": str(end - begin)}
        return {
            **{"ph": "X", "name": name, "pid": str(pid), "tid": str(tid), "ts": str(begin // 1000)},
            **{"dur": str((end - begin) // 1000 + 1), "args": {**times, "pid": "517", **args}},
        }

    for number, (pid, name) in enumerate([(1, "CopyHostToDevice"), (6, "gemm"), (6, "gemm")]):
        begin = 773_902_396_463_126 + number * 100_000
        place = {"dev-id": "0", "stream-id": "1"}
        events.append(span(2, 517, "hipLaunchKernel", begin, begin + 5_250))
        events.append(span(pid, 1, name, begin + 20_100, begin + 28_580, **place))
        for ph, time, process, thread in (
            ("s", begin + 2000, 2, 517),
            ("t", begin + 20_100, pid, 1),
        ):
            arrow = {"ts": time // 1000, "ph": ph, "cat": "DataFlow", "id": number}
            events.append({**arrow, "pid": process, "tid": thread, "name": "dep"})
    return events


def test_a_trace_of_rocprof(tmp_path, each_core):
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"traceEvents": rocprof(), "otherData": {}}))
    trace = read(path)
    devices = trace.events.filter(ppprof_device())
    columns = devices.select("name", "category", "dur_ns", "device", "stream").cast(
        {"name": str, "category": str}
    )
    assert columns.rows() == [
        ("CopyHostToDevice", "Memcpy", 8480, 0, 1),
        ("gemm", "Kernel", 8480, 0, 1),
        ("gemm", "Kernel", 8480, 0, 1),
    ]
    assert devices["parent"].to_list() == [0, 1, 2]  # each has its launch


def _rocprof_file(path: Path) -> Path:
    path.write_text(json.dumps({"traceEvents": rocprof(), "otherData": {}}))
    return path


def _only_devices(path: Path) -> Path:
    """As torch records with activities=[CUDA]: launches without host events."""
    trace = TorchTrace()
    for start in (0, 100):
        trace.launch(start, "gemm", start + 20, 8.48)
    return trace.write(path)


@pytest.mark.parametrize("written", [_rocprof_file, _only_devices])
def test_kernels_without_operators_count_where_a_launch_is_recorded(tmp_path, written):
    """Two kernels of 8.48 us, launched outside host events."""
    profile = Profile(read(written(tmp_path / "results.json")))
    kernels = profile.tree.counted_devices.filter(category="Kernel")
    assert kernels.select("name", "gpu_ns").cast({"name": str}).rows() == [("gemm", 8480)] * 2


def in_tar(path: Path) -> bytes:
    content = json.dumps({"schemaVersion": 1, "traceEvents": training().events}).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        information = tarfile.TarInfo("a.json")
        information.size = len(content)
        archive.addfile(information, io.BytesIO(content))
    return buffer.getvalue()


def before_kineto(_: Path) -> bytes:
    events = [
        {
            **{"name": name, "ph": "X", "ts": 1000 + number * 100, "dur": 54},
            "tid": 1,
            "pid": pid,
            "args": {},
        }
        for number in range(30)
        for name, pid in (("aten::mm", "CPU functions"), ("sgemm_128", "CUDA functions"))
    ]
    return json.dumps(events).encode()


def asynchronous(_: Path) -> bytes:
    events = [
        {
            "cat": "m",
            "name": str(n // 2),
            "id": str(n // 2),
            "ph": "be"[n % 2],
            "ts": 1000 + n * 10,
            "pid": 0,
        }
        for n in range(40)
    ]
    return json.dumps(events).encode()


def of_xla(_: Path) -> bytes:
    names = {"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "/device:GPU:0"}}
    span = {"ph": "X", "pid": 3, "tid": 1, "ts": 1, "dur": 2, "name": "fusion.1"}
    return gzip.compress(
        json.dumps({"displayTimeUnit": "ns", "traceEvents": [names, span]}).encode()
    )


NAMED: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "before Kineto": (before_kineto, "torch's profiler before Kineto"),
    "asynchronous": (asynchronous, "40 asynchronous spans"),
    "XLA": (of_xla, "XLA's profiler (JAX, TensorFlow)"),
    "tar": (in_tar, "a tar archive; unpack it"),
    "UTF-16": (lambda _: json.dumps({"traceEvents": []}).encode("utf-16"), "UTF-16"),
    "UTF-16 without a mark": (lambda _: b"[\0{\0" + b" \0" * 300, "UTF-16"),
    "zip": (lambda _: b"PK\3\4" + bytes(600), "a zip archive"),
    "zstd": (lambda _: b"\x28\xb5\x2f\xfd" + bytes(600), "zstd"),
    "an execution trace": (
        lambda _: json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id": 1}]}).encode(),
        "execution trace",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", NAMED)
def test_what_is_not_read_is_named(tmp_path, kind):
    written, name = NAMED[kind]
    path = tmp_path / "a.json"
    path.write_bytes(written(path))
    with pytest.raises(TraceError) as error:
        read(path)
    assert name in str(error.value)


@pytest.mark.parametrize(
    "command", ["summary", "ranks", "advise", "report", "merge", "convert", "diff"]
)
@pytest.mark.parametrize("kind", ["before Kineto", "asynchronous", "tar"])
def test_every_command_rejects_it(tmp_path, cli, kind, command):
    written, name = NAMED[kind]
    path = tmp_path / "a.json"
    path.write_bytes(written(path))
    more = {
        "report": ["-o", str(tmp_path / "a.html")],
        "merge": ["-o", str(tmp_path / "merged.json")],
        "convert": [str(tmp_path / "b.pb")],
        "diff": ["--experiment-rank", "0"],
    }
    output = cli(command, path, *more.get(command, []), code=3)
    assert output.out == ""
    assert name in output.err
