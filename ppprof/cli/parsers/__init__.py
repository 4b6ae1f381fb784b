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

EXAMPLES = {
    "run": {
        "ppprof run train.py --epochs 1": "train, record 10 steps once their times have settled",
        "ppprof run --steps 10:20 --report page.html train.py": "steps 10 to 19, and a page of them",
        "ppprof run --nproc 8 train.py": "8 processes; options of the launcher are passed on to it",
        'python -m paddle.distributed.launch "$(command -v ppprof)" run train.py': (
            "where the job has a launcher of its own"
        ),
    },
    "config": {
        "ppprof config gpt.yaml": "the config with its _base_ files, or each problem with its line",
        "ppprof config gpt.yaml -o Profiler.enable=True --world-size 8": "as 8 processes get it",
    },
    "summary": {
        "ppprof summary profiler_log": "the tables that the run's config prints",
        "ppprof summary trace.json --views op,kernel --row-limit 5": "the 5 longest of each",
        "ppprof summary profiler_log --by name": "operators, the largest difference of ranks first",
    },
    "ranks": {
        "ppprof ranks profiler_log": "step parts of each rank, collectives, slow ranks and links",
        "ppprof ranks profiler_log --by pp --what-if": "by stage; what slow ranks and stages cost",
    },
    "merge": {
        "ppprof merge profiler_log -o all.json.gz": "one timeline of all ranks, for ui.perfetto.dev",
        "ppprof merge profiler_log --rank dp=0 --steps 5:7 -o part.json": "some ranks and steps",
    },
    "diff": {
        "ppprof diff base_log new_log": "a verdict on the step time, and the largest changes",
        'ppprof diff base_log new_log --fail-if "step_time > 5%"': "exit code 1 if surely more than 5% slower",
    },
    "advise": {
        "ppprof advise profiler_log": "what costs time, how much, and what to change",
        "ppprof advise profiler_log --language zh --row-limit 3": "the first three, in Chinese",
    },
    "report": {
        "ppprof report profiler_log -o page.html": "a page that needs no network",
        "ppprof report new_log --baseline base_log -o page.html": "with what changed",
    },
    "convert": {
        "ppprof convert broken.json mended.json": "a trace that every viewer opens",
        "ppprof convert profiler_log kineto --to kineto": "one file a rank, for HTA and TraceLens",
        "ppprof convert capture.pb trace.json.gz": "Paddle's .pb as JSON, for ui.perfetto.dev",
    },
    "doctor": {
        "ppprof doctor": "a line for each check: ok, warning or PROBLEM, and what to do",
        "ppprof doctor --nproc 8 /data/log": "also 8 ranks that communicate, and this disk",
    },
    "trigger": {
        "ppprof trigger profiler_log": "the running job records a window",
        "ppprof trigger profiler_log --steps 5 --rank 0 --wait": "5 steps of rank 0; the files",
    },
    "finish": {
        "ppprof finish profiler_log": "tables and traces that a killed run could not write",
    },
    "completion": {
        'eval "$(ppprof completion bash)"': "the tab key completes commands, options and files",
    },
}
"""Command lines to show in the help, and what one sees, keyed by command."""


def examples(command: str) -> str:
    """Return the examples of a command as text for its help."""
    lines = [f"  {line}\n      {seen}\n" for line, seen in EXAMPLES[command].items()]
    return "".join(["Examples:\n", *lines])
