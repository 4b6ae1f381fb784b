"""Decode a file's list of events, block by block.

A long file is divided into parts, which threads may scan ahead (`Scans.part`). The text at a bound
looks like the start of an event, but it may be inside one, as an object in its ``args``. So what was
scanned ahead counts only if the part before it is valid JSON up to the bound.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from ppprof.trace.json.recovery import (
    EventDecoder,
    event_offsets,
    keys_after,
    last_event_start,
)
from ppprof.trace.source import MARGIN, MAX_EVENT_BYTES, Block, TraceStream

Event = TypeVar("Event")
Keys = dict[str, Any]
Ranges = list[tuple[int, int]]
Batches = Iterator[tuple[int, list[Event]]]

_MAX_BLOCKS_PER_EVENT = 4
"""An event that seems to be longer than these blocks is taken to be broken."""


class Scans(Protocol):
    """Reads events in a faster way than the decoder, and leaves odd ones to it."""

    def add(self, block: Block) -> Ranges | None:
        """Add the events of a block; return the ranges left to the decoder, None for all of it."""

    def part(self, number: int) -> Ranges | None:
        """Add the events of a part that was scanned ahead, and is valid JSON.

        Returns:
            The ranges left to the decoder; None if the caller has to read the part.
        """


def decoded_batches(
    source: TraceStream,
    decoder: EventDecoder[Event],
    keys: Keys,
    scans: Scans | None = None,
    bounds: Sequence[int] = (),
) -> Batches[Event]:
    """Yield the offset and the events of each piece of the file that ``scans`` does not read.

    The keys after the list of events are added to ``keys``. With or without ``scans``, the file is
    divided into the same blocks.

    Args:
        source: the file, at the first event.
        decoder: decodes the other pieces.
        keys: collects the keys.
        scans: reads events in a faster way; None to decode all of them.
        bounds: the offsets at which the file is divided into parts; all but the last part may be
            scanned ahead.
    """
    begun = b""
    for number, end in enumerate([*bounds, None]):
        ranges = scans.part(number) if scans and end is not None and not begun else None
        if ranges is not None and end is not None:
            for first, until in ranges:
                yield first, decoder.events(source.between(first, until))
            source.skip_to(end)
            continue
        rest = yield from _part_batches(source, decoder, keys, scans, begun, end)
        if rest is None:
            return
        begun = rest


def _part_batches(
    source: TraceStream,
    decoder: EventDecoder[Event],
    keys: Keys,
    scans: Scans | None,
    begun: bytes,
    end: int | None,
) -> Generator[tuple[int, list[Event]], None, bytes | None]:
    """Yield the pieces of a part as `decoded_batches`; return the text of an event that the part cuts."""
    for block in source.blocks(last_event_start, end):
        ends_file = block.is_last and block.end != end
        ranges = scans.add(block) if scans and not ends_file and not begun else None
        if ranges is not None:
            yield from ((first, decoder.events(block.between(first, end))) for first, end in ranges)
            continue
        first = block.first - len(begun)
        text = begun + block.text()
        if ends_file:
            yield from _last_batches(first, decoder.without_end(text, keys), decoder, scans)
            return None
        begun = b""
        events = decoder.valid_events(text)
        if events is None:
            starts, stop = event_offsets(text)
            last = starts[-1]
            if text[last : last + 1] == b"]":
                tail_keys, is_all = keys_after(text[last + 1 :] + source.peek(MAX_EVENT_BYTES))
                if is_all:
                    keys.update(tail_keys)
                    yield first, decoder.events(text[:last])
                    return None
            elif stop == len(text) and len(text) - last < _MAX_BLOCKS_PER_EVENT * len(block.buffer):
                text, begun = text[:last], text[last:]
            events = decoder.events(text)
        yield first, events
    return begun


def _last_batches(
    first: int, text: bytes, decoder: EventDecoder[Event], scans: Scans | None
) -> Batches[Event]:
    """Yield the offset and the events of each piece of a text that ``scans`` does not read."""
    buffer = bytearray(MARGIN) + text + bytes(MARGIN)
    ranges = scans.add(Block(buffer, len(text), first, True)) if scans else None
    for begin, end in [(first, first + len(text))] if ranges is None else ranges:
        yield begin, decoder.events(text[begin - first : end - first])
