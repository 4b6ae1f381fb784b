"""The step of a configuration, put together from the times of its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ppprof.analysis.predict.parts import PARTS, Measured, Part, parts_of
from ppprof.analysis.predict.peak_memory import memory_of
from ppprof.analysis.predict.schedule import Pass, order, simulate
from ppprof.analysis.predict.training_spec import TrainingSpec
from ppprof.arrays import Float64

Row = dict[str, Any]
"""One row of a table; null for what is not known."""
LEAST_ERROR = 0.07
"""What a range is widened by at least: predictions that were checked were off by up to 6.3% (docs/predict.md)."""


def predict(runs: Sequence[Measured], spec: TrainingSpec) -> tuple[Row, list[Row]]:
    """Return the step of a configuration, and its parts.

    ::

        head | passes of all stages, in the order of the schedule | tail | sum of the gradients

    Args:
        runs: one run, or two that differ in micro_batch_size.
        spec: the configuration.

    Returns:
        A row with, in nanoseconds unless the name says otherwise,

        - ranks, micro_batches;
        - step_ns: the likely step, null if the runs do not determine it; low_ns and high_ns: the least
          and most that it can be, widened by the error of the run's own step (how far the
          measured step is from the prediction of the recorded configuration, and the 95% interval
          of that, which one step does not give; for another configuration at least `LEAST_ERROR`);
          high_ns is null if there is no bound;
        - bubble_ns and bubble_ratio: idle time of an average stage, likely;
        - exposed_ns: sum of the gradients, and all-reduces over mp in the passes of a stage, likely;
        - basis: ``measured`` if all parts are, else ``fitted``, ``modelled`` or ``unknown``, whichever
          is the least certain of the parts' bases;

        and rows with part, low_ns, likely_ns, high_ns and basis.
    """
    parts = parts_of(runs, spec)
    base = runs[0]
    step, bubble = _step(spec, parts)
    own = step if spec == base.spec else _step(base.spec, parts_of(runs, base.spec))[0]
    error = abs(base.step_ns / own[1] - 1) + base.error_ratio
    if spec != base.spec:
        error = max(error, LEAST_ERROR)
    passes = 2 * spec.stage_layers() * spec.micro_batches
    exposed = parts["replicas"].time[1] + passes * parts["mp"].time[1]
    used = [name for name in PARTS if parts[name].is_used]
    row = {
        "ranks": spec.world_size,
        "micro_batches": spec.micro_batches,
        "step_ns": _known(step[1]),
        "low_ns": _known(step[0] * max(0, 1 - error)),
        "high_ns": _known(step[2] * (1 + error)),
        "bubble_ns": _known(bubble[1]),
        "bubble_ratio": _known(bubble[1] / step[1]),
        "exposed_ns": _known(exposed),
        "basis": max((parts[name].basis for name in used), key=_BASES.index),
    }
    return row, [
        {
            "part": PARTS[name],
            **dict(zip(("low_ns", "likely_ns", "high_ns"), map(_known, parts[name].time))),
            "basis": parts[name].basis,
        }
        for name in used
    ]


_BASES = ("measured", "fitted", "modelled", "unknown")


def _step(spec: TrainingSpec, parts: Mapping[str, Part]) -> tuple[Float64, Float64]:
    """Return the step and the idle time of an average stage, for each scenario."""
    time = {name: part.time for name, part in parts.items()}
    in_chunk = spec.stage_layers() // spec.virtual
    last = spec.pp - 1, spec.virtual - 1

    def time_of(stage: int, each: Pass) -> Float64:
        kind = "forward" if each.is_forward else "backward"
        total = in_chunk * time[f"layer_{kind}"]
        if (stage, each.chunk) == (0, 0):
            total = total + time[f"first_{kind}"]
        if (stage, each.chunk) == last:
            total = total + time[f"last_{kind}"]
        return np.maximum(total, 0)

    with np.errstate(invalid="ignore"):  # infinity minus infinity: an unknown bubble
        simulated = simulate(
            [order(stage, spec.pp, spec.virtual, spec.micro_batches) for stage in range(spec.pp)],
            time_of,
            time["head"] * spec.samples,
            time["gap"],
            time["transfer"],
        )
    return simulated.span + time["tail"] + time["replicas"], simulated.idle


def memory(spec: TrainingSpec) -> list[Row]:
    """Return the memory of a rank of each stage: stage, state_bytes, activation_bytes and total_bytes.

    Modelled; ``moment`` is when the total is held. No rows with mixed precision of level O1, and with
    sharding stage 3, which gathers weights before it needs them.
    """
    if not spec.is_memory_known:
        return []
    rows = []
    for stage in range(spec.pp):
        held = memory_of(spec, stage)
        rows.append(
            {
                "stage": stage,
                "state_bytes": held.state_bytes,
                "activation_bytes": held.moments[held.moment],
                "total_bytes": held.total_bytes,
                "moment": held.moment,
            }
        )
    return rows


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
