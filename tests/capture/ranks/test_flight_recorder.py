"""What a rank notes about a communication operation, beside the operation itself."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ppprof

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = pytest.mark.paddle

from paddle.autograd import PyLayer  # noqa: E402
from paddle.base import core  # noqa: E402
from paddle.distributed import collective  # noqa: E402
from paddle.distributed.fleet.utils import recompute  # noqa: E402

from ppprof.capture.parts import Ending  # noqa: E402
from ppprof.capture.ranks.flight_recorder import FlightRecorder, _Group  # noqa: E402
from ppprof.capture.recording.collectives import process_groups  # noqa: E402
from ppprof.topology import Topology  # noqa: E402


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[FlightRecorder]:
    recorder = FlightRecorder(tmp_path, Topology.of(dp=1), 0, None, None, lambda: False)
    yield recorder
    recorder.close(Ending(None, 0, 0, False, set()))


class Reduced(PyLayer):  # type: ignore[misc]
    """Notes the origin where a tensor parallel layer would communicate."""

    @staticmethod
    def forward(context: Any, x: Any, notes: list[int], recorder: FlightRecorder) -> Any:
        context.notes, context.recorder = notes, recorder
        note(notes, recorder)
        return x * 1

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        note(context.notes, context.recorder)
        return gradient * 1


def note(notes: list[int], recorder: FlightRecorder) -> None:
    """Call `_origin` three calls deep, as a process group's wrapper does."""
    inner = lambda: recorder._origin()  # noqa: E731
    middle = lambda: inner()  # noqa: E731
    notes.append(middle()[1])


class Block(paddle.nn.Layer):  # type: ignore[misc]
    def __init__(self, notes: list[int], recorder: FlightRecorder) -> None:
        super().__init__()
        self.linear = paddle.nn.Linear(4, 4)
        self.notes, self.recorder = notes, recorder

    def forward(self, x: Any) -> Any:
        return Reduced.apply(self.linear(x), self.notes, self.recorder)


class Net(paddle.nn.Layer):  # type: ignore[misc]
    def __init__(self, notes: list[int], recorder: FlightRecorder, recomputes: bool) -> None:
        super().__init__()
        self.blocks = paddle.nn.LayerList([Block(notes, recorder) for _ in range(2)])
        self.recomputes = recomputes

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = recompute(block, x) if self.recomputes else block(x)
        return x.sum()


@pytest.mark.parametrize("recomputes", [False, True])
def test_phase_and_module_are_noted(recorder: FlightRecorder, recomputes: bool) -> None:
    notes: list[int] = []
    x = paddle.ones([2, 4])
    x.stop_gradient = False
    Net(notes, recorder, recomputes)(x).backward()
    texts = list(recorder._ring._texts)
    again = ["backward of blocks.1 (Block)", "backward", "backward of blocks.0 (Block)", "backward"]
    assert [texts[number] for number in notes] == [
        *("forward of blocks.0 (Block)", "forward of blocks.1 (Block)"),
        *(again if recomputes else ["backward", "backward"]),
    ]


def test_methods_and_handlers_are_restored_if_a_window_is_open_at_the_end(tmp_path: Path) -> None:
    before = [dict(vars(kind)) for kind in process_groups()]
    block = {"enable": True, "profiler_log": str(tmp_path / "log"), "hang_after": 100}
    is_enabled = faulthandler.is_enabled()
    with ppprof.attach(block) as prof:
        prof.step()
        assert [dict(vars(kind)) for kind in process_groups()] != before
    assert [dict(vars(kind)) for kind in process_groups()] == before
    assert faulthandler.is_enabled() == is_enabled


class OtherGroup:
    """A process group that hands its operations to a device."""


class Task:
    def wait(self) -> None:
        pass


def test_a_task_of_a_device_is_known_until_the_training_waits_for_it(
    recorder: FlightRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "task", Task)
    group = OtherGroup()
    recorder._groups.keep(group, _Group(0, (0,), {}))
    start = recorder._noted("barrier", None, lambda group: Task())
    waited, dropped = start(group), start(group)
    assert recorder.device_tasks() == [waited, dropped]
    recorder._noted_wait(Task.wait)(waited)
    assert recorder.device_tasks() == [dropped]
    del dropped
    assert recorder.device_tasks() == []


def test_a_group_without_a_number_is_searched_for_once_while_it_lives(
    recorder: FlightRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[str] = []

    def group_map() -> dict[int, Any]:
        searches.append("a search")
        return {}

    monkeypatch.setattr(collective, "_get_group_map", group_map)
    call = recorder._noted("barrier", None, lambda group: "called")
    group = OtherGroup()
    assert [call(group), call(group)] == ["called", "called"]
    assert len(searches) == 1
    del group
    assert not recorder._groups
