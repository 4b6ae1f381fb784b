"""Other configurations of a recorded training: the library behind ``ppprof predict``."""

from __future__ import annotations

import csv
import io
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import polars as pl

from ppprof.analysis.predict.parts import Measured, measure
from ppprof.analysis.predict.prediction import Row, memory, predict
from ppprof.analysis.predict.training_spec import TrainingSpec
from ppprof.config import Config, load_config
from ppprof.config.yaml_source import ConfigTree
from ppprof.errors import ConfigError, InputError, UsageError
from ppprof.run.base import BaseRun
from ppprof.run.run import Run

log = logging.getLogger("ppprof")

CHANGEABLE = (
    *("Global.micro_batch_size", "Global.local_batch_size", "Global.global_batch_size"),
    *("Model.virtual_pp_degree", "Model.use_recompute", "Model.recompute_granularity"),
    *("Distributed.dp_degree", "Distributed.mp_degree", "Distributed.pp_degree"),
    *("Distributed.sharding.sharding_degree", "Distributed.sharding.sharding_stage"),
)
"""Keys that a configuration may change."""
_TUNED = (
    *("dp_degree", "mp_degree", "pp_degree", "vpp_degree", "micro_batch_size"),
    *("sharding_degree", "sharding_stage", "use_recompute", "recompute_granularity"),
)
"""Columns of Paddle's ``configs_csv``."""
_METRICS: Mapping[str, Callable[[float, int], float]] = {
    "batch_cost": lambda value, samples: value,
    "ips": lambda value, samples: samples / value,
    "step/s": lambda value, samples: 1 / value,
}
"""Metrics of a tuner -> seconds of a step, from the metric and the samples of a step over all ranks."""
_MOST_WAIT_RATIO = 0.1
_MOST_CANDIDATES = 2_000
_MOST_PASSES = 200_000
_BEST = 10


class Base(NamedTuple):
    """One or two recorded runs, and the config of the first."""

    runs: Sequence[Measured]
    config: Mapping[str, Any]
    path: str

    def load(self, overrides: Iterable[str] = (), world_size: int | None = None) -> Config:
        """Return the config with overrides, checked as the harness checks it.

        Raises:
            ConfigError: the harness refuses the configuration.
            UsageError: an override has a key that is not in `CHANGEABLE`.
        """
        overrides = list(overrides)
        for text in overrides:
            key = text.partition("=")[0].strip()
            if key not in CHANGEABLE:
                raise UsageError(
                    f"-o {text}: its effect is not known from a run; expected one of "
                    f"{', '.join(CHANGEABLE)}"
                )
        config = {name: block for name, block in self.config.items() if name != "Profiler"}
        tree = ConfigTree(deepcopy(config), path=self.path)  # the ranks to record are of the run
        # A blank dp_degree was what the processes of the run left over.
        dp = f"Distributed.dp_degree={self.runs[0].spec.dp}"
        return load_config(tree, [dp, *overrides], world_size)


def base_of(runs: Sequence[Run], measured: Sequence[Measured]) -> Base:
    """Return the base of predictions.

    Raises:
        InputError: two runs differ in more than micro_batch_size and the batch, or in nothing of it.
    """
    if len(measured) == 2:
        first, second = (
            {
                **vars(each.spec),
                "micro_batch_size": None,
                "micro_batches": None,
            }
            for each in measured
        )
        if different := [name for name in first if first[name] != second[name]]:
            raise InputError(
                f"{runs[1]}: it differs from {runs[0]} in {', '.join(different)}; expected a run that "
                "differs in micro_batch_size alone"
            )
        if measured[0].spec.micro_batch_size == measured[1].spec.micro_batch_size:
            raise InputError(
                f"{runs[1]}: it has the micro_batch_size of {runs[0]}; a second run is of use with another"
            )
    return Base(measured, runs[0].manifest["config"], str(runs[0]))


def spec_in(run: BaseRun) -> TrainingSpec:
    """Return the configuration of a run.

    Raises:
        InputError: the run's manifest has no valid config of a GPT, or of another job.
    """
    values = run.manifest.get("config")
    if not isinstance(values, Mapping) or not {"Model", "Distributed"} <= values.keys():
        raise InputError(
            f"{run}: its manifest has no config with the blocks Model and Distributed; expected a run "
            "of tools/train.py, or of a training that gives ppprof.attach its config"
        )
    topology = run.topology
    world_size = None if topology is None else topology.world_size
    try:
        config = load_config(ConfigTree(deepcopy(dict(values)), path=str(run)), (), world_size)
    except ConfigError as error:
        raise InputError(f"{run}: the config in its manifest is not valid: {error}") from error
    degrees = [
        dict(zip(each.order, each.degrees))
        for each in (config.topology, topology or config.topology)
    ]
    if degrees[0] != degrees[1]:
        raise InputError(
            f"{run}: its config has the degrees {degrees[0]}, but its ranks trained with {degrees[1]}"
        )
    if config.Model.module != "GPTModule":
        raise InputError(f"{run}: {config.Model.module}: only the parts of a GPTModule are known")
    if config.topology.degree("sep") > 1:
        raise InputError(f"{run}: sep_degree {config.topology.degree('sep')}: expected 1")
    return spec_of(config)


def measured_of(run: Run, **selection: Any) -> Measured:
    """Return the parts of a run's steps; ``selection`` is passed to `Run.cluster`.

    Raises:
        InputError: the run's manifest has no valid config of a GPT, its pipeline has one stage, or no
            step of it can be replayed.
    """
    spec = spec_in(run)
    if spec.pp == 1:
        raise InputError(
            f"{run}: it has one pipeline stage, so blocks and the rest are one pass; "
            "expected a run with pp_degree 2 or more"
        )
    recorded = run.step_times.filter(pl.col("window").is_not_null())
    wait_ratio = (recorded["processor_wait_ns"] / recorded["batch_cost_ns"]).median()
    if isinstance(wait_ratio, float) and wait_ratio > _MOST_WAIT_RATIO:
        log.warning(
            f"{run}: its ranks waited for a processor for {wait_ratio:.0%} of the recorded steps, and "
            "predictions contain that; record it while no other programs run"
        )
    measured = measure(run.cluster(**selection), spec)
    if measured is None:
        raise InputError(
            f"{run}: no step with all passes of a replica on all of its stages; expected a window on all ranks"
        )
    return measured


def spec_of(config: Config) -> TrainingSpec:
    """Return a configuration in numbers.

    Raises:
        UsageError: the parts of the model are not known with its recompute_granularity.
    """
    model, topology = config.Model, config.topology
    if model.use_recompute and model.no_recompute_layers:
        raise UsageError(
            "Model.no_recompute_layers: the parts of a step are known for equal blocks only"
        )
    is_on_cpu, mix = config.Global.device == "cpu", config.Engine.mix_precision
    is_mixed = (mix.enable or mix.use_pure_fp16) and not is_on_cpu  # without effect there
    pp = topology.degree("pp")
    return TrainingSpec(
        dp=topology.degree("dp"),
        mp=topology.degree("mp"),
        pp=pp,
        sharding=topology.degree("sharding"),
        sharding_stage=config.Distributed.sharding.sharding_stage,
        virtual=model.virtual_pp_degree if pp > 1 else 1,
        micro_batch_size=config.Global.micro_batch_size or 1,
        micro_batches=config.Engine.accumulate_steps or 1,
        layers=model.num_layers,
        hidden=model.hidden_size,
        inner=model.ffn_hidden_size or 4 * model.hidden_size,
        heads=model.num_attention_heads,
        vocabulary=model.vocab_size,
        positions=model.max_position_embeddings,
        length=config.Data.Train.dataset.max_seq_len,
        recompute=(model.recompute_granularity or "full") if model.use_recompute else "",
        sequence_parallel=model.sequence_parallel,
        fused_qkv=model.fuse_attn_qkv,
        word_bytes=4 if not is_mixed else 2 if mix.level == "O2" else None,
        flash_attention=is_mixed,
        hidden_dropout=model.hidden_dropout_prob > 0,
        attention_dropout=model.attention_probs_dropout_prob > 0,
        clips=config.Optimizer.grad_clip is not None,
    )


def prediction(base: Base, overrides: Sequence[str]) -> dict[str, list[Row]]:
    """Return the tables of one configuration: steps, parts and memory.

    ``steps`` has a row for each run, with measured_ns and error_ratio, and one for the new
    configuration if there are overrides; `predict` says what they hold.
    """
    steps = []
    for run in base.runs:
        row, parts = predict(base.runs, run.spec)
        row["error_ratio"] = row["step_ns"] / run.step_ns - 1
        name = f"as recorded, micro_batch_size {run.spec.micro_batch_size}"
        steps.append(_step_row(name, row, run.spec, run.step_ns))
    spec = base.runs[0].spec
    if overrides:
        spec = spec_of(base.load(overrides))
        row, parts = predict(base.runs, spec)
        steps.append(_step_row(" ".join(overrides), row, spec))
    else:
        parts = predict(base.runs, spec)[1]
    return {"steps": steps, "parts": parts, "memory": memory(spec)}


def _step_row(name: str, row: Row, spec: TrainingSpec, measured_ns: float | None = None) -> Row:
    most = max((each["total_bytes"] for each in memory(spec)), default=None)
    error = row.pop("error_ratio", None)
    return {
        "configuration": name,
        "measured_ns": measured_ns,
        "error_ratio": error,
        **row,
        "memory_bytes": most,
    }


def search(base: Base, world_size: int, memory_bytes: float | None) -> dict[str, list[Row]]:
    """Return the configurations of a world size with the shortest steps, at most 10: ``search``.

    The samples of a step over all ranks stay. Tried are all divisors of the degrees, with
    sharding stage 1, all micro-batch sizes, chunks that divide the blocks of a stage, and recompute
    as recorded; without those that the harness refuses, that need more memory, or whose step has
    neither a likely time nor an upper bound.

    Raises:
        InputError: no configuration is left.
        UsageError: a memory is given, and the memory of mixed precision is not known.
    """
    old = base.runs[0].spec
    if memory_bytes is not None and old.word_bytes is None:
        raise UsageError("--memory: the memory of mixed precision is known for level O2 only")
    rows: list[Row] = []
    candidates = list(itertools.islice(_candidates(old, world_size), _MOST_CANDIDATES + 1))
    if len(candidates) > _MOST_CANDIDATES:
        log.warning(
            f"{base.path}: {world_size} ranks have more than {_MOST_CANDIDATES} configurations: those with "
            "most pipeline stages are not tried"
        )
    for settings in candidates[:_MOST_CANDIDATES]:
        try:
            spec = spec_of(base.load(_overrides(settings), world_size))
        except ConfigError:
            continue
        if spec.pp * spec.virtual * spec.micro_batches > _MOST_PASSES:
            continue
        row, _ = predict(base.runs, spec)
        row = {**_step_row(_name(old, spec), row, spec), **_degrees(spec)}
        fits = memory_bytes is None or row["memory_bytes"] <= memory_bytes
        if fits and (row["step_ns"] or row["high_ns"]):
            rows.append(row)
    if not rows:
        raise InputError(
            f"{base.path}: no configuration of {world_size} ranks that tools/train.py takes, that fits, and "
            "whose step is known; a run with mp_degree above 1, or a second run, has more of it"
        )
    rows.sort(key=lambda row: row["step_ns"] or row["high_ns"])
    return {"search": rows[:_BEST]}


def history(base: Base, text: str) -> dict[str, list[Row]]:
    """Return what Paddle's auto-tuner measured beside the prediction of it: ``history``.

    Args:
        base: the recorded runs.
        text: ``*_history.csv`` of the tuner; its metric is one of `_METRICS`, as the harness logs them.

    Returns:
        A row for each configuration, in the order of the file, as in `prediction`; measured_ns and
        error_ratio are null for a configuration that did not train. Rows that the harness refuses
        are skipped with a warning.

    Raises:
        InputError: the text has no rows, or lacks a column.
    """
    try:
        lines = list(csv.DictReader(io.StringIO(text), restval=""))
    except csv.Error as error:
        raise InputError(f"not a history of Paddle's auto-tuner: {error}") from error
    columns = set(lines[0]) if lines else set()
    metric = next((name for name in _METRICS if name in columns), None)
    if metric is None or not {*_TUNED, "global_batch_size"} <= columns:
        raise InputError(
            "not a history of Paddle's auto-tuner: expected rows with global_batch_size, "
            f"{', '.join(_TUNED)} and one of {', '.join(_METRICS)}"
        )
    rows = []
    for number, line in enumerate(lines, start=2):
        try:
            spec = _tuned(base, line)
            value = float(line[metric] or "nan")
        except (ConfigError, UsageError, ValueError, ArithmeticError) as error:
            log.warning(f"line {number} of the history: skipped: {error}")
            continue
        row, _ = predict(base.runs, spec)
        measured_ns = None
        if 0 < value < math.inf:
            measured_ns = 1e9 * _METRICS[metric](value, spec.samples * spec.replicas)
        if measured_ns and row["step_ns"]:
            row["error_ratio"] = row["step_ns"] / measured_ns - 1
        rows.append(_step_row(_name(base.runs[0].spec, spec), row, spec, measured_ns))
    return {"history": rows}


def _tuned(base: Base, line: Mapping[str, str]) -> TrainingSpec:
    """Return the configuration of a row of the tuner; pandas writes whole numbers beside blanks as ``2.0``."""
    size = {name: int(float(line[name])) for name in _TUNED[:7]}
    samples = int(float(line["global_batch_size"]))
    settings: dict[str, int | str] = {
        "Distributed.dp_degree": size["dp_degree"],
        "Distributed.mp_degree": size["mp_degree"],
        "Distributed.pp_degree": size["pp_degree"],
        "Distributed.sharding.sharding_degree": size["sharding_degree"],
        "Distributed.sharding.sharding_stage": size["sharding_stage"],
        "Model.virtual_pp_degree": size["vpp_degree"],
        "Global.global_batch_size": samples,
        "Global.local_batch_size": samples // (size["dp_degree"] * size["sharding_degree"]),
        "Global.micro_batch_size": size["micro_batch_size"],
    }
    if line["use_recompute"]:  # blank if the tuner left it as it was
        settings["Model.use_recompute"] = line["use_recompute"].lower() == "true"
    if line["recompute_granularity"]:
        settings["Model.recompute_granularity"] = line["recompute_granularity"]
    ranks = math.prod(size[f"{axis}_degree"] for axis in ("dp", "mp", "pp", "sharding"))
    return spec_of(base.load(_overrides(settings), ranks))


def _candidates(old: TrainingSpec, world_size: int) -> Iterator[dict[str, int]]:
    samples = old.samples * old.replicas
    for pp in _divisors(world_size):
        for mp in _divisors(world_size // pp):
            replicas = world_size // pp // mp
            if old.layers % pp or samples % replicas:
                continue
            for sharding in _divisors(replicas):
                for micro in _divisors(samples // replicas):
                    for virtual in _divisors(old.layers // pp) if pp > 2 else [1]:
                        yield _settings(
                            replace(
                                old,
                                dp=replicas // sharding,
                                mp=mp,
                                pp=pp,
                                sharding=sharding,
                                sharding_stage=1,
                                virtual=virtual,
                                micro_batch_size=micro,
                                micro_batches=samples // replicas // micro,
                            )
                        )


def _settings(spec: TrainingSpec) -> dict[str, int]:
    return {
        "Distributed.dp_degree": spec.dp,
        "Distributed.mp_degree": spec.mp,
        "Distributed.pp_degree": spec.pp,
        "Distributed.sharding.sharding_degree": spec.sharding,
        "Distributed.sharding.sharding_stage": spec.sharding_stage,
        "Model.virtual_pp_degree": spec.virtual,
        "Global.global_batch_size": spec.samples * spec.replicas,
        "Global.local_batch_size": spec.samples,
        "Global.micro_batch_size": spec.micro_batch_size,
    }


def _name(old: TrainingSpec, spec: TrainingSpec) -> str:
    """Return what a configuration changes, but for the batch."""
    recorded, settings = ({**_settings(each), **_recompute(each)} for each in (old, spec))
    changes = {key: value for key, value in settings.items() if value != recorded[key]}
    changes.pop("Global.global_batch_size", None)
    return " ".join(_overrides(changes)) or "as recorded"


def _recompute(spec: TrainingSpec) -> dict[str, Any]:
    return {
        "Model.use_recompute": bool(spec.recompute),
        "Model.recompute_granularity": spec.recompute or None,
    }


def _overrides(settings: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in settings.items()]


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _degrees(spec: TrainingSpec) -> Row:
    values = (
        *(spec.dp, spec.mp, spec.pp, spec.virtual, spec.micro_batch_size),
        *(spec.sharding, spec.sharding_stage, bool(spec.recompute)),
        spec.recompute or None,
    )
    return dict(zip(_TUNED, values))


def tuner_csv(rows: Sequence[Row]) -> str:
    """Return rows of `search` as ``configs_csv`` of Paddle's auto-tuner (``search_algo: customize``)."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _TUNED, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
