"""Separate calls that only start a transfer from those that do it.

An ``isend`` or ``irecv`` may do the transfer itself, or only start it: a ``send`` or ``recv`` on
another thread, or inside it, then is the transfer, and both spans are of one transfer::

    main      isend   send .......      isend
    thread      send ......                          one transfer by each of these three
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

POSTED = {"isend": "send", "irecv": "recv"}
"""Function that posts a transfer -> function that does it."""


class TransferSpan(NamedTuple):
    """A host event of a transfer between two ranks."""

    row: int
    name: str
    """``send``, ``recv``, ``isend`` or ``irecv``."""
    peer: str
    num_bytes: int | None
    thread: int | None
    start_ns: int
    end_ns: int


def started_transfers(spans: Iterable[TransferSpan]) -> dict[int, int]:
    """Return the row of each posted transfer that only starts another span, with that span's row.

    The other span is the first one with the same peer and bytes that begins later, is on another
    thread or inside, and that no earlier ``isend`` or ``irecv`` has started.

    Args:
        spans: the transfers of one rank, sorted by start.
    """
    posted: defaultdict[tuple[str, str, int | None], list[TransferSpan]] = defaultdict(list)
    started: dict[int, int] = {}
    for span in spans:
        name = POSTED.get(span.name)
        if name is not None:
            posted[name, span.peer, span.num_bytes].append(span)
            continue
        waiting = posted[span.name, span.peer, span.num_bytes]
        for number, post in enumerate(waiting):
            if post.thread != span.thread or span.end_ns <= post.end_ns:
                started[post.row] = span.row
                del waiting[number]
                break
    return started
