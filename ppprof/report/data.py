"""The summaries as data: one JSON object a window, for scripts and for views over many ranks."""

from __future__ import annotations

import json
from typing import Any

from ppprof.analysis.profile import Profile
from ppprof.analysis.summary import VIEWS, summarize

SCHEMA_VERSION = 1
"""Goes up when a reader of the older form would misread a file."""


def to_json(profile: Profile, **identity: Any) -> str:
    """All nine views as strict JSON: ``{"schema_version", <identity>, "tables": {view: [row...]}}``.

    Rows are objects whose keys are the columns that the functions of `ppprof.analysis` document;
    units end the key, and null is null.
    """
    tables = {view: summarize(profile, view).rows(named=True) for view in VIEWS}
    document = {"schema_version": SCHEMA_VERSION, **identity, "tables": tables}
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1)
