"""What a rank writes when its memory runs out, against a count of the tensors by hand."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ppprof
from ppprof.capture.parts import Ending
from ppprof.capture.steps.step_log import DeviceMemory
from ppprof.rundir.out_of_memory import OutOfMemory, read_out_of_memory

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = pytest.mark.paddle

from paddle.distributed.fleet.utils import recompute  # noqa: E402

HUGE = 1 << 44


class Block(paddle.nn.Layer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.linear = paddle.nn.Linear(32, 32)
        self.norm = paddle.nn.LayerNorm(32)
        self.register_buffer("mask", paddle.ones([64]))
        self.grows = False

    def forward(self, x: Any) -> Any:
        hidden = self.linear(x)
        if self.grows:
            paddle.ones([HUGE])
        return self.norm(hidden)


def train(run: Path, fails: bool = True) -> None:
    gc.collect()  # models of other tests
    net = paddle.nn.Sequential(Block(), Block())
    net.head = net[0].linear.weight  # tied: it counts once
    adam = paddle.optimizer.Adam(parameters=net.parameters())
    with ppprof.attach({"enable": True, "scheduler": [50, 51], "profiler_log": str(run)}) as prof:
        for step in range(4):
            batch = paddle.ones([8, 32])
            net[1].grows = fails and step == 3
            net(batch).sum().backward()
            adam.step()
            prof.step()


def test_what_is_held_is_counted_by_kind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gc.collect()  # layers of other tests
    with pytest.raises(MemoryError):
        train(tmp_path / "log")
    assert "the memory ran out; who held it: ppprof memory" in caplog.text
    found, problems = read_out_of_memory(tmp_path / "log")
    assert problems == []
    (rank,) = found.values()
    weights = 2 * (32 * 32 + 32 + 32 + 32) * 4  # weight, bias, scale and shift of float32
    assert rank.bytes_by_kind["parameter"] == weights
    assert rank.bytes_by_kind["gradient"] == weights  # not cleared
    # Two moments of each parameter, and two numbers for their powers.
    assert rank.bytes_by_kind["optimizer state"] == 2 * weights + 8 * 2 * 4
    assert rank.bytes_by_kind["buffer"] == 2 * 64 * 4
    assert rank.bytes_by_kind["local variable"] >= 2 * 8 * 32 * 4  # batch, hidden and x
    assert rank.requested_bytes == HUGE * 4
    assert (rank.rank, rank.step, rank.module) == (0, 3, "1 (Block)")
    assert "test_out_of_memory.py:" in rank.place
    assert rank.place.endswith(" forward")
    assert "ResourceExhausted" in rank.error
    assert rank.allocated_bytes is not None
    assert sum(rank.bytes_by_kind.values()) <= rank.allocated_bytes
    names = {tensor.name for tensor in rank.largest}
    assert "Sequential.head" in names, "the first name of a tied weight"
    assert any(name.startswith("Sequential.1.linear.weight: moment1") for name in names)


def test_other_endings_write_nothing(tmp_path: Path) -> None:
    train(tmp_path / "log", fails=False)
    assert read_out_of_memory(tmp_path / "log") == ({}, [])


def noted(
    run: Path,
    fails: Callable[[], Any],
    *,
    on_device: bool = False,
    raises: type[Exception] = MemoryError,
) -> OutOfMemory | None:
    """What is written if a function fails; with ``on_device``, of a training whose device is not the CPU."""
    from ppprof.capture.out_of_memory import OutOfMemoryPart

    run.mkdir(exist_ok=True)
    memory = DeviceMemory(total_bytes=1 << 35)
    part = OutOfMemoryPart(run, 0, "npu:0" if on_device else "cpu", lambda: memory)
    if not on_device:
        part._device_memory = None
    with pytest.raises(raises) as raised:
        fails()
    part.close(Ending(raised.value, 3, 3, False, set()))
    return read_out_of_memory(run)[0].get(0)


def test_a_view_is_within_the_memory_of_its_tensor(tmp_path: Path) -> None:
    def fails() -> None:
        tail_first = paddle.arange(300, dtype="float32")
        views = [tail_first[100:], tail_first.reshape([3, 100])[:, 10:20], tail_first]  # noqa: F841
        raise MemoryError

    gc.collect()
    found = noted(tmp_path, fails)
    assert found is not None
    assert found.bytes_by_kind["local variable"] == 300 * 4


@pytest.mark.parametrize(
    ("attribute", "kind"),
    [("main_grad", "gradient"), ("bw_storage", "gradient"), ("fw_storage", "parameter")],
)
def test_what_fleet_keeps_beside_a_parameter_counts(
    tmp_path: Path, attribute: str, kind: str
) -> None:
    def fails() -> None:
        raise MemoryError

    gc.collect()
    layer = paddle.nn.Linear(8, 8, bias_attr=False)
    before = noted(tmp_path / "before", fails)
    setattr(layer.weight, attribute, paddle.ones([64]))
    after = noted(tmp_path / "after", fails)
    assert before is not None
    assert after is not None
    assert after.bytes_by_kind[kind] - before.bytes_by_kind[kind] == 64 * 4


def test_the_memory_of_the_host_is_not_that_of_the_device(tmp_path: Path) -> None:
    def fails() -> None:
        batch = paddle.ones([100])  # noqa: F841 (on the host)
        raise MemoryError("Unable to allocate 7.28 TiB for an array")

    found = noted(tmp_path, fails, on_device=True)
    assert found is not None
    assert (found.device, found.total_bytes) == ("cpu", None)
    assert found.bytes_by_kind["local variable"] == 100 * 4


def test_the_memory_of_the_device_is_not_that_of_the_host(tmp_path: Path) -> None:
    def fails() -> None:
        batch = paddle.ones([100])  # noqa: F841 (on the host)
        raise MemoryError("(ResourceExhausted) Cannot allocate 1.5GB memory on NPU 0")

    found = noted(tmp_path, fails, on_device=True)
    assert found is not None
    assert (found.device, found.total_bytes) == ("npu:0", 1 << 35)
    assert found.bytes_by_kind["local variable"] == 0


def test_a_worker_that_runs_out_of_memory_is_not_the_training(tmp_path: Path) -> None:
    def fails() -> None:
        raise MemoryError("DataLoader worker(1) caught MemoryError with message:\nTraceback")

    assert noted(tmp_path, fails) is None


def test_the_stack_of_c_plus_plus_does_not_say_what_was_asked_for(tmp_path: Path) -> None:
    """It names ``Alloc<phi::dtype::float16>``."""
    paddle.set_flags({"FLAGS_call_stack_level": 2})
    try:
        found = noted(tmp_path, lambda: paddle.ones([HUGE], "float16"))
    finally:
        paddle.set_flags({"FLAGS_call_stack_level": 1})
    assert found is not None
    assert found.requested_bytes == HUGE * 2
    assert found.error.startswith("MemoryError: ResourceExhaustedError: Fail to alloc memory of ")


def test_a_message_without_a_number_asks_for_an_unknown_size(tmp_path: Path) -> None:
    def fails() -> None:
        raise MemoryError("cannot allocate buffer.")

    found = noted(tmp_path, fails)
    assert found is not None
    assert found.requested_bytes is None


def test_memory_that_runs_out_in_the_backward_of_recompute_is_noted(tmp_path: Path) -> None:
    """Fleet's recompute calls the forward again there; C++ raises an OSError with the text of the MemoryError."""
    block, calls = Block(), list[int]()

    def forward(x: Any) -> Any:
        calls.append(1)
        block.grows = len(calls) == 2
        return block(x)

    def fails() -> None:
        batch = paddle.ones([8, 32])
        batch.stop_gradient = False
        recompute(forward, batch).sum().backward()

    gc.collect()
    found = noted(tmp_path, fails, raises=OSError)
    assert found is not None
    assert found.requested_bytes == HUGE * 4
    assert "ResourceExhausted" in found.error
    assert found.place.endswith(" fails")
    assert found.bytes_by_kind["parameter"] >= (32 * 32 + 32 + 32 + 32) * 4


@pytest.mark.parametrize("is_named", [True, False])
def test_an_error_that_was_raised_for_it_does_not_hide_it(tmp_path: Path, is_named: bool) -> None:
    """As of a loop that adds the number of the batch, or whose cleaning up fails."""

    def fails() -> None:
        try:
            paddle.ones([HUGE])
        except MemoryError as error:
            raise ValueError("batch 7") from (error if is_named else None)

    found = noted(tmp_path, fails, raises=ValueError)
    assert found is not None
    assert found.requested_bytes == HUGE * 4


class Unprintable(Exception):
    def __str__(self) -> str:
        raise TypeError


@pytest.mark.parametrize("error", [OSError("No space left on device"), Unprintable()])
def test_an_error_that_has_nothing_to_do_with_memory_is_not_noted(
    tmp_path: Path, error: Exception
) -> None:
    def fails() -> None:
        raise error

    assert noted(tmp_path, fails, raises=type(error)) is None


def keeps(num: int, each: Callable[[int], Any]) -> None:
    """Fail with a list in a variable."""
    pending = [each(number) for number in range(num)]
    raise MemoryError(f"{len(pending)}: Fail to alloc memory of 5 size")


def test_containers_are_named_with_what_only_they_hold(tmp_path: Path) -> None:
    layer = paddle.nn.Linear(64, 64)
    whole = paddle.ones([6, 100])
    found = noted(
        tmp_path,
        lambda: keeps(
            6,
            lambda number: partial(print, {"part": whole[number], "weight": layer.weight.detach()}),
        ),
    )
    assert found is not None
    (container,) = (each for each in found.containers if each.name.startswith("pending, keeps()"))
    assert container.name == "pending, keeps() of tests/capture/test_out_of_memory.py (list)"
    assert (container.num_tensors, container.bytes) == (6, 6 * 100 * 4)  # without the weight
    assert not container.has_graphs


def test_tensors_of_two_containers_count_for_the_larger_one(tmp_path: Path) -> None:
    def fails() -> None:
        losses = [paddle.nn.Linear(4, 4)(paddle.ones([2, 4])) for _ in range(9)]
        latest = losses[-6:]
        raise MemoryError(f"{len(losses) - len(latest)}: Fail to alloc memory of 5 size")

    found = noted(tmp_path, fails)
    assert found is not None
    (container,) = (each for each in found.containers if " of tests/" in each.name)
    assert container.name.startswith("losses, ")
    assert (container.num_tensors, container.bytes) == (9, 9 * 2 * 4 * 4)
    assert container.has_graphs


def test_without_memory_for_the_search_the_rest_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ppprof.capture import out_of_memory

    def fails(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(out_of_memory, "held_containers", fails)
    found = noted(tmp_path, lambda: keeps(9, lambda number: paddle.ones([100])))
    assert found is not None
    assert found.containers == ()
    assert found.bytes_by_kind["local variable"] == 9 * 100 * 4


def test_the_search_keeps_no_variable_of_the_failed_attempt(tmp_path: Path) -> None:
    """Who tries again with a smaller batch needs the memory, before Python collects cycles."""
    from ppprof.capture.out_of_memory import OutOfMemoryPart

    part = OutOfMemoryPart(tmp_path, 0, "cpu", None)

    def fails() -> weakref.ref[Any]:
        activation = paddle.nn.Linear(2, 2)
        watched = weakref.ref(activation)
        try:
            raise MemoryError("Fail to alloc memory of 5 size")
        except MemoryError as error:
            part.close(Ending(error, 3, 3, False, set()))
        return watched

    gc.disable()
    try:
        watched = fails()
        assert watched() is None
    finally:
        gc.enable()
    assert read_out_of_memory(tmp_path)[0]


def test_a_file_of_an_earlier_version_has_no_containers(tmp_path: Path) -> None:
    assert noted(tmp_path, lambda: keeps(9, lambda number: paddle.ones([100]))) is not None
    file = tmp_path / "memory/00000.json"
    values = json.loads(file.read_text())
    assert values.pop("containers")
    file.write_text(json.dumps(values))
    assert read_out_of_memory(tmp_path)[0][0].containers == ()
