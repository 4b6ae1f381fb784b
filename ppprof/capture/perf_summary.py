"""The Perf Summary: reader cost, batch cost and ips of a whole run, as Paddle prints it."""

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


class PerfSummary:
    """Averages and extremes over the steps after the first ten, in constant memory.

    Layout and values of ``paddle.profiler.timer``, except that

    - averages divide by the number of steps that were summed: Paddle has the tenth step in the
      sum and not in the number, so that 11 steps of 1 s average 2 s;
    - min is the least of all: Paddle looks at a value for min only when it is no new max, and
      prints ``inf`` for steps that grow;
    - reader cost is by step, where Paddle's max and min are by batch read;
    - steps that contain a stall of the profiler's are left out.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        """Steps seen, the skipped and the left out included."""
        self.num_left_out = 0
        """Steps after the first ten that contain a stall of the profiler's."""
        self._counted = 0
        self._num_samples: int | None = 0
        self._reader, self._batch = _Row(), _Row()
        self._steps_per_s, self._samples_per_s = _Row(), _Row()

    def add(
        self,
        batch_cost_ns: int,
        reader_cost_ns: int | None = None,
        num_samples: int | None = None,
        excluded: bool = False,
    ) -> None:
        """Counts one step; without ``num_samples`` in every one of them, ips is in steps/s."""
        self.num_steps += 1
        if num_samples is None:
            self._num_samples = None
        if self.num_steps <= _SKIPPED:
            return
        if excluded:
            self.num_left_out += 1
            return
        self._counted += 1
        seconds = max(batch_cost_ns, 1) / 1e9
        self._batch.add(seconds)
        self._steps_per_s.add(1 / seconds)
        if reader_cost_ns is not None:
            self._reader.add(reader_cost_ns / 1e9)
        if num_samples is not None and self._num_samples is not None:
            self._num_samples += num_samples
            self._samples_per_s.add(num_samples / seconds)

    @property
    def has_table(self) -> bool:
        """Whether any step is left to average."""
        return self._counted > 0

    def text(self) -> str:
        """The table, or a line that says why there is none."""
        if not self._counted:
            seen = f"{self.num_steps} steps, of which the first {_SKIPPED} warm up"
            stalls = f" and {self.num_left_out} contain a profiler stall" * bool(self.num_left_out)
            return f"Perf Summary: nothing to average in {seen}{stalls}"
        if self._num_samples is None:
            unit, ips, done = "steps/s", self._steps_per_s, self._counted
        else:
            unit, ips, done = "samples/s", self._samples_per_s, self._num_samples
        lines = ["Perf Summary".center(100, "=")]
        if self._reader.total:
            lines.append(f"Reader Ratio: {self._reader.total / self._batch.total * 100:.3f}%")
        lines.append(f"Time Unit: s, IPS Unit: {unit}")
        lines.append(_line("", "avg", "max", "min"))
        if self._reader.total:
            lines.append(_stats("reader_cost", self._reader, self._reader.total / self._counted))
        lines.append(_stats("batch_cost", self._batch, self._batch.total / self._counted))
        lines.append(_stats("ips", ips, done / self._batch.total))
        return "\n".join(lines)


def _stats(name: str, row: _Row, average: float) -> str:
    return _line(name, f"{average:.5f}", f"{row.max:.5f}", f"{row.min:.5f}")


def _line(*cells: str) -> str:
    """Four cells as Paddle's ``print`` puts them: ``|`` and 15 columns, a blank between."""
    return "".join(f"| {cell.center(15)} " for cell in cells) + "|"
