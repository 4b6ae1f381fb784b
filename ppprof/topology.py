"""Where a rank stands in the hybrid-parallel grid: rank <-> (dp, pp, sharding, sep, mp).

A grid of dp 2 x pp 2 x mp 2 in Fleet's default order, outermost axis first::

    rank         0    1    2    3    4    5    6    7
    dp           0    0    0    0    1    1    1    1
    pp           0    0    1    1    0    0    1    1
    mp           0    1    0    1    0    1    0    1
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from ppprof.errors import UsageError

AXES = ("dp", "pp", "sharding", "sep", "mp")
"""Fleet's default ``hybrid_parallel_order``, outermost (slowest to change) first."""

MOST_RANKS = 1_000_000
"""Of a grid: ranks are counted out, and a manifest may tell any number."""

RankSelector = Union[str, int, Sequence[int], Mapping[str, Union[int, str]]]
"""``"all"``, ``3``, ``"0,8-15"``, ``[0, 8]`` or coordinates such as ``{"dp": 0, "pp": "all"}``."""


@dataclass(frozen=True)
class Topology:
    """Degrees of the parallel axes and the order in which ranks are laid out over them.

    >>> grid = Topology.of(dp=2, mp=2, pp=2)
    >>> grid.coordinate(5)
    {'dp': 1, 'pp': 0, 'sharding': 0, 'sep': 0, 'mp': 1}
    >>> grid.groups("pp")
    [[0, 2], [1, 3], [4, 6], [5, 7]]
    """

    degrees: tuple[int, ...]
    """One degree an axis, in the order of ``order``; each at least 1."""
    order: tuple[str, ...] = AXES
    """A permutation of `AXES`, outermost first."""

    def __post_init__(self) -> None:
        if sorted(self.order) != sorted(AXES) or len(self.degrees) != len(self.order):
            raise UsageError(f"axis order {self.order!r}: expected a permutation of {AXES!r}")
        if any(not isinstance(degree, int) or degree < 1 for degree in self.degrees):
            raise UsageError(f"degrees {self.degrees!r}: each must be a number, at least 1")
        if self.world_size > MOST_RANKS:
            raise UsageError(f"degrees {self.degrees!r}: more than {MOST_RANKS} ranks")

    @classmethod
    def of(cls, order: Sequence[str] = AXES, **degrees: int) -> Topology:
        """A topology from degrees by name; an axis that is not named has degree 1."""
        unknown = set(degrees) - set(AXES)
        if unknown:
            raise UsageError(f"unknown axis {sorted(unknown)}; expected some of {AXES!r}")
        return cls(tuple(degrees.get(axis, 1) for axis in order), tuple(order))

    @property
    def world_size(self) -> int:
        """How many ranks the grid has: the product of the degrees."""
        return math.prod(self.degrees)

    @property
    def replicas(self) -> int:
        """Copies of the model, each with data of its own: dp x sharding."""
        return self.degree("dp") * self.degree("sharding")

    def degree(self, axis: str) -> int:
        """The degree of one axis."""
        return self.degrees[self.order.index(axis)]

    def coordinate(self, rank: int) -> dict[str, int]:
        """Where ``rank`` stands on every axis, in the order of ``order``."""
        if not 0 <= rank < self.world_size:
            raise UsageError(f"rank {rank}: expected 0 to {self.world_size - 1}")
        coordinate = {}
        for axis, degree in zip(reversed(self.order), reversed(self.degrees)):
            rank, coordinate[axis] = divmod(rank, degree)
        return {axis: coordinate[axis] for axis in self.order}

    def rank(self, coordinate: Mapping[str, int]) -> int:
        """The rank at ``coordinate``; an axis that is not named is 0. Inverse of `coordinate`."""
        rank = 0
        for axis, degree in zip(self.order, self.degrees):
            rank = rank * degree + coordinate.get(axis, 0)
        return rank

    def groups(self, axis: str) -> list[list[int]]:
        """The ranks that differ on ``axis`` alone: one list a communication group, sorted."""
        by_rest: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.world_size):
            rest = tuple(at for name, at in self.coordinate(rank).items() if name != axis)
            by_rest.setdefault(rest, []).append(rank)
        return sorted(by_rest.values())

    def axis_of(self, ranks: Collection[int]) -> str | None:
        """The axis that a group of ranks communicates over; of several, ``dp+sharding``.

        Ranks that differ on one axis alone are of that axis, all of its group or some of them: two
        neighbouring stages are ``pp``. Ranks that differ on several are of these, in the order of
        ``order``, where they are all there are between them. An axis of degree 1 is never told.

        >>> grid = Topology.of(dp=2, mp=2, pp=2)
        >>> grid.axis_of([1, 3]), grid.axis_of([0, 1, 4, 5]), grid.axis_of([0, 3])
        ('pp', 'dp+mp', None)

        Returns:
            None for a single rank, for a rank outside the grid, and where no axes make the group.
        """
        distinct = set(ranks)
        if any(not 0 <= rank < self.world_size for rank in distinct):
            return None
        at = [tuple(self.coordinate(rank).values()) for rank in distinct]
        differing = [axis for axis, along in zip(self.order, zip(*at)) if len(set(along)) > 1]
        is_whole = len(distinct) == math.prod(map(self.degree, differing))
        return "+".join(differing) if differing and (is_whole or len(differing) == 1) else None

    def label(self, rank: int) -> str:
        """The coordinate as file names carry it; ``sep`` only where it is used.

        >>> Topology.of(dp=2, mp=2).label(3)
        'dp1_pp0_sharding0_mp1'
        """
        return "_".join(
            f"{axis}{at}"
            for axis, at in self.coordinate(rank).items()
            if axis != "sep" or self.degree("sep") > 1
        )

    def select(self, selector: RankSelector) -> frozenset[int]:
        """The ranks that ``selector`` names.

        >>> sorted(Topology.of(dp=2, pp=2, mp=2).select({"dp": 0, "mp": 0, "pp": "all"}))
        [0, 2]
        >>> sorted(Topology.of(dp=16).select("0,8-10"))
        [0, 8, 9, 10]

        Raises:
            UsageError: not one of the forms above, or a rank outside the grid.
        """
        if selector == "all":
            return frozenset(range(self.world_size))
        if isinstance(selector, Mapping):
            return self._at(selector)
        if isinstance(selector, int):
            ranks = [selector]
        elif isinstance(selector, str):
            ranks = _parse_ranges(selector, self.world_size)
        else:
            ranks = list(selector)
        outside = sorted(rank for rank in ranks if not 0 <= rank < self.world_size)
        if outside:
            raise UsageError(f"ranks {outside}: expected 0 to {self.world_size - 1}")
        return frozenset(ranks)

    def _at(self, coordinate: Mapping[str, int | str]) -> frozenset[int]:
        unknown = set(coordinate) - set(self.order)
        if unknown:
            raise UsageError(f"unknown axis {sorted(unknown)}; expected some of {self.order!r}")
        along = []
        for axis, degree in zip(self.order, self.degrees):
            at = coordinate.get(axis, "all")
            if at == "all":
                along.append(range(degree))
            elif isinstance(at, int) and 0 <= at < degree:
                along.append(range(at, at + 1))
            else:
                raise UsageError(f"{axis}: {at!r}: expected all or 0 to {degree - 1}")
        return frozenset(self.rank(dict(zip(self.order, at))) for at in itertools.product(*along))


def parse_selector(text: str) -> RankSelector:
    """A selector as a command line has it: coordinates are ``"pp=0,dp=1"``, the rest as it is.

    Whether such ranks exist depends on the grid: `Topology.select` tells.

    >>> parse_selector("pp=0, dp=all"), parse_selector("0,8-15")
    ({'pp': 0, 'dp': 'all'}, '0,8-15')

    Raises:
        UsageError: an axis is named twice.
    """
    if "=" not in text:
        return text
    coordinate: dict[str, int | str] = {}
    for part in text.split(","):
        axis, _, at = (word.strip() for word in part.partition("="))
        if axis in coordinate:
            raise UsageError(f'"{text}": {axis} is there twice; expected such as "pp=0,dp=all"')
        coordinate[axis] = int(at) if at.isdecimal() else at
    return coordinate


def _parse_ranges(text: str, world_size: int) -> list[int]:
    """``"0,8-10"`` to ``[0, 8, 9, 10]``; none beyond the world."""
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            start, stop = int(first), int(last if dash else first)
        except ValueError:
            stop = start = -1
        if start < 0 or stop < start:
            raise UsageError(
                f'ranks "{text}": expected all, or numbers and ranges such as "0,8-15"'
            )
        if stop >= world_size:
            raise UsageError(f'ranks "{text}": expected 0 to {world_size - 1}')
        ranks.extend(range(start, stop + 1))
    return ranks
