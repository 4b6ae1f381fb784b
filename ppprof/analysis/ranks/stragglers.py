"""Ranks that compute longer than their peers, and groups whose link is slower than their siblings'.

Both compare things that should be equal: ranks with the same work (the same pipeline stage), and
groups that exchange the same bytes (the same axis). The *excess* is the extra time a rank or group
takes. A rank or group is slow if the excess is there step after step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import polars as pl

_LEAST_STEPS = 3
"""With fewer steps, no excess is there step after step."""

_LEAST_SHARE = 0.05
"""Of a step: a smaller excess is not slow."""

_LEAST_LINK_SHARE = 1.0
"""Of a link's usual time: a smaller excess is not slow."""

_SURE = 5.0
"""An excess must be this many standard errors."""

_DEVIATION = 2**0.5 * 1.2533 * 1.4826
"""Standard error of the difference of two medians, of one sample each, over the median absolute
deviation; for normally distributed times."""


def slow_ranks(own: pl.DataFrame, roles: Mapping[int, str]) -> pl.DataFrame:
    """Return how much longer each rank's own work takes than that of ranks with the same role.

    ::

        role     rank   own time of steps 0, 1, 2    excess    median
        stage 1  2      100  102  101                0  2  0    0
        stage 1  3      180  181  180                80 81 79  80     slow
        stage 1  6      100  100  101                0  0  0    0

    Args:
        own: one row per rank and step: rank, step, own_ns (the rank's own work: the step without
            communication and waiting), step_ns.
        roles: the kind of work of each rank; ranks with the same role are compared.

    Returns:
        One row per rank, the slowest first: rank, role, peers (number of other ranks with its
        role), excess_ns (float64, in a typical step), noise_ns (its standard error), is_slow.
        Never slow without peers or with too few steps.
    """
    role = pl.col("rank").replace_strict(dict(roles), default="", return_dtype=pl.String)
    with_role = own.with_columns(role=role)
    usual = pl.col("own_ns").sort().get((pl.len() - 1) // 2).over("role", "step")
    table = with_role.with_columns(excess=(pl.col("own_ns") - usual).cast(pl.Float64))
    peers = with_role.group_by("role").agg(peers=pl.col("rank").n_unique() - 1)
    return (
        _excess(table, "rank", "role")
        .join(peers, "role")
        .select(
            "rank",
            "role",
            pl.col("peers").cast(pl.Int64),
            "excess_ns",
            "noise_ns",
            is_slow=pl.col("is_slow") & (pl.col("peers") > 0),
        )
        .sort("excess_ns", "rank", descending=[True, False])
    )


def slow_groups(
    arrivals: pl.DataFrame, step_ns: Mapping[int, int], roles: Mapping[int, str]
) -> pl.DataFrame:
    """Return how much more time per step each group spends in transfers than its siblings do.

    Siblings are groups on the same axis between ranks of the same roles. In each step, a group's
    median transfer of an operation and size is compared with the lower median of the groups. The
    difference times the number of calls is summed over operations and sizes. Medians are used
    because a slow link is slow each time, a busy processor only now and then.

    Args:
        arrivals: `ppprof.analysis.ranks.arrivals.arrivals`.
        step_ns: the time of each step.
        roles: the kind of work of each rank, as in `slow_ranks`.

    Returns:
        One row per group, the slowest first: members (of the group, as in ``arrivals``), axis,
        siblings (their number); excess_ns, noise_ns and is_slow as in `slow_ranks`. Not slow unless
        the group takes more than twice its siblings' time: links differ more than ranks do.
    """
    families = {
        members: " ".join(sorted(roles.get(int(rank), "") for rank in re.split("[,>]", members)))
        for members in arrivals["members"].unique()
    }
    family = pl.concat_str(
        pl.col("axis").fill_null(""),
        pl.col("members").replace_strict(families, default="", return_dtype=pl.String),
        separator=" ",
    )
    same = ["family", "op", "bytes", "step"]
    typical = pl.col("transfer_ns").median()
    usual = pl.col("each_ns").sort().get((pl.len() - 1) // 2).over(same)
    length = pl.col("step").replace_strict(dict(step_ns), return_dtype=pl.Int64)
    table = (
        arrivals.filter(pl.col("step").is_in(list(step_ns)))
        .with_columns(family=family)
        .group_by("members", "axis", *same)
        .agg(each_ns=typical, calls=pl.len())
        .with_columns(usual=usual, siblings=pl.len().over(same).cast(pl.Int64) - 1)
        .group_by("members", "axis", "family", "step")
        .agg(
            excess=((pl.col("each_ns") - pl.col("usual")) * pl.col("calls")).sum(),
            usual=(pl.col("usual") * pl.col("calls")).sum(),
            siblings=pl.col("siblings").max(),
        )
        .with_columns(step_ns=length)
    )
    groups = table.group_by("members", "axis").agg(
        pl.col("siblings").max(), pl.col("usual").median()
    )
    is_much = pl.col("excess_ns") > _LEAST_LINK_SHARE * pl.col("usual")
    return (
        _excess(table, "members", "family")
        .join(groups, "members")
        .select(
            "members",
            "axis",
            "siblings",
            "excess_ns",
            "noise_ns",
            is_slow=pl.col("is_slow") & is_much & (pl.col("siblings") > 0),
        )
        .sort("excess_ns", "members", descending=[True, False])
    )


def _excess(table: pl.DataFrame, key: str, family: str) -> pl.DataFrame:
    """Return the median excess of each rank or group over its steps, and whether it is slow.

    Noise is the variation of all of them around their own medians from step to step: a scaled median
    absolute deviation, so a few odd steps do not matter. An excess over a lower median is above 0 by
    chance; the typical excess of the family is subtracted.
    """
    deviation = pl.col("excess") - pl.col("excess").median().over(key)
    spread, length = table.select(
        spread=deviation.abs().median().fill_null(0.0),
        length=pl.col("step_ns").median().fill_null(0.0),
    ).row(0)
    excess, steps = pl.col("excess_ns"), pl.col("steps")
    typical = excess.sort().get((pl.len() - 1) // 2).over(family)
    return (
        table.group_by(key, family)
        .agg(excess_ns=pl.col("excess").median(), steps=pl.col("step").n_unique())
        .with_columns(excess_ns=excess - typical, noise_ns=_DEVIATION * spread / steps.sqrt())
        .with_columns(
            is_slow=(steps >= _LEAST_STEPS)
            & (excess > _SURE * pl.col("noise_ns"))
            & (excess > _LEAST_SHARE * length)
        )
    )
