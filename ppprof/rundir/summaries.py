"""The tables of a window as data: one JSON object, for scripts and for views across ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from ppprof.errors import InputError
from ppprof.paths import read_bounded, store_errors_as_oserror

SCHEMA_VERSION = 1
"""Goes up when a reader of the older form would misread a file."""

_MOST_BYTES = 64 << 20

Row = dict[str, Any]


def document(tables: Mapping[str, pl.DataFrame], **identity: Any) -> dict[str, Any]:
    """Return one window's tables: ``{"schema_version", <identity>, "tables": {view: [row...]}}``.

    Rows are objects whose keys are the columns that `ppprof.analysis.summaries` documents; units
    end the key, and null is null.
    """
    rows = {view: table.rows(named=True) for view, table in tables.items()}
    return {"schema_version": SCHEMA_VERSION, **identity, "tables": rows}


def dumps(value: object) -> str:
    """Return strict JSON: no NaN, and no escapes for characters that UTF-8 has."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1)


def read_document(path: Path) -> tuple[dict[str, Any], dict[str, list[Row]]]:
    """Return the identity in a file of tables, and the rows of each view.

    Raises:
        InputError: missing, not such a file, or of a newer schema.
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
    """Return the error for a file that does not hold a window's tables."""
    return InputError(f"{path}: not the tables of a window: {error!r}")
