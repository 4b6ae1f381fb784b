"""The Memory Summary: allocations and frees, grouped by place and host event."""

from __future__ import annotations

import polars as pl

from ppprof.analysis.profile.profile import Profile
from ppprof.trace.labels import Labels

MEMORY = {
    "place": pl.Categorical(),
    "type": pl.String(),
    "name": pl.Categorical(),
    "allocation_count": pl.Int64(),
    "free_count": pl.Int64(),
    "allocation_bytes": pl.Int64(),
    "free_bytes": pl.Int64(),
    "increase_bytes": pl.Int64(),
    "peak_allocated_bytes": pl.Int64(),
    "peak_reserved_bytes": pl.Int64(),
}


def memory(profile: Profile) -> pl.DataFrame:
    """Return allocations and frees, grouped by place, type and name of the host event around them.

    As in Paddle, a memory event in an operator's child counts for the operator, and also for the
    child unless the child is an OperatorInner. Memory events outside all host events do not count.
    Memory events in remote calls count, with the places of the workers.

    Returns:
        place; type ("Allocated": memory of tensors, "Reserved": memory held from the device); name;
        allocation_count, free_count; allocation_bytes, free_bytes (both at least 0); increase_bytes
        (allocation_bytes - free_bytes); peak_allocated_bytes and peak_reserved_bytes (of the place,
        equal in all its rows). Sorted by place (in the order of Paddle's walk), then
        Allocated before Reserved, then increase_bytes, the largest first. A place where only
        reserved memory changed has no rows.
    """
    records = profile.whole.memory.filter(pl.col("event").is_not_null())
    num_hosts = profile.whole_tree.events.num_hosts
    hosts = pl.DataFrame(
        [profile.whole.events[name].head(num_hosts) for name in ("parent", "name", "category")]
    )
    visit = pl.Series("visit", profile.whole_tree.visit)
    own_host = hosts.select(pl.all().gather(records["event"]))
    around = own_host["parent"]
    above = hosts.select(pl.all().gather(around)).with_columns(visit.gather(around))
    own_host = own_host.with_columns(visit.gather(records["event"]))
    records = records.hstack(own_host).with_columns(
        above=above["name"], above_is=above["category"], above_visit=above["visit"]
    )
    columns = ["place", "kind", "bytes", "peak_allocated", "peak_reserved", "event"]
    own = records.filter(pl.col("category") != "OperatorInner").select(
        *columns, "name", "visit", is_own=pl.lit(True)
    )
    in_operator = records.filter(pl.col("above_is") == "Operator").select(
        *columns, name="above", visit="above_visit", is_own=pl.lit(False)
    )
    # Paddle walks the operators' children, in order, before the operator itself.
    counted_events = pl.concat([own, in_operator]).sort(
        "visit", "is_own", "event", maintain_order=True
    )
    kinds = Labels.of(counted_events["kind"])
    counted_events = counted_events.with_columns(
        is_reserved=pl.Series(kinds.where(lambda kind: kind.startswith("Reserved"))),
        is_free=pl.Series(kinds.where(lambda kind: kind.endswith("Free"))),
    )
    is_free, size = pl.col("is_free"), pl.col("bytes")
    rows = (
        counted_events.group_by("place", "is_reserved", "name", maintain_order=True)
        .agg(
            allocation_count=(~is_free).sum().cast(pl.Int64),
            free_count=is_free.sum().cast(pl.Int64),
            allocation_bytes=size.filter(~is_free).sum(),
            free_bytes=-size.filter(is_free).sum(),
        )
        .with_columns(increase_bytes=pl.col("allocation_bytes") - pl.col("free_bytes"))
    )
    peaks = counted_events.group_by("place").agg(
        peak_allocated_bytes=pl.max_horizontal(pl.col("peak_allocated").max(), 0),
        peak_reserved_bytes=pl.max_horizontal(pl.col("peak_reserved").max(), 0),
    )
    places = (
        counted_events.filter(~pl.col("is_reserved"))
        .select("place")
        .unique(maintain_order=True)
        .with_row_index("place_order")
    )
    return (
        places.join(rows, on="place", maintain_order="left_right")
        .join(peaks, on="place", how="left", maintain_order="left")
        .sort("place_order", "is_reserved", -pl.col("increase_bytes"), maintain_order=True)
        .with_columns(
            type=pl.when("is_reserved").then(pl.lit("Reserved")).otherwise(pl.lit("Allocated"))
        )
        .select(MEMORY.keys())
    )
