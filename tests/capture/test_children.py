"""Children that fail, hang, or do not exist."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ppprof.capture import children, process
from ppprof.capture.children import available_bytes
from ppprof.capture.output import log_to_stderr
from tests.fixtures.tiers import one_in


def _python(code: str, timeout: float = 20) -> children.Ended:
    return children.run([sys.executable, "-c", code], timeout)


def test_a_child_that_ends() -> None:
    code = "import os; os.write(1, b'out'); os.write(2, b'err'); os._exit(255)"
    assert _python(code) == children.Ended(255, "out", "err")


def test_a_child_that_hangs_is_killed_with_its_children() -> None:
    code = (
        "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(os.fork(), flush=True); time.sleep(60)"
    )
    start = time.monotonic()
    ended = _python(code, 1.5)
    assert ended.exit_code is None
    assert time.monotonic() - start < 10
    grandchild = max(map(int, ended.stdout.split()))
    for _ in range(100):
        stat = Path(f"/proc/{grandchild}/stat")
        if not stat.exists() or stat.read_text().split()[2] in "ZX":
            return
        time.sleep(0.05)
    raise AssertionError(f"{grandchild} still runs")


def test_a_program_that_does_not_exist() -> None:
    ended = children.run(["/no/such/program"], 5)
    assert not ended.is_started
    assert "No such file" in ended.stderr


def test_only_the_end_of_a_long_output_is_read() -> None:
    ended = _python("print('x' * (3 << 20) + 'end')")
    assert len(ended.stdout) == 1 << 20
    assert ended.stdout.endswith("end\n")


def test_a_child_is_not_one_of_the_jobs_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PADDLE_TRAINER_ID", "MASTER_ADDR", "POD_IP", "TRAINING_ROLE", "FLAGS_x"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with_flags = children.environment(keeps_flags=True)
    assert with_flags.keys() - children.environment().keys() == {"FLAGS_x"}
    assert with_flags["CUDA_VISIBLE_DEVICES"] == "3"
    names = ("PADDLE_TRAINER_ID", "MASTER_ADDR", "POD_IP", "TRAINING_ROLE")
    assert not set(names) & with_flags.keys()
    package = str(Path(children.__file__).parents[2])
    assert package in with_flags["PYTHONPATH"].split(os.pathsep)


@pytest.mark.parametrize("end", one_in(2, ["os.kill(os.getpid(), 9)", "pass"]))
def test_the_probes_child_ends_with_the_training(tmp_path: Path, end: str) -> None:
    (tmp_path / "paddle.py").write_text(
        "import time; print('imported', flush=True); time.sleep(40)"
    )
    program = (
        "import os, threading, time\n"
        "from ppprof.capture.probe import probe\n"
        "threading.Thread(target=probe, daemon=True).start()\n"
        "time.sleep(3)\n"
        f"{end}\n"
    )
    folder = tmp_path / "tmp"
    folder.mkdir()
    paths = os.pathsep.join([str(tmp_path), str(Path(children.__file__).parents[2])])
    env = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": paths}
    training = [sys.executable, "-c", program]
    subprocess.run(training, env=env, timeout=60, check=False)
    for _ in range(100):
        left = [path for path in Path("/proc").glob("[0-9]*/cwd") if _is_below(path, folder)]
        if not left:
            break
        time.sleep(0.05)
    assert not left
    if end == "pass":
        assert not list(folder.iterdir())


def _is_below(link: Path, folder: Path) -> bool:
    try:
        return str(link.readlink()).startswith(str(folder))
    except OSError:
        return False


def test_a_thread_of_ours_that_fails_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr()
    process.start_thread(lambda: [][0], "clock").join()
    err = capsys.readouterr().err
    expected = "IndexError('list index out of range'); the training goes on without it\n"
    assert err == f"ppprof: the thread of clock failed: {expected}"


MIB = 1 << 20


@pytest.fixture
def machine(tmp_path: Path) -> tuple[Path, Path]:
    """A machine with 8 MiB left, and a process of the cgroup ``/job``."""
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (cgroups / "job").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:  99999 kB\nMemAvailable:   8192 kB\n")
    (proc / "self/cgroup").write_text("0::/job\n")
    return proc, cgroups


def limit(folder: Path, most: str) -> None:
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{7 * MIB}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {MIB}\nactive_file {MIB}\n")


def test_a_machine_says_what_it_has(machine: tuple[Path, Path]) -> None:
    assert available_bytes(*machine) == 8 * MIB


@pytest.mark.parametrize(("most", "left"), [(10 * MIB, 5), (90 * MIB, 8), ("max", 8)])
def test_a_container_may_have_less(machine: tuple[Path, Path], most: object, left: int) -> None:
    limit(machine[1] / "job", str(most))
    assert available_bytes(*machine) == left * MIB


def test_without_files_of_the_kernel_nothing_is_known(tmp_path: Path) -> None:
    assert available_bytes(tmp_path, tmp_path) is None


def test_this_machine_says_something_or_nothing() -> None:
    left = available_bytes()
    assert left is None or left > 0
