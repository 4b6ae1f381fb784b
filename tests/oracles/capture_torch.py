"""Two ranks of a small network under ``torch.profiler``, and torch's own table of operators.

Run as ``python capture_torch.py DIR`` with torch installed and nothing of ours. For each rank it
leaves ``cpu_ddp_rank<N>.json.gz``, as ``export_chrome_trace`` writes it, and
``cpu_ddp_rank<N>.key_averages.json``: name -> [calls, self CPU us, total CPU us], which is what
``key_averages()`` says of the same window.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule

WORLD_SIZE = 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def capture(rank: int, directory: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo", rank=rank, world_size=WORLD_SIZE, init_method=f"file://{directory}/rendezvous"
    )
    net = DistributedDataParallel(nn.Sequential(Block(), Block()))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.randn(16, 8), batch_size=4)

    def ready(prof: profile) -> None:
        path = Path(directory) / f"cpu_ddp_rank{rank}.json.gz"
        prof.export_chrome_trace(str(path))
        text = gzip.decompress(path.read_bytes()).decode("utf-8")
        # Do not publish the host.
        text = re.sub(r'"(host_name|traceName)": "[^"]*"', r'"\1": "elsewhere"', text)
        path.write_bytes(gzip.compress(text.encode("utf-8"), mtime=0))
        table = {
            row.key: [row.count, row.self_cpu_time_total, row.cpu_time_total]
            for row in prof.key_averages()
        }
        path.with_name(f"cpu_ddp_rank{rank}.key_averages.json").write_text(
            json.dumps(table, indent=1) + "\n", encoding="utf-8"
        )

    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=2, repeat=1),
        on_trace_ready=ready,
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
        with_modules=True,
    ) as prof:
        for batch in loader:
            with record_function("mine"):
                loss = net(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    dist.barrier()  # one that leaves early breaks the connection of the other
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(capture, (sys.argv[1],), WORLD_SIZE)
