"""Containers of tensors, and how Python reaches them."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import deque
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ppprof.capture.recording.user_files import UserFiles

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")

kept: list[Any] = []
NUM = 9
FOLDER = Path(__file__).parent


class Trainer:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.history: dict[str, Any] = {}


class Slotted:
    """Has no dict of attributes."""

    __slots__ = ("history",)

    def __init__(self, history: list[Any]) -> None:
        self.history = history


def tensors() -> list[Any]:
    return [paddle.ones([3]) for _ in range(NUM)]


def found(frame: FrameType | None) -> dict[str, set[int]]:
    """Return the names of containers with tensors."""
    from ppprof.capture.recording.holders import find_holders

    holders = find_holders(frame, UserFiles(FOLDER))
    return {each.name: set(each.addresses) for each in holders}


def pointers(values: Any) -> set[int]:
    return {each.data_ptr() for each in values}


def train() -> tuple[dict[str, set[int]], list[Any], Any]:
    """Return the names found in this function, its tensors, and a reference to what it has dropped.

    (pytest's ``assert`` reads ``locals()``, so it must not be in here.)
    """
    own, loss = tensors(), Trainer()
    pairs = deque((step, each) for step, each in enumerate(tensors()))
    watched = weakref.ref(loss)
    names = found(sys._getframe())
    loss = None
    return names, [*own, *(each for _, each in pairs)], watched() is loss


def test_variables_of_the_calling_functions() -> None:
    names, values, _ = train()
    assert names["own, train() of test_holders.py (list)"] == pointers(values[:NUM])
    assert names["pairs, train() of test_holders.py (deque)"] == pointers(values[NUM:])


@pytest.mark.parametrize("most", [None, 100])
def test_a_deque_with_a_limit_is_bounded(most: int | None) -> None:
    from ppprof.capture.recording.holders import find_holders

    trainer = Trainer()
    trainer.history["recent"] = recent = deque(tensors(), maxlen=most)
    holders = find_holders(None, UserFiles(Path(__file__).parent))
    (holder,) = (each for each in holders if set(each.addresses) == pointers(recent))
    assert holder.is_bounded == (most is not None)


def test_variables_of_a_module() -> None:
    kept.extend(tensors())
    try:
        assert found(None)["kept, test_holders.py (list)"] == pointers(kept)
    finally:
        kept.clear()


def test_variables_of_a_notebook_have_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(globals(), "__file__")
    kept.extend(tensors())
    try:
        assert found(None)["kept (list)"] == pointers(kept)
    finally:
        kept.clear()


def test_attributes_and_elements_of_them() -> None:
    """A dict with nothing but tensors is not tracked by the garbage collector."""
    trainer = Trainer()
    trainer.history = {str(number): each for number, each in enumerate(tensors())}
    assert not gc.is_tracked(trainer.history)
    other = Trainer()
    other.history = {"losses": [*tensors(), *tensors()]}
    names = found(None)
    assert names["Trainer.history (dict)"] == pointers(trainer.history.values())
    assert names["Trainer.history['losses'] (list)"] == pointers(other.history["losses"])


def test_what_python_reaches_by_no_name_is_not_named() -> None:
    slotted = Slotted([*tensors(), *tensors(), *tensors()])
    values = pointers(slotted.history)
    assert values not in found(None).values()


def test_parameters_and_few_tensors_do_not_count() -> None:
    net = paddle.nn.Sequential(*(paddle.nn.Linear(2, 2) for _ in range(NUM)))
    parameters, few = list(net.parameters()), tensors()[:4]
    names = found(sys._getframe())
    assert not [name for name in names if name.startswith(("parameters,", "few,"))]
    assert few
    assert parameters


def test_nothing_outlives_its_variable() -> None:
    """The search would keep a step's graph until the training's function ends."""
    assert train()[2]


def with_options() -> tuple[dict[str, Any], dict[str, set[int]]]:
    options = locals()
    own = tensors()
    names = found(sys._getframe())
    return dict(options), {**names, str(len(own)): set()}


def test_what_locals_returned_is_left_alone() -> None:
    options, names = with_options()
    assert options == {}
    is_proxy = sys.version_info >= (3, 13)
    assert ("own, with_options() of test_holders.py (list)" in names) == is_proxy


class Lazy:
    """Runs code if its attributes are looked up."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def test_no_code_of_the_training_runs() -> None:
    lazy = Lazy()
    vars(lazy)["history"] = tensors()
    assert found(None)["Lazy.history (list)"] == pointers(vars(lazy)["history"])
