"""Queries of events by threads that do nothing else: left out of a .pb, and counted."""

from __future__ import annotations

from pathlib import Path

from ppprof.trace import read
from tests.fixtures.timeline import Thread, kernel, launch, span, write


def test_threads_that_only_query_are_left_out(tmp_path: Path) -> None:
    """The training's thread queries, too; and a query of the second thread has a kernel, of all things."""
    step = span("ProfileStep", "ProfileStep#0", 0, 1000).around(
        launch(10, 20, kernel("a", 30, 40)),
        launch(50, 60, name="cudaEventQuery_v3020"),
        launch(70, 80, kernel("b", 90, 95)),
    )
    watcher = [launch(100 * n, 100 * n + 5, name="cudaEventQuery_v3020") for n in range(1, 6)]
    odd = [
        launch(200, 210, name="cudaStreamQuery"),
        launch(300, 310, kernel("c", 320, 330), name="cudaStreamQuery"),
    ]
    write(
        tmp_path / "a.pb",
        Thread(1, "main").around(step),
        Thread(2, "watcher").around(*watcher),
        Thread(3, "odd").around(*odd),
    )
    trace = read(tmp_path / "a.pb")
    assert trace.ignored["queries of events"] == 5
    calls = trace.events.filter(category="CudaRuntime")
    assert calls.group_by("thread").len().sort("thread")["len"].to_list() == [3, 2]
    kernels = trace.events.filter(category="Kernel")
    launched = trace.events["start_ns"].gather(kernels["parent"])
    base = trace.events["start_ns"].min()
    assert sorted(zip(kernels["name"].to_list(), (launched - base).to_list())) == [
        ("a", 10),
        ("b", 70),
        ("c", 300),
    ]
