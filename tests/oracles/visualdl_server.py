"""A real VisualDL on a directory, asked through the API that its page uses."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence, Set
from gzip import decompress
from pathlib import Path
from typing import Any, TypeVar

_WAIT_S = 60
_START = "from visualdl.server.app import main; main()"
# Asks the machine itself, whatever proxies the environment names.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

CPU_VIEWS = frozenset({"Overview", "Operator", "Trace", "Memory"})
GPU_VIEWS = CPU_VIEWS | {"GPU Kernel", "Distributed"}

T = TypeVar("T")


class VisualDL:
    """Answers of a running server."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}/app/api/"
        self._port = port

    def url(self, page: str) -> str:
        """The address of one of its pages, in English."""
        return f"http://127.0.0.1:{self._port}/app/{page}?language=en"

    def get(self, route: str, page: str = "profiler", **args: object) -> Any:
        """The data of one route; raises AssertionError with VisualDL's words if it has an error."""
        url = f"{self._base}{page}/{route}?" + urllib.parse.urlencode(args)
        with _opener.open(url, timeout=30) as answer:
            raw = answer.read()
        if raw[:2] == b"\x1f\x8b":
            raw = decompress(raw)
        content = json.loads(raw)
        assert content["status"] == 0, f"{route} {args}: {content['msg']}"
        return content["data"]

    def run_of(self, directory: Path, num_workers: int) -> Run:
        """The run in ``directory``, once so many workers have been read, with all their windows."""
        num_files = len(list(directory.glob("*.paddle_trace.json")))

        def num_read() -> int:
            # While it reads, VisualDL may answer that a "dictionary changed size".
            with contextlib.suppress(AssertionError):
                workers = self.get("workers", run=run, view="Trace")
                if len(workers) >= num_workers:
                    return sum(len(self.get("spans", run=run, worker=name)) for name in workers)
            return 0

        run = self._wait(
            lambda: next((r for r in self.get("runs") if Path(r) == directory), None),
            f"{directory} among the runs",
        )
        self._wait(
            lambda: num_read() >= num_files, f"{num_workers} workers, {num_files} windows in {run}"
        )
        return Run(self, run)

    def scalars(self) -> dict[str, dict[str, list[tuple[int, float]]]]:
        """Run -> tag -> steps and values, as the page of scalars draws them."""
        found = self._wait(
            lambda: (tags := self.get("tags", page="scalar"))["runs"] and tags, "scalars"
        )
        return {
            run: {
                tag: [tuple(row[1:]) for row in self.get("list", page="scalar", run=run, tag=tag)]
                for tag in tags
            }
            for run, tags in zip(found["runs"], found["tags"])
        }

    @staticmethod
    def _wait(ready: Callable[[], T], what: str) -> T:
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                if found := ready():
                    return found
            time.sleep(0.2)
        raise AssertionError(f"VisualDL shows no {what} after {_WAIT_S} s")


class Run:
    """One run of a server."""

    def __init__(self, server: VisualDL, name: str) -> None:
        self._server = server
        self.name = name

    def get(self, route: str, **args: object) -> Any:
        """One route about this run."""
        return self._server.get(route, run=self.name, **args)

    @property
    def views(self) -> list[str]:
        return self.get("views")

    def workers(self, view: str) -> list[str]:
        return sorted(self.get("workers", view=view))

    def spans(self, worker: str) -> list[str]:
        """The windows of a worker."""
        return self.get("spans", worker=worker)

    def span(self, worker: str) -> str:
        """The only window of a worker."""
        (span,) = self.spans(worker)
        return span


@contextlib.contextmanager
def serve(logdir: Path) -> Iterator[VisualDL]:
    """VisualDL on ``logdir`` and a free port; ended with its children afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["--logdir", str(logdir), "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(
        [sys.executable, "-c", _START, *arguments, "--language", "en", "--disable-telemetry"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a group of its own, so that its readers end with it
    )
    try:
        yield VisualDL(port)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def check_run(
    server: VisualDL, directory: Path, workers: Sequence[str], views: Set[str] = CPU_VIEWS
) -> Run:
    """What any run directory must show: every worker in every view, none of them empty.

    ``workers`` are the trace files' names up to ``_time_``.
    """
    run = server.run_of(directory, len(workers))
    assert views <= set(run.views)
    for view in views - {"Distributed"}:
        assert run.workers(view) == sorted(workers), view
    for query in [{"worker": name, "span": span} for name in workers for span in run.spans(name)]:
        rows = run.get("overview/model_perspective", time_unit="ms", **query)["cpu"]
        model = {row["name"]: row for row in rows}
        assert model["ProfileStep"]["total_time"] >= model["Forward"]["total_time"] > 0
        assert run.get("overview/environment", **query)["num_workers"] == len(workers)
        operators = run.get(
            "operator/table", group_by="op_name", search_name="", time_unit="ms", **query
        )
        assert sum(row["calls"] for row in operators["events"]) > 0
        for device in run.get("memory/devices", **query):
            place = {"device_type": device["device"], **query}
            assert any(run.get("memory/curve", time_unit="ms", **place).values())
            assert run.get("memory/op_memory_events", **place)["data"]
        assert run.get("memory/devices", **query)
        assert len(run.get("trace", **query)["traceEvents"]) > model["ProfileStep"]["calls"]
    return run
