"""Scalars of every step for VisualDL's page, in its own log format and packed by its own writer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from ppprof.capture.steps.step_log import StepRecord

log = logging.getLogger("ppprof")

_FLUSH_NS = 10_000_000_000
"""A page that is open on a run lags behind by this at the most."""

Loss = Any
"""Of a step: None, a number, a tensor, or a callable that gives one of these."""


class Scalars:
    """A VisualDL log of one rank: loss, speed, times and memory by step.

    ::

        train/loss                                    of the steps that told one
        speed/ips, speed/tokens_per_s                 in samples/s and tokens/s; not of excluded
        time/batch_cost_ms, time/reader_cost_ms       steps, which contain a stall of the profiler's
        memory/device_peak_mib, memory/host_peak_mib

    Steps count as in the trace and in ``steps/*.jsonl``, and the values are those of its lines.

    VisualDL's ``LogWriter`` is not used as a whole: its thread opens the file anew for every value,
    for which the training waits once its queue is full (137 us a step, where this takes 14), and of a
    disk that refuses it says a word on stdout, loses the values and goes on. What packs the records
    is VisualDL's; they are kept in memory and appended whole, every ten seconds and at the end.

    Whatever fails here, VisualDL's import included, is one line on stderr and the end of the log.

    Args:
        path: the log; VisualDL shows one for each directory, and takes ``vdlrecords`` in its name
            for the sign of one.
        clock: monotonic, in nanoseconds.
    """

    def __init__(self, path: Path, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._path = path
        self._clock = clock
        self._flushed = clock()
        self._kept = BytesIO()
        self._failed = False
        self._has_told_of_device = False
        try:
            from visualdl.component.base_component import meta_data, scalar
            from visualdl.writer.record_writer import RecordWriter
        except ImportError as error:
            reason = f"VisualDL cannot be imported ({error}): pip install 'ppprof[view]'"
            self._fail(f"visualdl_scalars: {reason}")
            return
        except Exception as error:  # its import writes below the user's home
            self._fail(f"visualdl_scalars: VisualDL cannot be imported: {error}")
            return
        self._scalar = scalar
        self._writer = RecordWriter(self._kept)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Without a name: the page takes two runs of one name for one.
            self._keep(meta_data(walltime=_now_ms()))
        except Exception as error:
            self._fail(f"{path}: {error}")
            return
        self.flush()  # a disk that refuses does so now

    def add(self, record: StepRecord, loss: Loss = None) -> None:
        """Keeps a step; writes what is kept when the last time was long ago. Never raises."""
        if self._failed:
            return
        try:
            value = self._read(loss)
            now = _now_ms()
            if value is not None:
                self._keep(self._scalar("train/loss", value, record.step, now))
            for tag, value in _values(record):
                self._keep(self._scalar(tag, value, record.step, now))
        except Exception as error:
            self._fail(f"{self._path}: {error!r}")
            return
        if self._clock() - self._flushed >= _FLUSH_NS:
            self.flush()

    def flush(self) -> None:
        """Appends what is kept, whole records only. Never raises."""
        self._flushed = self._clock()
        data = self._kept.getvalue()
        if self._failed or not data:
            return
        self._kept.seek(0)
        self._kept.truncate()
        try:
            with self._path.open("ab", buffering=0) as file:
                end = file.tell()
                if file.write(data) < len(data):  # the page stops at half a record, for good
                    file.truncate(end)
                    raise OSError(None, "the disk is full")
        except OSError as error:
            self._fail(f"{self._path}: {error.strerror or error}")

    def _read(self, loss: Loss) -> float | None:
        if callable(loss):
            loss = loss()
        if loss is None:
            return None
        place = getattr(loss, "place", None)
        if place is not None and not place.is_cpu_place():
            if not self._has_told_of_device:
                self._has_told_of_device = True
                log.warning(
                    "step(loss=...) is a tensor on a device and is not read, which would wait for "
                    "the device at every step: give a number where you read it anyway, to log it"
                )
            return None
        return float(loss.item() if hasattr(loss, "item") else loss)

    def _keep(self, record: Any) -> None:
        self._writer.write(record.SerializeToString())

    def _fail(self, what: str) -> None:
        self._failed = True
        self._kept = BytesIO()
        log.warning(f"{what}; no scalars are written from here on, the training goes on")


def _values(record: StepRecord) -> Iterator[tuple[str, float]]:
    """Tags of a step and their values; none for what it does not tell."""
    if not record.excluded:
        seconds = record.batch_cost_ns / 1e9
        yield "time/batch_cost_ms", record.batch_cost_ns / 1e6
        if record.reader_cost_ns is not None:
            yield "time/reader_cost_ms", record.reader_cost_ns / 1e6
        if record.num_samples is not None and seconds > 0:
            yield "speed/ips", record.num_samples / seconds
        if record.num_tokens is not None and seconds > 0:
            yield "speed/tokens_per_s", record.num_tokens / seconds
    if record.device_peak_bytes is not None:
        yield "memory/device_peak_mib", record.device_peak_bytes / 2**20
    yield "memory/host_peak_mib", record.host_peak_bytes / 2**20


def _now_ms() -> int:
    return round(time.time() * 1000)
