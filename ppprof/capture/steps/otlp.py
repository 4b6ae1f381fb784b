"""Send the numbers of a rank to an OpenTelemetry collector, by OpenTelemetry's own exporter: OTLP over HTTP.

Its environment variables say where to, such as ``OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318``. The names and the
values are those of `ppprof.capture.steps.metrics`, with the attributes run and rank.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
from opentelemetry.sdk.resources import Resource

from ppprof.capture import process
from ppprof.capture.steps.metrics import HELP, Metrics

log = logging.getLogger("ppprof")

_END_SECONDS = 2.0
"""How long the end of a training waits for the collector."""


class OtlpMetrics(Metrics):
    """Sends the numbers every ten seconds, in a thread: a collector that does not answer delays no step.

    Args:
        run: name of the run directory.
        rank, peak_flops: as for `Metrics`.
    """

    def __init__(self, run: str, rank: int, peak_flops: float | None, **clock: Any) -> None:
        super().__init__(peak_flops, **clock)
        self._attributes = {"run": run, "rank": str(rank)}
        self._numbers: dict[str, float] = {}
        name = os.environ.get("OTEL_SERVICE_NAME", "ppprof")
        # The reader that sends by itself starts a thread in each forked process, such as workers of a DataLoader.
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider(
            [self._reader], Resource.create({"service.name": name}), shutdown_on_exit=False
        )
        meter = self._provider.get_meter("ppprof")
        for metric, text in HELP.items():
            is_counter = metric.endswith("_total")
            create = (
                meter.create_observable_counter if is_counter else meter.create_observable_gauge
            )
            create(f"ppprof_{metric}", [partial(self._observe, metric)], description=text)
        self._exporter = OTLPMetricExporter()
        self._has_failed = self._ends = False
        self._is_due = threading.Event()
        self._thread = process.start_thread(self._send, "the export of metrics")

    def publish(self, numbers: dict[str, float]) -> None:
        """Let the thread send the numbers."""
        self._numbers = numbers
        self._is_due.set()

    def close(self) -> None:
        """Wait up to two seconds until the last numbers are sent."""
        self._ends = True
        self._is_due.set()
        self._thread.join(_END_SECONDS)

    def _observe(self, metric: str, _: CallbackOptions) -> Iterator[Observation]:
        if metric in self._numbers:
            yield Observation(self._numbers[metric], self._attributes)

    def _send(self) -> None:
        while not self._ends:
            self._is_due.wait()
            self._is_due.clear()
            data = self._reader.get_metrics_data()
            if data is None:
                continue
            try:
                is_sent = self._exporter.export(data) is MetricExportResult.SUCCESS
            except Exception as error:  # of a library that the collector's answer reaches
                log.debug(f"Profiler.export: {error!r}")
                is_sent = False
            if not (is_sent or self._has_failed or self._ends):
                self._has_failed = True
                log.warning(
                    "Profiler.export: the collector has not taken the metrics; tried again every 10 s"
                )
        self._exporter.shutdown()
