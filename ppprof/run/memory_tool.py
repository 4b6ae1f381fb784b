"""The memory model of `ppprof predict` for Paddle's auto-tuner, which asks a program for each configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ppprof.analysis.predict.prediction import memory
from ppprof.errors import InputError
from ppprof.run.predict import spec_in
from ppprof.run.run import Run, open
from ppprof.rundir import name_of

_PROGRAM = '''"""Memory of a configuration in MiB: memory_estimation_tool of Paddle's auto-tuner."""

import sys

from ppprof.errors import InputError
from ppprof.run.memory_tool import estimated_mib

try:
    print(estimated_mib({path!r}, sys.argv[1:]))
except InputError as error:  # another exit code than 0 would end the tuning
    print(error, file=sys.stderr)
    print(0)
'''
_FIELDS = {
    **{"dp_degree": "dp", "mp_degree": "mp", "pp_degree": "pp", "vpp_degree": "virtual"},
    **{"sharding_degree": "sharding", "sharding_stage": "sharding_stage"},
    **{"micro_batch_size": "micro_batch_size", "hidden_size": "hidden"},
    **{"intermediate_size": "inner", "num_attention_heads": "heads", "num_layers": "layers"},
    **{"vocab_size": "vocabulary", "max_sequence_length": "length"},
}
"""Options of the auto-tuner -> the number in a spec."""


def memory_tool(run: Run) -> str:
    """Return a program that prints `estimated_mib` of a run for its arguments.

    Raises:
        InputError: the program would know the memory of no configuration.
    """
    if spec_in(run).word_bytes is None:
        raise InputError(f"{run}: the memory of mixed precision is known for level O2 only")
    return _PROGRAM.format(path=str(name_of(run.path.resolve())))


def estimated_mib(path: str, arguments: Sequence[str]) -> float:
    """Return the memory of a rank of the stage with most, in MiB.

    Args:
        path: a run directory. Its config counts for what the arguments do not say, and the samples of its
            steps over all ranks stay.
        arguments: as the auto-tuner passes them: ``--dp_degree 2 --use_recompute False ...``.

    Raises:
        InputError: the run has no config of a GPT, the degrees do not divide its blocks, heads or samples,
            or the memory of the configuration is not known.
    """
    given = {key[2:]: value for key, value in zip(arguments[::2], arguments[1::2])}
    old = spec_in(open(path))
    changes: dict[str, Any] = {
        name: int(given[key]) for key, name in _FIELDS.items() if key in given
    }
    if given.get("use_recompute", "None") != "None":  # None if the tuner leaves it as it is
        granularity = given.get("recompute_granularity", "None")
        granularity = granularity.replace("None", old.recompute or "full")
        changes["recompute"] = granularity if given["use_recompute"] == "True" else ""
    spec = replace(old, **changes)
    samples, once = old.samples * old.replicas, spec.replicas * spec.micro_batch_size
    if samples % once or spec.layers % (spec.pp * spec.virtual) or spec.heads % spec.mp:
        raise InputError(
            f"{' '.join(arguments)}: expected degrees that divide {samples} samples, {spec.layers} blocks "
            f"and {spec.heads} heads"
        )
    rows = memory(replace(spec, micro_batches=samples // once))
    if not rows:
        raise InputError(
            f"{' '.join(arguments)}: the memory of mixed precision O1 and of sharding stage 3 is not known"
        )
    return max(float(row["total_bytes"]) for row in rows) / 2**20
