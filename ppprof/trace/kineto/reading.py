"""Read the events of a Kineto file into columns, in the fastest way.

The compiled core reads blocks of valid JSON, and the decoder what the core leaves. Without the core,
the decoder reads everything. The result is the same: the file is divided into the same blocks, and a
block that is not valid JSON is read by the decoder alone.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ppprof.trace.fastpath import core
from ppprof.trace.json.batches import decoded_batches
from ppprof.trace.json.recovery import EventDecoder
from ppprof.trace.kineto.columns import KinetoColumns
from ppprof.trace.kineto.fields import KinetoEvent
from ppprof.trace.source import Progress, TraceStream


def read_kineto_columns(
    source: TraceStream, keys: dict[str, Any], skipped: Counter[str], progress: Progress | None
) -> KinetoColumns:
    """Return the events of a file.

    Args:
        source: the file, at the first event.
        keys: the keys before the list of events; those after it are added.
        skipped: counts the unreadable parts, by kind.
        progress: as `TraceStream` takes it.

    Raises:
        TraceError: the file cannot be read.
        MemoryError: there is not enough memory.
    """
    columns = KinetoColumns()
    decoder = EventDecoder(KinetoEvent, source.path, skipped)
    library = core.library()
    if library is None:
        for first, events in decoded_batches(source, decoder, keys):
            columns.add_decoded(first, events)
        return columns
    # Its arrays are of numpy; `--version` and the portable core need none of it.
    from ppprof.trace.kineto.scanned import add_scanned, new_reader

    reader = new_reader(library)
    for first, events in decoded_batches(source, decoder, keys, reader.add):
        columns.add_decoded(first, events)
    add_scanned(columns, reader)
    return columns
