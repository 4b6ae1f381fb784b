"""``tools/train.py`` with something slow planted in it; started under the launcher.

planted_job.py nothing -c CFG -o K=V          nothing
planted_job.py rank:3:0.05 -c CFG ...         rank 3 sleeps 50 ms in every block's forward
planted_job.py link:1,5:0.05 -c CFG ...       ranks 1 and 5 sleep in each all-reduce of theirs
planted_job.py transfer:0,1:0.05 -c CFG ...   ranks 0 and 1, two stages, sleep in each receive
planted_job.py optimizer:0:0.05 -c CFG ...    every rank sleeps in each update of its parameters
planted_job.py layer:1:0.02 -c CFG ...        the second block sleeps 20 ms in its forward
planted_job.py operator:relu -c CFG ...       relu in the place of gelu
planted_job.py data:0:0.004 -c CFG ...        each sample takes 4 ms to read
planted_job.py work:0.004:0.0001 -c CFG ...   each block's forward sleeps 4 ms + 0.1 ms a token / mp,
                                              its backward twice as long
planted_job.py spans+layer:1:0.02 -c CFG ...  ranks, layers and optimizers sleep in a span "planted"
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from ppprof.train.command import main

pause = time.sleep


def plant(what: str) -> None:
    """Puts it in before the training begins."""
    kind, _, rest = what.partition(":")
    if kind == "nothing":
        return
    who, _, seconds = rest.partition(":")
    if kind == "spans":
        global pause
        pause = _pause_in_a_span
        return
    if kind == "optimizer":
        from paddle.optimizer import Optimizer

        apply = Optimizer._apply_optimize

        def slow_apply(*args: Any, **kwargs: Any) -> Any:
            pause(float(seconds))
            return apply(*args, **kwargs)

        Optimizer._apply_optimize = slow_apply
        return
    if kind == "layer":
        from ppprof.train import model

        _slow_down_a_layer(model, int(who), float(seconds))
        return
    if kind == "operator":
        import paddle.nn.functional as F

        F.gelu = lambda hidden, *args, **kwargs: getattr(F, who)(hidden)
        return
    if kind == "data":
        from ppprof.train.data import TextSamples

        getitem = TextSamples.__getitem__

        def slow_getitem(samples: TextSamples, index: int) -> Any:
            time.sleep(float(seconds))
            return getitem(samples, index)

        TextSamples.__getitem__ = slow_getitem
        return
    if kind == "work":
        from ppprof.train import model

        _sleep_for_work(model, float(who), float(seconds))
        return
    rank = int(os.environ["PADDLE_TRAINER_ID"])
    if kind == "rank" and rank == int(who):
        from ppprof.train.model import Block

        forward = Block.forward

        def slow_forward(block: Block, hidden: Any) -> Any:
            pause(float(seconds))
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
    if kind == "transfer" and rank in members:
        from paddle.base import core

        recv = core.ProcessGroupGloo.recv

        def slow_recv(*args: Any) -> Any:
            task = recv(*args)
            task.wait()
            time.sleep(float(seconds))
            return task

        core.ProcessGroupGloo.recv = slow_recv


def _pause_in_a_span(seconds: float) -> None:
    import ppprof

    with ppprof.span("planted"):
        time.sleep(seconds)


def _slow_down_a_layer(model: Any, number: int, seconds: float) -> None:
    """Blocks are numbered as they are made."""
    init, forward = model.Block.__init__, model.Block.forward
    made: list[int] = []

    def numbered(block: Any, *args: Any, **kwargs: Any) -> None:
        init(block, *args, **kwargs)
        block.planted = len(made) == number
        made.append(number)

    def slow_forward(block: Any, hidden: Any) -> Any:
        if block.planted:
            pause(seconds)
        return forward(block, hidden)

    model.Block.__init__, model.Block.forward = numbered, slow_forward


def _sleep_for_work(model: Any, fixed_s: float, token_s: float) -> None:
    """Sleep instead of computing: processes that share few processors do not slow each other down."""
    from paddle.autograd import PyLayer

    from ppprof.train import layers

    class Work(PyLayer):
        @staticmethod
        def forward(ctx: Any, hidden: Any) -> Any:
            tokens = hidden.shape[0] * hidden.shape[1]
            ctx.seconds = fixed_s + token_s * tokens / layers.mp_degree()
            time.sleep(ctx.seconds)
            return hidden.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            time.sleep(2 * ctx.seconds)
            return gradient.clone()

    forward = model.Block._forward
    model.Block._forward = lambda block, hidden: Work.apply(forward(block, hidden))


if __name__ == "__main__":
    for what in sys.argv[1].split("+"):
        plant(what)
    sys.exit(main(sys.argv[2:]))
