"""Threads of this process in which DataLoaders without workers read samples: one for each iterator, until its data end.

An iterator that the training leaves early, as ``next(iter(loader))`` does, goes on reading until its queue is
full. The next one reads the same dataset meanwhile, and a dataset that keeps a state between samples, such as the
parser of a line, then depends on when Python's threads take turns.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any


def thread_iterators() -> list[type]:
    """Return Paddle's class of the iterators; none in another version of Paddle."""
    with suppress(ImportError):
        from paddle.io.dataloader.dataloader_iter import _DataLoaderIterSingleProcess

        return [_DataLoaderIterSingleProcess]
    return []


def is_read_twice(beginning: Any = None) -> bool:
    """Return whether two threads read one dataset.

    Args:
        beginning: an iterator whose thread is about to start; None: whether threads do that already.
    """
    # A thread keeps what it calls, `iterator._thread_loop`, until it ends.
    iterators = [
        getattr(getattr(thread, "_target", None), "__self__", None)
        for thread in threading.enumerate()
    ]
    datasets = [
        id(iterator._dataset)
        for iterator in (*iterators, beginning)
        if isinstance(iterator, tuple(thread_iterators())) and hasattr(iterator, "_dataset")
    ]
    return len(set(datasets)) < len(datasets)
