"""Step times that a run has left: ``steps/rank_*.jsonl``, read back as one table."""

from __future__ import annotations

import io
import json
from typing import Any

import polars as pl

from ppprof.errors import InputError
from ppprof.paths import PathLike, reject_special_files, store_errors_as_oserror
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
}
"""`ppprof.capture.steps.StepRecord` says what they mean; nulls where a line does not tell."""

_MOST_BYTES = 4 << 20
"""Read of a file, from its end: some 16,000 steps, which tell as much as all of them."""
_MOST_LINES = 16_000
"""Read one by one, where they cannot be read at once."""


def read_step_times(run: PathLike) -> pl.DataFrame:
    """The latest steps of all ranks of a run directory.

    Returns:
        Columns of `STEP_TIMES`, by rank, then step; no rows where nothing was left. A line that is
        cut off is left out.

    Raises:
        InputError: a file is there and cannot be read.
    """
    parts = [pl.DataFrame(schema=STEP_TIMES)]
    for rank, path in jsonl_files(run, "steps"):
        try:
            with store_errors_as_oserror(path):
                reject_special_files(path)
                file = path.open("rb")
            with file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _MOST_BYTES))
                text = file.read()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from error
        parts.append(_table(text, is_whole=size <= _MOST_BYTES).with_columns(rank=rank))
    columns = [pl.col(name).cast(dtype) for name, dtype in STEP_TIMES.items()]
    return pl.concat([part.select(columns) for part in parts]).sort("rank", "step")


def _table(text: bytes, *, is_whole: bool) -> pl.DataFrame:
    lines = text.split(b"\n")
    # A line of ours ends in a newline: what is behind the last one was cut off.
    whole = lines[0 if is_whole else 1 : -1]
    schema = {name: dtype for name, dtype in STEP_TIMES.items() if name != "rank"}
    sound = [line for line in whole if line.startswith(b"{") and line.endswith(b"}")]
    if not sound:
        return pl.DataFrame(schema=STEP_TIMES)
    try:
        table = pl.read_ndjson(io.BytesIO(b"\n".join(sound)), schema=schema)
    except pl.exceptions.PolarsError:  # one line is enough
        table = pl.DataFrame([row for row in map(_row, sound[-_MOST_LINES:]) if row], schema)
    return table.drop_nulls(["step", "batch_cost_ns"]).with_columns(rank=pl.lit(0, pl.Int64))


def _row(line: bytes) -> dict[str, Any] | None:
    """A line by itself; None where it is none of ours."""
    try:
        row = json.loads(line)
        plain = {name: row.get(name) for name in STEP_TIMES if name != "rank"}
        pl.DataFrame([plain], {name: dtype for name, dtype in STEP_TIMES.items() if name in plain})
    except (ValueError, TypeError, AttributeError, RecursionError, pl.exceptions.PolarsError):
        return None
    return plain
