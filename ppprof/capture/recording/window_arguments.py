"""Take and write the arguments of the operators in a window. A failure costs the window its shapes only."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from ppprof import rundir
from ppprof.capture.output import reason
from ppprof.capture.signals import pass_interruption
from ppprof.rundir.run_file import RunFile

if TYPE_CHECKING:
    from ppprof.capture.recording.operator_calls import OperatorCallRecorder
    from ppprof.rundir.operator_calls import OperatorCalls

log = logging.getLogger("ppprof")


def take_calls(
    operators: OperatorCallRecorder | None, run: Path, name: rundir.TraceName
) -> OperatorCalls | None:
    """Return the arguments of operators in a window; None without ``operators``, or after an error."""
    if operators is None:
        return None
    try:
        return operators.take()
    except Exception as error:  # whatever the training calls operators with
        _report_no_shapes(run, name, error)
        return None


def write_calls(calls: OperatorCalls | None, run: Path, name: rundir.TraceName) -> None:
    """Write the arguments of operators in a window; do nothing without them. An error is logged."""
    if calls is None:
        return
    try:
        # The recorder of operators has imported it: at the top, msgspec would be imported in every
        # training, and double the time of the import.
        from ppprof.rundir.operator_calls import write_operator_calls

        write_operator_calls(RunFile(run, name.operator_calls), calls)
    except Exception as error:
        _report_no_shapes(run, name, error)


def _report_no_shapes(run: Path, name: rundir.TraceName, error: Exception) -> None:
    pass_interruption(error)
    file = RunFile(run, name.operator_calls)
    log.warning(f"{file}: {reason(error)}; window {name.window} has no shapes")
