"""What the device reaches: the roof of `ppprof summary --views efficiency`, measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from ppprof.capture.children import environment, run
from ppprof.capture.doctor import peaks_child
from ppprof.capture.doctor.checks import OK, WARNING, Check

SECONDS = 60.0
"""The longest time that the measurement may take."""


def measure(timeout: float = SECONDS) -> dict[str, Any]:
    """Return what `ppprof.capture.doctor.peaks_child` measured, or its error."""
    ended = run([sys.executable, peaks_child.__file__], timeout, environment(keeps_flags=True))
    try:
        return dict(json.loads(ended.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        late = ended.exit_code is None and ended.is_started
        said = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.exit_code}"]
        return {"error": f"no answer within {timeout:.0f} s" if late else said[0][:300]}


def checks(found: dict[str, Any]) -> Iterator[Check]:
    """Return the line with the peaks, and the keys of a config that state them.

    Args:
        found: the result of `measure`.
    """
    if "error" in found or not found.get("flops"):
        reason = found.get("error", "the device computes in no known dtype")
        action = "state the vendor's numbers: Global.device_peak_flops and Global.device_peak_gbps"
        yield Check("peaks", WARNING, f"not measured: {reason}", action, found)
        return
    rates = ", ".join(
        f"{flops / 1e12:.3g} TFLOP/s {dtype}" for dtype, flops in found["flops"].items()
    )
    gbps = found["bytes_per_s"] / 1e9
    best = max(found["flops"].values())
    reason = f"{found['device']} reaches {rates}, and {gbps:.3g} GB/s"
    action = f"-o Global.device_peak_flops={best:.3g} -o Global.device_peak_gbps={gbps:.3g}"
    yield Check("peaks", OK, reason, f"train with {action}, if its vendor's are unknown", found)
