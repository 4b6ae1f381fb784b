"""Decode a file's list of events, block by block.

A long file is divided into parts, which threads may scan ahead (`Scans.part`). The text at a bound
looks like the start of an event, but it may be inside one, as an object in its ``args``. So what was
scanned ahead counts only if the part before it is valid JSON up to the bound.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from ppprof.paths import is_remote
from ppprof.trace.json.recovery import (
    EventDecoder,
    event_offsets,
    first_event_start,
    keys_after,
    last_event_start,
)
from ppprof.trace.source import MARGIN, MAX_EVENT_BYTES, Block, TraceStream

Event = TypeVar("Event")
Keys = dict[str, Any]
Ranges = list[tuple[int, int]]
Batches = Iterator[tuple[int, list[Event]]]

PART_BYTES = 24 << 20
"""Bytes of each part of a file but the last one, which is shorter or longer by half."""
_MAX_BLOCKS_PER_EVENT = 4
"""An event that seems to be longer than these blocks is taken to be broken."""


class ScannedPart(NamedTuple):
    """A part of a file that was scanned ahead, and is valid JSON."""

    ranges: Ranges
    """Byte ranges (first, end) of events that are left to the decoder, ascending."""
    end: int
    """Offset up to which the part was scanned: the last block of a file is left to the caller."""


class Scans(Protocol):
    """Reads events in a faster way than the decoder, and leaves odd ones to it."""

    def add(self, block: Block) -> Ranges | None:
        """Add the events of a block; return the ranges left to the decoder, None for all of it."""

    def part(self, number: int) -> ScannedPart | None:
        """Add the events of a part that was scanned ahead; None if the caller has to scan it."""


def part_bounds(source: TraceStream) -> list[int]:
    """Return the offsets at which a file is divided into parts, ascending, without its end.

    They follow from the file alone, so that all cores, with any number of threads, read the same
    blocks. A file in a store is not divided, because some stores have one position for all readers
    of a file; neither is one packed with gzip.
    """
    if source.is_packed or is_remote(source.path):
        return []
    bounds: list[int] = []
    num_parts = max(1, round((source.size - source.position) / PART_BYTES))
    for number in range(1, num_parts):
        position = source.position + number * PART_BYTES
        if bounds and position <= bounds[-1]:
            continue
        bound = source.find(position, first_event_start)
        if bound is None:
            break
        bounds.append(bound)
    return bounds


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
        bounds: from `part_bounds`.
    """
    begun = b""
    for number, end in enumerate([*bounds, None]):
        part = scans.part(number) if scans and not begun else None
        if part:
            for first, until in part.ranges:
                yield first, decoder.events(source.between(first, until))
            source.skip_to(part.end)
            if part.end == end:
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
    """Yield the pieces of a part as `decoded_batches`.

    Args:
        source: the file, at the start of the part.
        decoder: as in `decoded_batches`.
        keys: likewise.
        scans: likewise.
        begun: the first part of an event that was cut, because its text looks like the start of an
            event.
        end: offset of the end of the part; None for the end of the file.

    Returns:
        ``begun`` for the next part; None if the list of events has ended.
    """
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
