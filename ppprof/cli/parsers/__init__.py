"""Parse command lines: one module for each command, without the code that runs the command.

Each has ``register(subparsers)``, which adds the command's parser and sets two defaults: ``command``
is the name of the module, ``check`` a function of the parsed arguments. It returns the values of
the options that need more than argparse's checks, or raises UsageError with a line for each problem.

These modules import leaves only: ``--help``, completion and usage errors must not wait for numpy
and polars, which take longer to import than many commands to run.
"""

from __future__ import annotations

COMMANDS = {
    "run": "run a training script and record some of its steps, without any config",
    "config": "print the resolved config, or every problem in it",
    "summary": "print the tables of a run or of a trace file",
    "ranks": "print what each rank spends its steps on: computation, waiting, idling",
    "merge": "put all ranks into one timeline, on one clock",
    "diff": "print what changed between two runs, the biggest change on top",
    "advise": "print what is slow, what that costs a step, and what to change",
    "report": "write a page to look at: findings, steps, ranks, pipeline, memory, timeline",
    "convert": "write a trace in another format, or mend a broken one",
    "doctor": "check what this machine can record, and what is missing",
    "trigger": "open a window in a running job that was started with Profiler.trigger",
    "finish": "make traces and tables of raw captures, as after a killed run",
    "completion": "print a script that lets your shell complete what you type",
}
"""Modules of this package, in the order of the help, and what each command does."""
