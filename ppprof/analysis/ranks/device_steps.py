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

from ppprof.analysis.profile.profile import Profile


def host_steps(profile: Profile) -> pl.DataFrame:
    """Return the steps as the host ends them: one row for each ProfileStep with a number, ``…#3``.

    Returns:
        thread, start_ns, end_ns and step.
    """
    step = pl.col("name").cast(pl.String).str.extract(r"#(\d+)$").cast(pl.Int64, strict=False)
    steps = profile.tree.of_category("ProfileStep")
    return steps.select("thread", "start_ns", "end_ns", step=step).drop_nulls("step")


def steps_of_rank(profile: Profile) -> pl.DataFrame:
    """Return the steps of a rank, sorted by start: `host_steps` with other times, and ``outlived_ns``.

    A step ends when the host has ended it and all device events are over that it or an earlier step
    launched. It begins where the step before it ends; the first begins where the host begins it, or
    when the device events are over that ran before its own.

    The times are the host's if steps overlap, as those of two threads do, or if several have one
    number.

    Returns:
        thread, start_ns, end_ns, step, and outlived_ns: for how long device events that the step
        launched ran after the host had ended it; 0 if they ended earlier.
    """
    steps = host_steps(profile).sort("start_ns", maintain_order=True)
    devices = profile.trace.events.filter(pl.col("device").is_not_null()).select(
        "step", "start_ns", end_ns=pl.col("start_ns") + pl.col("dur_ns")
    )
    launched = devices.drop_nulls("step").group_by("step").agg(done_ns=pl.col("end_ns").max())
    steps = steps.join(launched, on="step", how="left", maintain_order="left").with_columns(
        outlived_ns=(pl.col("done_ns") - pl.col("end_ns")).clip(0).fill_null(0)
    )
    overlap = (steps["start_ns"].shift(-1) < steps["end_ns"]).any()
    if steps["outlived_ns"].sum() and not overlap and not steps["step"].is_duplicated().any():
        done = steps.select(pl.max_horizontal("end_ns", "done_ns").cum_max()).to_series().to_numpy()
        own = devices.drop_nulls("step")["start_ns"].to_numpy().min()
        earlier = devices.filter(pl.col("step").is_null() & (pl.col("start_ns") < own))["end_ns"]
        first = max(int(steps["start_ns"][0]), *earlier.to_list(), 0)
        starts = np.append(min(first, done[0]), done[:-1])
        steps = steps.with_columns(start_ns=pl.Series(starts), end_ns=pl.Series(done))
    return steps.drop("done_ns")
