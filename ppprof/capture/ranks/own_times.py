"""Send rank 0 how long each rank works itself in a step, and find the ranks that are slower than their peers.

::

    step       8  9 10 11 12 13 14 15 | 16 17 18 19
    rank 3     own time of each step  |          one message
    rank 4     own time of each step  |             one message
    rank 0                            | reads them; compares the steps that all ranks have sent

Each rank sends 8 steps at a time: an eighth of the ranks in each step, so that few messages arrive at once. In a large
job it leaves blocks out, so that rank 0 gets some 50 messages a second at most. A lost message is not sent again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ppprof.arrays import Float64
from ppprof.capture.ranks.control_channel import Message
from ppprof.slow_ranks import LEAST_RATIO, SlowRanks
from ppprof.topology import Topology

BLOCK = 8
_MESSAGES_PER_S = 50
PATIENCE = 3 * BLOCK
"""Steps after which those that some rank has not sent are compared without it."""


class OwnTimes:
    """The own times of this rank; on rank 0, those of all ranks."""

    def __init__(self, rank: int, topology: Topology) -> None:
        self._rank = rank
        self._num_ranks = topology.world_size
        self._block: list[int | None] = []
        self._is_wanted = False
        """Whether the block that goes on is sent in any case."""
        self._finished: list[int | None] = []
        """The block before, if it is to be sent."""
        self._steps: dict[int, Float64] = {}
        """On rank 0, those that were not compared yet, by number."""
        self._num_sent: Counter[int] = Counter()
        """How many ranks have sent each of them."""
        self._roles: list[int] = []
        if rank == 0:
            self._roles = [
                topology.coordinate(each).get("pp", 0) for each in range(self._num_ranks)
            ]
        self._test = SlowRanks(self._roles)

    def add(
        self, step: int, own_ns: int | None, step_ns: int, *, is_wanted: bool
    ) -> Message | None:
        """Add a step of this rank; return a message for rank 0 if one is due.

        Args:
            step: its number.
            own_ns: the time in which the rank neither communicated nor waited for data; None if unknown.
            step_ns: how long steps take.
            is_wanted: whether its block is not to be left out.
        """
        self._block.append(own_ns)
        self._is_wanted |= is_wanted
        if (step + 1) % BLOCK == 0:
            block_s = BLOCK * max(step_ns, 1) / 1e9
            every = 1 << max(0, math.ceil(math.log2(self._num_ranks / _MESSAGES_PER_S / block_s)))
            is_sent = self._is_wanted or step // BLOCK % every == 0
            self._finished = self._block if is_sent else []
            self._block, self._is_wanted = [], False
        steps_later = self._rank % BLOCK
        if (step + 1 - steps_later) % BLOCK or all(ns is None for ns in self._finished):
            return None
        last = step - steps_later
        return {"kind": "own", "step": last, "ns": self._finished, "rank": self._rank}

    def take(self, message: Mapping[str, Any]) -> None:
        """On rank 0, add the steps of a message; ``rank`` is who sent it."""
        values = message["ns"]
        for step, own_ns in enumerate(values, message["step"] - len(values) + 1):
            self._num_sent[step] += 1
            times = self._steps.setdefault(step, np.full(self._num_ranks, np.nan))
            if own_ns is not None:
                times[message["rank"]] = own_ns

    def ready(self, step: int) -> Iterator[tuple[int, Float64]]:
        """Yield the steps that can be compared now, and remove them: number, and own time of each rank.

        Args:
            step: number of the step that begins.
        """
        for number in sorted(self._steps):
            if self._num_sent[number] < self._num_ranks and number > step - PATIENCE:
                return
            del self._num_sent[number]
            yield number, self._steps.pop(number)

    def compare(self, own_ns: Float64) -> None:
        """Add a step to the test."""
        self._test.add(own_ns)

    def slow(self, step_ns: int) -> dict[int, int]:
        """Return the ranks that are slow now, each with the number of compared steps since it is."""
        return dict(self._test.slow(step_ns))

    def peers(self, rank: int, others: Collection[int], most: int) -> list[int]:
        """Return a rank and those of ``others`` with the same work, at most ``most`` together, sorted."""
        peers = [other for other in sorted(others) if self._roles[other] == self._roles[rank]]
        return sorted([rank, *peers[: most - 1]])


def rank_is_slow(rank: int, peers: Sequence[int], steps: Sequence[Float64]) -> bool:
    """Return whether a rank works longer than its peers in so few steps, by medians; True if that is unknown."""
    ranks = [rank, *(peer for peer in peers if peer != rank)]
    known = [own[ranks] for own in steps if np.isfinite(own[ranks]).all()]
    if not known or len(ranks) < 2:
        return True
    medians = np.median(known, axis=0)
    return bool(medians[0] > (1 + LEAST_RATIO) * np.median(medians[1:]))
