"""Write traces as torch.profiler does (Kineto's JSON), for HTA, TraceLens and all that reads it.

::

    category                              Kineto
    ProfileStep                           user_annotation ProfilerStep#N
    Dataloader                            user_annotation enumerate(DataLoader)#...
    Optimization                          user_annotation Optimizer.step#...
    Forward                               python_function nn.Module: Linear_2
    Forward of a pipeline, Backward       user_annotation
    Communication                         cpu_op c10d::all_reduce, with the args of its collective
      that waits, such as isend.wait      user_annotation
    PythonUserDefined, PythonOp           user_annotation
    Operator, any other host event        cpu_op
    CudaRuntime                           cuda_runtime; cuda_driver for cuLaunchKernel and the like
    Kernel, Memcpy, Memset                kernel, gpu_memcpy, gpu_memset
    any other device event                its category
    Allocate, Free                        cpu_instant_event [memory]
    long Python frames                    python_function

``External id`` is the same number in a host event, the launches in it and their device events.
``Sequence number`` joins an operator and its gradient. Arrows join a launch and its device events
(ac2g), and an operator and its gradient (fwdbwd). A gpu_user_annotation covers what one
user_annotation launched on one stream.

Operators keep their names. Paddle does not record which instance of its class a module is, so the
number behind its name counts the calls of the class within the outermost module.

A Kineto trace that is written and read again is the same. Its Backward events are not written: Kineto
has none, and the reader derives them.

Sources: as `ppprof.trace.kineto.columns`; torch/csrc/profiler/util.cpp of pytorch/pytorch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ppprof.paths import to_path
from ppprof.trace.communication_names import TORCH_SPANS
from ppprof.trace.json.lines import (
    LineParts,
    gigabytes_per_s,
    json_lines,
    microseconds,
    open_trace_file,
    optional_arg,
    triple,
    with_json_text,
)
from ppprof.trace.kineto.collectives import WAIT, with_collectives
from ppprof.trace.kineto.inputs import lists_of
from ppprof.trace.kineto.names import DDP, DEVICE_TYPES, DEVICES, EVALUATE, MODULE, STEP
from ppprof.trace.lanes import track_name, with_tracks
from ppprof.trace.operator_inputs import with_json_callstack
from ppprof.trace.schema import Trace
from ppprof.trace.tree_arrays import enclosing

_ROWS = 1 << 15
"""Rows whose lines are in memory at once."""
_BASE_NS = 7_889_238 * 10**9
"""Times count from a multiple of this quarter of a year, as in libkineto: a float64 of microseconds
since 1970 holds only multiples of 250 ns."""
_PLACE = re.compile(r"Place\((\w+?)(?::(\d{1,9}))?\)")
_DEVICE_TYPE = re.compile(r"device_type(\d{1,4})")
_DEVICE_NUMBERS = {name: number for number, name in reversed(DEVICE_TYPES.items())}
_CPU = _DEVICE_NUMBERS["cpu"]
_PRIVATE_USE = 20
"""c10::DeviceType of devices that torch has no name for."""
_DEVICE_SORT_BASE = 0x1000000  # devices below the processes of the host, as in libkineto
_RESERVED = ("ReservedAllocate", "ReservedFree")
_PREFIXES = {"Dataloader": "enumerate(DataLoader)#", "Optimization": "Optimizer.step#"}
_SPANS = ("Forward", "Backward", "PythonOp", "PythonUserDefined")


def write_kineto_file(
    trace: Trace, path: str | Path, rank: int, world_size: int, host: str | None = None
) -> Mapping[str, int]:
    """Write one trace; compressed with gzip if the file's name ends in ``.gz``.

    The file appears under its name when it is complete.

    Args:
        trace: the trace of one rank.
        path: the file.
        rank: the rank, for ``distributedInfo``.
        world_size: number of ranks of the job, likewise.
        host: name of the rank's host, if the trace has none; None if unknown.

    Returns:
        Kind -> number of values that the format cannot hold; empty if nothing was omitted.

    Raises:
        OSError: the file cannot be written.
    """
    writer = _Writer(trace, rank)
    with open_trace_file(to_path(path)) as file:
        file.write(writer.head(world_size, host))
        for lines in writer.lines():
            lines.to_frame().write_csv(
                file, include_header=False, quote_style="never", line_terminator=",\n"
            )
        # A comma follows every event above; the end of the metadata always follows.
        file.write(",\n".join(writer.metadata()).encode("utf-8", "replace"))
        file.write(b"\n]}\n")
    return writer.omitted()


class _Writer:
    """The lines of one trace."""

    def __init__(self, trace: Trace, rank: int) -> None:
        self._trace = trace
        self._rank = rank
        self._base_ns = _base_ns(trace)
        events = trace.events.with_columns(event=pl.int_range(pl.len(), dtype=pl.Int32))
        is_device = pl.col("device").is_not_null()
        is_launch = is_device.not_() & pl.col("correlation_id").is_not_null()
        hosts = events.filter(is_device.not_() & is_launch.not_())
        launches, devices = events.filter(is_launch), events.filter(is_device)
        hosts, devices, self._groups = with_collectives(
            hosts, launches, devices, rank, trace.communicates
        )
        self._hosts = with_modules(with_sequences(with_kinds(hosts, trace.has_derived_steps)))
        self._launches = launches.join(
            self._innermost("cpu_op", "user_annotation"),
            on="parent",
            how="left",
            maintain_order="left",
        )
        launched = self._launches.select(
            *("owner", "process", "thread", "start_ns"), host="parent", parent="event"
        )
        devices = devices.join(
            launched, on="parent", how="left", suffix="_launch", maintain_order="left"
        )
        self._devices, self._annotations = self._on_tracks(devices)

    def _on_tracks(self, devices: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return device events, and the annotations of them, with their tracks."""
        annotations = self._device_annotations(devices)
        placed = with_tracks(pl.concat([devices, annotations], how="diagonal"))
        own = placed.head(devices.height).select(*devices.columns, "lane", "track")
        rest = placed.tail(annotations.height).select(*annotations.columns, "lane", "track")
        return own, rest

    def _innermost(self, *kinds: str) -> pl.DataFrame:
        """Return the innermost event of ``kinds`` that each host event is or lies in.

        The columns are ``parent``, the host event, and ``owner``; no row for an event in none.
        """
        chosen = self._hosts["kind"].is_in(kinds).fill_null(False).to_numpy()
        rows = np.arange(len(chosen))
        above = enclosing(self._hosts["parent"].fill_null(-1).to_numpy(), chosen)
        table = pl.DataFrame({"parent": rows, "owner": np.where(chosen, rows, above)})
        return table.filter(pl.col("owner") >= 0)

    def head(self, world_size: int, host: str | None) -> bytes:
        """Return the file up to the first event; the arguments are those of `write_kineto_file`."""
        trace = self._trace
        information: dict[str, Any] = {"rank": self._rank, "world_size": world_size}
        if "backend" in trace.extra_info:
            information["backend"] = trace.extra_info["backend"]
        information["pg_count"] = len(self._groups)
        information["pg_config"] = [
            {"pg_name": str(group), "pg_size": len(ranks), "ranks": ranks}
            for group, ranks in sorted(self._groups.items())
        ]
        devices = [
            {"numSms" if key == "smCount" else key: value for key, value in device.items()}
            for device in trace.devices
        ]
        host = trace.extra_info.get("host_name", host)
        head = {
            # First, and with a blank behind each colon: HTA searches each line for '"rank": 3'.
            "distributedInfo": information,
            "schemaVersion": 1,
            "deviceProperties": devices,
            **({"record_shapes": 1} if trace.events["shapes"].count() else {}),
            **({"profile_memory": 1} if trace.memory.height else {}),
            **({"host_name": host} if host is not None else {}),
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": self._base_ns,
        }
        return (json.dumps(head, allow_nan=False)[:-1] + ', "traceEvents": [\n').encode()

    def lines(self) -> Iterator[pl.Series]:
        """Yield the lines of all events, few at a time."""
        hosts, devices = self._hosts.drop_nulls("kind"), self._devices
        yield from self._lines(with_json_text(self._frames(), "name"), _frame_parts())
        for rows in hosts.iter_slices(_ROWS):
            yield from self._lines(with_host_texts(rows), host_parts())
        for rows in self._launches.iter_slices(_ROWS):
            yield from self._lines(with_json_text(rows, "name"), _launch_parts())
        yield from self._lines(self._annotations, _device_annotation_parts())
        for rows in devices.iter_slices(_ROWS):
            yield from self._lines(_with_device_texts(rows, self._trace), _device_parts())
        yield from self._launch_arrows()
        yield from self._gradient_arrows()
        memory = self._trace.memory.filter(~_is_reserved())
        for rows in memory.iter_slices(_ROWS):
            yield from self._lines(_with_place(rows), _memory_parts())

    def metadata(self) -> Iterator[str]:
        """Yield the lines that name and order processes, threads, devices and streams, and the end."""
        trace = self._trace
        hosts = pl.concat(
            [trace.events.filter(pl.col("device").is_null()), trace.memory, trace.frames],
            how="diagonal",
        )
        placed = pl.concat([self._devices, self._annotations], how="diagonal")
        threads = hosts.select(pl.col("process", "thread").fill_null(0)).unique().sort(pl.all())
        tracks = placed.select(pl.col("device", "track", "stream").fill_null(0), "lane").unique()
        tracks = tracks.sort(pl.all())
        for pids, is_host in ((threads["process"], True), (tracks["device"], False)):
            for process in pids.unique().sort().to_list():
                label = "CPU" if is_host else f"GPU {process}"
                order = process if is_host else _DEVICE_SORT_BASE + process
                yield _metadata_line("process_name", process, 0, name=f"rank {self._rank}")
                yield _metadata_line("process_labels", process, 0, labels=label)
                yield _metadata_line("process_sort_index", process, 0, sort_index=order)
        for process, thread in threads.rows():
            if name := trace.extra_info.get(str(thread)):
                yield _metadata_line("thread_name", process, thread, name=name)
        for process, track, stream, lane in tracks.rows():
            yield _metadata_line("thread_name", process, track, name=track_name(stream, lane))
        yield '{"ph":"i","s":"g","name":"Record Window End","pid":"","tid":"","ts":0}'

    def omitted(self) -> Mapping[str, int]:
        """Return kind -> number of values that have no place in the file."""
        hosts = self._hosts
        gradients = hosts.drop_nulls("forward")
        lost = gradients["forward"].is_in(gradients["event"].implode())
        counts = {
            "reserved memory events": self._trace.memory.filter(_is_reserved()).height,
            "links from gradients to forward events": int(lost.sum()),
            "values of memsets": self._trace.memsets.height,
            "memories of copies": self._devices["attributes"].count(),
            **self._trace.unheld("gpu_user_annotation", num_frames=self._trace.frames.height),
        }
        return {kind: count for kind, count in counts.items() if count}

    def _lines(self, table: pl.DataFrame, parts: LineParts) -> Iterator[pl.Series]:
        if table.height:
            time = "time_ns" if "time_ns" in table.columns else "start_ns"
            yield json_lines(table.with_columns(pl.col(time) - self._base_ns), *parts)

    def _frames(self) -> pl.DataFrame:
        """Return the frames with a process, and with numbers that no module has."""
        processes = self._hosts.select("thread", "process").drop_nulls().unique("thread")
        first = processes["process"].min() if processes.height else 0
        return self._trace.frames.join(
            processes, on="thread", how="left", maintain_order="left"
        ).with_columns(
            pl.col("process").fill_null(first),
            number=pl.int_range(pl.len()) + self._hosts.height + 1,
        )

    def _device_annotations(self, devices: pl.DataFrame) -> pl.DataFrame:
        """Return the spans of device events that one user_annotation launched on one stream."""
        owners = self._innermost("user_annotation").rename({"parent": "host", "owner": "span"})
        texts = with_host_texts(self._hosts.filter(pl.col("kind") == "user_annotation"))
        return (
            devices.join(owners, on="host")
            .with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"))
            .group_by("span", "device", "stream", maintain_order=True)
            .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
            .join(texts.select("text", span="event"), on="span", maintain_order="left")
            .with_columns(dur_ns=pl.col("end_ns") - pl.col("start_ns"))
        )

    def _launch_arrows(self) -> Iterator[pl.Series]:
        launched = self._devices.drop_nulls("process_launch").with_columns(id="correlation_id")
        begins = launched.unique("parent", keep="first", maintain_order=True).select(
            "id",
            process="process_launch",
            thread="thread_launch",
            start_ns="start_ns_launch",
        )
        ends = launched.select("id", "start_ns", process="device", thread="track")
        yield from self._arrows("ac2g", begins, ends)

    def _gradient_arrows(self) -> Iterator[pl.Series]:
        hosts = self._hosts.drop_nulls("kind")
        ends = hosts.drop_nulls("forward").unique("forward", keep="first", maintain_order=True)
        makers = hosts.filter(pl.col("forward").is_null(), pl.col("sequence").is_not_null())
        ends = ends.join(makers.select(forward="event"), on="forward", how="semi")
        place = ("process", "thread", "start_ns")
        yield from self._arrows(
            "fwdbwd", makers.select(*place, id="event"), ends.select(*place, id="forward")
        )

    def _arrows(self, kind: str, begins: pl.DataFrame, ends: pl.DataFrame) -> Iterator[pl.Series]:
        for ph, table in (("s", begins), ("f", ends)):
            for rows in table.iter_slices(_ROWS):
                yield from self._lines(rows, _arrow_parts(kind, ph))


def _base_ns(trace: Trace) -> int:
    """Return the time that the file's times count from, in ns since 1970."""
    times = pl.concat([trace.events["start_ns"], trace.memory["time_ns"], trace.frames["start_ns"]])
    first = times.min()
    return max(0, int(first) // _BASE_NS * _BASE_NS) if isinstance(first, int) else 0


def _frame_parts() -> LineParts:
    start = span_start("python_function", [pl.col("text")], pl.col("process"), pl.col("thread"))
    return [*start, '"Python id":', pl.col("number"), "}}"]


def _launch_parts() -> LineParts:
    is_driver = pl.col("name").cast(pl.String).str.contains("^cu[A-Z]")
    kind = pl.when(is_driver).then(pl.lit("cuda_driver")).otherwise(pl.lit("cuda_runtime"))
    return [
        *span_start(kind, [pl.col("text")], pl.col("process"), pl.col("thread")),
        *('"correlation":', pl.col("correlation_id")),
        optional_arg("External id", pl.col("owner") + 1),
        "}}",
    ]


def _device_annotation_parts() -> LineParts:
    start = span_start("gpu_user_annotation", [pl.col("text")], pl.col("device"), pl.col("track"))
    return [*start, '"External id":', pl.col("span") + 1, "}}"]


def _with_device_texts(rows: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Return device events with their escaped ``text`` and ``kind``, and how they were launched.

    HTA knows copies by names that begin as torch's: ``Memcpy HtoD``, not Paddle's ``MEMCPY_HtoD``.
    """
    kinds = {category: kind for kind, category in DEVICES.items() if kind.islower()}
    rows = with_json_text(rows, "category").rename({"text": "kind"})
    rows = with_json_text(rows.with_columns(pl.col("kind").replace(kinds)), "name")
    is_copy = pl.col("category").cast(pl.String).is_in(["Memcpy", "Memset"])
    copy = pl.col("text").str.replace("^MEMCPY_", "Memcpy ").str.replace("^MEMSET", "Memset")
    rows = rows.with_columns(text=pl.when(is_copy).then(copy).otherwise("text"))
    return rows.join(trace.kernels, on="event", how="left", maintain_order="left")


def _device_parts() -> LineParts:
    is_copy = pl.col("category").cast(pl.String).is_in(["Memcpy", "Memset"])
    return [
        *span_start(pl.col("kind"), [pl.col("text")], pl.col("device"), pl.col("track")),
        *('"device":', pl.col("device"), ',"stream":', pl.col("stream").fill_null(0)),
        optional_arg("External id", pl.col("owner") + 1),
        optional_arg("context", pl.col("context")),
        optional_arg("correlation", pl.col("correlation_id")),
        optional_arg("registers per thread", pl.col("registers")),
        optional_arg("shared memory", pl.col("shared_bytes")),
        optional_arg("blocks per SM", pl.col("blocks_per_sm")),
        optional_arg("warps per SM", pl.col("warps_per_sm")),
        optional_arg("grid", triple("grid")),
        optional_arg("block", triple("block")),
        optional_arg("est. achieved occupancy %", (pl.col("occupancy") * 100).round(6)),
        optional_arg("bytes", pl.when(is_copy).then("bytes")),
        optional_arg("memory bandwidth (GB/s)", gigabytes_per_s(is_copy)),
        pl.col("collective").fill_null(""),
        "}}",
    ]


def _arrow_parts(kind: str, ph: str) -> LineParts:
    binding = ',"bp":"e"' if ph == "f" else ""
    return [
        *(f'{{"ph":"{ph}","id":', pl.col("id"), ',"pid":', pl.col("process").fill_null(0)),
        *(',"tid":', pl.col("thread").fill_null(0), ',"ts":', microseconds("start_ns")),
        f',"cat":"{kind}","name":"{kind}"{binding}}}',
    ]


def _is_reserved() -> pl.Expr:
    return pl.col("kind").cast(pl.String).is_in(_RESERVED).fill_null(False)


def _with_place(memory: pl.DataFrame) -> pl.DataFrame:
    """Return memory events with ``device_type`` and ``device_id`` for torch.

    >>> table = pl.DataFrame({"place": ["Place(gpu:1)", "Place(cpu)", "Place(npu:0)"]})
    >>> _with_place(table).select("device_type", "device_id").rows()
    [(1, 1), (0, -1), (20, 0)]
    """
    places = memory["place"].cast(pl.String)
    distinct = places.unique().to_list()
    numbers = [_device_of(place or "") for place in distinct]

    def numbers_of(side: int) -> pl.Series:
        values = [number[side] for number in numbers]
        column: pl.Series = places.replace_strict(distinct, values, return_dtype=pl.Int64)
        return column

    return memory.with_columns(device_type=numbers_of(0), device_id=numbers_of(1))


def _device_of(place: str) -> tuple[int, int]:
    """Return torch's type and number of the device of a place; of the CPU if it names none."""
    match = _PLACE.fullmatch(place)
    if match is None or match[2] is None:
        return _CPU, -1
    numbered = _DEVICE_TYPE.fullmatch(match[1])
    kind = int(numbered[1]) if numbered else _DEVICE_NUMBERS.get(match[1], _PRIVATE_USE)
    return kind, int(match[2])


def _memory_parts() -> LineParts:
    return [
        '{"ph":"i","cat":"cpu_instant_event","s":"t","name":"[memory]","pid":',
        *(pl.col("process").fill_null(0), ',"tid":', pl.col("thread").fill_null(0)),
        *(',"ts":', microseconds("time_ns"), ',"args":{"Bytes":', pl.col("bytes").fill_null(0)),
        optional_arg("Total Allocated", pl.col("current_allocated")),
        optional_arg("Total Reserved", pl.col("current_reserved")),
        *(',"Device Id":', pl.col("device_id"), ',"Device Type":', pl.col("device_type")),
        optional_arg("Addr", pl.col("addr")),
        "}}",
    ]


def _metadata_line(kind: str, process: int, thread: int, **args: Any) -> str:
    line = {"ph": "M", "name": kind, "ts": 0, "pid": process, "tid": thread, "args": args}
    return json.dumps(line, ensure_ascii=False)


def with_kinds(hosts: pl.DataFrame, has_derived_steps: bool) -> pl.DataFrame:
    """Return host events with ``kind``, the ``cat`` to write, and ``title``, the name to write.

    Both are null for the Backward events and steps that the reader derives.
    """
    is_derived = (
        (pl.col("category") == "Backward")
        & (pl.col("name") == "Backward")
        & pl.col("event").is_in(_parents_of_nodes(hosts).implode())
    ) | (pl.lit(has_derived_steps) & (pl.col("category") == "ProfileStep"))
    columns = hosts.select(
        pl.col("category", "name").cast(pl.String).fill_null(""),
        pl.col("stage").is_not_null().alias("is_staged"),
        is_derived.fill_null(False).alias("is_derived"),
    )
    distinct = columns.unique()
    kinds = [
        (None, None) if is_derived else _kind(category, name, is_staged)
        for category, name, is_staged, is_derived in distinct.iter_rows()
    ]
    table = distinct.with_columns(
        pl.Series("kind", [kind for kind, _ in kinds], pl.String),
        pl.Series("title", [title for _, title in kinds], pl.String),
    )
    joined = columns.join(table, on=columns.columns, how="left", maintain_order="left")
    return hosts.with_columns(joined["kind"], joined["title"])


def _parents_of_nodes(hosts: pl.DataFrame) -> pl.Series:
    is_node = pl.col("name").cast(pl.String).str.starts_with(EVALUATE)
    return hosts.filter(is_node)["parent"].drop_nulls().unique()


def _kind(category: str, name: str, is_staged: bool) -> tuple[str, str]:
    """Return ``cat`` and name of a host event; of a module, without its number.

    >>> _kind("Forward", "Linear", False), _kind("Communication", "all_reduce", False)
    (('python_function', 'nn.Module: Linear'), ('cpu_op', 'c10d::all_reduce'))
    """
    if category == "Forward" and not is_staged and name != DDP:
        return "python_function", MODULE + name
    if category == "ProfileStep":
        return "user_annotation", name.replace("ProfileStep#", STEP, 1)
    if category in _PREFIXES:
        prefix = _PREFIXES[category]
        return "user_annotation", name if name.startswith(prefix) else prefix + name
    if category == "Communication":
        if name.endswith(WAIT):
            return "user_annotation", name
        is_torchs = re.search(TORCH_SPANS, name) is not None
        return "cpu_op", name if is_torchs else f"c10d::{name}"
    return ("user_annotation" if category in _SPANS else "cpu_op"), name


def with_sequences(hosts: pl.DataFrame) -> pl.DataFrame:
    """Return host events with ``sequence`` and ``forward_thread``.

    ``sequence`` is the row of the forward event, in that event and in all that compute its
    gradient. ``forward_thread`` numbers its thread from 1 in the latter, and is 0 in the former.
    """
    thread = hosts.select(pl.struct("process", "thread").rank("dense")).to_series().cast(pl.Int64)
    is_maker = pl.col("event").is_in(hosts["forward"].drop_nulls().unique().implode())
    of_forward = thread.gather(hosts["forward"])
    return hosts.with_columns(
        sequence=pl.coalesce("forward", pl.when(is_maker).then("event")),
        forward_thread=pl.coalesce(of_forward, pl.when(is_maker).then(0)),
    )


def with_modules(hosts: pl.DataFrame) -> pl.DataFrame:
    """Return host events with the ``number`` of each module and the ``module`` around it.

    ::

        Net_0     ----------------------------   ------
        Linear_0    ----                           --
        Linear_1          ----
        Relu_0                  --

    Both are null for other events, and ``module`` also for outermost modules.
    """
    is_module = (hosts["kind"] == "python_function").fill_null(False)
    above = enclosing(hosts["parent"].fill_null(-1).to_numpy(), is_module.to_numpy())
    modules = hosts.select("event", "title", module=pl.Series(above)).filter(is_module)
    number = pl.int_range(pl.len()).over((pl.col("module") < 0).cum_sum(), "title")
    modules = modules.select(
        "event",
        number=number,
        module=pl.when(pl.col("module") >= 0).then("module"),
    )
    return hosts.join(modules, on="event", how="left", maintain_order="left")


def with_host_texts(rows: pl.DataFrame) -> pl.DataFrame:
    """Return host events with ``text``, their escaped name, and texts to append to their args."""
    rows = with_json_callstack(with_json_text(rows, "title"))
    rows = rows.with_columns(
        pl.when(pl.col(column).is_not_null())
        .then(with_json_text(rows.select(column), column)["text"])
        .alias(column)
        for column in ("axis", "phase")
    )
    inputs = rows.select(pl.col("shapes", "dtypes", "attributes").cast(pl.String))
    distinct = inputs.unique()
    texts = pl.Series("inputs", [lists_of(*row) for row in distinct.iter_rows()], pl.String)
    joined = inputs.join(
        distinct.with_columns(texts),
        on=inputs.columns,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    return rows.with_columns(joined["inputs"])


def span_start(
    kind: pl.Expr | str, name: LineParts, process: pl.Expr, thread: pl.Expr
) -> LineParts:
    """Return the parts with which the line of every span starts, up to its ``args``."""
    return [
        *('{"ph":"X","cat":"', kind, '","name":"', *name, '","pid":', process.fill_null(0)),
        *(',"tid":', thread.fill_null(0), ',"ts":', microseconds("start_ns")),
        *(',"dur":', microseconds("dur_ns"), ',"args":{'),
    ]


def _quoted_arg(key: str, text: pl.Expr) -> pl.Expr:
    return pl.concat_str(pl.lit(f',"{key}":"'), text, pl.lit('"')).fill_null("")


def host_parts() -> LineParts:
    """Return the parts of the line of a host event."""
    is_module = pl.col("kind") == "python_function"
    number = pl.concat_str(pl.lit("_"), pl.col("number").cast(pl.String)).fill_null("")
    identity = pl.col("event") + 1
    return [
        *span_start(pl.col("kind"), [pl.col("text"), number], pl.col("process"), pl.col("thread")),
        *('"Ev Idx":', pl.col("event")),
        optional_arg("External id", pl.when(~is_module).then(identity)),
        optional_arg("Python id", pl.when(is_module).then(identity)),
        optional_arg("Python parent id", pl.col("module") + 1),
        optional_arg("Python module id", pl.col("number")),
        optional_arg("Sequence number", pl.col("sequence")),
        optional_arg("Fwd thread id", pl.col("forward_thread")),
        pl.col("collective").fill_null(""),
        pl.col("inputs").fill_null(""),
        optional_arg("Call stack", pl.col("callstack")),
        _quoted_arg("axis", pl.col("axis")),
        *(optional_arg(key, pl.col(key)) for key in ("stage", "chunk", "micro_batch")),
        _quoted_arg("phase", pl.col("phase")),
        "}}",
    ]
