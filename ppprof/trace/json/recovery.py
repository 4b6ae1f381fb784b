"""JSON that may be broken: as many events out of a text as it holds.

A piece of text is decoded at once; where that fails it is halved between two events until what is
sound has been read and a single event is left over, which is mended if it can be: bytes that are
no UTF-8, numbers that JSON does not have, strings whose quotation marks were never escaped.

Every pattern here takes time linear in the text, whatever the text is.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

import msgspec

from ppprof.errors import TraceError
from ppprof.units import TRUNCATED

Event = TypeVar("Event")
Keys = dict[str, Any]

UNREADABLE = "events that are not valid JSON"
MISFIT = "fields of an unexpected type"

_KEYS = "name|pid|tid|ts|dur|ph|cat|cname|args|id|s|bp"
_BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*(?:"(?:%b)"\s*:|\}))' % _KEYS.encode())
_END = re.compile(rb'(?:\A|\})[\s,]*\]\s*(?=,\s*"|\})')
_BARE_END = re.compile(rb"(?:\A|\})[\s,]*\]\s*\Z")
_HARDLY_BEGUN = re.compile(rb',\s*\{\s*(?:"\w*"?\s*)?\Z')
_MOST_ENDS = 16  # that are tried: lists of objects in events and behind them look like the end
_SEPARATORS = re.compile(r"[\s,]*")
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, strict=False)
_NO_NUMBER = re.compile(r"(?<=[:,\[ ])-?(?:inf(?:inity)?|nan)(?=[\s,\]}])", re.IGNORECASE)
_NO_NUMBER_BYTES = re.compile(_NO_NUMBER.pattern.encode(), re.IGNORECASE)
_TEXT_BEGINS = re.compile(r'"(?:name|callstack)"\s*:\s*"')
_TEXT_ENDS = re.compile(rf'"\s*(?:,\s*"(?:{_KEYS})"\s*:|\}})')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_PAIR = re.compile(r'"([^"]*)"\s*:\s*"(.*)"')
_MOST_TEXTS = 4  # that are mended in one event
_LONGEST_MENDED = 1 << 20
_MOST_STRETCHES = 1000  # between broken events of one text: each counts the lines before it


def start_of_events(text: bytes) -> int:
    """Where the list of events begins, its bracket left out; -1 if not in this text."""
    match = re.match(rb"\s*\[", text) or re.search(rb'"traceEvents"\s*:\s*\[', text)
    return match.end() if match else -1


def last_event(text: bytes | bytearray, first: int, end: int) -> int:
    """Where the last event of a part of a text begins; its first byte if none does behind that."""
    window = 1 << 14
    while True:
        at = first
        for match in _BETWEEN.finditer(text, max(end - window, first), end):
            at = match.end()
        if at > first or window >= end - first:
            return at
        window *= 8


def keys_before(text: bytes) -> Keys:
    """The keys of ``{"a": 1, "traceEvents": [``, the text before the events."""
    before, key, _ = text.rpartition(b'"traceEvents"')
    return _object(before + b"}")[0] if key else {}


def whole_events(text: bytes) -> tuple[list[int], int]:
    """How far a text is JSON, event by event.

    Returns:
        Where each whole event begins, then where the first thing does that is none; and where that
        stops being JSON: at once for the bracket that ends the list, at the text's end for an event
        that is cut off there.
    """
    starts, stop = _whole_events(text.rstrip().decode("latin-1"), 0)  # a character a byte
    return starts, stop if stop < len(text.rstrip()) else len(text)


def _whole_events(chars: str, at: int) -> tuple[list[int], int]:
    """The same, from a place on and of characters without a blank at their end."""
    starts = []
    while True:
        at = _SEPARATORS.match(chars, at).end()  # type: ignore[union-attr]
        starts.append(at)
        if chars[at : at + 1] != "{":
            return starts, at
        try:
            at = _DECODER.raw_decode(chars, at)[1]
        except json.JSONDecodeError as error:
            return starts, error.pos
        except RecursionError:
            return starts, at


def _stretches(text: bytes) -> Iterator[tuple[list[int], int]]:
    """Whole events up to a broken one, then those behind it, and so on.

    Yields:
        Where each whole event of a stretch begins, then where the first thing does that is none;
        and where the next stretch begins, at the last one where the text ends.
    """
    # Paddle prints "inf", which is not JSON: without it more events show where they begin.
    readable = _NO_NUMBER_BYTES.sub(lambda number: b"0".ljust(len(number[0])), text)
    chars = readable.decode("latin-1")  # a character a byte
    at = 0
    for _ in range(_MOST_STRETCHES):
        starts, stop = _whole_events(chars, at)
        # Behind where the event is broken: what lies before it may be lists of objects.
        after = _BETWEEN.search(text, stop if stop < len(text) else starts[-1])
        at = after.end() if after else len(text)
        yield starts, at
        if not after:
            return
    yield [at], len(text)


def keys_behind(text: bytes) -> tuple[Keys, bool]:
    """The keys of ``, "a": 1}``, the text behind the list, and whether it was nothing else."""
    return _object(b"{" + text.strip().lstrip(b","))


def _object(text: bytes) -> tuple[Keys, bool]:
    """The object in a text, and whether it was one; what cannot be decoded is left out.

    Of a broken one, the pairs of strings on lines of their own are read: Paddle's ExtraInfo.
    """
    mended = _NO_NUMBER.sub("null", text.decode("utf-8", "replace").strip())
    mended = re.sub(r",\s*\}$", "}", mended)
    try:
        keys = json.loads(mended, strict=False)
        if r"\ud" in mended.lower():  # half a character, perhaps, which no table can hold
            keys = json.loads(_encoded(keys))
    except (ValueError, RecursionError):
        lines = mended.splitlines() if len(mended) < _LONGEST_MENDED else []
        pairs = (_PAIR.match(line.strip()) for line in lines if len(line) < 4096)
        found: Keys = {pair[1]: pair[2] for pair in pairs if pair}
        return {"ExtraInfo": dict(found), **found} if found else {}, False
    return (keys, True) if isinstance(keys, dict) else ({}, True)


class EventText(Generic[Event]):
    """Reads events out of pieces of a list's text.

    Args:
        kind: a `msgspec.Struct` of which every field has a default.
        path: what errors call the file.
        escapes: whether the writer escaped what it put between quotation marks.
        lost: where what could not be read is counted.
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
        """The events of a text that begins and ends between two events."""
        body = text.strip(b" \t\r\n,")
        if not body:
            return []
        found = self.sound_events(body)
        if found is not None:
            return found
        events: list[Event] = []
        for starts, end in _stretches(body):
            events += self._halved(body, starts) + self._guessed(body[starts[-1] : end])
        return events

    def _halved(self, text: bytes, starts: Sequence[int]) -> list[Event]:
        """Events of which is known where they begin; ``starts`` ends with where the last one does."""
        if len(starts) < 2:
            return []
        piece = text[starts[0] : starts[-1]].rstrip(b" \t\r\n,")
        found = self.sound_events(piece)
        if found is not None:
            return found
        if len(starts) == 2:
            return self._mended(piece)
        middle = len(starts) // 2
        return self._halved(text, starts[: middle + 1]) + self._halved(text, starts[middle:])

    def _guessed(self, text: bytes) -> list[Event]:
        """Events of which is not known where they begin but by how events look."""
        body = text.strip(b" \t\r\n,")
        found = self.sound_events(body)
        if found is not None:
            return found
        middle = _middle(body)
        if middle:
            return self._guessed(body[:middle]) + self._guessed(body[middle:])
        return self._mended(body)

    def sound_events(self, text: bytes) -> list[Event] | None:
        """The same, in one go; None where anything needs mending."""
        if not self._escapes and b"\\" in text:
            return None
        try:
            return self._many.decode(b"[%b]" % text.strip(b" \t\r\n,"))
        except RecursionError as error:
            raise self._too_deep() from error
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def last_events(self, text: bytes, keys: Keys) -> list[Event]:
        """The events of a text that holds the list's end; the keys behind it go to ``keys``.

        A list without an end was cut short, which is counted as lost. Zeros behind it are what a
        file system leaves where it came to know of a file's length only.
        """
        text = text.rstrip(b"\0")
        ends = [match.end() for match in islice(_END.finditer(text), _MOST_ENDS)]
        if len(ends) == _MOST_ENDS:
            stops = [starts[-1] for starts, _ in _stretches(text)]
            ends = [stop + 1 for stop in stops if text[stop : stop + 1] == b"]"] or ends
            del ends[_MOST_ENDS:]
        tails = [keys_behind(text[end:]) for end in ends]
        # The first that nothing follows but keys; of a broken file, the last that looks like it.
        for end, (found, is_whole) in zip(ends, tails):
            if is_whole:
                keys.update(found)
                return self.events(text[:end].rstrip()[:-1])
        if ends:
            keys.update(tails[-1][0])
            if not text.rstrip().endswith(b"}"):
                self._skipped[TRUNCATED] += 1
            return self.events(text[: ends[-1]].rstrip()[:-1])
        if _BARE_END.search(text, max(len(text) - 4096, 0)):  # the file is the list alone
            return self.events(text.rstrip()[:-1])
        self._skipped[TRUNCATED] += 1
        # An event that was cut before its first key does not show where the one before it ends.
        begun = _HARDLY_BEGUN.search(text, max(len(text) - 4096, 0))
        return self.events(text[: begun.start()] if begun else text)

    def _mended(self, body: bytes) -> list[Event]:
        """One event that is no JSON; none, and one more lost, if it cannot be mended."""
        if len(body) > _LONGEST_MENDED:
            self._skipped[UNREADABLE] += 1
            return []
        text = _NO_NUMBER.sub("null", body.decode("utf-8", "replace"))
        for candidate in (text, self._with_escapes(text)):
            try:
                loose = json.loads(candidate, strict=False)
            except RecursionError as error:
                raise self._too_deep() from error
            except ValueError:
                continue
            return self._fitting(loose)
        self._skipped[UNREADABLE] += 1
        return []

    def _with_escapes(self, text: str) -> str:
        """The event with its free texts as JSON wants them."""
        done, parts = 0, []
        for _ in range(_MOST_TEXTS):
            begin = _TEXT_BEGINS.search(text, done)
            end = begin and _TEXT_ENDS.search(text, begin.end())
            if not begin or not end:
                break
            inside = text[begin.end() : end.start()]
            if "callstack" in begin[0]:
                inside = inside.replace("\\n", "\n")  # the one thing that Paddle escapes
            elif self._escapes:
                inside = _ESCAPE.sub(lambda escape: str(json.loads(f'"{escape[0]}"')), inside)
            parts += [text[done : begin.end()], json.dumps(inside, ensure_ascii=False)[1:-1]]
            done = end.start()
        return "".join([*parts, text[done:]])

    def _fitting(self, loose: Any) -> list[Event]:
        """An event without the fields whose values are of an unexpected type."""
        if not isinstance(loose, dict):
            self._skipped[UNREADABLE] += 1
            return []
        fields: Keys = {}
        num_lost = 0
        for key, value in loose.items():
            if isinstance(value, dict):
                inner = {
                    name: item for name, item in value.items() if self._fits({key: {name: item}})
                }
                num_lost += len(value) - len(inner)
                value = inner
            if self._fits({key: value}):
                fields[key] = value
            else:
                num_lost += 1
        if num_lost:
            self._skipped[MISFIT] += num_lost
        return [msgspec.json.decode(_encoded(fields), type=self._kind)]

    def _fits(self, fields: Mapping[str, Any]) -> bool:
        try:
            msgspec.json.decode(_encoded(fields), type=self._kind)
        except (msgspec.DecodeError, RecursionError):
            return False
        return True

    def _too_deep(self) -> TraceError:
        return TraceError(f"{self._path}: brackets are nested too deep for a trace; it is refused")


def _encoded(fields: Mapping[str, Any]) -> bytes:
    """As JSON; a question mark for half a character."""
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")


def _middle(body: bytes) -> int:
    """Where an event begins, near the middle; 0 if the body is one event."""
    after = _BETWEEN.search(body, len(body) // 2)
    return after.end() if after else last_event(body, 0, len(body))
