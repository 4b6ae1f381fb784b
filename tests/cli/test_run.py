"""``ppprof run``: what it starts, and what it rejects."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ppprof.cli import main
from ppprof.cli import run as run_command
from ppprof.cli.run import LAUNCHER_OPTIONS
from ppprof.config import load_profiler
from ppprof.errors import NO_PADDLE

PROGRAM = str(run_command._PROGRAM)
SETTLED = [
    *("-o", "Profiler.enable=True", "-o", "Profiler.trigger={'settled': auto}"),
    *("-o", "Profiler.row_limit=10", "-o", "Profiler.op_detail=False"),
    *("-o", "Profiler.brief=True"),
]


class ReplacedError(Exception):
    """This process would be another program now."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The command lines that replace this process. The working directory has a train.py."""
    commands: list[list[str]] = []

    def execv(program: str, command: Sequence[str]) -> None:
        assert program == command[0] == sys.executable
        commands.append([word for word in command[1:] if word != "-u"])  # the test's own stdout
        raise ReplacedError

    monkeypatch.setattr(run_command.os, "execv", execv)
    monkeypatch.setattr(run_command.subprocess, "_args_from_interpreter_flags", list)
    monkeypatch.setattr(run_command.importlib.util, "find_spec", lambda name: name)
    monkeypatch.delenv("PADDLE_TRAINER_ID", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return commands


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("train.py", [PROGRAM, *SETTLED, "--", "train.py"]),
        # The script's own options are not ppprof's.
        (
            "train.py --steps 3 -o x --report",
            [PROGRAM, *SETTLED, "--", "train.py", "--steps", "3", "-o", "x", "--report"],
        ),
        ("-m pack.age -c 1", [PROGRAM, *SETTLED, "--", "-m", "pack.age", "-c", "1"]),
        (
            "-mpack.age --n 3 -- b",
            [PROGRAM, *SETTLED, "--", "-m", "pack.age", "--n", "3", "--", "b"],
        ),
        ("-- train.py", [PROGRAM, *SETTLED, "--", "train.py"]),
        (
            "--steps 10:20 --log there -o ranks=0 -o Profiler.detailed=True train.py",
            [
                *(PROGRAM, "-o", "Profiler.enable=True", "-o", "Profiler.scheduler=[10, 20]"),
                *("-o", "Profiler.profiler_log='there'", "-o", "Profiler.ranks=0"),
                *("-o", "Profiler.detailed=True", "--", "train.py"),
            ],
        ),
        (
            "--steps 10:20 train.py",
            [
                *(PROGRAM, "-o", "Profiler.enable=True", "-o", "Profiler.brief=True"),
                *("-o", "Profiler.scheduler=[10, 20]", "--", "train.py"),
            ],
        ),
        # The steps that were asked for are the only ones.
        (
            "-o Profiler.scheduler=[12,14] train.py",
            [
                *(PROGRAM, "-o", "Profiler.enable=True", "-o", "Profiler.brief=True"),
                *("-o", "Profiler.scheduler=[12,14]", "--", "train.py"),
            ],
        ),
        (
            "-o timer_only=True train.py",
            [
                *(PROGRAM, "-o", "Profiler.enable=True", "-o", "Profiler.timer_only=True"),
                *("--", "train.py"),
            ],
        ),
        (
            "-o timer_only=False train.py",
            [PROGRAM, *SETTLED, "-o", "Profiler.timer_only=False", "--", "train.py"],
        ),
        (
            "--tables train.py",
            [
                *(PROGRAM, *SETTLED[:-2], "-o", "Profiler.brief=False"),
                *("-o", "Profiler.detailed=True", "--", "train.py"),
            ],
        ),
        # Also of a config that chooses other tables.
        (
            "--tables -c profiler.yaml train.py",
            [
                *(PROGRAM, "-o", "Profiler.enable=True", "-o", "Profiler.brief=False"),
                *("-o", "Profiler.detailed=True", "-c", "profiler.yaml", "--", "train.py"),
            ],
        ),
        (
            "--timer-only train.py",
            [
                *(PROGRAM, "-o", "Profiler.enable=True", "-o", "Profiler.timer_only=True"),
                *("--", "train.py"),
            ],
        ),
        (
            "-c profiler.yaml --optimizer 2 train.py",
            [
                *(PROGRAM, "-o", "Profiler.enable=True", "-c", "profiler.yaml"),
                *("--optimizer", "2", "--", "train.py"),
            ],
        ),
        (
            "--nproc 8 train.py",
            [
                *("-m", "paddle.distributed.launch", "--nproc_per_node", "8"),
                *(PROGRAM, *SETTLED, "--", "train.py"),
            ],
        ),
        (
            "--devices 0,1 --master=10.0.0.1:8090 --nnodes 2 train.py --devices mine",
            [
                *("-m", "paddle.distributed.launch", "--devices", "0,1", "--nnodes", "2"),
                *("--master", "10.0.0.1:8090", PROGRAM, *SETTLED),
                *("--", "train.py", "--devices", "mine"),
            ],
        ),
    ],
)
def test_the_script_gets_a_process_of_its_own(
    words: str, command: list[str], started: list[list[str]]
) -> None:
    with pytest.raises(ReplacedError):
        main(["run", *words.split()])
    assert started == [command]


def test_the_directory_may_have_any_name(started: list[list[str]]) -> None:
    with pytest.raises(ReplacedError):
        main(["run", "--log", "it's 😀", "train.py"])
    overrides = [word for word in started[0] if word.startswith("Profiler.")]
    assert load_profiler(None, overrides).profiler.profiler_log == "it's 😀"


def test_the_peaks_that_doctor_measures_are_accepted(started: list[list[str]]) -> None:
    peaks = ["-o", "Global.device_peak_flops=3e+14", "-o", "Global.device_peak_gbps=2.9e+03"]
    with pytest.raises(ReplacedError):
        main(["run", *peaks, "train.py"])
    command = started[0]
    overrides = [command[place + 1] for place, word in enumerate(command) if word == "-o"]
    stated = load_profiler(None, overrides).resolved["Global"]
    assert stated == {"device_peak_flops": 3e14, "device_peak_gbps": 2900}


def test_the_page_is_where_the_user_asked_for_it(started: list[list[str]], tmp_path: Path) -> None:
    with pytest.raises(ReplacedError):
        main(["run", "--report", "page.html", "train.py"])
    place = started[0].index("--report")
    assert started[0][place + 1] == str(tmp_path / "page.html")


@pytest.mark.parametrize(
    ("words", "problems"),
    [
        ("", ["expected a script and its arguments, or -m and a module"]),
        ("-m", ["-m: expected a module and its arguments"]),
        ("trian.py", ["trian.py: no such file; expected a Python script"]),
        ("--steps 5: train.py", ["--steps 5:: expected an end, as in 5:20"]),
        (
            "--nproc none --steps 3:2 nosuch.py",
            [
                "--steps: steps '3:2': 2 is not after 3; no step is in it",
                "--nproc: 'none': expected a whole number from 1",
                "nosuch.py: no such file; expected a Python script",
            ],
        ),
        (
            "--nproc 2 --nproc_per_node 2 train.py",
            ["--nproc: the same as --nproc_per_node; give one of them"],
        ),
        (
            "--timer-only --steps 1:2 --report page.html --tables train.py",
            [
                "--steps: has no effect beside --timer-only; give one of them",
                "--report: has no effect beside --timer-only; give one of them",
                "--tables: has no effect beside --timer-only; give one of them",
            ],
        ),
        ("--optimizer " + 5000 * "1" + " train.py", None),
        ("--log= train.py", ["--log: empty; expected a directory"]),
        (
            "--nnodes 2 --master node-1:8090 train.py",
            [
                "--master node-1:8090: a host name, for which Paddle's launcher waits for ever; "
                "expected an IP address: see getent ahostsv4 node-1"
            ],
        ),
        (
            "--report nosuch/page.html train.py",
            ["--report nosuch/page.html: nosuch is not a directory"],
        ),
    ],
)
def test_all_problems_are_listed(
    words: str,
    problems: list[str] | None,
    started: list[list[str]],
    cli,
) -> None:
    printed = cli("run", *words.split(), code=2).err.splitlines()
    assert printed == problems if problems is not None else len(printed) == 1
    assert started == []


def test_without_paddle_it_does_not_start(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch, cli
) -> None:
    monkeypatch.setattr(run_command.importlib.util, "find_spec", lambda name: None)
    assert cli("run", "--nproc", "2", "train.py", code=2).err == f"{NO_PADDLE}\n"
    assert started == []


def test_options_of_the_launcher_below_it_are_rejected(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch, cli
) -> None:
    monkeypatch.setenv("PADDLE_TRAINER_ID", "1")
    assert (
        "--devices: this process was started by the launcher"
        in cli("run", "--devices", "0", "train.py", code=2).err
    )
    with pytest.raises(ReplacedError):
        main(["run", "train.py"])


@pytest.mark.paddle
def test_all_options_of_the_launcher_are_known() -> None:
    """Each has a value, so that a script's name is not taken for one."""
    launch = pytest.importorskip(
        "paddle.distributed.launch.context.args_envs", reason="needs the paddlepaddle wheel"
    )
    source = inspect.getsource(launch.parse_args)
    names = set(re.findall(r'"--(\w+)"', source))
    assert "nproc_per_node" in names <= set(LAUNCHER_OPTIONS)
    assert "store_true" not in source
