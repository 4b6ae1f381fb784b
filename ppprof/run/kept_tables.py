"""Tables of one rank's window, kept beside the trace whose events `ppprof.trace.cache` keeps.

A second ``ppprof summary`` prints them without reading events, so it imports neither numpy nor
polars, which takes longer than all the rest. There is one file for each trace. It has the tables of
the latest `_MOST_ENTRIES` choices of steps and options, as JSON.

Like the cache of events, the file is not trusted: it is used only if `save` could have written it.
Every value must have the type of its column, so that it can be printed.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Optional, Tuple, Union  # noqa: UP035

import msgspec

from ppprof.choices.rows import SummaryOptions
from ppprof.choices.steps import StepRange
from ppprof.run.row_types import row_types
from ppprof.rundir import JobFacts
from ppprof.rundir.recordings import Recording
from ppprof.trace.cache_files import (
    EVENTS_SUFFIX,
    Fingerprint,
    cache_path,
    fingerprint,
    read_cache,
    write_cache,
)

if TYPE_CHECKING:
    import polars as pl

MOST_BYTES = 4 << 20
"""Tables that are longer together are not kept; a trace whose tables are kept is longer."""

_SUFFIX = ".tables"
_MOST_ENTRIES = 8
_MAGIC = b"ppprof\x01\x01"
_PREFIX = struct.Struct("<8sI")  # magic, checksum of all that follows
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Choice = Tuple[Union[str, float, bool, None], ...]  # noqa: UP006 (msgspec evaluates it in 3.9)
_MaybeText = Optional[str]


class Facts(msgspec.Struct, forbid_unknown_fields=True):
    """What is known of a window besides its tables."""

    steps: list[_Count]
    """Numbers of the steps, ascending."""
    sorted_by: str
    """The sort key of the tables; never ``auto``."""
    skipped: dict[str, _Count]
    """Kind -> number of parts of the file that were skipped because they are unreadable."""
    notes: list[str] = []
    """The result of `ppprof.run.traces.notes_on`."""
    unrecorded_device: _MaybeText = None
    """The device that the trace lacks the events of, such as ``gpu:0``; "" if it lacks none."""


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    choice: _Choice
    facts: Facts
    tables: dict[str, msgspec.Raw]
    """View -> JSON list of rows, each a list of values in the order of `row_types`."""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    of: Fingerprint
    entries: list[_Entry]
    """The latest one last."""


class Kept(NamedTuple):
    """Tables that were kept."""

    facts: Facts
    columns: Mapping[str, Sequence[str]]
    """The names of the columns, keyed by view."""
    rows: Mapping[str, Sequence[Mapping[str, Any]]]
    """The rows, keyed by view; a row is keyed by column."""


class KeptTables:
    """The tables of one window for one choice of steps and options.

    Args:
        recording: the window. Only the tables of its preferred file are kept.
        job: what the run's manifest says.
        steps: the steps; None for all.
        options: the options of the tables.
    """

    def __init__(
        self,
        recording: Recording,
        job: JobFacts,
        steps: StepRange | None,
        options: SummaryOptions,
    ) -> None:
        self.path = recording.files[0] if recording.files else Path()
        """The trace file."""
        self._key = fingerprint(self.path) if recording.files else None
        self._thread_sep = options.thread_sep
        self._choice: _Choice = (
            *job,
            None if steps is None else str(steps),
            options.sorted_by,
            options.thread_sep,
        )

    def load(self, views: Sequence[str]) -> Kept | None:
        """Return the tables of some views; None if one of them is not kept, or the file changed."""
        kept = self._read()
        entry = next((entry for entry in kept if entry.choice == self._choice), None)
        if entry is None or not entry.tables.keys() >= set(views):
            return None
        columns = {view: tuple(row_types(view, thread_sep=self._thread_sep)) for view in views}
        rows = {}
        try:
            for view in views:
                values = self._decoded(view, entry.tables[view])
                rows[view] = [dict(zip(columns[view], row)) for row in values]
        except (ValueError, RecursionError):
            return None
        return Kept(entry.facts, columns, rows)

    def save(self, facts: Facts, tables: Mapping[str, pl.DataFrame]) -> None:
        """Keep tables, if the events of the trace are kept, too.

        Nothing is written if `load` would not return the same, if the trace file has changed, or if
        the directory cannot be written. Errors are not reported.
        """
        if self._key is None or not cache_path(self.path, EVENTS_SUFFIX).is_file():
            return
        with contextlib.suppress(OSError, TypeError, ValueError, RecursionError):
            entries = self._read()
            old = next((entry for entry in entries if entry.choice == self._choice), None)
            new = _Entry(self._choice, facts, dict(old.tables) if old else {})
            for view, table in tables.items():
                new.tables[view] = self._encoded(view, table)
            others = [entry for entry in entries if entry is not old]
            file = _File(self._key, [*others[1 - _MOST_ENTRIES :], new])
            body = msgspec.json.encode(file)
            if len(body) <= MOST_BYTES:
                prefix = _PREFIX.pack(_MAGIC, zlib.crc32(body))
                write_cache(self.path, _SUFFIX, (prefix, body), self._key)

    def _read(self) -> list[_Entry]:
        """Return the entries of the file; none if it is missing, of another trace, or damaged."""
        if self._key is None:
            return []
        try:
            content = read_cache(cache_path(self.path, _SUFFIX), MOST_BYTES + _PREFIX.size)
            magic, checksum = _PREFIX.unpack_from(content)
            body = memoryview(content)[_PREFIX.size :]
            if magic != _MAGIC or zlib.crc32(body) != checksum:
                return []
            file = msgspec.json.decode(body, type=_File)
        except (OSError, ValueError, RecursionError, struct.error):
            return []
        return file.entries if file.of == self._key else []

    def _encoded(self, view: str, table: pl.DataFrame) -> msgspec.Raw:
        """Return the rows of a table as JSON.

        Raises:
            ValueError: `load` would not return the same.
        """
        rows = table.rows()
        encoded = msgspec.Raw(msgspec.json.encode(rows))
        if (
            table.columns != list(row_types(view, thread_sep=self._thread_sep))
            or self._decoded(view, encoded) != rows
        ):
            raise ValueError(view)
        return encoded

    def _decoded(self, view: str, rows: msgspec.Raw) -> list[tuple[Any, ...]]:
        """Return the rows of a table.

        Raises:
            ValueError: `save` writes no such rows.
        """
        types = tuple(row_types(view, thread_sep=self._thread_sep).values())
        decoded: list[tuple[Any, ...]] = msgspec.json.decode(rows, type=list[Tuple[types]])  # type: ignore[valid-type]  # noqa: UP006
        if view == "op" and decoded and decoded[0][1] != "operator":
            raise ValueError("details of no operator")
        return decoded
