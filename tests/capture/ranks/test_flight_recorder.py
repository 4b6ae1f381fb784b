"""What a rank notes about a communication operation, beside the operation itself."""

from __future__ import annotations

import faulthandler
import gc
import inspect
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import ppprof
from ppprof.capture import process

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = pytest.mark.paddle

from paddle.autograd import PyLayer  # noqa: E402
from paddle.base import core  # noqa: E402
from paddle.distributed import collective  # noqa: E402
from paddle.distributed.fleet.utils import recompute  # noqa: E402

from ppprof.capture.parts import Ending, FinishedStep  # noqa: E402
from ppprof.capture.ranks import flight_recorder  # noqa: E402
from ppprof.capture.ranks.flight_recorder import FlightRecorder, _Group, _Watch  # noqa: E402
from ppprof.capture.recording.collectives import METHODS, process_groups  # noqa: E402
from ppprof.run.hang import ask_for_stacks  # noqa: E402
from ppprof.rundir.flight import (  # noqa: E402
    MOST_OPERATIONS,
    Operation,
    read_rings,
    read_stacks,
)
from ppprof.topology import Topology  # noqa: E402
from ppprof.trace.fastpath import core as core_of_c  # noqa: E402


class OtherGroup:
    """A process group that hands its operations to a device, and that Paddle does not know."""

    def __init__(self, size: int = 2) -> None:
        self._size = size

    def size(self) -> int:
        return self._size


class Task:
    def wait(self) -> None:
        pass


@pytest.fixture(params=["native", "python"])
def recorder(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FlightRecorder]:
    """A recorder by the compiled core, and one without it."""
    if request.param == "native" and core_of_c.load(core_of_c.FOLDER)[0] is None:
        pytest.skip("needs the compiled core: run `python tools/build_core.py`")
    monkeypatch.setenv(core_of_c.VARIABLE, request.param)
    monkeypatch.setattr(core, "task", Task)
    recorder = FlightRecorder(tmp_path, Topology.of(dp=1), 0, None, None, lambda: False)
    yield recorder
    recorder.close(Ending(None, 0, 0, False, set()))


class Group:
    """A process group whose operations do nothing: `noted` wraps them."""

    def all_reduce(self, tensor: Any) -> Task:
        return Task()

    def broadcast(self, tensor: Any, root: Any) -> Task:
        return Task()

    def send(self, tensor: Any, receiver: int) -> None:
        pass

    def recv(self, tensor: Any, sender: int) -> None:
        raise ConnectionError

    def scatter(self, output: Any, tensors: list[Any], root: int) -> None:
        pass

    def gather(self, tensor: Any, outputs: list[Any], root: int) -> None:
        pass

    def all_gather(self, outputs: Any, tensor: Any, sync_op: bool = True) -> None:
        pass

    def all_gather_partial(self, output: Any, tensor: Any, num: int, part: int) -> None:
        pass

    def send_partial(self, tensor: Any, receiver: int, num: int, part: int) -> None:
        pass

    def barrier(self) -> None:
        pass


@pytest.fixture
def group(recorder: FlightRecorder, monkeypatch: pytest.MonkeyPatch) -> Group:
    """Group 5 of ranks 0, 4 and 6, whose operations are noted."""
    group = Group()
    known = SimpleNamespace(process_group=group, id=5, ranks=[0, 4, 6])
    monkeypatch.setattr(collective, "_get_group_map", lambda: {5: known})
    monkeypatch.setattr(flight_recorder, "_HOST_GROUP", (Group,))
    for name, method in list(vars(Group).items()):
        if not name.startswith("__"):
            op, index = {**METHODS, **flight_recorder._MORE_METHODS}[name]
            monkeypatch.setattr(Group, name, recorder._noted(op, index, method))
    return group


def operations_of(run: Path) -> tuple[Operation, ...]:
    return read_rings(run)[0][0].operations


class Parallel:
    """As ``paddle.DataParallel``: its forward prepares the reduction in the next backward."""

    def __init__(self, group: Any, recorder: FlightRecorder) -> None:
        self.group = SimpleNamespace(process_group=group)
        self.reducer = Task()
        self._recorder = recorder

    def forward(self) -> None:
        prepare = self._recorder._prepared

        def wrapper(*args: Any) -> None:
            prepare(lambda *_: None, *args)

        wrapper(self.reducer, [])


def test_the_backward_that_reduces_gradients_is_one_operation(
    recorder: FlightRecorder, group: Group, tmp_path: Path
) -> None:
    model = Parallel(group, recorder)

    def backward() -> None:
        x = paddle.to_tensor(1.0, stop_gradient=False)
        (x * x).backward()

    backward()  # without a forward of the model, or after no_sync
    group.barrier()
    for _ in range(2):
        model.forward()
        model.forward()
        backward()
        backward()  # Paddle reduces in the first one only
    operations = operations_of(tmp_path)
    names = [("barrier", 1), ("backward of DataParallel", 2), ("backward of DataParallel", 3)]
    assert [(each.name, each.sequence) for each in operations] == names
    assert {each.group for each in operations} == {5}
    assert not any(each.is_pending for each in operations)
    assert operations[1].place.endswith(" backward")
    assert recorder.take_communication_ns() is None
    assert recorder.take_communication_ns() == 0


def test_each_model_reduces_in_a_backward_of_its_own(
    recorder: FlightRecorder, group: Group, tmp_path: Path
) -> None:
    """As actor and critic, whose forwards come first."""
    models = [Parallel(group, recorder) for _ in range(2)]
    losses = [paddle.to_tensor(1.0, stop_gradient=False) * 2 for _ in range(3)]
    for model in models:
        model.forward()
    for loss in losses:
        loss.backward()
    assert len(operations_of(tmp_path)) == 2


def test_a_backward_reduces_in_the_groups_of_all_models(
    recorder: FlightRecorder, group: Group, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As of a sum of two losses."""
    other = Group()
    groups = {
        number: SimpleNamespace(process_group=each, id=number, ranks=[0, 4])
        for number, each in ((5, group), (6, other))
    }
    monkeypatch.setattr(collective, "_get_group_map", lambda: groups)
    models = [Parallel(each, recorder) for each in (group, other)]
    for model in models:
        model.forward()
    paddle.to_tensor(1.0, stop_gradient=False).backward()
    assert sorted(each.group for each in operations_of(tmp_path)) == [5, 6]


@pytest.mark.parametrize("is_written", [True, False])
def test_stacks_are_old_once_steps_go_on(
    recorder: FlightRecorder, is_written: bool, tmp_path: Path
) -> None:
    if is_written:
        recorder._watch.write(b"Requested 1\n")
    recorder.on_step(cast(FinishedStep, SimpleNamespace(step=7)))
    deadline = time.monotonic() + 10
    while is_written and len(read_stacks(tmp_path, 0)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert read_stacks(tmp_path, 0)[1:] == ["Steps went on"] * is_written


def test_a_model_that_is_gone_reduces_no_more(
    recorder: FlightRecorder, group: Group, tmp_path: Path
) -> None:
    Parallel(group, recorder).forward()
    paddle.to_tensor(1.0, stop_gradient=False).backward()
    assert operations_of(tmp_path) == ()


def test_a_crash_of_a_forked_process_leaves_no_stacks(
    recorder: FlightRecorder, tmp_path: Path
) -> None:
    child = os.fork()
    if not child:
        os.abort()
    os.waitpid(child, 0)
    assert read_stacks(tmp_path, 0) == []
    assert faulthandler.is_enabled()


def test_a_backward_that_fails_is_an_operation_that_an_exception_ended(
    recorder: FlightRecorder, group: Group, tmp_path: Path
) -> None:
    model = Parallel(group, recorder)
    model.forward()
    x = paddle.to_tensor(1.0, stop_gradient=False)
    y = x * x
    y.backward()
    model.forward()
    with pytest.raises(SystemError):
        y.backward()  # its graph is freed
    assert [each.has_raised for each in operations_of(tmp_path)] == [False, True]


def test_a_signal_leaves_the_stacks(recorder: FlightRecorder, tmp_path: Path) -> None:
    recorder.on_signal()
    (text,) = read_stacks(tmp_path, 0)
    assert text.startswith("Ended by SIGTERM")
    assert "in test_a_signal_leaves_the_stacks" in text


def test_operations_are_noted(recorder: FlightRecorder, group: Group, tmp_path: Path) -> None:
    tensor = paddle.ones([3, 5])
    parameter = paddle.create_parameter([2], "float64")
    begin_ns = time.time_ns()
    for _ in range(2):
        group.all_reduce(tensor).wait()
    group.broadcast(parameter, 1)
    group.broadcast(tensor, "a root that only C++ knows")
    group.send(tensor.astype("int8"), 2)
    group.send(tensor, 1)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            group.recv(tensor, 2)
    recorder.on_step(cast(FinishedStep, SimpleNamespace(step=7)))
    group.scatter(tensor, [tensor, tensor], 0)
    group.gather(tensor, [tensor] * 3, 2)
    group.gather(tensor, [tensor] * 3, root=2)
    group.barrier()
    end_ns = time.time_ns()
    notes = operations_of(tmp_path)
    fields = ("name", "sequence", "step", "size", "peer", "dtype")
    assert [tuple(getattr(note, field) for field in fields) for note in notes] == [
        ("all_reduce", 1, 0, 60, -1, "float32"),
        ("all_reduce", 2, 0, 60, -1, "float32"),
        ("broadcast", 3, 0, 16, 4, "float64"),
        ("broadcast", 4, 0, 60, -1, "float32"),
        ("send", 1, 0, 15, 6, "int8"),
        ("send", 1, 0, 60, 4, "float32"),
        ("recv", 1, 0, 60, 6, "float32"),
        ("recv", 2, 0, 60, 6, "float32"),
        ("scatter", 5, 8, 60, 0, "float32"),
        ("gather", 6, 8, 60, 6, "float32"),
        ("gather", 7, 8, 60, -1, "float32"),
        ("barrier", 8, 8, 0, -1, "?"),
    ]
    lines, first = inspect.getsourcelines(test_operations_are_noted)
    calls = [str(first + n) for n, line in enumerate(lines) if line.strip().startswith("group.")]
    places = [note.place.partition(" ")[0].rpartition(":")[2] for note in notes]
    assert list(dict.fromkeys(places)) == calls
    assert {note.group for note in notes} == {5}
    for note in notes:
        assert begin_ns <= note.called_ns <= end_ns
        if note.name == "recv":
            assert note.has_raised
            assert note.called_ns <= -note.returned_ns <= end_ns
        else:
            assert note.called_ns <= note.returned_ns <= end_ns
        if note.name == "all_reduce":
            assert note.returned_ns <= note.waited_ns <= end_ns
        else:
            assert note.waited_ns == 0
    assert 0 < recorder.take_communication_ns() < end_ns - begin_ns


def test_the_bytes_are_those_that_this_rank_gives(
    recorder: FlightRecorder, group: Group, tmp_path: Path
) -> None:
    """Not those of all outputs, nor of the parts of a tensor that other ranks move."""
    tensor, outputs = paddle.ones([2, 6]), [paddle.ones([2, 6]) for _ in range(3)]
    group.all_gather(outputs, tensor)
    group.all_gather(tensor, paddle.ones([6, 6]))
    group.all_gather_partial(tensor, tensor, 3, 1)
    group.send_partial(tensor, 2, 4, 0)
    assert [(note.name, note.size, note.dtype) for note in operations_of(tmp_path)] == [
        ("all_gather", 48, "float32"),
        ("all_gather", 48, "float32"),
        ("all_gather", 16, "float32"),
        ("send", 12, "float32"),
    ]


def test_a_wait_for_a_device_does_not_say_that_the_operation_has_ended(
    recorder: FlightRecorder, group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_recorder, "_HOST_GROUP", ())
    group.all_reduce(paddle.ones([1])).wait()
    (note,) = operations_of(tmp_path)
    assert note.returned_ns > 0 == note.waited_ns
    assert read_rings(tmp_path)[0][0].groups[5].is_on_device


def test_a_job_that_was_suspended_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FlightRecorder(tmp_path, Topology.of(dp=1), 0, None, None, lambda: False).close(
        Ending(None, 0, 0, False, set())
    )
    looks, codes = [0.0], list[int]()

    def monotonic() -> float:
        looks.append(looks[-1] + (600 if len(looks) == 3 else 0.01))
        return looks[-1]

    monkeypatch.setattr(flight_recorder, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(flight_recorder, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(flight_recorder, "end_process", codes.append)
    watch = _Watch(tmp_path, 0, lambda: 7, 60, 75, lambda: False)
    while len(looks) < 10:
        time.sleep(0.01)
    watch.close()
    assert codes == []


def test_a_request_is_answered_in_a_pause_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation may hang; integrations pause there by themselves."""
    FlightRecorder(tmp_path, Topology.of(dp=1), 0, None, None, lambda: False).close(
        Ending(None, 0, 0, False, set())
    )
    monkeypatch.setattr(flight_recorder, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(flight_recorder, "_REQUEST_SECONDS", 0.05)
    codes = list[int]()
    monkeypatch.setattr(flight_recorder, "end_process", codes.append)
    (tmp_path / "manifest.json").write_text("{}")
    watch = _Watch(tmp_path, 0, lambda: 7, 0.1, 75, lambda: True)
    monkeypatch.setattr(watch, "_patience", 0.1)
    assert ask_for_stacks([tmp_path], [0], 10) == [0]
    watch.close()
    assert any(__name__.rpartition(".")[2] in each for each in read_stacks(tmp_path, 0))
    assert codes == [], "a pause does not count"


def test_once_no_step_ends_the_ring_is_written_to_the_disk_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And again with each answer: hosts that share NFS see what is on the disk."""
    FlightRecorder(tmp_path, Topology.of(dp=1), 0, None, None, lambda: False).close(
        Ending(None, 0, 0, False, set())
    )
    monkeypatch.setattr(flight_recorder, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(flight_recorder, "_REQUEST_SECONDS", 0.05)
    written: list[bool] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().suffix == ".ring":
            written.append(bool(read_stacks(tmp_path, 0)))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    (tmp_path / "manifest.json").write_text("{}")
    step = 7
    watch = _Watch(tmp_path, 0, lambda: step, None, None, lambda: False)
    time.sleep(0.5)
    assert written == [False]
    step = 8
    time.sleep(0.5)
    assert written == [False, False]
    assert ask_for_stacks([tmp_path], [0], 10) == [0]
    watch.close()
    assert written == [False, False, True]


def test_a_call_with_other_arguments_is_only_called(
    recorder: FlightRecorder, group: Group, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        group.all_reduce()  # type: ignore[call-arg]
    group.send(paddle.ones([1]), 3)
    group.send(paddle.ones([1]), receiver=1)
    group.send("no tensor", 1)
    assert operations_of(tmp_path) == ()


def test_a_task_at_the_address_of_an_earlier_one_is_not_that_operation(
    recorder: FlightRecorder, group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task()
    monkeypatch.setattr(Group, "all_reduce", recorder._noted("all_reduce", 0, lambda *_: task))
    group.all_reduce(paddle.ones([1]))
    group.all_reduce("no tensor")
    task.wait()
    (note,) = operations_of(tmp_path)
    assert note.waited_ns == 0


def test_what_a_signal_handler_raises_meanwhile_reaches_the_training(
    recorder: FlightRecorder, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(FlightRecorder, "_group", interrupted)
    with pytest.raises(KeyboardInterrupt):
        group.barrier()


def test_the_last_operations_stay_and_a_late_end_changes_no_other(
    recorder: FlightRecorder, group: Group, tmp_path: Path
) -> None:
    task = group.all_reduce(paddle.ones([1]))
    for _ in range(MOST_OPERATIONS):
        group.barrier()
    task.wait()
    notes = operations_of(tmp_path)
    assert [note.sequence for note in notes] == list(range(2, MOST_OPERATIONS + 2))
    assert {(note.name, note.waited_ns) for note in notes} == {("barrier", 0)}


def test_references_are_given_back(recorder: FlightRecorder, group: Group) -> None:
    tensor = paddle.ones([3])
    shown = [tensor, tensor.dtype, group, sys._getframe().f_code, "shape", 2, None]
    for _ in range(3):
        group.broadcast(tensor, 2)
    gc.collect()  # what other tests left may hold the dtype
    before = [sys.getrefcount(each) for each in shown]
    for _ in range(500):
        group.broadcast(tensor, 2)
    after = [sys.getrefcount(each) for each in shown]
    assert max(abs(b - a) for a, b in zip(before, after)) < 50


class Reduced(PyLayer):  # type: ignore[misc]
    """Communicates, as a tensor parallel layer does."""

    @staticmethod
    def forward(context: Any, x: Any, group: Group) -> Any:
        context.group = group
        group.barrier()
        return x * 1

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        context.group.barrier()
        return gradient * 1


class Block(paddle.nn.Layer):  # type: ignore[misc]
    def __init__(self, group: Group) -> None:
        super().__init__()
        self.linear = paddle.nn.Linear(4, 4)
        self.group = group

    def forward(self, x: Any) -> Any:
        return Reduced.apply(self.linear(x), self.group)


class Net(paddle.nn.Layer):  # type: ignore[misc]
    def __init__(self, group: Group, recomputes: bool) -> None:
        super().__init__()
        self.blocks = paddle.nn.LayerList([Block(group) for _ in range(2)])
        self.recomputes = recomputes

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = recompute(block, x) if self.recomputes else block(x)
        return x.sum()


@pytest.mark.parametrize("recomputes", [False, True])
def test_phase_and_module_are_noted(
    recorder: FlightRecorder, group: Group, recomputes: bool, tmp_path: Path
) -> None:
    x = paddle.ones([2, 4])
    x.stop_gradient = False
    for _ in range(3):  # other modules may live where those of the round before did
        Net(group, recomputes)(x).backward()
    again = ["backward of blocks.1 (Block)", "backward", "backward of blocks.0 (Block)", "backward"]
    expected = [
        *("forward of blocks.0 (Block)", "forward of blocks.1 (Block)"),
        *(again if recomputes else ["backward", "backward"]),
    ]
    assert [note.context for note in operations_of(tmp_path)] == 3 * expected


def test_methods_and_handlers_are_restored_if_a_window_is_open_at_the_end(tmp_path: Path) -> None:
    before = [dict(vars(kind)) for kind in process_groups()]
    block = {"enable": True, "profiler_log": str(tmp_path / "log"), "hang_after": 100}
    is_enabled = faulthandler.is_enabled()
    with ppprof.attach(block) as prof:
        prof.step()
        assert [dict(vars(kind)) for kind in process_groups()] != before
    assert [dict(vars(kind)) for kind in process_groups()] == before
    assert faulthandler.is_enabled() == is_enabled


def test_a_task_of_a_device_is_known_until_the_training_waits_for_it(
    recorder: FlightRecorder,
) -> None:
    group = OtherGroup()
    recorder._groups.keep(group, _Group(0, (0,), is_host=False))
    start = recorder._noted("barrier", None, lambda group: Task())
    waited, dropped = start(group), start(group)
    assert recorder.device_tasks() == [waited, dropped]
    waited.wait()
    assert recorder.device_tasks() == [dropped]
    del dropped
    assert recorder.device_tasks() == []


def test_the_methods_are_restored_if_the_recorder_fails_halfway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> object:
        raise RuntimeError("this version of Paddle differs")

    before = [dict(vars(kind)) for kind in process_groups()]
    is_enabled, threads = faulthandler.is_enabled(), threading.active_count()
    for method in ("_noted_wait", "_look"):  # the last method; a thread that cannot start
        folder = tmp_path / method
        folder.mkdir()
        with monkeypatch.context() as patch:
            if method == "_look":
                patch.setattr(process, "start_thread", failing)
            else:
                patch.setattr(FlightRecorder, method, failing)
            with pytest.raises(RuntimeError, match="this version"):
                FlightRecorder(folder, Topology.of(dp=1), 0, None, None, lambda: False)
        assert [dict(vars(kind)) for kind in process_groups()] == before
        assert (faulthandler.is_enabled(), threading.active_count()) == (is_enabled, threads)


def test_a_group_that_paddle_has_not_numbered_is_noted_if_all_ranks_are_in_it(
    recorder: FlightRecorder, tmp_path: Path
) -> None:
    call = recorder._noted("barrier", None, lambda group: None)
    groups = OtherGroup(size=1), OtherGroup(size=1), OtherGroup(size=2)
    for group in groups:
        call(group)
    ring = read_rings(tmp_path)[0][0]
    numbers = [note.group for note in ring.operations]
    assert numbers == [(1 << 31) + 1, (1 << 31) + 2]
    assert [[*ring.groups[number].ranks] for number in numbers] == [[0], [0]]


def test_the_time_in_an_operation_that_cannot_be_noted_counts(recorder: FlightRecorder) -> None:
    class SlowTask(Task):
        def wait(self) -> None:
            time.sleep(0.03)

    recorder.on_step(cast(FinishedStep, SimpleNamespace(step=0)))
    call = recorder._noted("barrier", None, lambda group: time.sleep(0.02))
    wait = recorder._noted_wait(SlowTask.wait)
    begin_ns = time.perf_counter_ns()
    call(OtherGroup())
    wait(SlowTask())
    elapsed_ns = time.perf_counter_ns() - begin_ns
    recorder.on_step(cast(FinishedStep, SimpleNamespace(step=1)))
    noted_ns = recorder.take_communication_ns()
    assert noted_ns is not None
    assert (
        45_000_000 < noted_ns <= elapsed_ns + 1_000_000
    )  # a sleep may take longer, as on a busy machine


def test_the_time_of_a_step_in_which_data_parallel_reduces_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reducer waits for the other ranks in C++."""

    class Reducer:
        def prepare_for_backward(self, outputs: list[Any]) -> int:
            return len(outputs)

    monkeypatch.setattr(core, "EagerReducer", Reducer)
    recorder = FlightRecorder(tmp_path, Topology.of(dp=1), 0, None, None, lambda: False)
    assert recorder.take_communication_ns() == 0
    assert Reducer().prepare_for_backward([1, 2]) == 2
    assert recorder.take_communication_ns() is None
    assert recorder.take_communication_ns() == 0
    recorder.close(Ending(None, 0, 0, False, set()))
    assert Reducer().prepare_for_backward([1]) == 1
    assert recorder.take_communication_ns() == 0


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


def test_every_method_of_a_process_group_that_communicates_is_known() -> None:
    """Such a method returns a task; Paddle's MoE layers call the old names ``alltoall``."""
    known = {*METHODS, *flight_recorder._MORE_METHODS}
    returning = {
        name.removesuffix("_on_calc_stream")
        for name, method in vars(core.ProcessGroup).items()
        if (method.__doc__ or "").rstrip().endswith("ProcessGroup::Task")
    }
    assert {"all_reduce", "alltoall"} <= returning
    assert returning <= known


@pytest.mark.parametrize(
    ("num_ranks", "hang_after", "takes"), [(1, None, False), (1, 60.0, True), (2, None, True)]
)
def test_a_single_process_keeps_its_own_handlers_of_crashes(
    tmp_path: Path, num_ranks: int, hang_after: float | None, takes: bool
) -> None:
    """Nothing waits for it that asks how it ended."""
    was_enabled = faulthandler.is_enabled()
    faulthandler.disable()
    try:
        recorder = FlightRecorder(
            tmp_path, Topology.of(dp=num_ranks), 0, hang_after, None, lambda: False
        )
        assert faulthandler.is_enabled() == takes
        recorder.release()
        assert not faulthandler.is_enabled()
    finally:
        if was_enabled:
            faulthandler.enable()
