"""Note when Paddle's DataLoaders start and stop their worker processes: for each pass over the data, unless they persist."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

_STARTS, _STOPS, _RESUMES = "_init_workers", "_try_shutdown_all", "_reset"
"""Methods of Paddle's iterator with workers. Making it also asks the sampler for the first samples. The last one waits until persistent workers have begun anew."""


def watch_starts(
    note: Callable[[int, int, bool], None], clock: Callable[[], int] = time.perf_counter_ns
) -> Callable[[], None] | None:
    """Call ``note`` when an iterator of a DataLoader has started, stopped or resumed its worker processes.

    Args:
        note: takes how many processes were started, how long it took in ns, and whether the iterator has
            stopped them, mostly since its data have ended. It must not raise.
        clock: in ns.

    Returns:
        A function that ends this; None if this version of Paddle has no such iterators.
    """
    from ppprof.capture.recording.patches import Patches

    try:
        from paddle.io.dataloader.dataloader_iter import _DataLoaderIterMultiProcess as Iterator
    except ImportError:
        return None
    patches = Patches()

    def noted(name: str) -> Callable[..., Any]:
        def call(method: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
            begin = clock()
            try:
                return method(self, *args, **kwargs)
            finally:
                num_workers = len(getattr(self, "_workers", ())) if name == _STARTS else 0
                note(num_workers, clock() - begin, name == _STOPS)

        return call

    for name in (_STARTS, _STOPS, _RESUMES):
        patches.install(Iterator, name, noted(name))
    return patches.uninstall
