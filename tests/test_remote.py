"""Functions on other processes: a real pool, a real window, what its trace and tables say."""

from __future__ import annotations

import contextlib
import io
import pickle
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import ppprof
from ppprof.remote_names import REMOTE
from ppprof.trace import Trace, read

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = pytest.mark.paddle

from tests.fixtures import remote_functions, without_paddle  # noqa: E402

DOUBLE = "rpc#double(worker0 -> worker1)"
NAP_SECONDS = 0.05


@dataclass
class Recorded:
    """A run in whose window functions were called, and what the caller saw."""

    log: Path
    results: dict[str, Any] = field(default_factory=dict)
    around: tuple[int, int] = (0, 0)
    """The caller's clock before and after the call of `DOUBLE`."""
    errors: str = ""
    """What it printed to stderr."""

    def trace(self, suffix: str) -> Trace:
        pattern = {"pb": "raw/*.pb", "json": "*.paddle_trace.json"}[suffix]
        return read(next(self.log.glob(pattern)))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    run = Recorded(tmp_path_factory.mktemp("remote") / "log")
    block = {"enable": True, "profiler_log": str(run.log), "scheduler": [1, 2]}
    block["formats"] = ["json", "pb"]
    errors = io.StringIO()
    with remote_functions.pool() as pool, remote_functions.pool() as bare:
        bare.submit(without_paddle.blocked).result()
        double = ppprof.remote.profiled(remote_functions.double, to="worker1")
        with contextlib.redirect_stderr(errors), ppprof.attach(block) as prof:
            run.results["before the window"] = pool.submit(double, [1.0, -1.0]).result()
            prof.step()
            start = time.time_ns()
            run.results["in the window"] = pool.submit(double, [2.0]).result()
            run.around = (start, time.time_ns())
            run.results["submitted"] = ppprof.remote.submit(
                pool, remote_functions.double_elsewhere, [0.0]
            ).result()
            run.results["without Paddle"] = ppprof.remote.submit(
                bare, without_paddle.nap, NAP_SECONDS
            ).result()
            run.results["here"] = double([3.0])
            run.results["raised"] = ppprof.remote.submit(
                pool, remote_functions.fail, "no such key"
            ).exception()
            prof.step()
            run.results["after the window"] = pool.submit(double, [1.0]).result()
    run.errors = errors.getvalue()
    return run


def names(events: pl.DataFrame, prefix: str) -> list[str]:
    name = events["name"].cast(pl.String)
    return [text[len(prefix) :] for text in name.filter(name.str.starts_with(prefix))]


def test_results_and_exceptions_are_the_functions_own(recorded: Recorded) -> None:
    values = {
        what: ppprof.remote.result(result)
        for what, result in recorded.results.items()
        if what != "raised"
    }
    assert values == {
        "before the window": [2.0, 0.0],
        "in the window": [4.0],
        "submitted": [1.0],
        "without Paddle": "rested",
        "here": [6.0],
        "after the window": [2.0],
    }
    raised = recorded.results["raised"]
    assert isinstance(raised, KeyError)
    assert raised.args == ("no such key",)
    assert "in fail" in str(raised.__cause__)  # the other side's traceback


@pytest.mark.parametrize("suffix", ["pb", "json"])
def test_only_calls_of_the_window_are_in_it(recorded: Recorded, suffix: str) -> None:
    events = recorded.trace(suffix).events.sort("start_ns")
    calls = [name for name in names(events, "rpc#") if REMOTE not in name]
    assert [name.partition("(")[0] for name in calls] == [
        "double",
        "double_elsewhere",
        "nap",
        "fail",
    ]


@pytest.mark.parametrize("suffix", ["pb", "json"])
def test_what_ran_there_lies_in_the_call_on_the_callers_clock(
    recorded: Recorded, suffix: str
) -> None:
    trace = recorded.trace(suffix)
    events = trace.events.with_row_index("row").with_columns(
        pl.col("row").cast(pl.Int64),
        pl.col("name").cast(pl.String),
        end_ns=pl.col("start_ns") + pl.col("dur_ns"),
    )
    (call,) = events.filter(pl.col("name") == DOUBLE).rows(named=True)
    inside = events.filter(pl.col("name").str.starts_with(DOUBLE + REMOTE))
    assert inside["name"][0] == f"{DOUBLE}{REMOTE}double"
    assert {f"{DOUBLE}{REMOTE}{op} dygraph" for op in ("relu", "scale")} <= set(inside["name"])
    assert recorded.around[0] <= call["start_ns"] <= call["end_ns"] <= recorded.around[1]
    assert inside["start_ns"].min() >= call["start_ns"]
    assert inside["end_ns"].max() <= call["end_ns"]
    assert inside["parent"][0] == call["row"]
    assert set(inside["step"]) == {1}
    assert set(inside["thread"]) == {call["thread"]}
    assert trace.extra_info[str(call["thread"])] == "worker1"
    own = events.filter(pl.col("name").str.starts_with("rpc#").not_())
    assert call["thread"] not in set(own["thread"])


def test_a_call_in_a_call_has_the_chain_in_its_name(recorded: Recorded) -> None:
    events = recorded.trace("pb").events
    name = events["name"].cast(pl.String)
    inner = name.filter(name.str.contains("rpc#double(SpawnProcess", literal=True))
    (relu,) = inner.filter(inner.str.ends_with("relu dygraph"))
    worker = relu.partition(" -> ")[2].partition(")")[0]
    assert relu.startswith(
        f"rpc#double_elsewhere(worker0 -> {worker}){REMOTE}rpc#double({worker} -> {worker}:"
    )
    assert relu.endswith(f"){REMOTE}relu dygraph")


def test_the_operator_table_names_the_node(recorded: Recorded) -> None:
    run = ppprof.open(recorded.log)
    table = run.summary("op").filter(pl.col("kind") == "operator")
    of_call = table.filter(pl.col("name").str.starts_with(DOUBLE))
    assert set(of_call["node"]) == {"worker1"}
    assert of_call["calls"].to_list() == [1] * of_call.height
    assert of_call["cpu_ratio"].sum() == pytest.approx(1)
    own = table.filter(pl.col("name").str.starts_with("rpc#").not_())
    assert set(own["node"]) == {"worker0"}
    failed = table.filter(pl.col("name").str.contains(f"){REMOTE}tanh", literal=True))
    assert failed.height == 1
    # Nothing of the other side counts as the caller's own.
    (overview,) = run.summary("overview").filter(pl.col("event_type") == "Operator").to_dicts()
    assert overview["calls"] == own["calls"].sum()


def test_memory_of_the_worker_is_a_place_of_its_own(recorded: Recorded) -> None:
    places = ppprof.open(recorded.log).summary("mem")["place"].unique()
    assert "Place(cpu) of worker1" in set(places)


def test_without_paddle_the_times_are_known(recorded: Recorded) -> None:
    events = recorded.trace("pb").events.with_columns(pl.col("name").cast(pl.String))
    nap = events.filter(pl.col("name").str.starts_with("rpc#nap"))
    call, ran = nap.rows(named=True)
    assert ran["name"] == f"{call['name']}{REMOTE}nap"
    assert call["dur_ns"] >= ran["dur_ns"] >= NAP_SECONDS * 1e9
    message = f"ppprof: {call['name']}: only its times were recorded: Paddle is not loaded there"
    assert recorded.errors.count(message) == 1


def test_an_answer_after_its_window_is_a_warning_and_has_its_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    block = {"enable": True, "profiler_log": str(tmp_path / "log"), "scheduler": [0, 1]}
    with remote_functions.pool() as pool, ppprof.attach(block) as prof:
        sent = pickle.loads(pickle.dumps(ppprof.remote.profiled(remote_functions.double)))  # noqa: S301
        prof.step()
        assert ppprof.remote.result(pool.submit(sent, [1.0]).result()) == [2.0]
    assert "skipped: it returned after its window had closed" in capsys.readouterr().err


@pytest.mark.all
def test_with_no_profiler_at_all_it_is_the_function(capfd: pytest.CaptureFixture[str]) -> None:
    with remote_functions.pool() as pool:
        answers = list(pool.map(ppprof.remote.profiled(remote_functions.double), [[1.0], [2.0]]))
        assert ppprof.remote.submit(pool, remote_functions.process_id).result() > 0
        with pytest.raises(KeyError, match="none"):
            ppprof.remote.submit(pool, remote_functions.fail, "none").result()
    assert [ppprof.remote.result(answer) for answer in answers] == [[2.0], [4.0]]
    assert "ppprof:" not in capfd.readouterr().err


def test_a_cancelled_call_is_cancelled() -> None:
    with remote_functions.pool() as pool:
        running = [pool.submit(without_paddle.nap, 0.5) for _ in range(4)]
        future = ppprof.remote.submit(pool, without_paddle.nap, 0)
        assert future.cancel()
        assert future.cancelled()
        assert [done.result() for done in running] == ["rested"] * 4


def test_result_returns_a_plain_value_unchanged() -> None:
    assert ppprof.remote.result([1]) == [1]


def test_ranks_together_have_the_worker_as_a_node(recorded: Recorded, cli) -> None:
    lines = [
        line.rstrip()
        for line in cli(
            "summary", str(recorded.log), "--by", "rank", "--views", "op"
        ).out.splitlines()
    ]
    (remote,) = [line for line in lines if line.startswith(f"{DOUBLE}{REMOTE}relu dygraph")]
    assert remote.endswith(" worker1")
    assert "Node ID" in "".join(lines)
