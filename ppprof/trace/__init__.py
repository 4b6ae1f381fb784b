"""Files to the events table, and back: readers and writers of traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ppprof.rundir.clocks import Clock, Reading
    from ppprof.rundir.remote_calls import REMOTE
    from ppprof.trace.formats import read, write
    from ppprof.trace.paddle.json_writer import write_paddle_json
    from ppprof.trace.paddle.pb_reader import read_paddle_pb
    from ppprof.trace.paddle.pb_writer import write_paddle_pb
    from ppprof.trace.remote_calls import read_window
    from ppprof.trace.schema import Trace

__all__ = [
    "REMOTE",
    "Clock",
    "Reading",
    "Trace",
    "read",
    "read_paddle_pb",
    "read_window",
    "write",
    "write_paddle_json",
    "write_paddle_pb",
]

_MODULES = {
    "REMOTE": "rundir.remote_calls",
    "Clock": "rundir.clocks",
    "Reading": "rundir.clocks",
    "Trace": "trace.schema",
    "read": "trace.formats",
    "read_paddle_pb": "trace.paddle.pb_reader",
    "read_window": "trace.remote_calls",
    "write": "trace.formats",
    "write_paddle_json": "trace.paddle.json_writer",
    "write_paddle_pb": "trace.paddle.pb_writer",
}


def __getattr__(name: str) -> Any:
    """Loads on first use: the processes that scan a long file need numpy alone."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"ppprof.{_MODULES[name]}"), name)
