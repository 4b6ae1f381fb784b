"""The numbers for OpenTelemetry, as a collector receives them: its protocol, decoded by its own package."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from ppprof.capture.parts import Ending, StepsPart
from ppprof.capture.steps.metrics import Metrics, MetricsFile
from ppprof.capture.steps.perf_summary import PerfSummary
from ppprof.rundir.run_file import RunFile
from tests.fixtures.metrics import SECOND, record, values

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra otlp")
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
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
        MetricsFile(file, run.name, 3, 1e9, clock=lambda: now[0]),
        OtlpMetrics(run.name, 3, 1e9, clock=lambda: now[0]),
    ]
    for step in range(3):
        now[0] += 4 * SECOND
        for export in exports:
            export.add(record(step, num_tokens=1000, num_flops=10**8, loss=2.5))
    expected = values(run / "metrics/rank_00003.prom")
    assert expected["ppprof_loss"] == 2.5
    for export in exports:
        export.close(waits=True)
    assert received
    path, request = received[-1]
    assert path == "/v1/metrics"
    assert points(request) == expected


@pytest.mark.parametrize("num_steps", [5, 19])
def test_the_end_of_a_training_sends_its_last_numbers_once(
    received: list[Any], num_steps: int
) -> None:
    """A step takes a second, and the collector gets the numbers every ten."""
    now = [0]
    export = OtlpMetrics('a "run"', 3, None, clock=lambda: now[0])
    for step in range(num_steps):
        now[0] += SECOND
        export.add(record(step))
        while len(received) < (step + 1) // 10:
            time.sleep(0.01)
    export.close(waits=True)
    counts = [points(request)["ppprof_steps_total"] for _, request in received]
    assert counts == [10, 19] if num_steps == 19 else counts == [5]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_sent_as_such_without_a_message(
    received: list[Any], caplog: pytest.LogCaptureFixture, loss: float
) -> None:
    """OpenTelemetry drops the value itself, and logs that each time."""
    export = OtlpMetrics('a "run"', 3, None)
    export.add(record(0, loss=loss))
    export.close(waits=True)
    ((_, request),) = received
    assert points(request) == {
        "ppprof_steps_total": 1,
        "ppprof_host_peak_bytes": 7,
        "ppprof_loss_is_finite": 0,
    }
    assert not caplog.records


def test_a_training_without_steps_sends_nothing(received: list[Any]) -> None:
    OtlpMetrics('a "run"', 3, None).close(waits=True)
    assert received == []


@pytest.mark.parametrize(
    ("variables", "service"),
    [
        ({}, "ppprof"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=gpt"}, "gpt"),
        ({"OTEL_SERVICE_NAME": "gpt", "OTEL_RESOURCE_ATTRIBUTES": "service.name=other"}, "gpt"),
    ],
)
def test_jobs_of_one_name_are_instances_of_a_service(
    received: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    service: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        export = OtlpMetrics("run", 0, None)
        export.add(record(0))
        export.close(waits=True)
    resources = [
        {each.key: each.value.string_value for each in resource.resource.attributes}
        for _, request in received
        for resource in request.resource_metrics
    ]
    assert [each["service.name"] for each in resources] == [service] * 2
    assert len({each["service.instance.id"] for each in resources}) == 2


@pytest.mark.parametrize("ends", ["signal", "exception"])
def test_an_end_that_leaves_no_time_waits_for_no_collector(
    monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        export = OtlpMetrics("run", 0, None)
        export.add(record(0))
        part = StepsPart(PerfSummary(), metrics=export)
        start = time.monotonic()
        if ends == "signal":
            part.rescue()
        else:
            part.close(Ending(ValueError(), 1, 1, False, set()))
        assert time.monotonic() - start < 0.5
    export.close(waits=True)


def test_without_a_collector_a_step_waits_for_nothing_and_one_warning_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3")
    now = [0]
    export = OtlpMetrics("run", 0, None, clock=lambda: now[0])
    start = time.monotonic()
    for step in range(3):
        now[0] += 11 * SECOND
        export.add(record(step))
    assert time.monotonic() - start < 0.5
    deadline = time.monotonic() + 20
    while "has not taken" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.05)
    export.close(waits=True)
    assert time.monotonic() - start < 25
    ours, *others = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert not others
    assert "Profiler.export: the collector has not taken the metrics" in ours.message
    assert "Connection refused" in ours.message


def test_another_export_of_the_training_keeps_its_messages(
    received: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    export = OtlpMetrics("run", 0, None)
    other = OTLPMetricExporter()
    other.shutdown()
    other.shutdown()
    assert "already shutdown" in caplog.text
    export.close(waits=True)


def test_a_forked_process_sends_nothing(received: list[Any]) -> None:
    now = [0]
    export = OtlpMetrics('a "run"', 3, None, clock=lambda: now[0])
    child = os.fork()
    if child == 0:
        now[0] += 11 * SECOND
        export.add(record(0))
        time.sleep(0.5)
        os._exit(0)
    os.waitpid(child, 0)
    assert received == []
    export.close(waits=False)
