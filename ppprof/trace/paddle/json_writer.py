"""Traces in Paddle's JSON dialect, strict: what VisualDL, chrome://tracing and Perfetto open.

Where this differs from Paddle's own writer (chrometracing_logger.cc, paddle 3.3): names are
escaped and never empty; nothing is ever ``inf`` or ``nan``; times are exact to the nanosecond,
``ts`` included; host events come in pre-order and carry their ``depth``, so that a reader has the
tree and need not guess it; an event a line and no white space; ``span_indx``, which VisualDL 2.5.3
asks for, stands beside ``span_index``; ``traceEvents`` does not end in an empty object; host events
have their facts in ``args``, and what computes a gradient has the number of what it is the gradient
of, ``forward``, which that one has as ``sequence``. Control characters in names become visible escapes, because
VisualDL loses a file over a line break in a name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import polars as pl

from ppprof.paths import to_path
from ppprof.trace.annotations import has_facts
from ppprof.trace.json.lines import Parts, lines_of, maybe, opened, us, with_facts, with_text
from ppprof.trace.schema import PYTHON_CATEGORIES, Trace

_FINITE = re.compile(r"\d+(\.\d+)?")
_ROWS = 1 << 15
_DEVICE_SORT_BASE = 0x10000000  # Paddle sorts devices below every host process


class TooLargeError(Exception):
    """A trace that would take more than it may; nothing of it was left."""


def write_paddle_json(
    trace: Trace, path: str | Path, most_bytes: int | None = None
) -> Mapping[str, int]:
    """Writes one trace; gzip where the name ends in ``.gz``.

    The file appears under its name when it is complete and on disk, for VisualDL never looks
    again at one that it saw half-written.

    Args:
        trace: what to write.
        path: the file.
        most_bytes: what it may take, up to some megabytes; None for all that it needs.

    Returns:
        What the format has no place for, kind -> how many: facts of launches and device events.

    Raises:
        TooLargeError: it would take more.
    """
    with opened(to_path(path)) as file:
        _write(trace, file, most_bytes)
    is_host = pl.col("device").is_null() & pl.col("correlation_id").is_null()
    num_lost = trace.events.filter(is_host.not_() & has_facts()).height
    return {"event annotations": num_lost} if num_lost else {}


def _write(trace: Trace, file: IO[bytes], most_bytes: int | None) -> None:
    on_disk = getattr(file, "fileobj", file)  # what gzip writes to
    head: dict[str, Any] = {
        "schemaVersion": trace.version,
        "displayTimeUnit": "ms",
        "span_index": str(trace.span),
        "span_indx": str(trace.span),
    }
    if trace.devices:
        head["deviceProperties"] = [dict(device) for device in trace.devices]
    head["ExtraInfo"] = {**trace.extra_info}
    for key in ("Process Cpu Utilization", "System Cpu Utilization"):
        if not _FINITE.fullmatch(trace.extra_info.get(key, "")):
            head["ExtraInfo"][key] = "0"  # VisualDL must have both, and as numbers
    text = json.dumps(head, separators=(",", ":"), allow_nan=False)
    file.write(text[:-1].encode() + b',"traceEvents":[\n')
    for lines in _lines_in_order(trace):
        lines.write_csv(file, include_header=False, quote_style="never", line_terminator=",\n")
        if most_bytes is not None and on_disk.tell() > most_bytes:
            raise TooLargeError
    # Every event above has a comma after it and a track that is named here.
    file.write(",\n".join(_metadata(trace)).encode("utf-8", "replace"))
    file.write(b"\n]}\n")


def _lines_in_order(trace: Trace) -> Iterator[pl.DataFrame]:
    """The lines of all events, few at a time, as they are long.

    Host events come in pre-order and with their depth, and behind each what happened in it, as
    Paddle has it: so the order tells the tree, which times alone cannot.
    """
    kinds = _kinds(trace)
    order = pl.concat(
        table.select(
            *("host", "part", "launch", "sub"),
            kind=pl.lit(kind, pl.Int8),
            at=pl.int_range(pl.len()),
        )
        for kind, (table, _) in enumerate(kinds)
    ).sort("host", "part", "launch", "sub", maintain_order=True)
    for rows in order.with_row_index("place").iter_slices(_ROWS):
        lines = []
        for (kind,), of_kind in rows.group_by("kind"):
            table, parts = kinds[int(str(kind))]
            lines.append(
                pl.DataFrame(
                    {"place": of_kind["place"], "line": lines_of(table[of_kind["at"]], *parts)}
                )
            )
        yield pl.concat(lines).sort("place").select("line")


def _kinds(trace: Trace) -> list[tuple[pl.DataFrame, Parts]]:
    """Rows and parts of each kind of line, with the columns that say where they go.

    ``host`` is the row of the host event that a line belongs to, and where there is none the first
    row of the thread; ``part`` is 0 for what comes before that, 1 for itself, 2 for launches, each
    with what it started, and 3 for memory.
    """
    events = _prepared(trace)
    is_device = pl.col("device").is_not_null()
    is_launch = is_device.not_() & pl.col("correlation_id").is_not_null()
    hosts = with_facts(events.filter(is_device.not_() & is_launch.not_()))
    has_gradient = pl.col("event").is_in(hosts["forward"].drop_nulls().unique().implode())
    hosts = hosts.with_columns(sequence=pl.when(has_gradient).then("event"))
    firsts = hosts.group_by("thread").agg(first=pl.col("event").min())

    def placed(table: pl.DataFrame, host: str, part: int) -> pl.DataFrame:
        """In its host event; in none: before the first of the thread, or behind all."""
        found = table.join(firsts, on="thread", how="left", maintain_order="left")
        return found.with_columns(
            host=pl.coalesce(host, "first", pl.lit(events.height)),
            part=pl.when(pl.col(host).is_null()).then(0).otherwise(part),
        )

    launches = placed(events.filter(is_launch), "parent", 2).with_columns(launch="event")
    devices = _with_details(trace, events.filter(is_device)).join(
        launches.select("host", "part", parent="event"),
        on="parent",
        how="left",
        maintain_order="left",
    )
    devices = devices.with_columns(
        host=pl.col("host").fill_null(events.height),
        part=pl.col("part").fill_null(4),
        launch=pl.coalesce("parent", "event"),
    )
    memory = placed(with_text(trace.memory, "place"), "event", 3)
    return [
        (_at(hosts.with_columns(host="event", part=1, launch=0), 0), _host_parts()),
        (_at(launches, 0), _launch_parts()),
        (_at(launches, 1), _flow_parts("s")),
        (_at(devices, 2), _device_parts()),
        (_at(devices, 2), _flow_parts("f")),
        (_at(memory.with_columns(launch=events.height), 3), _memory_parts()),
    ]


def _at(table: pl.DataFrame, sub: int) -> pl.DataFrame:
    """The table with its place among the lines of one launch."""
    columns = ("host", "part", "launch")
    return table.with_columns(pl.col(columns).cast(pl.Int64), sub=pl.lit(sub, pl.Int64))


def _prepared(trace: Trace) -> pl.DataFrame:
    """The events with their names as they stand in JSON, and times relative to the first event."""
    host_start = trace.events.filter(pl.col("device").is_null())["start_ns"].min()
    first_ns = host_start if isinstance(host_start, int) else 0
    return with_text(trace.events, "name").with_columns(
        event=pl.int_range(pl.len()), begin_ns=pl.col("start_ns") - first_ns
    )


def _name_and_time(track: pl.Expr | str, colour: str) -> Parts:
    """What every X event starts with, up to its ``args``, which are left open."""
    process = pl.coalesce("device", "process")
    return [
        *('{"name":"', pl.col("text"), "[", us((pl.col("dur_ns") + 500) // 1000)),
        *(' ms]","pid":', process, ',"tid":', track),
        *(',"ts":', us("start_ns"), ',"dur":', us("dur_ns")),
        *(',"ph":"X","cat":"', pl.col("category")),
        *(f'","cname":"{colour}","args":{{"start_time":"', us("begin_ns")),
        *(' us","end_time":"', us(pl.col("begin_ns") + pl.col("dur_ns")), ' us"'),
    ]


def _thread_track() -> pl.Expr:
    """``"N(Python)"`` or ``"N(C++)"``, as Paddle splits one thread over two tracks."""
    side = (
        pl.when(pl.col("category").cast(pl.String).is_in(PYTHON_CATEGORIES))
        .then(pl.lit('(Python)"'))
        .otherwise(pl.lit('(C++)"'))
    )
    return pl.concat_str(pl.lit('"'), pl.col("thread").cast(pl.String), side)


def _host_parts() -> Parts:
    return [
        *_name_and_time(_thread_track(), "thread_state_runnable"),
        maybe("depth", pl.col("depth")),
        maybe("sequence", pl.col("sequence")),
        maybe("forward", pl.col("forward")),
        pl.col("facts").fill_null(""),
        "}}",
    ]


def _launch_parts() -> Parts:
    start = _name_and_time(_thread_track(), "thread_state_running")
    return [*start, ',"correlation id":', pl.col("correlation_id"), "}}"]


def _flow_parts(end: str) -> Parts:
    """An arrow from the middle of a launch (``s``) to the middle of what it started (``f``)."""
    track = _thread_track() if end == "s" else pl.col("stream")
    middle = pl.col("start_ns") + pl.col("dur_ns") // 2
    binding = "" if end == "s" else ',"bp":"e"'
    return [
        *('{"name":"launch","id":', pl.col("correlation_id")),
        *(',"pid":', pl.coalesce("device", "process"), ',"tid":', track),
        *(',"ts":', us(middle)),
        f',"ph":"{end}","cat":"async"{binding}}}',
    ]


def _with_details(trace: Trace, devices: pl.DataFrame) -> pl.DataFrame:
    return devices.join(trace.kernels, on="event", how="left", maintain_order="left").join(
        trace.memsets, on="event", how="left", maintain_order="left"
    )


def _device_parts() -> Parts:
    def triple(name: str) -> pl.Expr:
        axes = [pl.col(f"{name}_{axis}").cast(pl.String) for axis in "xyz"]
        return pl.concat_str(pl.lit("["), pl.concat_str(axes, separator=","), pl.lit("]"))

    is_copy = (pl.col("category") == "Memcpy") & (pl.col("dur_ns") > 0)
    bandwidth = pl.when(is_copy).then(pl.col("bytes") / pl.col("dur_ns")).round(3)
    return [
        *_name_and_time(pl.col("stream"), "rail_animation"),
        maybe("device", pl.col("device")),
        maybe("context", pl.col("context")),
        maybe("stream", pl.col("stream")),
        maybe("correlation id", pl.col("correlation_id")),
        maybe("bytes", pl.col("bytes")),
        maybe("memory bandwidth (GB/s)", bandwidth),
        maybe("value", pl.col("value")),
        maybe("registers per thread", pl.col("registers")),
        maybe("shared memory", pl.col("shared_bytes")),
        maybe("blocks per SM", pl.col("blocks_per_sm").round(6)),
        maybe("warps per SM", pl.col("warps_per_sm").round(6)),
        maybe("grid", triple("grid")),
        maybe("block", triple("block")),
        maybe("theoretical achieved occupancy %", (pl.col("occupancy") * 100).round(3)),
        "}}",
    ]


def _memory_parts() -> Parts:
    numbers: Parts = []
    columns = ["current_allocated", "current_reserved", "peak_allocated", "peak_reserved"]
    for column in columns:
        numbers += [f',"{column}":', pl.col(column).fill_null(0)]
    return [
        *('{"name":"[memory]","pid":', pl.col("process")),
        *(',"tid":"', pl.col("thread"), '(C++)","ts":', us("time_ns")),
        *(',"ph":"i","s":"t","cat":"', pl.col("kind")),
        *('","args":{"place":"', pl.col("text"), '","addr":"', pl.col("addr").fill_null(0)),
        *('","increase_bytes":', pl.col("bytes").fill_null(0)),
        *numbers,
        "}}",
    ]


def _metadata(trace: Trace) -> Iterable[str]:
    """Names and order of processes, threads, devices and streams."""
    threads = pl.concat([trace.events, trace.memory], how="diagonal")
    tracks = threads.select("process", "thread", "device", "stream").unique().sort(pl.all())
    for row in tracks.rows(named=True):
        if row["device"] is None:
            pid, thread = row["process"], row["thread"]
            label = trace.extra_info.get(str(thread), "")
            for at, side in enumerate(("Python", "C++")):
                names = (f"Process {pid} (CPU)", f"thread {thread}:{label}({side})")
                yield from _named(pid, f"{thread}({side})", names, (pid, 2 * thread + at))
        else:
            pid, stream = row["device"], row["stream"]
            names = (f"Device {pid} (GPU)", f"stream {stream}")
            yield from _named(pid, stream, names, (pid + _DEVICE_SORT_BASE, stream))


def _named(
    pid: int, tid: int | str, names: tuple[str, str], order: tuple[int, int]
) -> Iterator[str]:
    """Name and place in the order of a process and of one of its tracks."""
    for kind, args in (
        ("process_name", {"name": names[0]}),
        ("thread_name", {"name": names[1]}),
        ("process_sort_index", {"sort_index": order[0]}),
        ("thread_sort_index", {"sort_index": order[1]}),
    ):
        event = {"name": kind, "pid": pid, "tid": tid, "ph": "M", "args": args}
        yield json.dumps(event, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
