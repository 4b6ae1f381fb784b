"""What a capture says to people: stdout is the result, stderr the talk."""

from __future__ import annotations

import sys
from contextlib import suppress

from ppprof.wording import printable


def tell(message: str) -> None:
    """One line to stderr that says who speaks."""
    with suppress(OSError, ValueError):  # a full disk may hold the log as well
        print(f"ppprof: {printable(message)}", file=sys.stderr, flush=True)
