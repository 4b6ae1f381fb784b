"""Rules about steps that take much longer than the others (evaluations, checkpoints, pauses), and about work that grows with each step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from ppprof.analysis.advice.beside import LONGER_TURNS
from ppprof.analysis.advice.evidence import Evidence, mean_of, without_slow
from ppprof.analysis.advice.finding import SEVERITIES, Fact, Finding
from ppprof.analysis.advice.growing_work import LATER_STEPS, LEAST_GROWING, LEAST_LATER
from ppprof.analysis.advice.own_lines import LEAST_BESIDE
from ppprof.analysis.advice.trust import warm_ups
from ppprof.analysis.advice.waiting import (
    ALL_OF_IT,
    MORE_WORK,
    loading,
    longest_waits,
    waits_again,
)
from ppprof.analysis.profile.step_basis import NOT_RECORDED, RECORDED
from ppprof.analysis.ranks.step_breakdown import PARTS
from ppprof.units import format_ranges

MANY_STEPS = 20
"""Least number of steps that were not recorded with which they are looked at instead of the recorded
ones: a window is often too short to hold what happens every ten steps."""

LONG_NS = 100_000_000
"""Slow steps that do not come evenly and exceed the others by less may be those of a busy machine."""

_BY_CHANCE = 0.01
"""If slow steps came at random, a window that has none would be as improbable: they are in one stretch."""

_WORK = ("computation", "exposed", "data_loading", "bubble")
"""Parts of a step in which no garbage is collected, but by chance."""
_COINCIDENCE = 0.03
"""If other steps, chosen by chance, would all be slow with this probability, it says nothing that those with a collection are."""

_NEARLY_ALL = 0.9
"""Share of the steps at a distance that are longer than others. The rest may be short by chance."""

EVEN = 3
"""Least number of slow steps that can be called even."""


def slow_steps(evidence: Evidence) -> list[Finding]:
    """Report steps that are `ppprof.analysis.profile.step_basis.SLOW`.

    The cost is what they add to the mean step, and the step that it is a part of is the mean of all
    steps::

        steps   10 10 10 10 110 10 10 10 10 110      typical 10, mean 30: a cost of 20 of 30

    Warm-ups, and steps that wait for data again and again, are reported by other rules. Steps that wait
    for a processor are left out.
    """
    steps, basis = longest_waits(loading(evidence)), evidence.basis
    if evidence.unrecorded["step"].n_unique() >= MANY_STEPS:
        times = evidence.unrecorded.select(
            pl.lit(0).alias("window"), "rank", "step", "step_ns", loading_ns="reader_cost_ns"
        )
        steps = longest_waits(times)
        basis = NOT_RECORDED if basis == RECORDED else basis
    elif not evidence.all_steps.is_empty():
        steps = steps.join(warm_ups(evidence), ["window", "step"], "anti")
    # Slow are the steps that the means of other findings leave out, so that no time counts twice.
    waiting = _waiting(evidence, steps)
    typical = without_slow(steps).join(waiting, "step", "anti")
    steps = steps.join(waiting, "step", "anti")
    slow = steps.join(typical, ["window", "step"], "anti")
    if slow.is_empty() or waits_again(slow, typical):
        return []
    typical_ns, mean_ns = mean_of(typical, "step_ns"), mean_of(steps, "step_ns")
    slow = slow.with_columns(excess_ns=pl.col("step_ns") - typical_ns).sort("window", "step")
    large = slow.filter(pl.col("excess_ns") >= slow["excess_ns"].max() / 2)  # type: ignore[operator]
    excess_ns = mean_of(slow, "step_ns") - typical_ns
    place = _place(evidence, excess_ns) | _seen(evidence, slow)
    starts, starts_every = _starts(evidence, slow, typical)
    has_cause = starts or place["wording"] in ("line", "gap", "seen") or place["part"] in _WORK
    collections = {} if has_cause else _collections(evidence, slow, steps)
    place |= starts | collections
    every = distance_of(large) or starts_every or _distance_of_line(evidence, place)
    most_every = None if every else period_of(slow, steps)
    is_even = every is not None or most_every is not None
    if basis != RECORDED and place["wording"] in (None, "part") and not is_even:
        place |= _lock(evidence, excess_ns)
    facts: dict[str, Fact] = {
        "num_slow": slow.height,
        "num_steps": steps.height,
        "slow_steps": ", ".join(map(str, slow["step"].head(10))) + ", ..." * (slow.height > 10),
        "every": every,
        "most_every": most_every,
        "slow_ns": mean_of(slow, "step_ns"),
        "typical_ns": typical_ns,
        **place,
    }
    rows = slow.sort("excess_ns", "step", descending=[True, False]).select(
        "window", "step", "step_ns", "excess_ns"
    )
    is_seen = place["wording"] == "seen"
    unsure = "likely" if starts or most_every or is_seen else "possible"
    confidence = "sure" if every is not None else unsure
    if collections:
        confidence = "possible"
    findings = evidence.time_finding(
        "slow-steps", mean_ns - typical_ns, confidence, facts, rows, (mean_ns, basis)
    )
    is_long = bool((large["excess_ns"] >= LONG_NS).any())
    worst = _worst(is_even=is_even, is_long=is_long, num=large.height)
    if collections:
        # Such a step may do other things, too; and of a single one, it is not known how often they come.
        worst = "minor" if place["num_begin"] == 1 else "moderate"
    if place["part"] == "computation" and evidence.first_name("line"):
        worst = "minor"  # where lines are known, one would be named for anything but training
    num_recorded = 0 if evidence.all_steps.is_empty() else evidence.all_steps["step"].n_unique()
    is_random = (1 - slow.height / steps.height) ** num_recorded >= _BY_CHANCE
    if basis != RECORDED and place["wording"] is None and not is_random:
        worst = "minor"  # longer samples at first, or a slower machine
    return [
        dataclasses.replace(finding, severity=max(worst, finding.severity, key=SEVERITIES.index))
        for finding in findings
    ]


def _starts(
    evidence: Evidence, slow: pl.DataFrame, typical: pl.DataFrame
) -> tuple[dict[str, Fact], int | None]:
    """Return that slow steps begin a pass over a DataLoader with workers, and the distance of these passes.

    ::

        stop the workers, start others | wait for the first batch | rest of the step
        ------------ starting_ns ----- | ---- reading ----------- | as usual

    Empty, and None, unless that has half of what slow steps take longer.
    """
    longest = pl.col("started_workers", "starting_ns", "reader_cost_ns").max()
    times = evidence.step_times.group_by("step").agg(longest).sort("step")
    usual_ns = mean_of(times.join(typical, "step", "semi"), "reader_cost_ns")
    reading_ns = (pl.col("reader_cost_ns").fill_null(0) - usual_ns).clip(0)
    times = times.with_columns(took_ns=pl.col("starting_ns") + reading_ns)
    begins = slow.join(times, "step").filter(
        (pl.col("took_ns") >= pl.col("excess_ns") / 2)
        & (pl.col("starting_ns") >= pl.col("took_ns") / 2)
    )
    if begins.height < 2 or begins["excess_ns"].sum() < slow["excess_ns"].sum() / 2:
        return {}, None
    num_workers: int = begins["started_workers"].max()  # type: ignore[assignment]
    kind = "workers" if num_workers else "resumed"
    facts: dict[str, Fact] = {
        **dict.fromkeys(("gap", "gap_ns", "part", "part_ns", "flops_factor", "inner", "on_ranks")),
        "num_begin": begins.height,
        "num_workers": num_workers or None,
        "start_ns": mean_of(begins, "took_ns"),
        "wording": kind,
        "remedy": f"code-{kind}",
    }
    least_ns = mean_of(begins, "starting_ns") / 4
    return facts, distance_of(times.filter(pl.col("starting_ns") >= max(1.0, least_ns)))


def _seen(evidence: Evidence, slow: pl.DataFrame) -> dict[str, Fact]:
    """Return the line that slow steps were seen in; empty unless it has half of what slow steps take longer.

    Of those from the first one on of which a line is known: before, there was nothing to compare with. Of all, it has
    a quarter. Each rank has looked at its own stack while a step took long (``slow_line`` of the step log). Ranks that wait for
    one that does something else are in a line of all steps, which has no name here, in communication, or, at a barrier, in
    another line than that one, which counts as that of the fewest ranks.
    """
    excess_ns = pl.min_horizontal("slow_line_ns", "excess_ns")
    is_waiting = 2 * pl.col("communication_ns").fill_null(0) >= pl.col("slow_line_ns")
    looks = (
        evidence.step_times.drop_nulls("slow_line")
        .filter(~is_waiting)
        .join(slow.select("step", "excess_ns"), "step")
        .with_columns(
            num_ranks=pl.len().over("step", "slow_line"),
            num_inside=pl.len().over("step", "slow_line", "slow_inner_line"),
        )
        .sort("num_ranks", "num_inside", "slow_line_ns", descending=[False, False, True])
    )
    of_steps = looks.unique("step", keep="first", maintain_order=True)
    lines = (
        of_steps.group_by("slow_line")
        .agg(
            pl.len().alias("num"), time_ns=pl.col("slow_line_ns").mean(), excess_ns=excess_ns.sum()
        )
        .sort("excess_ns", "slow_line", descending=[True, False])
    )
    if lines.is_empty():
        return {}
    line, num, time_ns, of_line_ns = lines.row(0)
    compared = slow.filter(pl.col("step") >= looks["step"].min())
    if of_line_ns < max(compared["excess_ns"].sum() / 2, slow["excess_ns"].sum() / 4):
        return {}
    own = looks.filter(slow_line=line)
    own_of_steps = of_steps.filter(slow_line=line)
    inner = own_of_steps.filter(pl.col("slow_inner_line") != line)["slow_inner_line"].value_counts()
    inner = inner.filter(2 * pl.col("count") > own_of_steps.height)
    ranks = own["rank"].unique()
    is_of_some = len(ranks) < evidence.step_times["rank"].n_unique()
    return {
        **dict.fromkeys(("part", "part_ns", "flops_factor")),
        "gap": line,
        "gap_ns": time_ns,
        "num_begin": num,
        "inner": inner["slow_inner_line"][0] if inner.height else None,
        "on_ranks": format_ranges("rank", ranks) if is_of_some else None,
        "wording": "seen",
        "remedy": "code-seen",
    }


def _collections(evidence: Evidence, slow: pl.DataFrame, steps: pl.DataFrame) -> dict[str, Fact]:
    """Return that Python collects garbage in slow steps; empty unless these have half of what slow ones take longer.

    The step log counts it in all steps: a window seldom has such a step. Where it collects in others as well, or
    where steps are often slow, that may be chance. How long it took is not known.
    """
    times = evidence.step_times.group_by("step").agg(pl.col("num_collections").max())
    numbers = times.filter(pl.col("num_collections") > 0).select("step")
    collecting = slow.join(numbers, "step", "semi")
    num_all, num = steps.join(numbers, "step", "semi").height, collecting.height
    is_chance = (slow.height / steps.height) ** num >= _COINCIDENCE
    if not num or num < num_all / 2 or is_chance:
        return {}
    if collecting["excess_ns"].sum() < slow["excess_ns"].sum() / 2:
        return {}
    return {
        **dict.fromkeys(("gap", "part", "part_ns", "flops_factor")),
        "num_begin": num,
        "gap_ns": mean_of(collecting, "excess_ns"),
        "wording": "collections",
        "remedy": "code-collection",
    }


def _waiting(evidence: Evidence, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the steps that are long because their thread waits for a processor, which others use."""
    wait_ns = pl.col("processor_wait_ns")
    waits = evidence.step_times.group_by("step").agg(wait_ns.max())
    excess_ns = pl.col("step_ns") - pl.col("step_ns").median()
    more_ns = wait_ns - wait_ns.median()
    return steps.join(waits, "step").filter((excess_ns > 0) & (more_ns >= ALL_OF_IT * excess_ns))


def distance_of(steps: pl.DataFrame) -> int | None:
    """Return the distance of steps that come evenly; None if they do not, or are few."""
    distances = np.unique(np.diff(np.unique(steps["step"].to_numpy())))
    return int(distances[0]) if steps.height >= EVEN and len(distances) == 1 else None


def period_of(slow: pl.DataFrame, steps: pl.DataFrame) -> int | None:
    """Return after how many steps slow ones come that have most of the excess, though others come between; None if they do not.

    ::

        steps   ....#....#.#..#....#       each fifth is slow, and another by chance: 5

    Nearly all steps at that distance are longer than nearly all others, and that so many would be by chance is
    improbable. They need not all be so long that they are slow, but most are by half as much.

    Args:
        slow: step and excess_ns.
        steps: step and step_ns of all steps, slow ones among them.
    """
    excess_ns = slow.group_by("step").agg(pl.col("excess_ns").max()).sort("step")
    number, excess = excess_ns["step"].to_numpy(), excess_ns["excess_ns"].to_numpy()
    lengths = steps.drop_nulls("step_ns").group_by("step").agg(pl.col("step_ns").max())
    every_step, step_ns = lengths["step"].to_numpy(), lengths["step_ns"].to_numpy()
    distances = np.unique(np.concatenate([np.diff(number), number[2:] - number[:-2]]))
    # All distances at which so many steps lie, from any first step.
    num_tried = len(every_step) ** 2 / (2 * EVEN**2)
    best_share, best = 0.0, None
    for distance in distances[distances > 1].tolist():
        shares = np.bincount(number % distance, excess) / excess.sum()
        first, share = int(shares.argmax()), float(shares.max())
        is_at = every_step % distance == first
        here, others = step_ns[is_at], step_ns[~is_at]
        if len(here) < EVEN or not len(others) or share < ALL_OF_IT or share <= best_share:
            continue
        least = np.quantile(here, 1 - _NEARLY_ALL, method="lower")
        probability = ((others >= least).sum() + 1) / (len(others) + 1)
        usual_ns = np.median(here) - np.median(others)
        is_chance = num_tried * probability ** len(here) >= _BY_CHANCE
        if not is_chance and usual_ns >= excess[number % distance == first].mean() / 2:
            best_share, best = share, distance
    return best


def _distance_of_line(evidence: Evidence, place: Mapping[str, Fact]) -> int | None:
    """Return the distance of the recorded steps that take long in the line of slow steps.

    Noise makes other steps slow, too, but not in this line.
    """
    if place["wording"] not in ("line", "gap"):
        return None
    kinds = ("beside", "statement") if place["wording"] == "line" else ("gap",)
    is_kind = pl.col("what").is_in(kinds) & (pl.col("name") == place["gap"])
    parts = [own.names.filter(is_kind) for own in evidence.indicators.values()]
    steps = pl.concat(parts).group_by("step").agg(pl.col("time_ns").max())
    large = steps.filter(pl.col("time_ns") >= steps["time_ns"].max() / 4)  # type: ignore[operator]
    numbers = np.sort(large["step"].to_numpy())
    distances = np.diff(numbers)
    if len(numbers) < EVEN or (distances % distances.min()).any():
        return None
    # Samples may miss the line in a step, but not in most of them.
    distance = int(distances.min())
    num_expected = (numbers[-1] - numbers[0]) // distance + 1
    return distance if distance > 1 and num_expected <= 2 * len(numbers) else None


def _worst(*, is_even: bool, is_long: bool, num: int) -> str:
    """Return the worst severity of slow steps, since chance explains some of them."""
    if is_even:
        return "major"
    return ("major" if num > 1 else "moderate") if is_long else "minor"


def _place(evidence: Evidence, reported_ns: float) -> dict[str, Fact]:
    """Return where the recorded slow steps spend their excess: a place, else a part of the step.

    Their own excess: that of the reported steps, ``reported_ns``, may be larger or smaller if these were
    not recorded. Garbage collections are the place if they explain half of both.
    """
    place: dict[str, Fact] = dict.fromkeys(
        (
            *("gap", "gap_ns", "part", "part_ns", "flops_factor", "wording"),
            *("num_begin", "num_workers", "start_ns"),  # of `_starts`
            *("inner", "on_ranks"),  # of `_seen`
        )
    )
    slow = evidence.all_steps
    if not slow.is_empty():
        slow = slow.join(evidence.typical_lengths, ["window", "step"], "anti")
        slow = slow.join(warm_ups(evidence), ["window", "step"], "anti")
        slow = slow.join(evidence.processor_waits, ["rank", "step"], "left")
        typical_ns = mean_of(evidence.typical_lengths, "step_ns")
        may_wait = pl.col("wait_ns") >= ALL_OF_IT * (pl.col("step_ns") - typical_ns)
        slow = slow.filter(may_wait.fill_null(value=False).not_())
    if slow.is_empty():
        return place
    lengths = slow.group_by("window", "step").agg(pl.col("step_ns").max())
    excess_ns = mean_of(lengths, "step_ns") - mean_of(evidence.typical_lengths, "step_ns")
    collections = _excess(evidence, slow, "collection")
    collected_ns = float(collections["time_ns"].sum()) if collections.height else 0.0
    if collected_ns > max(excess_ns, reported_ns) / 2:
        return {
            **place,
            "gap_ns": collected_ns,
            "wording": "collection",
            "remedy": "code-collection",
        }
    for kind, wording in (("beside", "line"), ("statement", "line"), ("gap", "gap")):
        rows = _excess(evidence, slow, kind)
        if rows.height and rows["time_ns"][0] >= excess_ns / 2:
            name, gap_ns = rows.select("name", "time_ns").row(0)
            return {**place, "gap": name, "gap_ns": gap_ns, "wording": wording}
    excesses = {part: _mean_part(slow, part) - _mean_part(evidence.steps, part) for part in PARTS}
    part = max(excesses, key=lambda name: excesses[name])
    if excesses[part] < excess_ns / 2:
        return place
    place |= {"part": part, "part_ns": excesses[part], "wording": "part"}
    ratio = _flops_factor(evidence, slow)
    times = 1 + excess_ns / max(1.0, mean_of(evidence.typical_lengths, "step_ns"))
    if part == "computation" and ratio is not None and ratio - 1 >= ALL_OF_IT * (times - 1):
        place |= {"flops_factor": round(ratio, 2), "remedy": "code-flops"}
    return place


def _flops_factor(evidence: Evidence, slow: pl.DataFrame) -> float | None:
    """Return how many times the FLOPs of typical steps slow ones have in their forward passes; None if unknown.

    Of the rank with the most in a step, as the longest rank makes a step long. None if slow steps have more operators:
    then they do something else.
    """
    steps = slow["step"].unique()
    of_slow = [own.select_steps(steps).steps for own in evidence.indicators.values()]
    usual = [own.steps for own in evidence.typical_indicators.values()]
    if not of_slow or not usual:
        return None
    (flops, operators), (usual_flops, usual_operators) = map(_most_work, (of_slow, usual))
    has_other_work = operators > (1 + MORE_WORK) * usual_operators
    return flops / usual_flops if flops and usual_flops and not has_other_work else None


def _most_work(tables: Sequence[pl.DataFrame]) -> tuple[float, float]:
    """Return the FLOPs and the number of operators of the rank with the most, means over steps; 0 if unknown."""
    columns = pl.col("forward_flops", "num_operators")
    means = pl.concat(tables).group_by("step").agg(columns.max()).select(columns.mean())
    flops, operators = means.fill_null(0).row(0)
    return flops, operators


def _lock(evidence: Evidence, excess_ns: float) -> dict[str, Fact]:
    """Return the line of another thread for which the training stands still in windows; empty without one.

    There, threads take turns more often: outside, the same line costs up to `LONGER_TURNS` times as much, and
    not in each step. It does not explain steps that are slow by more.
    """
    lines = evidence.names("lock")
    held_ns = float(lines["time_ns"].to_numpy().sum())
    if evidence.is_disturbed or held_ns < LEAST_BESIDE * evidence.step_ns or not held_ns:
        return {}
    if excess_ns > LONGER_TURNS * held_ns:
        return {}
    lock: dict[str, Fact] = {"gap": lines["name"][0], "gap_ns": held_ns, "wording": "lock"}
    return {**lock, "part": None, "part_ns": None, "remedy": "code-lock"}


def _mean_part(steps: pl.DataFrame, part: str) -> float:
    columns = [name for name in steps.columns if name.startswith(part) and name.endswith("_ns")]
    return float(sum(mean_of(steps, name) for name in columns))


def _excess(evidence: Evidence, slow: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Return the names of a kind in slow steps: name, time_ns above that of other steps."""
    steps, num = slow["step"].unique(), max(1, slow.height)
    indicators = {rank: own.select_steps(steps) for rank, own in evidence.indicators.items()}
    in_slow = evidence.named(indicators, kind).group_by("name").agg(pl.col("time_ns").sum() / num)
    others = evidence.names(kind).select("name", usual_ns="time_ns")
    return (
        in_slow.join(others, "name", "left")
        .with_columns(time_ns=pl.col("time_ns") - pl.col("usual_ns").fill_null(0))
        .sort("time_ns", "name", descending=[True, False])
    )


def growing_work(evidence: Evidence) -> list[Finding]:
    """Report work that grows step after step, by what it would be `LATER_STEPS` steps later."""
    of_ranks = {rank: own.growing for rank, own in sorted(evidence.indicators.items())}
    sums = {rank: float(each["more_ns"].sum()) for rank, each in of_ranks.items()}
    rank = max(sums, key=lambda each: (sums[each], -each), default=None)
    if rank is None or not sums[rank] or LATER_STEPS * sums[rank] < LEAST_LATER * evidence.step_ns:
        return []
    rows = of_ranks[rank]
    first, last = _ends(evidence)
    facts: dict[str, Fact] = {
        "rank": rank,
        "name": rows["name"][0],
        "line": rows["line"][0],
        "more_elements": rows["more_elements"][0],
        "now_ns": float(rows["time_ns"].sum()),
        "more_ns": sums[rank],
        "later_steps": LATER_STEPS,
        "later_ns": float(rows["time_ns"].sum()) + LATER_STEPS * sums[rank],
        "first_ns": first,
        "last_ns": last,
    }
    is_large = LATER_STEPS * sums[rank] >= evidence.step_ns
    shown = rows.select("name", "elements", "more_elements", "time_ns", "more_ns")
    severity = "major" if is_large else "moderate"
    return evidence.warning("growing-work", severity, facts, shown, confidence="likely")


def _ends(evidence: Evidence) -> tuple[float | None, float | None]:
    """Return the median lengths of the first and the last quarter of the steps that were not recorded; None unless they grow.

    They do, if each quarter is longer than the one before.
    """
    steps = evidence.unrecorded.group_by("step").agg(pl.col("step_ns").max()).sort("step")
    parts = np.array_split(steps["step_ns"].drop_nulls().to_numpy(), 4)
    if len(parts[-1]) < LEAST_GROWING:
        return None, None
    medians = [float(np.median(part)) for part in parts]
    return (medians[0], medians[-1]) if (np.diff(medians) > 0).all() else (None, None)
