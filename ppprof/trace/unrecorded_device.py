"""Recognize a trace of a training on a device that holds no device events.

The plugin of a device may have no profiler, the profiler may have been refused, or only the host
was recorded (``Profiler.targets: cpu``). On such a device, the host launches work and goes on: the
time of a host event is the time of launching it, not of running it. Without a device, host events
are the work itself.
"""

from __future__ import annotations

import dataclasses
import re

import polars as pl

from ppprof.trace.schema import Trace

_PLACE = re.compile(r"Place\((?!cpu|gpu_pinned|xpu_pinned|undefined)(?P<device>\w+(:\d+)?)\)")
_LAUNCH = "(?i)launch.*kernel|graph_?launch"


def unrecorded_device(trace: Trace) -> str:
    """Return the device that a trace without device events was recorded on: ``gpu:0``.

    "" for a trace with device events, and for a trace of a CPU. The first of these that is known
    decides: a memory event on a device; a device in the run's manifest (`with_device`); a call that
    launches a kernel; the CPU in the manifest, or memory events on the CPU alone; the file's device
    properties. The properties say only which devices the machine has: the result is then "a machine
    with ...". The training may have run on the CPU, but its times can be taken for a CPU's only if
    something says so.
    """
    if trace.unrecorded_device is not None:
        return trace.unrecorded_device
    return _unrecorded_device(trace, None)


def with_device(trace: Trace, device: str | None) -> Trace:
    """Return ``trace`` with the result of `unrecorded_device` if it ran on ``device``.

    Args:
        trace: a whole window.
        device: the device in the run's manifest, such as ``gpu:0`` or ``cpu``; None if unknown.
    """
    return dataclasses.replace(trace, unrecorded_device=_unrecorded_device(trace, device))


def _unrecorded_device(trace: Trace, device: str | None) -> str:
    if trace.events["device"].count():
        return ""
    places = trace.memory["place"].drop_nulls().unique().cast(pl.String).sort().to_list()
    of_memory = [match["device"] for match in map(_PLACE.fullmatch, places) if match]
    if of_memory:
        return ", ".join(of_memory)
    is_cpu = device is not None and device.partition(":")[0] == "cpu"
    if device is not None and not is_cpu:
        return device
    name = str(trace.devices[0].get("name") or "a device") if trace.devices else "a device"
    if _launches(trace):
        return name
    if is_cpu or places or not trace.devices or trace.events.is_empty():
        return ""
    return f"a machine with {name}"


def _launches(trace: Trace) -> bool:
    """Return whether the host calls a function that launches kernels, such as ``cudaLaunchKernel``."""
    calls = trace.events.filter(pl.col("category") == "CudaRuntime")["name"].unique()
    return bool(calls.cast(pl.String).str.contains(_LAUNCH).any())
