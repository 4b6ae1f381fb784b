"""The load of a run's machine, written into the manifest from the step times as the run ends."""

from __future__ import annotations

import json
import platform

from ppprof.rundir.manifest import nodes, read_manifest, write_manifest
from ppprof.rundir.names import jsonl_files, steps_path
from ppprof.rundir.run_file import RunFile

_MOST_BYTES = 1 << 20
"""Most bytes to read of a rank's step times: about 2,400 steps, 10 ms."""
_MOST_RANKS = 256
"""Most ranks of one machine; of more, nothing is written."""


def add_load(steps: RunFile) -> None:
    """Write the load of this machine in the run so far into the manifest, as ``machine.load``.

    Called with each rank's step times as its session ends; the lowest rank of the directory writes.

    ``{"busy_ratio": 0.97, "others_ratio": 0.6}``: the shares of all processors' time in which they
    were busy, and that processes outside the job took. Means over the last 2,400 steps or so of the
    ranks of this machine, as `ppprof.rundir.step_times.read_step_times` defines them. Nothing is
    written if a rank has no reading yet.

    Raises:
        InputError: the manifest is unreadable.
        OSError: a file cannot be read or written.
        ValueError: a file of step times holds something else.
    """
    hosts = nodes(steps.run)
    if not hosts or steps.name != steps_path(min(hosts)):
        return
    ranks = jsonl_files(steps.run, "steps")
    files = [file for rank, file in ranks if hosts.get(rank) == platform.node()]
    if len(files) > _MOST_RANKS:
        return
    shares = [_load_of(file) for file in files]
    known = [share for share in shares if share is not None]
    if not known or len(known) < len(shares):
        return
    busy = sum(share[0] for share in known) / len(known)
    others = max(0.0, busy - sum(share[1] for share in known))
    manifest = read_manifest(steps.run)
    machine = manifest.get("machine")
    load = {"busy_ratio": round(busy, 4), "others_ratio": round(others, 4)}
    manifest["machine"] = {**(machine if isinstance(machine, dict) else {}), "load": load}
    write_manifest(steps.run, manifest)


def _load_of(steps: RunFile) -> tuple[float, float] | None:
    """Return what share of the processors' time was busy, and a rank's own; None without a reading."""
    text, _ = steps.read_end(_MOST_BYTES)
    total_ns = since_ns = busy_ns = own_ns = 0.0
    for line in text.split(b"\n")[1:-1]:
        try:
            step = json.loads(line)
            since_ns += step["batch_cost_ns"]
            busy, own = step["processors_busy_ratio"], step["processors_own_ratio"]
            if busy is not None and own is not None:
                busy_ns, own_ns = busy_ns + busy * since_ns, own_ns + own * since_ns
                total_ns, since_ns = total_ns + since_ns, 0.0
        except (KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{steps}: {error!r}") from error
    return (busy_ns / total_ns, own_ns / total_ns) if total_ns > 0 else None
