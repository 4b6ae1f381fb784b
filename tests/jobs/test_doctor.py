"""``ppprof doctor --nproc``: a real all-reduce between launched ranks."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.paddle, pytest.mark.jobs]


def test_ranks_that_reduce_under_a_span(tmp_path: Path) -> None:
    pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    command = [sys.executable, "-m", "ppprof", "doctor", str(tmp_path / "log")]
    start = time.monotonic()
    done = subprocess.run(
        [*command, "--nproc", "2", "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert time.monotonic() - start < 30
    assert done.returncode == 0, done.stdout + done.stderr
    (check,) = (c for c in json.loads(done.stdout)["checks"] if c["name"] == "all-reduce")
    assert check["status"] == "ok"
    assert check["reason"].endswith("ms (GLOO, cpu); its span is in every rank's trace")
    assert [rank["is_correct"] for rank in check["values"]["ranks"]] == [True, True]
    assert list(tmp_path.iterdir()) == []
