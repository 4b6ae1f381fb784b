"""The numbers for OpenTelemetry, as a collector receives them: its protocol, decoded by its own package."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from ppprof.capture.steps.metrics import Metrics, MetricsFile
from ppprof.rundir.run_file import RunFile
from tests.fixtures.metrics import SECOND, record, values

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra otlp")
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from ppprof.capture.steps.otlp import OtlpMetrics


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What a collector on this machine has received."""
    requests: list[Any] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            import gzip

            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            requests.append((self.path, ExportMetricsServiceRequest.FromString(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield requests
    server.shutdown()
    thread.join()
    server.server_close()


def points(request: Any) -> dict[str, float]:
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    found = {}
    for metric in scope.metrics:
        data = metric.sum if metric.HasField("sum") else metric.gauge
        assert metric.HasField("sum") == metric.name.endswith("_total")
        (point,) = data.data_points
        attributes = {each.key: each.value.string_value for each in point.attributes}
        assert attributes == {"run": 'a "run"', "rank": "3"}
        found[metric.name] = getattr(point, point.WhichOneof("value"))
    return found


def test_a_collector_gets_the_numbers_of_the_file_for_prometheus(
    tmp_path: Path, received: list[Any]
) -> None:
    run = tmp_path / 'a "run"'
    run.mkdir()
    now = [0]
    file = RunFile(run, "metrics/rank_00003.prom")
    exports: list[Metrics] = [
        MetricsFile(file, 3, 1e9, clock=lambda: now[0]),
        OtlpMetrics(run.name, 3, 1e9, clock=lambda: now[0]),
    ]
    for step in range(3):
        now[0] += 4 * SECOND
        for export in exports:
            export.add(record(step, num_tokens=1000, num_flops=10**8), 2.5)
    expected = values(run / "metrics/rank_00003.prom")
    assert expected["ppprof_loss"] == 2.5
    for export in exports:
        export.close()
    assert received
    path, request = received[-1]
    assert path == "/v1/metrics"
    assert points(request) == expected


def test_without_a_collector_a_step_waits_for_nothing_and_one_warning_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    now = [0]
    export = OtlpMetrics("run", 0, None, clock=lambda: now[0])
    start = time.monotonic()
    for step in range(3):
        now[0] += 11 * SECOND
        export.add(record(step), None)
    assert time.monotonic() - start < 0.5
    deadline = time.monotonic() + 20
    while "has not taken" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.05)
    export.close()
    assert time.monotonic() - start < 25
    assert caplog.text.count("Profiler.export: the collector has not taken the metrics") == 1


def test_a_forked_process_sends_nothing(received: list[Any]) -> None:
    now = [0]
    export = OtlpMetrics('a "run"', 3, None, clock=lambda: now[0])
    child = os.fork()
    if child == 0:
        now[0] += 11 * SECOND
        export.add(record(0), None)
        time.sleep(0.5)
        os._exit(0)
    os.waitpid(child, 0)
    assert received == []
    export.close()
