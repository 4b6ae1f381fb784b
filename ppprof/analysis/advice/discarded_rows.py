"""Products that compute rows which the next operator leaves out, such as the logits of all positions but the last; or for which a loss has no label."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.advice.called_operators import called_operators
from ppprof.analysis.efficiency.operator_work import Product, family_of, product_of
from ppprof.analysis.profile.profile import Profile
from ppprof.arrays import Int64
from ppprof.trace.operator_inputs import LENGTHS, Shape, attributes_of, shapes_as_shown, shapes_in

MOST_KEPT = 0.5
"""Share of the rows. If more are used, the others are not worth a change."""

DISCARDED = {
    **{"step": pl.Int64(), "name": pl.String(), "time_ns": pl.Int64(), "row": pl.Int64()},
    **dict.fromkeys(("product_row", "taker_row", "rows", "kept"), pl.Int64()),
    **dict.fromkeys(("product", "taker"), pl.String()),
}
"""Columns of `discarded_rows`."""

_SLICES = frozenset(("slice", "strided_slice"))
_MASKED = "masked_select"
_INDEXED = frozenset(("gather", "index_select"))
_TAKERS = _SLICES | _INDEXED | {_MASKED, "gather_nd", "index_elementwise_get"}
"""Operators that take some rows. ``index_elementwise_get`` is ``logits[mask]``, whose shapes are not recorded."""
LOSSES = frozenset(("cross_entropy_with_softmax", "c_softmax_with_cross_entropy"))
"""Operators that take the rows with a label."""
_TABLES = frozenset(("embedding", "c_embedding"))
_TRANSPOSES = frozenset(("transpose_x", "transpose_y", "X2", "X3"))
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
    has_loss: bool
    """Whether the last operator is a loss, which takes rows with a label."""


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
    shapes show it, until the product's line computes one again, and those without gradients.
    How many rows are taken is read from the index; without one, from the next call, if its gradient
    is computed just ahead of those of the chain. Of a loss, it is the number of labels that are not ignored, by their share in
    all calls of its line whose labels were counted::

        matmul        [8,128,160] [160,8000]  1024 rows
        cross_entropy [8,128,8000] [8,128]    150 labels; the others are -100

    Returns:
        A row for each call: columns of `DISCARDED`. time_ns is the share of its time that the rows have
        that are left out; of the gradient of the operator that takes rows, the share by which the
        rows of the product's input are shorter. row is that of the event, product_row and taker_row are those of both
        operators, and product and taker are their names, the latter without shapes. rows and kept are null, but for the product.
    """
    calls = _Calls(called_operators(profile))
    chains = list(calls.chains())
    members: dict[object, set[int]] = {}
    for chain in chains:
        members.setdefault(calls.key(chain.members[0]), set()).update(chain.members)
    elsewhere = [
        chain
        for chain in chains
        if calls.is_taken_elsewhere(chain, members[calls.key(chain.members[0])])
    ]
    # A window may end ahead of the last step's metric.
    taken = {calls.key(chain.members[0]) for chain in elsewhere}
    parts = [calls.saved(chain) for chain in chains if calls.key(chain.members[0]) not in taken]
    return pl.concat([pl.DataFrame(schema=DISCARDED), *parts])


class _Calls:
    """The calls of `called_operators`: N rows as arrays and lists."""

    def __init__(self, table: pl.DataFrame) -> None:
        self.table = table
        self.names: list[str] = table["name"].to_list()
        self.shapes: list[str | None] = table["shapes"].to_list()
        self.attributes: list[str | None] = table["attributes"].to_list()
        self.callstacks: list[str | None] = table["callstack"].to_list()
        self.lane: list[int] = (
            table.select(pl.struct("step", "thread").rle_id()).to_series().to_list()
        )
        """A number for each step and thread."""
        self.threads: list[int] = table["thread"].to_list()
        self.starts: list[int] = table["start_ns"].to_list()
        self.num_gradients: list[int | None] = table["num_gradients"].to_list()
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
        for place in range(1, len(linked)):
            name = self.names[linked[place]]
            if name in LOSSES or (name in _TAKERS and place < len(linked) - 1):
                chain = self._chain(linked, place)
                if chain is not None:
                    yield chain

    def _chain(self, linked: list[int], place: int) -> _Chain | None:
        """Return the chain that ends with the call at a place of ``linked``; None without one."""
        taker = linked[place]
        has_loss = self.names[taker] in LOSSES
        users = [] if has_loss else linked[place + 1 : place + 2]
        if any(self.lane[user] != self.lane[taker] for user in users):
            return None
        shapes = self.inputs(taker)
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
                if has_loss:
                    kept = self._labelled(taker)
                else:
                    kept = self._taken([*members, *users], product)
                if kept is None or not 0 < kept <= MOST_KEPT * product.m:
                    return None
                return _Chain(members, product, frozenset(states), kept, has_loss)
            before = self._before(number, state, may_shift=has_loss)
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

    def _before(self, number: int, state: Shape, *, may_shift: bool) -> Shape | None:
        """Return the shape of the input whose rows are those of a call's result; None if it mixes them.

        Args:
            number: of the call.
            state: shape of its result.
            may_shift: whether it may leave out a few of them, ``logits[:, :-1]``; most of them make a chain of their own.
        """
        inputs = self.inputs(number)
        if may_shift and self.names[number] in _SLICES and inputs:
            is_shift = len(inputs[0]) == len(state) and _is_part(state, inputs[0])
            is_shift = is_shift and math.prod(state) > MOST_KEPT * math.prod(inputs[0])
            return inputs[0] if is_shift and inputs[0][-1] == state[-1] else None
        if self.names[number] in _VIEWS:
            shape = inputs[0] if inputs else ()
            same = shape[-1:] == state[-1:] and math.prod(shape) == math.prod(state)
            return shape if same else None
        return state if state in inputs and family_of(self.names[number]) == "pointwise" else None

    def _taken(self, numbers: list[int], product: Product) -> int | None:
        """Return how many rows the members of a chain and the next call take; None if that is unknown."""
        taker, user = numbers[-2:]
        if self.names[taker] in _INDEXED or self.names[taker] == "gather_nd":
            return self._indexed(taker, product)
        return self._used(user, taker, product) if self._are_neighbours(numbers) else None

    def _labelled(self, loss: int) -> int | None:
        """Return how many labels of a loss count; None if that is unknown."""
        num, num_kept = self._labels.get(self._loss_key(loss), (0, 0))
        whole, *_ = self.inputs(loss) or [()]
        return max(1, round(math.prod(whole[:-1]) * num_kept / num)) if num_kept and whole else None

    def _loss_key(self, number: int) -> tuple[object, ...]:
        return (*self.key(number), *(shape[-1:] for shape in self.inputs(number)[:1]))

    @cached_property
    def _labels(self) -> dict[object, tuple[int, int]]:
        """How many labels the calls of a loss have had, and how many of these count, where they were counted."""
        found: dict[object, tuple[int, int]] = {}
        for number in self.linked.tolist():
            if self.names[number] not in LOSSES:
                continue
            counts = attributes_of(self.attributes[number]).get(LENGTHS)
            known = isinstance(counts, list) and [each for each in counts if isinstance(each, int)]
            if known and len(known) == 2 and known[0] >= known[1]:
                key = self._loss_key(number)
                num, num_kept = found.get(key, (0, 0))
                found[key] = num + known[0], num_kept + known[1]
        return found

    def _indexed(self, taker: int, product: Product) -> int | None:
        """Return how many rows an index takes; None if it takes elements, or if that is unknown."""
        shapes = self.inputs(taker)
        if len(shapes) != 2:
            return None  # the axis is a tensor, too
        whole, index = shapes
        if self.names[taker] == "gather_nd":
            depth = index[-1] if index else 0
            is_of_rows = 0 < depth < len(whole)
            return math.prod((*index[:-1], *whole[depth:-1])) if is_of_rows else None
        known = attributes_of(self.attributes[taker])
        axis = next((known[name] for name in ("X2", "axis", "dim") if name in known), 0)
        if not isinstance(axis, int) or not -len(whole) <= axis < len(whole) - 1 or axis == -1:
            return None
        return product.m // max(1, whole[axis]) * math.prod(index)

    def _used(self, user: int, taker: int, product: Product) -> int | None:
        """Return how many rows the next call gets from one that has no index; None if that is unknown."""
        if self.names[taker] == _MASKED:
            return self._masked(user, taker, product)
        shapes = self.inputs(user)
        if self.names[user] in _TABLES:
            return None  # its inputs are numbers and a parameter
        if family_of(self.names[user]) == "product":
            shapes = self._multiplied(user, taker)
        whole = self.inputs(taker)
        rows = [
            (math.prod(shape) // product.n, shape)
            for shape in shapes
            if shape[-1:] == (product.n,)
            and (_is_part(shape, whole[0]) if whole else len(shape) > 1)
        ]
        return max(rows)[0] if rows else None

    def _multiplied(self, user: int, taker: int) -> list[Shape]:
        """Return the first input of a product behind one that takes rows; [] if that may be another branch's."""
        shapes = self.inputs(user)
        if len(shapes) < 2 or len(shapes[1]) != 2 or (self.num_gradients[user] or 0) < 2:
            return []  # an input without a gradient is a sample
        known, whole = attributes_of(self.attributes[user]), self.inputs(taker)
        is_transposed = any(known.get(name) is True for name in _TRANSPOSES)
        return [] if is_transposed and (not whole or _is_part(shapes[1], whole[0])) else shapes[:1]

    def _masked(self, user: int, taker: int, product: Product) -> int | None:
        """Return how many rows the elements of a mask fill; None unless the mask, or a new shape, is one of rows."""
        mask, elements = self.inputs(taker)[1:2], self.inputs(user)[:1]
        if not mask or not elements or len(elements[0]) != 1 or elements[0][0] % product.n:
            return None
        known = attributes_of(self.attributes[user])
        shape = next((known[name] for name in ("X1", "shape") if name in known), None)
        width = shape[-1] if isinstance(shape, list) and len(shape) > 1 else None
        is_shaped = self.names[user] == "reshape" and width == product.n
        is_of_rows = mask[0][-1:] == (1,) or is_shaped
        return elements[0][0] // product.n if is_of_rows else None

    def key(self, number: int) -> tuple[str, str | None]:
        """Return name and line of a call, or its inputs without a known line: others are computed in the same way."""
        return self.names[number], self.callstacks[number] or self.shapes[number]

    def is_taken_elsewhere(self, chain: _Chain, alike: set[int]) -> bool:
        """Return whether an operator may take the results of a chain that is not in one of the product's line (``alike``).

        Until their gradients are computed, and behind these, such as for a metric, until the product is
        computed again: a step may end ahead of its metric.
        """
        first, last = chain.members[0], chain.members[-1]
        end_ns = self.gradient_starts[first]
        if end_ns < self.gradient_starts[last]:
            return True  # it has a gradient of another Backward, too
        for number in range(first + 1, len(self.names)):
            if self.threads[number] != self.threads[first]:
                continue
            is_behind = self.starts[number] >= end_ns
            if is_behind and self.key(number) == self.key(first):
                return False
            if number not in alike and self._may_take(number, chain, is_behind):
                return True
        return False

    def _may_take(self, number: int, chain: _Chain, is_behind: bool) -> bool:
        """Return whether a call may take the results of a chain."""
        inputs, has_gradient = self.inputs(number), self.gradient_starts[number] >= 0
        if is_behind and has_gradient:
            return False  # it belongs to the next forward pass
        # Of unknown inputs, those without a gradient are numbers of rows.
        return bool(chain.states.intersection(inputs)) or (not inputs and has_gradient)

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
            if number != taker or chain.has_loss:
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
            taker=pl.lit(self.names[taker]),
        )
        return found.select(pl.col(name).cast(dtype) for name, dtype in DISCARDED.items())


def _is_part(shape: Shape, whole: Shape) -> bool:
    """Return whether slices of a shape can have another one: some dims shorter, others left out.

    >>> _is_part((48, 1500), (48, 20, 1500)), _is_part((64, 1500), (48, 20, 1500))
    (True, False)
    """
    sizes = iter(whole)
    return all(any(size >= each for size in sizes) for each in shape)
