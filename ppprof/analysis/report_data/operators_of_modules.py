"""The operators and kernels of each module, so that a page can show those of a chosen module."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import polars as pl

from ppprof.analysis.diff.costs import operator_calls
from ppprof.analysis.diff.naming import Naming
from ppprof.analysis.modules.module_tree import module_nodes
from ppprof.analysis.profile.profile import Profile
from ppprof.trace.schema import is_kernel

_VALUES = ("calls", "cpu_total_ns", "cpu_self_ns", "gpu_total_ns", "gpu_self_ns")

MODULE_WORK = {
    "kind": pl.String,
    "path": pl.String,
    "name": pl.String,
    **dict.fromkeys(_VALUES, pl.Float64),
}
"""Columns of `module_work`. ``kind``: operators or kernels. ``path``: as in
`ppprof.analysis.modules.module_tree.modules`. The values of a kernel's GPU self time and CPU times
are 0."""


def module_work(profile: Profile, naming: Naming) -> pl.DataFrame:
    """Return the operators and kernels of each module, without those of the modules below it.

    ::

        GPT        ####################
          Block       #########              GPT: add; Block: matmul, relu
        operators  add  matmul relu

    An event counts for the innermost module around it, or around its launch. Events outside steps
    do not count.

    Args:
        profile: one rank's window.
        naming: how operators and kernels are named.

    Returns:
        Columns of `MODULE_WORK`: sums over the steps of the window.
    """
    step = profile.trace.events["step"]
    if not profile.steps:
        return pl.DataFrame(schema=MODULE_WORK)
    nodes = module_nodes(profile, step)
    rows = nodes["row"].to_numpy()
    number = np.full(len(profile.tree.size) + 1, -1, np.int64)
    number[rows] = np.arange(len(rows))
    node = number[np.append(profile.tree.innermost(rows), -1)]
    paths = nodes["path"]

    def with_path(table: pl.DataFrame, host: pl.Series) -> pl.DataFrame:
        numbers = node[host.fill_null(-1).to_numpy()]
        path = paths.gather(np.maximum(numbers, 0)) if len(paths) else pl.Series([""])
        return table.with_columns(path=path).filter(pl.Series(numbers >= 0, dtype=pl.Boolean))

    operators = operator_calls(profile, step, naming).drop_nulls("step")
    kernels = profile.tree.devices.filter(is_kernel() & pl.col("host").is_not_null())
    kernel_rows = kernels.select(
        name=naming.apply(kernels["name"]),
        calls=pl.lit(1, pl.Int64),
        cpu_total_ns=pl.lit(0, pl.Int64),
        cpu_self_ns=pl.lit(0, pl.Int64),
        gpu_total_ns="gpu_ns",
        gpu_self_ns=pl.lit(0, pl.Int64),
    )
    tables = [
        with_path(operators, operators["row"]).with_columns(kind=pl.lit("operators")),
        with_path(kernel_rows, kernels["host"]).with_columns(kind=pl.lit("kernels")),
    ]
    keys = list(MODULE_WORK)[:3]
    return pl.concat(
        [
            table.group_by(keys, maintain_order=True)
            .agg(pl.col(_VALUES).sum().cast(pl.Float64))
            .select(*MODULE_WORK)
            for table in tables
        ]
    )


def mean_module_work(ranks: Iterable[tuple[int | None, int, pl.DataFrame]]) -> pl.DataFrame:
    """Return the work of modules per rank and step.

    Args:
        ranks: for each rank its pipeline stage, its number of steps, and its `module_work`.

    Returns:
        stage, then the columns of `MODULE_WORK`: means over the ranks and steps of the stage.
    """
    schema = {"stage": pl.Int64, **MODULE_WORK}
    num_steps: dict[int | None, int] = {}
    parts = [pl.DataFrame(schema=schema)]
    for stage, num, table in ranks:
        num_steps[stage] = num_steps.get(stage, 0) + num
        parts.append(table.select(pl.lit(stage, pl.Int64).alias("stage"), pl.all()))
    sums = pl.concat(parts).group_by(list(schema)[:4], maintain_order=True).agg(pl.all().sum())
    divisors = pl.Series([num_steps[stage] for stage in sums["stage"]], dtype=pl.Int64)
    return sums.with_columns(pl.col(value) / divisors for value in _VALUES)
