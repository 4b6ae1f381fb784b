"""The Perf Summary of a whole run: reader cost, batch cost and ips as Paddle prints them, and MFU."""

from __future__ import annotations

import math

_SKIPPED = 10
"""Steps that warm up and are left out; as in ``paddle.profiler``."""


class _Row:
    """Running total, max and min of a quantity."""

    def __init__(self) -> None:
        self.total, self.max, self.min = 0.0, 0.0, math.inf

    def add(self, value: float) -> None:
        self.total += value
        self.max = max(self.max, value)
        self.min = min(self.min, value)


class _Rate(_Row):
    """What steps do in a second."""

    def __init__(self) -> None:
        super().__init__()
        self.done = 0
        """In all steps that are counted."""
        self.is_told = True
        """Whether every step said how much it did, those that are not counted too."""

    def add_step(self, done: int | None, seconds: float | None) -> None:
        """Hears of a step; one without ``seconds`` is not counted."""
        if done is None:
            self.is_told = False
        elif seconds is not None:
            self.done += done
            self.add(done / seconds)


class PerfSummary:
    """Averages and extremes over the steps after the first ten, in constant memory.

    Layout and values of ``paddle.profiler.timer``, except that

    - averages divide by the number of steps that were summed: Paddle has the tenth step in the
      sum and not in the number, so that 11 steps of 1 s average 2 s;
    - min is the least of all: Paddle looks at a value for min only when it is no new max, and
      prints ``inf`` for steps that grow;
    - reader cost is by step, where Paddle's max and min are by batch read;
    - steps that contain a stall of the profiler's are left out;
    - up to three rows are added, all of this rank: tokens/s; TFLOP/s, the model FLOPs a second in
      units of 10^12; and MFU, these as a ratio of the device's peak.

    Args:
        device_peak_flops: FLOP/s of the device at the most; without it there is no MFU.

    Source: MFU (model FLOPs utilization) as in PaLM (Chowdhery et al. 2022), appendix B: what the
    model has to compute, whatever is computed again, over what the device could in the time.
    """

    def __init__(self, device_peak_flops: float | None = None) -> None:
        self.num_steps = 0
        """Steps seen, the skipped and the left out included."""
        self.num_left_out = 0
        """Steps after the first ten that contain a stall of the profiler's."""
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
        """Counts one step.

        Without ``num_samples`` in every one of them, ips is in steps/s; without ``num_tokens`` or
        ``num_flops`` in every one, their rows are missing.
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
        """Whether any step is left to average."""
        return self._steps.done > 0

    def text(self) -> str:
        """The table, or a line that says why there is none."""
        if not self.has_table:
            seen = f"{self.num_steps} steps, of which the first {_SKIPPED} warm up"
            stalls = f" and {self.num_left_out} contain a profiler stall" * bool(self.num_left_out)
            return f"Perf Summary: nothing to average in {seen}{stalls}"
        seconds = self._batch.total
        unit, ips = "steps/s", self._steps
        if self._samples.is_told:
            unit, ips = "samples/s", self._samples
        lines = ["Perf Summary".center(100, "=")]
        if self._reader.total:
            lines.append(f"Reader Ratio: {self._reader.total / seconds * 100:.3f}%")
        lines.append(f"Time Unit: s, IPS Unit: {unit}")
        lines.append(_line("", "avg", "max", "min"))
        if self._reader.total:
            lines.append(_stats("reader_cost", self._reader, self._reader.total / self._steps.done))
        lines.append(_stats("batch_cost", self._batch, seconds / self._steps.done))
        lines.append(_stats("ips", ips, ips.done / seconds))
        if self._tokens.is_told:
            lines.append(_stats("tokens/s", self._tokens, self._tokens.done / seconds))
        if self._flops.is_told:
            flops = self._flops.done / seconds
            lines.append(_stats("TFLOP/s", self._flops, flops, 1e12))
            if self._device_peak_flops is not None:
                lines.append(_stats("MFU", self._flops, flops, self._device_peak_flops))
        return "\n".join(lines)


def _stats(name: str, row: _Row, average: float, unit: float = 1.0) -> str:
    return _line(name, *(f"{value / unit:.5f}" for value in (average, row.max, row.min)))


def _line(*cells: str) -> str:
    """Four cells as Paddle's ``print`` puts them: ``|`` and 15 columns, a blank between."""
    return "".join(f"| {cell.center(15)} " for cell in cells) + "|"
