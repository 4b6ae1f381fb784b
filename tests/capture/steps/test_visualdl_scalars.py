"""Scalars for VisualDL's page: what its own reader and its own server make of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppprof.capture.schedule import Schedule
from ppprof.capture.steps.step_log import StepLog
from ppprof.capture.steps.timer import StepTimer
from ppprof.capture.steps.visualdl_scalars import Scalars
from ppprof.rundir.run_file import RunFile
from tests.capture.sessions import session
from tests.fixtures.run_files import run_file
from tests.fixtures.step_scalars import MS, expected, read, record

ROOT = Path(__file__).parents[3]


@pytest.fixture
def visualdl() -> Any:
    return pytest.importorskip("visualdl", reason="needs the visualdl wheel")


def test_visualdls_reader_has_the_values_of_each_step(tmp_path: Path, visualdl: Any) -> None:
    scalars = Scalars(run_file(tmp_path / "vdlrecords.a.log"))
    records = [
        record(0),
        record(1, excluded=True),
        record(
            2,
            device_peak_bytes=3 << 20,
            device_peak_reserved_bytes=4 << 20,
            reader_cost_ns=None,
            num_tokens=None,
        ),
    ]
    for step, loss in zip(records, (5.5, None, 4)):
        scalars.add(step._replace(loss=loss))
    scalars.flush()
    assert read(tmp_path / "vdlrecords.a.log") == {
        "train/loss": [(0, 5.5), (2, 4.0)],
        "time/batch_cost_ms": [(0, 32.0), (2, 32.0)],
        "time/reader_cost_ms": [(0, 4.0)],
        "speed/ips": [(0, 250.0), (2, 250.0)],
        "speed/tokens_per_s": [(0, 32000.0)],
        "memory/device_peak_mib": [(2, 3.0)],
        "memory/device_peak_reserved_mib": [(2, 4.0)],
        "memory/host_peak_mib": [(0, 400.0), (1, 400.0), (2, 400.0)],
    }


def test_the_file_is_there_at_once_and_grows_every_ten_seconds(
    tmp_path: Path, visualdl: Any
) -> None:
    now, path = [0], tmp_path / "scalars/rank_00001/vdlrecords.a.log"
    scalars = Scalars(RunFile(tmp_path, str(path.relative_to(tmp_path))), clock=lambda: now[0])
    begun = path.stat().st_size
    assert begun > 0
    scalars.add(record(0))
    assert path.stat().st_size == begun
    now[0] += 10_000_000_000
    scalars.add(record(1))
    assert read(path)["memory/host_peak_mib"] == [(0, 400.0), (1, 400.0)]


def test_a_session_writes_what_its_step_log_has(tmp_path: Path, visualdl: Any) -> None:
    now, lines = [0], tmp_path / "steps.jsonl"
    path = tmp_path / "vdlrecords.a.log"
    scalars, steps = Scalars(run_file(path)), StepLog(run_file(lines))
    timer = StepTimer(lambda: now[0])
    with session(None, Schedule.of((2, 4)), timer=timer, steps=steps, scalars=scalars) as prof:
        for step in range(6):
            now[0] += (step + 1) * MS
            prof.step(num_samples=4, num_tokens=64, loss=0.25 * step if step % 2 else None)
    seen = read(path)
    assert seen.pop("train/loss") == [(1, 0.25), (3, 0.75), (5, 1.25)]
    assert seen == expected([json.loads(line) for line in lines.read_text().splitlines()])
    assert [step for step, _ in seen["speed/ips"]] == [0, 3, 5]


class Tensor:
    """A Paddle tensor's place and value."""

    def __init__(self, value: float, on_cpu: bool) -> None:
        self.place = SimpleNamespace(is_cpu_place=lambda: on_cpu)
        self.value, self.reads = value, 0

    def item(self) -> float:
        self.reads += 1
        return self.value


def test_a_loss_on_a_device_is_not_waited_for(
    tmp_path: Path, visualdl: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "vdlrecords.a.log"
    scalars = Scalars(run_file(path))
    far, near = Tensor(1.5, on_cpu=False), Tensor(2.5, on_cpu=True)
    for step, loss in enumerate((far, near, lambda: 3.5, lambda: near, far)):
        scalars.add(record(step)._replace(loss=scalars.read(loss)))
    scalars.flush()
    assert read(path)["train/loss"] == [(1, 2.5), (2, 3.5), (3, 2.5)]
    assert far.reads == 0
    assert capsys.readouterr().err == (
        "ppprof: step(loss=...): a tensor on a device is not read, since that would wait for the "
        "device at every step; to log the loss, pass a number at steps where you read it\n"
    )


@pytest.mark.parametrize("has_scalars", [False, True])
def test_the_step_log_has_numbers_and_what_scalars_have_read(
    tmp_path: Path, visualdl: Any, has_scalars: bool
) -> None:
    lines, near = tmp_path / "steps.jsonl", Tensor(2.5, on_cpu=True)
    scalars = Scalars(run_file(tmp_path / "vdlrecords.a.log")) if has_scalars else None
    losses = (0.5, np.float32(1.5), near, lambda: 3.5, Tensor(4.5, on_cpu=False))
    with session(
        None, Schedule.of((9, 10)), steps=StepLog(run_file(lines)), scalars=scalars
    ) as prof:
        for loss in losses:
            prof.step(loss=loss)
    others = [2.5, 3.5] if has_scalars else [None, None]
    found = [json.loads(line)["loss"] for line in lines.read_text().splitlines()]
    assert found == [0.5, 1.5, *others, None]
    assert near.reads == has_scalars


class TestFailures:
    """Each is one line, and no exception."""

    GOES_ON = "no scalars are written from now on, the training goes on\n"

    def log(self, path: Path) -> None:
        scalars = Scalars(run_file(path))
        for step in range(3):
            scalars.add(record(step))
            scalars.flush()

    def test_no_visualdl(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "visualdl"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "visualdl", None)
        self.log(tmp_path / "vdlrecords.a.log")
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("ppprof: visualdl_scalars: VisualDL cannot be imported (")
        assert said.err.endswith(f"): pip install 'ppprof[view]'; {self.GOES_ON}")
        assert said.err.count("\n") == 1

    def test_a_home_that_visualdl_cannot_write_to(self, tmp_path: Path, visualdl: Any) -> None:
        """It makes ``~/.visualdl`` when it is imported."""
        (tmp_path / "home").write_text("a file")
        code = (
            "import pathlib, ppprof.capture.output, ppprof.capture.steps.visualdl_scalars as s;"
            "ppprof.capture.output.log_to_stderr(); s.Scalars(s.RunFile(pathlib.Path(), 'a.log'))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path / "home")},
            capture_output=True,
            text=True,
            check=True,
        )
        assert "ppprof: visualdl_scalars: VisualDL cannot be imported: [Errno 20]" in done.stderr
        assert done.stderr.count("\n") == 1

    def test_a_directory_that_cannot_be_written(
        self, tmp_path: Path, visualdl: Any, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "run").write_text("a file, which refuses root as well")
        self.log(tmp_path / "run/vdlrecords.a.log")
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith(f"ppprof: {tmp_path}/run/vdlrecords.a.log: ")
        assert said.err.endswith(f"; {self.GOES_ON}")
        assert said.err.count("\n") == 1

    def test_a_directory_that_is_removed(
        self, tmp_path: Path, visualdl: Any, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "run/vdlrecords.a.log"
        path.parent.mkdir()
        scalars = Scalars(run_file(path))
        path.unlink()
        path.parent.rmdir()
        for step in range(3):
            scalars.add(record(step))
            scalars.flush()
        said = capsys.readouterr()
        assert said.err == f"ppprof: {path}: No such file or directory; {self.GOES_ON}"
        assert said.out == ""
        assert not path.parent.exists()  # VisualDL's own would make it again

    def test_a_full_disk_leaves_whole_records(
        self, tmp_path: Path, visualdl: Any, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """A limit on the size of files cuts a write short, as a full disk does."""
        path = tmp_path / "vdlrecords.a.log"
        code = (
            "import resource, signal, sys; from pathlib import Path; from ppprof.capture.output import log_to_stderr;"
            "from ppprof.capture.steps.visualdl_scalars import Scalars;"
            "from tests.fixtures.run_files import run_file; from tests.fixtures.step_scalars import record;"
            "log_to_stderr(); scalars = Scalars(run_file(Path(sys.argv[1]))); scalars.add(record(0)); scalars.flush();"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
            "room = Path(sys.argv[1]).stat().st_size + 50;"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (room, room));"
            "[scalars.add(record(step)) for step in range(1, 9)]; scalars.flush(); scalars.flush()"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr.splitlines()[-1] == (
            f"ppprof: {path}: the disk is full; {self.GOES_ON.strip()}"
        )
        assert done.stderr.count("no scalars") == 1
        assert read(path)["memory/host_peak_mib"] == [(0, 400.0)]

    def test_a_writer_that_raises_in_the_middle(
        self,
        tmp_path: Path,
        visualdl: Any,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        path, lines = tmp_path / "vdlrecords.a.log", tmp_path / "steps.jsonl"
        scalars = Scalars(run_file(path))
        with session(
            None, Schedule.of((2, 4)), steps=StepLog(run_file(lines)), scalars=scalars
        ) as prof:
            prof.step(loss=1.0)
            prof.step(loss="no number")
            prof.step(loss="no number")
        said = capsys.readouterr().err
        assert said == (
            f"ppprof: {path}: ValueError(\"could not convert string to float: 'no number'\"); "
            + self.GOES_ON
        )
        assert len(lines.read_text().splitlines()) == 3


@pytest.mark.paddle
def test_a_baseline_has_them_too(tmp_path: Path, visualdl: Any) -> None:
    import ppprof

    log = tmp_path / "log"
    block = {"enable": True, "timer_only": True, "visualdl_scalars": True, "profiler_log": str(log)}
    with ppprof.attach(block) as prof:
        for _ in range(4):
            prof.step(num_samples=2)
    lines = (log / "steps/rank_00000.jsonl").read_text().splitlines()
    seen = read(log / "vdlrecords.rank_00000.log")
    assert seen == expected([json.loads(line) for line in lines])
