"""The summaries as data: one JSON object a window, for scripts and for views over many ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from ppprof.analysis.profile.profile import Profile, SummaryOptions
from ppprof.analysis.summaries.views import VIEWS, summarize
from ppprof.errors import InputError
from ppprof.paths import read_bounded, store_errors_as_oserror
from ppprof.trace.schema import EVENTS, KERNELS, MEMORY, MEMSETS, Trace, empty

SCHEMA_VERSION = 1
"""Goes up when a reader of the older form would misread a file."""

_MOST_BYTES = 64 << 20

_MALFORMED = (
    *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
    pl.exceptions.PolarsError,
)


def to_json(profile: Profile, **identity: Any) -> str:
    """All nine views of a window, as `document` has them, as strict JSON."""
    return dumps(document({view: summarize(profile, view) for view in VIEWS}, **identity))


def document(tables: Mapping[str, pl.DataFrame], **identity: Any) -> dict[str, Any]:
    """One window's tables: ``{"schema_version", <identity>, "tables": {view: [row...]}}``.

    Rows are objects whose keys are the columns that the functions of `ppprof.analysis` document;
    units end the key, and null is null.
    """
    rows = {view: table.rows(named=True) for view, table in tables.items()}
    return {"schema_version": SCHEMA_VERSION, **identity, "tables": rows}


def dumps(value: object) -> str:
    """As strict JSON: no NaN, no escapes for what UTF-8 can hold."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1)


def read_document(path: Path) -> tuple[dict[str, Any], dict[str, pl.DataFrame]]:
    """What `to_json` wrote: the identity, and the nine tables with the dtypes they had.

    Raises:
        InputError: missing, not such a file, or of a newer schema.
    """
    try:
        with store_errors_as_oserror(path):
            identity = json.loads(read_bounded(path, _MOST_BYTES))
        version = identity.pop("schema_version")
        rows = identity.pop("tables")
        if version > SCHEMA_VERSION:
            raise InputError(
                f"{path}: schema {version} is newer than this ppprof reads ({SCHEMA_VERSION}); "
                "update it"
            )
        by_thread = any("thread" in row for row in rows["udf"])
        like = Profile(
            Trace(empty(EVENTS), empty(MEMORY), empty(KERNELS), empty(MEMSETS)),
            SummaryOptions(thread_sep=by_thread),
        )
        tables = {
            view: pl.DataFrame(rows[view], summarize(like, view).schema, orient="row")
            for view in VIEWS
        }
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except _MALFORMED as error:
        raise InputError(f"{path}: not the tables of a window: {error!r}") from error
    return identity, tables
