"""Send the numbers of a rank to an OpenTelemetry collector, by OpenTelemetry's own exporter: OTLP over HTTP.

Its environment variables say where to, such as ``OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318``. The names and the
values are those of `ppprof.capture.steps.metrics`, with the attributes run and rank. The service is called "ppprof" unless
``OTEL_SERVICE_NAME`` or ``OTEL_RESOURCE_ATTRIBUTES`` name it, and each process is an instance of its own.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from math import isfinite
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

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
        ours = {"service.name": "ppprof", "service.instance.id": str(uuid.uuid4())}
        resource = Resource.create({**ours, **OTELResourceDetector().detect().attributes})
        # The reader that sends by itself starts a thread in each forked process, such as workers of a DataLoader.
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("ppprof")
        for metric, text in HELP.items():
            is_counter = metric.endswith("_total")
            create = (
                meter.create_observable_counter if is_counter else meter.create_observable_gauge
            )
            create(f"ppprof_{metric}", [partial(self._observe, metric)], description=text)
        self._exporter = OTLPMetricExporter()
        self._has_warned = self._ends = False
        self._is_due = threading.Event()
        self._thread = process.start_thread(self._send, "the export of metrics")
        self._exporters_log = logging.getLogger(OTLPMetricExporter.__module__)
        self._exporters_log.addFilter(self._warn_instead)

    def publish(self) -> None:
        """Let the thread send the numbers."""
        self._numbers = self.numbers()
        self._is_due.set()

    def close(self, *, waits: bool) -> None:
        """Send the last numbers; wait for that, two seconds at most, if ``waits``."""
        self._ends = True
        self.publish()
        if waits:
            self._thread.join(_END_SECONDS)

    def _observe(self, metric: str, _: CallbackOptions) -> Iterator[Observation]:
        value = self._numbers.get(metric)
        if value is not None and isfinite(value):  # OpenTelemetry drops NaN and logs that each time
            yield Observation(value, self._attributes)

    def _send(self) -> None:
        ends = False
        while not ends:
            self._is_due.wait()
            self._is_due.clear()
            ends = self._ends
            data = self._reader.get_metrics_data()
            if data is not None:
                try:
                    self._exporter.export(data)
                except Exception as error:  # of a library that the collector's answer reaches
                    self._warn(repr(error))
        self._exporter.shutdown()
        self._exporters_log.removeFilter(self._warn_instead)

    def _warn_instead(self, record: logging.LogRecord) -> bool:
        """Drop a message of the exporter about our numbers: it logs each attempt, for days."""
        is_ours = record.thread == self._thread.ident
        if is_ours:
            self._warn(record.getMessage())
        return not is_ours

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "Profiler.export: the collector has not taken the metrics; tried again every 10 s: "
                f"{why}"
            )
