"""A loop of your own that waits for its data; `ppprof advise` names the DataLoader.

python examples/plain_loop.py
ppprof advise profiler_log
"""

import time

import paddle
from paddle import nn

import ppprof

BATCH_SIZE = 8


class SlowDataset(paddle.io.Dataset):
    """Samples that take 5 ms each to read, as if they were decoded from files."""

    def __len__(self) -> int:
        return 20 * BATCH_SIZE

    def __getitem__(self, index: int) -> paddle.Tensor:
        time.sleep(0.005)
        return paddle.full([64], float(index % 10))


def main() -> None:
    """Train 20 steps; steps 5 to 9 are recorded."""
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1))
    optimizer = paddle.optimizer.AdamW(parameters=model.parameters())
    loader = paddle.io.DataLoader(SlowDataset(), batch_size=BATCH_SIZE)
    with ppprof.attach({"enable": True, "scheduler": [5, 10]}) as profiler:
        for samples in loader:
            with ppprof.span("loss"):
                loss = model(samples).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            profiler.step(num_samples=BATCH_SIZE)


if __name__ == "__main__":
    main()
