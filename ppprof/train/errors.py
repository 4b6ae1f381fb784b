"""What keeps a training from starting."""

from __future__ import annotations

from ppprof.errors import UsageError


class DataError(UsageError):
    """There is no text to train on, or too little of it."""
