"""A worker whose clock is off by 0.8 s and drifts by 50 ppm: where its events come to lie."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import ppprof
from ppprof.rundir.remote_calls import aligned, read_calls

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = pytest.mark.paddle

from tests.fixtures import remote_functions  # noqa: E402
from tests.fixtures.run_files import run_file  # noqa: E402

OFFSET_NS, DRIFT_PPB = 800_000_000, 50_000
CALLS = 20
LOOKING_NS = 50_000
"""What may pass between two looks at a clock that belong together, on a busy machine."""


@pytest.fixture
def shifted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that start from here on have another wall clock."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler")
    library = tmp_path / "shifted_clock.so"
    source = Path(__file__).parent / "jobs/shifted_clock.c"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("CLOCK_OFFSET_NS", str(OFFSET_NS))
    monkeypatch.setenv("CLOCK_DRIFT_PPB", str(DRIFT_PPB))
    monkeypatch.setenv("LD_PRELOAD", str(library))


@pytest.mark.usefixtures("shifted")
@pytest.mark.all
def test_events_are_where_they_happened_within_the_stated_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    block = {"enable": True, "profiler_log": str(log), "scheduler": [0, 1], "formats": ["pb"]}
    seen = []
    with remote_functions.pool() as pool:
        assert pool.submit(remote_functions.process_id).result() > 0
        monkeypatch.delenv("LD_PRELOAD")
        with ppprof.attach(block) as prof:
            for _ in range(CALLS):
                shared, own = remote_functions.clocks()
                at, theirs = ppprof.remote.submit(pool, remote_functions.clocks).result()
                seen.append(own + at - shared)
                assert theirs - seen[-1] > OFFSET_NS / 2
            prof.step()
    (folder,) = log.glob("raw/*.calls")
    calls, _ = read_calls(run_file(folder))
    error_ns = [reading.error_ns for reading in aligned(calls).values()]
    ran = (
        ppprof.open(log)
        .events()
        .filter(pl.col("name").cast(pl.String).str.ends_with("#remote_op: clocks"))
    )
    starts = ran["start_ns"].sort().to_list()
    assert len(starts) == len(seen) == CALLS
    for start, true, error in zip(starts, seen, error_ns):
        assert -error - LOOKING_NS <= start - true <= error + LOOKING_NS
    assert max(error_ns) < OFFSET_NS / 100
