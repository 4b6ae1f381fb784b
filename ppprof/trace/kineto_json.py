"""Kineto's JSON, what ``torch.profiler`` exports, in Paddle's terms.

Kineto writes a flat list of events; here they become the tree that a Paddle trace is::

    Kineto                                        category
    ProfilerStep#N                                ProfileStep, named ProfileStep#N
    enumerate(DataLoader)#...                     Dataloader
    python_function "nn.Module: Linear_0"         Forward, named Linear as in Paddle
    DistributedDataParallel.forward               Forward, where no module was recorded
    Optimizer.step#...                            Optimization
    autograd::engine::evaluate_function: XBack..  Operator; what runs without a break: Backward
      the XBackward directly inside               OperatorInner, as Paddle's Local_XGradNode
    c10d::..., record_param_comms, nccl:...       Communication; one inside another: OperatorInner
    other cpu_op                                  Operator, at any depth
    other user_annotation                         PythonUserDefined
    cuda_runtime, cuda_driver, ...                CudaRuntime
    kernel, gpu_memcpy, gpu_memset                Kernel, Memcpy, Memset

An operator inside another stays an Operator, so that its row equals ``key_averages()``, and because
the innermost one launches: aten::linear launches nothing, the aten::addmm in it does. One that is
the only child of another of its name is that other's layer, and left out, as ``key_averages()`` has
it.

Left out: other python_function events (frames of the interpreter, ten for each operator, which no
table counts), gpu_user_annotation (the host's annotations over again), cuda_sync and overhead (no
work of the model), flows (correlation ids say the same), Trace.

Sources: libkineto/src/output_json.cpp and ActivityType.h of pytorch/kineto,
torch/csrc/distributed/c10d/ParamCommsUtils.hpp and torch/csrc/autograd/profiler_kineto.cpp of
pytorch/pytorch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Optional

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from ppprof.trace.forest import pre_order
from ppprof.trace.nesting import nest
from ppprof.trace.schema import (
    EVENTS,
    KERNELS,
    MEMORY,
    MEMSETS,
    Trace,
    conform,
    empty,
    nullable,
)
from ppprof.trace.steps import steps_of

Int64 = npt.NDArray[np.int64]

_NO_TEXT = msgspec.Raw()


class KinetoArgs(msgspec.Struct, gc=False, frozen=True):
    """What is read of an event's ``args``. Values are as loose as real files: ROCm writes text."""

    name: Any = None
    correlation: Any = None
    device: Any = None
    context: Any = None
    stream: Any = None
    bytes: Any = None
    grid: msgspec.Raw = _NO_TEXT
    block: msgspec.Raw = _NO_TEXT
    registers: Any = msgspec.field(default=None, name="registers per thread")
    shared_bytes: Any = msgspec.field(default=None, name="shared memory")
    blocks_per_sm: Any = msgspec.field(default=None, name="blocks per SM")
    warps_per_sm: Any = msgspec.field(default=None, name="warps per SM")
    occupancy: Any = msgspec.field(default=None, name="est. achieved occupancy %")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    group_id: Any = msgspec.field(default=None, name="Process Group ID")
    ranks: msgspec.Raw = msgspec.field(default=_NO_TEXT, name="Process Group Ranks")
    source: Any = msgspec.field(default=None, name="Src Rank")
    destination: Any = msgspec.field(default=None, name="Dst Rank")
    num_in: Any = msgspec.field(default=None, name="In msg nelems")
    num_out: Any = msgspec.field(default=None, name="Out msg nelems")
    dtype: Any = None
    addr: Any = msgspec.field(default=None, name="Addr")
    size: Any = msgspec.field(default=None, name="Bytes")
    allocated: Any = msgspec.field(default=None, name="Total Allocated")
    reserved: Any = msgspec.field(default=None, name="Total Reserved")
    device_type: Any = msgspec.field(default=None, name="Device Type")
    device_id: Any = msgspec.field(default=None, name="Device Id")


_NO_ARGS = KinetoArgs()


class KinetoEvent(msgspec.Struct, gc=False):
    """One of ``traceEvents``. Times stay text: a float64 of microseconds since 1970 loses 250 ns."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = _NO_TEXT
    dur: msgspec.Raw = _NO_TEXT
    args: Optional[KinetoArgs] = None


_LAUNCHES = frozenset(
    [
        *("cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver", "mtia_runtime"),
        *("privateuse1_runtime", "privateuse1_driver", "Runtime"),
    ]
)
"""``cat`` of runtime calls; Runtime, Operator, Kernel, Memcpy and Memset until torch 1.11."""
_DEVICES = {
    **{"kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset"},
    **{"Kernel": "Kernel", "Memcpy": "Memcpy", "Memset": "Memset"},
}
_OPERATORS = frozenset(["cpu_op", "Operator"])
_HOSTS = _OPERATORS | {"user_annotation"}

_STEP = "ProfilerStep#"
_MODULE = "nn.Module: "
_DDP = "DistributedDataParallel.forward"
_EVALUATE = "autograd::engine::evaluate_function: "
_COLLECTIVE = r"^(c10d::|(nccl|gloo|mpi|ucc|xccl|hccl):|record_param_comms$)"
_FACTS = "record_param_comms"
"""The event, and with NCCL the kernel, that carries what is known of a collective."""

_DTYPE_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool"), 1),
    **dict.fromkeys(("Short", "UInt16", "Half", "BFloat16"), 2),
    **dict.fromkeys(("Int", "UInt32", "Float", "ComplexHalf"), 4),
    **dict.fromkeys(("Long", "UInt64", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
"""Bytes an element of c10::ScalarType (c10/core/ScalarType.h); Float8_e4m3fn and its like: 1."""

_PLACES = {0: "cpu", 1: "gpu", 6: "gpu", 12: "xpu"}
"""c10::DeviceType (torch/headeronly/core/DeviceType.h) in Paddle's words; 6 is HIP."""

_COLLECTIVE_ARGS: Mapping[str, Any] = {
    **{"group": pl.Int64, "group_id": pl.Int64, "num_in": pl.Int64, "num_out": pl.Int64},
    **{"source": pl.String, "destination": pl.String, "ranks": pl.String, "dtype": pl.String},
}
_DEVICE_ARGS: Mapping[str, Any] = {
    **{"correlation": pl.Int64, "device": pl.Int64, "context": pl.Int64, "stream": pl.Int64},
    **{"bytes": pl.Int64, "grid": pl.String, "block": pl.String},
    **{"registers": pl.Int64, "shared_bytes": pl.Int64},
    **dict.fromkeys(("blocks_per_sm", "warps_per_sm", "occupancy"), pl.Float64),
}
_MEMORY_ARGS: Mapping[str, Any] = {
    **{"addr": pl.UInt64, "size": pl.Int64, "allocated": pl.Int64, "reserved": pl.Int64},
    **{"device_type": pl.Int64, "device_id": pl.Int64},
}


def kineto_trace(head: Mapping[str, Any], batches: Iterable[list[KinetoEvent]]) -> Trace:
    """The trace of one of Kineto's files.

    Args:
        head: the file's top level without ``traceEvents``; looked at after the last batch, so that
            what the file holds behind its events may be filled in by then.
        batches: ``traceEvents``, in their order, in lists of any length.

    Returns:
        Exact nanoseconds since 1970, as far as the file has them (until torch 2.3: microseconds).
        ``extra_info`` holds thread id -> name and, where the file has them, rank, world_size,
        backend and host_name. ``lost`` counts events without a usable time, process or thread.
        What Kineto does not record stays null or empty: CPU utilisation, memsets' values.
    """
    columns = _Columns()
    for batch in _of_some_size(batches):
        columns.add(batch)
    base_ns = head.get("baseTimeNanoseconds")
    tables, lost = columns.tables(base_ns if isinstance(base_ns, int) else 0)
    information = head.get("distributedInfo")
    information = information if isinstance(information, Mapping) else {}
    host_facts, device_facts = (
        _facts(tables[kind], _rank_lists(information)) for kind in ("host facts", "device facts")
    )

    hosts, launches, memory = _with_threads(
        *(tables[kind] for kind in ("hosts", "launches", "memory"))
    )
    slack_ns = _slack_ns(hosts)
    hosts = _categorised(hosts).with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"))
    backward = _backward(hosts, slack_ns)
    calls = _calls(backward, hosts)
    hosts = pl.concat([backward, hosts], how="diagonal")
    hosts, launches, memory = (_with_caller(table, calls) for table in (hosts, launches, memory))
    hosts = _nested(hosts, host_facts, slack_ns)
    launches, memory = _inside(hosts, launches), _inside(hosts, memory)
    launches = (
        launches.sort("parent", "at")
        .with_row_index("row", offset=hosts.height)
        .with_columns(pl.col("row").cast(pl.Int64), category=pl.lit("CudaRuntime"))
    )
    devices = _launched(tables["devices"], launches, device_facts)
    # A correlation id tells a launch from a host event.
    launches = launches.with_columns(correlation_id=pl.col("correlation").fill_null(0))
    events = pl.concat([hosts, launches, devices], how="diagonal_relaxed").with_columns(
        end_ns=pl.col("start_ns") + pl.col("dur_ns")
    )
    return Trace(
        events=conform(events.with_columns(step=steps_of(events)), EVENTS),
        memory=_memory(memory),
        kernels=_kernels(devices, first_device=hosts.height + launches.height),
        memsets=empty(MEMSETS),
        extra_info={
            **_named(
                columns.thread_names, *map(str, events["thread"].drop_nulls().unique().sort())
            ),
            **_named(information, "rank", "world_size", "backend"),
            **_named(head, "host_name"),
        },
        devices=tuple(_devices(head.get("deviceProperties"))),
        lost=lost,
    )


class _Columns:
    """Events by what they become, in the order of the file, as columns."""

    def __init__(self) -> None:
        self.thread_names: dict[str, str] = {}
        self._parts: defaultdict[str, list[pl.DataFrame]] = defaultdict(list)
        self._num_before = [0, 0]  # hosts and devices

    def add(self, batch: list[KinetoEvent]) -> None:
        """Takes one batch in."""
        spans = [event for event in batch if event.ph == "X"]
        hosts = [
            event
            for event in spans
            if event.cat in _HOSTS
            or (event.cat == "python_function" and event.name.startswith(_MODULE))
        ]
        devices = [event for event in spans if event.cat in _DEVICES]
        kinds: Mapping[str, tuple[list[KinetoEvent], Mapping[str, Any]]] = {
            "hosts": (hosts, {}),
            "launches": ([e for e in spans if e.cat in _LAUNCHES], {"correlation": pl.Int64}),
            "devices": (devices, _DEVICE_ARGS),
            "memory": ([e for e in batch if e.name == "[memory]" and e.ph == "i"], _MEMORY_ARGS),
        }
        for kind, (events, args) in kinds.items():
            self._parts[kind].append(_table(events, args))
        told = {
            "host facts": [(at, event) for at, event in enumerate(hosts) if event.name == _FACTS],
            "device facts": [
                (at, event)
                for at, event in enumerate(devices)
                if event.args and event.args.num_in is not None
            ],
        }
        for (kind, found), num_before in zip(told.items(), self._num_before):
            table = _args([event.args or _NO_ARGS for _, event in found], _COLLECTIVE_ARGS)
            at = pl.Series("at", [at for at, _ in found], dtype=pl.Int64) + num_before
            self._parts[kind].append(pl.DataFrame([at, *table]))
        self._num_before[0] += len(hosts)
        self._num_before[1] += len(devices)
        self.thread_names.update(
            (str(event.tid), str(event.args.name))
            for event in batch
            if event.name == "thread_name" and event.args
        )

    def tables(self, base_ns: int) -> tuple[dict[str, pl.DataFrame], dict[str, int]]:
        """One table a kind, with start_ns, dur_ns and ``at``, the place in the file; what was lost."""
        found, lost = {}, {}
        for kind, parts in self._parts.items():
            found[kind] = table = pl.concat(parts)
            if "at" in table.columns:
                continue
            start_ns, dur_ns = _nanoseconds(table["ts"]), _nanoseconds(table["dur"])
            if kind == "memory":  # instants
                dur_ns = dur_ns.fill_null(0)
            found[kind] = (
                table.with_row_index("at")
                .with_columns(
                    pl.col("at").cast(pl.Int64), start_ns=start_ns + base_ns, dur_ns=dur_ns
                )
                .drop("ts", "dur")
                .filter(
                    pl.col("dur_ns") >= 0,
                    *(pl.col(key).is_not_null() for key in ("start_ns", "process", "thread")),
                )
            )
            if found[kind].height < table.height:
                lost[f"{kind} without time, process or thread"] = table.height - found[kind].height
        return found, lost


def _of_some_size(batches: Iterable[list[KinetoEvent]]) -> Iterator[list[KinetoEvent]]:
    """The same events in fewer lists: making a column costs as much as 1000 values in it."""
    pending: list[KinetoEvent] = []
    for batch in batches:
        pending += batch
        if len(pending) >= 1 << 15:
            yield pending
            pending = []
    yield pending


def _table(events: list[KinetoEvent], args: Mapping[str, Any]) -> pl.DataFrame:
    """Name, cat, process, thread, ts and dur as text, and these of the args; null where unusable."""
    return pl.DataFrame(
        [
            pl.Series("name", [event.name for event in events], pl.String),
            pl.Series("cat", [event.cat for event in events], pl.Categorical),
            pl.Series("process", [event.pid for event in events], pl.Int64, strict=False),
            pl.Series("thread", [event.tid for event in events], pl.Int64, strict=False),
            pl.Series("ts", _texts([event.ts for event in events]), pl.String),
            pl.Series("dur", _texts([event.dur for event in events]), pl.String),
            *_args([event.args or _NO_ARGS for event in events] if args else [], args),
        ]
    )


def _args(args: list[KinetoArgs], keys: Mapping[str, Any]) -> Iterator[pl.Series]:
    for key, dtype in keys.items():
        values = list(map(attrgetter(key), args))
        if key in ("grid", "block", "ranks"):
            values = _texts(values)
        yield pl.Series(key, values, dtype, strict=False)


def _texts(values: list[msgspec.Raw]) -> list[str]:
    return [str(value, "utf-8", "replace") for value in values]


def _nanoseconds(microseconds: pl.Series) -> pl.Series:
    """Decimal text, three places behind the point, to int64; null where it is no number."""
    # A decimal's physical value is its number of thousandths.
    thousandths: pl.Series = microseconds.cast(pl.Decimal(38, 3), strict=False).to_physical()
    exact: pl.Series = thousandths.cast(pl.Int64, strict=False)
    if exact.null_count():  # an exponent, which older polars takes for no decimal, or no number
        rounded = (microseconds.cast(pl.Float64, strict=False) * 1000).round()
        return exact.fill_null(rounded.cast(pl.Int64, strict=False))
    return exact


def _rank_lists(information: Mapping[str, Any]) -> Mapping[int, str]:
    """Process group -> its global ranks as '0,1', of ``distributedInfo``; unnamed ones left out."""
    groups = information.get("pg_config")
    found = {}
    for group in groups if isinstance(groups, list) else ():
        name, ranks = (
            group.get(key) if isinstance(group, dict) else None for key in ("pg_name", "ranks")
        )
        if str(name).isdecimal() and isinstance(ranks, list):
            found[int(str(name))] = ",".join(map(str, ranks))
    return found


def _facts(table: pl.DataFrame, rank_lists: Mapping[int, str]) -> pl.DataFrame:
    """Bytes, group and peers of collectives: ``bytes`` is what this rank puts in, else takes out."""
    num_elements = pl.when(pl.col("num_in") > 0).then("num_in").otherwise("num_out")
    element_bytes = (
        pl.when(pl.col("dtype").str.starts_with("Float8"))
        .then(1)
        .otherwise(
            pl.col("dtype").replace_strict(_DTYPE_BYTES, default=None, return_dtype=pl.Int64)
        )
    )
    # Kineto cuts long lists: "[0, 1, ..., 63]".
    whole = pl.when(~pl.col("ranks").str.contains(".", literal=True)).then("ranks")
    group = pl.coalesce("group", "group_id")
    return table.select(
        "at",
        bytes=num_elements * element_bytes,
        group=group,
        peers=pl.coalesce(
            "destination",
            "source",
            whole.str.extract(r"\[([\d, ]+)\]").str.replace_all(" ", ""),
            group.replace_strict(rank_lists, default=None, return_dtype=pl.String),
        ),
    )


def _with_threads(*tables: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The tables with ``key``, the number of the thread by its id and then its process."""
    threads = pl.concat([table.select("thread", "process") for table in tables]).unique()
    keys = threads.sort("thread", "process").with_row_index("key").cast({"key": pl.Int64})
    for table in tables:
        yield table.join(keys, on=["thread", "process"], maintain_order="left")


def _nested(hosts: pl.DataFrame, facts: pl.DataFrame, slack_ns: int) -> pl.DataFrame:
    """Host events in pre-order, with parent, depth and the facts of collectives."""
    hosts = hosts.sort("key", "start_ns", -pl.col("dur_ns"), "at", maintain_order=True)
    hosts = hosts.filter(~_told_twice(hosts, _nest(hosts, slack_ns)))
    parent = _nest(hosts, slack_ns)
    _, depth = pre_order(parent)
    above = hosts["name"].gather(nullable(parent))
    hosts = hosts.with_columns(
        parent=nullable(parent),
        depth=pl.Series(depth.astype(np.int32)),
        category=pl.when(pl.lit(above) == _EVALUATE + pl.col("name"))
        .then(pl.lit("OperatorInner"))
        .otherwise("category"),
    )
    return _with_facts(hosts, facts, slack_ns)


def _told_twice(hosts: pl.DataFrame, parent: Int64) -> pl.Series:
    """Which host events are operators and the only child of one of the same name.

    The dispatcher passes through several layers under one name; ``key_averages()`` takes them for
    one call, too (``_remove_dup_nodes`` of torch/autograd/profiler_util.py).
    """
    num_children = np.bincount(parent[parent >= 0], minlength=len(parent))
    above = hosts["name"].gather(nullable(parent))
    is_same = ((hosts["name"] == above) & (hosts["category"] == "Operator")).fill_null(False)
    return is_same & pl.Series((parent >= 0) & (num_children[parent] == 1))


def _slack_ns(hosts: pl.DataFrame) -> int:
    """1000 where every time was cut to microseconds, as until torch 2.3; else 0."""
    is_whole = hosts.select((pl.col("start_ns", "dur_ns") % 1000 == 0).all()).row(0)
    return 1000 if all(is_whole) else 0


def _nest(hosts: pl.DataFrame, slack_ns: int, holds: pl.Series | None = None) -> Int64:
    thread, start, end = (hosts[column].to_numpy() for column in ("key", "start_ns", "end_ns"))
    return nest(
        thread, start, end, holds=None if holds is None else holds.to_numpy(), slack_ns=slack_ns
    )


def _categorised(hosts: pl.DataFrame) -> pl.DataFrame:
    """The category by ``cat`` and name, and the name as Paddle gives it."""
    name = pl.col("name")
    is_module = pl.col("cat") == "python_function"
    kinds = hosts.select("cat", name.alias("recorded")).unique()
    has_modules = kinds.select(is_module.any()).item()
    name = pl.col("recorded")
    rules = {
        "ProfileStep": name.str.starts_with(_STEP),
        "Forward": is_module | (name == _DDP) & (not has_modules),
        "Communication": name.str.contains(_COLLECTIVE),
        "Operator": pl.col("cat").is_in(list(_OPERATORS)),
        "Optimization": name.str.starts_with("Optimizer.step#"),
        "Dataloader": name.str.starts_with("enumerate(DataLoader)#"),
        "PythonUserDefined": pl.lit(True),
    }
    category = pl.coalesce(pl.when(rule).then(pl.lit(kind)) for kind, rule in rules.items())
    kinds = kinds.with_columns(
        category=category,
        name=name.str.replace(f"^{_STEP}", "ProfileStep#").str.replace(
            rf"^{re.escape(_MODULE)}(.*?)(_\d+)?$", "$1"
        ),
    )
    return hosts.rename({"name": "recorded"}).join(
        kinds, on=["cat", "recorded"], maintain_order="left"
    )


def _backward(hosts: pl.DataFrame, slack_ns: int) -> pl.DataFrame:
    """A Backward event around each run of autograd nodes, which Kineto has no event for.

    A run is of one thread, and ends where the thread with the steps does something else, as that
    one waits for the backward pass to end::

        thread with steps   aten::mm  mse_loss                    Optimizer.step
        thread of engine                        evaluate evaluate
                                                Backward---------
    """
    is_node = hosts["name"].str.starts_with(_EVALUATE)
    outside = pl.Series(_nest(hosts, slack_ns, holds=is_node) < 0)
    nodes = hosts.filter(is_node & outside).sort("key", "start_ns")
    with_steps = hosts.filter(pl.col("category") == "ProfileStep")["key"].unique()
    others = hosts.filter(outside & ~is_node)
    if len(with_steps):
        others = others.filter(pl.col("key").is_in(with_steps.to_list()))
    gaps = nodes.select(start_ns=pl.col("end_ns").shift(1, fill_value=0), end_ns="start_ns")
    is_first = nodes["key"] != nodes["key"].shift(1, fill_value=-1)
    run = (is_first | (_num_within(others["start_ns"], gaps) > 0)).cum_sum().alias("run")
    return (
        nodes.group_by(run, maintain_order=True)
        .agg(pl.col("key", "thread", "process", "start_ns").first(), pl.col("end_ns").max())
        .drop("run")
        .with_columns(
            at=pl.lit(-1, pl.Int64),
            name=pl.lit("Backward"),
            category=pl.lit("Backward"),
            dur_ns=pl.col("end_ns") - pl.col("start_ns"),
        )
    )


def _num_within(times: pl.Series, spans: pl.DataFrame) -> pl.Series:
    """How many of the times lie in [start_ns, end_ns) of each span."""
    times = times.sort()
    starts, ends = (spans[side].to_numpy() for side in ("start_ns", "end_ns"))
    at = times.sort().to_numpy()
    return pl.Series(np.searchsorted(at, ends) - np.searchsorted(at, starts))


def _calls(backward: pl.DataFrame, hosts: pl.DataFrame) -> pl.DataFrame:
    """Backward events of an engine's thread, with the thread that called them and waits.

    That is the only thread with steps, if it began and ended nothing at all meanwhile and no other
    backward pass ran. Key, begin_ns and until_ns, and key and id of the caller.
    """
    steps = hosts.filter(pl.col("category") == "ProfileStep")
    callers = steps.select(caller_key="key", caller="thread").unique()
    runs = backward.join(callers, how="cross").sort("start_ns")
    own = hosts.join(callers, left_on="key", right_on="caller_key", how="semi")
    return runs.filter(
        pl.lit(callers.height == 1),
        pl.col("key") != pl.col("caller_key"),
        _num_within(own["start_ns"], runs) == 0,
        _num_within(own["end_ns"] - 1, runs) == 0,
        _num_within(runs["start_ns"], runs) <= 1,
        pl.col("start_ns") >= pl.col("end_ns").cum_max().shift(1, fill_value=0),
    ).select("key", "caller_key", "caller", begin_ns="start_ns", until_ns="end_ns")


def _with_caller(table: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """The same rows, those of a called Backward on the thread of its caller.

    So the step holds all of its work, as it does in Paddle, whose backward pass runs on the thread
    that asks for it (HTA's call graph hangs the engine's stack below the caller's, too).
    """
    joined = table.sort("start_ns").join_asof(
        calls, left_on="start_ns", right_on="begin_ns", by="key", check_sortedness=False
    )
    is_called = pl.col("start_ns") < pl.col("until_ns")
    return joined.with_columns(
        key=pl.when(is_called).then("caller_key").otherwise("key"),
        thread=pl.when(is_called).then("caller").otherwise("thread"),
    ).drop("caller_key", "caller", "begin_ns", "until_ns", strict=False)


def _with_facts(hosts: pl.DataFrame, facts: pl.DataFrame, slack_ns: int) -> pl.DataFrame:
    """Bytes, group and peers on the outermost event of each collective; those in it are inner."""
    is_collective = hosts["category"] == "Communication"
    is_outer = is_collective & pl.Series(_nest(hosts, slack_ns, holds=is_collective) < 0)
    row = np.arange(hosts.height)
    owner = np.where(is_outer.to_numpy(), row, _nest(hosts, slack_ns, holds=is_outer))
    num_bytes = pl.col("bytes")
    told = (
        hosts.select("at", row=owner)
        .join(facts, on="at", maintain_order="left")
        .group_by("row")
        .agg(
            pl.when(num_bytes.is_not_null().any()).then(num_bytes.sum()),
            pl.col("group", "peers").drop_nulls().first(),
        )
    )
    return (
        hosts.with_columns(
            row=row,
            category=pl.when(is_collective & ~is_outer)
            .then(pl.lit("OperatorInner"))
            .otherwise("category"),
        )
        .join(told, on="row", how="left", maintain_order="left")
        .drop("row")
    )


def _inside(hosts: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """``parent``: the innermost host event in which each row of ``table`` began."""
    start = np.concatenate((hosts["start_ns"].to_numpy(), table["start_ns"].to_numpy()))
    end = start.copy()
    end[: hosts.height] = hosts["end_ns"].to_numpy()
    thread = np.concatenate((hosts["key"].to_numpy(), table["key"].to_numpy()))
    parent = nest(thread, start, end, holds=np.arange(len(start)) < hosts.height)
    return table.with_columns(parent=nullable(parent[hosts.height :]))


def _launched(devices: pl.DataFrame, launches: pl.DataFrame, facts: pl.DataFrame) -> pl.DataFrame:
    """Device events by their launches, what nothing recorded launched last."""
    launched = launches.drop_nulls("correlation").unique(
        "correlation", keep="first", maintain_order=True
    )
    kind = pl.col("cat").cast(pl.String).replace_strict(_DEVICES, return_dtype=pl.String)
    return (
        devices.join(launched.select("correlation", parent="row"), on="correlation", how="left")
        .join(facts, on="at", how="left", suffix="_of_fact")
        .sort("parent", "at", nulls_last=True)
        .with_columns(
            category=kind,
            bytes=pl.coalesce("bytes", "bytes_of_fact"),
            # Until torch 1.11 not all of them say so in their args.
            device=pl.coalesce("device", "process"),
            stream=pl.coalesce("stream", "thread"),
            correlation_id="correlation",
            process=None,
            thread=None,
        )
    )


def _kernels(devices: pl.DataFrame, first_device: int) -> pl.DataFrame:
    """Launch configurations; ROCm's kernels come without."""
    three = r"\[(\d+), ?(\d+), ?(\d+)\]"
    axes = [
        pl.col(side).str.extract(three, at).cast(pl.Int64, strict=False).alias(f"{side}_{axis}")
        for side in ("grid", "block")
        for at, axis in enumerate("xyz", start=1)
    ]
    per_sm = pl.col("blocks_per_sm", "warps_per_sm", "occupancy")
    table = (
        devices.with_row_index("event", offset=first_device)
        .filter(pl.col("category") == "Kernel")
        .with_columns(*axes, pl.when(per_sm.is_finite()).then(per_sm))
        .with_columns(occupancy=pl.col("occupancy") / 100)
        .drop_nulls("grid_x")
    )
    return conform(table, KERNELS)


def _memory(memory: pl.DataFrame) -> pl.DataFrame:
    """Allocations and frees; the peaks are of this window, as Kineto tells none."""
    number = pl.col("device_id").cast(pl.String)
    kind = pl.col("device_type").replace_strict(
        _PLACES, default=pl.format("device_type{}", "device_type"), return_dtype=pl.String
    )
    place = (
        pl.when(kind == "cpu")
        .then(pl.lit("Place(cpu)"))
        .otherwise(pl.format("Place({}:{})", kind, number))
    )
    table = memory.sort("start_ns", maintain_order=True).select(
        "key",
        "process",
        "thread",
        "addr",
        time_ns="start_ns",
        event="parent",
        kind=pl.when(pl.col("size") < 0).then(pl.lit("Free")).otherwise(pl.lit("Allocate")),
        place=place,
        bytes="size",
        current_allocated="allocated",
        current_reserved="reserved",
    )
    peaks = (
        pl.col(f"current_{what}").cum_max().over("process", "place").alias(f"peak_{what}")
        for what in ("allocated", "reserved")
    )
    return conform(table.with_columns(*peaks).sort("key", maintain_order=True), MEMORY)


def _devices(properties: Any) -> Iterator[Mapping[str, object]]:
    """The properties, with Paddle's word for numSms; its other words are Kineto's."""
    for item in properties if isinstance(properties, list) else ():
        if isinstance(item, dict):
            yield {"smCount" if key == "numSms" else key: value for key, value in item.items()}


def _named(values: Mapping[str, Any], *keys: str) -> dict[str, str]:
    return {key: str(values[key]) for key in keys if key in values}
