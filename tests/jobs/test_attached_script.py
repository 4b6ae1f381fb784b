"""``tools/attach.py`` around a training that knows nothing of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import ppprof
from ppprof import rundir
from tests.jobs.launching import JOBS, ROOT, run
from tests.jobs.remains import arrived

ATTACH = str(ROOT / "tools/attach.py")
JOB = str(JOBS / "script_job.py")
BLOCK = "Profiler:\n  enable: True\n  scheduler: [2, 5]\n"
pytestmark = [pytest.mark.paddle, pytest.mark.all]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with ``on.yaml``, a block that is on."""
    (tmp_path / "on.yaml").write_text(BLOCK)
    return tmp_path


def steps_of(run: Path, rank: int) -> list[int]:
    lines = (run / rundir.steps_path(rank)).read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def model_rows(run: Path, rank: int = 0) -> dict[str, int]:
    (summary,) = arrived(run, f"summary/rank_{rank:05d}_w0.json")
    tables = json.loads(summary.read_text())["tables"]
    return {row["name"]: row["calls"] for row in tables["model"]}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Losses of the job by itself."""
    pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    folder = tmp_path_factory.mktemp("alone")
    run(folder, "-W", "ignore", JOB, "losses")
    return (folder / "losses.0").read_text().splitlines()


def test_its_losses_are_its_own_and_a_window_is_recorded(folder: Path, alone: list[str]) -> None:
    done = run(folder, "-W", "ignore", ATTACH, "-c", "on.yaml", "--", JOB, "losses")
    assert (folder / "losses.0").read_text().splitlines() == alone
    log = folder / "profiler_log"
    assert steps_of(log, 0) == list(range(12))
    rows = model_rows(log)
    assert {name: rows[name] for name in ("ProfileStep", "Backward", "Optimization")} == {
        "ProfileStep": 3, "Backward": 3, "Optimization": 3,
    }  # fmt: skip
    assert rows["Dataloader"] >= 3
    assert "IPS Unit: steps/s" in done.stdout
    # One session, although the DataLoader's workers are forks of this process.
    assert len(list(folder.glob("profiler_log/run_*"))) == 0


def test_an_exception_is_its_own_and_what_was_recorded_is_saved(folder: Path) -> None:
    wide = ["-o", "Profiler.scheduler=[1, 90]"]
    done = run(
        folder, "-W", "ignore", ATTACH, "-c", "on.yaml", *wide, "--", JOB, "losses", "fail", code=1
    )
    (traceback,) = re.findall(r"^Traceback .*?^\w+Error: .*?$", done.stderr, re.M | re.S)
    assert re.findall(r'File "(.*?)"', traceback) == [JOB, JOB]
    assert len(ppprof.open(folder / "profiler_log").recordings) == 1
    assert steps_of(folder / "profiler_log", 0) == [0, 1, 2, 3, 4]


@pytest.mark.jobs
def test_the_string_of_other_suites_is_a_block(folder: Path) -> None:
    text = "batch_range=[2, 4]; profile_path=theirs; state=CPU"
    run(folder, "-W", "ignore", ATTACH, "--profiler-options", text, "--", JOB, "losses")
    assert steps_of(folder / "theirs", 0) == [0, 1, 2, 3]  # exit_on_finished
    assert not (folder / "losses.0").exists()
    assert model_rows(folder / "theirs")["ProfileStep"] == 2


@pytest.mark.jobs
def test_on_two_ranks_too(folder: Path) -> None:
    run(folder, JOB, "alone", processes=2)
    run(folder, ATTACH, "-c", "on.yaml", "--", JOB, "attached", processes=2)
    log = folder / "profiler_log"
    for rank in (0, 1):
        expected = (folder / f"alone.{rank}").read_text()
        assert (folder / f"attached.{rank}").read_text() == expected
        assert steps_of(log, rank) == list(range(12))
        assert model_rows(log, rank)["ProfileStep"] == 3
    assert rundir.read_manifest(log)["axes"]["degrees"][0] == 2
    assert len(arrived(log, "*.paddle_trace.json", 2)) == 2
