"""Write scalars of every step to a VisualDL log, packed by VisualDL's own writer."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

from ppprof.capture.signals import pass_interruption
from ppprof.capture.steps.step_log import StepRecord
from ppprof.rundir.run_file import RunFile

log = logging.getLogger("ppprof")

_FLUSH_NS = 10_000_000_000
"""The longest time by which VisualDL's page lags behind the training."""

Loss = Any
"""The loss of a step: None for no loss, a number, a tensor, or a callable that returns one of these."""


class Scalars:
    """A VisualDL log of one rank: loss, speed, times and memory of each step.

    ::

        train/loss                                    only for steps with a loss
        speed/ips, speed/tokens_per_s                 in samples/s and tokens/s
        time/batch_cost_ms, time/reader_cost_ms
        memory/device_peak_mib, memory/device_peak_reserved_mib, memory/host_peak_mib

    Excluded steps, which include a stall of the profiler, have no speed and no time. Step numbers
    and values are those of ``steps/*.jsonl``.

    Of VisualDL, only the code that packs records is used, not its ``LogWriter``. The thread of a
    ``LogWriter`` opens the file again for every value, and the training waits for that thread once
    its queue is full: 137 us a step, where this class takes 14 us. On a disk error, the
    ``LogWriter`` prints a line to stdout, loses the values and goes on. This class keeps records in
    memory and appends whole records, every ten seconds and at the end.

    The first failure is logged and ends the log; a failing import of VisualDL counts too.

    Args:
        path: the log file; its directory is made. VisualDL shows one log per directory, and only
            files with ``vdlrecords`` in their name.
    """

    def __init__(self, file: RunFile, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._file = file
        self._clock = clock
        self._flushed = clock()
        self._buffer = BytesIO()
        self._failed = False
        self._has_warned_of_device = False
        try:
            from visualdl.component.base_component import meta_data, scalar
            from visualdl.writer.record_writer import RecordWriter
        except ImportError as error:
            reason = f"VisualDL cannot be imported ({error}): pip install 'ppprof[view]'"
            self._fail(f"visualdl_scalars: {reason}")
            return
        except Exception as error:  # its import writes into the user's home directory
            self._fail(f"visualdl_scalars: VisualDL cannot be imported: {error}")
            return
        self._scalar = scalar
        self._writer = RecordWriter(self._buffer)
        try:
            # Without a name: VisualDL merges runs of the same name.
            self._append(meta_data(walltime=_now_ms()))
        except Exception as error:
            pass_interruption(error)
            self._fail(f"{file}: {error}")
            return
        self.flush()  # a disk error appears now

    def add(self, record: StepRecord) -> None:
        """Add a step; write all collected steps if the last write was at least 10 s ago.

        Never raises: a failure is logged and ends the VisualDL log.
        """
        if self._failed:
            return
        try:
            now = _now_ms()
            for tag, value in _values(record):
                self._append(self._scalar(tag, value, record.step, now))
        except Exception as error:
            pass_interruption(error)
            self._fail(f"{self._file}: {error!r}")
            return
        if self._clock() - self._flushed >= _FLUSH_NS:
            self.flush()

    def read(self, loss: Loss) -> float | None:
        """Return the value of a loss now; None for no loss and after a failure.

        A callable is called. A tensor on a device is not read; the first such tensor is logged.
        Never raises: a failure, of a callable too, is logged and ends the VisualDL log.
        """
        if self._failed:
            return None
        try:
            return self._read(loss)
        except Exception as error:
            pass_interruption(error)
            self._fail(f"{self._file}: {error!r}")
            return None

    def flush(self) -> None:
        """Append all collected steps to the file: whole records, or nothing. Never raises."""
        self._flushed = self._clock()
        data = self._buffer.getvalue()
        if self._failed or not data:
            return
        self._buffer.seek(0)
        self._buffer.truncate()
        try:
            with self._file.appending() as file:
                end = file.seek(0, os.SEEK_END)
                if file.write(data) < len(data):  # VisualDL never reads past half a record
                    file.truncate(end)
                    raise OSError(None, "the disk is full")
        except OSError as error:
            self._fail(f"{self._file}: {error.strerror or error}")

    def _read(self, loss: Loss) -> float | None:
        if callable(loss):
            loss = loss()
        if loss is None:
            return None
        place = getattr(loss, "place", None)
        if place is not None and not place.is_cpu_place():
            if not self._has_warned_of_device:
                self._has_warned_of_device = True
                log.warning(
                    "step(loss=...): a tensor on a device is not read, since that would wait for the "
                    "device at every step; to log the loss, pass a number at steps where you read it"
                )
            return None
        return float(loss.item() if hasattr(loss, "item") else loss)

    def _append(self, record: Any) -> None:
        self._writer.write(record.SerializeToString())

    def _fail(self, problem: str) -> None:
        self._failed = True
        self._buffer = BytesIO()
        log.warning(f"{problem}; no scalars are written from now on, the training goes on")


def _values(record: StepRecord) -> Iterator[tuple[str, float]]:
    """Yield tag and value of each scalar that the step has, such as ``("speed/ips", 812.5)``."""
    if record.loss is not None:
        yield "train/loss", record.loss
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
    if record.device_peak_reserved_bytes is not None:
        yield "memory/device_peak_reserved_mib", record.device_peak_reserved_bytes / 2**20
    yield "memory/host_peak_mib", record.host_peak_bytes / 2**20


def _now_ms() -> int:
    return round(time.time() * 1000)
