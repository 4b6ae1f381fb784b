"""A small training without a profiler; its arguments name what makes it slow."""

import sys
import time

import paddle
from paddle import distributed, nn
from paddle.profiler import Profiler, export_chrome_tracing

SLOW = sys.argv[1:]
NUM_STEPS, BATCH_SIZE, WIDTH = 60, 8, 128


class Samples(paddle.io.Dataset):
    """Random samples; with `data`, each takes 16 ms to read."""

    def __len__(self) -> int:
        return NUM_STEPS * BATCH_SIZE

    def __getitem__(self, index: int) -> paddle.Tensor:
        if "data" in SLOW:
            time.sleep(0.016)
        return paddle.randn([WIDTH])


class Neck(nn.Layer):
    """A linear layer; with `neck`, or with `rank` on rank 5, it takes 60 ms more."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, features: paddle.Tensor) -> paddle.Tensor:
        """Sleep if asked to, then multiply."""
        if "neck" in SLOW or ("rank" in SLOW and distributed.get_rank() == 5):
            time.sleep(0.06)
        return self.linear(features)


def main() -> None:
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), Neck(), nn.GELU(), nn.Linear(WIDTH, 1))
    if distributed.get_world_size() > 1:
        distributed.init_parallel_env()
        net = paddle.DataParallel(net)
    optimizer = paddle.optimizer.AdamW(parameters=net.parameters())
    log = export_chrome_tracing("profiler_log", f"rank{distributed.get_rank()}")
    profiler = Profiler(scheduler=(20, 30), on_trace_ready=log)
    profiler.start()
    for samples in paddle.io.DataLoader(Samples(), batch_size=BATCH_SIZE):
        net(samples).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()
        profiler.step()
    profiler.stop()
    profiler.summary()


if __name__ == "__main__":
    main()
