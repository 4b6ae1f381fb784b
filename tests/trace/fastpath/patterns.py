"""What the scanner must find, with a regular expression for each layout."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

from ppprof.trace.fastpath.fixed_layout import INPUTS
from ppprof.trace.fastpath.layouts import Dialect, EventPattern

FIELDS = {
    "d": rb"(-?(?:0|[1-9]\d{0,17}))",
    "f": rb"(-?(?:0|[1-9]\d{0,15})\.\d{3})",
    "g": rb"(-?(?:(?:0|[1-9]\d{0,17})\.\d{1,18}|inf|nan))",
    "w": rb'(?<=")([^"\\\x00-\x1f]{0,63})',
    "l": rb"([^\n]*)",
    "o": rb"(\{[^{}]*\})",
    "s": rb"(.*)",
}
LONGEST = 65_536
"""Bytes of an object, and of a line with a %l up to the end of the field."""


class Expected(NamedTuple):
    rows: list[tuple[int, str, list[tuple[str, Any]]]]
    unmatched: list[tuple[int, int]]
    num_flows: int


def expected_of(data: bytes, dialect: Dialect, first: int = 0) -> Expected:
    """What a scanner returns for a block that begins at byte ``first`` of a file."""
    starts = [match.start() for match in re.finditer(re.escape(dialect.start), data)]
    rows, unmatched, num_flows = [], [], 0
    if data and (not starts or starts[0]):
        unmatched.append((first, first + (starts[0] if starts else len(data))))
    was_odd = False
    for start, end in zip(starts, [*starts[1:], len(data)]):
        found = None
        for layout in dialect.layouts:
            found = found or event_of(layout, data[start:end])
        if found is None and was_odd:
            unmatched[-1] = unmatched[-1][0], first + end
        elif found is None:
            unmatched.append((first + start, first + end))
        elif not found[1]:
            num_flows += 1
        else:
            values = {**found[1], "position": first + start}
            rows.append((first + start, found[0], sorted(values.items())))
        was_odd = found is None
    return Expected(rows, unmatched, num_flows)


@cache
def pattern_of(layout: EventPattern) -> re.Pattern[bytes]:
    fields = (FIELDS[field.spec] + re.escape(field.after) for field in layout.fields)
    return re.compile(re.escape(layout.prefix) + b"".join(fields), re.DOTALL)


def event_of(layout: EventPattern, text: bytes) -> tuple[str, dict[str, Any]] | None:
    """The kind and the values of an event, without missing ones; None if it has another layout."""
    match = pattern_of(layout).fullmatch(text)
    if not match:
        return None
    values = {}
    for field, value in zip(layout.fields, match.groups()):
        if field.spec == "o" and len(value) > LONGEST:
            return None
        if field.spec == "l" and 1 + field.indent + len(value) > LONGEST:
            return None
        if field.spec == "f" and abs(int(value[:-4])) > (2**63 - 1) // 1000 - 1:
            return None  # it does not fit when it is multiplied by 1000
        if field.spec == "s" and re.search(rb'"[ \t\r\n]*(?:[,:}]|\Z)', value):
            return None  # it may be two events
        if field.name in INPUTS and len(value) <= len("{}"):
            continue
        if field.spec == "d":
            values[field.name] = int(value)
        elif field.spec == "f":
            values[field.name] = int(value.replace(b".", b""))
        elif field.spec == "g":
            whole, _, decimals = value.lstrip(b"-").partition(b".")
            if decimals:
                real = float(int(whole)) + float(int(decimals)) / 10.0 ** len(decimals)
                values[field.name] = (-real if value[:1] == b"-" else real).hex()
        else:
            values[field.name] = without_duration(value) if field.name == "name" else value
    values.pop("", None)
    return layout.kind, values


def without_duration(name: bytes) -> bytes:
    """The name without its ``[1.2 ms]``."""
    bracket = name.rfind(b"[", max(len(name) - 64, 0))
    is_duration = re.fullmatch(rb"\[\d.* [mun]?s\]", name[bracket:], re.DOTALL)
    return name[:bracket] if bracket >= 0 and is_duration else name
