"""Read the step times of all ranks, ``steps/rank_*.jsonl``, as one table."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import polars as pl

from ppprof.errors import InputError
from ppprof.paths import PathLike, to_path
from ppprof.rundir import jsonl_files, nodes

STEP_TIMES = {
    "rank": pl.Int64,
    "step": pl.Int64,
    "batch_cost_ns": pl.Int64,
    "reader_cost_ns": pl.Int64,
    "num_samples": pl.Int64,
    "num_tokens": pl.Int64,
    "device_peak_bytes": pl.Int64,
    "host_peak_bytes": pl.Int64,
    "excluded": pl.Boolean,
    "stall_ns": pl.Int64,
    "window": pl.Int64,
    "device_timed": pl.Boolean,
    "device_peak_reserved_bytes": pl.Int64,
    "device_total_bytes": pl.Int64,
    "processor_wait_ns": pl.Int64,
    "processors_busy_ratio": pl.Float64,
    "processors_own_ratio": pl.Float64,
    "communication_ns": pl.Int64,
    "host_peak_allocated_bytes": pl.Int64,
    "paused_ns": pl.Int64,
    "paused_for": pl.String,
    "started_workers": pl.Int64,
    "starting_ns": pl.Int64,
    "num_collections": pl.Int64,
    "slow_line": pl.String,
    "slow_inner_line": pl.String,
    "slow_line_ns": pl.Int64,
    "others_ratio": pl.Float64,
    "num_before": pl.Int64,
}
"""Columns and their types; a value that is missing in a line is null.

``rank`` comes from the file name, ``others_ratio`` from `_with_others`, ``num_before`` from `_table`.
`ppprof.capture.steps.step_log.StepRecord` says what each other column means."""
_ADDED = ("rank", "others_ratio", "num_before")
_READ = {name: dtype for name, dtype in STEP_TIMES.items() if name not in _ADDED}

_LARGEST = 2**53
"""Largest time (104 days), size (9 PB) and count: larger values, and negative ones, are read as null."""
_MOST_BYTES = 7 << 20
"""Most bytes to read, from the end of a file: about 11,000 steps, enough for all statistics."""
_MOST_LINES = 16_000
"""Most lines to parse one by one, if Polars cannot parse them together."""


def read_step_times(run: PathLike, only_rank: int | None = None) -> pl.DataFrame:
    """Return the latest steps of a run directory: about 11,000 steps for each rank.

    Args:
        run: the run directory.
        only_rank: the rank to read; None for all ranks.

    Returns:
        One row per (rank, step), sorted by rank, then step, with the columns of `STEP_TIMES`; no
        rows if there are no files. Truncated and invalid lines are skipped. ``others_ratio`` is the
        share of all processors' time that processes outside the job took, 0 to 1: the busy
        processors of a rank's host without the use of its ranks. It is null if that of a rank of
        the host is unknown. The two ratios that were read are those of the next step with a value.
        ``num_before`` is the number of the training's steps before the step, which is less than its number
        in a training that was resumed. Of a file whose first steps are not read, it is the number.

    Raises:
        InputError: a file exists but is unreadable.
    """
    parts = [pl.DataFrame(schema=STEP_TIMES)]
    for rank, file in jsonl_files(run, "steps"):
        if only_rank not in (None, rank):
            continue
        try:
            text, is_whole = file.read_end(_MOST_BYTES)
        except OSError as error:
            raise InputError(f"{file}: {error.strerror or error}") from error
        parts.append(_table(text, is_whole=is_whole).with_columns(rank=rank))
    columns = [pl.col(name).cast(dtype) for name, dtype in STEP_TIMES.items()]
    times = pl.concat([part.select(columns) for part in parts]).sort("rank", "step")
    return _with_others(times, nodes(to_path(run)))


def _with_others(times: pl.DataFrame, hosts: Mapping[int, str]) -> pl.DataFrame:
    """Return the step times with others_ratio, and with the ratios of all steps up to their reading."""
    ratios = ["processors_busy_ratio", "processors_own_ratio"]
    if times["processors_busy_ratio"].null_count() == times.height:
        return times
    hosts_of_ranks = pl.DataFrame(
        {"rank": hosts.keys(), "host": hosts.values()}, {"rank": pl.Int64, "host": pl.String}
    )
    hosts_of_ranks = hosts_of_ranks.with_columns(num_ranks=pl.len().over("host"))
    own = pl.col("processors_own_ratio")
    others = pl.col("processors_busy_ratio") - own.sum().over("host", "step")
    is_known = own.count().over("host", "step") == pl.col("num_ranks")
    return (
        times.with_columns(pl.col(ratios).backward_fill().over("rank"))
        .join(hosts_of_ranks, "rank", "left", maintain_order="left")
        .with_columns(others_ratio=pl.when(is_known).then(others.clip(0)))
        .select(*STEP_TIMES)
    )


def _table(text: bytes, *, is_whole: bool) -> pl.DataFrame:
    lines = text.split(b"\n")
    # Every line ends in a newline, so text after the last one is a truncated line.
    complete = lines[0 if is_whole else 1 : -1]
    objects = [line for line in complete if line.startswith(b"{") and line.endswith(b"}")]
    if not objects:
        return pl.DataFrame(schema=STEP_TIMES)
    try:
        table = pl.read_ndjson(io.BytesIO(b"\n".join(objects)), schema=_READ)
    except pl.exceptions.PolarsError:  # a single invalid line causes it
        table = pl.DataFrame([row for row in map(_row, objects[-_MOST_LINES:]) if row], _READ)
    whole = [name for name, dtype in _READ.items() if dtype == pl.Int64]
    table = table.with_columns(
        pl.when(pl.col(name).is_between(0, _LARGEST)).then(name).alias(name) for name in whole
    )
    first_step = pl.col("step").min() if is_whole else 0
    return table.drop_nulls(["step", "batch_cost_ns"]).with_columns(
        rank=pl.lit(0, pl.Int64),
        others_ratio=pl.lit(None, pl.Float64),
        num_before=pl.col("step") - first_step,
    )


def _row(line: bytes) -> dict[str, Any] | None:
    """Return the values of one line, keyed by column of `STEP_TIMES`; None for an invalid line."""
    try:
        fields = json.loads(line)
        row = {name: fields.get(name) for name in _READ}
        pl.DataFrame([row], _READ)
    except (ValueError, TypeError, AttributeError, RecursionError, pl.exceptions.PolarsError):
        return None
    return row
