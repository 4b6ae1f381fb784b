"""Decode a file's list of events, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ppprof.trace.json.recovery import EventDecoder, event_offsets, keys_after, last_event_start
from ppprof.trace.source import MARGIN, MAX_EVENT_BYTES, Block, TraceStream

Event = TypeVar("Event")
Keys = dict[str, Any]
Batches = Iterator[tuple[int, list[Event]]]
Scan = Callable[[Block], "list[tuple[int, int]] | None"]
"""Reads the events of a block in a faster way.

It returns the byte ranges (first, end) of events that are left to the decoder, or None if the whole
block is.
"""

_MAX_BLOCKS_PER_EVENT = 4
"""An event that seems to be longer than these blocks is taken to be broken."""


def decoded_batches(
    source: TraceStream, decoder: EventDecoder[Event], keys: Keys, scan: Scan | None = None
) -> Batches[Event]:
    """Yield the offset and the events of each piece of the file that ``scan`` does not read.

    The keys after the list of events are added to ``keys``. With or without ``scan``, the file is
    divided into the same blocks.
    """
    # The first part of an event that was cut, because its text looks like the start of an event.
    begun = b""
    for block in source.blocks(last_event_start):
        ranges = scan(block) if scan and not block.is_last and not begun else None
        if ranges is not None:
            yield from ((first, decoder.events(block.between(first, end))) for first, end in ranges)
            continue
        first = block.first - len(begun)
        text = begun + block.text()
        if block.is_last:
            yield from _last_batches(first, decoder.without_end(text, keys), decoder, scan)
            return
        begun = b""
        events = decoder.valid_events(text)
        if events is None:
            starts, stop = event_offsets(text)
            end = starts[-1]
            if text[end : end + 1] == b"]":
                tail_keys, is_all = keys_after(text[end + 1 :] + source.peek(MAX_EVENT_BYTES))
                if is_all:
                    keys.update(tail_keys)
                    yield first, decoder.events(text[:end])
                    return
            elif stop == len(text) and len(text) - end < _MAX_BLOCKS_PER_EVENT * len(block.buffer):
                text, begun = text[:end], text[end:]
            events = decoder.events(text)
        yield first, events


def _last_batches(
    first: int, text: bytes, decoder: EventDecoder[Event], scan: Scan | None
) -> Batches[Event]:
    """Yield the offset and the events of each piece of a text that ``scan`` does not read."""
    buffer = bytearray(MARGIN) + text + bytes(MARGIN)
    ranges = scan(Block(buffer, len(text), first, True)) if scan else None
    for begin, end in [(first, first + len(text))] if ranges is None else ranges:
        yield begin, decoder.events(text[begin - first : end - first])
