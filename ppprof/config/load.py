"""Load a whole config: read the blocks, check them together, and derive blank values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ppprof.config.profiler import ProfilerConfig, check_ranks, read_profiler
from ppprof.config.training import (
    BLOCKS,
    DataConfig,
    DistributedConfig,
    EngineConfig,
    GlobalConfig,
    ModelConfig,
    OptimizerConfig,
    ShardingConfig,
)
from ppprof.config.validation import Problems, did_you_mean, read_block
from ppprof.config.yaml_source import ConfigTree, read_tree
from ppprof.errors import ConfigError, Problem
from ppprof.topology import AXES, Topology

_OWN_BLOCKS = (*BLOCKS, "Profiler")
_PEAKS = ("Global.device_peak_flops", "Global.device_peak_gbps")
"""Keys outside the ``Profiler`` block that `ppprof.attach` reads."""
_FLEETX_BLOCKS = frozenset(
    [
        *("Offline_Eval", "Generation", "Inference", "Compress", "Quantization"),
        *("Distillation", "Prune", "Tuning", "Fused", "Loss", "Metric", "hcg"),
    ]
)


@dataclass(frozen=True)
class Config:
    """A loaded config: typed blocks, with blank batch sizes and ``dp_degree`` derived."""

    Global: GlobalConfig
    Engine: EngineConfig
    Model: ModelConfig
    Data: DataConfig
    Optimizer: OptimizerConfig
    Profiler: ProfilerConfig
    Distributed: DistributedConfig
    topology: Topology
    """The ranks of the job and their coordinates."""
    resolved: Mapping[str, Any] = field(default_factory=dict)
    """All values that the files and overrides set, including blocks and keys that ppprof does not
    read; without defaults and derived values."""
    warnings: tuple[str, ...] = ()
    """Messages about problems that do not stop the program."""
    source: ConfigTree = field(default_factory=lambda: ConfigTree({}), repr=False, compare=False)
    """Where each value was set, for `problem`."""

    def to_mapping(self) -> dict[str, Any]:
        """Return all blocks as plain values: ``resolved`` plus defaults and derived values."""
        typed = {name: dataclasses.asdict(getattr(self, name)) for name in BLOCKS}
        typed["Profiler"] = self.Profiler.to_mapping()
        mapping: dict[str, Any] = _overlay(self.resolved, typed)
        return mapping

    def problem(self, key: str, message: str) -> Problem:
        """Return a problem with ``key``, located at the file and line (or ``-o``) that set the key.

        For checks that only the program that uses the config can do.

        Args:
            key: dotted, such as ``Global.device``.
            message: the value, the problem and the expected values.
        """
        return Problem(self.source.where(tuple(key.split("."))), key, message)


def load_config(
    path: str | Path | ConfigTree, overrides: Iterable[str] = (), world_size: int | None = None
) -> Config:
    """Load a config file, apply overrides, check all blocks and derive blank values.

    Args:
        path: a YAML file, or the values that were read from one: blocks, or the keys of a
            ``Profiler`` block.
        overrides: each is ``KEY=VALUE``, as after ``-o``; the last one for a key counts.
        world_size: number of processes. None if it is unknown: then it is the product of the
            degrees, with a blank ``dp_degree`` as 1.

    Raises:
        ConfigError: holds every problem, each with the place that set the key. If a file cannot be
            read, that is the only problem.
    """
    from ppprof.config.overrides import apply_overrides  # imports OmegaConf, which takes 45 ms

    source = path if isinstance(path, ConfigTree) else read_tree(path)
    _wrap_bare_block(source)
    problems = Problems(source, apply_overrides(source, overrides))
    values = source.values
    for name in values:
        if name not in _OWN_BLOCKS and name not in _FLEETX_BLOCKS:
            hint = did_you_mean(name, _OWN_BLOCKS)
            problems.warn((name,), f"unknown block, passed through{hint}")
    profiler = read_profiler(values.get("Profiler"), ("Profiler",), problems)
    blocks = {
        name: read_block(cls, values.get(name), (name,), problems) for name, cls in BLOCKS.items()
    }
    is_world_known = world_size is not None or blocks["Distributed"].dp_degree is not None
    if problems.is_sound("Distributed"):
        blocks["Distributed"], topology = _build_topology(
            blocks["Distributed"], world_size, problems
        )
    is_used = profiler.enable and is_world_known
    if problems.is_sound("Distributed", "Profiler") and is_used:
        check_ranks(profiler, topology, problems)
    if problems.is_sound("Distributed", "Global", "Engine"):
        blocks["Global"], blocks["Engine"] = _derive_batch_sizes(
            blocks["Global"], blocks["Engine"], topology, problems
        )
    sizes = _model_sizes(blocks["Model"], values.get("Model"))
    if problems.is_sound("Model"):
        _check_model(sizes, problems)
    if problems.is_sound("Distributed", "Global", "Engine", "Model", "Data"):
        _check_split(blocks, sizes, topology, problems)
    if problems.errors:
        raise ConfigError(sorted(problems.errors, key=_place))
    return Config(
        **blocks,
        Profiler=profiler,
        topology=topology,
        resolved=source.values,
        warnings=tuple(problems.warnings),
        source=source,
    )


@dataclass(frozen=True)
class Loaded:
    """A loaded ``Profiler`` block, without the other typed blocks of its config."""

    profiler: ProfilerConfig
    resolved: Mapping[str, Any]
    """All values that the file and the overrides set, keyed by block name."""
    warnings: tuple[str, ...]
    """Messages about problems that do not stop the program."""


def load_profiler(
    path: str | Path | None,
    overrides: Iterable[str] = (),
    world_size: int | None = None,
    *,
    needs_block: bool = True,
) -> Loaded:
    """Load the ``Profiler`` block of a config. The other blocks are not checked.

    Args:
        path: a YAML file with a ``Profiler`` block, or with the keys of a ``Profiler`` block at its
            top level. None uses the overrides alone.
        overrides: each is ``Profiler.KEY=VALUE``, as after ``-o``, or a peak of the device in
            ``Global``; other keys are an error.
        world_size: number of processes, to check rank numbers with `check_ranks`. None
            checks no rank numbers.
        needs_block: whether a file without the block and its keys is an error.

    Raises:
        ConfigError: holds every problem, each with the place that set the key. If a file cannot be
            read, that is the only problem.
    """
    source = ConfigTree({}) if path is None else read_tree(path)
    _wrap_bare_block(source, is_profilers=needs_block)
    problems = Problems(source)
    overrides = list(overrides)
    if path is not None and needs_block and "Profiler" not in source.values:
        problems.add((), "expected a Profiler block, or its keys at the top level")
    if overrides:
        from ppprof.config.overrides import apply_overrides

        problems.errors += apply_overrides(source, overrides)
        for text in overrides:
            name = text.partition("=")[0].strip()
            if name.partition(".")[0] != "Profiler" and name not in _PEAKS:
                message = f"only the Profiler block is read; expected Profiler.KEY=VALUE, or {' or '.join(_PEAKS)}"
                problems.errors.append(Problem(f"-o {text}", name, message))
    profiler = read_profiler(source.values.get("Profiler"), ("Profiler",), problems)
    if world_size is not None and profiler.enable and not problems.errors:
        topology = Topology.of(dp=world_size)
        check_ranks(profiler, topology, problems, has_axes=False)
    if problems.errors:
        raise ConfigError(sorted(problems.errors, key=_place))
    return Loaded(profiler, source.values, tuple(problems.warnings))


def _wrap_bare_block(source: ConfigTree, *, is_profilers: bool = False) -> None:
    """Put the keys of a ``Profiler`` block at the top level into a ``Profiler`` block.

    A file without blocks has such keys if they are at least half of its keys: those of another
    program's config may include one, such as ``export``, and a block's keys may include typos. In a file
    that should be about the profiler, one is enough if the others look like typos.
    """
    fields = {item.name for item in dataclasses.fields(ProfilerConfig)}
    unknown = source.values.keys() - fields
    num_known = len(source.values) - len(unknown)
    are_typos = is_profilers and all(did_you_mean(str(key), fields) for key in unknown)
    if num_known == 0 or (2 * num_known < len(source.values) and not are_typos):
        return
    if source.values.keys().isdisjoint(_OWN_BLOCKS):
        source.values = {"Profiler": source.values}
        source.marks = {("Profiler", *key): mark for key, mark in source.marks.items()}


def _overlay(resolved: Any, typed: Any) -> Any:
    """Return ``typed``, plus the keys of ``resolved`` that ``typed`` does not have, at any depth.

    Tuples in ``typed`` become lists.
    """
    if not isinstance(typed, dict):
        return list(typed) if isinstance(typed, tuple) else typed
    resolved = resolved if isinstance(resolved, dict) else {}
    merged = {key: _overlay(resolved.get(key), value) for key, value in typed.items()}
    return {**merged, **{key: value for key, value in resolved.items() if key not in typed}}


def _place(problem: Problem) -> tuple[str, int]:
    """Return a sort key: the file and line of a problem; line 0 if its place has no line."""
    file, _, line = problem.where.rpartition(":")
    return (file, int(line)) if line.isdigit() else (problem.where, 0)


def _build_topology(
    distributed: DistributedConfig, world_size: int | None, problems: Problems
) -> tuple[DistributedConfig, Topology]:
    """Return the ``Distributed`` block with a blank ``dp_degree`` derived, and the topology.

    Adds an error if ``order`` is not a permutation of the axes (the topology then has Fleet's
    order), or if the degrees do not multiply to ``world_size``.
    """
    order: tuple[str, ...] = distributed.order
    if sorted(order) != sorted(AXES):
        problems.add(
            ("Distributed", "order"), f"{list(order)!r}: expected each of {', '.join(AXES)} once"
        )
        order = AXES
    degrees = {
        "mp": distributed.mp_degree,
        "pp": distributed.pp_degree,
        "sharding": distributed.sharding.sharding_degree,
        "sep": distributed.sep_degree,
    }
    dp = distributed.dp_degree or max(1, (world_size or 0) // math.prod(degrees.values()))
    topology = Topology.of(order, dp=dp, **degrees)
    if world_size is not None and topology.world_size != world_size:
        product = " x ".join(
            f"{axis} {degree}"
            for axis, degree in {"dp": dp, **degrees}.items()
            if axis != "sep" or degree > 1
        )
        problems.add(
            ("Distributed",),
            f"{product} = {topology.world_size}, but {world_size} processes were launched",
        )
    return dataclasses.replace(distributed, dp_degree=dp), topology


def _derive_batch_sizes(
    world: GlobalConfig, engine: EngineConfig, topology: Topology, problems: Problems
) -> tuple[GlobalConfig, EngineConfig]:
    """Return the ``Global`` and ``Engine`` blocks with blank sizes filled in by FleetX's rules.

    - global_batch_size = local_batch_size x dp x sharding; either may be blank. If both are blank,
      local_batch_size is 1.
    - micro_batch_size = local_batch_size, if blank.
    - accumulate_steps = local_batch_size / micro_batch_size. Another value in the config has no
      effect, and a warning says so.

    Adds an error if the sizes contradict each other or do not divide.
    """
    replicas = topology.replicas
    whole, local, micro = world.global_batch_size, world.local_batch_size, world.micro_batch_size
    if whole is None and local is None:
        whole, local = replicas, 1
    if local is None:
        assert whole is not None
        local, rest = divmod(whole, replicas)
        if rest or not local:
            problems.add(
                ("Global", "global_batch_size"),
                f"{whole} samples over dp x sharding = {replicas} ranks: expected a multiple",
            )
            return world, engine
    if whole is None:
        whole = local * replicas
    if whole != local * replicas:
        problems.add(
            ("Global", "global_batch_size"),
            f"{whole}: expected local_batch_size {local} x dp x sharding {replicas} "
            f"= {local * replicas}; leave one of the two blank",
        )
    micro = local if micro is None else micro
    if local % micro:
        problems.add(
            ("Global", "micro_batch_size"),
            f"{micro}: expected a divisor of local_batch_size {local}",
        )
        return world, engine
    steps = local // micro
    if engine.accumulate_steps not in (None, steps):
        problems.warn(
            ("Engine", "accumulate_steps"),
            f"has no effect: local_batch_size {local} / micro_batch_size {micro} = {steps} counts",
        )
    world = dataclasses.replace(
        world, global_batch_size=whole, local_batch_size=local, micro_batch_size=micro
    )
    return world, dataclasses.replace(engine, accumulate_steps=steps)


def _model_sizes(model: ModelConfig, block: object) -> Mapping[str, int]:
    """Return the sizes of the model that can be checked, by key.

    The defaults are those of GPT. So of another model, such as ERNIE, only the keys that its block
    has can be checked: its number of layers may have another name.
    """
    sizes = {
        "hidden_size": model.hidden_size,
        "num_layers": model.num_layers,
        "num_attention_heads": model.num_attention_heads,
        "vocab_size": model.vocab_size,
        "ffn_hidden_size": model.ffn_hidden_size or 4 * model.hidden_size,
    }
    if model.module == ModelConfig.module:
        return sizes
    given = block if isinstance(block, Mapping) else {}
    return {key: size for key, size in sizes.items() if given.get(key) is not None}


def _check_model(sizes: Mapping[str, int], problems: Problems) -> None:
    hidden, heads = sizes.get("hidden_size"), sizes.get("num_attention_heads")
    if hidden is not None and heads is not None and hidden % heads:
        problems.add(
            ("Model", "num_attention_heads"), f"{heads}: expected a divisor of hidden_size {hidden}"
        )


def _check_split(
    blocks: Mapping[str, Any], sizes: Mapping[str, int], topology: Topology, problems: Problems
) -> None:
    """Check the model, the batch and the sequences against the degrees of the topology.

    Adds errors for sizes that a degree does not divide, and for settings that Fleet does not
    combine. Adds warnings for settings that have no effect.
    """
    model: ModelConfig = blocks["Model"]
    mp, pp = topology.degree("mp"), topology.degree("pp")
    virtual = model.virtual_pp_degree if pp > 1 else 1
    for name, unit in (
        ("num_attention_heads", "heads"),
        ("vocab_size", "tokens"),
        ("ffn_hidden_size", "columns"),
    ):
        count = sizes.get(name, 0)
        if count % mp:
            problems.add(("Model", name), f"{count} {unit}: expected a multiple of mp_degree {mp}")
    stages = f"pp_degree {pp}" + f" x virtual_pp_degree {virtual}" * (virtual > 1)
    layers = sizes.get("num_layers", 0)
    if layers % (pp * virtual):
        problems.add(("Model", "num_layers"), f"{layers}: expected a multiple of {stages}")
    if model.virtual_pp_degree > 1:
        _check_virtual(model.virtual_pp_degree, pp, blocks["Engine"].accumulate_steps, problems)
    if model.sequence_parallel and mp == 1:
        problems.warn(("Model", "sequence_parallel"), "has no effect: mp_degree is 1")
    if model.sequence_parallel:
        for purpose in blocks["Engine"].purposes:
            length = getattr(blocks["Data"], purpose).dataset.max_seq_len
            if length % mp:
                problems.add(
                    ("Data", purpose, "dataset", "max_seq_len"),
                    f"{length}: sequence_parallel needs a multiple of mp_degree {mp}",
                )
    _check_sharding(blocks["Distributed"].sharding, pp, problems)


def _check_sharding(sharding: ShardingConfig, pp: int, problems: Problems) -> None:
    if sharding.sharding_degree > 1 and sharding.sharding_stage > 1 and pp > 1:
        problems.add(
            ("Distributed", "sharding", "sharding_stage"),
            f"{sharding.sharding_stage}: Fleet's pipeline (pp_degree {pp}) takes stage 1 only",
        )
    in_stage_2 = sharding.sharding_degree > 1 and sharding.sharding_stage == 2
    for name in ("reduce_overlap", "broadcast_overlap"):
        if getattr(sharding, name) and not in_stage_2:
            problems.warn(
                ("Distributed", "sharding", name), "has no effect: Fleet overlaps in stage 2 only"
            )


def _check_virtual(virtual: int, pp: int, micro_batches: int, problems: Problems) -> None:
    """Check Fleet's conditions for interleaving (PipelineParallelWithInterleave._check_sanity)."""
    key = ("Model", "virtual_pp_degree")
    if pp == 1:
        problems.warn(key, "has no effect: pp_degree is 1")
    elif pp == 2:
        problems.add(key, f"{virtual}: Fleet interleaves from pp_degree 3 on, and it is 2")
    elif micro_batches % pp:
        problems.add(
            key, f"{virtual}: expected micro-batches (now {micro_batches}) in multiples of pp {pp}"
        )
