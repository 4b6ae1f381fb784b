"""The child process that makes tables and traces, with stand-ins for ``ppprof finish``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from ppprof.capture.finisher import Finisher


def finisher(run: Path, program: str, prints: bool = True) -> Finisher:
    return Finisher(run, rank=3, prints=prints, command=[sys.executable, "-c", program])


def test_windows_are_finished_in_order_and_their_tables_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = finisher(tmp_path, "import sys; print(*sys.argv[1:])")
    for window in (0, 1):
        made.add(window, tmp_path / f"{window}.pb")
    made.wait(30)

    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path} --rank 3 --window 0",
        f"{tmp_path} --rank 3 --window 1",
    ]
    assert not made.poll()


def test_a_rank_that_does_not_print_keeps_its_tables_to_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = finisher(
        tmp_path, "import sys; print('table'); print('warning', file=sys.stderr)", False
    )
    made.add(0, tmp_path / "0.pb")
    made.wait(30)
    assert capsys.readouterr() == ("", "warning\n")


def test_a_failing_child_is_a_warning_that_says_what_to_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = finisher(tmp_path, "raise SystemExit(3)")
    made.add(5, tmp_path / "5.pb")
    made.wait(30)
    assert capsys.readouterr().err == (
        f"ppprof: {tmp_path}/5.pb: could not be made into tables and traces (exit code 3); "
        f"to try again: {sys.executable} -c 'raise SystemExit(3)' {tmp_path} --rank 3 --window 5\n"
    )


def test_a_child_that_cannot_start_is_a_warning_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Finisher(tmp_path, 0, prints=True, command=["/nonexistent/ppprof"])
    made.add(0, tmp_path / "0.pb")
    made.wait(30)
    err = capsys.readouterr().err
    assert "No such file or directory: '/nonexistent/ppprof'); to try again: /nonexist" in err


def test_the_child_gives_way_and_knows_nothing_of_the_launcher(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PADDLE_TRAINER_ID", "3")
    monkeypatch.setenv("FLAGS_selected_gpus", "3")
    program = """
import os, time
while os.getpriority(os.PRIO_PROCESS, 0) != 19:
    time.sleep(0.01)
import ppprof
print(os.getsid(0) == os.getpid(), [k for k in os.environ if k.startswith(("PADDLE", "FLAGS"))])
"""
    made = finisher(tmp_path, program)
    made.add(0, tmp_path / "0.pb")
    made.wait(30)
    assert capsys.readouterr().out == "True []\n"


def test_waiting_is_told_and_ends_and_the_child_lives_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = tmp_path / "done"
    program = f"""
import pathlib, time
while not pathlib.Path({str(tmp_path / "go")!r}).exists():
    time.sleep(0.01)
pathlib.Path({str(done)!r}).touch()
"""
    made = finisher(tmp_path, program)
    made.add(0, tmp_path / "0.pb")
    made.add(1, tmp_path / "1.pb")
    made.wait(0.2, patience=0.05)

    assert capsys.readouterr().err.splitlines() == [
        "ppprof: rank 3: making tables and traces of the recorded steps...",
        f"ppprof: rank 3: not waiting for the tables of {tmp_path}; "
        f"if they stay away: ppprof finish {tmp_path}",
    ]
    (tmp_path / "go").touch()
    deadline = time.monotonic() + 30
    while not done.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert done.exists()
    assert os.waitpid(-1, 0)[1] == 0


def test_a_user_who_does_not_wait_is_told_what_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tmp_path / "done"
    made = finisher(tmp_path, f"import time; time.sleep(1); open({str(done)!r}, 'w')")
    made.add(0, tmp_path / "0.pb")

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ppprof.capture.finisher.time.sleep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.wait(30)
    assert "not waiting for the tables" in capsys.readouterr().err
    end = time.monotonic() + 30
    while not done.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert done.exists()
