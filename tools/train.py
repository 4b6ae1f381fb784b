"""Pretrain a GPT: ``python -m paddle.distributed.launch tools/train.py -c CFG -o KEY=VALUE``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ppprof.train.command import main

if __name__ == "__main__":
    sys.exit(main())
