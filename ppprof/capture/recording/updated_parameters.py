"""Which parameters get gradients that no optimizer uses: of a frozen teacher, or of a backbone without its own optimizer.

A parameter counts as used if any optimizer of the process has it, also one that steps rarely, or if the
training's own code changes it in a window. In doubt, all parameters do.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import paddle

from ppprof.capture.ranks.job import process_meshes
from ppprof.capture.signals import pass_interruption

log = logging.getLogger("ppprof")

_MOST_OBJECTS = 1_000_000
"""With more objects, a search would take a second."""
_CLEARS = frozenset(("clear_grad", "clear_gradients", "zero_grad"))
"""A class with a method ``step`` and one of these is taken for one of optimizers."""


def may_split() -> bool:
    """Return whether the training may hold tensors of which each rank has a part: it has made a ProcessMesh."""
    return bool(process_meshes())


def parameters_of_optimizers() -> frozenset[int] | None:
    """Return the identities of the parameters of all optimizers that exist; None if some may be unknown.

    Takes some 20 ms for 100,000 objects. Optimizers of sharding have a part of the parameters only.
    """
    try:
        if gc.get_freeze_count() or may_split() or not paddle.in_dynamic_mode():
            return None
        tracked = gc.get_objects()
        if len(tracked) > _MOST_OBJECTS:
            return None
        kinds = {kind for kind in set(map(type, tracked)) if _may_step(kind)}
        return _parameters([each for each in tracked if type(each) in kinds])
    except Exception as error:  # a class of the training's may do anything
        pass_interruption(error)
        log.debug("the parameters of optimizers are unknown", exc_info=True)
        return None


def _may_step(kind: type) -> bool:
    if _is_sharded(kind):
        return True
    if not any("step" in vars(each) for each in kind.__mro__) or _is_layer(kind):
        return False
    clears = any(name in vars(each) for each in kind.__mro__ for name in _CLEARS)
    return clears and kind is not paddle.optimizer.Optimizer  # Fleet holds an empty one


def _is_layer(kind: type) -> bool:
    return paddle.nn.Layer in kind.__mro__


def _is_sharded(kind: type) -> bool:
    module, name = str(kind.__module__), kind.__name__
    is_either = "Optimizer" in name or _is_layer(kind)
    return (
        is_either
        and module.startswith("paddle.distributed.")
        and "shard" in f"{module}{name}".lower()
    )


def _parameters(optimizers: list[Any]) -> frozenset[int] | None:
    base, numbers = paddle.optimizer.Optimizer, set(map(id, optimizers))
    found: set[int] = set()
    for each in optimizers:
        values = vars(each)
        if _is_sharded(type(each)):
            return None
        if base in type(each).__mro__:
            groups = values.get("_param_groups") or values.get("_parameter_list")
            if not groups:
                return None
            found.update(_identities(groups))
        elif not any(id(value) in numbers - {id(each)} for value in _contents(values)):
            return None  # it is no wrapper of another one
    return frozenset(found)


def _identities(groups: Iterable[Any]) -> Iterator[int]:
    """Yield the identities of the parameters in an optimizer's groups.

    Raises:
        TypeError: one of them is neither a tensor nor a group of tensors.
    """
    for group in groups:
        if isinstance(group, dict):
            params = group["params"]
            yield from _identities([params] if isinstance(params, paddle.Tensor) else params)
        elif isinstance(group, paddle.Tensor):
            yield id(group)
        else:
            raise TypeError(f"{type(group).__name__} in the parameters of an optimizer")


def _contents(values: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the attributes of an object, and what is in lists, tuples and dicts among them."""
    for value in values.values():
        yield value
        if type(value) in (list, tuple, dict):
            yield from value.values() if type(value) is dict else value


class ParameterStates:
    """The parameters of the layers that a window calls, and whether the training changes them itself.

    Paddle's optimizers do not count a change in ``inplace_version``, nor do ``set_value`` and ``copy_``.
    """

    def __init__(self) -> None:
        self.changed: set[int] = set()
        """Identities of parameters that the training has set, or updated by a function."""
        self._states: dict[int, tuple[int, int] | None] = {}
        self._others: set[int] = set()
        """Identities of parameters whose state is no longer that which was noted."""

    def note(self, layer: Any) -> None:
        """Note the state of the parameters of a layer, without those of the layers in it."""
        for parameter in _own(layer):
            self._states.setdefault(id(parameter), _state(parameter))

    def compare(self, layers: Iterable[Any]) -> None:
        """Note which parameters have another state than at first; to be called after each step.

        ``p.data = p - lr * p.grad`` gives a parameter other memory in one step, and often its first one in the
        next step.

        Args:
            layers: layers that were noted.
        """
        for layer in layers:
            for parameter in _own(layer):
                number = id(parameter)
                if number in self.changed or number in self._others:
                    continue
                state = self._states.get(number)
                if state is None or state != _state(parameter):
                    self._others.add(number)

    def unused(self, layers: Iterable[Any]) -> dict[int, Any]:
        """Return the parameters of layers that get gradients, and that nothing updates, by their identities.

        Empty if there is no optimizer, and if ranks train together and no optimizer has a parameter of the layers: it
        may have copies. Optimizers are looked for only if some parameters stay as they are.

        Args:
            layers: layers that were noted.
        """
        layers = list(layers)
        self.compare(layers)
        parameters = {id(each): each for layer in layers for each in _own(layer)}
        changed = self.changed | self._others
        unchanged = {
            number: each
            for number, each in parameters.items()
            if number not in changed and not each.stop_gradient
        }
        in_optimizers = parameters_of_optimizers() if unchanged else None
        has_copies = paddle.distributed.is_initialized() and not (
            self.changed | (in_optimizers or frozenset())
        ).intersection(parameters)
        if not in_optimizers or has_copies:
            return {}
        return {number: each for number, each in unchanged.items() if number not in in_optimizers}


def has_only(layer: Any, unused: Collection[int]) -> bool:
    """Return whether a layer, with the layers in it, has parameters with gradients, all of which are unused.

    Args:
        layer: the layer.
        unused: the identities of parameters.
    """
    trained = [id(each) for each in layer.parameters() if not each.stop_gradient]
    return bool(trained) and all(number in unused for number in trained)


def _own(layer: Any) -> list[Any]:
    parameters = vars(layer).get("_parameters") or {}
    return [each for each in list(parameters.values()) if isinstance(each, paddle.Tensor)]


def _state(parameter: Any) -> tuple[int, int] | None:
    """Return what changes with the values of a parameter; None if it is unknown."""
    try:
        return parameter.inplace_version, parameter.data_ptr()
    except Exception as error:  # it has no memory
        pass_interruption(error)
        return None
