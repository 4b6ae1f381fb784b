"""Read the events of a Kineto file into columns, in the fastest way.

The compiled core reads blocks of valid JSON, and the decoder what the core leaves. A long file is
divided into parts, which threads scan. Without the core, the decoder reads everything. The result is
the same: the file is divided into the same parts and blocks, and a block that is not valid JSON is
read by the decoder alone.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from ppprof.trace.fastpath import core
from ppprof.trace.fastpath.threads import num_processors
from ppprof.trace.json.batches import decoded_batches, part_bounds
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
    bounds = part_bounds(source)
    library = core.library()
    if library is None:
        for first, events in decoded_batches(source, decoder, keys, None, bounds):
            columns.add_decoded(first, events)
        return columns
    # Its arrays are of numpy; `--version` and the portable core need none of it.
    from ppprof.trace.kineto.part_scans import PartScans
    from ppprof.trace.kineto.scanned import ScannedEvents, new_reader

    scanned = ScannedEvents()
    with PartScans(
        source.path,
        source.position,
        bounds,
        partial(new_reader, library),
        scanned.add,
        num_processors(),
    ) as scans:
        for first, events in decoded_batches(source, decoder, keys, scans, bounds):
            columns.add_decoded(first, events)
        scans.finish()
    columns.ignored += scanned.ignored
    columns.add_tables(scanned.tables())
    return columns
