"""Read the step times of all ranks, ``steps/rank_*.jsonl``, as one table."""

from __future__ import annotations

import io
import json
from typing import Any

import polars as pl

from ppprof.errors import InputError
from ppprof.paths import PathLike
from ppprof.rundir import jsonl_files

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
    "window": pl.Int64,
    "device_timed": pl.Boolean,
    "device_peak_reserved_bytes": pl.Int64,
    "device_total_bytes": pl.Int64,
}
"""Columns and their types; a value that is missing in a line is null.

``rank`` comes from the file name. `ppprof.capture.steps.step_log.StepRecord` says what each other
column means."""

_MOST_BYTES = 6 << 20
"""Most bytes to read, from the end of a file: about 16,000 steps, enough for all statistics."""
_MOST_LINES = 16_000
"""Most lines to parse one by one, if Polars cannot parse them together."""


def read_step_times(run: PathLike, only_rank: int | None = None) -> pl.DataFrame:
    """Return the latest steps of a run directory: about 16,000 steps for each rank.

    Args:
        run: the run directory.
        only_rank: the rank to read; None for all ranks.

    Returns:
        One row per (rank, step), sorted by rank, then step, with the columns of `STEP_TIMES`; no
        rows if there are no files. Truncated and invalid lines are skipped.

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
    return pl.concat([part.select(columns) for part in parts]).sort("rank", "step")


def _table(text: bytes, *, is_whole: bool) -> pl.DataFrame:
    lines = text.split(b"\n")
    # Every line ends in a newline, so text after the last one is a truncated line.
    complete = lines[0 if is_whole else 1 : -1]
    schema = {name: dtype for name, dtype in STEP_TIMES.items() if name != "rank"}
    objects = [line for line in complete if line.startswith(b"{") and line.endswith(b"}")]
    if not objects:
        return pl.DataFrame(schema=STEP_TIMES)
    try:
        table = pl.read_ndjson(io.BytesIO(b"\n".join(objects)), schema=schema)
    except pl.exceptions.PolarsError:  # a single invalid line causes it
        table = pl.DataFrame([row for row in map(_row, objects[-_MOST_LINES:]) if row], schema)
    return table.drop_nulls(["step", "batch_cost_ns"]).with_columns(rank=pl.lit(0, pl.Int64))


def _row(line: bytes) -> dict[str, Any] | None:
    """Return the values of one line, keyed by column of `STEP_TIMES`; None for an invalid line."""
    try:
        fields = json.loads(line)
        row = {name: fields.get(name) for name in STEP_TIMES if name != "rank"}
        pl.DataFrame([row], {name: dtype for name, dtype in STEP_TIMES.items() if name in row})
    except (ValueError, TypeError, AttributeError, RecursionError, pl.exceptions.PolarsError):
        return None
    return row
