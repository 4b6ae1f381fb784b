"""The tables of one window as data: one JSON object, for scripts and for tables across ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppprof.errors import InputError
from ppprof.paths import read_bounded, store_errors_as_oserror

if TYPE_CHECKING:
    import polars as pl

SCHEMA_VERSION = 1
"""Version of a file. It increases when older readers would misread the file."""

_MOST_BYTES = 64 << 20

Row = dict[str, Any]


def document(rows: Mapping[str, Sequence[Mapping[str, Any]]], **identity: Any) -> dict[str, Any]:
    """Return tables as data: ``{"schema_version", <identity>, "tables": {view: [row...]}}``.

    A row is an object keyed by column, as `ppprof.analysis.summaries` documents the columns. Units
    end the key: ``cpu_total_ns``. Null stays null.

    Args:
        rows: the rows of the tables, keyed by view.
        identity: values that identify the tables, such as ``rank=0, window=2``; keys of the result.
    """
    return {"schema_version": SCHEMA_VERSION, **identity, "tables": rows}


def rows_of(tables: Mapping[str, pl.DataFrame]) -> dict[str, list[Row]]:
    """Return the rows of tables, keyed by view; a row is keyed by column."""
    return {view: table.rows(named=True) for view, table in tables.items()}


def dumps(value: object) -> str:
    """Return ``value`` as strict JSON text, indented, with non-ASCII characters unescaped.

    Raises:
        ValueError: the value contains NaN or an infinite number, which strict JSON cannot hold.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1)


def read_document(path: Path) -> tuple[dict[str, Any], dict[str, list[Row]]]:
    """Return the identity and the rows of a file with tables, as `document` combined them.

    Returns:
        The identity, such as ``{"rank": 0, "window": 2}``, and the rows, keyed by view.

    Raises:
        InputError: the file is missing, unreadable or too large, has no such tables, or has a newer
            schema than `SCHEMA_VERSION`.
    """
    try:
        with store_errors_as_oserror(path):
            identity = json.loads(read_bounded(path, _MOST_BYTES))
        version = identity.pop("schema_version")
        rows = identity.pop("tables")
        is_valid = isinstance(version, int) and isinstance(rows, dict)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise not_a_document(path, error) from error
    if not is_valid:
        raise not_a_document(path, TypeError("schema_version or tables of an unexpected type"))
    if version > SCHEMA_VERSION:
        raise InputError(
            f"{path}: schema {version} is newer than this ppprof reads ({SCHEMA_VERSION}); "
            "update it"
        )
    return identity, rows


def not_a_document(path: Path, error: Exception) -> InputError:
    """Return the error for a file without the tables of a window.

    Args:
        path: the file.
        error: the reason.
    """
    return InputError(f"{path}: not the tables of a window: {error!r}")
