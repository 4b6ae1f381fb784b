"""Output on terminals: nothing is wider than the terminal, and colours follow NO_COLOR."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pytest

from ppprof.cli import COMMANDS, command_parser, main
from tests.fixtures import gpu_traces
from tests.fixtures.terminal import in_terminal
from tests.fixtures.timeline import write

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"

LINES = (
    "summary small_net --views all",
    "summary eight_ranks --by rank --views op --rank 0-2",
    "summary eight_ranks --by name --views op,dist",
    "summary gpu.pb --views all",
    "summary gpu.pb --views efficiency,layer,shape",
    "ranks eight_ranks --what-if",
    "ranks eight_ranks --by rank,step --rank 0,3",
    "diff nothing slow_layer",
    "diff eight_ranks slow_rank_and_link --all",
    "advise slow_layer",
    "advise slow_rank_and_link --language zh",
    "advise dataset_without_workers --language zh",
    "config gpt.yaml",
    "config wrong.yaml",
    "doctor",
    "merge eight_ranks -o merged.json",
    "convert gpu.pb converted.json",
    "convert eight_ranks kineto --to kineto",
    "report small_net -o page.html",
    "trigger eight_ranks",
    "finish eight_ranks",
    "run --steps 5: --nproc none --report nosuch/page.html train.py",
    "completion fish",
    "summary nosuch",
    "sumary small_net",
    "ranks eight_ranks --no-such-option-of-this-command --and-another-one --and-a-third-one-as-well",
    "--version",
    "--help",
    *(f"{command} --help" for command in COMMANDS),
)

PROGRAM = """
import json, sys
import ppprof.capture.doctor as doctor
from ppprof.capture.doctor.checks import Check
from ppprof.cli import main

reason = "the kernel's perf_event_paranoid is 4, so the device's profiler cannot open its counters"
doctor.examine = lambda *_: [
    Check("CUPTI", "problem", reason, "sysctl kernel.perf_event_paranoid=2, or ask who runs it"),
    Check("memory", "ok", "12 GiB"),
]
for line in json.loads(sys.argv[1]):
    print("\\n$", json.dumps(line), flush=True)
    try:
        main(line)
    except SystemExit:
        pass
    sys.stdout.flush()
"""
"""Runs command lines one after another. ``doctor`` reports two checks at once."""


def on_terminal(
    folder: Path, columns: int, *lines: str, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return what each command line writes to a terminal, stdout and stderr together."""
    program = [sys.executable, "-c", PROGRAM, json.dumps([shlex.split(line) for line in lines])]
    code, text = in_terminal(folder, columns, program, environment)
    assert code == 0
    first, *outputs = re.split(r"^\$ \[.*\]\n", text, flags=re.M)
    assert not first.strip()
    assert len(outputs) == len(lines), text
    return dict(zip(lines, outputs))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with runs, traces and configs."""
    folder = tmp_path_factory.mktemp("terminal")
    for name in RUNS.iterdir():
        if name.is_dir():
            shutil.copytree(name, folder / name.name)
    write(folder / "gpu.pb", *gpu_traces.training())
    (folder / "gpt.yaml").write_text(
        f"Profiler:\n  enable: True\n  on_window_end: {'echo ' * 30}\n"
    )
    (folder / "wrong.yaml").write_text(
        "Profiler:\n  schedular: [1, 5]\n  row_limit: 0\n  time_unit: minutes\n"
    )
    return folder


def display_width(line: str) -> int:
    """Return the columns of a terminal that a line takes: two for a wide character (UAX #11)."""
    plain = re.sub(r"\x1b\[\d+m", "", line)
    assert "\x1b" not in plain
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in plain)


@pytest.mark.parametrize("columns", [80, 120])
def test_no_line_is_wider_than_the_terminal(folder: Path, columns: int) -> None:
    for name in ("merged.json", "converted.json", "page.html"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "kineto", ignore_errors=True)
    outputs = on_terminal(folder, columns, *LINES)
    too_wide = {
        (command, line)
        for command, text in outputs.items()
        for line in text.split("\n")
        if display_width(line) > columns
    }
    assert not too_wide
    assert all(text.strip() for command, text in outputs.items() if command != "finish")
    assert "Traceback" not in "".join(outputs.values())


def test_chinese_text_fills_the_width(folder: Path) -> None:
    (text,) = on_terminal(folder, 60, "advise slow_layer --language zh").values()
    prose = [line for line in text.split("\n") if re.search(r"[\u4e00-\u9fff]", line)]
    assert len(prose) > 5
    assert 56 <= max(map(display_width, prose)) <= 60


def test_width_of_the_terminal_can_be_chosen(folder: Path) -> None:
    line = "summary small_net --views op --width 60"
    (text,) = on_terminal(folder, 100, line, environment={"NO_COLOR": "1"}).values()
    assert 56 <= max(map(display_width, text.split("\n"))) <= 60
    piped = subprocess.run(
        [sys.executable, "-m", "ppprof", *shlex.split(line)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert piped.stdout == text


def test_paddles_layout_stays_in_pipes_and_with_its_style(folder: Path) -> None:
    line = "summary small_net --views op,model,overview"
    (text,) = on_terminal(folder, 80, f"{line} --style paddle").values()
    piped = subprocess.run(
        [sys.executable, "-m", "ppprof", *line.split()],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert text == piped.stdout
    assert max(map(len, text.split("\n"))) > 150


COLOURED = ("diff nothing slow_layer", "advise slow_layer", "doctor")


def test_colours_are_for_terminals(folder: Path, capsys, monkeypatch) -> None:
    outputs = on_terminal(folder, 80, *COLOURED)
    assert all("\x1b[31m" in text for text in outputs.values())
    assert "\x1b[31mmajor\x1b[0m" in outputs["advise slow_layer"]
    assert "\x1b[31mPROBLEM" in outputs["doctor"]
    for text in outputs.values():
        for line in text.split("\n"):
            assert line.count("\x1b[0m") * 2 == line.count("\x1b")

    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}):
        for text in on_terminal(folder, 80, *COLOURED, environment=environment).values():
            assert "\x1b" not in text
    flags = [f"{line} --no-color" for line in COLOURED]
    assert "\x1b" not in "".join(on_terminal(folder, 80, *flags).values())

    monkeypatch.chdir(folder)
    for forced, expected in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv("FORCE_COLOR", forced)
        main(["advise", "slow_layer"])
        assert ("\x1b[31m" in capsys.readouterr().out) is expected
    monkeypatch.setenv("FORCE_COLOR", "1")
    main(["advise", "slow_layer", "-o", "findings.txt"])
    assert "\x1b" not in (folder / "findings.txt").read_text()


def test_slower_is_red_and_more_samples_are_green(folder: Path) -> None:
    (text,) = on_terminal(folder, 120, "diff nothing slow_layer").values()
    rows = {line.split("  ")[0]: line for line in text.split("\n")}
    assert re.search(r"\x1b\[31m\+", rows["step time"])
    assert re.search(r"\x1b\[31m-", rows["ips (samples/s)"])
    (text,) = on_terminal(folder, 120, "diff slow_layer nothing").values()
    rows = {line.split("  ")[0]: line for line in text.split("\n")}
    assert re.search(r"\x1b\[32m-", rows["step time"])
    assert re.search(r"\x1b\[32m\+", rows["ips (samples/s)"])


def test_changes_within_the_noise_have_no_colour(folder: Path) -> None:
    (text,) = on_terminal(folder, 120, "diff nothing nothing_again").values()
    assert "Step time: inconclusive" in text
    overview = text.partition("Overview")[2]
    assert re.search(r"step time +[\d.]+ +[\d.]+ +-[\d.]+ +-[\d.]+\n", overview)
    assert "\x1b" not in overview.partition("\n")[2].partition("Operators")[0]


def test_a_name_in_a_trace_cannot_colour_the_output(folder: Path, tmp_path: Path) -> None:
    name = "evil\x1b[31mname\x1b[0m"
    path = tmp_path / f"{name}.json"
    path.write_text(
        json.dumps(
            {
                "traceEvents": [
                    {
                        "name": name,
                        "cat": "user_annotation",
                        "ph": "X",
                        "ts": 1.0,
                        "dur": 5.0,
                        "pid": 1,
                        "tid": 1,
                        "args": {},
                    }
                ],
                "schemaVersion": 1,
                "displayTimeUnit": "ms",
            }
        )
    )
    outputs = on_terminal(
        tmp_path,
        80,
        *(f"{line} {shlex.quote(path.name)}" for line in ("summary --views udf", "ranks")),
    )
    text = "".join(outputs.values())
    assert "evil\\x1b[31mname" in text
    assert "evil\x1b" not in text


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_are_valid_command_lines(command: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "gpt.yaml", "broken.json", "capture.pb", "trace.json"):
        Path(name).write_text("")
    for name in ("profiler_log", "base_log", "new_log"):
        Path(name).mkdir()
    module = import_module(f"ppprof.cli.{command}")
    assert 1 <= len(module.EXAMPLES) <= 4
    for line in module.EXAMPLES:
        words = shlex.split(line.removeprefix('eval "$(').removesuffix(')"'))
        if words[0] == "python":
            words = words[words.index("$(command -v ppprof)") :]
        args = command_parser().parse_args(words[1:])
        assert args.command == command
        module.check(args)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sumary", "x"], "sumary: unknown command; did you mean summary?\n"),
        (["xyzzy"], "xyzzy: unknown command; expected one of run, config, summary, ranks, "),
        (["summary", "x", "--viws=op"], "unrecognized arguments: --viws=op; did you mean --views?"),
        (["diff", "x", "--qqqqqq"], "unrecognized arguments: --qqqqqq\n"),
    ],
)
def test_an_unknown_word_names_the_nearest(words, message, capsys) -> None:
    try:
        code = main(words)
    except SystemExit as end:
        code = int(str(end.code))
    assert code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--width", "39"], "--width: '39': expected a whole number from 40"),
        (["--width", "wide"], "--width: 'wide': expected a whole number from 40"),
        (["--width", "80", "--style", "paddle"], "--width: has no effect with --style paddle"),
        (["--width", "80", "--format", "json"], "--width: has no effect on json"),
        (["--style", "paddle", "--format", "md"], "--style: has no effect on md"),
    ],
)
@pytest.mark.parametrize("command", ["summary", "ranks", "advise"])
def test_a_width_without_effect_is_an_error(command, options, message, cli) -> None:
    assert message in cli(command, "x", *options, code=2).err


@pytest.mark.parametrize("command", ["summary", "advise", "ranks", "report", "watch", "finish"])
def test_an_error_about_a_path_with_a_line_break_is_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a\nppprof: all is well\x1b[31m"
    assert main([command, str(path)]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert r"a\nppprof: all is well\x1b[31m" in line


@pytest.mark.parametrize("command", ["summary", "ranks", "path", "diff"])
def test_a_line_break_in_the_name_of_a_file_is_escaped(command, cli, tmp_path):
    """Also in the name of a file that is found in a folder."""
    folder = tmp_path / "fol\nder"
    folder.mkdir()
    (recorded,) = (RUNS / "nothing").glob("rank_*.json.gz")
    (folder / "cut\nshort.json").write_bytes(gzip.decompress(recorded.read_bytes())[:-100])
    for path in (folder, folder / "cut\nshort.json"):
        part = ["--experiment-rank", "0"] if command == "diff" else []
        done = cli(command, path, *part)
        assert "fol\\nder" in done.out + done.err
        assert not {"der", "short"} & set(re.findall(r"^\w+", done.out + done.err, re.MULTILINE))
