"""The result of one check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OK, WARNING, PROBLEM = "ok", "warning", "problem"
"""Values of `Check.status`. A problem loses data: a recording, or the training itself."""


@dataclass(frozen=True)
class Check:
    """One line of ``ppprof doctor``."""

    name: str
    status: str
    reason: str
    """What was found, with its numbers."""
    action: str = ""
    """What to do; empty if nothing is to be done."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The measured values, for ``--format json``."""
