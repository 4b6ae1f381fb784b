"""Calls of layers that compute again what an earlier call of the layer has computed in the step.

In the first step of a window, a call whose results have the numbers of those of an earlier call of the same layer
is a repeated one (`ValueNumbers`). A later step has the same repeated calls if it calls the same layers in the
same order::

    step 0    net  encoder  head  encoder  head      values are known
    step 1    net  encoder  head  encoder  head      the same calls
                                  repeated
    step 2    net  encoder  head                     other calls: none is known to be repeated

A call inside another call of a layer does not count if the earlier one is inside another call of that outer layer:
the outer layer computes something else, such as with other random numbers, and needs both::

    encoder  table  dropout       encoder  table  dropout       SimCSE: two views of one batch
                                           does not count

A call whose results are a part of what the earlier one returned is a repeated one, too, and so is a call without gradients
that returns the values of an earlier one with gradients::

    model(ids, labels)     returns loss, logits
    model(ids)             returns logits, for a metric: repeated

A Backward that frees its graph ends what is known: results whose gradients were computed cannot be used again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ppprof.arrays import Int64
from ppprof.capture.recording.value_numbers import (
    Value,
    ValueNumbers,
    has_gradients,
    numbers_in,
)

T = TypeVar("T")


class Place(NamedTuple):
    """The lines of a call, by their numbers."""

    line: int
    """The user's line that calls the layer."""
    caller: int
    """The user's line that calls the function of that line; -1 if unknown."""


LayerCall = tuple[int, int, int]
"""Thread and start of a call of a layer, and the row of the layer."""


class _Earlier(NamedTuple):
    """The call that computed a value."""

    place: Place
    around: LayerCall | None
    numbers: frozenset[int]
    """Of the tensors that it returned."""
    alike: frozenset[int]
    """Likewise, of equal values with gradients or without."""


class Repeated(NamedTuple):
    """A kind of repeated calls."""

    layer: int
    """Row of the layer."""
    place: Place
    """Where it is called."""
    earlier: Place
    """Where it was called before."""


class RepeatedCalls:
    """The repeated calls of layers in a window."""

    def __init__(self, values: ValueNumbers | None) -> None:
        self.values = values
        """The numbers of the first step's values; None once it is over, or if they are unknown."""
        self._seen: dict[tuple[int, Value], _Earlier] = {}
        self._returned: dict[tuple[int, int], _Earlier] = {}
        """The latest call of a layer that returned a tensor, by the tensor's number (`ValueNumbers.alike`)."""
        self._repeated: dict[tuple[int, int], Repeated] = {}
        """By thread and start of a call."""
        self._ends: list[int] = []
        """The number of calls of layers until the end of each step."""

    def note(self, call: LayerCall, around: LayerCall | None, results: Any, place: Place) -> None:
        """Note a call in the first step.

        Args:
            call: the call, which has ended.
            around: the call inside which it was made; None outside of layers.
            results: what it has returned.
            place: its lines.
        """
        if self.values is None or self.values.num_backwards:
            return
        value = self.values.value_of_results(results)
        if value is None:
            return
        thread, start, layer = call
        numbers = frozenset(numbers_in(value))
        alike = frozenset(map(self.values.alike, numbers))
        now = _Earlier(place, around, numbers, alike)
        earlier: _Earlier | None = self._seen.setdefault((layer, value), now)
        if earlier is now:
            earlier = self._with_all(layer, now, results)
        before = None if earlier is None else earlier.around
        is_other = around and before and around != before and around[2] == before[2]
        if earlier is None or is_other:
            self._seen[layer, value] = now
            self._returned.update(((layer, number), now) for number in alike)
            return
        self._repeated[thread, start] = Repeated(layer, place, earlier.place)

    def _with_all(self, layer: int, now: _Earlier, results: Any) -> _Earlier | None:
        """Return an earlier call that returned all tensors that a call returns now; without gradients, if now none has one."""
        earlier = self._returned.get((layer, min(now.alike)))
        if earlier is None:
            return None
        has_all = earlier.numbers >= now.numbers
        if not has_all and not has_gradients(results):
            has_all = earlier.alike >= now.alike
        return earlier if has_all else None

    def begin_backward(self, *, retains: bool) -> None:
        """Note that a call begins to compute gradients, and whether it retains the graph."""
        if not retains:
            self._seen.clear()
            self._returned.clear()
        if self.values is not None:
            self.values.num_backwards += 1

    def end_backward(self) -> None:
        """Note that it ends."""
        if self.values is not None:
            self.values.num_backwards -= 1

    def end_step(self, num_calls: int) -> None:
        """Note the end of a step, and forget all values.

        Args:
            num_calls: how many calls of layers the window has until now.
        """
        self._ends.append(num_calls)
        self.stop()

    def begin_segment(self) -> None:
        """Forget the ends of later steps than the first one: a segment begins, with the calls of the first step."""
        del self._ends[1:]

    def stop(self) -> None:
        """Forget all values: no more calls are known to be repeated."""
        self.values = None
        self._seen.clear()
        self._returned.clear()

    def found(self, calls: Int64) -> dict[int, Repeated]:
        """Return the repeated calls of all steps, by their rows.

        Args:
            calls: thread, start, end and layer of the calls of layers, in the order in which they ended.
        """
        values = (
            (row, self._repeated.get((thread, start)))
            for row, (thread, start) in enumerate(self.of_first_step(calls)[:, :2].tolist())
        )
        return self.in_all_steps(calls, {row: value for row, value in values if value is not None})

    def of_first_step(self, calls: Int64) -> Int64:
        """Return the calls of the first step.

        Args:
            calls: as for `found`.
        """
        return calls[: self._ends[0] if self._ends else len(calls)]

    def in_all_steps(self, calls: Int64, in_first: Mapping[int, T]) -> dict[int, T]:
        """Return what calls of the first step have, and equal ones of later steps, by their rows.

        Args:
            calls: as for `found`.
            in_first: the first step's, by their rows.
        """
        steps = self.alike(calls) if in_first else []
        begins = [0, *(self._ends[step - 1] for step in steps)]
        return {begin + row: value for begin in begins for row, value in in_first.items()}

    def alike(self, calls: Int64) -> list[int]:
        """Return the later steps, from 1, that call the same layers in the same order as the first step.

        Args:
            calls: as for `found`.
        """
        bounds = [0, *self._ends]
        layers = [calls[begin:end, 3] for begin, end in zip(bounds, bounds[1:])]
        return [
            step for step, each in enumerate(layers) if step and np.array_equal(each, layers[0])
        ]
