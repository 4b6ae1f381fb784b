"""Whether the profiler of a node's devices works, found out once on each node.

::

    profiler_log/
      devices/node7.asked    a rank on node7 probes the device's profiler
      devices/node7.CUPTI_ERROR_HARDWARE_BUSY    a rank on node7 has said that CUPTI returns this
      devices/node7.json     {"kind": "works", "reason": "...", "action": "", "ahead_ns": [-9000, 12000], ...}
"""

from __future__ import annotations

import json
import platform
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ppprof.rundir.run_file import RunFile

_MOST_BYTES = 1 << 16


class DeviceProbe(NamedTuple):
    """The result of a probe, as `ppprof.capture.probe` defines its fields."""

    kind: str
    reason: str
    action: str
    writes_files: bool = False
    """Whether the device's own profiler wrote files unasked."""
    ahead_ns: tuple[int, int] | None = None
    """The least and the most that the device's clock is ahead of the host's; None if unknown."""


def claim(run: Path, what: str = "asked") -> bool:
    """Return whether this process is the first one of its node that asks: it has to probe.

    Args:
        run: the run directory.
        what: "asked", or what a device's profiler refuses with: the first one has to say so.

    Raises:
        OSError: the run directory cannot be written.
    """
    try:
        _file(run, what).create()
    except FileExistsError:
        return False
    return True


def write(run: Path, probe: DeviceProbe) -> None:
    """Write the result for the ranks of this node.

    Raises:
        OSError: the run directory cannot be written.
    """
    _file(run, "json").write(json.dumps(probe._asdict()).encode())


def read(run: Path) -> DeviceProbe | None:
    """Return the result for this node; None before it is written, or if it is unreadable."""
    with suppress(OSError, ValueError, TypeError):
        probe = DeviceProbe(**_file(run, "json").read_json(_MOST_BYTES))
        texts = (probe.kind, probe.reason, probe.action)
        if all(isinstance(text, str) for text in texts):
            if probe.ahead_ns is not None:
                least, most = map(int, probe.ahead_ns)
                probe = probe._replace(ahead_ns=(least, most))
            return probe
    return None


def _file(run: Path, suffix: str) -> RunFile:
    return RunFile(run, f"devices/{platform.node()}.{suffix}")
