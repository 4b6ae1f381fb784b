"""Add the samples of Python stacks that a run directory has beside a trace."""

from __future__ import annotations

import dataclasses

from ppprof.paths import PathLike
from ppprof.rundir.python_stacks import read_python_stacks, stacks_of_trace
from ppprof.trace.schema import Trace


def with_stacks(trace: Trace, path: PathLike) -> Trace:
    """Return the trace with the stacks of its window; the same trace without such a file.

    Args:
        trace: the trace.
        path: the file that it was read from. ``skipped`` counts a file of stacks that is unreadable.
    """
    file = stacks_of_trace(path)
    if file is None:
        return trace
    try:
        return dataclasses.replace(trace, stacks=read_python_stacks(file))
    except FileNotFoundError:
        return trace
    except (OSError, ValueError, TypeError):
        return dataclasses.replace(trace, skipped={**trace.skipped, "files of Python stacks": 1})
