"""Decode JSON that may be broken, and recover as many events as the text holds.

A piece of text is decoded in one call. If that fails, it is split between two events, again and
again, until only a single broken event is left. That event is repaired if possible. Typical damage:
bytes that are not UTF-8, numbers that JSON does not have (inf, nan), strings whose quotation marks
were never escaped, and keys without a value.

Every pattern here takes time linear in the text, whatever the text is. Patterns that only broken files
need are text: `re` compiles one when it is first used, and keeps it.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain, islice
from typing import Any, Generic, TypeVar

import msgspec

from ppprof.errors import TraceError
from ppprof.units import TRUNCATED

Event = TypeVar("Event")
Keys = dict[str, Any]

INVALID_EVENTS = "events that are not valid JSON"
MISFIT_FIELDS = "fields of an unexpected type"

_KEYS = "name|pid|tid|ts|dur|ph|cat|cname|args|id|s|bp"
_BEFORE_KEY = rb'\}\s*,\s*(?=\{\s*"(?:%b)"\s*:)' % _KEYS.encode()
_BETWEEN = rb'\}\s*,\s*(?=\{\s*(?:"(?:%b)"\s*:|\}))' % _KEYS.encode()
_END = re.compile(rb'\}[\s,]*\]\s*(?=,\s*"|\})')
_END_AT_START = re.compile(rb'[\s,]*\]\s*(?=,\s*"|\})')
_BARE_END = rb"(?:\A|\})[\s,]*\]\s*\Z"
_TRUNCATED_EVENT = rb',\s*\{\s*(?:"\w*"?\s*)?\Z'
_MAX_ENDS = 16  # candidates to try: lists of objects in events and after them look like the end
_SEPARATORS = re.compile(r"[\s,]*")
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, strict=False)
_NON_NUMBER = re.compile(r"(?<=[:,\[ ])-?(?:inf(?:inity)?|nan)(?=[\s,\]}])", re.IGNORECASE)
_NON_NUMBER_BYTES = _NON_NUMBER.pattern.encode()
_TEXT_START = r'"(?:name|callstack)"\s*:\s*"'
_TEXT_END = rf'"\s*(?:,\s*"(?:{_KEYS})"\s*:|\}})'
_ESCAPE = r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})'
_NO_VALUE = r'([{,]\s*"[^"\\]*"\s*:)(?=\s*[,}])'  # some versions of Kineto write an empty text so
_PAIR = r'"([^"]*)"\s*:\s*"(.*)"'
_EXACT = msgspec.json.Encoder(decimal_format="number")
_MAX_TEXTS = 4  # to escape in one event
_MAX_REPAIR_BYTES = 1 << 20
_MAX_RUNS = 1000  # between broken events of one text: each JSON error counts the lines before it


HEAD_BYTES = 1 << 16
"""Bytes of a file in which the list of events usually begins."""


def start_of_events(text: bytes) -> int:
    """Return the offset after the bracket that opens the list of events; -1 if it is missing."""
    match = re.match(rb"\s*\[", text) or re.search(rb'"traceEvents"\s*:\s*\[', text)
    return match.end() if match else -1


def last_event_start(
    text: bytes | bytearray, first: int, end: int, pattern: bytes = _BEFORE_KEY
) -> int:
    """Return the offset of the last event with a key in ``text[first:end]``.

    It is ``first`` if no event begins after ``first``. It is in no string of valid JSON, where
    quotation marks are escaped.
    """
    window = 1 << 14
    while True:
        start = first
        for match in re.compile(pattern).finditer(text, max(end - window, first), end):
            start = match.end()
        if start > first or window >= end - first:
            return start
        window *= 8


def first_event_start(text: bytes) -> int | None:
    """Return the offset of the first event with a key after another event; None without one.

    It is in no string of valid JSON, where quotation marks are escaped.
    """
    match = re.search(_BEFORE_KEY, text)
    return match.end() if match else None


def keys_before(text: bytes) -> Keys:
    """Return the keys and values that stand before the list of events.

    ``text`` is the file up to the list. The result is empty if the file holds only the list.

    >>> keys_before(b'{"a": 1, "traceEvents": [')
    {'a': 1}
    """
    before, key, _ = text.rpartition(b'"traceEvents"')
    return _object(before + b"}")[0] if key else {}


def event_offsets(text: bytes) -> tuple[list[int], int]:
    """Return where the events of a text begin, up to the first one that is not valid JSON.

    Returns:
        First, the offset of every complete event, followed by the offset of the first byte after
        them that is no separator. Second, the offset at which parsing failed. The second equals the
        end of the first if no event begins there, as at the bracket that ends the list. It is the
        length of the text if the text ends after an event or inside one; but if the text ends
        inside a string, it is the offset of the string.
    """
    starts, stop = _event_offsets(text.rstrip().decode("latin-1"), 0)  # one character per byte
    return starts, stop if stop < len(text.rstrip()) else len(text)


def _event_offsets(chars: str, position: int) -> tuple[list[int], int]:
    """Return the offsets of events from ``position`` on, and of the end, and where parsing failed."""
    starts = []
    while True:
        position = _SEPARATORS.match(chars, position).end()  # type: ignore[union-attr]
        starts.append(position)
        if chars[position : position + 1] != "{":
            return starts, position
        try:
            position = _DECODER.raw_decode(chars, position)[1]
        except json.JSONDecodeError as error:
            return starts, error.pos
        except RecursionError:
            return starts, position


def _readable_runs(text: bytes) -> Iterator[tuple[list[int], int]]:
    """Split a text at its broken events.

    Yields:
        First, the offset of every complete event of a run, followed by the offset of the broken
        event after them. Second, the offset of the next run; the length of the text for the last
        run. After `_MAX_RUNS` runs, the rest of the text is a run without complete events.
    """
    # Paddle prints "inf", which is not JSON. Without it, more events can be parsed.
    non_number = re.compile(_NON_NUMBER_BYTES, re.IGNORECASE)
    readable = non_number.sub(lambda number: b"0".ljust(len(number[0])), text)
    chars = readable.decode("latin-1")  # one character per byte
    position = 0
    for _ in range(_MAX_RUNS):
        starts, stop = _event_offsets(chars, position)
        # Search behind the error: lists of objects before it look like events.
        after = re.compile(_BETWEEN).search(text, stop if stop < len(text) else starts[-1])
        position = after.end() if after else len(text)
        yield starts, position
        if not after:
            return
    yield [position], len(text)


def _ends_between_events(text: bytes, likely_ends: Sequence[int]) -> list[int]:
    """Return where the list of events may end in a broken file: at most `_MAX_ENDS` offsets.

    A list of objects in an event looks like the end of the list. So if no end is among the complete
    events, only those of ``likely_ends`` that are behind all of them are returned.
    """
    stops = [starts[-1] for starts, _ in _readable_runs(text)]
    ends = [stop + 1 for stop in stops if text[stop : stop + 1] == b"]"]
    return (ends or [end for end in likely_ends if end > stops[-1]])[:_MAX_ENDS]


def keys_after(text: bytes) -> tuple[Keys, bool]:
    """Return the keys and values after the list, and whether ``text`` holds nothing but these.

    >>> keys_after(b', "a": 1}')
    ({'a': 1}, True)
    """
    return _object(b"{" + text.strip().lstrip(b","))


def _object(text: bytes) -> tuple[Keys, bool]:
    """Return the keys of the object in a text, and whether the text is valid JSON.

    A broken object has only those keys that stand on a line of their own, with a string as value,
    as in Paddle's ExtraInfo. They are also returned together, as the value of the key
    ``ExtraInfo``. A broken object of 1 MiB or more has no keys. A text that is another JSON value
    has no keys either.
    """
    repaired = _NON_NUMBER.sub("null", text.decode("utf-8", "replace").strip())
    repaired = re.sub(r",\s*\}$", "}", repaired)
    try:
        keys = json.loads(repaired, strict=False)
        if r"\ud" in repaired.lower():  # perhaps an unpaired surrogate, which no table can hold
            keys = json.loads(_encoded(keys))
    except (ValueError, RecursionError):
        lines = repaired.splitlines() if len(repaired) < _MAX_REPAIR_BYTES else []
        pairs = (re.match(_PAIR, line.strip()) for line in lines if len(line) < 4096)
        texts: Keys = {pair[1]: pair[2] for pair in pairs if pair}
        return {"ExtraInfo": dict(texts), **texts} if texts else {}, False
    return (keys, True) if isinstance(keys, dict) else ({}, True)


class EventDecoder(Generic[Event]):
    """Decoder of the events in pieces of a list's text.

    Args:
        kind: the type of an event: a `msgspec.Struct` of which every field has a default.
        path: the file's name in error messages.
        skipped: counts the unreadable parts, by kind.
        escapes: whether the writer escaped the text between quotation marks, as JSON requires.
    """

    def __init__(
        self, kind: type[Event], path: str, skipped: Counter[str], *, escapes: bool = True
    ) -> None:
        self._many = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
        self._kind = kind
        self._path = path
        self._escapes = escapes
        self._skipped = skipped

    def events(self, text: bytes) -> list[Event]:
        """Return the events of a text that begins and ends between two events.

        Broken events are repaired. Events that cannot be repaired are counted in ``skipped``.

        Raises:
            TraceError: brackets are nested too deeply.
        """
        body = text.strip(b" \t\r\n,")
        if not body:
            return []
        decoded = self.valid_events(body)
        if decoded is not None:
            return decoded
        events: list[Event] = []
        for starts, end in _readable_runs(body):
            events += self._events_at(body, starts) + self._events_by_pattern(
                body[starts[-1] : end]
            )
        return events

    def _events_at(self, text: bytes, starts: Sequence[int]) -> list[Event]:
        """Return the events at ``starts``, whose last item is the end of the last event."""
        if len(starts) < 2:
            return []
        piece = text[starts[0] : starts[-1]].rstrip(b" \t\r\n,")
        events = self.valid_events(piece)
        if events is not None:
            return events
        if len(starts) == 2:
            return self._repaired_event(piece)
        middle = len(starts) // 2
        return self._events_at(text, starts[: middle + 1]) + self._events_at(text, starts[middle:])

    def _events_by_pattern(self, text: bytes) -> list[Event]:
        """Return events whose offsets are unknown: split the text where an event seems to begin."""
        body = text.strip(b" \t\r\n,")
        events = self.valid_events(body)
        if events is not None:
            return events
        middle = _middle(body)
        if middle:
            return self._events_by_pattern(body[:middle]) + self._events_by_pattern(body[middle:])
        return self._repaired_event(body)

    def valid_events(self, text: bytes) -> list[Event] | None:
        """Return what `events` returns, in one call; None if an event may need repair.

        If the writer does not escape texts, an event with a backslash may need repair.

        Raises:
            TraceError: brackets are nested too deeply.
        """
        if not self._escapes and b"\\" in text:
            return None
        try:
            return self._many.decode(b"[%b]" % text.strip(b" \t\r\n,"))
        except RecursionError as error:
            raise self._nesting_error() from error
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def without_end(self, text: bytes, keys: Keys) -> bytes:
        """Return the last text of a file without the end of the list, which it contains.

        The keys and values after the list are added to ``keys``. If the list has no end, or the
        object around it has none, the file is counted as truncated in ``skipped``. Zero bytes at the
        end of the text are removed: a file system leaves them when it saved only a file's length.
        """
        text = text.rstrip(b"\0")
        # One pattern for both would try every byte; this one begins with a byte that it can search.
        start = _END_AT_START.match(text)
        others = _END.finditer(text, start.end() if start else 0)
        ends = [match.end() for match in islice(chain([start] if start else [], others), _MAX_ENDS)]
        tails = [] if len(ends) == _MAX_ENDS else [keys_after(text[end:]) for end in ends]
        if not any(is_whole for _, is_whole in tails):
            # Does the file hold only the list?
            if re.compile(_BARE_END).search(text, max(len(text) - 4096, 0)):
                return text.rstrip()[:-1]
            ends = _ends_between_events(text, ends) if ends else []
            tails = [keys_after(text[end:]) for end in ends]
        # The first end that only keys follow; in a broken file the last candidate.
        for end, (tail_keys, is_whole) in zip(ends, tails):
            if is_whole:
                keys.update(tail_keys)
                return text[:end].rstrip()[:-1]
        if ends:
            keys.update(tails[-1][0])
            if not text.rstrip().endswith(b"}"):
                self._skipped[TRUNCATED] += 1
            return text[: ends[-1]].rstrip()[:-1]
        self._skipped[TRUNCATED] += 1
        # The split pattern cannot find an event that was truncated before its first key.
        truncated = re.compile(_TRUNCATED_EVENT).search(text, max(len(text) - 4096, 0))
        return text[: truncated.start()] if truncated else text

    def _repaired_event(self, body: bytes) -> list[Event]:
        """Return a list with one event, repaired from text that is not valid JSON.

        If the repair fails, or the text exceeds 1 MiB, count the event in ``skipped`` and return an
        empty list.
        """
        if len(body) > _MAX_REPAIR_BYTES:
            self._skipped[INVALID_EVENTS] += 1
            return []
        text = body.decode("utf-8", "replace")
        if any(number in text.lower() for number in ("inf", "nan")):  # the pattern takes long
            text = _NON_NUMBER.sub("null", text)
        candidates = [text, self._with_escaped_texts(text)]
        if not self._escapes and "\\" in text:
            candidates.reverse()  # as JSON, its texts have other characters
        candidates.append(re.sub(_NO_VALUE, r"\1 null", text))
        for candidate in candidates:
            try:
                loose = json.loads(candidate, strict=False, parse_float=_number)
            except RecursionError as error:
                raise self._nesting_error() from error
            except ValueError:
                continue
            return self._without_misfits(loose)
        self._skipped[INVALID_EVENTS] += 1
        return []

    def _with_escaped_texts(self, text: str) -> str:
        """Return the event with its name and its call stack escaped as JSON requires."""
        done, parts = 0, []
        for _ in range(_MAX_TEXTS):
            start = re.compile(_TEXT_START).search(text, done)
            end = start and re.compile(_TEXT_END).search(text, start.end())
            if not start or not end:
                break
            inside = text[start.end() : end.start()]
            if "callstack" in start[0]:
                inside = inside.replace("\\n", "\n")  # Paddle escapes nothing else
            elif self._escapes:
                inside = re.sub(_ESCAPE, lambda code: str(json.loads(f'"{code[0]}"')), inside)
            parts += [text[done : start.end()], json.dumps(inside, ensure_ascii=False)[1:-1]]
            done = end.start()
        return "".join([*parts, text[done:]])

    def _without_misfits(self, loose: Any) -> list[Event]:
        """Return a list with the event, without fields whose values are of an unexpected type.

        These fields are counted in ``skipped``. If ``loose`` is no object, it is counted as an
        invalid event, and the list is empty.
        """
        if not isinstance(loose, dict):
            self._skipped[INVALID_EVENTS] += 1
            return []
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            return [msgspec.json.decode(_encoded(loose), type=self._kind)]
        fields: Keys = {}
        num_misfits = 0
        for key, value in loose.items():
            if isinstance(value, dict):
                inner = {
                    name: item for name, item in value.items() if self._fits({key: {name: item}})
                }
                num_misfits += len(value) - len(inner)
                value = inner
            if self._fits({key: value}):
                fields[key] = value
            else:
                num_misfits += 1
        if num_misfits:
            self._skipped[MISFIT_FIELDS] += num_misfits
        return [msgspec.json.decode(_encoded(fields), type=self._kind)]

    def _fits(self, fields: Mapping[str, Any]) -> bool:
        try:
            msgspec.json.decode(_encoded(fields), type=self._kind)
        except (msgspec.DecodeError, RecursionError):
            return False
        return True

    def _nesting_error(self) -> TraceError:
        return TraceError(f"{self._path}: brackets are nested too deeply for a trace")


def _number(text: str) -> Decimal | float:
    """Return a number without loss; infinity or 0 if its exponent is too large for a decimal."""
    try:
        return Decimal(text)
    except ArithmeticError:
        return float(text)


def _encoded(fields: Mapping[str, Any]) -> bytes:
    """Return the fields as JSON; unpaired surrogates become question marks.

    A decimal stays exact: as a float, a time of today would be a multiple of 250 ns.
    """
    try:
        return _EXACT.encode(fields)
    except (UnicodeEncodeError, OverflowError):
        return _EXACT.encode(_encodable(fields))


def _encodable(value: Any) -> Any:
    """Return a JSON value without surrogates and integers of more than 64 bits."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, Mapping):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return value


def _middle(body: bytes) -> int:
    """Return the offset at which an event near the middle of ``body`` begins, valid or not; 0 for a single event."""
    after = re.compile(_BETWEEN).search(body, len(body) // 2)
    return after.end() if after else last_event_start(body, 0, len(body), _BETWEEN)
