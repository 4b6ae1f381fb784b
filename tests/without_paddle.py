"""Called on a process that has no Paddle; imports none."""

from __future__ import annotations

import sys
import time


def blocked() -> None:
    """A pool's initializer: Paddle cannot be imported."""
    sys.modules["paddle"] = None  # type: ignore[assignment]


def nap(seconds: float) -> str:
    time.sleep(seconds)
    return "rested"
