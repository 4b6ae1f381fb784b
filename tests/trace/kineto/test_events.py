from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.views import summarize
from ppprof.choices import VIEWS, SummaryOptions
from ppprof.trace.kineto.columns import KinetoColumns
from ppprof.trace.kineto.event_fields import KinetoArgs, KinetoEvent
from ppprof.trace.kineto.events import kineto_trace as trace_of
from ppprof.trace.schema import EVENTS, KERNELS, MEMORY, MEMSETS, Trace

FIXTURES = Path(__file__).parents[2] / "fixtures" / "kineto"
FILES = ["cpu_ddp_rank1.json.gz", "gpu_ddp.json"]
PID, MAIN, ENGINE = 40, 41, 42


def kineto_trace(head: dict[str, Any], batches: Iterable[list[KinetoEvent]]) -> Trace:
    columns = KinetoColumns()
    num_events = 0
    for batch in batches:
        columns.add_decoded(num_events, batch)
        num_events += len(batch)
    return trace_of(head, columns)


def _document(name: str) -> dict[str, Any]:
    data = (FIXTURES / name).read_bytes()
    text = gzip.decompress(data) if name.endswith("gz") else data
    document: dict[str, Any] = json.loads(text, parse_float=lambda number: Decimal(number))
    return document


def _decode(events: list[dict[str, Any]]) -> list[KinetoEvent]:
    encoder = msgspec.json.Encoder(decimal_format="number")
    return msgspec.json.decode(encoder.encode(events), type=list[KinetoEvent])


def _read(name: str, batch: int = 10**9) -> Trace:
    head = _document(name)
    events = _decode(head.pop("traceEvents"))
    return kineto_trace(
        head, [events[first : first + batch] for first in range(0, len(events), batch)]
    )


def _trace(*events: dict[str, Any], **head: Any) -> Trace:
    return kineto_trace(head, [_decode(list(events))])


def _x(name: str, ts: float, dur: float, tid: int = MAIN, cat: str = "cpu_op", **args: Any) -> Any:
    return {
        **{"ph": "X", "cat": cat, "name": name, "pid": PID, "tid": tid, "ts": ts, "dur": dur},
        "args": {key.replace("__", " "): value for key, value in args.items()},
    }


def _note(name: str, ts: float, dur: float, tid: int = MAIN) -> Any:
    return _x(name, ts, dur, tid, "user_annotation")


def _node(name: str, ts: float, dur: float, tid: int = ENGINE) -> Any:
    return _x(f"autograd::engine::evaluate_function: {name}", ts, dur, tid)


def _device(name: str, ts: float, dur: float, cat: str = "kernel", **args: Any) -> Any:
    return _x(name, ts, dur, 7, cat, **{"device": 0, "context": 1, "stream": 7, **args})


def _tree(trace: Trace) -> list[str]:
    """Host events as an indented list: category, name and, if there are any, annotations."""
    return [
        "  " * row["depth"]
        + " ".join(
            str(row[column])
            for column in ("category", "name", "bytes", "group", "peers")
            if row[column] is not None
        )
        for row in trace.events.filter(pl.col("depth").is_not_null()).iter_rows(named=True)
    ]


def _rows(trace: Trace, *columns: str, **where: Any) -> list[tuple[Any, ...]]:
    return trace.events.filter(**where).select(columns).rows()


# Against torch's own numbers


def _key_averages() -> dict[str, tuple[int, float, float]]:
    path = FIXTURES / "cpu_ddp_rank1.key_averages.json"
    return {name: tuple(values) for name, values in json.loads(path.read_text("utf-8")).items()}


_ANNOTATIONS = {"ProfileStep", "Dataloader", "Optimization", "PythonUserDefined"}


def _torch_name(name: str) -> str:
    return "ProfilerStep*" if name.startswith("ProfileStep#") else name


def test_calls_and_times_of_every_name_equal_torchs() -> None:
    events = _read("cpu_ddp_rank1.json.gz").events
    ours: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    synthetic = {"Forward", "Backward"}  # not among torch's function events
    rows = events.rows(named=True)
    for row in rows:
        if row["category"] in synthetic:
            continue
        mine = ours[_torch_name(row["name"])]
        mine[0] += 1
        mine[1] += row["dur_ns"]
        mine[2] += row["dur_ns"]
        above = row["parent"]
        while above is not None and rows[above]["category"] in synthetic:
            above = rows[above]["parent"]
        if above is not None:
            ours[_torch_name(rows[above]["name"])][1] -= row["dur_ns"]
    torchs = _key_averages()
    assert ours.keys() == torchs.keys()
    # For torch, frames of Python, which ours leaves out, lie between an annotation and what it
    # holds; and the work of gloo's threads has no self time.
    annotations = {_torch_name(row["name"]) for row in rows if row["category"] in _ANNOTATIONS}
    compared = torchs.keys() - annotations - {"gloo:broadcast", "gloo:all_reduce"}
    assert len(compared) > 40
    for name, (calls, self_us, total_us) in torchs.items():
        assert ours[name][0] == calls, name
        assert ours[name][2] / 1000 == pytest.approx(total_us, abs=1e-6), name
        if name in compared:
            assert ours[name][1] / 1000 == pytest.approx(self_us, abs=1e-6), name


def test_the_operator_summary_has_torchs_totals() -> None:
    table = summarize(Profile(_read("cpu_ddp_rank1.json.gz"), SummaryOptions()), "op")
    operators = table.filter(kind="operator")
    torchs = _key_averages()
    assert operators.height > 20
    for name, calls, cpu_ns in operators.select("name", "calls", "cpu_total_ns").iter_rows():
        assert (calls, cpu_ns / 1000) == (torchs[name][0], pytest.approx(torchs[name][2]))
    missing = torchs.keys() - set(operators["name"])
    nodes = {name.split(": ")[1] for name in torchs if name.startswith("autograd::engine")}
    assert {name for name in missing if name.startswith("aten::")} == set()
    assert nodes <= missing | {"torch::autograd::AccumulateGrad"}


def test_the_model_summary_has_every_phase_of_a_cpu_trace() -> None:
    table = summarize(Profile(_read("cpu_ddp_rank1.json.gz"), SummaryOptions()), "model")
    assert table.select("name", "calls").rows() == [
        ("ProfileStep", 2),
        ("Dataloader", 2),
        ("Forward", 2),
        ("Backward", 2),
        ("Optimization", 2),
        ("Others", None),
    ]


def test_modules_become_the_forward_tree_with_their_class_names() -> None:
    trace = _read("cpu_ddp_rank1.json.gz")
    rows = trace.events.rows(named=True)
    paths = []
    for row in rows:
        if row["category"] != "Forward" or row["step"] != 1:
            continue
        path = [row["name"]]
        while (row := rows[row["parent"]])["category"] != "ProfileStep":
            if row["category"] == "Forward":
                path.insert(0, row["name"])
        paths.append("/".join(path))
    top = "DistributedDataParallel"
    assert paths == [
        top,
        f"{top}/Sequential",
        *[f"{top}/Sequential/Block", *[f"{top}/Sequential/Block/Linear"] * 2] * 2,
    ]


def test_extra_info_of_a_file() -> None:
    trace = _read("cpu_ddp_rank1.json.gz")
    info = dict(trace.extra_info)
    threads = {key: info.pop(key) for key in list(info) if key.isdigit()}
    assert info == {"rank": "1", "world_size": "2", "backend": "gloo", "host_name": "elsewhere"}
    assert set(threads) == set(map(str, trace.events["thread"].unique()))
    assert trace.skipped == {}
    assert trace.devices == ()


# A step of DDP on a GPU

GPU_TREE = """
ProfileStep ProfileStep#5
  PythonUserDefined Optimizer.zero_grad#SGD.zero_grad
  PythonUserDefined ## forward ##
    Forward DistributedDataParallel.forward
      Communication c10d::broadcast_ 212480 0 0,1
        OperatorInner record_param_comms
          OperatorInner nccl:broadcast
      Communication record_param_comms 424 0 0,1
      Operator aten::conv2d
        Operator aten::convolution
          Operator aten::_convolution
            Operator aten::cudnn_convolution
  PythonUserDefined ## backward ##
    Backward Backward
      Operator autograd::engine::evaluate_function: ReluBackward0
        OperatorInner ReluBackward0
          Operator aten::threshold_backward
      Operator autograd::engine::evaluate_function: torch::autograd::AccumulateGrad
        OperatorInner torch::autograd::AccumulateGrad
          Operator aten::detach
            Operator detach
        Operator torch::distributed::reducer::mul_out
          Operator aten::mul
        Communication c10d::allreduce_ 31502336 0 0,1
          OperatorInner record_param_comms
            OperatorInner nccl:all_reduce
      Operator autograd::engine::evaluate_function: ConvolutionBackward0
        OperatorInner ConvolutionBackward0
          Operator aten::convolution_backward
            Operator aten::to
            Operator aten::empty
  PythonUserDefined ## optimizer ##
    Optimization Optimizer.step#SGD.step
      Operator aten::_foreach_mul_
        Operator aten::result_type
        Operator aten::result_type
"""


def test_a_gpu_step_becomes_one_tree() -> None:
    assert _tree(_read("gpu_ddp.json")) == GPU_TREE.strip().splitlines()


def test_device_events_hang_on_their_launches() -> None:
    document = _document("gpu_ddp.json")
    trace = _read("gpu_ddp.json")
    rows = trace.events.rows(named=True)
    of_file = {
        event["args"]["correlation"]: event
        for event in document["traceEvents"]
        if event.get("cat") in ("kernel", "gpu_memset")
    }
    base_ns = document["baseTimeNanoseconds"]
    devices = [row for row in rows if row["device"] is not None]
    assert len(devices) == len(of_file) == 16
    for row in devices:
        event = of_file[row["correlation_id"]]
        launch = rows[row["parent"]]
        assert (launch["category"], launch["correlation_id"]) == (
            "CudaRuntime",
            row["correlation_id"],
        )
        assert (row["name"], row["stream"]) == (event["name"], event["args"]["stream"])
        assert row["start_ns"] == base_ns + int(event["ts"] * 1000)
        assert (row["step"], row["process"], row["thread"], row["depth"]) == (5, *[None] * 3)
    nccl = [row for row in devices if row["name"].startswith("nccl")]
    columns = ("bytes", "group", "dtype", "peers", "stream")
    assert [tuple(row[column] for column in columns) for row in nccl] == [
        (212480, 0, "float32", "0,1", 40),
        (31502336, 0, "float32", "0,1", 40),
    ]


def test_gpu_time_of_a_step_is_the_sum_of_its_phases() -> None:
    table = summarize(Profile(_read("gpu_ddp.json"), SummaryOptions()), "model")
    gpu_ns = dict(table.select("name", "gpu_total_ns").iter_rows())
    assert gpu_ns["ProfileStep"] == sum(
        dur_ns for (dur_ns,) in _rows(_read("gpu_ddp.json"), "dur_ns", category="Kernel")
    )
    assert gpu_ns["Others"] == 0


def test_launch_configurations() -> None:
    trace = _read("gpu_ddp.json")
    names = trace.events["name"].cast(pl.String).gather(trace.kernels["event"])
    assert set(trace.events["category"].gather(trace.kernels["event"])) == {"Kernel"}
    (broadcast,) = (
        trace.kernels.filter(names.str.starts_with("ncclKernel_Broadcast")).drop("event").rows()
    )
    (of_file,) = [
        event["args"]
        for event in _document("gpu_ddp.json")["traceEvents"]
        if event["name"].startswith("ncclKernel_Broadcast")
    ]
    assert broadcast == (
        *(*of_file["grid"], *of_file["block"]),
        of_file["registers per thread"],
        of_file["shared memory"],
        float(of_file["blocks per SM"]),
        float(of_file["warps per SM"]),
        of_file["est. achieved occupancy %"] / 100,
    )
    assert trace.kernels["occupancy"].max() == 1.0


def test_device_properties_have_paddles_keys() -> None:
    (device,) = _read("gpu_ddp.json").devices
    assert (device["name"], device["smCount"], "numSms" in device) == (
        "NVIDIA A100-PG509-200",
        108,
        False,
    )


# Properties of every file


@pytest.mark.parametrize("name", FILES)
def test_tables_have_the_schemas_columns_and_order(name: str) -> None:
    trace = _read(name)
    for table, columns in (
        (trace.events, EVENTS),
        (trace.memory, MEMORY),
        (trace.kernels, KERNELS),
        (trace.memsets, MEMSETS),
    ):
        assert dict(table.schema) == {key: dtype for key, (dtype, _) in columns.items()}
    rows = trace.events.rows(named=True)
    kinds = [
        2 if row["device"] is not None else 1 if row["correlation_id"] is not None else 0
        for row in rows
    ]
    assert kinds == sorted(kinds)
    hosts = rows[: kinds.count(0)]
    assert [row["thread"] for row in hosts] == sorted(row["thread"] for row in hosts)
    open_rows: list[int] = []
    for number, row in enumerate(hosts):
        del open_rows[row["depth"] :]
        assert row["parent"] == (open_rows[-1] if open_rows else None)
        open_rows.append(number)
        if row["parent"] is not None:
            above = hosts[row["parent"]]
            assert above["start_ns"] <= row["start_ns"]
            assert row["start_ns"] + row["dur_ns"] <= above["start_ns"] + above["dur_ns"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("batch", [1, 7, 100])
def test_the_size_of_batches_does_not_matter(name: str, batch: int) -> None:
    whole, cut = _read(name), _read(name, batch)
    for table in ("events", "memory", "kernels"):
        assert getattr(cut, table).equals(getattr(whole, table))


def test_a_file_without_events_is_an_empty_trace() -> None:
    trace = _trace()
    assert (trace.events.height, trace.memory.height, trace.skipped) == (0, 0, {})
    assert dict(trace.events.schema) == {key: dtype for key, (dtype, _) in EVENTS.items()}


def test_the_head_may_be_completed_while_the_events_are_read() -> None:
    head: dict[str, Any] = {}

    def batches() -> Iterable[list[KinetoEvent]]:
        yield _decode([_x("aten::add", 1, 1)])
        head["distributedInfo"] = {"rank": 3}

    assert kineto_trace(head, batches()).extra_info == {"rank": "3"}


# Time


@pytest.mark.parametrize(
    ("ts", "base_ns", "start_ns"),
    [
        ("1712195495519689.047", None, 1712195495519689047),  # some nightlies of April 2024
        ("1683564901548726", None, 1683564901548726000),
        ("4458676522690.655", 1711964646000000000, 1716423322522690655),
        ("7889237999999.999", 1711964646000000000, 1719853883999999999),
        ("1.5e3", None, 1500000),
    ],
)
def test_times_are_exact(ts: str, base_ns: int | None, start_ns: int) -> None:
    text = json.dumps([_x("aten::add", 0, 2.001)]).replace('"ts": 0', f'"ts": {ts}')
    head = {} if base_ns is None else {"baseTimeNanoseconds": base_ns}
    trace = kineto_trace(head, [msgspec.json.decode(text.encode(), type=list[KinetoEvent])])
    assert _rows(trace, "start_ns", "dur_ns") == [(start_ns, 2001)]


def test_whole_microseconds_may_put_an_end_past_the_parents() -> None:
    # Really 10.9..20.8 around 11.0..20.7: cut, the outer ends at 19, the inner at 20.
    assert _tree(_trace(_x("outer", 10, 9), _x("inner", 11, 9))) == [
        "Operator outer",
        "  Operator inner",
    ]
    # With nanoseconds such a pair crosses.
    assert _tree(_trace(_x("one", 10.001, 9), _x("two", 11, 9))) == ["Operator one", "Operator two"]


# The backward pass


def _step(*events: Any) -> Trace:
    return _trace(_note("ProfilerStep#7", 0, 100), *events)


def test_the_engines_thread_joins_the_step_that_waits_for_it() -> None:
    #   main    step  mse_loss -                       - Optimizer.step
    #   engine                   XBackward0 YBackward0
    trace = _step(
        *(_x("aten::mse_loss", 10, 5), _note("Optimizer.step#SGD.step", 60, 20)),
        *(
            _node("XBackward0", 20, 10),
            _x("XBackward0", 21, 8, ENGINE),
            _node("YBackward0", 35, 10),
        ),
        _x("cudaLaunchKernel", 22, 1, ENGINE, "cuda_runtime", correlation=9),
        _device("gemm", 40, 5, correlation=9),
    )
    assert _tree(trace) == [
        "ProfileStep ProfileStep#7",
        "  Operator aten::mse_loss",
        "  Backward Backward",
        "    Operator autograd::engine::evaluate_function: XBackward0",
        "      OperatorInner XBackward0",
        "    Operator autograd::engine::evaluate_function: YBackward0",
        "  Optimization Optimizer.step#SGD.step",
    ]
    assert _rows(trace, "start_ns", "dur_ns", category="Backward") == [(20_000, 25_000)]
    assert set(trace.events["thread"].drop_nulls()) == {MAIN}
    assert _rows(trace, "parent", "step", category="Kernel") == [(7, 7)]


@pytest.mark.parametrize("busy", [_x("aten::add", 25, 2), _x("aten::add", 18, 4)])
def test_the_engines_thread_stays_its_own_where_the_other_works_meanwhile(busy: Any) -> None:
    trace = _step(busy, _node("XBackward0", 20, 10))
    assert _tree(trace) == [
        "ProfileStep ProfileStep#7",
        "  Operator aten::add",
        "Backward Backward",
        "  Operator autograd::engine::evaluate_function: XBackward0",
    ]
    assert _rows(trace, "thread", "step", category="Backward") == [(ENGINE, 7)]


def test_two_engine_threads_at_once_stay_their_own() -> None:
    trace = _step(_node("X", 20, 10), _node("Y", 25, 10, tid=43), _node("Z", 50, 5, tid=43))
    assert _rows(trace, "thread", "start_ns", category="Backward") == [
        (ENGINE, 20_000),
        (43, 25_000),
    ]


def test_each_backward_pass_of_a_step_is_one() -> None:
    #   aten::a [X Y] aten::b [Z]    on a CPU, all on the thread that asks for it
    trace = _step(
        _x("aten::a", 5, 5),
        _node("X", 10, 5, MAIN),
        _node("Y", 20, 5, MAIN),
        _x("aten::b", 30, 5),
        _node("Z", 40, 5, MAIN),
    )
    assert _rows(trace, "start_ns", "dur_ns", "depth", category="Backward") == [
        (10_000, 15_000, 1),
        (40_000, 5_000, 1),
    ]


# Links from gradients to forward events


def _numbered(name: str, ts: float, number: int, tid: int = MAIN, dur: float = 2) -> Any:
    """An operator that runs while its thread is about to make node ``number``."""
    return _x(name, ts, dur, tid, Sequence__number=number, Fwd__thread__id=0)


def _gradient(name: str, ts: float, number: int, thread: int = 1, tid: int = ENGINE) -> list[Any]:
    """A node with that number, of what torch calls a thread of its own; and the one in it."""
    args = {"Sequence__number": number, "Fwd__thread__id": thread}
    outer = f"autograd::engine::evaluate_function: {name}"
    return [_x(outer, ts, 4, tid, **args), _x(name, ts + 1, 2, tid, **args)]


def _forwards(trace: Trace) -> list[tuple[str, str | None]]:
    """Name of each node of a backward pass, and of the operator whose gradient it is."""
    names = trace.events["name"].cast(pl.String)
    nodes = trace.events.with_columns(name=names, of=names.gather(trace.events["forward"]))
    is_node = pl.col("name").str.starts_with("autograd::engine::evaluate_function: ")
    return nodes.filter(is_node).select(pl.col("name").str.split(": ").list.last(), "of").rows()


@pytest.mark.parametrize(
    ("name", "num_links"), [("cpu_small_net.json.gz", 123), ("cpu_ddp_rank1.json.gz", 28)]
)
def test_gradients_link_to_where_torchs_own_arrows_begin(name: str, num_links: int) -> None:
    ends: dict[Any, dict[str, Any]] = defaultdict(dict)
    for event in _document(name)["traceEvents"]:
        if event.get("cat") == "fwdbwd":
            ends[event["id"]][event["ph"]] = event["ts"]
    base_ns = _document(name)["baseTimeNanoseconds"]
    arrows = {tuple(int(arrow[ph] * 1000) + base_ns for ph in "sf") for arrow in ends.values()}
    events = _read(name).events
    nodes = events.filter(pl.col("forward").is_not_null())
    begun = events["start_ns"].gather(nodes["forward"]).alias("begun")
    # An arrow ends at the inner of the two events that each node has.
    is_inner = events["forward"].gather(nodes["parent"]).eq_missing(nodes["forward"])
    links = nodes.with_columns(begun).filter(is_inner).select("begun", "start_ns").rows()
    assert len(links) == len(arrows) == num_links
    assert set(links) == arrows


def test_the_last_operator_with_a_number_made_the_node() -> None:
    #   main    linear 7                         mse 8
    #             t 7     addmm 8                       (engine)  Addmm 8   Sum   T 7   Loss 9
    trace = _step(
        _x("aten::linear", 5, 10, Sequence__number=7),
        _numbered("aten::t", 6, 7),
        _numbered("aten::addmm", 9, 8),
        *_gradient("AddmmBackward0", 30, 8),
        _node("torch::autograd::AccumulateGrad", 36, 2),
        *_gradient("TBackward0", 40, 7),
        *_gradient("LossBackward0", 50, 9),
    )
    assert _forwards(trace) == [
        ("AddmmBackward0", "aten::addmm"),
        ("torch::autograd::AccumulateGrad", None),
        ("TBackward0", "aten::t"),
        ("LossBackward0", None),
    ]
    assert [row for (row,) in _rows(trace, "forward", name="AddmmBackward0")] == [3]


def test_each_thread_counts_its_own_nodes() -> None:
    #   main    a 1  b 2  c 3
    #   43      d 1  e 2                        engine: of 1: 1 2 3, of 2: 1 2
    forward = [_numbered("aten::a", 5, 1), _numbered("aten::b", 8, 2), _numbered("aten::c", 11, 3)]
    other = [_numbered("aten::d", 5, 1, 43), _numbered("aten::e", 8, 2, 43)]
    of_one = [
        event
        for number, start in ((3, 30), (2, 36), (1, 42))
        for event in _gradient("X", start, number)
    ]
    of_other = [
        event for number, start in ((2, 50), (1, 56)) for event in _gradient("Y", start, number, 2)
    ]
    # The other thread may or may not be 43: a and b fit equally well.
    unsure = [("X", "aten::c"), ("X", "aten::b"), ("X", "aten::a"), ("Y", None), ("Y", None)]
    assert _forwards(_step(*forward, *other, *of_one, *of_other)) == unsure
    surely = [_numbered("aten::f", 12, 77, 43), *_gradient("Z", 62, 77, 2)]
    of_43 = [("Y", "aten::e"), ("Y", "aten::d"), ("Z", "aten::f")]
    assert _forwards(_step(*forward, *other, *of_one, *of_other, *surely)) == unsure[:3] + of_43


def test_a_gradient_never_links_to_a_later_operator() -> None:
    trace = _step(*_gradient("X", 20, 5), _numbered("aten::a", 40, 5))
    assert _forwards(trace) == [("X", None)]


# Categories


def test_categories_of_annotations() -> None:
    trace = _trace(
        _note("ProfilerStep#12", 0, 100),
        _note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1, 9),
        _note("DistributedDataParallel.forward", 10, 10),
        _note("mine", 20, 10),
        _note("Optimizer.step#AdamW.step", 30, 10),
        _note("Optimizer.zero_grad#AdamW.zero_grad", 40, 10),
        _note("gloo:all_reduce", 50, 10),
    )
    assert [line.strip() for line in _tree(trace)] == [
        "ProfileStep ProfileStep#12",
        "Dataloader enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "Forward DistributedDataParallel.forward",
        "PythonUserDefined mine",
        "Optimization Optimizer.step#AdamW.step",
        "PythonUserDefined Optimizer.zero_grad#AdamW.zero_grad",
        "Communication gloo:all_reduce",
    ]
    assert trace.events["step"].to_list() == [12] * 7


def test_marks_of_old_files_are_no_operators() -> None:
    """Torch 1.8 and 1.9 write every span of the host as "Operator"."""
    names = {
        "ProfilerStep#3": "ProfileStep",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": "Dataloader",
        "Optimizer.zero_grad#SGD.zero_grad": "PythonUserDefined",
        "aten::conv2d": "Operator",
        "Optimizer.step#SGD.step": "Optimization",
    }
    spans = [_x(name, 10 * number, 9, MAIN, "Operator") for number, name in enumerate(names)]
    assert _trace(*spans).events["category"].to_list() == list(names.values())


def test_modules_take_the_place_of_the_annotation_and_frames_are_left_out() -> None:
    trace = _trace(
        _x("nn.Module: DistributedDataParallel_0", 0, 50, cat="python_function"),
        _x("torch/nn/modules/module.py(1791): _call_impl", 1, 48, cat="python_function"),
        _note("DistributedDataParallel.forward", 2, 45),
        _x("nn.Module: My_2D_Conv_13", 3, 40, cat="python_function"),
        _device("mine", 5, 5, "gpu_user_annotation"),
        _x("overhead", 6, 5, cat="overhead"),
        _device("Stream Sync", 7, 5, "cuda_sync", correlation=5),
    )
    assert _tree(trace) == [
        "Forward DistributedDataParallel",
        "  PythonUserDefined DistributedDataParallel.forward",
        "    Forward My_2D_Conv",
    ]
    assert trace.events.height == 3


def test_layers_of_one_operator_are_one() -> None:
    #   aten::mean aten::sum   and a list that holds two of its own kind
    trace = _trace(
        _x("aten::mean", 0, 20),
        _x("aten::mean", 1, 18),
        _x("aten::mean", 2, 16),
        _x("aten::sum", 3, 5),
        _x("aten::list", 30, 20),
        _x("aten::list", 31, 5),
        _x("aten::list", 40, 5),
        _x("nn.Module: Sequential_0", 60, 9, cat="python_function"),
        _x("nn.Module: Sequential_1", 61, 7, cat="python_function"),
    )
    assert _tree(trace) == [
        "Operator aten::mean",
        "  Operator aten::sum",
        "Operator aten::list",
        "  Operator aten::list",
        "  Operator aten::list",
        "Forward Sequential",
        "  Forward Sequential",
    ]


# Collectives


def _collective(ts: float, **args: Any) -> Any:
    facts = {"In__msg__nelems": 10, "Out__msg__nelems": 20, "dtype": "Float"}
    return _x("record_param_comms", ts, 5, **{**facts, **args})


def test_a_wait_is_no_collective() -> None:
    trace = _trace(
        _collective(0, Collective__name="allreduce"),
        _collective(10, Collective__name="wait", Process__Group__Ranks="[0, 1]"),
        _x("aten::broadcast_to", 20, 5),
        _x("aten::broadcast_tensors", 30, 5),
    )
    assert _tree(trace) == [
        "Communication record_param_comms 40",
        "PythonUserDefined record_param_comms.wait",
        "Operator aten::broadcast_to",
        "Operator aten::broadcast_tensors",
    ]
    communication = Profile(trace).communication
    assert [end - start for start, end in zip(*communication.host)] == [5000]


@pytest.mark.parametrize(
    ("args", "facts"),
    [
        ({"dtype": "BFloat16"}, (20, None, "bfloat16", None)),
        ({"In__msg__nelems": 0, "dtype": "Long"}, (160, None, "int64", None)),
        ({"dtype": "Float8_e4m3fn"}, (10, None, "float8_e4m3fn", None)),
        ({"dtype": "new"}, (None, None, None, None)),
        (
            {"Process__Group__Name": "3", "Process__Group__Ranks": "[4, 6]"},
            (40, 3, "float32", "4,6"),
        ),
        ({"Process__Group__ID": 2, "Process__Group__Ranks": [0, 1]}, (40, 2, "float32", "0,1")),
        (
            {"Process__Group__Name": "1", "Process__Group__Ranks": "[0, 1, ..., 3]"},
            (40, 1, "float32", "0,1,2,3"),
        ),
        (
            {"Process__Group__Name": "8", "Process__Group__Ranks": "[0, 1, ..., 3]"},
            (40, 8, "float32", None),
        ),
        ({"Process__Group__Name": "mesh_dp"}, (40, None, "float32", None)),
        ({"Process__Group__Ranks": "[4, 6]", "Dst__Rank": 6}, (40, None, "float32", "6")),
        ({"Process__Group__Ranks": "[4, 6]", "Src__Rank": 4}, (40, None, "float32", "4")),
    ],
)
def test_annotations_of_a_collective(args: Any, facts: Any) -> None:
    unusable = [{"pg_name": "x"}, {"pg_name": "9" * 20, "ranks": [0]}, 5]
    information = {"pg_config": [{"pg_name": "1", "ranks": [0, 1, 2, 3]}, *unusable]}
    trace = _trace(_collective(0, **args), distributedInfo=information)
    assert _rows(trace, "bytes", "group", "dtype", "peers") == [facts]
    assert _rows(trace, "axis", "stage", "phase") == [(None, None, None)]


def test_a_coalesced_collective_is_one_with_all_bytes() -> None:
    trace = _trace(
        _x("c10d::allreduce_coalesced_", 0, 30),
        _collective(1, Process__Group__Name="0"),
        _collective(10, Process__Group__Name="0"),
        _note("nccl:all_reduce", 40, 5),
    )
    assert _tree(trace) == [
        "Communication c10d::allreduce_coalesced_ 80 0",
        "  OperatorInner record_param_comms",
        "  OperatorInner record_param_comms",
        "Communication nccl:all_reduce",
    ]


# Devices


def test_one_launch_of_many_and_kernels_of_no_launch() -> None:
    trace = _step(
        _x("cudaGraphLaunch", 10, 5, cat="cuda_runtime", correlation=3, cbid=311),
        _x("cudaDeviceSynchronize", 16, 5, cat="cuda_runtime"),
        _device("stray", 11, 5, correlation=99),
        _device("a", 12, 5, correlation=3),
        _device("b", 20, 5, correlation=3),
    )
    columns = ("name", "category", "parent", "step", "correlation_id", "device")
    assert _rows(trace, *columns)[1:] == [
        ("cudaGraphLaunch", "CudaRuntime", 0, 7, 3, None),
        ("cudaDeviceSynchronize", "CudaRuntime", 0, 7, 0, None),
        ("a", "Kernel", 1, 7, 3, 0),
        ("b", "Kernel", 1, 7, 3, 0),
        ("stray", "Kernel", None, None, 99, 0),
    ]


def test_copies_sets_and_older_names() -> None:
    trace = _trace(
        _x("cudaMemcpyAsync", 0, 1, cat="cuda_driver", correlation=1),
        _device("Memcpy HtoD (Pinned -> Device)", 1, 1, "gpu_memcpy", correlation=1, bytes=64),
        _device("Memset (Device)", 3, 1, "Memset", bytes="32"),
        _x("Kernel", 5, 1, 20, "Kernel"),
    )
    assert _rows(trace, "category", "bytes", "device", "stream") == [
        ("CudaRuntime", None, None, None),
        ("Memcpy", 64, 0, 7),
        ("Memset", 32, 0, 7),
        ("Kernel", None, PID, 20),
    ]


def test_a_launch_configuration_with_unusable_values() -> None:
    args = {"grid": [3, 2, 1], "block": [128, 1, 1], "registers__per__thread": "16"}
    trace = _trace(
        _device("a", 1, 1, **args, blocks__per__SM="inf", warps__per__SM=1.5), _device("b", 3, 1)
    )
    assert trace.kernels.rows() == [(0, 3, 2, 1, 128, 1, 1, 16, None, None, 1.5, None)]


# Memory


def _memory(ts: float, size: int, allocated: int, tid: int = MAIN, **args: Any) -> Any:
    place = {"Device Type": 0, "Device Id": -1, "Addr": 2**63 + 1, "Total Reserved": 0}
    sizes = {"Bytes": size, "Total Allocated": allocated}
    return {
        **{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": PID},
        **{"tid": tid, "ts": ts, "args": {**place, **sizes, **args}},
    }


def test_memory_events() -> None:
    gpu = {"Device Type": 1, "Device Id": 2}
    trace = _trace(
        _x("aten::empty", 10, 10, ENGINE),
        _x("aten::add", 10, 10),
        _x("aten::empty", 11, 5),
        _memory(15, -8, 92),
        _memory(12, 100, 100),
        _memory(13, 512, 4096, **gpu, **{"Total Reserved": 8192}),
        _memory(11.5, 64, 64, ENGINE),
        _memory(30, 16, 108, **{"Device Type": 19, "Device Id": 0}),
    )
    columns = ["time_ns", "kind", "event", "thread", "place", "bytes", "peak_allocated"]
    assert trace.memory.select(columns).rows() == [
        (12_000, "Allocate", 1, MAIN, "Place(cpu)", 100, 100),
        (13_000, "Allocate", 1, MAIN, "Place(gpu:2)", 512, 4096),
        (15_000, "Free", 1, MAIN, "Place(cpu)", -8, 100),
        (30_000, "Allocate", None, MAIN, "Place(device_type19:0)", 16, 108),
        (11_500, "Allocate", 2, ENGINE, "Place(cpu)", 64, 64),
    ]
    assert trace.memory["addr"][0] == 2**63 + 1
    assert trace.memory["current_reserved"].to_list() == [0, 8192, 0, 0, 0]


# Unusable events


def test_events_without_time_process_or_thread_are_counted() -> None:
    no_time, no_thread, odd_time, negative = (_x("aten::add", 1, 1) for _ in range(4))
    del no_time["ts"]
    del no_thread["tid"]
    odd_time["ts"] = "soon"
    negative["dur"] = -1
    endless_kernel = _device("gemm", 1, 1)
    del endless_kernel["dur"]
    trace = _trace(no_time, no_thread, odd_time, negative, endless_kernel, _x("aten::mul", 1, 1))
    assert _tree(trace) == ["Operator aten::mul"]
    assert trace.skipped == {
        "host events without time, process or thread": 4,
        "device events without time, process or thread": 1,
    }


def test_unusable_values_elsewhere_are_ignored() -> None:
    trace = _trace(
        {"ph": "M", "name": "thread_name"},
        _device("k", 1, 1, stream="0x0", correlation="x", grid="(1,2)", bytes=2**80),
        deviceProperties={"id": 0},
        distributedInfo=[1],
        baseTimeNanoseconds="now",
    )
    assert _rows(trace, "name", "stream", "correlation_id", "bytes") == [("k", 7, None, None)]
    assert (trace.kernels.height, trace.devices, dict(trace.extra_info)) == (0, (), {})


_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-1, 9)
    | st.floats()
    | st.sampled_from(["", "1", "[1, 2, 3]", "[0, ..., 9]", "Float", "99999999999999999999"])
    | st.text(max_size=3)
)
_anything = _scalars | st.lists(_scalars, max_size=3) | st.dictionaries(_scalars.map(str), _scalars)
_raw = {"grid", "block", "Process Group Ranks"}
_args = st.fixed_dictionaries(
    {},
    optional={
        field.encode_name: _anything if field.encode_name in _raw else _scalars
        for field in msgspec.structs.fields(KinetoArgs)
    },
)
_known = [
    *("ProfilerStep#1", "autograd::engine::evaluate_function: X", "X", "[memory]", "thread_name"),
    *("c10d::send", "record_param_comms", "nn.Module: A_0", "aten::add", "Optimizer.step#S.step"),
]
_events = st.fixed_dictionaries(
    {"ph": st.sampled_from("XXXi"), "name": st.sampled_from(_known)},
    optional={
        "cat": st.sampled_from(
            ["cpu_op", "user_annotation", "python_function", "cuda_runtime", "kernel", "gpu_memset"]
        ),
        "ts": st.integers(0, 20) | _anything,
        "dur": st.integers(0, 9) | _anything,
        "pid": st.just(PID) | _scalars,
        "tid": st.sampled_from([MAIN, ENGINE]) | _scalars,
        "args": _args,
    },
)
_heads = st.dictionaries(
    st.sampled_from(["baseTimeNanoseconds", "distributedInfo", "deviceProperties", "host_name"]),
    _anything
    | st.fixed_dictionaries(
        {"pg_config": st.lists(st.fixed_dictionaries({"pg_name": _anything, "ranks": _anything}))}
    ),
)


@given(st.lists(_events, max_size=12), _heads)
def test_no_value_breaks_the_reader_or_the_summaries(events: Any, head: Any) -> None:
    trace = kineto_trace(head, [_decode(events)])
    profile = Profile(trace, SummaryOptions())
    for view in VIEWS:
        summarize(profile, view)
    num_wanted = sum(event["ph"] == "X" and "cat" in event for event in events)
    assert trace.events.height <= 2 * num_wanted
