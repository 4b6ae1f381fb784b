"""Names of collective spans, without any communication."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ppprof.topology import Topology
from tests.fixtures.words import words

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = pytest.mark.paddle

import paddle  # noqa: E402
import paddle.distributed as dist  # noqa: E402
from paddle.base import core  # noqa: E402

from ppprof.capture.recording import collectives  # noqa: E402

needs_paddle_3 = pytest.mark.skipif(
    paddle.__version__.startswith("2."), reason="needs Paddle 3, which groups calls"
)
GRID = Topology.of(dp=2, pp=2, sharding=2, mp=2)
FLOAT32, FLOAT16 = (paddle.ones([4], dtype) for dtype in ("float32", "float16"))


class Group:
    """A group of ranks, equal to itself alone, as Paddle's."""

    def __init__(self, number: int, ranks: list[int]) -> None:
        self.id, self.ranks, self.process_group = number, ranks, object()


def group(number: int, *ranks: int) -> Any:
    return Group(number, list(ranks))


class Counting:
    """A topology that counts its calls."""

    num_asked = 0

    def axis_of(self, ranks: list[int]) -> str | None:
        self.num_asked += 1
        return GRID.axis_of(ranks)


@pytest.fixture
def topology() -> Counting:
    return Counting()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, topology: Counting) -> Iterator[list[str]]:
    """The names of the spans, while a window is open over functions that only take arguments."""

    def all_reduce(tensor: Any, group: Any = None) -> None: ...

    def all_gather(tensor_list: Any, tensor: Any, group: Any = None) -> None: ...

    def alltoall(in_tensor_list: Any, out_tensor_list: Any, group: Any = None) -> None: ...

    def barrier(group: Any = None) -> None: ...

    def isend(tensor: Any, dst: int, group: Any = None) -> None: ...

    def batch_isend_irecv(p2p_op_list: Any) -> None: ...

    for function in (all_reduce, all_gather, alltoall, barrier, isend, batch_isend_irecv):
        monkeypatch.setattr(dist, function.__name__, function)
    found: list[str] = []

    def span(name: str, category: str) -> Any:
        assert category == "Communication"
        found.append(name)
        return SimpleNamespace(end=lambda: None)

    monkeypatch.setattr(collectives, "open_span", span)
    wrappers = collectives.Collectives(topology)  # type: ignore[arg-type]
    wrappers.install()
    yield found
    wrappers.uninstall()


def test_the_axis_is_that_of_the_group(names: list[str]) -> None:
    dist.all_reduce(FLOAT32, group=group(3, 0, 8))
    dist.all_reduce(FLOAT32, group=group(4, 0, 2, 8, 10))
    dist.all_reduce(FLOAT32, group=group(5, 0, 3))
    dist.barrier(group=group(6, 4, 5))
    dist.isend(FLOAT32, 4, group=group(7, 0, 4))
    assert names == [
        "all_reduce[axis=dp group=3 bytes=16 dtype=float32 peers=0,8]",
        "all_reduce[axis=dp+sharding group=4 bytes=16 dtype=float32 peers=0,2,8,10]",
        "all_reduce[group=5 bytes=16 dtype=float32 peers=0,3]",
        "barrier[axis=mp group=6 peers=4,5]",
        "isend[axis=pp group=7 bytes=16 dtype=float32 peers=4]",
    ]


def test_the_name_of_a_call_is_made_once(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Making it takes five times as long as all else that is recorded of a call."""
    num_made = 0

    def count(op: str, annotations: list[str]) -> Any:
        nonlocal num_made
        num_made += 1
        return made(op, annotations)

    made = collectives._names_of
    monkeypatch.setattr(collectives, "_names_of", count)
    dp, mp = group(3, 0, 8), group(4, 0, 1)
    calls = [
        (dist.all_reduce, (FLOAT32,), {"group": dp}),
        (dist.all_reduce, (FLOAT32, dp), {}),
        (dist.all_reduce, (), {"tensor": FLOAT16, "group": dp}),
        (dist.all_reduce, (paddle.ones([2, 3]), mp), {}),
        (dist.isend, (FLOAT32, 8, dp), {}),
        (dist.isend, (FLOAT32,), {"dst": 0, "group": dp}),
    ]
    for function, args, kwargs in 3 * calls:
        function(*args, **kwargs)
    assert names == 3 * [
        "all_reduce[axis=dp group=3 bytes=16 dtype=float32 peers=0,8]",
        "all_reduce[axis=dp group=3 bytes=16 dtype=float32 peers=0,8]",
        "all_reduce[axis=dp group=3 bytes=8 dtype=float16 peers=0,8]",
        "all_reduce[axis=mp group=4 bytes=24 dtype=float32 peers=0,1]",
        "isend[axis=dp group=3 bytes=16 dtype=float32 peers=8]",
        "isend[axis=dp group=3 bytes=16 dtype=float32 peers=0]",
    ]
    assert num_made == 5


def test_what_keeps_a_function_in_a_window_can_be_copied_and_pickled() -> None:
    wrappers = collectives.Collectives(GRID)
    wrappers.install()
    kept, pickled = dist.all_reduce, pickle.dumps([dist.all_reduce, dist.barrier])
    assert type(kept) is not type(dist.fleet.init)  # the window wraps it
    wrappers.uninstall()
    assert copy.deepcopy([kept, copy.copy(kept)]) == [dist.all_reduce, dist.all_reduce]
    assert type(copy.deepcopy(kept)) is type(dist.all_reduce)
    assert pickle.loads(pickled) == [dist.all_reduce, dist.barrier]  # noqa: S301 (our own)


def test_names_are_bounded(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "_MOST_NAMES", 1)
    ranks = group(3, 0, 8)
    for tensor in (FLOAT32, FLOAT16, FLOAT16):
        dist.all_reduce(tensor, ranks)
    assert [name.split()[2] for name in names] == ["bytes=16", "bytes=8", "bytes=8"]


def test_the_topology_is_asked_once_a_group(names: list[str], topology: Counting) -> None:
    for number in (3, 5, 3, 5, 3):
        dist.barrier(group=group(number, 0, 3))
    assert (len(names), topology.num_asked) == (5, 2)


def test_of_several_tensors_all_bytes_and_the_first_ones_dtype(names: list[str]) -> None:
    ranks = group(3, 0, 1)
    dist.all_gather([], FLOAT16, group=ranks)
    dist.alltoall([FLOAT16, FLOAT32], [], group=ranks)
    dist.batch_isend_irecv(
        [
            SimpleNamespace(tensor=tensor, group=ranks, peer=1, op=op)
            for tensor, op in ((FLOAT32, dist.isend), (FLOAT16, dist.irecv))
        ]
    )
    assert names == [
        "all_gather[axis=mp group=3 bytes=8 dtype=float16 peers=0,1]",
        "alltoall[axis=mp group=3 bytes=24 dtype=float16 peers=0,1]",
        "batch_isend_irecv[axis=mp group=3 bytes=24 dtype=float32 peers=>1:16,<1:8]",
    ]


def test_arguments_that_make_no_sense_leave_the_name_alone(names: list[str]) -> None:
    dist.all_reduce("not a tensor", group=group(3, 0, 1))
    assert names == ["all_reduce"]


def test_a_method_of_a_process_group_is_annotated_like_its_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fleet's layers call them directly; half of a tensor is sent where two ranks share it."""
    both, half = group(3, 0, 8), group(4, 0, 1)
    groups = {3: both, 4: half}
    monkeypatch.setattr(collectives.collective, "_get_group_map", lambda: groups)
    spans = collectives.Collectives(GRID)
    args = (FLOAT32,)
    assert spans._method_annotations(
        "all_reduce", 0, "all_reduce", both.process_group, args
    ) == words("axis=dp group=3 bytes=16 dtype=float32 peers=0,8")
    args = (FLOAT32, 1, 2, 0)
    assert spans._method_annotations("send", 0, "send_partial", half.process_group, args) == words(
        "axis=mp group=4 bytes=8 dtype=float32 peers=1"
    )
    for outputs in ([FLOAT32, FLOAT32], []):
        args = (outputs, FLOAT16, True)
        assert spans._method_annotations(
            "all_gather", 0, "all_gather", half.process_group, args
        ) == words("axis=mp group=4 bytes=8 dtype=float16 peers=0,1")
    assert spans._method_annotations("all_reduce", 0, "all_reduce", object(), (FLOAT32,)) == []


def test_modules_imported_in_a_window_are_given_the_function_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrappers, function, wait = collectives.Collectives(GRID), dist.all_reduce, core.task.wait
    wrappers.install()
    late = ModuleType("late")
    late.all_reduce = dist.all_reduce  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "late", late)
    assert late.all_reduce is not function
    wrappers.uninstall()
    assert late.all_reduce is dist.all_reduce is function
    assert core.task.wait is wait


def test_a_module_that_waits_for_its_first_use_goes_on_waiting(lazy_module: ModuleType) -> None:
    wrappers = collectives.Collectives(GRID)
    wrappers.install()
    wrappers.uninstall()
    assert "rgb_to_hsv" not in object.__getattribute__(lazy_module, "__dict__")


def test_a_wait_that_was_wrapped_since_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core.task, "wait", core.task.wait)  # puts it back in the end
    wrappers, theirs = collectives.Collectives(GRID), lambda task: None
    wrappers.install()
    core.task.wait = theirs
    wrappers.uninstall()
    assert core.task.wait is theirs


class TaskFake:
    """The task of a process group written in Python."""

    def wait(self) -> bool:
        return True


class ProcessGroupFake:
    """A process group that logs the calls which reach it; as NCCL's, it launches at a group's end."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def barrier(self) -> None: ...

    def _start_coalescing(self) -> None: ...

    def _end_coalescing(self, tasks: Any = None) -> None:
        self.log.append("launch")

    def send(self, tensor: Any, peer: int, sync_op: bool) -> None: ...

    def recv(self, tensor: Any, peer: int, sync_op: bool) -> TaskFake:
        return TaskFake()

    def send_on_calc_stream(self, tensor: Any, peer: int) -> None: ...

    def recv_partial_on_calc_stream(self, tensor: Any, peer: int, num: int, part: int) -> None: ...


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The starts and ends of spans, and launches, while a window is open over a fake group."""
    found: list[str] = []
    monkeypatch.setattr(core, "ProcessGroupFake", ProcessGroupFake, raising=False)
    monkeypatch.setattr(collectives, "TASKS", [core.task, TaskFake])
    wait = TaskFake.wait

    def span(name: str, category: str) -> Any:
        found.append(name)
        return SimpleNamespace(end=lambda: found.append(f"end {name.partition('[')[0]}"))

    monkeypatch.setattr(collectives, "open_span", span)
    wrappers = collectives.Collectives(GRID)
    wrappers.install()
    yield found
    wrappers.uninstall()
    assert TaskFake.wait is wait


def pipeline_group(monkeypatch: pytest.MonkeyPatch, log: list[str], *ranks: int) -> Any:
    """The group 7 of these ranks, this process being the first."""
    made = SimpleNamespace(
        id=7,
        ranks=list(ranks),
        process_group=ProcessGroupFake(log),
        backend="NCCL",
        is_member=lambda: True,
        get_group_rank=list(ranks).index,
    )
    monkeypatch.setattr(collectives.collective, "_get_group_map", lambda: {7: made})
    return made


@needs_paddle_3
def test_waiting_for_a_task_of_another_class_is_a_span_too(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pipeline_group(monkeypatch, log, 0, 4).process_group.recv(FLOAT32, 1, True).wait()
    text = "axis=pp group=7 bytes=16 dtype=float32 peers=4"
    assert log == [f"recv[{text}]", "end recv", f"wait[op=recv {text}]", "end wait"]


@needs_paddle_3
def test_a_batch_of_transfers_is_one_span_with_its_launch_inside(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stages 0 and 4 of GRID; three of them send and receive."""
    ranks = pipeline_group(monkeypatch, log, 0, 4)
    transfers = [dist.P2POp(dist.isend, FLOAT32, 4, ranks)]
    transfers.append(dist.P2POp(dist.irecv, FLOAT16, 4, ranks))
    dist.batch_isend_irecv(transfers)
    assert log == [
        "batch_isend_irecv[axis=pp group=7 bytes=24 dtype=float32 peers=>4:16,<4:8]",
        "launch",
        "end batch_isend_irecv",
    ]


@needs_paddle_3
def test_so_is_a_batch_of_fleets_pipeline_whose_mp_ranks_share_a_tensor(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from paddle.distributed.fleet.meta_parallel.pp_utils import p2p_communication as p2p

    monkeypatch.setattr(p2p, "_enable_partial_send_recv", True)
    ranks = pipeline_group(monkeypatch, log, 0, 4)
    send = p2p.P2PonCalcStream(p2p._send_on_calc_stream, paddle.ones([3]), 4, ranks, 2, 0)
    recv = p2p.P2PonCalcStream(p2p._recv_on_calc_stream, FLOAT32, 4, ranks, 2, 0)
    p2p.batch_send_recv_on_calc_stream([send, recv])
    assert log == [
        "batch_send_recv_on_calc_stream[axis=pp group=7 bytes=20 dtype=float32 peers=>4:12,<4:8]",
        "launch",
        "end batch_send_recv_on_calc_stream",
    ]


@needs_paddle_3
def test_another_group_of_calls_is_a_span_around_theirs(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from paddle.distributed.communication.batch_isend_irecv import _coalescing_manager

    ranks = pipeline_group(monkeypatch, log, 0, 4)
    with _coalescing_manager(ranks):
        ranks.process_group.send_on_calc_stream(FLOAT32, 1)
    assert log == [
        "coalesced[axis=pp group=7]",
        "send[axis=pp group=7 bytes=16 dtype=float32 peers=4]",
        "end send",
        "launch",
        "end coalesced",
    ]


@needs_paddle_3
def test_a_group_that_fails_ends_its_span(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from paddle.distributed.communication.batch_isend_irecv import _coalescing_manager

    ranks = pipeline_group(monkeypatch, log, 0, 4)
    with pytest.raises(ZeroDivisionError), _coalescing_manager(ranks):
        raise ZeroDivisionError
    ranks.process_group._start_coalescing()  # its end is never reached
    assert log[-1] == "coalesced[axis=pp group=7]"
    assert log.count("end coalesced") == 1


def test_the_end_of_a_window_ends_the_span_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    monkeypatch.setattr(core, "ProcessGroupFake", ProcessGroupFake, raising=False)
    monkeypatch.setattr(
        collectives,
        "open_span",
        lambda name, category: SimpleNamespace(end=lambda: ended.append(name)),
    )
    wrappers = collectives.Collectives(GRID)
    wrappers.install()
    ProcessGroupFake([])._start_coalescing()
    wrappers.uninstall()
    assert ended == ["coalesced"]
