"""The steps of a rank: a step is over when the host has ended it and the device has done its work.

A host that does not wait for its device runs ahead: it ends its step while the device still has the
step's work in its queue. Cut where the host ends them, such steps would be as long as the host needs
to launch them::

    host     |1  |2  |3  |
    device    111111 222222 333333
    steps    |1     |2     |3     |       as `steps_of_rank` cuts them

For a host that waits for the device at the end of each step, and without a device, the steps are the
host's.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from ppprof.analysis.profile.intervals import extents_by_group
from ppprof.analysis.profile.profile import Profile, once
from ppprof.arrays import Int64
from ppprof.trace.steps import ROUNDING_NS, step_number


def host_steps(profile: Profile) -> pl.DataFrame:
    """Return the steps as the host ends them: one row for each ProfileStep with a number, ``…#3``.

    Returns:
        thread, start_ns, end_ns and step.
    """
    events = profile.tree.events
    rows = profile.tree.rows_of_category("ProfileStep")
    numbers = [step_number(name) for name in events.events["name"].gather(rows).to_list()]
    rows = rows[[number is not None for number in numbers]]
    return pl.DataFrame(
        {
            "thread": events.thread[rows],
            "start_ns": events.start_ns[rows],
            "end_ns": events.ends(rows),
            "step": pl.Series([number for number in numbers if number is not None], dtype=pl.Int64),
        }
    )


@once
def steps_of_rank(profile: Profile) -> pl.DataFrame:
    """Return the steps of a rank, sorted by start: `host_steps` with other times, and ``outlived_ns``.

    A step ends when the host has ended it and all device events are over that it or an earlier step
    launched. It begins where the step before it ends; the first begins where the host begins it, or
    when the device events are over that ran before its own. If it outlives the host's, the first begins ahead of its
    own device events by as much as the others do at the median. A step after a lost one
    (`ppprof.analysis.profile.wholeness`) begins where the host begins it or, if the device is behind,
    with its own first device event.

    The times are the host's if steps overlap by more than rounding, as those of two threads do, or if several have one
    number.

    Returns:
        thread, start_ns, end_ns, step, and outlived_ns: for how long device events that the step
        launched ran after the host had ended it; 0 if they ended earlier.
    """
    steps = host_steps(profile)
    steps = steps[np.argsort(steps["start_ns"].to_numpy(), kind="stable")]
    step, start, end = (steps[name].to_numpy() for name in ("step", "start_ns", "end_ns"))
    events = profile.tree.events
    of_device, (begin, over) = events.step[events.devices], events.intervals(events.devices)
    is_own = of_device >= 0
    numbers, (early, last) = extents_by_group(of_device[is_own], (begin[is_own], over[is_own]))
    position = np.searchsorted(numbers, step)
    has_work = np.append(numbers, -1)[position] == step
    done = np.where(has_work, np.append(last, 0)[position], end)
    outlived = np.maximum(done - end, 0)
    can_move = (start[1:] >= end[:-1] - ROUNDING_NS).all() and len(np.unique(step)) == len(step)
    if outlived.any() and can_move:
        end = np.maximum.accumulate(np.maximum(end, done))
        is_earlier = ~is_own & (begin < begin[is_own].min())
        first = max(int(start[0]), int(over[is_earlier].max(initial=0)))
        own = np.where(outlived > 0, np.append(early, 0)[position], start)
        if outlived[0] > 0 and (outlived[1:] > 0).any():
            # The profiler waited for the device before the window: it is idle for longer than ahead of later steps.
            idle = np.maximum(own[1:] - end[:-1], 0)[outlived[1:] > 0]
            first = max(first, int(own[0]) - int(np.median(idle)))
        start = np.append(min(first, end[0]), end[:-1])
        num_lost = np.searchsorted(profile.whole.lost_steps, step)
        after_lost = np.diff(num_lost, prepend=0) > 0
        start = np.where(after_lost, np.clip(own, start, end), start)
    return pl.DataFrame(
        {
            "thread": steps["thread"],
            "start_ns": start,
            "end_ns": end,
            "step": step,
            "outlived_ns": outlived,
        }
    )


def stepping_threads(profile: Profile) -> Int64:
    """Return the threads with a ProfileStep, ascending."""
    return np.unique(steps_of_rank(profile)["thread"].to_numpy())
