"""Several processes in one file: each is a rank, with events and correlation ids of its own.

Torch records one process. A file of several was merged from files of ranks, by SGLang's profile
merger for example, which leaves the lists of events as they are or sorts them by time, and changes
process ids so that they differ: the ids of hosts, and mostly those of devices, which were numbers of
devices before::

    pid 100     host, rank 0      pid "[TP00] 100"     host
    pid 0       device, rank 0    pid "[TP00] 0"       its device
    pid 100100  host, rank 1      pid "[TP01] 100"     host
    pid 100000  device, rank 1    pid "[TP01] 0"       its device
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from ppprof.arrays import Int64
from ppprof.errors import TraceError
from ppprof.trace.kineto.names import STEP
from ppprof.trace.labels import Labels

Tables = Mapping[str, pl.DataFrame]
"""The tables of `ppprof.trace.kineto.columns.KinetoColumns`, by name."""

_RANK = re.compile(r"\brank[\s:_-]*([0-9]{1,6})\b", re.IGNORECASE)
_LABEL = re.compile(r"\[[^\]]+\]")
_MOST_LISTED = 8
_WITHOUT_HOST = ("devices", "annotations", "overheads")
"""Tables of events on processes that are no hosts: a device, or -1."""


def ranks_of(tables: Tables, names: Mapping[int, str]) -> dict[int, int]:
    """Return rank -> process id for the processes of a file that are ranks; empty for a single one.

    They are the processes with steps or, if no process has steps, those with launches. The names of
    processes hold their ranks (``rank 3``); otherwise ranks are numbered as they appear in the file.

    Args:
        tables: reads hosts and launches.
        names: process id -> its names and labels.
    """
    hosts, launches = tables["hosts"], tables["launches"]
    if hosts["process"].min() == hosts["process"].max():
        return {}
    is_step = Labels.of(hosts["name"]).where(lambda name: name.startswith(STEP))
    processes = hosts["process"].filter(pl.Series(is_step)).drop_nulls().unique()
    if processes.is_empty():
        processes = launches["process"].drop_nulls().unique()
    if len(processes) < 2:
        return {}
    chosen = hosts.filter(pl.col("process").is_in(processes.implode()))
    order = chosen["process"].unique(maintain_order=True).to_list()
    stated = [match and int(match[1]) for match in (_RANK.search(names.get(p, "")) for p in order)]
    if None not in stated and len(set(stated)) == len(order):
        return dict(sorted(zip(stated, order)))  # type: ignore[arg-type]
    return dict(enumerate(order))


def split(
    tables: Tables, ranks: Mapping[int, int], names: Mapping[int, str], path: object
) -> dict[int, dict[str, pl.DataFrame]]:
    """Return the tables of each rank.

    Raises:
        TraceError: it is unknown which rank some device events belong to.
    """
    processes = list(ranks.values())
    devices, annotations, overheads = (tables[name] for name in _WITHOUT_HOST)
    # Annotations are on the devices of kernels, so they have the owners of these.
    on_devices = pl.concat(table.select("index", "process") for table in (devices, annotations))
    owner = _owners(tables, on_devices, processes, names)
    owners = {
        "devices": owner[: devices.height],
        "annotations": owner[devices.height :],
        "overheads": _owners(tables, overheads, processes, names),
    }
    _check_owners(tables, owners["devices"], processes, names, path)
    parts = {}
    for rank, process in ranks.items():
        own = {
            name: table.filter(
                pl.Series(owners[name] == process)
                if name in owners
                else pl.col("process") == process
            )
            for name, table in tables.items()
            if "process" in table.columns
        }
        index = {
            "hosts": own["hosts"]["index"].implode(),
            "devices": own["devices"]["index"].implode(),
        }
        for name, table in tables.items():
            if name not in own:
                kind = "devices" if name.startswith("device") else "hosts"
                own[name] = table.filter(pl.col("index").is_in(index[kind]))
        parts[rank] = own
    return parts


def _owners(
    tables: Tables, table: pl.DataFrame, processes: Sequence[int], names: Mapping[int, str]
) -> Int64:
    """Return the process whose rank each event of a table belongs to, shape (N,); -1 if unknown.

    Args:
        tables: reads hosts and launches.
        table: reads index and process.
        processes: the processes that are ranks.
        names: process id -> its names and labels.
    """
    pids = table["process"].fill_null(-1).to_numpy()
    owner = np.full(len(pids), -1)
    for pid in np.unique(pids).tolist():
        rows = pids == pid
        same_label = [
            process for process in processes if _label(names, process) == _label(names, pid)
        ]
        if pid in processes:
            owner[rows] = pid
        elif _label(names, pid) and len(same_label) == 1:
            owner[rows] = same_label[0]
    rest = owner < 0
    if rest.any():
        owner[rest] = _owners_by_place(tables, processes, table.filter(pl.Series(rest)))
    return owner


def _check_owners(
    tables: Tables,
    owner: Int64,
    processes: Sequence[int],
    names: Mapping[int, str],
    path: object,
) -> None:
    """Reject a file with device events of unknown ranks."""
    if (owner < 0).any() or not _are_launched(tables["devices"], tables["launches"], owner):
        listed = ", ".join(
            f"{process} ({names[process]})" if process in names else str(process)
            for process in processes[:_MOST_LISTED]
        )
        raise TraceError(
            f"{path}: {len(processes)} processes with launches of their own in one file: {listed}"
            f"{', ...' if len(processes) > _MOST_LISTED else ''}; nothing says which of them launched "
            "which device events; give the files of the ranks instead"
        )


def _label(names: Mapping[int, str], pid: int) -> str:
    """Return the label with which a merger begins the ids of one rank: ``[TP00]``."""
    match = _LABEL.match(names.get(pid, ""))
    return match[0] if match else ""


def _owners_by_place(tables: Tables, processes: Sequence[int], rest: pl.DataFrame) -> Int64:
    """Return the process of each event of ``rest``, by how files were merged; -1 if it is unknown.

    If the events of one rank follow those of another in the file, an event belongs to the rank among
    whose events it lies. Else a merger may have added a number to all process ids of a rank::

        hosts     100   100100      differ by 100,000
        devices     0   100000      differ by as much: the first device belongs to the first host
    """
    placed = pl.concat(tables[name].select("index", "process") for name in ("hosts", "launches"))
    extents = (
        placed.filter(pl.col("process").is_in(list(processes)))
        .group_by("process")
        .agg(first=pl.col("index").min(), last=pl.col("index").max())
        .sort("first")
    )
    index, pids = rest["index"].to_numpy(), rest["process"].fill_null(-1).to_numpy()
    if (extents["first"].to_numpy()[1:] > extents["last"].to_numpy()[:-1]).all():
        order = extents["process"].to_numpy()
        begun: Int64 = np.searchsorted(extents["first"].to_numpy(), index, side="right") - 1
        return order[np.maximum(begun, 0)]
    hosts, devices = np.sort(np.array(processes)), np.unique(pids)
    if len(hosts) == len(devices) and (np.diff(hosts) == np.diff(devices)).all():
        return hosts[np.searchsorted(devices, pids)]
    return np.full(len(pids), -1)


def _are_launched(devices: pl.DataFrame, launches: pl.DataFrame, owner: Int64) -> bool:
    """Return whether the owner of each device event has its launch, if any process has it."""
    of_device = devices.select("correlation", process=pl.Series(owner, dtype=pl.Int64)).drop_nulls()
    known = of_device.join(launches.select("correlation").unique(), on="correlation", how="semi")
    return known.join(launches, on=["process", "correlation"], how="anti").is_empty()
