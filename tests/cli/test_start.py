"""What a start imports: neither a command line without data nor a training waits for polars."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ppprof.cli import COMMANDS, main

HEAVY = (
    *("numpy", "polars", "paddle", "msgspec", "jinja2", "yaml", "fsspec", "tqdm", "shtab"),
    *("ppprof.analysis.profile", "ppprof.capture", "ppprof.config", "ppprof.report", "ppprof.run"),
    *("ppprof.trace.schema", "ppprof.trace.formats"),
)
"""Modules that take long to import, or that import such modules."""

USAGE_ERRORS = {
    "bench": ["-n", "1", "--", "a.py"],
    "demo": ["-o", "tests"],
    "run": ["--steps", "5:", "--nproc", "0", "nosuch.py"],
    "config": ["a.yaml", "--world-size", "x"],
    "summary": ["a.pb", "--views", "ops", "--sorted-by", "x", "--time-unit", "h", "--steps", "2:1"],
    "ranks": ["a.pb", "--by", "t-p", "--row-limit", "0", "--workers", "0"],
    "path": ["a.pb", "--by", "x", "--what-if", "matmul"],
    "predict": ["a", "b", "c", "--memory", "80", "--to", "x", "y", "--steps", "2:1"],
    "merge": ["a.pb", "--min-dur", "3"],
    "diff": ["a.pb", "--views", "x", "--filter", "(", "--fail-if", "x > 5%"],
    "advise": ["a.pb", "--format", "csv", "--row-limit", "3"],
    "report": ["a.pb", "--window", "x"],
    "convert": ["a.pb", "b.txt"],
    "hang": ["run", "--width", "x"],
    "watch": ["run", "--width", "x"],
    "memory": ["a.pb", "--row-limit", "0", "--rank", "x"],
    "doctor": ["--nproc", "0"],
    "trigger": ["run", "--timeout", "5"],
    "finish": ["run", "--rank", "x", "--then", "'"],
    "mcp": ["run", "--rank", "0"],
    "schema": ["run"],
    "completion": ["fish"],
}
"""Arguments that argparse or the command's own checks reject, keyed by command."""

IMPORTED = """
import contextlib, io, json, sys
from ppprof.cli import main

heavy = sys.argv[1].split(",")
for arguments in json.loads(sys.argv[2]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = main(arguments)
        except SystemExit as end:
            code = end.code
    modules = [name for name in heavy if name in sys.modules]
    print(json.dumps([arguments, code, modules]))
"""
"""A program that runs command lines; for each it prints the heavy modules that it imported."""


def imported(*lines: list[str]) -> list[tuple[list[str], int, list[str]]]:
    """Return each command line with its exit code and the heavy modules that it imported."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, ",".join(HEAVY), json.dumps(lines)],
        capture_output=True,
        check=True,
        text=True,
    )
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_help_and_version_import_nothing_heavy():
    lines = [[], ["--help"], ["--version"], *([command, "--help"] for command in COMMANDS)]
    assert imported(*lines) == [(line, 0, []) for line in lines]


def test_usage_errors_import_nothing_heavy():
    assert USAGE_ERRORS.keys() == COMMANDS.keys()
    lines = [["--nosuch"], ["nosuch"], *([command, "--nosuch"] for command in COMMANDS)]
    lines += [[command, *arguments] for command, arguments in USAGE_ERRORS.items()]
    assert imported(*lines) == [(line, 2, []) for line in lines]


def test_completion_imports_only_what_writes_the_script():
    assert imported(["completion", "bash"]) == [(["completion", "bash"], 0, ["shtab"])]


def test_a_command_after_two_dashes_has_its_arguments(capsys):
    """Only the commands that a command line names get their arguments."""
    with pytest.raises(SystemExit) as end:
        main(["--", "completion", "fish"])
    assert end.value.code == 2
    assert "choose from" in capsys.readouterr().err


def test_a_training_imports_no_reader_of_traces():
    heavy = ["polars", "msgspec", "yaml", "ppprof.analysis", "ppprof.report", "ppprof.run"]
    code = (
        "import sys, ppprof; assert not [name for name in sys.modules if name[:7] == 'ppprof.'];"
        f"ppprof.attach, ppprof.span; sys.exit(' '.join({{*{heavy}}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True)
    assert done.stderr.strip() == ""


def test_no_part_of_a_capture_imports_polars():
    """It takes some 35 MB and 0.1 to 0.2 s from the training."""
    code = (
        "import importlib, pkgutil, sys, ppprof.capture as home\n"
        "for module in pkgutil.walk_packages(home.__path__, 'ppprof.capture.'):\n"
        "    importlib.import_module(module.name)\n"
        "    assert not {'polars', 'ppprof.analysis'} & set(sys.modules), module.name\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
