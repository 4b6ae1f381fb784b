"""The Perf Summary of a run: reader cost, batch cost and ips as Paddle prints them, and MFU."""

from __future__ import annotations

import math

from ppprof.units import format_time

_SKIPPED = 10
"""Steps of warm-up that are not counted, as in ``paddle.profiler``."""


class _Row:
    """Total, largest and smallest of the values of a quantity so far."""

    def __init__(self) -> None:
        self.total, self.max, self.min = 0.0, 0.0, math.inf

    def add(self, value: float) -> None:
        self.total += value
        self.max = max(self.max, value)
        self.min = min(self.min, value)


class _Rate(_Row):
    """A rate: an amount per second, over steps."""

    def __init__(self) -> None:
        super().__init__()
        self.amount = 0
        """Sum of the amounts of counted steps."""
        self.is_complete = True
        """Whether every step so far had an amount, even the steps that are not counted."""

    def add_step(self, amount: int | None, seconds: float | None) -> None:
        """Add a step; ``seconds`` is None if it is not counted."""
        if amount is None:
            self.is_complete = False
        elif seconds is not None:
            self.amount += amount
            self.add(amount / seconds)


class PerfSummary:
    """Averages and extremes over the steps after the first ten, in constant memory.

    Layout and values are those of ``paddle.profiler.timer``, except that

    - averages divide by the number of summed steps: Paddle adds the tenth step to the sum but not
      to the number, so that 11 steps of 1 s average 2 s;
    - min is the smallest value: Paddle compares a value with min only if the value is not a new
      max, and prints ``inf`` if every step is longer than the step before;
    - max and min of the reader cost are per step: Paddle's are per batch that is read;
    - steps that include a stall of the profiler are not counted;
    - up to three rows are added, all for this rank: tokens/s; TFLOP/s, the model FLOPs per second in
      units of 10^12; and MFU, the model FLOPs per second divided by the device's peak.

    Args:
        device_peak_flops: peak FLOP/s of the device; None for a table without MFU.

    Source: MFU (model FLOPs utilization) as in PaLM (Chowdhery et al. 2022), appendix B: the
    model's FLOPs, without recomputation, over those of the device at its peak in the same time.
    """

    def __init__(self, device_peak_flops: float | None = None) -> None:
        self.num_steps = 0
        """Number of all steps, even those that are not counted."""
        self.num_left_out = 0
        """Number of steps after the first ten that include a stall of the profiler."""
        self._device_peak_flops = device_peak_flops
        self._reader, self._batch = _Row(), _Row()
        self._steps, self._samples, self._tokens, self._flops = (_Rate() for _ in range(4))

    def add(
        self,
        batch_cost_ns: int,
        reader_cost_ns: int | None = None,
        num_samples: int | None = None,
        excluded: bool = False,
        *,
        num_tokens: int | None = None,
        num_flops: int | None = None,
    ) -> None:
        """Add one step. It is not counted if it is one of the first ten, or if ``excluded`` is True.

        If any step lacks ``num_samples``, ips is in steps/s. If any step lacks ``num_tokens``, the
        row tokens/s is missing. If any step lacks ``num_flops``, the rows TFLOP/s and MFU are
        missing. Steps that are not counted matter here too.

        Args:
            batch_cost_ns: duration of the step.
            reader_cost_ns: part of it spent waiting for DataLoaders; None if no batch was read.
            num_samples: samples of the step.
            excluded: whether the step includes a stall of the profiler.
            num_tokens: tokens of the step.
            num_flops: model FLOPs of the step on this rank.
        """
        self.num_steps += 1
        seconds = None
        if self.num_steps > _SKIPPED and excluded:
            self.num_left_out += 1
        elif self.num_steps > _SKIPPED:
            seconds = max(batch_cost_ns, 1) / 1e9
            self._batch.add(seconds)
            if reader_cost_ns is not None:
                self._reader.add(reader_cost_ns / 1e9)
        self._steps.add_step(1, seconds)
        self._samples.add_step(num_samples, seconds)
        self._tokens.add_step(num_tokens, seconds)
        self._flops.add_step(num_flops, seconds)

    @property
    def has_table(self) -> bool:
        """Whether at least one step is counted."""
        return self._steps.amount > 0

    def verdict(self) -> str:
        """Return the mean step time, and its part spent waiting for data if there is any; needs `has_table`."""
        seconds = self._batch.total
        step = f"step {format_time(1e9 * seconds / self._steps.amount)}"
        waiting = self._reader.total / seconds
        return f"{step}: {waiting:.0%} waiting for data" if waiting else step

    def text(self) -> str:
        """Return the table; if no step is counted, a line that says why."""
        if not self.has_table:
            seen = f"{self.num_steps} steps, of which the first {_SKIPPED} warm up"
            stalls = f" and {self.num_left_out} contain a profiler stall" * bool(self.num_left_out)
            return f"Perf Summary: nothing to average in {seen}{stalls}"
        seconds = self._batch.total
        unit, ips = "steps/s", self._steps
        if self._samples.is_complete:
            unit, ips = "samples/s", self._samples
        lines = ["Perf Summary".center(100, "=")]
        if self._reader.total:
            lines.append(f"Reader Ratio: {self._reader.total / seconds * 100:.3f}%")
        lines.append(f"Time Unit: s, IPS Unit: {unit}")
        lines.append(_line("", "avg", "max", "min"))
        if self._reader.total:
            lines.append(
                _stats("reader_cost", self._reader, self._reader.total / self._steps.amount)
            )
        lines.append(_stats("batch_cost", self._batch, seconds / self._steps.amount))
        lines.append(_stats("ips", ips, ips.amount / seconds))
        if self._tokens.is_complete:
            lines.append(_stats("tokens/s", self._tokens, self._tokens.amount / seconds))
        if self._flops.is_complete:
            flops = self._flops.amount / seconds
            lines.append(_stats("TFLOP/s", self._flops, flops, 1e12))
            if self._device_peak_flops is not None:
                lines.append(_stats("MFU", self._flops, flops, self._device_peak_flops))
                lines.append(f"MFU of a peak of {self._device_peak_flops / 1e12:.4g} TFLOP/s")
        return "\n".join(lines)


def _stats(name: str, row: _Row, average: float, unit: float = 1.0) -> str:
    return _line(name, *(f"{value / unit:.5f}" for value in (average, row.max, row.min)))


def _line(*cells: str) -> str:
    """Return four cells as Paddle prints them: 15 columns each, between ``|`` and blanks."""
    return "".join(f"| {cell.center(15)} " for cell in cells) + "|"
