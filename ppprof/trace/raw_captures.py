"""Read a raw capture together with all that was recorded beside it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import polars as pl

from ppprof.paths import to_path
from ppprof.rundir.names import TraceName
from ppprof.rundir.operator_calls import read_operator_calls
from ppprof.rundir.run_file import RunFile
from ppprof.trace.clock_jumps import without_jumps
from ppprof.trace.device_clock import with_device_clock
from ppprof.trace.event_lines import with_lines, with_stacks
from ppprof.trace.insert_remote_calls import with_remote_calls
from ppprof.trace.join_operator_calls import with_operator_inputs
from ppprof.trace.paddle.pb_reader import read_paddle_pb
from ppprof.trace.schema import Trace

_TIMED = ("calls", "layer_calls", "repeated_calls", "cleared_calls")
"""Fields of `OperatorCalls` with starts and ends in their columns 1 and 2."""


def read_window(raw: str | Path) -> Trace:
    """Return the trace of a raw capture, with all that was recorded beside it.

    The arguments of the operators in ``window.pb`` (or ``window.pb.gz``) are in ``window.ops``; see
    `ppprof.trace.join_operator_calls`.

    The calls of ``window.pb`` are in the folder ``window.calls``; without this folder there are no
    calls. See `ppprof.trace.insert_remote_calls`.

    The stacks of the window are in ``stacks/``; see `ppprof.trace.event_lines`.

    Raises:
        TraceError: the raw capture cannot be read.
    """
    path = to_path(raw)
    trace = with_stacks(read_paddle_pb(raw), raw)
    if TraceName.parse(path.name) is not None:  # others' files are read as Paddle reads them
        trace = with_device_clock(trace)
    plain = path.with_name(path.name.removesuffix(".gz"))
    trace = _with_operator_inputs(trace, RunFile(path.parent, plain.with_suffix(".ops").name))
    folder = RunFile(path.parent, plain.with_suffix(".calls").name)
    return with_lines(with_remote_calls(trace, folder))


def _with_operator_inputs(trace: Trace, file: RunFile) -> Trace:
    try:
        recorded = read_operator_calls(file)
        timed: dict[str, Any] = {
            name: without_jumps(trace, getattr(recorded, name), [1, 2]) for name in _TIMED
        }
        recorded = dataclasses.replace(recorded, **timed)
        events = with_operator_inputs(trace.events, recorded)
    except FileNotFoundError:
        return trace
    except (OSError, ValueError, LookupError, TypeError, pl.exceptions.PolarsError):
        return dataclasses.replace(trace, skipped={**trace.skipped, "files of operator shapes": 1})
    return dataclasses.replace(trace, events=events)
