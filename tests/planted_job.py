"""``tools/train.py`` with something slow planted in it; started under the launcher.

planted_job.py nothing -c CFG -o K=V          nothing
planted_job.py rank:3:0.05 -c CFG ...         rank 3 sleeps 50 ms in every block's forward
planted_job.py link:1,5:0.05 -c CFG ...       ranks 1 and 5 sleep in each all-reduce of theirs
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from ppprof.train.command import main


def plant(what: str) -> None:
    """Puts it in before the training begins."""
    kind, _, rest = what.partition(":")
    if kind == "nothing":
        return
    who, _, seconds = rest.partition(":")
    rank = int(os.environ["PADDLE_TRAINER_ID"])
    if kind == "rank" and rank == int(who):
        from ppprof.train.model import Block

        forward = Block.forward

        def slow_forward(block: Block, hidden: Any) -> Any:
            time.sleep(float(seconds))
            return forward(block, hidden)

        Block.forward = slow_forward
    members = [int(member) for member in who.split(",")]
    if kind == "link" and rank in members:
        import paddle.distributed as dist
        from paddle.base import core

        all_reduce = core.ProcessGroupGloo.all_reduce

        def slow_all_reduce(process_group: Any, *args: Any) -> Any:
            groups = dist.collective._get_group_map().values()
            if any(g.process_group is process_group and g.ranks == members for g in groups):
                time.sleep(float(seconds))
            return all_reduce(process_group, *args)

        core.ProcessGroupGloo.all_reduce = slow_all_reduce


if __name__ == "__main__":
    for what in sys.argv[1].split("+"):
        plant(what)
    sys.exit(main(sys.argv[2:]))
