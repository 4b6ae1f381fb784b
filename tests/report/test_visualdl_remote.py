"""A real VisualDL opens a trace with remote calls, and shows the rank's own phases as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppprof.rundir.remote_calls import RemoteCall, write_call
from ppprof.trace import read_window, write_paddle_json
from tests.fixtures import gpu_traces
from tests.fixtures.run_files import run_file
from tests.fixtures.timeline import EPOCH_NS, write

pytestmark = [pytest.mark.all, pytest.mark.visualdl, pytest.mark.paddle]
pytest.importorskip("visualdl", reason="needs the visualdl wheel")

from tests.oracles import visualdl_server  # noqa: E402

CALL = "rpc#f(w0 -> w1)"


def test_remote_calls_are_shown_beside_the_rank(tmp_path: Path) -> None:
    worker = "rank_00000_dp0_pp0_sharding0_mp0"
    directory = tmp_path / "run"
    directory.mkdir()
    raw = write(tmp_path / "window.pb", *gpu_traces.training())
    own = read_window(raw)
    at_ns = [EPOCH_NS + ns for ns in (100, 200, 300, 900, 1_000, 1_100)]
    call = RemoteCall("a", None, "f", "w0", "w1", "host:7", gpu_traces.MAIN, *at_ns)
    write_call(run_file(tmp_path / "window.calls"), call, raw.read_bytes())
    name = f"{worker}_time_20261120T201530_000.paddle_trace.json"
    write_paddle_json(read_window(raw), directory / name)
    assert own.events.height > 0
    with visualdl_server.serve(directory) as server:
        run = visualdl_server.check_run(server, directory, [worker], visualdl_server.GPU_VIEWS)
        at = {"worker": worker, "span": run.span(worker)}
        model = {
            row["name"]: row["calls"]
            for row in run.get("overview/model_perspective", time_unit="ms", **at)["cpu"]
        }
        table = run.get("operator/table", group_by="op_name", search_name="", time_unit="ms", **at)[
            "events"
        ]
        places = [device["device"] for device in run.get("memory/devices", **at)]
    of_rank = own.events["category"].cast(str).value_counts().rows()
    assert model["ProfileStep"] == dict(of_rank)["ProfileStep"]
    operators = {row["name"]: row["calls"] for row in table}
    for name in [name for name in operators if not name.startswith("rpc#")]:
        assert operators[f"{CALL}#remote_op: {name}"] == operators[name]
    assert "Place(gpu:0) of w1" in places
