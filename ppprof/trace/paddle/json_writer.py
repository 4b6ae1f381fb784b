"""Write traces in a strict form of Paddle's JSON, for VisualDL, chrome://tracing and Perfetto.

Differences from Paddle's own writer (chrometracing_logger.cc, paddle 3.3):

- Names are escaped and never empty. Control characters in names become visible escapes, because
  VisualDL cannot load a file with a line break in a name.
- No value is ever ``inf`` or ``nan``.
- All times are exact to the nanosecond, including ``ts``.
- Host events come in pre-order with their ``depth``, so that a reader need not guess the tree.
- Host events have their annotations in ``args``, and only those keys of operators' inputs that have a
  value. An event that computes a gradient has the number of its forward event as ``forward``; the
  forward event has this number as ``sequence``.
- Each event is one line without white space, and ``traceEvents`` does not end in an empty object.
- ``span_indx``, which VisualDL 2.5.3 reads, stands beside ``span_index``.
- Around spans of one phase that follow each other in a step stands one more, ``folded``, for VisualDL's
  chart (`ppprof.trace.paddle.folded_phases`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import polars as pl

from ppprof.paths import to_path
from ppprof.trace.annotations import has_annotations
from ppprof.trace.json.lines import (
    LineParts,
    gigabytes_per_s,
    json_lines,
    microseconds,
    open_trace_file,
    optional_arg,
    triple,
    with_annotation_args,
    with_json_text,
)
from ppprof.trace.lanes import track_name, with_tracks
from ppprof.trace.operator_inputs import input_args, with_json_callstack
from ppprof.trace.paddle.folded_phases import fold_phases
from ppprof.trace.schema import PYTHON_CATEGORIES, Trace

_FINITE = re.compile(r"\d+(\.\d+)?")
_ROWS = 1 << 15
_DEVICE_SORT_BASE = 0x10000000  # Paddle sorts devices below every host process


class TooLargeError(Exception):
    """The trace would exceed its size limit; no file was left under its name."""


def write_paddle_json(
    trace: Trace, path: str | Path, most_bytes: int | None = None
) -> Mapping[str, int]:
    """Write one trace; compressed with gzip if the file's name ends in ``.gz``.

    The file appears under its name when it is complete and on disk, since VisualDL never looks
    again at a file that it saw half-written.

    Args:
        trace: the trace.
        path: the file.
        most_bytes: size limit of the file on disk, exceeded by some megabytes at most; None for no
            limit.

    Returns:
        Kind -> number of values that the format cannot hold: annotations of launches and device
        events, and the memories of copies. Empty if nothing was omitted.

    Raises:
        TooLargeError: the file would exceed the limit.
        OSError: the file cannot be written.
    """
    with open_trace_file(to_path(path)) as file:
        _write(trace, file, most_bytes)
    is_host = pl.col("device").is_null() & pl.col("correlation_id").is_null()
    others = trace.events.filter(is_host.not_())
    counts = {
        "event annotations": others.filter(has_annotations()).height,
        "memories of copies": others["attributes"].count(),
    }
    return {kind: count for kind, count in counts.items() if count}


def _write(trace: Trace, file: IO[bytes], most_bytes: int | None) -> None:
    on_disk = getattr(file, "fileobj", file)  # the file that gzip writes to
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
            head["ExtraInfo"][key] = "0"  # VisualDL requires both as numbers
    text = json.dumps(head, separators=(",", ":"), allow_nan=False)
    file.write(text[:-1].encode() + b',"traceEvents":[\n')
    for lines in _lines_in_order(trace):
        lines.write_csv(file, include_header=False, quote_style="never", line_terminator=",\n")
        if most_bytes is not None and on_disk.tell() > most_bytes:
            raise TooLargeError
    # A comma follows every event above; metadata of its track always follows.
    file.write(",\n".join(_metadata(trace)).encode("utf-8", "replace"))
    file.write(b"\n]}\n")


def _lines_in_order(trace: Trace) -> Iterator[pl.DataFrame]:
    """Yield the lines of all events, in tables of few rows, because lines are long.

    Host events come in pre-order, and their lines contain the depth. Directly after each host
    event, before its children, come its launches, device events and memory events, as in Paddle's
    files. So order and depth give the tree, which times alone cannot give.
    """
    kinds = _kinds(trace)
    order = pl.concat(
        table.select(
            *("host", "part", "launch", "sub"),
            kind=pl.lit(kind, pl.Int8),
            row=pl.int_range(pl.len()),
        )
        for kind, (table, _) in enumerate(kinds)
    ).sort("host", "part", "launch", "sub", maintain_order=True)
    for rows in order.with_row_index("place").iter_slices(_ROWS):
        lines = []
        for (kind,), group in rows.group_by("kind"):
            table, parts = kinds[int(str(kind))]
            lines.append(
                pl.DataFrame(
                    {"place": group["place"], "line": json_lines(table[group["row"]], *parts)}
                )
            )
        yield pl.concat(lines).sort("place").select("line")


def _kinds(trace: Trace) -> list[tuple[pl.DataFrame, LineParts]]:
    """Return the rows and the parts of each kind of line, with the columns that order the lines.

    - ``host`` is the row of the host event that a line belongs to. For a line outside of all host
      events, it is the first row of the line's thread; if the thread has no host event, it is the
      number of events.
    - ``part`` is 0 for lines outside of all host events, 1 for the host event itself, 2 for its
      launches, each with its device events, 3 for memory events, and 4 for device events without a
      launch.
    - ``launch`` is the row of the launch that a line belongs to; for a device event without a
      launch, its own row. It has no meaning for host and memory events.
    - ``sub`` orders the lines of one launch.
    """
    events = _prepared(trace)
    is_device = pl.col("device").is_not_null()
    is_launch = is_device.not_() & pl.col("correlation_id").is_not_null()
    hosts = events.filter(is_device.not_() & is_launch.not_())
    hosts = with_json_callstack(with_annotation_args(hosts))
    has_gradient = pl.col("event").is_in(hosts["forward"].drop_nulls().unique().implode())
    hosts = hosts.with_columns(sequence=pl.when(has_gradient).then("event"))
    firsts = hosts.group_by("thread").agg(first=pl.col("event").min())

    def in_host(table: pl.DataFrame, host: str, part: int) -> pl.DataFrame:
        """Return the rows with ``host`` and ``part``, which order them by their host event.

        Rows without a host event get part 0. They come before the first host event of their thread;
        if the thread has none, after all host events.
        """
        joined = table.join(firsts, on="thread", how="left", maintain_order="left")
        return joined.with_columns(
            host=pl.coalesce(host, "first", pl.lit(events.height)),
            part=pl.when(pl.col(host).is_null()).then(0).otherwise(part),
        )

    launches = in_host(events.filter(is_launch), "parent", 2).with_columns(launch="event")
    devices = _with_details(trace, with_tracks(events.filter(is_device))).join(
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
    memory = in_host(with_json_text(trace.memory, "place"), "event", 3)
    folded = fold_phases(hosts).with_columns(
        text=pl.col("category").cast(pl.String), host="event", part=1, launch=0
    )
    return [
        (_placed(folded, -1), _folded_parts()),
        (_placed(hosts.with_columns(host="event", part=1, launch=0), 0), _host_parts()),
        (_placed(launches, 0), _launch_parts()),
        (_placed(launches, 1), _flow_parts("s")),
        (_placed(devices, 2), _device_parts()),
        (_placed(devices.drop_nulls("correlation_id"), 2), _flow_parts("f")),
        (_placed(memory.with_columns(launch=events.height), 3), _memory_parts()),
    ]


def _placed(table: pl.DataFrame, sub: int) -> pl.DataFrame:
    """Return ``table`` with the column ``sub``, which orders the lines of one launch."""
    columns = ("host", "part", "launch")
    return table.with_columns(pl.col(columns).cast(pl.Int64), sub=pl.lit(sub, pl.Int64))


def _prepared(trace: Trace) -> pl.DataFrame:
    """Return the events with the columns ``text``, ``event`` and ``begin_ns``.

    ``text`` is the escaped name, ``event`` the row. ``begin_ns`` is the event's start, counted from
    the first launch or host event; if there is no such event, it is start_ns.
    """
    host_start = trace.events.filter(pl.col("device").is_null())["start_ns"].min()
    first_ns = host_start if isinstance(host_start, int) else 0
    return with_json_text(trace.events, "name").with_columns(
        event=pl.int_range(pl.len(), dtype=pl.Int32), begin_ns=pl.col("start_ns") - first_ns
    )


def _name_and_time(track: pl.Expr | str, colour: str) -> LineParts:
    """Return the parts with which the line of every X event starts, up to its ``args``."""
    process = pl.coalesce("device", "process")
    return [
        *('{"name":"', pl.col("text"), "[", microseconds((pl.col("dur_ns") + 500) // 1000)),
        *(' ms]","pid":', process, ',"tid":', track),
        *(',"ts":', microseconds("start_ns"), ',"dur":', microseconds("dur_ns")),
        *(',"ph":"X","cat":"', pl.col("category")),
        *(f'","cname":"{colour}","args":{{"start_time":"', microseconds("begin_ns")),
        *(' us","end_time":"', microseconds(pl.col("begin_ns") + pl.col("dur_ns")), ' us"'),
    ]


def _thread_track() -> pl.Expr:
    """Return ``"N(Python)"`` or ``"N(C++)"`` for thread N: Paddle splits it into two tracks."""
    side = (
        pl.when(pl.col("category").cast(pl.String).is_in(PYTHON_CATEGORIES))
        .then(pl.lit('(Python)"'))
        .otherwise(pl.lit('(C++)"'))
    )
    return pl.concat_str(pl.lit('"'), pl.col("thread").cast(pl.String), side)


def _host_parts() -> LineParts:
    return [
        *_name_and_time(_thread_track(), "thread_state_runnable"),
        optional_arg("depth", pl.col("depth")),
        optional_arg("sequence", pl.col("sequence")),
        optional_arg("forward", pl.col("forward")),
        pl.col("annotations").fill_null(""),
        input_args(),
        "}}",
    ]


def _folded_parts() -> LineParts:
    start = _name_and_time(_thread_track(), "thread_state_runnable")
    return [*start, ',"folded":', pl.col("num_spans"), "}}"]


def _launch_parts() -> LineParts:
    start = _name_and_time(_thread_track(), "thread_state_running")
    return [*start, ',"correlation id":', pl.col("correlation_id"), "}}"]


def _flow_parts(end: str) -> LineParts:
    """Return the parts of the line of one end of an arrow.

    End ``s`` is in the middle of a launch, end ``f`` in the middle of its device event.
    """
    track = _thread_track() if end == "s" else pl.col("track")
    middle = pl.col("start_ns") + pl.col("dur_ns") // 2
    binding = "" if end == "s" else ',"bp":"e"'
    return [
        *('{"name":"launch","id":', pl.col("correlation_id")),
        *(',"pid":', pl.coalesce("device", "process"), ',"tid":', track),
        *(',"ts":', microseconds(middle)),
        f',"ph":"{end}","cat":"async"{binding}}}',
    ]


def _with_details(trace: Trace, devices: pl.DataFrame) -> pl.DataFrame:
    return devices.join(trace.kernels, on="event", how="left", maintain_order="left").join(
        trace.memsets, on="event", how="left", maintain_order="left"
    )


def _device_parts() -> LineParts:
    is_copy = pl.col("category") == "Memcpy"
    return [
        *_name_and_time(pl.col("track"), "rail_animation"),
        optional_arg("device", pl.col("device")),
        optional_arg("context", pl.col("context")),
        optional_arg("stream", pl.col("stream")),
        optional_arg("correlation id", pl.col("correlation_id")),
        optional_arg("bytes", pl.col("bytes")),
        optional_arg("memory bandwidth (GB/s)", gigabytes_per_s(is_copy)),
        optional_arg("value", pl.col("value")),
        optional_arg("registers per thread", pl.col("registers")),
        optional_arg("shared memory", pl.col("shared_bytes")),
        optional_arg("blocks per SM", pl.col("blocks_per_sm").round(6)),
        optional_arg("warps per SM", pl.col("warps_per_sm").round(6)),
        optional_arg("grid", triple("grid")),
        optional_arg("block", triple("block")),
        optional_arg("theoretical achieved occupancy %", (pl.col("occupancy") * 100).round(3)),
        "}}",
    ]


def _memory_parts() -> LineParts:
    numbers: LineParts = []
    columns = ["current_allocated", "current_reserved", "peak_allocated", "peak_reserved"]
    for column in columns:
        numbers += [f',"{column}":', pl.col(column).fill_null(0)]
    return [
        *('{"name":"[memory]","pid":', pl.col("process")),
        *(',"tid":"', pl.col("thread"), '(C++)","ts":', microseconds("time_ns")),
        *(',"ph":"i","s":"t","cat":"', pl.col("kind")),
        *('","args":{"place":"', pl.col("text"), '","addr":"', pl.col("addr").fill_null(0)),
        *('","increase_bytes":', pl.col("bytes").fill_null(0)),
        *numbers,
        "}}",
    ]


def _metadata(trace: Trace) -> Iterable[str]:
    """Yield the lines that give names and order of processes, threads, devices and streams."""
    is_device = trace.events["device"].is_not_null()
    threads = pl.concat([trace.events.filter(~is_device), trace.memory], how="diagonal")
    for pid, thread in threads.select("process", "thread").unique().sort(pl.all()).rows():
        label = trace.extra_info.get(str(thread), "")
        for number, side in enumerate(("Python", "C++")):
            names = (f"Process {pid} (CPU)", f"thread {thread}:{label}({side})")
            yield from _named(pid, f"{thread}({side})", names, (pid, 2 * thread + number))
    tracks = with_tracks(trace.events.filter(is_device))
    tracks = tracks.select("device", "stream", "lane", "track").unique().sort(pl.all())
    for pid, stream, lane, track in tracks.rows():
        names = (f"Device {pid} (GPU)", track_name(stream, lane))
        yield from _named(pid, track, names, (pid + _DEVICE_SORT_BASE, stream))


def _named(
    pid: int, tid: int | str, names: tuple[str, str], order: tuple[int, int]
) -> Iterator[str]:
    """Yield the lines that give name and order of a process and of one of its tracks.

    ``names`` and ``order`` hold the value of the process and that of the track.
    """
    for kind, args in (
        ("process_name", {"name": names[0]}),
        ("thread_name", {"name": names[1]}),
        ("process_sort_index", {"sort_index": order[0]}),
        ("thread_sort_index", {"sort_index": order[1]}),
    ):
        event = {"name": kind, "pid": pid, "tid": tid, "ph": "M", "args": args}
        yield json.dumps(event, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
