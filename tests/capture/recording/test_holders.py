"""Containers of tensors, and how Python reaches them."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from ppprof.capture.recording.user_files import UserFiles

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")

kept: list[Any] = []
NUM = 9
FOLDER = Path(__file__).parent


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a search is limited, and a process that has run thousands of tests has many objects."""
    from ppprof.capture.recording import holders, reached_tensors

    monkeypatch.setattr(holders, "_MOST_OBJECTS", 100_000_000)
    for module in (holders, reached_tensors):
        monkeypatch.setattr(module, "_MOST_SECONDS", 60.0)


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


def test_variables_are_found_among_more_objects_than_are_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ppprof.capture.recording import holders

    monkeypatch.setattr(holders, "_MOST_OBJECTS", 0)
    names, values, _ = train()
    assert names == {
        "own, train() of test_holders.py (list)": pointers(values[:NUM]),
        "pairs, train() of test_holders.py (deque)": pointers(values[NUM:]),
    }


def test_variables_are_found_beside_many_larger_containers_without_a_name() -> None:
    larger = tuple((Slotted([paddle.ones([3]) for _ in range(2 * NUM)]),) for _ in range(100))
    names, values, _ = train()
    assert len(larger) == 100
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


class Transition(NamedTuple):
    """An entry of a replay buffer."""

    step: int
    state: Any


@dataclass
class Record:
    """An entry of a log."""

    step: int
    outputs: dict[str, Any]

    def write(self) -> None:
        """Do nothing."""


class Rows(list):  # type: ignore[type-arg]
    """Runs code if it is read."""

    def __iter__(self) -> Any:
        raise AssertionError

    __reversed__ = __len__ = __getattribute__ = __iter__  # type: ignore[assignment]


def in_a_closure(value: Any) -> Callable[[], Any]:
    return lambda: value


IN_ELEMENTS: dict[str, Callable[[Any], Any]] = {
    "named tuple": lambda tensor: Transition(0, tensor),
    "data class": lambda tensor: Record(0, {"hidden": tensor, "epoch": 0}),
    "slots": lambda tensor: Slotted([tensor]),
    "code": lambda tensor: Rows([tensor]),
    "ordered dict": lambda tensor: OrderedDict(state=tensor),
    "partial": lambda tensor: partial(print, 0, {"hidden": [tensor]}),
    "keyword of a partial": lambda tensor: partial(print, end=tensor),
    "closure": in_a_closure,
    "default": lambda tensor: lambda value=tensor: value,
    "bound method": lambda tensor: Record(0, {"hidden": tensor}).write,
}


@pytest.mark.parametrize("wrapped", IN_ELEMENTS.values(), ids=IN_ELEMENTS)
def test_tensors_inside_of_elements(wrapped: Callable[[Any], Any]) -> None:
    trainer, own = Trainer(), tensors()
    trainer.history["entries"] = [wrapped(tensor) for tensor in own]
    assert found(None)["Trainer.history['entries'] (list)"] == pointers(own)


def test_a_list_of_a_class_of_the_users_is_named_by_it() -> None:
    trainer = Trainer()
    own = tensors()
    trainer.history["rows"] = Rows(own)
    assert found(None)["Trainer.history['rows'] (Rows)"] == pointers(own)


def test_what_elements_share_does_not_count() -> None:
    """Five callbacks of one trainer: the list in it grows, not that of the callbacks."""
    trainer, own = Trainer(), Trainer()
    trainer.history["losses"] = losses = [*tensors(), *tensors()]
    own.history["callbacks"] = [partial(print, trainer, number) for number in range(NUM)]
    names = found(None)
    assert names["Trainer.history['losses'] (list)"] == pointers(losses)
    assert not [name for name in names if "callbacks" in name]


def test_layers_and_what_a_function_reads_from_its_module_do_not_count() -> None:
    trainer = Trainer()
    trainer.history["layers"] = [paddle.nn.BatchNorm1D(3) for _ in range(NUM)]
    trainer.history["functions"] = [lambda: kept for _ in range(NUM)]
    kept.append(paddle.ones([3]))
    try:
        names = found(None)
    finally:
        kept.clear()
    assert not [name for name in names if "layers" in name or "functions" in name]


def test_a_window_pays_for_a_bounded_number_of_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    from ppprof.capture.recording import reached_tensors

    trainer = Trainer()
    trainer.history["nested"] = own = [[[tensor] for tensor in tensors()] for _ in range(NUM)]
    some = pointers(tensor for ((tensor,), *_) in own)
    assert some <= found(None)["Trainer.history['nested'] (list)"]
    monkeypatch.setattr(reached_tensors, "_MOST_OBJECTS", 3)
    assert "Trainer.history['nested'] (list)" not in found(None)


@pytest.mark.parametrize("has_graphs", [True, False])
def test_losses_keep_their_graphs_unless_they_are_detached(has_graphs: bool) -> None:
    from ppprof.capture.recording.holders import find_holders

    layer, trainer = paddle.nn.Linear(3, 3), Trainer()
    losses = [layer(each).sum() for each in tensors()]
    trainer.history["losses"] = [each if has_graphs else each.detach() for each in losses]
    holders = find_holders(None, UserFiles(FOLDER))
    (holder,) = (each for each in holders if "['losses']" in each.name)
    assert holder.has_graphs == has_graphs


class Net(paddle.nn.Layer):  # type: ignore[misc]
    """Keeps its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[Any] = []


def test_attributes_of_layers() -> None:
    net = Net()
    net.outputs.extend(tensors())
    assert found(None)["Net.outputs (list)"] == pointers(net.outputs)


def test_a_search_leaves_nothing_behind() -> None:
    """A list of all objects that has itself in it would live until the collector runs."""
    found(None)
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        found(None)
        found(None)
        after = len(gc.get_objects())
    finally:
        gc.enable()
    assert after - before < 1000


def test_of_two_containers_in_one_dict_both_are_named() -> None:
    trainer = Trainer()
    trainer.history.update(losses=tensors(), logits=tensors())
    names = found(None)
    assert names["Trainer.history['losses'] (list)"] == pointers(trainer.history["losses"])
    assert names["Trainer.history['logits'] (list)"] == pointers(trainer.history["logits"])


def test_tensors_that_are_elements_are_found_without_time_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ppprof.capture.recording import reached_tensors

    monkeypatch.setattr(reached_tensors, "_MOST_OBJECTS", 1)
    trainer = Trainer()
    trainer.history.update(pairs=[(0, each) for each in tensors()], losses=tensors())
    assert "Trainer.history['losses'] (list)" in found(None)


def evaluating() -> tuple[dict[str, set[int]], list[Any]]:
    own = tensors()
    paddle.nn.Linear(2, 2).eval()
    return found(sys._getframe()), own


def test_eval_of_a_layer_is_not_the_function_that_reads_variables() -> None:
    names, own = evaluating()
    assert names["own, evaluating() of test_holders.py (list)"] == pointers(own)


def test_a_class_without_a_module_is_not_the_users() -> None:
    """As those of SWIG are."""
    from ppprof.capture.recording.user_files import is_own_class

    for module in ("no module", None):
        kind = type("SwigPyObject", (), {"__module__": module})
        assert not is_own_class(kind, UserFiles(FOLDER))


def with_pairs() -> tuple[dict[str, set[int]], list[Any]]:
    pairs = [(0, each) for each in tensors()]
    others = Trainer()
    others.history.update({str(number): [(0, each) for each in tensors()] for number in range(9)})
    return found(sys._getframe()), [*pairs, others]


def test_variables_come_first_if_the_time_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from ppprof.capture.recording import reached_tensors

    monkeypatch.setattr(reached_tensors, "_MOST_OBJECTS", 4 * NUM)
    names, values = with_pairs()
    assert names["pairs, with_pairs() of test_holders.py (list)"] == pointers(
        each for _, each in values[:NUM]
    )
