"""Products that compute rows which the next operator leaves out, such as the logits of all positions but the last."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.advice.called_operators import Shape, called_operators, shapes_in
from ppprof.analysis.efficiency.operator_work import Product, family_of, product_of
from ppprof.analysis.profile.profile import Profile
from ppprof.arrays import Int64
from ppprof.trace.operator_inputs import shapes_as_shown

MOST_KEPT = 0.5
"""Share of the rows. If more are used, the others are not worth a change."""

DISCARDED = {
    **{"step": pl.Int64(), "name": pl.String(), "time_ns": pl.Int64(), "row": pl.Int64()},
    **dict.fromkeys(("product_row", "taker_row", "rows", "kept"), pl.Int64()),
    "product": pl.String(),
}
"""Columns of `discarded_rows`."""

_SLICES = frozenset(("slice", "strided_slice"))
_MASKED = "masked_select"
_TAKERS = _SLICES | {_MASKED, "gather", "gather_nd", "index_select", "index_elementwise_get"}
"""Operators that take some rows. ``index_elementwise_get`` is ``logits[mask]``, whose shapes are not recorded."""
_VIEWS = frozenset(("reshape", "flatten", "squeeze", "unsqueeze"))
_LONGEST = 4
"""Operators between a product and the one that takes rows: a bias, an activation, a cast, a new shape."""


class _Chain(NamedTuple):
    """A product, the operators on each of its rows, and the one that takes some: numbers of calls."""

    members: list[int]
    """The product first, the operator that takes rows last."""
    product: Product
    states: frozenset[Shape]
    """Shapes that the results of the product and the operators have, but not the last one."""
    kept: int


def discarded_rows(profile: Profile) -> pl.DataFrame:
    """Return the products most of whose rows the next operator leaves out, and what else computes on these.

    ::

        matmul        [48,20,64] [1500,64]    960 rows
        slice         [48,20,1500]            scores[:, -1]
        cross_entropy [48,1500] [48,1]        48 of them
        slice_grad    [48,20,1500]            zeros for the others
        matmul_grad   [48,20,64] [1500,64]    gradients of zeros

    Between the product and the operator that takes rows, only operators on single elements count, such as
    the addition of a bias. Left out are products whose results another operator takes, too, as far as
    shapes show it, and those without gradients.

    Returns:
        A row for each call: columns of `DISCARDED`. time_ns is the share of its time that the rows have
        that are left out; of the gradient of the operator that takes rows, the share by which the
        rows of the product's input are shorter. row is that of the event, product_row and taker_row are those of both
        operators, and product is the name of the first. rows and kept are null, but for the product.
    """
    calls = _Calls(called_operators(profile))
    chains = list(calls.chains())
    members = {number for chain in chains for number in chain.members}
    parts = [calls.saved(chain) for chain in chains if not calls.is_taken_elsewhere(chain, members)]
    return pl.concat([pl.DataFrame(schema=DISCARDED), *parts])


class _Calls:
    """The calls of `called_operators`: N rows as arrays and lists."""

    def __init__(self, table: pl.DataFrame) -> None:
        self.table = table
        self.names: list[str] = table["name"].to_list()
        self.shapes: list[str | None] = table["shapes"].to_list()
        self.attributes: list[str | None] = table["attributes"].to_list()
        self.lane: list[int] = (
            table.select(pl.struct("step", "thread").rle_id()).to_series().to_list()
        )
        """A number for each step and thread."""
        self.starts: list[int] = table["start_ns"].to_list()
        self.gradient_starts: list[int] = table["gradient_start_ns"].fill_null(-1).to_list()
        self.linked = np.flatnonzero(table["gradient_row"].is_not_null().to_numpy())
        """Numbers of the calls with a gradient, ascending."""
        self._parsed: dict[str | None, list[Shape]] = {None: []}

    def inputs(self, number: int) -> list[Shape]:
        """Return the shapes of a call's inputs; [] if unknown."""
        text = self.shapes[number]
        if text not in self._parsed:
            self._parsed[text] = shapes_in(text)
        return self._parsed[text]

    def chains(self) -> Iterator[_Chain]:
        """Yield the chains, in the order of the operators that take rows."""
        linked = self.linked.tolist()
        for place in range(1, len(linked) - 1):
            if self.names[linked[place]] in _TAKERS:
                chain = self._chain(linked, place)
                if chain is not None:
                    yield chain

    def _chain(self, linked: list[int], place: int) -> _Chain | None:
        """Return the chain that ends with the call at a place of ``linked``; None without one."""
        taker, user = linked[place], linked[place + 1]
        if self.lane[user] != self.lane[taker]:
            return None
        shapes = self.inputs(taker)
        if not shapes and not self._are_neighbours(linked[place - 1 : place + 2]):
            return None
        state = shapes[0] if shapes else self._widest(linked[place - 1])
        members, states = [taker], set[Shape]()
        for number in reversed(linked[max(0, place - _LONGEST - 1) : place]):
            if (
                self.lane[number] != self.lane[taker]
                or len(state) < 2
                or state.count(state[-1]) > 1
            ):
                return None
            members.insert(0, number)
            states.add(state)
            product = self._product(number, state)
            if product is not None:
                kept = self._kept(user, taker, product)
                return None if kept is None else _Chain(members, product, frozenset(states), kept)
            before = self._before(number, state)
            if before is None:
                return None
            state = before
        return None

    def _are_neighbours(self, numbers: list[int]) -> bool:
        """Return whether the gradients of these calls are computed one behind the other, the last one's first."""
        places: list[int] = self._places_of_gradients[numbers].tolist()
        return places == list(range(places[0], places[0] - len(places), -1))

    @cached_property
    def _places_of_gradients(self) -> Int64:
        """The number of each call's gradient in the order of all gradients, shape (N,); any number without one."""
        places = np.zeros(len(self.names), np.int64)
        starts = np.array(self.gradient_starts)[self.linked]
        places[self.linked[np.argsort(starts, kind="stable")]] = np.arange(len(starts))
        return places

    def _widest(self, number: int) -> Shape:
        """Return the result's shape of a call in front of one of unknown shapes; () if it is unknown."""
        inputs = self.inputs(number)
        product = product_of(
            self.names[number], self.shapes[number] or "{}", self.attributes[number]
        )
        if product is not None and inputs:
            return (*inputs[0][:-1], product.n)
        is_simple = family_of(self.names[number]) == "pointwise"
        return max(inputs, key=math.prod, default=()) if is_simple else ()

    def _product(self, number: int, state: Shape) -> Product | None:
        """Return the product with weights that a call computes, if its result may have a shape."""
        text = self.shapes[number]
        if text is None or family_of(self.names[number]) != "product":
            return None
        found = product_of(self.names[number], text, self.attributes[number])
        if found is None or found.batch > 1 or len(self.inputs(number)[1]) != 2:
            return None
        return found if (found.m * found.n, found.n) == (math.prod(state), state[-1]) else None

    def _before(self, number: int, state: Shape) -> Shape | None:
        """Return the shape of the input whose rows are those of a call's result; None if it mixes them."""
        inputs = self.inputs(number)
        if self.names[number] in _VIEWS:
            shape = inputs[0] if inputs else ()
            same = shape[-1:] == state[-1:] and math.prod(shape) == math.prod(state)
            return shape if same else None
        return state if state in inputs and family_of(self.names[number]) == "pointwise" else None

    def _kept(self, user: int, taker: int, product: Product) -> int | None:
        """Return how many rows the next operator gets; None if too many, or if that is unknown."""
        taken = []
        for shape in self.inputs(user):
            size = math.prod(shape)
            is_flat = self.names[taker] == _MASKED and len(shape) == 1
            if (is_flat and size % product.n == 0) or shape[-1:] == (product.n,):
                taken.append((size // product.n, shape))
        kept, shape = max(taken, default=(0, ()))
        if self.names[taker] in _SLICES and not _is_part(shape, self.inputs(taker)[0]):
            return None
        return kept if 0 < kept <= MOST_KEPT * product.m else None

    def is_taken_elsewhere(self, chain: _Chain, members: set[int]) -> bool:
        """Return whether another operator may take the results of a chain before their gradients are computed."""
        first, last = chain.members[0], chain.members[-1]
        end_ns = self.gradient_starts[first]
        if end_ns < self.gradient_starts[last]:
            return True  # it has a gradient of another Backward, too
        for number in range(first + 1, len(self.names)):
            if self.lane[number] != self.lane[first] or self.starts[number] >= end_ns:
                return False
            if number in members:
                continue
            inputs = self.inputs(number)
            # Of unknown inputs, those without a gradient are numbers of rows.
            if chain.states.intersection(inputs) or (
                not inputs and self.gradient_starts[number] >= 0
            ):
                return True
        return False

    def saved(self, chain: _Chain) -> pl.DataFrame:
        """Return the rows of `DISCARDED` of a chain."""
        *computing, taker = chain.members
        share = 1 - chain.kept / chain.product.m
        rows = []
        for number in chain.members:
            each = self.table.row(number, named=True)
            name, shapes = each["name"], shapes_as_shown(each["shapes"] or "")
            is_product = number == computing[0]
            counts = (chain.product.m, chain.kept) if is_product else (None, None)
            if number != taker:
                saved_ns = share * each["time_ns"]
                rows.append((f"{name} {shapes}", saved_ns, each["row"], *counts))
                part = share
            else:  # it takes rows of the product's input instead, and its gradient has their shape
                part = max(0.0, 1 - chain.product.k / chain.product.n)
            saved_ns = part * each["gradient_ns"]
            rows.append(
                (f"{name}_grad {shapes}".rstrip(), saved_ns, each["gradient_row"], None, None)
            )
        found = pl.DataFrame(rows, ["name", "time_ns", "row", "rows", "kept"], orient="row")
        step, product_row, taker_row = (
            int(self.table[column][number])
            for column, number in (("step", computing[0]), ("row", computing[0]), ("row", taker))
        )
        found = found.with_columns(
            pl.col("time_ns").round(),
            step=step,
            product_row=product_row,
            taker_row=taker_row,
            product=pl.col("name").first(),
        )
        return found.select(pl.col(name).cast(dtype) for name, dtype in DISCARDED.items())


def _is_part(shape: Shape, whole: Shape) -> bool:
    """Return whether slices of a shape can have another one: some dims shorter, others left out.

    >>> _is_part((48, 1500), (48, 20, 1500)), _is_part((64, 1500), (48, 20, 1500))
    (True, False)
    """
    sizes = iter(whole)
    return all(any(size >= each for size in sizes) for each in shape)
