"""Functions on the workers of a real Dask scheduler."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import ppprof
from ppprof.remote_names import REMOTE

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
distributed = pytest.importorskip("distributed", reason="needs Dask: pip install distributed")
pytestmark = pytest.mark.paddle

from tests.fixtures import remote_functions  # noqa: E402


@pytest.mark.jobs
def test_dask_workers_are_nodes_of_the_callers_table(tmp_path: Path) -> None:
    log = tmp_path / "log"
    block = {"enable": True, "profiler_log": str(log), "scheduler": [0, 1]}
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
        ppprof.attach(block) as prof,
    ):
        calls = [
            client.submit(
                ppprof.remote.profiled(remote_functions.double), [value], workers=[worker]
            )
            for worker in (0, 1)
            for value in (1.0, 2.0)
        ]
        answers = [call.result() for call in calls]
        chained = client.submit(ppprof.remote.profiled(remote_functions.double), calls[0])
        assert ppprof.remote.result(chained.result()) == [4.0]
        submitted = ppprof.remote.submit(client, remote_functions.double, [3.0])
        assert submitted.result() == [6.0]
        with pytest.raises(KeyError, match="no such key"):
            ppprof.remote.submit(client, remote_functions.fail, "no such key").result()
        prof.step()
    assert [ppprof.remote.result(answer) for answer in answers] == [[2.0], [4.0]] * 2
    table = ppprof.open(log).summary("op").filter(pl.col("kind") == "operator")
    remote = table.filter(pl.col("name").str.contains(REMOTE, literal=True))
    assert set(remote["node"]) == {"dask-worker-0", "dask-worker-1"}
    relu = remote.filter(pl.col("name").str.ends_with("relu dygraph"))
    assert relu["calls"].sum() == 6
    assert remote["name"].str.contains("rpc#fail", literal=True).any()
