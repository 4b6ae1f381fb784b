"""Share the result of start-up checks between nodes.

A launcher ends its own ranks when one of them fails, but it does not know of other nodes. Their
ranks would wait in ``fleet.init`` for minutes, until the store's timeout.
"""

from __future__ import annotations

import os
import signal
import time

_KEY = "ppprof/checks"
_LEAVE_SECONDS = 10.0
"""How long rank 0, which hosts the store, waits for others to read it."""


def failed_anywhere(failed: bool) -> bool:
    """Return whether any rank has failed its start-up checks. All ranks must call it.

    On a single node it returns ``failed`` at once, without Paddle: the launcher ends the other
    ranks. If a rank has failed, SIGTERM is ignored from then on, and rank 0 waits up to
    `_LEAVE_SECONDS` for the others.

    Args:
        failed: whether this rank has failed its checks.

    Raises:
        RuntimeError: a rank has not called it before the store's timeout.
    """
    if int(os.environ.get("PADDLE_NNODES", "1")) == 1:
        return failed
    from paddle.base import core

    rank, world_size = (int(os.environ[f"PADDLE_TRAINER{name}"]) for name in ("_ID", "S_NUM"))
    store = core.create_or_get_global_tcp_store()
    store.add(f"{_KEY}/failures", int(failed))
    if store.add(f"{_KEY}/asked", 1) == world_size:
        store.set(f"{_KEY}/answer", str(store.add(f"{_KEY}/failures", 0)))
    anywhere = int(store.get(f"{_KEY}/answer")) > 0
    if anywhere:
        # When the first rank exits, its launcher sends SIGTERM to the others of the node. They
        # ignore it, to exit with their own code; and rank 0 must keep the store for other nodes.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        num_readers = store.add(f"{_KEY}/read", 1)
        deadline = time.monotonic() + _LEAVE_SECONDS
        while rank == 0 and num_readers < world_size and time.monotonic() < deadline:
            time.sleep(0.05)
            num_readers = store.add(f"{_KEY}/read", 0)
    return anywhere
