"""A window of one kernel, and the clock of the device in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from ppprof.capture.doctor.checks import OK, PROBLEM, WARNING, Check
from ppprof.capture.probe import NO_EVENTS, NO_HOOKS, WORKS, Probe

_STATUS = {WORKS: OK, NO_HOOKS: WARNING, NO_EVENTS: WARNING}
"""Statuses of kinds; other kinds are problems. In a warning's case, the host is recorded."""


def checks(probe: Probe) -> Iterator[Check]:
    """Return the check of the window, and that of the clock if there is a kernel."""
    values = asdict(probe)
    status = _STATUS.get(probe.kind, PROBLEM)
    if probe.kind == WORKS and probe.files:
        status = WARNING  # only a device that Profiler.targets names is recorded then
    yield Check("window", status, probe.reason, probe.action, values)
    times = (probe.launch_ns, probe.kernel_start_ns, probe.kernel_end_ns, probe.synchronized_ns)
    launch, start, end, synchronized = times
    if start is None or end is None or synchronized is None or probe.before_ns is None:
        return
    launched = probe.before_ns if launch is None else launch
    after_launch, before_end = start - launched, synchronized - end
    numbers = {"launch_to_start_ns": after_launch, "end_to_synchronized_ns": before_end}
    if after_launch >= 0 and before_end >= 0:
        reason = (
            f"the kernel starts {after_launch / 1000:.1f} us after its launch and ends "
            f"{before_end / 1000:.1f} us before the synchronisation returns"
        )
        yield Check("device clock", OK, reason, values=numbers)
        return
    if after_launch < 0:
        reason = f"the kernel starts {-after_launch / 1000:.1f} us before its launch"
    else:
        reason = f"the kernel ends {-before_end / 1000:.1f} us after the synchronisation returned"
    yield Check(
        "device clock",
        WARNING,
        f"{reason}: the device's clock and the host's disagree",
        "do not trust idle times of the device that are shorter than this; update the driver",
        numbers,
    )
