"""Choose limits for a comparison: ``step_time > 5%``, ``op.matmul.gpu > 0.2ms``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ppprof.errors import UsageError

METRICS = {
    "device": "text",
    "device_memory": "bytes",
    "gpu_utilization": "ratio",
    "cpu_utilization": "ratio",
    "mean_memory": "bytes",
    "peak_memory": "bytes",
    "peak_reserved_memory": "bytes",
    "step_time": "ns",
    "step_time_median": "ns",
    "step_time_p95": "ns",
    "ips": "per_s",
    "tokens_per_s": "per_s",
    "reader_cost": "ns",
    "computation": "ns",
    "exposed_communication": "ns",
    "data_loading": "ns",
    "bubble": "ns",
    "host_bound": "ns",
    "queued": "ns",
    "rest": "ns",
}
"""The metrics of a run, in the order of the overview, with their units."""

_THRESHOLD = re.compile(
    r"\s*(?P<target>\S.*?)\s*(?P<sign>[<>])\s*(?P<number>[-+]?\d+(\.\d+)?)\s*(?P<unit>%|[a-zA-Z]*)\s*"
)
_UNITS = {
    **{"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9},
    **{"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30},
}
COLUMNS = {
    "op": {
        **{"cpu": "cpu_total_ns", "gpu": "gpu_total_ns", "calls": "calls"},
        **{"cpu_self": "cpu_self_ns", "gpu_self": "gpu_self_ns"},
    },
    "kernel": {"gpu": "gpu_total_ns", "calls": "calls"},
}
"""The columns of operators and kernels that can be limited, keyed by their names in a target."""
_METRICS = {metric: kind for metric, kind in METRICS.items() if kind != "text"}
"""The units of the metrics that are numbers, keyed by metric."""
_UNITS_OF = {
    "ns": ("%", "ns", "us", "ms", "s"),
    "bytes": ("%", "B", "KB", "MB", "GB", "KiB", "MiB", "GiB"),
    "ratio": ("%",),
    "per_s": ("%", ""),
    "calls": ("%", ""),
}
_EXPECTED = (
    "expected METRIC > NUMBER% or METRIC > NUMBER and a unit (ms, us, s, MB, GB), where METRIC is "
    f"one of {', '.join(_METRICS)}, op.NAME.cpu (gpu, cpu_self, gpu_self, calls), kernel.NAME.gpu "
    "(calls) or module.NAME; and < for values that must not fall, such as ips < -5%"
)


@dataclass(frozen=True)
class Threshold:
    """A limit for the change of a metric, operator, kernel or module."""

    text: str
    """The threshold, as the user wrote it."""
    target: str
    """The metric, operator, kernel or module: ``step_time``, ``op.matmul.gpu``."""
    above: bool
    """Whether changes above the limit fail (``>``). If False, changes below it fail (``<``)."""
    limit: float
    """A ratio (0.05 for 5%), or a number of nanoseconds, bytes or calls."""
    is_ratio: bool
    """Whether ``limit`` is a ratio to the baseline."""

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Return the threshold that ``text`` states.

        >>> threshold = Threshold.parse("step_time > 5%")
        >>> threshold.target, threshold.above, threshold.limit, threshold.is_ratio
        ('step_time', True, 0.05, True)

        Raises:
            UsageError: the text has another form, its metric is unknown, or its unit does not fit
                the metric; the message says what was expected.
        """
        match = _THRESHOLD.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r}: {_EXPECTED}")
        target, unit = match["target"], match["unit"]
        if not _is_target(target):
            raise UsageError(f"{text!r}: {_EXPECTED}")
        is_calls = target.endswith(".calls") and not target.startswith("module.")
        units = _UNITS_OF[_METRICS.get(target, "calls" if is_calls else "ns")]
        if unit not in units:
            expected = ", ".join(name or "none" for name in units)
            raise UsageError(f"{text!r}: unit {unit or 'missing'}: expected one of {expected}")
        number = float(match["number"])
        limit = number / 100 if unit == "%" else number * _UNITS.get(unit, 1.0)
        return cls(text.strip(), target, match["sign"] == ">", limit, unit == "%")

    def is_exceeded_by(self, value: float) -> bool:
        """Return whether a change lies beyond the limit."""
        return value > self.limit if self.above else value < self.limit

    def format(self, value: float) -> str:
        """Format a change in the unit of the limit.

        >>> Threshold.parse("op.matmul.gpu > 0.2ms").format(1.5e6), Threshold.parse("ips < -5%").format(0.1)
        ('+1.5 ms', '+10.0%')
        """
        if self.is_ratio:
            return f"{value:+.1%}"
        match = _THRESHOLD.fullmatch(self.text)
        unit = match["unit"] if match else ""
        return f"{value / _UNITS.get(unit, 1.0):+.3g}{' ' if unit else ''}{unit}"


def _is_target(target: str) -> bool:
    """Return whether a threshold can limit ``target``: ``step_time``, ``op.matmul.gpu``..."""
    kind, _, rest = target.partition(".")
    if kind in COLUMNS:
        return "." in rest and rest.rpartition(".")[2] in COLUMNS[kind]
    return target in _METRICS or (kind == "module" and target != "module.")
