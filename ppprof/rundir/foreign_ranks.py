"""Ranks of traces that ppprof did not write: from their content, their names, or their order."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from ppprof.paths import reject_special_files, store_errors_as_oserror

_HEAD_BYTES = 1 << 18
"""torch writes ``distributedInfo`` before the events, after a few KB of device properties; with the
ranks of many process groups it may itself have many KB."""
_INFORMATION = rb'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*([0-9]{1,6})\b'
_IN_NAME = r"rank[_-]?([0-9]{1,6})(?![0-9])"

BY_CONTENT = "distributedInfo.rank in the files"
BY_NAME = "the rank in their names"
BY_ORDER = "the order of their names"


def foreign_ranks(workers: Mapping[str, Path], first: int) -> tuple[dict[str, int], str]:
    """Return the rank of each worker, and where the ranks come from.

    The first of these that gives every worker a rank of its own, all from ``first`` on:
    ``distributedInfo.rank``, which torch writes into a trace; ``rank`` and a number in the worker's
    name; the order of the workers.

    Args:
        workers: worker -> one of its traces, in the order that counts if nothing else does.
        first: the lowest rank that is free.

    Returns:
        Worker -> rank; and `BY_CONTENT`, `BY_NAME` or `BY_ORDER`.
    """
    sources: Mapping[str, Callable[[str], int | None]] = {
        BY_CONTENT: lambda worker: _rank_in_file(workers[worker]),
        BY_NAME: _rank_in_name,
    }
    for source, rank_of in sources.items():
        ranks: dict[str, int] = {}
        for worker in workers:
            rank = rank_of(worker)
            if rank is None or rank < first or rank in ranks.values():
                break
            ranks[worker] = rank
        else:
            return ranks, source
    return {worker: rank for rank, worker in enumerate(workers, first)}, BY_ORDER


def _rank_in_name(worker: str) -> int | None:
    match = re.search(_IN_NAME, worker, re.IGNORECASE)
    return int(match[1]) if match else None


def _rank_in_file(path: Path) -> int | None:
    """Return ``distributedInfo.rank`` of a JSON trace; None without it, or if it is unreadable."""
    match = re.search(_INFORMATION, _head(path))
    return int(match[1]) if match else None


def looks_like_trace(path: Path) -> bool:
    """Return whether a file of any name holds a trace, from its first bytes or its suffix."""
    return path.name.endswith(".pb") or b'"traceEvents"' in _head(path)


def _head(path: Path) -> bytes:
    """Return the first bytes of a JSON file, unpacked; empty if it is unreadable or no JSON."""
    if not path.name.endswith((".json", ".json.gz")):
        return b""
    try:
        with store_errors_as_oserror(path):
            reject_special_files(path)
            with path.open("rb") as file:
                if path.name.endswith(".gz"):
                    import gzip  # only for these: every command imports this module

                    with gzip.open(file) as unpacked:
                        return unpacked.read(_HEAD_BYTES)
                return file.read(_HEAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""
