"""The Perf Summary of a run: reader cost, batch cost and ips as Paddle prints them, and MFU."""

from __future__ import annotations

import math

_SKIPPED = 10
"""Steps of warm-up that are not counted, as in ``paddle.profiler``."""


class _Row:
    """Total, max and min of a quantity so far."""

    def __init__(self) -> None:
        self.total, self.max, self.min = 0.0, 0.0, math.inf

    def add(self, value: float) -> None:
        self.total += value
        self.max = max(self.max, value)
        self.min = min(self.min, value)


class _Rate(_Row):
    """A quantity per second."""

    def __init__(self) -> None:
        super().__init__()
        self.amount = 0
        """Sum over the counted steps."""
        self.is_complete = True
        """Whether every step had an amount, steps that are not counted included."""

    def add_step(self, amount: int | None, seconds: float | None) -> None:
        """Add a step; one without ``seconds`` is not counted."""
        if amount is None:
            self.is_complete = False
        elif seconds is not None:
            self.amount += amount
            self.add(amount / seconds)


class PerfSummary:
    """Averages and extremes over the steps after the first ten, in constant memory.

    Layout and values are those of ``paddle.profiler.timer``, except that

    - averages divide by the number of summed steps: Paddle adds the tenth step to the sum and not to
      the number, so that 11 steps of 1 s average 2 s;
    - min is the smallest value: Paddle compares a value with min only if it is not a new max, and
      prints ``inf`` for steps that grow;
    - reader cost is per step, where Paddle's max and min are per batch read;
    - steps that include a stall of the profiler are left out;
    - up to three rows are added, all for this rank: tokens/s; TFLOP/s, the model FLOPs per second in
      units of 10^12; and MFU, the ratio of these to the device's peak.

    Args:
        device_peak_flops: peak FLOP/s of the device; None for no MFU.

    Source: MFU (model FLOPs utilization) as in PaLM (Chowdhery et al. 2022), appendix B: the
    model's FLOPs, without recomputation, over those of the device at its peak in the same time.
    """

    def __init__(self, device_peak_flops: float | None = None) -> None:
        self.num_steps = 0
        """Number of steps, those that are not counted included."""
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
        """Add one step.

        If any step lacks ``num_samples``, ips is in steps/s. If any step lacks ``num_tokens`` or
        ``num_flops``, that row is missing.
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

    def text(self) -> str:
        """Return the table, or a line that says why it is empty."""
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
        return "\n".join(lines)


def _stats(name: str, row: _Row, average: float, unit: float = 1.0) -> str:
    return _line(name, *(f"{value / unit:.5f}" for value in (average, row.max, row.min)))


def _line(*cells: str) -> str:
    """Return four cells as Paddle prints them: 15 columns each, between ``|`` and blanks."""
    return "".join(f"| {cell.center(15)} " for cell in cells) + "|"
