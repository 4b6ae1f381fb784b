"""When the stepping threads of a rank load data or wait, and when its threads launch work."""

from __future__ import annotations

import re

import numpy as np

from ppprof.analysis.profile.intervals import Intervals, difference, together
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.runtime_calls import BLOCKING, COPY, WAIT, is_of_kind
from ppprof.arrays import Int64

LONG_CALL_NS = 100_000
"""Least length of a call that copies, allocates or frees for its time beside work of a device to
count as waiting: a copy from memory that is not pinned, for example, waits for its stream. A call
that puts a copy into a queue takes some 10 us."""

_QUEUED = re.compile(r"i?(send|recv)")


def stepping_thread_in(profile: Profile, category: str, threads: Int64) -> Intervals:
    """Return the intervals of the events of one category on the stepping threads.

    Args:
        profile: one rank's window.
        category: the category of the events, such as ``Dataloader``.
        threads: the stepping threads, those with a ProfileStep.
    """
    events = profile.tree.events
    return events.intervals(_on_threads(profile, events.host_rows(category), threads))


def waiting_intervals(profile: Profile, threads: Int64) -> Intervals:
    """Return the intervals in which the stepping threads communicate or synchronize with a device.

    Sends and receives that launched no kernel do not count: another call launches it later, that of
    a group of transfers. Collectives without a kernel count, since they may be of a library that
    blocks the host, such as gloo.

    Args:
        profile: one rank's window, with device events.
        threads: the stepping threads, those with a ProfileStep.
    """
    tree, events = profile.tree, profile.tree.events
    is_wait = is_of_kind(events.names.take(events.launches), WAIT)
    calls = events.num_hosts + np.flatnonzero(is_wait)
    spans = events.host_rows("Communication")
    is_queued = events.names.take(spans).where(lambda name: bool(_QUEUED.fullmatch(name)))
    only_queues = is_queued & (tree.device_ns[spans] == 0)
    waits = np.concatenate((spans[~only_queues], calls))
    return together(events.intervals(_on_threads(profile, waits, threads)))


def launching_intervals(profile: Profile) -> Intervals:
    """Return the instants in which a thread is in a runtime call and does not wait for a device.

        calls    launch  copy##########        #: a copy longer than `LONG_CALL_NS`
        devices      kkkkkkkkkkk
        out      ======         =======

    Args:
        profile: one rank's window, with device events.

    Returns:
        A union of intervals.
    """
    events = profile.tree.events
    start, end = events.intervals(events.launches)
    names = events.names.take(events.launches)
    may_wait = is_of_kind(names, COPY, BLOCKING) & (end - start >= LONG_CALL_NS)
    only_launch = ~is_of_kind(names, WAIT) & ~may_wait
    waits = start[may_wait], end[may_wait]
    return together(
        (start[only_launch], end[only_launch]),
        difference(waits, events.intervals(events.devices)),
    )


def _on_threads(profile: Profile, rows: Int64, threads: Int64) -> Int64:
    """Return those of some host events and launches that are on some threads."""
    return rows[np.isin(profile.tree.events.thread[rows], threads)]
