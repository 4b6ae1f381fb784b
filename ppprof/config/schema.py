"""A whole config: its blocks, what follows from them, and `load_config`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ppprof.config.overrides import apply_overrides
from ppprof.config.profiler import ProfilerConfig, check_ranks, read_profiler
from ppprof.config.reading import Report, read_block
from ppprof.config.source import read_source
from ppprof.config.training import (
    BLOCKS,
    DataConfig,
    DistributedConfig,
    EngineConfig,
    GlobalConfig,
    ModelConfig,
    OptimizerConfig,
)
from ppprof.errors import ConfigError, Problem, UsageError
from ppprof.topology import Topology

_FLEETX_BLOCKS = frozenset(
    ["Offline_Eval", "Generation", "Inference", "Compress", "Quantization", "Distillation", "Prune",
     "Tuning", "Fused", "Loss", "Metric", "hcg"]
)  # fmt: skip


@dataclass(frozen=True)
class Config:
    """A config as a program reads it."""

    Global: GlobalConfig
    Engine: EngineConfig
    Model: ModelConfig
    Data: DataConfig
    Optimizer: OptimizerConfig
    Profiler: ProfilerConfig
    Distributed: DistributedConfig
    topology: Topology
    """The grid of ranks."""
    resolved: Mapping[str, Any] = field(default_factory=dict)
    """Everything the files and overrides say, blocks of others included, as plain values."""
    warnings: tuple[str, ...] = ()
    """What is odd but does not stop anything."""


def load_config(
    path: str | Path, overrides: Iterable[str] = (), world_size: int | None = None
) -> Config:
    """The config in a file, with overrides.

    Args:
        path: a YAML file.
        overrides: ``KEY=VALUE`` each, as after ``-o``.
        world_size: number of processes; None where it is not known, and the degrees alone decide.

    Raises:
        ConfigError: with every problem, each with where it was set.
    """
    source = read_source(path)
    report = Report(source, apply_overrides(source, overrides))
    values = source.values
    for name in values:
        if name not in BLOCKS and name != "Profiler" and name not in _FLEETX_BLOCKS:
            report.warn((name,), "unknown block, passed through")
    profiler = read_profiler(values.get("Profiler"), ("Profiler",), report)
    blocks = {
        name: read_block(cls, values.get(name), (name,), report) for name, cls in BLOCKS.items()
    }
    topology, distributed = _grid(blocks["Distributed"], world_size, report)
    blocks["Distributed"] = distributed
    if topology is not None:
        check_ranks(profiler, topology, ("Profiler",), report)
        blocks["Global"], blocks["Engine"] = _batches(
            blocks["Global"], blocks["Engine"], topology, report
        )
    _check_model(blocks["Model"], report)
    if report.problems or topology is None:
        raise ConfigError(sorted(report.problems, key=_by_place))
    return Config(
        **blocks,
        Profiler=profiler,
        topology=topology,
        resolved=source.values,
        warnings=tuple(report.warnings),
    )


def _by_place(problem: Problem) -> tuple[str, int]:
    file, _, line = problem.where.rpartition(":")
    return (file, int(line)) if line.isdigit() else (problem.where, 0)


def _grid(
    distributed: DistributedConfig, world_size: int | None, report: Report
) -> tuple[Topology | None, DistributedConfig]:
    """The grid of ranks, dp derived where it is blank; None where the degrees make none."""
    degrees = {
        "pp": distributed.pp_degree,
        "sharding": distributed.sharding.sharding_degree,
        "sep": distributed.sep_degree,
        "mp": distributed.mp_degree,
    }
    try:
        others = Topology.of(distributed.order, **degrees)
    except UsageError as error:
        report.problem(("Distributed", "order"), str(error))
        return None, distributed
    dp = distributed.dp_degree or max(1, (world_size or 0) // others.world_size)
    topology = Topology.of(distributed.order, dp=dp, **degrees)
    if world_size is not None and topology.world_size != world_size:
        shown = {
            "dp": dp,
            "mp": degrees["mp"],
            "pp": degrees["pp"],
            "sharding": degrees["sharding"],
        }
        if degrees["sep"] > 1:
            shown["sep"] = degrees["sep"]
        product = " x ".join(f"{axis} {degree}" for axis, degree in shown.items())
        report.problem(
            ("Distributed",),
            f"{product} = {topology.world_size}, but {world_size} processes were launched",
        )
    return topology, dataclasses.replace(distributed, dp_degree=dp)


def _batches(
    world: GlobalConfig, engine: EngineConfig, topology: Topology, report: Report
) -> tuple[GlobalConfig, EngineConfig]:
    """Batch sizes with the blank ones derived, as FleetX does."""
    replicas = topology.degree("dp") * topology.degree("sharding")
    whole, local, micro = world.global_batch_size, world.local_batch_size, world.micro_batch_size
    if whole is None and local is None:
        whole, local = replicas, 1
    if local is None:
        assert whole is not None
        local, rest = divmod(whole, replicas)
        if rest or not local:
            report.problem(
                ("Global", "global_batch_size"),
                f"{whole} samples over dp x sharding = {replicas} ranks: expected a multiple",
            )
            return world, engine
    if whole is None:
        whole = local * replicas
    if whole != local * replicas:
        report.problem(
            ("Global", "global_batch_size"),
            f"{whole}: expected local_batch_size {local} x dp x sharding {replicas} "
            f"= {local * replicas}; leave one of the two blank",
        )
    micro = local if micro is None else micro
    if local % micro:
        report.problem(
            ("Global", "micro_batch_size"),
            f"{micro}: expected a divisor of local_batch_size {local}",
        )
        return world, engine
    steps = local // micro
    if engine.accumulate_steps not in (None, steps):
        report.warn(
            ("Engine", "accumulate_steps"),
            f"has no effect: local_batch_size {local} / micro_batch_size {micro} = {steps} counts",
        )
    world = dataclasses.replace(
        world, global_batch_size=whole, local_batch_size=local, micro_batch_size=micro
    )
    return world, dataclasses.replace(engine, accumulate_steps=steps)


def _check_model(model: ModelConfig, report: Report) -> None:
    if model.hidden_size % model.num_attention_heads:
        report.problem(
            ("Model", "num_attention_heads"),
            f"{model.num_attention_heads}: expected a divisor of hidden_size {model.hidden_size}",
        )
