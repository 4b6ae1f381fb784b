"""Files that a process of ppprof's writes after the training, which waits for it a minute only."""

from __future__ import annotations

import time
from pathlib import Path


def arrived(folder: Path, pattern: str, num_files: int = 1, seconds: float = 200.0) -> list[Path]:
    """The files of a pattern, once there are that many; whatever there is after so long."""
    deadline = time.monotonic() + seconds
    while True:
        found = sorted(folder.glob(pattern))
        if len(found) >= num_files or time.monotonic() > deadline:
            return found
        time.sleep(0.1)
