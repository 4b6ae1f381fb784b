"""Ranks with longer own work than their peers, and groups with a slower link than their siblings.

Ranks are compared with ranks that do equal work (of the same pipeline stage); groups are compared
with groups that exchange as many bytes (of the same axis). The *excess* is the extra time that a
rank or group takes. A rank or group is slow if it has an excess in step after step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import polars as pl

LEAST_STEPS = 3
"""With fewer steps, no rank or group is slow: its excess may be chance."""

_LEAST_SHARE = 0.05
"""Share of a step. A rank or group with a smaller excess is not slow."""

_LEAST_LINK_SHARE = 1.0
"""Share of the usual transfer time of a group's siblings. A group with a smaller excess is not
slow."""

_SURE, _SURE_OF_FEW = 5.0, {3: 12.9, 4: 8.1, 5: 6.1}
"""An excess must be larger than this number of standard errors; with few steps, than more: Student's t of two runs
(`ppprof.analysis.diff.changes.sure`), times the factor by which so few deviations have too small a median (Croux and
Rousseeuw, "Time-efficient algorithms for two highly robust estimators of scale", 1992)."""

_DEVIATION = 2**0.5 * 1.2533 * 1.4826
"""Factor from the median absolute deviation to the standard error of a difference of two medians, for
normal data."""


def slow_ranks(own: pl.DataFrame, roles: Mapping[int, str]) -> pl.DataFrame:
    """Return how much longer each rank's own work takes than the work of ranks with its role.

    ::

        role     rank   own time of steps 0, 1, 2    excess    median
        stage 1  2      100  102  101                0  2  0    0
        stage 1  3      180  181  180                80 81 79  80     slow
        stage 1  6      100  100  101                0  0  0    0

    Args:
        own: one row per rank and step: rank, step, own_ns (the rank's own work: the step without
            exposed communication and bubble), step_ns.
        roles: the kind of work of each rank, keyed by rank: ``stage 0``. Ranks with the same role
            are compared; ranks without a role have the role "".

    Steps that no other rank of the role has recorded compare nothing.

    Returns:
        One row per rank, sorted by excess_ns, the largest first: rank, role, peers (number of other
        ranks with its role, in steps that it shares with one of them), excess_ns (float64, in a typical step), noise_ns (float64, the
        standard error of excess_ns) and is_slow. A rank is slow if it has peers and at least 3
        steps, and its excess is above 5 standard errors (more with fewer than 6 steps) and above 5%
        of a step.
    """
    role = pl.col("rank").replace_strict(dict(roles), default="", return_dtype=pl.String)
    with_role = own.with_columns(role=role)
    compared = with_role.filter(pl.col("rank").n_unique().over("role", "step") > 1)
    usual = pl.col("own_ns").sort().get((pl.len() - 1) // 2).over("role", "step")
    table = compared.with_columns(excess=(pl.col("own_ns") - usual).cast(pl.Float64))
    peers = compared.group_by("role").agg(peers=pl.col("rank").n_unique() - 1)
    excess = _excess(table, "rank", "role").join(peers, "role")
    return (
        with_role.select("rank", "role")
        .unique()
        .join(excess, ["rank", "role"], "left")
        .select(
            "rank",
            "role",
            pl.col("peers").fill_null(0).cast(pl.Int64),
            pl.col("excess_ns", "noise_ns").fill_null(0.0),
            pl.col("is_slow").fill_null(value=False),
        )
        .sort("excess_ns", "rank", descending=[True, False])
    )


def slow_groups(
    arrivals: pl.DataFrame, step_ns: Mapping[int, int], roles: Mapping[int, str]
) -> pl.DataFrame:
    """Return how much more time per step each group spends in transfers than its siblings.

    Siblings are groups of the same axis between ranks of the same roles. For each step, operation
    and size, the median transfer of a group is compared with the lower median over the group and
    its siblings. The difference times the number of calls is summed over operations and sizes that
    a sibling has in the step, too.
    Medians are used because a slow link slows every transfer, but a busy processor only some.

    Args:
        arrivals: the result of `ppprof.analysis.ranks.arrivals.arrivals`.
        step_ns: the time of each step, keyed by step. Collectives of other steps are ignored.
        roles: the kind of work of each rank, keyed by rank, as in `slow_ranks`.

    Returns:
        One row per group, sorted by excess_ns, the largest first: members (``0,4``, as in
        ``arrivals``), axis, siblings (number of siblings), excess_ns, noise_ns and is_slow. A group
        is slow under the conditions of `slow_ranks`, with siblings instead of peers, and only if it
        also takes more than twice the usual time: links differ more than ranks do.
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
    each = (
        arrivals.filter(pl.col("step").is_in(list(step_ns)))
        .with_columns(family=family)
        .group_by("members", "axis", *same)
        .agg(each_ns=typical, calls=pl.len())
        .with_columns(usual=usual, siblings=pl.len().over(same).cast(pl.Int64) - 1)
    )
    table = (
        each.filter(pl.col("siblings") > 0)
        .group_by("members", "family", "step")
        .agg(
            excess=((pl.col("each_ns") - pl.col("usual")) * pl.col("calls")).sum(),
            usual=(pl.col("usual") * pl.col("calls")).sum(),
        )
        .with_columns(step_ns=length)
    )
    usual_ns = table.group_by("members").agg(pl.col("usual").median())
    is_much = pl.col("excess_ns") > _LEAST_LINK_SHARE * pl.col("usual")
    return (
        each.group_by("members", "axis")
        .agg(pl.col("siblings").max())
        .join(_excess(table, "members", "family"), "members", "left")
        .join(usual_ns, "members", "left")
        .select(
            "members",
            "axis",
            "siblings",
            pl.col("excess_ns", "noise_ns").fill_null(0.0),
            is_slow=(pl.col("is_slow") & is_much).fill_null(value=False),
        )
        .sort("excess_ns", "members", descending=[True, False])
    )


def _excess(table: pl.DataFrame, key: str, family: str) -> pl.DataFrame:
    """Return the median excess of each rank or group over its steps, and whether it is slow.

    The noise is the variation from step to step: how far the excesses of all ranks or groups lie
    from the median of their own rank or group. It is a scaled median absolute deviation, so a few
    odd steps do not matter. An excess of 0 is left out: it is that of a rank or group compared with
    itself, which does not vary. Of two, that is half of all excesses. The typical excess of a family is subtracted, because an excess over a
    lower median is above 0 by chance.
    """
    deviation = pl.col("excess") - pl.col("excess").median().over(key)
    spread, length = table.select(
        spread=deviation.abs().filter(pl.col("excess") != 0).median().fill_null(0.0),
        length=pl.col("step_ns").median().fill_null(0.0),
    ).row(0)
    excess, steps = pl.col("excess_ns"), pl.col("steps")
    typical = excess.sort().get((pl.len() - 1) // 2).over(family)
    sure_from = steps.replace_strict(_SURE_OF_FEW, default=_SURE, return_dtype=pl.Float64)
    return (
        table.group_by(key, family)
        .agg(excess_ns=pl.col("excess").median(), steps=pl.col("step").n_unique())
        .with_columns(excess_ns=excess - typical, noise_ns=_DEVIATION * spread / steps.sqrt())
        .with_columns(
            is_slow=(steps >= LEAST_STEPS)
            & (excess > sure_from * pl.col("noise_ns"))
            & (excess > _LEAST_SHARE * length)
        )
    )
