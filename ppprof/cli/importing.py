"""Import the modules of a command in less time."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

BLAS_THREADS = "OPENBLAS_NUM_THREADS"
"""How many threads numpy starts when it is imported: by default one for each processor, which wait
for work in a loop for some hundredths of a second."""


@contextmanager
def importing() -> Iterator[None]:
    """Turn the garbage collector off, and numpy's threads, while the block imports modules.

    Modules stay until the end of the process; looking for garbage in them takes 20 ms each time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with one_thread(BLAS_THREADS):
            yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


@contextmanager
def one_thread(*variables: str) -> Iterator[None]:
    """Set these environment variables to 1 for the block, unless they are set."""
    missing = [name for name in variables if name not in os.environ]
    os.environ.update(dict.fromkeys(missing, "1"))
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]
