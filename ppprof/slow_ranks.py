"""Which ranks are slower than others with the same work: a test that goes on for days, with few false alarms.

::

    own work      rank 0   rank 1   rank 2   rank 3
    step 7           100      101      112       99    rank 2 is the slowest by more than 3%: its score x 3.25
    step 8           100      113      111      101    no rank is: all scores x 1/4

Of ranks with equal work, each is as likely as any other to be among the slowest quarter of a step, however
times are distributed. If 3% are taken off its own time, it is at most that likely. So what a fair bet on a rank
pays does not grow unless the rank is slower than that; a new bet begins in each step, and the score is what all of them
hold. It reaches a number A without a cause only once in A steps on average, so A is how many steps all
scores of all ranks have in 100 hours. A rank has four scores: bets on the slowest half are for many slow ranks, such as those of a
host, and pay 1.75; bets on medians of 32 steps are for small differences.

Source: Shin, Ramdas and Rinaldo, E-detectors: a nonparametric framework for sequential change detection, 2022
(the Shiryaev-Roberts e-detector). It assumes that noise does not favour one rank over many steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ppprof.arrays import Float64

LEAST_RATIO = 0.03
"""A rank that works so much longer than its peers, or less, is not slow."""
ALARM_HOURS = 100.0
"""Mean time to a false alarm of the job, at least."""
BLOCK = 32
"""Steps whose median has a score of its own."""
_SHARES = 4, 2
"""Bets are on the slowest quarter, and on the slowest half, of the ranks."""
_STAKE = 0.75
"""Part of the score that is bet in each step. With a rank of four, the score is multiplied by 3.25 or by 1/4."""
_MOST = 1e12
"""Highest score: a rank that has recovered loses it again within 25 steps."""


class SlowRanks:
    """The scores of ranks, step by step.

    Args:
        roles: the kind of work of each rank, by position: only ranks with the same role are compared.
    """

    def __init__(self, roles: Sequence[object]) -> None:
        by_role: dict[object, list[int]] = {}
        for position, role in enumerate(roles):
            by_role.setdefault(role, []).append(position)
        self._families = [np.array(each) for each in by_role.values() if len(each) > 1]
        self._num_ranks = len(roles)
        self._scores = np.zeros((2, len(_SHARES), len(roles)))
        """Of steps, and of medians of `BLOCK` steps; for each of `_SHARES`."""
        self._quiet = np.zeros(self._scores.shape, np.int64)
        """Steps that had been added when each score was below 1 for the last time."""
        self._block: list[Float64] = []
        self._num_steps = 0

    def add(self, own_ns: Float64) -> None:
        """Add a step.

        Args:
            own_ns: how long each rank worked itself, without waiting for others; NaN if that is unknown.
        """
        self._num_steps += 1
        self._bet(0, own_ns)
        self._block.append(own_ns)
        if len(self._block) == BLOCK:
            block, self._block = np.array(self._block), []
            is_known = np.isfinite(block).sum(axis=0) > BLOCK // 2
            medians = np.full(self._num_ranks, np.nan)
            medians[is_known] = np.nanmedian(block[:, is_known], axis=0)
            self._bet(1, medians)

    def slow(self, step_ns: float) -> list[tuple[int, int]]:
        """Return the position of each rank that is slow now, and since how many added steps it is.

        Args:
            step_ns: how long a step of the job takes.
        """
        alarm = self._scores.size * ALARM_HOURS * 3600e9 / max(step_ns, 1.0)
        reached = self._scores >= np.minimum([[[alarm]], [[alarm / BLOCK]]], _MOST)
        num_steps = np.where(reached, self._num_steps - self._quiet, 0).max(axis=(0, 1))
        return [(int(position), int(num_steps[position])) for position in np.flatnonzero(num_steps)]

    def _bet(self, kind: int, own_ns: Float64) -> None:
        for family in self._families:
            members = family[np.isfinite(own_ns[family])]
            if len(members) < 2:
                continue
            own = own_ns[members]
            slowest_first = np.sort(own)[::-1]
            usual = slowest_first[len(own) // 2]
            for place, share in enumerate(_SHARES):
                num_slowest = max(1, len(own) // share)
                is_slow = own > slowest_first[num_slowest] + LEAST_RATIO * usual
                factor = np.where(is_slow, 1 + _STAKE * (len(own) / num_slowest - 1), 1 - _STAKE)
                score = np.minimum((self._scores[kind, place, members] + 1) * factor, _MOST)
                self._scores[kind, place, members] = score
                self._quiet[kind, place, members[score < 1]] = self._num_steps
