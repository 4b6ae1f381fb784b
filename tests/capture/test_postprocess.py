"""The helper that makes tables and traces, with programs that replace ``ppprof finish``."""

from __future__ import annotations

import contextlib
import io
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest

from ppprof import rundir
from ppprof.capture import postprocess as finisher_module
from ppprof.capture import process
from ppprof.capture.postprocess import PostProcessor
from ppprof.config import ProfilerConfig
from tests.fixtures import gpu_traces
from tests.fixtures.timeline import write

HELPER = [sys.executable, "-m", "tests.capture.fake_helper"]


def finisher(run: Path, program: str, prints: bool = True) -> PostProcessor:
    return PostProcessor(run, rank=3, prints=prints, command=[*HELPER, program])


def test_windows_are_finished_in_order_and_their_tables_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = finisher(tmp_path, "import sys; print(*sys.argv[1:7])")
    for window in (0, 1):
        made.add(window, tmp_path / f"{window}.pb")
    made.wait(30)

    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path} --rank 3 --verdict --window 0",
        f"{tmp_path} --rank 3 --verdict --window 1",
    ]
    assert not made.poll()


def test_a_rank_that_does_not_print_keeps_its_tables_to_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = finisher(
        tmp_path,
        "import sys; print('table'); print('warning\\x1b\\n\\nppprof: own', file=sys.stderr)",
        False,
    )
    made.add(0, tmp_path / "0.pb")
    made.wait(30)
    assert capsys.readouterr() == ("", "ppprof: warning\\x1b\nppprof: own\n")


def test_a_failing_child_is_a_warning_that_says_what_to_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = finisher(tmp_path, "raise SystemExit(3)")
    made.add(5, tmp_path / "5.pb")
    made.wait(30)
    assert capsys.readouterr().err == (
        f"ppprof: {tmp_path}/5.pb: no tables and traces were made (exit code 3); "
        f"to try again, run: {' '.join(HELPER)} 'raise SystemExit(3)' {tmp_path} --rank 3 --window 5\n"
    )


def test_the_line_of_a_child_that_explains_its_failure_is_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where the disk fills while tables are made: one line, with one remedy."""
    why = (
        "log: No space left on device: the raw capture is kept; once there is space again, run: ..."
    )
    made = finisher(tmp_path, f"import sys; print({why!r}, file=sys.stderr); raise SystemExit(3)")
    made.add(5, tmp_path / "5.pb")
    made.wait(30)
    assert capsys.readouterr().err == f"ppprof: {why}\n"


def test_a_child_that_cannot_start_is_a_warning_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = PostProcessor(tmp_path, 0, prints=True, command=["/nonexistent/ppprof"])
    made.add(0, tmp_path / "0.pb")
    made.wait(30)
    err = capsys.readouterr().err
    assert "No such file or directory: '/nonexistent/ppprof'); to try again, run: /nonexist" in err


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
while open("/proc/self/oom_score_adj").read() != "1000\\n":
    time.sleep(0.01)
"""
    made = finisher(tmp_path, program)
    made.add(0, tmp_path / "0.pb")
    deadline = time.monotonic() + 30
    while not made.has_finished_window and time.monotonic() < deadline:
        time.sleep(0.01)
    made.poll()
    assert capsys.readouterr().out == "True []\n"
    made.leave()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may raise a priority")
def test_a_child_that_is_waited_for_need_not_give_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = """
import os, time
while os.getpriority(os.PRIO_PROCESS, 0) != 19:
    time.sleep(0.01)
open("low", "w")
while os.getpriority(os.PRIO_PROCESS, 0) != 0:
    time.sleep(0.01)
"""
    made = finisher(tmp_path, f"import os; os.chdir({str(tmp_path)!r}){program}")
    made.add(0, tmp_path / "0.pb")
    deadline = time.monotonic() + 30
    while not (tmp_path / "low").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    made.wait(30)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (
            "os.kill(os.getpid(), signal.SIGALRM)",
            "it took more than 600 s of CPU time, .*",
        ),
        (
            "os.kill(os.getpid(), signal.SIGPROF)",
            "it took more than 600 s of CPU time, .*",
        ),
        ("os.kill(os.getpid(), signal.SIGKILL)", "it was killed, perhaps because memory ran out"),
    ],
)
def test_a_child_that_is_ended_is_a_warning_that_says_why(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    program: str,
    why: str,
) -> None:
    made = finisher(tmp_path, f"import os, signal; {program}")
    made.add(5, tmp_path / "5.pb")
    made.wait(30)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(rf"5\.pb: no tables and traces were made \({why}\); to try again, run: ", line)


def test_where_memory_is_short_no_child_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finisher_module, "available_bytes", lambda: 2000 << 20)
    monkeypatch.setenv("PADDLE_LOCAL_SIZE", "8")
    made = finisher(tmp_path, "print('started')")
    for size_mib in (4, 6):
        with (tmp_path / f"{size_mib}.pb").open("wb") as file:
            file.truncate(size_mib << 20)
        made.add(size_mib, tmp_path / f"{size_mib}.pb")
        made.wait(30)
    seen = capsys.readouterr()
    assert seen.out == "started\n"
    assert "6.pb: no tables and traces were made (2000 MiB of memory are left, " in seen.err
    assert "up to 2080 MiB may be needed); to try again, run: " in seen.err


@pytest.mark.parametrize("prints", [True, False])
def test_in_the_foreground_it_is_done_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], prints: bool
) -> None:
    run = rundir.claim(tmp_path / "log")
    config = ProfilerConfig.from_mapping({"enable": True, "background": False})
    rundir.write_manifest(run, {"profiler": config.to_mapping()})
    name = rundir.TraceName(3, "dp3", datetime(2026, 11, 20), 0)
    write(run / name.raw, *gpu_traces.training())
    made = PostProcessor(run, 3, prints=prints, background=False)
    made.add(0, run / name.raw)
    assert (run / name.summary).exists()
    assert ("Overview Summary" in capsys.readouterr().out) == prints
    assert not made.poll()

    (run / name.raw).write_bytes(b"not a trace")
    made.add(0, run / name.raw)
    (line,) = capsys.readouterr().err.splitlines()  # the helper's own, which says why
    assert line.startswith(f"ppprof: {run / name.raw}: byte 0 of ")
    made.wait(0)


@pytest.mark.parametrize("seen", [True, False])
def test_a_terminal_shows_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    class Stderr(io.StringIO):
        def isatty(self) -> bool:
            return seen

    stderr = Stderr()
    monkeypatch.setattr(sys, "stderr", stderr)
    made = finisher(tmp_path, "import time; time.sleep(0.3)")
    for window in (0, 1):
        made.add(window, tmp_path / f"{window}.pb")
    made.wait(30, patience=0.05)
    written = stderr.getvalue()
    assert ("ppprof: making tables and traces: 1 of 2 windows" in written) == seen
    assert (
        "ppprof: rank 3: making tables and traces of the recorded steps...\n" in written
    ) != seen


def test_waiting_is_logged_and_ends_and_the_child_lives_on(
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
        f"ppprof: rank 3: exiting before the tables in {tmp_path} are written; "
        f"if they do not appear, run: ppprof finish {tmp_path}",
    ]
    (tmp_path / "go").touch()
    deadline = time.monotonic() + 30
    while not done.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert done.exists()
    assert os.waitpid(-1, 0)[1] == 0


def test_an_interrupt_while_waiting_logs_what_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tmp_path / "done"
    made = finisher(tmp_path, f"import time; time.sleep(1); open({str(done)!r}, 'w')")
    made.add(0, tmp_path / "0.pb")

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ppprof.capture.postprocess.time.sleep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.wait(30)
    assert "exiting before the tables" in capsys.readouterr().err
    end = time.monotonic() + 30
    while not done.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert done.exists()


def test_tables_that_cannot_be_printed_are_a_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = finisher(tmp_path, "print('table')")
    made.add(0, tmp_path / "raw/0.pb")
    with Path("/dev/full").open("w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        made.wait(30)
    assert capfd.readouterr().err == (
        "ppprof: tables were not printed: No space left on device; "
        f"to see them, run: ppprof summary {tmp_path}\n"
    )


def test_in_the_foreground_a_process_that_ends_does_not_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = tmp_path / "done"
    program = f"import pathlib, time; time.sleep(0.3); pathlib.Path({str(done)!r}).touch()"
    command = [*HELPER, program]
    made = PostProcessor(tmp_path, 3, prints=True, command=command, background=False)
    made.add(0, tmp_path / "0.pb", brief=True)
    assert not done.exists()
    made.leave()
    assert capsys.readouterr().err == (
        f"ppprof: rank 3: exiting before the tables in {tmp_path} are written; "
        f"if they do not appear, run: ppprof finish {tmp_path}\n"
    )
    deadline = time.monotonic() + 30
    while not done.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert done.exists()


def pids(tmp_path: Path) -> list[str]:
    return (tmp_path / "pids").read_text().split()


NOTES_ITS_PID = "import os; print(os.getpid(), file=open('{}/pids', 'a'));"


def until_finished(made: PostProcessor) -> None:
    deadline = time.monotonic() + 120  # on a busy machine, it runs last
    while made.poll() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not made.poll()


def until_ended(made: PostProcessor) -> int | None:
    """Return the exit code of the helper."""
    helper = made._helper
    assert helper is not None
    deadline = time.monotonic() + 30
    while not helper.has_ended and time.monotonic() < deadline:
        time.sleep(0.01)
    return helper.process.returncode


def test_one_helper_makes_all_windows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = finisher(tmp_path, NOTES_ITS_PID.format(tmp_path) + "import sys; print(sys.argv[-1])")
    for window in range(100):
        made.add(window, tmp_path / f"{window}.pb")
    until_finished(made)
    made.add(100, tmp_path / "100.pb")
    until_finished(made)
    made.wait(30)
    assert capsys.readouterr() == ("".join(f"{window}\n" for window in range(101)), "")
    assert len(pids(tmp_path)) == 101
    assert len(set(pids(tmp_path))) == 1


def test_a_helper_that_crashes_loses_the_window_it_works_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = "import sys; print('begun', sys.argv[-1]); sys.argv[-1] in '1 4' and os.kill(os.getpid(), 9)"
    made = finisher(tmp_path, NOTES_ITS_PID.format(tmp_path) + program)
    for window in range(6):
        made.add(window, tmp_path / f"{window}.pb")
    made.wait(30)
    out, err = capsys.readouterr()
    assert [line for line in out.splitlines() if line[-1] not in "14"] == [
        f"begun {window}" for window in (0, 2, 3, 5)
    ]
    assert re.findall(r"(\d)\.pb: no tables and traces were made \(it was killed", err) == [
        "1",
        "4",
    ]
    assert len(set(pids(tmp_path))) == 3


def test_a_helper_that_has_ended_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends after a minute without a window; a window may come just then."""
    program = "import sys, threading, time; threading.Timer(0.5, lambda: os._exit(0)).start()"
    made = finisher(tmp_path, NOTES_ITS_PID.format(tmp_path) + program)
    for window in range(3):
        made.add(window, tmp_path / f"{window}.pb")
        until_finished(made)
        until_ended(made)
    made.wait(30)
    assert capsys.readouterr() == ("", "")
    assert len(set(pids(tmp_path))) == 3


def test_a_helper_that_does_nothing_is_started_once_a_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = PostProcessor(tmp_path, 0, prints=True, command=[sys.executable, "-c", ""])
    for window in range(2):
        made.add(window, tmp_path / f"{window}.pb")
    made.wait(30)
    err = capsys.readouterr().err
    assert err.count("no tables and traces were made (its process ended before it began)") == 2


def test_the_helper_ends_when_it_has_nothing_to_do(tmp_path: Path) -> None:
    run = rundir.claim(tmp_path / "log")
    config = ProfilerConfig.from_mapping({"enable": True})
    rundir.write_manifest(run, {"profiler": config.to_mapping()})
    code = "from ppprof.cli import finish, main; finish._IDLE_SECONDS = 0.2; main()"
    made = PostProcessor(run, 0, prints=True, command=[sys.executable, "-c", code, "finish"])
    made.add(0, run / "raw/0.pb")  # there is no such capture
    until_finished(made)
    assert until_ended(made) == 0
    made.wait(0)


@pytest.mark.all
def test_many_open_files_and_windows_do_not_stop_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Descriptors above 1023, and more windows than the pipe to the helper takes."""
    go = tmp_path / "go"
    program = (
        f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)"
    )
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limit[1]), limit[1]))
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        made = finisher(tmp_path, program)
        for window in range(100_000, 112_000):  # 84,000 bytes
            made.add(window, tmp_path / f"{window}.pb")
        assert not made.has_finished_window
        assert "windows wait for the helper); to try again" in capsys.readouterr().err
        go.touch()
        until_finished(made)
        made.wait(0)
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


@pytest.mark.all
def test_a_helper_that_cannot_start_leaves_no_descriptor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    made, files = finisher(tmp_path, ""), []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                files.append(os.open("/dev/null", os.O_RDONLY))
        for num_free in range(8):
            made.add(num_free, tmp_path / f"{num_free}.pb")
            if made._helper is not None:
                break
            free = [os.open("/dev/null", os.O_RDONLY) for _ in range(num_free)]
            for file in [*free, files.pop()]:
                os.close(file)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for file in files:
            os.close(file)
    made.wait(30)
    assert "Too many open files" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_the_memory_of_a_training_is_not_counted_as_its_helpers() -> None:
    """A training above 1 GiB had each window's tables made by a new process."""
    child = "from ppprof.cli.finish import _peak_bytes; print(_peak_bytes())"
    parent = (
        "import subprocess, sys\n"
        "ballast = b'x' * (400 << 20)\n"
        "subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", parent, child], capture_output=True, text=True, check=True
    )
    assert 0 < int(done.stdout) < 200 << 20


def test_a_helper_receives_signals_though_its_starter_blocks_them(tmp_path: Path) -> None:
    """The thread that saves because of a SIGTERM blocks all signals, and starts the helper."""
    run = rundir.claim(tmp_path / "log")
    rundir.write_manifest(run, {"profiler": ProfilerConfig(enable=True).to_mapping()})
    made = PostProcessor(run, 0, prints=True)
    process.start_thread(lambda: made.add(0, run / "raw/0.pb"), "test").join()
    until_finished(made)
    assert made._helper is not None
    status = Path(f"/proc/{made._helper.process.pid}/status").read_text()
    masks = dict(re.findall(r"^(Sig(?:Blk|Ign)):\t(\w+)", status, re.M))
    assert not int(masks["SigBlk"], 16)
    assert not int(masks["SigIgn"], 16) & (1 << (signal.SIGPROF - 1) | 1 << (signal.SIGALRM - 1))
    made.wait(0)


def test_a_thread_may_add_a_window_while_tables_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printing, added = threading.Event(), threading.Event()

    def slowly(text: str) -> None:
        printing.set()
        assert not added.wait(0.2)  # the other thread waits
        print(text, end="")

    def add_one() -> None:
        printing.wait()
        made.add(1, tmp_path / "1.pb")
        added.set()

    monkeypatch.setattr(finisher_module, "print_result", slowly)
    made = finisher(tmp_path, "import sys; print(sys.argv[-1])")
    made.add(0, tmp_path / "0.pb")
    thread = threading.Thread(target=add_one)
    thread.start()
    while not made.has_finished_window:
        time.sleep(0.01)
    made.poll()
    thread.join()
    monkeypatch.setattr(finisher_module, "print_result", print)
    made.wait(30)
    assert capsys.readouterr().out.split() == ["0", "1"]


def test_a_window_that_is_rescued_does_not_wait_for_tables_that_cannot_be_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printing, over = threading.Event(), threading.Event()

    def never(text: str) -> None:
        printing.set()
        over.wait()

    monkeypatch.setattr(finisher_module, "print_result", never)
    monkeypatch.setattr(finisher_module, "_BRIEF_SECONDS", 0.1)
    made = finisher(tmp_path, "print('tables')")
    made.add(0, tmp_path / "0.pb")
    training = threading.Thread(target=made.wait, args=(30,))
    training.start()
    printing.wait()
    made.add(1, tmp_path / "1.pb", brief=True)
    over.set()
    training.join()
    err = capsys.readouterr().err
    assert "1.pb: no tables and traces were made (the process is about to end)" in err
