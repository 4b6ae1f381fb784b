"""How much of a batch counts: the lengths of padded samples, and the labels that a loss does not ignore.

Lengths are those of the numbers that a window looks up in an embedding's table.

::

    17  4  9  1  0  0  0  0        width 8, lengths 4, 6 and 2, padded with 0
     3  8  8  2  5  1  0  0
     6  1  0  0  0  0  0  0
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle.base import core

from ppprof.arrays import Int64
from ppprof.capture.recording.cleared_gradients import CallId
from ppprof.capture.signals import pass_interruption
from ppprof.capture.steps.device_timer import is_capturing

_MOST_NUMBERS, _MOST_NUMBERS_OF_DEVICE = 1_000_000, 200_000
"""Limits of the numbers that are kept until the window ends, 8 MB of a host, and 1.6 MB of a device."""
_LEAST_ROWS = 64
"""A smaller table is one of types or positions, rather than of words."""
_LEAST_DISTINCT = 16
"""Different numbers ahead of the padding: words are many."""
_LEAST_LENGTHS = 3
"""Different lengths: samples are seldom as long as each other, and marks at the end of each one are no padding."""
_MOST_INSIDE = 0.05
"""Share of the numbers ahead of the padding that may equal it, such as the end of a sentence."""
_LEAST_PADDED = 0.05
"""Share of all numbers."""

_READ = core.eager.Tensor.numpy
"""Reads a tensor without the wrappers that a window has for it: the training reads nothing here."""

TABLES = {"embedding": (0, 1), "c_embedding": (1, 0)}
"""Functions that look rows of a table up -> the places of numbers and table among the arguments."""


LOSSES = {"cross_entropy_with_softmax": (1, 5), "c_softmax_with_cross_entropy": (1, 2)}
"""Losses by class -> the places of the labels, and of the number that stands for none, among the arguments."""


class _Batch(NamedTuple):
    call: CallId
    numbers: Any
    """An array of shape (samples, width); of a device, the tensor."""
    version: int
    """Of the tensor: it changes with the numbers."""


class PaddedBatches:
    """The numbers that a window looks up, by the table.

    Those on a host are copied. A device would have to be waited for, so its tensors are kept until the window ends:
    few of them, as memory that grows with each step would look like a leak.
    """

    def __init__(self) -> None:
        self._batches: dict[int, list[_Batch]] = {}
        self._num = 0

    def note(self, call: CallId, numbers: Any, table: Any) -> None:
        """Keep the numbers of a call, if they are those of a batch of samples, until `lengths`."""
        shape = numbers.shape
        if len(shape) != 2 or shape[0] < 1 or shape[1] < 2 or table.shape[0] < _LEAST_ROWS:
            return
        is_on_host = numbers.place.is_cpu_place()
        if self._num < (_MOST_NUMBERS if is_on_host else _MOST_NUMBERS_OF_DEVICE):
            self._num += shape[0] * shape[1]
            kept = _copy(numbers) if is_on_host else numbers
            batch = _Batch(call, kept, numbers.inplace_version)
            self._batches.setdefault(id(table), []).append(batch)

    def lengths(self) -> dict[CallId, list[int]]:
        """Return the width of each padded batch, and the lengths of its samples, by the call.

        Of batches on a device that still computes, nothing is known: to wait for it may take forever.
        """
        found: dict[CallId, list[int]] = {}
        for batches in self._batches.values():
            try:
                known = [(each.call, _array(each)) for each in batches]
            except Exception as error:  # a device of a plugin may have no streams
                pass_interruption(error)
                continue
            arrays = [array for _, array in known if array is not None]
            calls = [call for call, array in known if array is not None]
            for call, array, lengths in zip(calls, arrays, lengths_of(arrays) if arrays else ()):
                found[call] = [array.shape[1], *lengths]
        self._batches.clear()
        return found


class CountedLabels:
    """How many labels of the losses of a window count: positions of padding and of prompts have none.

    They are counted at once on a host. Those on a device are kept, as of `PaddedBatches`.
    """

    def __init__(self) -> None:
        self._counts: dict[CallId, list[int]] = {}
        self._kept: list[tuple[_Batch, int]] = []
        self._num = 0

    def note(self, call: CallId, labels: Any, ignored: int) -> None:
        """Count the labels of a call; keep them until `counts`, if they are on a device."""
        num = math.prod(labels.shape)
        if not 0 < num <= _MOST_NUMBERS or "int" not in str(labels.dtype):
            return
        if labels.place.is_cpu_place():
            self._add(call, _view(labels), ignored)
        elif self._num + num <= _MOST_NUMBERS_OF_DEVICE:
            self._num += num
            self._kept.append((_Batch(call, labels, labels.inplace_version), ignored))

    def _add(self, call: CallId, labels: Any, ignored: int) -> None:
        self._counts[call] = [labels.size, int(np.count_nonzero(labels != ignored))]

    def counts(self) -> dict[CallId, list[int]]:
        """Return the number of labels, and of those that are one, by the call."""
        for batch, ignored in self._kept:
            labels = _array(batch)
            if labels is not None:
                self._add(batch.call, labels, ignored)
        self._kept.clear()
        return self._counts


def _view(tensor: Any) -> Any:
    """Return the numbers of a tensor on a host, in Paddle's memory if that can be shared."""
    return np.from_dlpack(tensor) if hasattr(tensor, "__dlpack__") else _READ(tensor)  # Paddle 2.6


def _copy(tensor: Any) -> Int64:
    """Return a copy of a tensor's numbers on a host, outside of Paddle's memory.

    Paddle's ``numpy()`` copies all that a view has its elements from, such as a data set.
    """
    return np.array(_view(tensor), np.int64)


def _array(batch: _Batch) -> Int64 | None:
    """Return the numbers of a batch; None if they have changed, or if a device still computes."""
    numbers = batch.numbers
    if not isinstance(numbers, np.ndarray):
        is_done = not is_capturing() and paddle.device.current_stream().query()
        if not is_done or numbers.inplace_version != batch.version:
            return None
        numbers = numbers.numpy()
    return np.asarray(numbers, np.int64)


def lengths_of(batches: Sequence[Int64]) -> list[list[int]]:
    """Return the lengths of the samples of each batch; [] unless they are padded.

    Args:
        batches: the numbers of the samples of each batch, shape (samples, width).
    """
    for is_left in (False, True):  # the padding is nearly always on the right
        arrays = [array[:, ::-1] for array in batches] if is_left else batches
        lengths = _lengths_ahead_of(arrays, _last_of(arrays))
        if lengths:
            return lengths
    return []


def _last_of(batches: Sequence[Int64]) -> int:
    """Return the number with which most samples end."""
    numbers, counts = np.unique(
        np.concatenate([array[:, -1] for array in batches]), return_counts=True
    )
    return int(numbers[counts.argmax()])


def _lengths_ahead_of(batches: Sequence[Int64], padding: int) -> list[list[int]]:
    lengths = []
    inside = []
    for array in batches:
        is_padding = array == padding
        num = array.shape[1] - np.cumprod(is_padding[:, ::-1], axis=1).sum(axis=1)
        lengths.append(num.tolist())
        inside.append(array[np.arange(array.shape[1]) < num[:, None]])
    words = np.concatenate(inside)
    total = sum(array.size for array in batches)
    is_padded = (
        total - len(words) >= _LEAST_PADDED * total
        and len(np.unique(words)) >= _LEAST_DISTINCT
        and np.count_nonzero(words == padding) <= _MOST_INSIDE * len(words)
        and len({length for each in lengths for length in each}) >= _LEAST_LENGTHS
    )
    return lengths if is_padded else []
