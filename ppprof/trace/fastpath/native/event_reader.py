"""Read events by the names of their keys with the compiled core (events.c)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ppprof.arrays import Array
from ppprof.trace.fastpath.native.store import NativeStore, literal, numbers

_OWN_KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
"""The keys of an event, in the order of ``OWN_KEYS`` in events.c."""
_STORAGE = {"d": "i", "u": "q", "t": "q", "g": "d", "s": "t", "r": "t"}
"""Conversion -> `Storage` in columns.h."""
_ANY, _EXACT, _PREFIX, _NOT_EMPTY = range(4)


@dataclass(frozen=True)
class EventTable:
    """The columns that an event gets a value in."""

    fields: Mapping[str, tuple[str, str]]
    """Column -> key and conversion. A key of ``args`` has the prefix ``args.``.

    ==========  ===================================================================
    conversion  value
    ==========  ===================================================================
    ``d``       an integer, or its digits as a string
    ``u``       likewise, not negative
    ``t``       a number with at most three decimals, times 1000
    ``g``       a number
    ``s``       a string as in the file, with escapes; or the digits of an integer
    ``r``       the JSON text of any value
    ==========  ===================================================================
    """
    required: str = ""
    """Key that an event must have to get a row; empty if it needs none."""


@dataclass(frozen=True)
class EventClass:
    """A condition for events, and the tables that such an event gets a row in."""

    tables: tuple[str, ...] = ()
    """Names of tables; without any, the events are only counted."""
    phs: str = ""
    """Letters; ``ph`` must be one of them, empty for any."""
    cat: str | None = None
    """``cat``; empty for any that is not empty, None for any or a missing one."""
    name: str = ""
    """``name``, or its first part if it ends in a ``*``; empty for any."""
    least_dur_ns: int | None = None
    """Least duration, None for any."""
    either: tuple[str, ...] = ()
    """At most two keys; the event must have one of them."""
    is_decoded: bool = False
    """Whether the caller decodes these events."""


@dataclass(frozen=True)
class EventForms:
    """What to read of the events of a writer."""

    keys: Mapping[str, bool]
    """Key of ``args`` -> whether any value is allowed, else only those without brackets."""
    tables: Mapping[str, EventTable]
    classes: tuple[EventClass, ...]
    """The first class that fits an event decides. An event of no class is left to the caller."""

    @cached_property
    def columns(self) -> Sequence[tuple[str, str]]:
        """Table and name of each column; each table also has ``position``, its events' offsets."""
        return [
            (table, column)
            for table, form in self.tables.items()
            for column in ("position", *form.fields)
        ]

    @cached_property
    def program(self) -> bytes:
        """What ``ppprof_reader_new`` of events.c reads."""
        names = list(self.tables)
        keys = {
            key: number
            for number, key in enumerate([*_OWN_KEYS, *(f"args.{key}" for key in self.keys)])
        }
        number = {column: index for index, column in enumerate(self.columns)}
        forms = self.tables.items()
        num_fields = sum(len(form.fields) for _, form in forms)
        num_links = sum(len(kind.tables) for kind in self.classes)
        storages = [
            (storage, index)
            for index, (_, form) in enumerate(forms)
            for storage in ("q", *(_STORAGE[conversion] for _, conversion in form.fields.values()))
        ]
        code = [
            numbers(len(names), len(number), len(self.keys), num_fields),
            numbers(len(self.classes), num_links),
            *(numbers(ord(storage), index) for storage, index in storages),
            *(numbers(number[name, "position"]) for name in names),
            *(numbers(is_raw) + literal(key.encode()) for key, is_raw in self.keys.items()),
        ]
        for name, form in forms:
            code.append(numbers(keys[form.required] + 1 if form.required else 0, len(form.fields)))
            code += [
                numbers(keys[key], number[name, column], ord(conversion))
                for column, (key, conversion) in form.fields.items()
            ]
        for kind in self.classes:
            either = [*(keys[key] + 1 for key in kind.either), 0, 0]
            code += [
                _condition(_EXACT if kind.phs else _ANY, kind.phs),
                _condition(
                    _ANY if kind.cat is None else _EXACT if kind.cat else _NOT_EMPTY, kind.cat
                ),
                _condition(
                    _PREFIX if kind.name.endswith("*") else _EXACT if kind.name else _ANY,
                    kind.name.rstrip("*"),
                ),
                numbers(0 if kind.least_dur_ns is None else kind.least_dur_ns + 1),
                numbers(*either[:2], kind.is_decoded, len(kind.tables)),
                numbers(*map(names.index, kind.tables)),
            ]
        return b"".join(code)


def _condition(match: int, text: str | None) -> bytes:
    return numbers(match) + literal((text or "").encode())


class EventReader(NativeStore):
    """Reader of events; keeps the values that some forms want.

    Args:
        forms: what to read.
        library: the library of `core.choose`.

    Raises:
        MemoryError: there is not enough memory.
    """

    def __init__(self, forms: EventForms, library: ctypes.CDLL) -> None:
        self._forms = forms
        super().__init__(library, "reader", forms.program)

    def counts(self) -> list[int]:
        """Return the number of events of each class that were added."""
        count = self.library.ppprof_reader_count
        return [count(self.address, number) for number in range(len(self._forms.classes))]

    def tables(self) -> dict[str, dict[str, Array]]:
        """Return table -> column -> values, as `NativeStore.columns`. Called once, at the end.

        Raises:
            MemoryError: there is not enough memory.
        """
        return self.columns(self._forms.columns)
