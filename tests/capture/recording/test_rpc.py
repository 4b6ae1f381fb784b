"""Calls of ``paddle.distributed.rpc`` are recorded where they run, without a word in the training.

The CPU wheel has rpc's Python code and no agent. Here a pool's process stands in for the agent: it
does with a message what the agent does, by Paddle's own functions. tests/jobs/test_rpc.py has the
real one.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, Callable

import polars as pl
import pytest

import ppprof
from ppprof.remote_names import REMOTE, WAIT
from ppprof.trace import read
from ppprof.trace.operator_inputs import attributes_of

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = pytest.mark.paddle

from paddle.base import core  # noqa: E402
from paddle.distributed import rpc  # noqa: E402
from paddle.distributed.rpc import internal  # noqa: E402

from tests.fixtures import rpc_functions  # noqa: E402

VALUES = [-1.0, 2.0]


class Reply:
    """What Paddle's agent returns for a call: an object with ``wait`` alone."""

    def __init__(self, future: Future[bytes]) -> None:
        self._future = future

    def wait(self) -> Any:
        return internal._deserialize(self._future.result())


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """worker1, and worker2, which cannot import ppprof."""

    def pool(initializer: Callable[[], None] | None) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, mp_context=context, initializer=initializer)

    with pool(None) as able, pool(rpc_functions.block_ppprof) as unable:
        pools = {"worker1": able, "worker2": unable}
        monkeypatch.setattr(
            core,
            "invoke_rpc",
            lambda to, message, _: Reply(pools[to].submit(rpc_functions.answer, message)),
            raising=False,
        )
        yield


def calls() -> list[Any]:
    """The results of a step's calls."""
    future = rpc.rpc_async("worker1", rpc_functions.relu_of, args=(VALUES,), kwargs={"scale": 3.0})
    return [
        rpc.rpc_sync("worker1", rpc_functions.relu_of, args=(VALUES,)),
        future.wait(),
        rpc.rpc_sync("worker2", rpc_functions.relu_of, args=(VALUES,)),
    ]


def test_calls_of_a_window_are_recorded_on_their_worker(workers: None, tmp_path: Path) -> None:
    send = rpc.rpc._invoke_rpc
    block = {"enable": True, "profiler_log": str(tmp_path / "log"), "scheduler": [1, 3]}
    errors, results = io.StringIO(), []
    with contextlib.redirect_stderr(errors), ppprof.attach(block) as prof:
        for step in range(4):
            results.append(calls())
            if step == 1:
                with pytest.raises(KeyError, match="no such key"):
                    rpc.rpc_sync("worker1", rpc_functions.fail, args=("no such key",))
                sent = ppprof.remote.profiled(rpc_functions.relu_of)
                assert ppprof.remote.result(rpc.rpc_sync("worker1", sent, args=(VALUES,))) == [0, 2]
            prof.step()
            assert (rpc.rpc._invoke_rpc is send) == (step in (2, 3))
    assert results == [[[0.0, 2.0], [0.0, 6.0], [0.0, 2.0]]] * 4
    warning = "worker2: cannot import ppprof: its calls are not recorded"
    assert errors.getvalue().count(warning) == 1

    events = read(next((tmp_path / "log").glob("*.paddle_trace.json"))).events
    names = events.sort("start_ns")["name"].cast(pl.String)
    spans = names.filter(names.str.starts_with("rpc#") & ~names.str.contains(REMOTE, literal=True))
    relu, fail = "rpc#relu_of(worker0 -> worker1)", "rpc#fail(worker0 -> worker1)"
    (own,) = set(spans) - {relu, fail}
    assert own.startswith("rpc#relu_of(worker0 -> SpawnProcess-")
    assert Counter(spans) == {relu: 4, fail: 1, own: 1}
    assert names.to_list().count(f"{relu}{REMOTE}relu dygraph") == 4
    waits = names.filter(names.str.starts_with(WAIT)).to_list()
    assert Counter(waits) == {f"{WAIT}worker1)": 6, f"{WAIT}worker2)": 2}
    of_calls = events.filter(pl.col("name").cast(pl.String) == relu)["attributes"].cast(pl.String)
    for attributes in map(attributes_of, of_calls):
        assert attributes["line"].startswith('File "tests/capture/recording/test_rpc.py"')
        assert attributes["line"].endswith("in calls")
        assert 8 <= attributes["num_objects"] <= 12  # two lists of two numbers, in what holds them
        assert 0 < attributes["before_ns"] + attributes["after_ns"] < 10**9


def test_a_function_that_cannot_be_pickled_fails_as_without_ppprof(
    workers: None, tmp_path: Path
) -> None:
    def error() -> str:
        with pytest.raises(Exception) as raised:  # noqa: PT011 (the same, whatever it is)
            rpc.rpc_sync("worker1", lambda: 1)
        return f"{type(raised.value)} {raised.value}".partition(" at 0x")[0]

    block = {"enable": True, "profiler_log": str(tmp_path / "log"), "scheduler": [0, 1]}
    with contextlib.redirect_stderr(io.StringIO()), ppprof.attach(block) as prof:
        inside = error()
        prof.step()
    assert inside == error()


@pytest.mark.all
def test_another_wrapper_of_the_same_function_goes_on_working(
    workers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed in the first window, called in all: it neither loses calls nor calls itself."""
    sent = []

    def counted(send: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any) -> Any:
            sent.append(args[0])
            return send(*args)

        return wrapper

    monkeypatch.setattr(rpc.rpc, "_invoke_rpc", rpc.rpc._invoke_rpc)  # restored afterwards
    schedule = {"closed": 0, "ready": 1, "record": 1, "repeat": 2}
    block = {"enable": True, "profiler_log": str(tmp_path / "log"), "scheduler": schedule}
    with contextlib.redirect_stderr(io.StringIO()), ppprof.attach(block) as prof:
        for step in range(6):
            assert rpc.rpc_sync("worker1", rpc_functions.relu_of, args=(VALUES,)) == [0, 2]
            if step == 1:
                rpc.rpc._invoke_rpc = counted(rpc.rpc._invoke_rpc)
            prof.step()
    assert sent == ["worker1"] * 4


def test_a_method_and_its_argument_stay_one_object(workers: None, tmp_path: Path) -> None:
    box = rpc_functions.Box()
    block = {"enable": True, "profiler_log": str(tmp_path / "log"), "scheduler": [0, 2]}
    with contextlib.redirect_stderr(io.StringIO()), ppprof.attach(block) as prof:
        assert rpc.rpc_sync("worker1", box.is_same, args=(box,))
        rpc.rpc_sync("worker1", rpc_functions.relu_of, args=(VALUES,))  # now it is known to record
        assert rpc.rpc_sync("worker1", box.is_same, args=(box,))
        prof.step()


@pytest.mark.all
def test_so_many_calls_are_recorded_and_no_more(
    workers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppprof.capture.recording.rpc._MOST_CALLS", 2)
    block = {"enable": True, "profiler_log": str(tmp_path / "log"), "scheduler": [0, 1]}
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), ppprof.attach(block) as prof:
        for _ in range(5):
            assert rpc.rpc_sync("worker1", rpc_functions.relu_of, args=(VALUES,)) == [0, 2]
        prof.step()
    assert errors.getvalue().count("2 remote calls in this window: others are not recorded") == 1
    events = read(next((tmp_path / "log").glob("*.paddle_trace.json"))).events
    names = events["name"].cast(pl.String)
    assert names.str.contains(r"^rpc#relu_of\(worker0 -> worker1\)$").sum() == 2
