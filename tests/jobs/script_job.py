"""A training that knows nothing of ppprof: ``script_job.py LOSSES [fail|stop]``, on one rank or two."""

import os
import sys
from pathlib import Path

import numpy as np
import paddle
from paddle import nn
from paddle.distributed import fleet
from paddle.io import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> np.ndarray:
        return np.full([8], index / 48, dtype="float32")


def train(losses: Path, ends: str) -> None:
    ranks = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
    paddle.seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    optimizer = paddle.optimizer.AdamW(learning_rate=0.01, parameters=net.parameters())
    if ranks > 1:  # after the optimizer, as PaddleClas does it
        fleet.init(is_collective=True, strategy=strategy())
        net = fleet.distributed_model(net)
        optimizer = fleet.distributed_optimizer(optimizer)
    scaler = paddle.amp.GradScaler()
    if ranks > 1:
        scaler = fleet.distributed_scaler(scaler)
    lines = []
    for index, batch in enumerate(DataLoader(Numbers(), batch_size=4, num_workers=2)):
        loss = ((net(batch) - batch) ** 2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
        lines.append(loss.item().hex())
        if ends == "fail" and index == 4:
            raise ValueError("the training's own")
    losses.write_text("\n".join(lines), encoding="utf-8")


def strategy() -> fleet.DistributedStrategy:
    made = fleet.DistributedStrategy()
    made.hybrid_configs = {"dp_degree": 2, "mp_degree": 1, "pp_degree": 1}
    return made


if __name__ == "__main__":
    rank = os.environ.get("PADDLE_TRAINER_ID", "0")
    train(Path(f"{sys.argv[1]}.{rank}"), sys.argv[2] if len(sys.argv) > 2 else "")
