"""``ppprof bench``: trainings in turn, and the verdict over all of them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ppprof.analysis.diff.several_runs import run_time
from ppprof.analysis.profile.step_basis import LEAST_STEPS
from ppprof.cli import main
from ppprof.run.run import open as open_run
from tests.fixtures.run_directories import run, step_lines

SCRIPT = """
import sys, time
import paddle

net = paddle.nn.Linear(8, 8)
optimizer = paddle.optimizer.SGD(0.01, parameters=net.parameters())
for step in range(1000):
    net(paddle.randn([8, 8])).mean().backward()
    optimizer.step()
    time.sleep(float(sys.argv[1]))
"""


@pytest.mark.paddle
@pytest.mark.jobs
def test_a_slower_training_is_found_and_equal_ones_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    limit = ["--fail-if", "step_time > 10%"]
    slower = ["--", "train.py", "0.02", "--", "train.py", "0.03"]
    assert main(["bench", "-n", "3", "--steps", "30", *limit, *slower]) == 1
    shown = capsys.readouterr()
    change = re.search(r"^Step time: slower: \+([\d.]+)%", shown.out, re.MULTILINE)
    assert change is not None
    assert 30 < float(change[1]) < 60
    assert "round 3 of 3: a " in shown.err
    assert len((tmp_path / "ppprof_bench/a1/steps/rank_00000.jsonl").read_text().splitlines()) == 30

    command = [sys.executable, "-m", "ppprof", "run", "--timer-only", "--log", "{log}"]
    own = [*command, "-o", "scheduler=[29,30]", "-o", "stop_training=True", "train.py", "0.02"]
    assert main(["bench", "-n", "3", "--log", "equal", *limit, "--", *own, "--", *own]) == 0


@pytest.mark.paddle
@pytest.mark.jobs
def test_a_script_that_profiles_itself_fails_before_it_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    monkeypatch.chdir(tmp_path)
    own = "import ppprof\nppprof.attach({'enable': True, 'profiler_log': 'own'})\n"
    (tmp_path / "train.py").write_text(own + SCRIPT, encoding="utf-8")
    command = ["--", "train.py", "0.2"]  # 1,000 steps
    assert main(["bench", "-n", "2", *command, *command]) == 3
    said = capsys.readouterr().err
    assert "the script calls ppprof.attach() itself" in said
    assert "-o Profiler.enable=False" in said


def test_a_command_that_fails_ends_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("random.sample", lambda names, num: list(names)[:num])
    fails = [sys.executable, "-c", "print('no {log}'); raise SystemExit(7)"]
    assert main(["bench", "--", *fails, "--", *fails]) == 3
    said = capsys.readouterr().err
    assert "exit code 7" in said
    assert f"which ends: no {Path('ppprof_bench/a1')}" in said
    assert sorted(path.name for path in Path("ppprof_bench").iterdir()) == ["a1.out"]


def test_a_command_without_steps_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    idle = [sys.executable, "-c", "'{log}'"]
    assert main(["bench", "--", *idle, "--", *idle]) == 3
    assert re.search(r"ppprof_bench/[ab]1: ", capsys.readouterr().err)


def test_a_command_of_too_few_steps_ends_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    short = run(tmp_path / "short", (), step_lines=[step_lines(1e6, steps=3)])
    copies = "import shutil, sys; shutil.copytree(*sys.argv[1:])"
    command = [sys.executable, "-c", copies, str(short), "{log}"]
    assert main(["bench", "--", *command, "--", *command]) == 3
    assert "2 steps outside windows; expected at least 5" in capsys.readouterr().err
    assert len([path for path in Path("ppprof_bench").iterdir() if path.is_dir()]) == 1


def test_a_run_of_seven_steps_is_the_shortest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step warms up, and the last is the window after which the script ends."""
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "--steps", "6", "--", "a.py", "--", "b.py"]) == 2
    assert "--steps: '6': expected a whole number from 7" in capsys.readouterr().err
    lines = [
        {**line, "window": 0 if line["step"] == 6 else None} for line in step_lines(1e6, steps=7)
    ]
    time = run_time(open_run(run(tmp_path / "short", (), step_lines=[lines])).step_times)
    assert time is not None
    assert time.num_steps == LEAST_STEPS


def test_wrong_command_lines_say_what_is_expected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    line = ["bench", "-n", "1", "--log", "kept", "--fail-if", "ips < 1%", "--", "a.py"]
    assert main(line) == 2
    said = capsys.readouterr().err
    for part in ("--runs", "expected two commands", "--log kept: it exists", "only step_time"):
        assert part in said
