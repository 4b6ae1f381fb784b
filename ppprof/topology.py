"""The topology of a hybrid-parallel job: rank <-> coordinate (dp, pp, sharding, sep, mp).

dp 2 x pp 2 x mp 2 in Fleet's default order, outermost axis first::

    rank         0    1    2    3    4    5    6    7
    dp           0    0    0    0    1    1    1    1
    pp           0    0    1    1    0    0    1    1
    mp           0    1    0    1    0    1    0    1
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from ppprof.errors import UsageError

AXES = ("dp", "pp", "sharding", "sep", "mp")
"""The axes that each topology has, in Fleet's default order: outermost (slowest to change) first."""

_OWN_NAME = re.compile(r"[a-z][a-z0-9]{0,19}(_[a-z0-9]{1,20})?")
"""Names of further axes, such as Fleet's ``context`` and ``moe_sharding``, and a mesh's ``d0``."""
_REPLICATED = ("dp", "sharding", "moe_sharding", "dense_sharding")
"""Axes along which the data differ. Fleet has the last two instead of sharding where experts are
parallel (EPHybridCommunicateGroup)."""

MOST_RANKS = 1_000_000
"""Largest world size of a topology. Code loops over all ranks, and manifests are untrusted."""

RankSelector = Union[str, int, Sequence[int], Mapping[str, Union[int, str]]]
"""``"all"``, ``3``, ``"0,8-15"``, ``[0, 8]`` or coordinates such as ``{"dp": 0, "pp": "all"}``.

Coordinates select every rank at these positions. A missing axis means all of its positions."""


@dataclass(frozen=True)
class Topology:
    """Degrees of the parallel axes, and the order in which ranks are numbered along them.

    >>> topology = Topology.of(dp=2, mp=2, pp=2)
    >>> topology.coordinate(5)
    {'dp': 1, 'pp': 0, 'sharding': 0, 'sep': 0, 'mp': 1}
    >>> topology.groups("pp")
    [[0, 2], [1, 3], [4, 6], [5, 7]]

    Raises:
        UsageError: ``order`` does not name each of `AXES` once, a further name is invalid, a
            degree is not a whole number of at least 1, or there are more than `MOST_RANKS` ranks.
    """

    degrees: tuple[int, ...]
    """The degree of each axis, in the order of ``order``; each at least 1."""
    order: tuple[str, ...] = AXES
    """`AXES` and further axes, from the outermost axis (slowest to change) to the innermost."""

    def __post_init__(self) -> None:
        order, own = self.order, [axis for axis in self.order if axis not in AXES]
        is_named = len({*AXES, *order}) == len(order) == len(self.degrees)
        if not is_named or not all(map(_OWN_NAME.fullmatch, own)) or len(own) > len(AXES):
            raise UsageError(f"axis order {order!r}: expected each of {AXES!r} once")
        if any(not isinstance(degree, int) or degree < 1 for degree in self.degrees):
            raise UsageError(f"degrees {self.degrees!r}: expected whole numbers, at least 1")
        if self.world_size > MOST_RANKS:
            raise UsageError(f"degrees {self.degrees!r}: more than {MOST_RANKS} ranks")

    @classmethod
    def of(cls, order: Sequence[str] = AXES, **degrees: int) -> Topology:
        """Return a topology from degrees by axis name, such as ``dp=2``; other axes have degree 1.

        Raises:
            UsageError: a name is not in ``order``, or `Topology` rejects ``order`` or a degree.
        """
        unknown = set(degrees) - set(order)
        if unknown:
            raise UsageError(f"unknown axis {sorted(unknown)}; expected some of {order!r}")
        return cls(tuple(degrees.get(axis, 1) for axis in order), tuple(order))

    @property
    def world_size(self) -> int:
        """The number of ranks: the product of the degrees."""
        return math.prod(self.degrees)

    @property
    def replicas(self) -> int:
        """The number of model copies that train on different data: dp x sharding."""
        return math.prod(self.degree(axis) for axis in _REPLICATED if axis in self.order)

    def replica(self, rank: int) -> int:
        """Return the number of the model copy that ``rank`` holds a part of, from 0 to replicas - 1.

        Raises:
            UsageError: the topology has no such rank.
        """
        coordinate, replica = self.coordinate(rank), 0
        for axis in _REPLICATED:
            if axis in self.order:
                replica = replica * self.degree(axis) + coordinate[axis]
        return replica

    def degree(self, axis: str) -> int:
        """Return the degree of an axis of ``order``, such as ``"dp"``."""
        return self.degrees[self.order.index(axis)]

    def coordinate(self, rank: int) -> dict[str, int]:
        """Return the position of ``rank`` on every axis, keyed by axis in the order of ``order``.

        Raises:
            UsageError: the topology has no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise UsageError(f"rank {rank}: expected 0 to {self.world_size - 1}")
        coordinate = {}
        for axis, degree in zip(reversed(self.order), reversed(self.degrees)):
            rank, coordinate[axis] = divmod(rank, degree)
        return {axis: coordinate[axis] for axis in self.order}

    def rank(self, coordinate: Mapping[str, int]) -> int:
        """Return the rank at a coordinate, such as ``{"dp": 1}``; a missing axis has position 0.

        The inverse of the method `coordinate`. Nothing is checked: each position must be from 0 to
        its axis's degree - 1, and keys that are not axes are ignored.
        """
        rank = 0
        for axis, degree in zip(self.order, self.degrees):
            rank = rank * degree + coordinate.get(axis, 0)
        return rank

    def groups(self, axis: str) -> list[list[int]]:
        """Return the communication groups of an axis of ``order``, sorted by first rank.

        A group holds the ranks, ascending, that differ in their position on this axis alone. If the
        axis has degree 1, each rank is a separate group.
        """
        by_rest: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.world_size):
            coordinate = self.coordinate(rank)
            rest = tuple(position for name, position in coordinate.items() if name != axis)
            by_rest.setdefault(rest, []).append(rank)
        return sorted(by_rest.values())

    def axis_of(self, ranks: Collection[int]) -> str | None:
        """Return the axis that a group of ranks communicates over; several axes are joined by +.

        Ranks that differ on a single axis communicate over that axis, even if the group lacks some
        of its ranks: two neighbouring stages give ``pp``. Ranks that differ on several axes
        communicate over these axes, named in the order of ``order``, if the group is complete: it
        must have a rank for each combination of positions. Axes of degree 1 never appear.

        >>> topology = Topology.of(dp=2, mp=2, pp=2)
        >>> topology.axis_of([1, 3]), topology.axis_of([0, 1, 4, 5]), topology.axis_of([0, 3])
        ('pp', 'dp+mp', None)

        Returns:
            None for an empty group, for a single rank, if a rank is outside the topology, and for
            an incomplete group that differs on several axes.
        """
        distinct = set(ranks)
        if any(not 0 <= rank < self.world_size for rank in distinct):
            return None
        coordinates = [tuple(self.coordinate(rank).values()) for rank in distinct]
        positions = zip(self.order, zip(*coordinates))
        differing = [axis for axis, along in positions if len(set(along)) > 1]
        is_complete = len(distinct) == math.prod(map(self.degree, differing))
        return "+".join(differing) if differing and (is_complete or len(differing) == 1) else None

    def label(self, rank: int) -> str:
        """Return the coordinate of a rank as file names contain it, axes in the order of ``order``.

        ``sep`` appears only if its degree is above 1. Names of further axes have no underscores.

        >>> Topology.of(dp=2, mp=2).label(3)
        'dp1_pp0_sharding0_mp1'

        Raises:
            UsageError: the topology has no such rank.
        """
        return "_".join(
            f"{axis.replace('_', '')}{position}"
            for axis, position in self.coordinate(rank).items()
            if axis != "sep" or self.degree("sep") > 1
        )

    def select(self, selector: RankSelector) -> frozenset[int]:
        """Return the ranks that ``selector`` selects; an empty set for an empty list.

        >>> sorted(Topology.of(dp=2, pp=2, mp=2).select({"dp": 0, "mp": 0, "pp": "all"}))
        [0, 2]
        >>> sorted(Topology.of(dp=16).select("0,8-10"))
        [0, 8, 9, 10]

        Raises:
            UsageError: the text is not a selector, or ``selector`` names a rank, an axis or a
                position outside the topology.
        """
        if selector == "all":
            return frozenset(range(self.world_size))
        if isinstance(selector, Mapping):
            return self._select_coordinates(selector)
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

    def _select_coordinates(self, coordinate: Mapping[str, int | str]) -> frozenset[int]:
        unknown = set(coordinate) - set(self.order)
        if unknown:
            raise UsageError(f"unknown axis {sorted(unknown)}; expected some of {self.order!r}")
        ranges = []
        for axis, degree in zip(self.order, self.degrees):
            position = coordinate.get(axis, "all")
            if position == "all":
                ranges.append(range(degree))
            elif isinstance(position, int) and 0 <= position < degree:
                ranges.append(range(position, position + 1))
            else:
                raise UsageError(f"{axis}: {position!r}: expected all or 0 to {degree - 1}")
        positions = itertools.product(*ranges)
        return frozenset(self.rank(dict(zip(self.order, position))) for position in positions)


def own_axes(topology: Topology) -> list[str]:
    """Return the axes with a degree above 1 that are not in `AXES`, such as Fleet's ``context``."""
    return [axis for axis in topology.order if axis not in AXES and topology.degree(axis) > 1]


def is_own_axis(name: str) -> bool:
    """Return whether a topology may have an axis of this name beside `AXES`.

    >>> is_own_axis("context"), is_own_axis("Context")
    (True, False)
    """
    return _OWN_NAME.fullmatch(name) is not None


def parse_selector(text: str) -> RankSelector:
    """Parse a selector of the command line: text with ``=`` becomes coordinates, other text stays.

    `Topology.select` checks later that the axes, positions and ranks exist.

    >>> parse_selector("pp=0, dp=all"), parse_selector("0,8-15")
    ({'pp': 0, 'dp': 'all'}, '0,8-15')

    Raises:
        UsageError: an axis is named twice.
    """
    if "=" not in text:
        return text
    coordinate: dict[str, int | str] = {}
    for part in text.split(","):
        axis, _, position = (word.strip() for word in part.partition("="))
        if axis in coordinate:
            raise UsageError(f'"{text}": {axis} is given twice; expected for example "pp=0,dp=all"')
        coordinate[axis] = int(position) if position.isdecimal() else position
    return coordinate


def _parse_ranges(text: str, world_size: int) -> list[int]:
    """Parse ``"0,8-10"`` to ``[0, 8, 9, 10]``."""
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
