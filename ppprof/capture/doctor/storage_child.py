"""Write 64 MiB to the disk of a directory, and remove them.

    python ppprof/capture/doctor/storage_child.py profiler_log

Prints ``{"folder": ..., "exists": ..., "free_bytes": ..., "mb_per_s": ...}`` or ``{"error": ...}``.
The file has no name while it is written, so that nothing stays if this process is killed. This file
imports nothing of ppprof, so that it starts in 30 ms.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_BYTES, _CHUNK = 64 << 20, 4 << 20
_MOST_SECONDS = 8.0


def measure(log_dir: Path) -> dict[str, Any]:
    """Return the folder that was written to, its free bytes and MB/s.

    The folder is ``log_dir``, or its nearest parent that exists.
    """
    folder = log_dir.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    folder = folder.resolve()
    if not folder.is_dir():
        return {"error": f"{folder} is not a directory"}
    try:
        stat = os.statvfs(folder)
        free = stat.f_bavail * stat.f_frsize
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            start = time.monotonic()
            written = 0
            while written < _BYTES and time.monotonic() - start < _MOST_SECONDS:
                written += file.write(bytes(_CHUNK))
                os.fsync(file.fileno())
            seconds = time.monotonic() - start
    except OSError as error:
        return {"error": f"cannot write to {folder}: {error.strerror}"}
    return {
        "folder": str(folder),
        "exists": log_dir.exists(),
        "free_bytes": free,
        "written_bytes": written,
        "mb_per_s": written / 1e6 / max(seconds, 1e-9),
    }


if __name__ == "__main__":
    json.dump(measure(Path(sys.argv[1])), sys.stdout)
