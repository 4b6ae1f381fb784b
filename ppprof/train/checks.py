"""Share the result of start-up checks between nodes.

When a rank fails, its launcher ends the other ranks of the same node only. Without this module, the
ranks of other nodes would wait in ``fleet.init`` for minutes, until the store's timeout.
"""

from __future__ import annotations

import os
import signal
import time

_KEY = "ppprof/checks"
_LEAVE_SECONDS = 10.0
"""How long rank 0, which hosts the store, waits for other ranks to read the result."""


def failed_anywhere(failed: bool) -> bool:
    """Return whether any rank of the job has failed its start-up checks. All ranks must call this.

    On a single node, return ``failed`` at once, without importing Paddle: other ranks do not count,
    since the launcher ends them. On several nodes, wait for all ranks. If any rank has failed, this
    process ignores SIGTERM from then on, and rank 0 waits up to 10 s until all ranks have the result.

    Args:
        failed: whether this rank has failed its checks.

    Raises:
        RuntimeError: a rank has not called this function before the store's timeout.
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
        # When the first rank exits, its launcher sends SIGTERM to the other ranks of the node. They
        # ignore it to exit with their own codes. Rank 0 must keep the store open for other nodes.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        num_readers = store.add(f"{_KEY}/read", 1)
        deadline = time.monotonic() + _LEAVE_SECONDS
        while rank == 0 and num_readers < world_size and time.monotonic() < deadline:
            time.sleep(0.05)
            num_readers = store.add(f"{_KEY}/read", 0)
    return anywhere
