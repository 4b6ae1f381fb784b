"""The real launcher, as a user calls it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def launch(folder: Path, config: str, num_processes: int, *overrides: str) -> str:
    """Trains ``configs/gpt/<config>.yaml``, profiled, in ``folder``; returns what its user sees."""
    flags = [part for override in overrides for part in ("-o", override)]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "paddle.distributed.launch"),
            *("--nproc_per_node", str(num_processes)),
            *(ROOT / "tools/train.py", "-c", ROOT / f"configs/gpt/{config}.yaml"),
            *("-o", "Profiler.enable=True", *flags),
        ],
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    seen = done.stdout + done.stderr
    assert done.returncode == 0, seen[-3000:]
    return seen
