"""What checks found, told to every node before any waits for one that will not come.

A launcher ends its own ranks when one of them ends badly, but knows nothing of other nodes: theirs
would wait in ``fleet.init`` for minutes, until the store's time-out.
"""

from __future__ import annotations

import os
import signal
import time

_KEY = "ppprof/checks"
_LEAVE_SECONDS = 10.0
"""How long rank 0, in which the store lives, stays for others to read it."""


def failed_anywhere(failed: bool) -> bool:
    """Whether this rank or one of another node has failed its checks; all ranks are to ask.

    On one node it does not wait for others, and needs no Paddle.

    Raises:
        RuntimeError: a rank has not asked before the store's time-out.
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
        # The first to leave has its launcher end the others of the node, by whose signal it would
        # exit then; and rank 0 has to stay for the other nodes, with the store.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        have_read = store.add(f"{_KEY}/read", 1)
        deadline = time.monotonic() + _LEAVE_SECONDS
        while rank == 0 and have_read < world_size and time.monotonic() < deadline:
            time.sleep(0.05)
            have_read = store.add(f"{_KEY}/read", 0)
    return anywhere
