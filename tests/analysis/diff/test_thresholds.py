"""Thresholds of comparisons: their text forms."""

from __future__ import annotations

import pytest

from ppprof.analysis.diff.thresholds import Threshold
from ppprof.errors import UsageError


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "cpu > 5%",
        "calls > 1",
        "device > 5%",
        "step_time",
        "step_time > x",
        "speed > 5%",
        "op.matmul > 5%",
        "op.matmul.tpu > 1%",
        "module. > 5%",
        "step_time >= 5%",
    ],
)
def test_rules_that_are_none(rule):
    with pytest.raises(UsageError, match="expected METRIC > NUMBER%"):
        Threshold.parse(rule)


@pytest.mark.parametrize(
    ("rule", "units"),
    [
        ("step_time > 5", "missing: expected one of %, ns, us, ms, s"),
        ("step_time > 5MB", "MB: expected one of %, ns, us, ms, s"),
        ("peak_memory > 5ms", "ms: expected one of %, B, KB"),
        ("op.matmul.calls > 2ms", "ms: expected one of %, none"),
        ("module.Block > 5", "missing: expected one of %, ns"),
        ("gpu_utilization < -5ms", "ms: expected one of %"),
    ],
)
def test_a_unit_has_to_fit(rule, units):
    with pytest.raises(UsageError, match=units):
        Threshold.parse(rule)
