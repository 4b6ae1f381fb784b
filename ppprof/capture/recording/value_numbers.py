"""Which calls of a layer compute again what an earlier call of the step has computed.

Compilers call this value numbering: each tensor has a number, and the results of two calls have one number
if the function, its plain arguments and the numbers of its tensors are equal::

    x                     1
    h = linear(x, w)      2, from ("linear", 1, number of w)
    relu(h)               3
    relu(linear(x, w))    3: computed again
    dropout(h)            its own: it draws random numbers

Tensors that are made of equal numbers of Python or NumPy are equal, too, such as a table of slopes. But they may be equal by
chance, such as two observations of a simulator. So they have a number only where the caller knows that the code gives them.

Nothing is compared on a device, and no tensor is kept alive: numbers belong to objects, and weak references
show whether a later one has the same address.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import paddle
from paddle.base import core
from paddle.base.framework import EagerParamBase

from ppprof.capture.recording.patches import dtype_key

_MOST_TENSORS = 100_000
"""Limit of the tensors with numbers, some 40 MB; a window without a step may have more."""
_MOST_NUMBERS = 6 * _MOST_TENSORS
"""Limit of the values that have numbers, four for each operator."""
_MOST_ITEMS = 1000
"""Longest list of arguments or results that has a number."""
_MOST_BYTES = 1 << 22
"""Largest array of NumPy that has a number: finding it takes 5 ms."""
_ALIKE = "alike"
"""Begins what stands for a call, or a result of one, with gradients or without."""
_TO_TENSOR = "to_tensor"
"""Stands for the function that makes a tensor of an array, which is no operator."""
_IMPURE = re.compile(
    "rand|dropout|bernoulli|binomial|dirichlet|empty|exponential|gaussian|uniform|multinomial|poisson"
    "|rrelu|standard_gamma|shuffle_batch|sampling|sampler|sample_neighbors|center_sample|cauchy"
    "|geometric|log_normal|attention|attn|feedforward|transformer|rnn|lstm|gru|quant|moe|custom|program"
    "|gumbel|fractional_max_pool|recv|send|gather$|scatter$|allreduce|reduce_$|all_|barrier|broadcast_?$|^c_|^mp_|^global_"
)
"""Functions whose results may differ with equal arguments: random numbers, other ranks' values, hidden states.
Where a name does not decide, results count as new."""
_CHANGES = re.compile("program|custom|(?<!_)_$")
"""Functions that may change their arguments."""
_PURE_IF = {"dropout": (2, 3), "flash_attn": (5, 8), "rnn": (5, 12)}
"""Of these functions: the places of the probability with which they drop values, and of the flag that they do not.
With probability 0, or with the flag, they draw no random numbers."""

_GROUPS = (list, dict, slice)
"""Types whose parts have numbers."""

Value = tuple[Any, ...]


class _UnknownError(Exception):
    """An argument has no number."""


class ValueNumbers:
    """The numbers of the values that a step computes.

    Args:
        num_communications: returns how many communication operations the window has had: they change tensors in
            ways that their states do not show.
        is_constant: returns whether numbers of Python and NumPy are constants of the code now.
    """

    def __init__(
        self, num_communications: Callable[[], int], is_constant: Callable[[], bool] = bool
    ) -> None:
        self._num_communications = num_communications
        self._is_constant = is_constant
        self._num_known = num_communications()
        self._next = itertools.count()
        self._tensors: dict[int, tuple[weakref.ref[Any], tuple[int, ...], int]] = {}
        """A tensor, its state and its number, by its identity."""
        self._numbers: dict[Value, int] = {}
        """The number of each call, and of each tensor among its results."""
        self._alike: dict[int, int] = {}
        """The number of equal values, with gradients or without, by the number of a tensor; no own one where both are one."""
        self._tensor: Any = core.eager.Tensor
        self.num_backwards = 0
        """How many calls compute gradients now: what they compute, such as activations again, has no numbers."""
        self.num_forgotten = 0
        """How often all numbers were forgotten."""
        self.changed: set[int] = set()
        """Numbers of tensors that were changed later: each needs memory of its own."""

    @property
    def is_full(self) -> bool:
        """Whether there are more tensors, or values, than a step has."""
        return len(self._tensors) > _MOST_TENSORS or len(self._numbers) > _MOST_NUMBERS

    def forget(self) -> None:
        """Forget the numbers of all tensors: one was changed in a way that its state does not show."""
        self._tensors.clear()
        self.num_forgotten += 1

    def value_of_call(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Value | None:
        """Return what a call computes, to be compared with other calls; None if that is unknown."""
        if self.num_backwards or (_may_differ(name) and not _is_pure(name, args)):
            return None
        self._forget_received()
        if name == "batch_norm" and _normalizes_by_batch(args):  # it only updates these two
            args = (args[0], *args[3:])
        try:
            value = [name, *map(self._part, args)]
            for key, each in kwargs.items():
                value += (dict, key, self._part(each))
            return tuple(value)
        except _UnknownError:
            return None

    def note(self, value: Value | None, name: str, args: Sequence[Any], result: Any) -> int | None:
        """Note what a call has computed.

        Args:
            value: from `value_of_call`.
            name: name of the function.
            args: its arguments.
            result: what it has returned.

        Returns:
            The number of the first tensor that it has computed; None if it is unknown.
        """
        changes = _may_change(name)
        if changes:
            first = args[0] if args else None
            if value is None or result is not first or isinstance(first, EagerParamBase):
                self.forget()
                return None
            if id(first) in self._tensors:
                self.changed.add(self._tensors[id(first)][2])
        elif name == "batch_norm" and _normalizes_by_batch(args):
            for statistic in args[1:3]:
                self._tensors.pop(id(statistic), None)
        if value is None:
            return None
        numbers, tensors = self._numbers, self._tensors
        call = numbers.setdefault(value, next(self._next))
        alike = numbers.setdefault((_ALIKE, *map(self.alike, value)), call)
        items = result if isinstance(result, (list, tuple)) else (result,)
        computed = None
        for place, item in enumerate(items[:_MOST_ITEMS]):
            if isinstance(item, self._tensor):
                known = tensors.get(id(item))
                if not changes and known is not None and known[0]() is item:
                    continue  # it is an argument
                # Two calls with equal arguments may differ in these by `auto_cast` and `no_grad`.
                key = call, place, dtype_key(item.dtype), item.stop_gradient
                number = numbers.setdefault(key, next(self._next))
                same = numbers.setdefault((_ALIKE, alike, *key[1:3]), number)
                if same != number:
                    self._alike[number] = same
                tensors[id(item)] = weakref.ref(item), _state(item), number
                computed = number if computed is None else computed
        return computed

    def note_constant(self, data: Any, tensor: Any) -> None:
        """Note a tensor that is a copy of data: of numbers, lists of them, an array or another tensor.

        Args:
            data: what it is made of.
            tensor: the tensor, which is new.
        """
        # Paddle may have called an operator with the data, whose result is known by them.
        self._tensors.pop(id(tensor), None)
        if self.num_backwards or not self._is_constant():
            return
        self._forget_received()
        try:
            value = _TO_TENSOR, self._part(data), str(tensor.place)
        except _UnknownError:
            return
        key = value, dtype_key(tensor.dtype), tensor.stop_gradient
        number = self._numbers.setdefault(key, next(self._next))
        self._tensors[id(tensor)] = weakref.ref(tensor), _state(tensor), number

    def alike(self, part: Any) -> Any:
        """Return a part of a value with the numbers of equal values with gradients or without: a call in `no_grad` has others."""
        if type(part) is int:
            return self._alike.get(part, part)
        if type(part) is tuple and part and part[0] in _GROUPS:
            return (part[0], *map(self.alike, part[1:]))
        return part

    def value_of_results(self, results: Any) -> Value | None:
        """Return the value of what a layer has returned: tensors, plain values, and lists, tuples and dicts of them.

        None if a part of it is unknown, and without a tensor.
        """
        self._forget_received()
        try:
            value = self._part(results)
        except _UnknownError:
            return None
        return (value,) if _has_tensor(results) else None

    def _forget_received(self) -> None:
        num = self._num_communications()
        if num != self._num_known:
            self._num_known = num
            self.forget()

    def _part(self, arg: Any) -> Any:
        if isinstance(arg, self._tensor):
            return self._number(arg)
        if arg is None or arg is Ellipsis or type(arg) is str:
            return arg
        if type(arg) in (bool, int, float):  # a whole number alone is that of a tensor
            return type(arg), arg
        return self._part_of_several(arg)

    def _part_of_several(self, arg: Any) -> Any:
        if isinstance(arg, (list, tuple)) and len(arg) <= _MOST_ITEMS:
            return (list, *map(self._part, arg))
        if isinstance(arg, dict) and len(arg) <= _MOST_ITEMS:
            return (dict, *((self._part(key), self._part(each)) for key, each in arg.items()))
        if type(arg) is slice and not _is_crop(arg):
            return (slice, *map(self._part, (arg.start, arg.stop, arg.step)))
        if type(arg) is np.ndarray and self._is_constant():
            return _content(arg)
        if isinstance(arg, paddle.dtype):
            return paddle.dtype, dtype_key(arg)
        if isinstance(arg, np.generic):
            return type(arg), arg.item()
        if type(arg).__name__.endswith("Place"):
            return type(arg), str(arg)
        raise _UnknownError

    def _number(self, tensor: Any) -> int:
        state = _state(tensor)
        known = self._tensors.get(id(tensor))
        if known is not None and known[0]() is tensor:
            if known[1] == state:
                return known[2]
            self.changed.add(known[2])
        number = next(self._next)
        self._tensors[id(tensor)] = weakref.ref(tensor), state, number
        return number


def _is_crop(part: slice) -> bool:
    """Return whether a slice begins and ends inside: two crops at random places may be equal by chance."""
    begins = part.start is not None and not (type(part.start) is int and part.start == 0)
    return begins and part.stop is not None


def _content(array: Any) -> Value:
    """Return what differs between arrays that are not equal."""
    if array.dtype.hasobject or array.nbytes > _MOST_BYTES:
        raise _UnknownError
    digest = hashlib.blake2b(array.tobytes(), digest_size=16).digest()
    return np.ndarray, array.shape, array.dtype.str, digest


def _state(tensor: Any) -> tuple[int, ...]:
    """Return what changes with most changes of a tensor's values: not those of optimizers and ``set_value``."""
    if isinstance(tensor, EagerParamBase):  # `parameter.data = other` gives it other memory
        return tensor.inplace_version, tensor.data_ptr()
    return (tensor.inplace_version,)


@functools.cache
def _may_differ(name: str) -> bool:
    return _IMPURE.search(name) is not None


@functools.cache
def _may_change(name: str) -> bool:
    return _CHANGES.search(name) is not None


def _is_pure(name: str, args: Sequence[Any]) -> bool:
    places = _PURE_IF.get(name)
    if places is None or len(args) <= places[1]:
        return False
    probability, is_off = (args[place] for place in places)
    return is_off is True or (type(probability) in (int, float) and probability == 0)


def _normalizes_by_batch(args: Sequence[Any]) -> bool:
    """Return whether ``batch_norm`` computes with the statistics of its input: (x, mean, variance, ...)."""
    return len(args) > 9 and args[5] is False and not args[9]


def numbers_in(part: Any) -> Iterator[int]:
    """Yield the numbers of tensors in a value."""
    if type(part) is int:
        yield part
    elif (
        type(part) is tuple and part and not (isinstance(part[0], type) and part[0] not in _GROUPS)
    ):
        for each in part:
            yield from numbers_in(each)


def has_gradients(results: Any) -> bool:
    """Return whether one of the tensors that a layer has returned has gradients."""
    if isinstance(results, dict):
        results = list(results.values())
    if isinstance(results, (list, tuple)):
        return any(map(has_gradients, results))
    return isinstance(results, core.eager.Tensor) and not results.stop_gradient


def _has_tensor(results: Any) -> bool:
    if isinstance(results, dict):
        results = list(results.values())
    if isinstance(results, (list, tuple)):
        return any(map(_has_tensor, results))
    return isinstance(results, core.eager.Tensor)
