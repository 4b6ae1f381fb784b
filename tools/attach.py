"""Run a script with ppprof: ``python -m paddle.distributed.launch tools/attach.py -c CFG -- SCRIPT``."""

import sys
from pathlib import Path

if getattr(sys.flags, "safe_path", False):
    sys.path.insert(0, "")
sys.path[0] = str(Path(__file__).resolve().parents[1])

from ppprof.integrations.script import main  # noqa: E402

del sys.path[0]

if __name__ == "__main__":
    sys.exit(main())
