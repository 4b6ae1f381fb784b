"""Rules about ranks that wait: for batches, for each other, and for functions on other processes."""

from __future__ import annotations

import math
import re

import numpy as np
import polars as pl

from ppprof.analysis.advice.evidence import Evidence, mean_of, without_slow
from ppprof.analysis.advice.finding import MODERATE_RATIO, Fact, Finding
from ppprof.analysis.advice.remote_waits import UNKNOWN, reason_of_waits
from ppprof.analysis.advice.slow_reason import reason_of
from ppprof.analysis.profile.step_basis import NOT_RECORDED, RECORDED, is_enough
from ppprof.analysis.ranks.unrecorded import roles_of_ranks, unrecorded_ranks
from ppprof.analysis.ranks.what_if import WHAT_IF
from ppprof.remote_names import ends_of

MOST_WORKERS = 16
"""Maximum number of workers to propose per rank: a machine with 8 devices rarely has more than 16
cores per device."""

DIFFERENT = 0.25
"""Difference between two waits, as a share of the longer one, above which they are not the same."""

AGAIN = 3
"""Least number of slow steps that wait for data from which such waits are part of the usual."""

_KEY = "Data.Train.loader.num_workers"
_MOSTLY = 0.5
"""If lines that the loader calls in the training's thread take this share of the wait, workers do not shorten it."""
PASSING_NS = 400_000
"""What a worker process does not make shorter. With small batches, Paddle 3.3 waits 0.3 to 0.6 ms for one that a
worker has ready, of 2 kB as of 128 kB."""
_WORKERS = re.compile("MultiProcess")
"""In the names of data loaders that have workers: ``_MultiProcessingDataLoaderIter`` of torch,
``_DataLoaderIterMultiProcess`` of Paddle."""


def loading(evidence: Evidence) -> pl.DataFrame:
    """Return the time of data loading: rank, window, step, loading_ns and step_ns.

    Without traces, the values are those of the run's step times, with window 0. loading_ns is null if
    it is unknown, since the trace lacks the events of a device that may have worked meanwhile.
    """
    if evidence.all_steps.is_empty():
        return evidence.sound_times.select(
            "rank",
            pl.lit(0).alias("window"),
            "step",
            loading_ns="reader_cost_ns",
            step_ns="batch_cost_ns",
        )
    return evidence.all_steps.select(
        "rank", "window", "step", "step_ns", loading_ns="data_loading_ns"
    )


def longest_waits(table: pl.DataFrame) -> pl.DataFrame:
    """Return the longest loading_ns and step_ns of any rank: window, step, loading_ns and step_ns."""
    longest = table.group_by("window", "step").agg(pl.col("loading_ns", "step_ns").max())
    return longest.sort("window", "step")


def waits_again(slow: pl.DataFrame, typical: pl.DataFrame) -> bool:
    """Return whether at least `AGAIN` slow steps are slow because they wait for data.

    Then slow steps are no exceptions. Three workers that begin at the same time deliver at the same
    time: every third step waits::

        workers   1 1 1 1 1 | 2 2 2 2 2 | 3          each number: three batches
        steps     . . . . . 1 1 1 . . . 2 2 2        . waits for data
    """
    excess_ns = pl.col("step_ns") - mean_of(typical, "step_ns")
    return slow.filter(pl.col("loading_ns") >= ALL_OF_IT * excess_ns).height >= AGAIN


def _counted(table: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a table of `loading` that count: of typical steps, or all if `waits_again`."""
    longest = longest_waits(table)
    typical = without_slow(longest)
    keys = ["window", "step"]
    if waits_again(longest.join(typical, keys, "anti"), typical):
        return table
    return table.join(typical, keys, "semi")


def exposed_reading(evidence: Evidence) -> pl.DataFrame:
    """Return the data loading that a device did not hide, of steps that were not recorded.

    A host that runs ahead reads its next batch while the device works::

        host     L|launch L|launch L|launch
        device            #########_#########       1 of 3 L is exposed: data_loading of a trace

    Outside windows, only the reader cost L is known. It counts by the exposed share of the recorded
    steps of its rank.

    Returns:
        rank, window (0), step, step_ns and loading_ns. No rows if the share is unknown for any rank
        whose trace has device events. A rank whose data loading is unknown in its trace has no rows.
    """
    read = evidence.step_times.drop_nulls("window").select(
        "rank", "window", "step", "reader_cost_ns"
    )
    waits, reads = pl.col("data_loading_ns").sum(), pl.col("reader_cost_ns").sum()
    recorded = evidence.steps.drop_nulls("data_loading_ns")
    shares = (
        recorded.join(read, ["rank", "window", "step"], "left")
        .group_by("rank")
        .agg(
            on_device=pl.col("host_launch_ns").count() > 0,
            share=pl.when(reads > 0).then((waits / reads).clip(0, 1)),
        )
        .select("rank", share=pl.when("on_device").then("share").otherwise(1.0))
    )
    known = evidence.unrecorded.drop_nulls("reader_cost_ns").join(shares, on="rank")
    if known["share"].has_nulls():
        known = known.clear()
    return known.select(
        "rank",
        "step",
        "step_ns",
        window=pl.lit(0, pl.Int64),
        loading_ns=(pl.col("reader_cost_ns") * pl.col("share")).round().cast(pl.Int64),
    )


def input_bound(evidence: Evidence) -> list[Finding]:
    """Report training threads that wait for batches.

    The cost is the longest wait of any rank, mean over typical steps; over all steps if slow steps
    wait for data again and again::

        rank 0   LLLL########      costs 4 per step: the longest wait delays all ranks
        rank 1   L####___####

    Recording can make data slower, as a loader's process shares the cores with it. So the waits are
    those of steps that were not recorded, if their reader cost is known for enough of them. If they
    differ from the recorded ones by more than `DIFFERENT`, the finding is ``likely``. Of a run on a
    device without traces, nothing says how much the device hides: the finding is ``possible``.
    """
    recorded = _counted(loading(evidence).drop_nulls("loading_ns"))
    table, basis = recorded, evidence.basis
    if not evidence.steps.is_empty():
        known = _counted(exposed_reading(evidence))
        if is_enough(known):
            table, basis = known, NOT_RECORDED
    if table.is_empty():
        return []
    cost_ns, step_ns = mean_of(longest_waits(table), "loading_ns"), mean_of(table, "step_ns")
    recorded_ns = mean_of(longest_waits(recorded), "loading_ns")
    differs = abs(cost_ns - recorded_ns) > DIFFERENT * max(cost_ns, recorded_ns)
    ranks = (
        table.group_by("rank")
        .agg(pl.col("loading_ns", "step_ns").mean())
        .with_columns(loading_ratio=pl.col("loading_ns") / pl.col("step_ns"))
        .sort("loading_ns", "rank", descending=[True, False])
    )
    slowest = ranks.row(0, named=True)
    present = evidence.number(_KEY)
    facts = {
        "rank": slowest["rank"],
        "loading_ns": slowest["loading_ns"],
        "loading_ratio": slowest["loading_ratio"],
        "rank_step_ns": slowest["step_ns"],
        "longest_ns": cost_ns if ranks.height > 1 else None,
        "recorded_loading_ns": recorded_ns,
        "line": evidence.first_name("loading"),
        "num_workers": present,
        "proposed_workers": proposed_workers(present or 0, step_ns, cost_ns),
        "remedy": evidence.remedy("Data"),
    }
    loader = evidence.first_name("loader")
    has_workers = loader is not None and _WORKERS.search(loader) is not None
    if present is None and has_workers:
        facts["remedy"] = "workers"
    # A device hides reading that workers would do: what counts is all of it.
    reading_ns = float(evidence.names("loader")["time_ns"].sum())
    usual = evidence.unrecorded["reader_cost_ns"].drop_nulls().to_numpy()
    if len(usual):  # the median: at the begin of an epoch, reading takes longer
        reading_ns = float(np.median(usual))
    is_cheap = max(reading_ns, cost_ns) < PASSING_NS
    if not (present or has_workers) and is_cheap and facts["remedy"] != "torch":
        facts |= {"remedy": "cheap", "proposed_workers": None}
    if present is not None and present >= MOST_WORKERS:
        facts |= {"remedy": "enough", "proposed_workers": None}
    own, whole_ns = evidence.names("sampler"), recorded_ns
    if facts["line"] is None and own.is_empty():
        # No recorded step waits: recording slows the training, and not its readers.
        reading, own = evidence.names("reading ahead"), evidence.names("sampler ahead")
        facts["line"] = evidence.first_name("reading ahead")
        whole_ns = float(reading["time_ns"].sum())
    elif not (present or has_workers):  # the thread that runs the sampler loads the samples, too
        whole_ns = max(recorded_ns, float(evidence.names("loading")["time_ns"].sum()))
    if own["time_ns"].sum() > _MOSTLY * whole_ns:
        facts |= {"line": own["name"][0], "proposed_workers": None}
        facts |= {"remedy": "sampler", "wording": "sampler"}
    confidence = "likely" if differs else "sure"
    if evidence.steps.is_empty() and evidence.is_on_device:
        confidence = "possible"
    step = (step_ns, basis)
    # Replays are of typical steps, and steps that wait for a burst of batches are slow ones.
    is_typical = table.join(evidence.typical_lengths, ["window", "step"], "anti").is_empty()
    changes = ["data loading: 0"] if basis == RECORDED and is_typical else []
    return evidence.time_finding("input-bound", cost_ns, confidence, facts, ranks, step, changes)


def proposed_workers(present: int, step_ns: float, loading_ns: float) -> int:
    """Return the number of workers that load batches as fast as the rank can train on them.

    A step that waits for data takes as long as the present workers need to load a batch:

        1 worker    LLLLLLLLL           a batch in 9
        step        wwwwww###           6 of waiting, 3 of training: 3 workers load as fast

    >>> proposed_workers(1, 9, 6), proposed_workers(0, 100, 48), proposed_workers(4, 10, 1)
    (3, 2, 5)

    Args:
        present: the present number of workers; 0 means that the process loads batches itself.
        step_ns: the time of a step.
        loading_ns: the part of ``step_ns`` in which the step waits for data.

    Returns:
        At least ``present`` + 1, and at most `MOST_WORKERS` unless ``present`` is that many
        already.
    """
    training_ns = max(step_ns - loading_ns, step_ns / MOST_WORKERS, 1.0)
    needed = math.ceil(max(present, 1) * step_ns / training_ns)
    return min(max(present + 1, needed), max(MOST_WORKERS, present + 1))


ALL_OF_IT = 0.5
"""If the wait for data is at least this share of a slow rank's excess, it is the cause."""

GOOD_BUBBLE_RATIO = 0.1
"""Share of a step that is bubble. Below it, more micro-batches gain little and make kernels
smaller."""

_MOST_SAMPLES = 10**9
"""A config with more samples in a step is broken, and its number has too many divisors to try."""


def slow_rank(evidence: Evidence) -> list[Finding]:
    """Report ranks whose own work takes longer than the work of their peers, step after step.

    A rank whose excess is mostly wait for data is not reported: it is input-bound. The cost is the
    excess of the slowest rank alone, since slow ranks delay the job at the same time. It is at most
    the gain of a replay in which the slowest rank's worker takes its usual time.
    """
    if evidence.typical is None:
        return _slow_rank_of_steps(evidence)
    waits = loading(evidence).drop_nulls("loading_ns")
    waits = waits.group_by("rank").agg(pl.col("loading_ns").median())
    usual = pl.col("loading_ns").quantile(0.5, "lower")
    waits = waits.with_columns(loading_ns=pl.col("loading_ns") - usual)
    slow = evidence.typical.slow_ranks.filter("is_slow").join(waits, on="rank", how="left")
    slow = slow.filter(pl.col("loading_ns").fill_null(0) < ALL_OF_IT * pl.col("excess_ns"))
    slow = slow.sort("excess_ns", descending=True)
    if slow.is_empty():
        return []
    first = slow.row(0, named=True)
    step = evidence.steps.filter(pl.col("rank") == first["rank"]).row(0, named=True)
    means = evidence.rank_means.filter(pl.col("rank") == first["rank"]).row(0, named=True)
    host_bound_ns = means.get("host_bound_ns")
    hosts = evidence.steps["host"].drop_nulls().n_unique()
    peers = evidence.typical.slow_ranks.filter(
        (pl.col("role") == first["role"]) & (pl.col("rank") != first["rank"])
    )["rank"]
    own_operators, peer_operators = _of_peers(evidence, "num_operators", first["rank"], peers)
    own_flops, peer_flops = _of_peers(evidence, "forward_flops", first["rank"], peers)
    times = own_flops / peer_flops if peer_flops else 1.0
    usual_ns = max(1.0, evidence.step_ns - first["excess_ns"])
    explains = times - 1 >= max(MORE_WORK, ALL_OF_IT * first["excess_ns"] / usual_ns)
    kind = "-hosts" if hosts > 1 and not evidence.is_disturbed else ""
    if own_operators > (1 + MORE_WORK) * peer_operators > 0:
        kind = "-work"
    elif explains:
        kind = "-flops"
    found, reasons = reason_of(evidence, first["rank"], peers.to_list(), first["excess_ns"])
    in_python = found["reason_kind"] in ("collection", "line", "gap")
    if in_python and kind not in ("-work", "-flops"):
        kind = "-reason"
    facts = {
        **found,
        "rank": first["rank"],
        "host": step["host"],
        "peers": first["peers"],
        "role": first["role"],
        "excess_ns": first["excess_ns"],
        "noise_ns": first["noise_ns"],
        "num_slow": slow.height,
        "host_bound_ns": host_bound_ns,
        "num_operators": own_operators,
        "peer_operators": peer_operators,
        "flops_factor": round(times, 2) if explains else None,
        "wording": None if host_bound_ns is None else "device",
        "remedy": f"code{kind}",
    }
    cost_ns = min(first["excess_ns"], _saved(evidence, first["rank"]) or first["excess_ns"])
    rows = slow.select("rank", "role", "peers", "excess_ns", "noise_ns")
    if slow.height == 1 and in_python:
        rows = reasons
    # On one host, ranks disturb each other: which of them is slow may be chance.
    confidence = "sure" if kind == "-hosts" else "possible" if evidence.is_disturbed else "likely"
    changes = [f"rank {rank}: as usual" for rank in slow["rank"]]
    return evidence.time_finding("slow-rank", cost_ns, confidence, facts, rows, changes=changes)


def _of_peers(evidence: Evidence, column: str, rank: int, peers: pl.Series) -> tuple[float, float]:
    """Return a column of `Evidence.indicator_means` of a rank, and the median of its peers; 0 if unknown.

    That of peers is if it is known for fewer than half of them.
    """
    means = evidence.indicator_means.filter(pl.col(column) > 0).select("rank", column)
    values = dict(means.iter_rows())
    known = [values[peer] for peer in peers if peer in values]
    is_known = known and 2 * len(known) >= len(peers)
    return values.get(rank, 0.0), float(np.median(known)) if is_known else 0.0


def _slow_rank_of_steps(evidence: Evidence) -> list[Finding]:
    """Report slow ranks from step times alone, where these hold the time of communication."""
    times = evidence.step_times
    roles = roles_of_ranks(evidence.topology, times["rank"].unique())
    width = pl.col("excess_high_ns") - pl.col("excess_low_ns")
    table = unrecorded_ranks(times, roles).with_columns(noise_ns=width / (2 * 1.96))
    slow = table.filter("is_slow")
    if slow.is_empty():
        return []
    first = slow.row(0, named=True)
    peers = [rank for rank in times["rank"].unique() if roles.get(rank, "") == first["role"]]
    facts: dict[str, Fact] = {
        **{name: first[name] for name in ("rank", "role", "excess_ns", "noise_ns")},
        "peers": len(peers) - 1,
        "num_slow": slow.height,
    }
    rows = slow.with_columns(peers=pl.lit(len(peers) - 1)).select(
        "rank", "role", "peers", "excess_ns", "noise_ns"
    )
    confidence = "possible" if evidence.is_disturbed else "likely"
    return evidence.time_finding("slow-rank", first["excess_ns"], confidence, facts, rows)


def stage_imbalance(evidence: Evidence) -> list[Finding]:
    """Report pipeline stages of which some have more work than others.

    The cost is what a replay saves in which every stage takes as long as the mean of all
    (`ppprof.analysis.ranks.what_if`, "balanced"). Without a trusted replay, such as of a schedule of the training's own, it
    is what the busiest stage computes above the mean of all, at most what the least busy one waits::

        stage 0   FFBB____FFBB____      waits for stage 1
        stage 1   FFFFBBBBFFFFBBBB
    """
    busy = _busy(evidence)
    if busy.is_empty() and evidence.framework == "paddle" and evidence.degree("pp") > 1:
        # A schedule of the training's own has no numbered passes: it computes in them, and little beside them.
        busy = evidence.steps.select("rank", "step", busy_ns="computation_ns")
    if busy.is_empty():
        return []
    steps = evidence.steps.select("rank", "step", "pp", "step_ns", "bubble_ns")
    rows = (
        busy.join(steps, ["rank", "step"])
        .group_by("pp")
        .agg(pl.col("step_ns", "busy_ns", "bubble_ns").mean())
        .sort("busy_ns", "pp", descending=[True, False])
    )
    if rows.height < 2:
        return []
    most, least = rows.row(0, named=True), rows.row(-1, named=True)
    facts: dict[str, Fact] = {
        "stage": most["pp"],
        "busy_ns": most["busy_ns"],
        "least_stage": least["pp"],
        "least_busy_ns": least["busy_ns"],
        "bubble_ns": least["bubble_ns"],
    }
    table = _trusted_what_if(evidence)
    balanced = table.filter(fixed="balanced")
    if balanced.is_empty():
        more_ns = most["busy_ns"] - mean_of(rows, "busy_ns")
        cost_ns, confidence = min(more_ns, least["bubble_ns"] or 0.0), "possible"
        if cost_ns < MODERATE_RATIO * evidence.step_ns:
            return []
    else:
        cost_ns = float(table.filter(fixed="nothing")["step_ns"][0] - balanced["step_ns"][0])
        confidence = "likely"
    return evidence.time_finding("stage-imbalance", cost_ns, confidence, facts, rows)


MORE_WORK = 0.05
"""Share of a peer's operators, or FLOPs. A rank that has more of them than that above its peers has more work."""


def _saved(evidence: Evidence, rank: int) -> float | None:
    """Return the gain per step of a replay in which a rank's worker is not slow; None without a gain or a trusted replay."""
    table = _trusted_what_if(evidence)
    if table.is_empty():
        return None
    workers = table.filter(pl.col("fixed") == "worker")
    own = workers.filter(pl.col("ranks").str.split(",").list.contains(str(rank)))
    if own.is_empty():
        return None
    saved = float(table.filter(fixed="nothing")["step_ns"][0] - own["step_ns"][0])
    return saved if saved > 0 else None


def _trusted_what_if(evidence: Evidence) -> pl.DataFrame:
    """Return the replays of the run; no rows without, or if they differ from it by more than 10%."""
    table = pl.DataFrame(schema=WHAT_IF) if evidence.typical is None else evidence.typical.what_if
    if table.is_empty() or table.filter(fixed="nothing")["error_ratio"][0] > 0.1:
        return table.clear()
    return table


def remote_wait(evidence: Evidence) -> list[Finding]:
    """Report training threads that do nothing while functions run on other processes.

    The cost is the longest wait of any rank::

        rank 0   ##____####     ##_______###       waits 4, and 7
        worker     ====           =======
    """
    means = evidence.indicator_means.select("rank", "remote_ns").drop_nulls()
    calls = evidence.names("remote")
    if means.is_empty() or calls.is_empty():
        return []
    slowest = means.sort("remote_ns", "rank", descending=[True, False]).row(0, named=True)
    own = evidence.typical_indicators[slowest["rank"]]
    call = str(calls["name"][0])
    wait_ns = slowest["remote_ns"]
    if not wait_ns:
        return []
    counts = own.remote_waits.filter("is_awaited").group_by("step").agg(num_calls=pl.len())
    steps = own.steps.join(counts, "step", "left").with_columns(pl.col("num_calls").fill_null(0))
    num_calls = pl.max_horizontal("num_calls", "num_remote_waits")
    # Beyond the most calls that a window records, waits are known without their calls.
    whole = steps.filter(pl.col("num_calls") == num_calls)["step"]
    waits = own.remote_waits.filter(pl.col("step").is_in(whole.implode()))
    facts: dict[str, Fact] = {
        "rank": slowest["rank"],
        "remote_ns": wait_ns,
        "num_calls": float(steps.select(num_calls.mean()).item()),
        "call": call,
        "worker": ends_of(call)[1],
        **UNKNOWN,
        **reason_of_waits(waits, max(1, len(whole)), wait_ns),
    }
    # Workers that several processes call are busy with recording them all: that is in the waits.
    recording_ns = own.remote_waits.filter("is_awaited")["recording_ns"].sum()
    is_sound = recording_ns <= wait_ns * own.steps.height
    how = ("likely", "major") if is_sound else ("possible", "minor")
    return evidence.time_finding("remote-wait", wait_ns, how[0], facts, calls, at_most=how[1])


def slow_link(evidence: Evidence) -> list[Finding]:
    """Report groups whose transfers take longer than the transfers of their siblings.

    Siblings are groups of the same axis. The cost is the excess of the slowest group.
    """
    if evidence.typical is None:
        return []
    slow = evidence.typical.slow_groups.filter("is_slow").sort("excess_ns", descending=True)
    if slow.is_empty():
        return []
    first = slow.row(0, named=True)
    ranks = [int(rank) for rank in re.split("[,>]", first["members"])]
    on = evidence.steps.filter(pl.col("rank").is_in(ranks))["host"].drop_nulls().unique().sort()
    facts = {
        "members": first["members"],
        "axis": first["axis"],
        "hosts": ", ".join(on) or None,
        "siblings": first["siblings"],
        "excess_ns": first["excess_ns"],
        "noise_ns": first["noise_ns"],
    }
    rows = slow.select("members", "axis", "siblings", "excess_ns", "noise_ns")
    changes = [
        f"link {members}: {max(0.0, 1 - excess_ns / transfer_ns):.4f}x"
        for members, excess_ns, transfer_ns in slow.join(evidence.typical.groups, "members")
        .select("members", "excess_ns", "transfer_ns")
        .iter_rows()
    ]
    return evidence.time_finding(
        "slow-link", first["excess_ns"], "sure", facts, rows, changes=changes
    )


def pipeline_bubble(evidence: Evidence) -> list[Finding]:
    """Report stages that wait because the schedule has too few micro-batches.

    With p stages, m micro-batches and v chunks, the share (p - 1) / (v m + p - 1) of a step is
    bubble. If the samples are split into m' micro-batches, m / m' of it remains. The rest of the
    measured bubble has other causes, unequal stages or late ranks, which more micro-batches leave::

        bubble       ##########      won by m' micro-batches, left by them, of other causes
        schedule     #######
        cost         #####
    """
    scheduled_ns = scheduled_bubble(evidence)
    if scheduled_ns is None:
        return []
    stages, batches, chunks = (
        evidence.degree("pp"),
        num_micro_batches(evidence),
        num_chunks(evidence),
    )
    proposed = proposed_micro_batches(stages, batches, chunks, samples(evidence))
    sizes = (samples(evidence), evidence.number("Global.micro_batch_size"))
    remedy = evidence.remedy("Global") if None not in sizes else "code"
    replicas = evidence.degree("dp") * evidence.degree("sharding")
    if proposed == batches:  # the samples cannot be split further
        proposed = proposed_micro_batches(stages, batches, chunks, None)
        remedy = f"{evidence.remedy('Global', 'Model')}-more-samples"
    bubble_ns, left_ns = mean_of(evidence.steps, "bubble_ns"), scheduled_ns * batches / proposed
    facts = {
        "bubble_ns": bubble_ns,
        "bubble_ratio": bubble_ns / evidence.step_ns,
        "scheduled_ns": scheduled_ns,
        "other_ns": bubble_ns - scheduled_ns if scheduled_ns < bubble_ns else None,
        "proposed_scheduled_ns": left_ns,
        "stages": stages,
        "micro_batches": batches,
        "proposed_micro_batches": proposed,
        "chunks": chunks,
        "replicas": replicas if replicas > 1 else None,
        "local_batch_size": samples(evidence),
        "micro_batch_size": evidence.number("Global.micro_batch_size"),
        "proposed_micro_batch_size": (samples(evidence) or 0) // proposed or None,
        "remedy": remedy,
    }
    rows = evidence.steps.group_by("pp").agg(pl.col("step_ns", "bubble_ns").mean()).sort("pp")
    return evidence.time_finding("pipeline-bubble", scheduled_ns - left_ns, "likely", facts, rows)


def scheduled_bubble(evidence: Evidence) -> float | None:
    """Return the measured bubble, mean over ranks, at most the bubble of the schedule.

    Nanoseconds per step. None without traces, with a single stage, or if the number of
    micro-batches or the passes are unknown.
    """
    stages, batches = evidence.degree("pp"), num_micro_batches(evidence)
    if evidence.typical is None or stages < 2 or not batches:
        return None
    steps = evidence.steps["step"].unique().implode()
    busy = _busy(evidence).filter(pl.col("step").is_in(steps))
    if busy.is_empty():
        return None
    of_schedule = (
        busy["busy_ns"].to_numpy().mean() * (stages - 1) / (num_chunks(evidence) * batches)
    )
    return min(mean_of(evidence.steps, "bubble_ns"), float(of_schedule))


def _busy(evidence: Evidence) -> pl.DataFrame:
    """Return how long each rank runs passes of micro-batches in each step: rank, step, busy_ns."""
    if evidence.typical is None or not evidence.typical.passes:
        return pl.DataFrame(schema={"rank": pl.Int64, "step": pl.Int64, "busy_ns": pl.Int64})
    passes = pl.concat(evidence.typical.passes)
    passes = passes.filter(pl.col("kind").is_in(["forward", "backward"]))
    busy_ns = (pl.col("end_ns") - pl.col("start_ns")).sum()
    return passes.group_by("rank", "step").agg(busy_ns=busy_ns)


def num_micro_batches(evidence: Evidence) -> int:
    """Return the number of micro-batches in a step of one replica; 0 if unknown.

    It is counted from the numbers of the recorded passes, else from the Backward phases.
    """
    return _num(evidence, "micro_batch") or round(evidence.usual("num_micro_batches"))


def num_chunks(evidence: Evidence) -> int:
    """Return the number of chunks (virtual stages) of a stage; 1 if unknown."""
    return _num(evidence, "chunk") or 1


def _num(evidence: Evidence, column: str) -> int:
    """Return how many micro-batches or chunks the passes number, from 0; 0 if they have no numbers."""
    tables = evidence.typical.passes if evidence.typical else ()
    numbered = (table[column].drop_nulls() for table in tables)
    return max((int(each.to_numpy().max()) + 1 for each in numbered if len(each)), default=0)


def samples(evidence: Evidence) -> int | None:
    """Return the number of samples in a step of one replica, from the config.

    None if unknown, or above `_MOST_SAMPLES`.
    """
    number = evidence.number("Global.local_batch_size")
    return number if number is not None and number <= _MOST_SAMPLES else None


def proposed_micro_batches(stages: int, present: int, chunks: int, samples: int | None) -> int:
    """Return the fewest micro-batches with a bubble of at most `GOOD_BUBBLE_RATIO`.

    If the samples cannot be split into that many micro-batches, the largest number into which they
    can be split. Never less than ``present``.

    >>> proposed_micro_batches(2, 1, 1, 8), proposed_micro_batches(2, 1, 1, None)
    (8, 9)
    >>> proposed_micro_batches(4, 8, 1, 64), proposed_micro_batches(4, 8, 1, 8)
    (32, 8)

    Args:
        stages: the number of pipeline stages.
        present: the present number of micro-batches.
        chunks: the number of chunks of a stage.
        samples: the samples in a step of one replica; None if unknown: any number can be proposed.
    """
    needed = -(-round((stages - 1) * (1 / GOOD_BUBBLE_RATIO - 1)) // chunks)
    least = max(present, needed)
    if samples is None:
        return least
    if samples <= least:
        return max(present, samples)
    small = [number for number in range(1, math.isqrt(samples) + 1) if samples % number == 0]
    cuts = (*small, *(samples // number for number in small))
    return min(number for number in cuts if number >= least)


def gradient_accumulation(evidence: Evidence) -> list[Finding]:
    """Report the accumulation of gradients, which is repeated for each micro-batch.

    The cost is the gain of half as many micro-batches of twice the size: half the accumulation
    time, and half of products that take as long with twice as many rows, minus the bubble that fewer
    micro-batches add.
    """
    batches = num_micro_batches(evidence)
    if batches < 2:
        return []
    accumulation_ns, thin_ns = evidence.usual("accumulation_ns"), evidence.usual("thin_ns")
    cost_ns = (accumulation_ns + thin_ns) / 2 - (scheduled_bubble(evidence) or 0.0)
    size = evidence.number("Global.micro_batch_size")
    factor = next(number for number in range(2, batches + 1) if batches % number == 0)
    facts = {
        "accumulation_ns": accumulation_ns,
        "thin_ns": thin_ns or None,
        "line": evidence.first_name("backward"),
        "micro_batches": batches,
        "micro_batch_size": size,
        "proposed_micro_batch_size": None if size is None else factor * size,
        "remedy": "code" if size is None else evidence.remedy("Global"),
    }
    rows = evidence.names("accumulation")
    return evidence.time_finding("gradient-accumulation", cost_ns, "possible", facts, rows)
