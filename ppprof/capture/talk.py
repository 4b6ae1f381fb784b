"""What a capture says to people: stdout is the result, stderr the talk."""

from __future__ import annotations

import sys


def tell(message: str) -> None:
    """One line to stderr that says who speaks."""
    print(f"ppprof: {message}", file=sys.stderr, flush=True)
