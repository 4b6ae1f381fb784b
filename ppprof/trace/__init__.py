"""Read trace files into one columnar events table, and write them back.

`Clock`, `Reading`, `Frame`, `PythonStacks`, `joined_source` and `GARBAGE_COLLECTION` belong to `ppprof.rundir`. They are
exported here too, because `ppprof.analysis` needs them and may import only leaves and this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ppprof.rundir import GARBAGE_COLLECTION
    from ppprof.rundir.clocks import Clock, Reading
    from ppprof.rundir.python_stacks import Frame, PythonStacks, joined_source
    from ppprof.trace.formats import read, write
    from ppprof.trace.kineto.writer import write_kineto_file
    from ppprof.trace.paddle.json_writer import write_paddle_json
    from ppprof.trace.paddle.pb_reader import read_paddle_pb
    from ppprof.trace.paddle.pb_writer import write_paddle_pb
    from ppprof.trace.raw_captures import read_window
    from ppprof.trace.schema import Trace

__all__ = [
    "GARBAGE_COLLECTION",
    "Clock",
    "Frame",
    "PythonStacks",
    "Reading",
    "Trace",
    "joined_source",
    "read",
    "read_paddle_pb",
    "read_window",
    "write",
    "write_kineto_file",
    "write_paddle_json",
    "write_paddle_pb",
]

_MODULES = {
    "GARBAGE_COLLECTION": "ppprof.rundir",
    "Clock": "ppprof.rundir.clocks",
    "Frame": "ppprof.rundir.python_stacks",
    "PythonStacks": "ppprof.rundir.python_stacks",
    "joined_source": "ppprof.rundir.python_stacks",
    "Reading": "ppprof.rundir.clocks",
    "Trace": "ppprof.trace.schema",
    "read": "ppprof.trace.formats",
    "read_paddle_pb": "ppprof.trace.paddle.pb_reader",
    "read_window": "ppprof.trace.raw_captures",
    "write": "ppprof.trace.formats",
    "write_kineto_file": "ppprof.trace.kineto.writer",
    "write_paddle_json": "ppprof.trace.paddle.json_writer",
    "write_paddle_pb": "ppprof.trace.paddle.pb_writer",
}


if not TYPE_CHECKING:  # a type checker would take any name to exist

    def __getattr__(name: str) -> Any:
        """Import a public name of this package on first use.

        Nothing is imported earlier: some commands need a part of this package, and no polars.

        Raises:
            AttributeError: ``name`` is not a public name of this package.
        """
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_MODULES[name]), name)
