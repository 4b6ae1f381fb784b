from __future__ import annotations

import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.ranks.passes import PASSES, passes
from ppprof.analysis.ranks.replay import Replay, operations_of, with_workers
from ppprof.analysis.ranks.what_if import WHAT_IF, what_if
from ppprof.rundir.clocks import Clock, Reading
from ppprof.topology import Topology
from ppprof.trace import read
from tests.fixtures.timeline import EPOCH_NS, Thread, kernel, launch, span, write

HEAD, TAIL = 7, 11


def one_f_one_b(stage, num_stages, num_micro_batches):
    """The passes of a stage in their order: as in Fleet, ``startup_steps`` forwards go ahead.

    >>> " ".join(kind[0] + str(number) for kind, _, number in one_f_one_b(0, 2, 3))
    'f0 f1 b0 f2 b1 b2'
    """
    ahead = min(num_stages - stage - 1, num_micro_batches)
    order = [("forward", 0, number) for number in range(ahead)]
    for number in range(num_micro_batches - ahead):
        order += [("forward", 0, ahead + number), ("backward", 0, number)]
    return order + [("backward", 0, num_micro_batches - ahead + number) for number in range(ahead)]


def ticked(orders, duration, *, gap=0, way=0):
    """When each pass runs, found tick by tick: {(stage, pass): (start, end)}.

    Args:
        orders: the passes of each stage, in their order.
        duration: ticks of (stage, pass).
        gap: ticks between two passes of a stage.
        way: ticks that a pass's output takes to the next stage.
    """
    last = len(orders) - 1
    chunks = 1 + max(chunk for order in orders for _, chunk, _ in order)
    ran = {}
    waiting = [list(order) for order in orders]
    free = [HEAD] * len(orders)
    now = HEAD
    while any(waiting):
        for stage, queue in enumerate(waiting):
            if not queue or free[stage] > now:
                continue
            kind, chunk, at = queue[0]
            onward = 1 if kind == "forward" else -1
            layer = chunk * len(orders) + stage - onward
            if 0 <= layer <= chunks * len(orders) - 1:
                giver = (layer % (last + 1), (kind, layer // (last + 1), at))
                if giver not in ran or ran[giver][1] + way > now:
                    continue
            queue.pop(0)
            done = now + duration(stage, (kind, chunk, at))
            ran[stage, (kind, chunk, at)] = (now, done)
            free[stage] = done + gap
        now += 1
        assert now < 100_000, "deadlock"
    return ran


def recorded(topology, orders, duration, *, steps=1, gap=0, ways=(0, 0, 0)):
    """What `passes` gives of each rank, and how long the steps are; they follow each other."""
    parts = {rank: [] for rank in range(topology.world_size)}
    begin, lengths = 1000, []
    for step in range(steps):
        at = {
            replica: ticked(
                orders,
                lambda *of, r=replica, s=step: duration(r, *of, s),
                gap=gap,
                way=ways[replica],
            )
            for replica in range(topology.replicas)
        }
        length = TAIL + max(end for ran in at.values() for _, end in ran.values())
        for rank, rows in parts.items():
            where = topology.coordinate(rank)
            rows.append((rank, step, "step", None, None, begin, begin + length, False))
            rows += [
                (rank, step, kind, chunk, micro_batch, begin + start, begin + end, False)
                for (stage, (kind, chunk, micro_batch)), (start, end) in at[where["dp"]].items()
                if stage == where["pp"]
            ]
        begin += length
        lengths.append(length)
    tables = [pl.DataFrame(rows, PASSES, orient="row").sort("start_ns") for rows in parts.values()]
    return tables, lengths


def schedule(num_stages, num_micro_batches):
    return [one_f_one_b(stage, num_stages, num_micro_batches) for stage in range(num_stages)]


def row(table, fixed, **more):
    """The first row of this kind."""
    return table.filter(fixed=fixed, **more).row(0, named=True)


def forward_and_backward(forward, backward, extra=lambda *_: 0):
    """Durations of passes: of a kind all the same, but for ``extra``."""
    return lambda replica, stage, of, step: (
        (forward if of[0] == "forward" else backward) + extra(replica, stage, of, step)
    )


@pytest.mark.parametrize("num_stages", [1, 2, 4])
@pytest.mark.parametrize("num_micro_batches", [1, 4, 9])
def test_equal_stages_take_what_the_formula_says(num_stages, num_micro_batches):
    """(m + p - 1) (f + b): m passes of each kind, and p - 1 more that are the bubble."""
    topology = Topology.of(dp=2, pp=num_stages)
    parts, _ = recorded(
        topology, schedule(num_stages, num_micro_batches), forward_and_backward(30, 50), steps=2
    )
    found = what_if(parts, topology)
    expected = HEAD + (num_micro_batches + num_stages - 1) * (30 + 50) + TAIL
    assert found.columns == list(WHAT_IF)
    assert set(found["step_ns"]) == {expected}
    assert row(found, "nothing")["error_ratio"] == 0
    assert row(found, "all")["slowdown"] == 1
    assert found["share"].null_count() == found.height, "nothing can be gained"


def test_one_slow_worker_is_all_there_is_to_gain():
    """
    Stage 1 of replica 1 takes 20 longer in each of its 4 forwards; it is the last one, so that all
    its 8 passes follow each other, and everybody waits for them::

        stage 0   FF......
        stage 1     F===BBBBF===BBBB...
    """
    topology = Topology.of(dp=2, pp=2, mp=2)
    slow = forward_and_backward(
        30, 50, lambda replica, stage, of, _: 20 * (replica == stage == 1 and of[0] == "forward")
    )
    parts, _ = recorded(topology, schedule(2, 4), slow, steps=3)
    found = what_if(parts, topology)
    ideal = HEAD + 5 * 80 + TAIL
    assert row(found, "recorded")["step_ns"] == row(found, "nothing")["step_ns"] == ideal + 80
    assert row(found, "all")["slowdown"] == pytest.approx((ideal + 80) / ideal)
    workers = found.filter(fixed="worker")
    assert workers.select("ranks", "stage", "step_ns", "share").rows() == [
        ("6,7", 1, ideal, 1.0),
        ("0,1", 0, ideal + 80, 0.0),
        ("4,5", 0, ideal + 80, 0.0),
        ("2,3", 1, ideal + 80, 0.0),
    ]
    slowest = row(found, "slowest")
    assert (slowest["ranks"], slowest["share"]) == ("6,7", 1.0), "M_W"
    assert row(found, "steady")["share"] < 0.5


def test_two_slow_workers_hide_each_other():
    """On the last of 3 stages, replica 0 is late by 4 x 20 and replica 1 by 4 x 15."""
    topology = Topology.of(dp=2, pp=3)
    slow = forward_and_backward(
        100,
        100,
        lambda replica, stage, of, _: (20, 15)[replica] * (of[0] == "forward") * (stage == 2),
    )
    parts, _ = recorded(topology, schedule(3, 4), slow)
    found = what_if(parts, topology)
    ideal = HEAD + 6 * 200 + TAIL
    assert row(found, "nothing")["step_ns"] == ideal + 80
    assert row(found, "all")["step_ns"] == ideal
    # Usual in stage 2: 115 (lower median); balanced: (100 + 100 + 115) / 3. The slower worker stays
    # so: its 120 become 120 / 115 of 105.
    assert row(found, "stage", stage=2)["step_ns"] == HEAD + 2 * 200 + 4 * 205 + TAIL
    assert row(found, "balanced")["step_ns"] == HEAD + 2 * 205 + 4 * 210 + TAIL
    assert row(found, "worker", ranks="2")["step_ns"] == ideal + 60
    assert row(found, "worker", ranks="2")["share"] == 0.25
    assert row(found, "worker", ranks="5")["share"] == 0
    assert row(found, "worker", ranks="5")["alone_slowdown"] == (ideal + 60) / ideal
    assert row(found, "worker", ranks="0")["alone_slowdown"] == 1


def test_the_slowest_are_three_percent_of_the_workers():
    """Of 40 two, rounded up: the one that is late by 20, and the one that is late by 10."""
    topology = Topology.of(dp=40)
    slow = forward_and_backward(
        30, 50, lambda replica, _, of, __: {7: 20, 30: 10}.get(replica, 0) * (of[0] == "forward")
    )
    parts, _ = recorded(topology, schedule(1, 1), slow, ways=[0] * 40)
    found = what_if(parts, topology)
    assert row(found, "worker")["ranks"] == "7"
    assert row(found, "worker")["share"] == 0.5
    assert row(found, "slowest")["ranks"] == "7,30"
    assert row(found, "slowest")["share"] == 1


def test_what_a_slow_stage_gives_away_others_have_to_do():
    """The last stage does m passes of each kind without a break, between p - 1 forwards and backwards.

    It takes 24 longer than the other three in each pass: 6 more for each stage if balanced. The
    lower median would promise that the 24 vanish.
    """
    topology = Topology.of(pp=4)
    slow = forward_and_backward(30, 50, lambda _, stage, of, __: (stage == 3) * 24)
    parts, _ = recorded(topology, schedule(4, 8), slow)
    found = what_if(parts, topology)
    whole = HEAD + 8 * 128 + 3 * 80 + TAIL
    balanced = HEAD + 11 * 92 + TAIL
    ideal = HEAD + 11 * 80 + TAIL
    assert row(found, "all")["slowdown"] == whole / ideal
    assert row(found, "balanced")["slowdown"] == whole / balanced
    assert row(found, "balanced")["share"] == (whole - balanced) / (whole - ideal)
    last = row(found, "stage", stage=3)
    moved = HEAD + 8 * 92 + 3 * 80 + TAIL
    assert (last["ranks"], last["step_ns"]) == ("3", moved)
    assert last["share"] == (whole - moved) / (whole - balanced), "M_S"
    # All stages but the last one at 36 and 56, the last one at 54 and 74.
    assert last["alone_slowdown"] == (HEAD + 8 * 128 + 3 * 92 + TAIL) / balanced
    assert found.filter(fixed="stage")["stage"].to_list()[0] == 3, "the largest share first"


def test_moving_layers_repairs_no_machine():
    """Replica 1 of 3 is slow on stage 0; the median of the stage is that of the other two."""
    topology = Topology.of(dp=3, pp=2)
    slow = forward_and_backward(
        30, 50, lambda replica, stage, *_: 40 * ((replica, stage) == (1, 0))
    )
    parts, _ = recorded(topology, schedule(2, 4), slow)
    found = what_if(parts, topology)
    assert row(found, "balanced")["step_ns"] == row(found, "nothing")["step_ns"]
    assert row(found, "worker")["ranks"] == "2"


def test_moving_layers_takes_no_chance_away():
    """Passes vary, each stage's in another order: the usual ones would be faster, equal stages would not."""
    topology = Topology.of(pp=2)
    extra = [0, 30, 0, 0, 30, 0, 0, 0, 30]
    varied = forward_and_backward(30, 50, lambda _, stage, of, __: extra[(of[2] + 4 * stage) % 9])
    parts, _ = recorded(topology, schedule(2, 9), varied)
    found = what_if(parts, topology)
    assert row(found, "balanced")["step_ns"] == row(found, "nothing")["step_ns"]
    assert row(found, "all")["step_ns"] < row(found, "nothing")["step_ns"]


def test_the_kind_of_operation_that_costs_the_time_is_named():
    """Forwards of the last stage take 20 longer, and inputs 3 longer in replica 1."""
    topology = Topology.of(dp=2, pp=2)
    slow = forward_and_backward(
        30, 50, lambda _, stage, of, __: 20 * (stage == 1 and of[0] == "forward")
    )
    parts, _ = recorded(topology, schedule(2, 1), slow, ways=(5, 8))
    found = what_if(parts, topology)
    ideal = HEAD + 2 * 80 + 2 * 5 + TAIL
    kinds = found.filter(fixed="kind").select("kind", "step_ns", "alone_slowdown").rows()
    assert kinds == [
        ("forward", ideal + 6, (ideal + 20) / ideal),
        ("transfer", ideal + 20, (ideal + 6) / ideal),
        ("backward", ideal + 26, 1.0),
        ("head", ideal + 26, 1.0),
    ]


def test_each_step_has_its_own_slowdown():
    """Only in step 1, the forwards of replica 1's last stage take 20 longer."""
    topology = Topology.of(dp=2, pp=2)
    slow = forward_and_backward(
        30,
        50,
        lambda replica, stage, of, step: (
            20 * (replica == stage == step == 1 and of[0] == "forward")
        ),
    )
    parts, lengths = recorded(topology, schedule(2, 4), slow, steps=3)
    found = what_if(parts, topology)
    ideal = HEAD + 5 * 80 + TAIL
    steps = found.filter(fixed="step").select("step", "step_ns", "slowdown", "share").rows()
    assert lengths == [ideal, ideal + 80, ideal]
    assert steps == [
        (0, ideal, 1.0, None),
        (1, ideal, (ideal + 80) / ideal, None),
        (2, ideal, 1.0, None),
    ]


def test_a_slow_link_is_all_there_is_to_gain():
    """Inputs are 5 under way in replica 0, forth and back, and 25 in replica 1."""
    topology = Topology.of(dp=2, pp=2)
    parts, _ = recorded(topology, schedule(2, 1), forward_and_backward(30, 50), ways=(5, 25))
    found = what_if(parts, topology)
    ideal = HEAD + 2 * 80 + 2 * 5 + TAIL
    assert row(found, "nothing")["step_ns"] == ideal + 40
    assert found.filter(fixed="link").select("ranks", "stage", "step_ns", "share").rows() == [
        ("2,3", None, ideal, 1.0),
        ("0,1", None, ideal + 40, 0.0),
    ]


def test_slow_data_loading_is_the_first_stages():
    """In replica 2 all passes begin 100 later, and so all steps end 100 later."""
    topology = Topology.of(dp=3, pp=2)
    parts, _ = recorded(topology, schedule(2, 2), forward_and_backward(30, 50))
    is_step = pl.col("kind") == "step"
    for rank, part in enumerate(parts):
        late = (rank in (4, 5)) * 100
        parts[rank] = part.with_columns(
            start_ns=pl.col("start_ns") + pl.when(is_step).then(0).otherwise(late),
            end_ns=pl.col("end_ns") + pl.when(is_step).then(100).otherwise(late),
        )
    found = what_if(parts, topology)
    assert row(found, "nothing")["step_ns"] - row(found, "all")["step_ns"] == 100
    assert row(found, "worker", ranks="4")["share"] == 1


def test_what_varies_is_no_worker():
    """Stage 1, the last, takes 20 longer in two of its six forwards."""
    topology = Topology.of(pp=2)
    odd = forward_and_backward(
        30, 50, lambda _, stage, of, step: 20 * ((stage, of) == (1, ("forward", 0, 1 - step)))
    )
    parts, _ = recorded(topology, schedule(2, 3), odd, steps=2)
    found = what_if(parts, topology)
    assert row(found, "nothing")["step_ns"] - row(found, "all")["step_ns"] == 20
    assert row(found, "steady")["share"] == 1


@st.composite
def jobs(draw):
    """A grid, the order of passes on its stages, and any durations."""
    num_stages, num_micro_batches = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    topology = Topology.of(dp=draw(st.integers(1, 2)), pp=num_stages)
    orders = schedule(num_stages, num_micro_batches)
    if num_stages > 1 and draw(st.booleans()):  # two virtual stages, forwards before backwards
        orders = [
            [("forward", chunk, number) for chunk in (0, 1) for number in range(num_micro_batches)]
            + [
                ("backward", chunk, number)
                for chunk in (1, 0)
                for number in range(num_micro_batches)
            ]
        ] * num_stages
    seed = draw(st.randoms(use_true_random=False))
    known = {}
    return topology, orders, lambda *of: known.setdefault(of, seed.randint(1, 9))


@given(jobs(), st.integers(1, 2))
def test_the_replay_takes_as_long_as_what_was_recorded(job, steps):
    topology, orders, duration = job
    parts, lengths = recorded(topology, orders, duration, steps=steps)
    found = what_if(parts, topology)
    assert row(found, "nothing")["error_ratio"] == 0
    assert set(found["step_ns"][:2]) == {sum(lengths) / steps}


@given(jobs(), st.data())
def test_where_some_are_slower_than_usual_no_repair_does_harm(job, data):
    """All passes of a kind are the same but for those of one worker."""
    topology, orders, extra = job
    assume(topology.world_size > 1)
    slow = data.draw(
        st.tuples(st.integers(0, topology.replicas - 1), st.integers(0, len(orders) - 1))
    )
    duration = forward_and_backward(
        4, 6, lambda replica, stage, of, step: extra(of) * ((replica, stage) == slow)
    )
    parts, _ = recorded(topology, orders, duration)
    found = what_if(parts, topology)
    base, ideal = row(found, "nothing")["step_ns"], row(found, "all")["step_ns"]
    repaired = found.filter(pl.col("fixed").is_in(["steady", "balanced", "stage"]).not_())
    times = repaired["step_ns"]
    assert base == times.max()
    assert ideal == times.min()
    assert repaired["share"].drop_nulls().is_between(0, 1).all()
    rank = topology.rank({"dp": slow[0], "pp": slow[1]})
    if base > ideal:
        assert row(found, "worker", ranks=str(rank))["share"] == row(found, "slowest")["share"] == 1


@pytest.mark.parametrize(("gap", "way"), [(2, 5), (3, 0)])
def test_what_lies_between_passes_stays(gap, way):
    topology = Topology.of(dp=2, pp=3)
    parts, (length,) = recorded(
        topology, schedule(3, 6), forward_and_backward(30, 50), gap=gap, ways=(way, way)
    )
    found = what_if(parts, topology)
    assert row(found, "nothing")["step_ns"] == row(found, "all")["step_ns"] == length


@pytest.mark.parametrize("num_micro_batches", [1, 2, 5])
def test_a_gap_is_between_two_passes_of_a_worker(num_micro_batches):
    """Of 2 x 2m passes, each stage's first one follows none."""
    topology = Topology.of(pp=2)
    orders = schedule(2, num_micro_batches)
    parts, _ = recorded(topology, orders, forward_and_backward(30, 50), gap=3)
    rows = with_workers(pl.concat(parts), topology)
    replay = Replay(operations_of(rows, 2))
    assert replay.follows.sum() == 4 * num_micro_batches - 2
    assert set(replay.gap_ns[replay.follows].tolist()) == {3}


def test_a_pass_is_as_long_as_the_longest_of_its_mp_ranks():
    """
    ::

        rank 0   ...FFFF.....    came first, and waited in the first layer
        rank 1   .....FF.....
    """
    topology = Topology.of(mp=2)
    rows = [
        [(0, 0, "step", None, None, 0, 100, False), (0, 0, "forward", 0, 0, 30, 70, False)],
        [(1, 0, "step", None, None, 0, 100, False), (1, 0, "forward", 0, 0, 50, 70, False)],
    ]
    found = what_if([pl.DataFrame(part, PASSES, orient="row") for part in rows], topology)
    assert row(found, "nothing")["step_ns"] == 100
    assert row(found, "worker")["ranks"] == "0,1"


def test_clocks_that_are_known_do_not_matter():
    topology = Topology.of(pp=2)
    parts, (length,) = recorded(topology, schedule(2, 3), forward_and_backward(30, 50), ways=(4,))
    shifted = [parts[0], parts[1].with_columns(pl.col("start_ns", "end_ns") - 1_000_000)]
    found = what_if(shifted, topology, {1: Clock(1, (Reading(0, 1_000_000, 0),))})
    assert found.equals(what_if(parts, topology))
    assert row(found, "nothing")["step_ns"] == length
    assert row(what_if(shifted, topology), "nothing")["error_ratio"] > 0


def test_a_replica_of_which_a_pass_is_missing_is_left_out():
    topology = Topology.of(dp=2, pp=2)
    slow = forward_and_backward(30, 50, lambda replica, *_: replica * 5)
    parts, _ = recorded(topology, schedule(2, 3), slow)
    without_rank = [part for rank, part in enumerate(parts) if rank != 3]
    without_pass = [*without_rank, parts[3].head(4)]
    for kept in (without_rank, without_pass):
        found = what_if(kept, topology)
        assert found.filter(fixed="worker")["ranks"].sort().to_list() == ["0", "1"]
        assert row(found, "nothing")["step_ns"] == HEAD + 4 * 80 + TAIL


def test_passes_that_wait_for_each_other_are_left_out():
    """Stage 0 runs its backward before its forward."""
    topology = Topology.of(pp=2)
    parts, _ = recorded(topology, schedule(2, 1), forward_and_backward(30, 50))
    kind = pl.col("kind").replace({"forward": "backward", "backward": "forward"})
    assert what_if([parts[0].with_columns(kind), parts[1]], topology).is_empty()


def test_where_nothing_can_be_replayed_there_are_no_rows():
    topology = Topology.of(pp=2)
    steps = [
        pl.DataFrame(
            [(rank, 0, "step", None, None, 0, 9, False), (rank, 0, "own", None, None, 0, 5, False)],
            PASSES,
            orient="row",
        )
        for rank in (0, 1)
    ]
    for parts in ([], steps, [part.clear() for part in steps]):
        found = what_if(parts, topology)
        assert found.is_empty()
        assert found.schema == pl.DataFrame(schema=WHAT_IF).schema


def comm_span(op, start, end, axis):
    return span(
        "Communication", f"{op}[axis={axis} group=3 bytes=4 dtype=float32 peers=0,1]", start, end
    )


def stepping(tmp_path, rank, late):
    """A data parallel rank that sums gradients when it has done its own work of 60 + ``late``."""
    done = 60 + late
    main = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#4", 0, 110).around(
            comm_span("all_reduce", 10, 20, "mp"),
            comm_span("all_reduce", done, 100, "dp"),
            comm_span("broadcast", 100, 105, "dp+pp"),
        ),
    )
    found = passes(Profile(read(write(tmp_path / f"{rank}.pb", main))))
    return found.with_columns(rank=pl.lit(rank, pl.Int64))


def test_without_a_pipeline_replicas_meet_once_a_step(tmp_path):
    """
    ::

        rank 0   ######(all_reduce)|.    own: 110 - 40 - 5
        rank 1   #########(all_re..)|.   own: 110 - 10 - 5, and the step goes on for 15 then
    """
    found = what_if([stepping(tmp_path, 0, 0), stepping(tmp_path, 1, 30)], Topology.of(dp=2))
    assert row(found, "recorded")["step_ns"] == row(found, "nothing")["step_ns"] == 110
    assert row(found, "all")["step_ns"] == 80
    assert found.filter(fixed="worker").select("ranks", "share").rows() == [("1", 1), ("0", 0)]
    assert found.filter(fixed="stage").is_empty()


def test_the_passes_of_a_rank_in_a_pipeline(tmp_path):
    """A pass is as long as its kernels run. Spans outside steps, without a micro-batch or, in a
    trace with device events, without a kernel are not passes."""
    main = Thread(1, "main").around(
        span("Forward", "forward[stage=1 micro_batch=0 phase=steady]", 0, 5),
        span("ProfileStep", "ProfileStep#4", 10, 100).around(
            span("Forward", "forward[stage=1 micro_batch=0 phase=steady]", 12, 20).around(
                span("Forward", "Linear", 13, 19).around(
                    launch(14, 15, kernel("gemm", 30, 40)),
                    launch(16, 17, kernel("gelu", 45, 55)),
                )
            ),
            span("Backward", "backward[stage=1 chunk=1 micro_batch=2 phase=steady]", 60, 70).around(
                launch(61, 62, kernel("gemm_grad", 65, 90))
            ),
            span("Backward", "backward[stage=1 chunk=1 micro_batch=3 phase=steady]", 70, 80),
            span("Forward", "forward[stage=1]", 81, 85),
        ),
    )
    found = passes(Profile(read(write(tmp_path / "a.pb", main))))
    assert found.schema == pl.DataFrame(schema=PASSES).schema
    assert found.with_columns(pl.col("start_ns", "end_ns") - EPOCH_NS).rows() == [
        (-1, 4, "step", None, None, 10, 100, False),
        (-1, 4, "forward", 0, 0, 30, 55, False),
        (-1, 4, "backward", 1, 2, 65, 90, False),
    ]


def test_a_pause_is_no_time_of_its_step(tmp_path):
    """
    ::

        step   |1 FFFF ........ BBBB |2 FFFF BBBB ...... |     evaluations after a pass of each step
        out    |1 FFFF BBBB |         2 FFFF BBBB |
    """

    def one(number, start, end, pause, forward, backward):
        return span("ProfileStep", f"ProfileStep#{number}", start, end).around(
            span("Forward", "forward[stage=0 micro_batch=0]", *forward),
            span("Backward", "backward[stage=0 micro_batch=0]", *backward),
            span("PythonUserDefined", "paused: evaluation", *pause).around(
                span("Forward", "forward[stage=0 micro_batch=0]", pause[0] + 1, pause[1] - 1)
            ),
        )

    main = Thread(1, "main").around(
        one(1, 0, 200, (50, 150), (10, 40), (160, 190)),
        one(2, 200, 400, (290, 390), (210, 240), (250, 280)),
    )
    profile = Profile(read(write(tmp_path / "a.pb", main))).without_pauses
    assert passes(profile)["is_paused"].all()
    found = passes(profile).select("step", "kind", "start_ns", "end_ns").rows()
    begin = found[0][2]
    assert [(step, kind, start - begin, end - begin) for step, kind, start, end in found] == [
        (1, "step", 0, 100),
        (1, "forward", 10, 40),
        (1, "backward", 60, 90),
        (2, "step", 200, 300),
        (2, "forward", 210, 240),
        (2, "backward", 250, 280),
    ]


def test_replicas_meet_in_kernels_that_no_span_launched(tmp_path):
    """DataParallel's reducer launches its kernels from C++; the span has none, so only its launch.

    ::

        compute   ####______
        reducer   __####____    two of four exposed, of a step of 10
        span      _______##_    a broadcast whose kernel another call launches
    """
    main = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#4", 0, 100).around(
            span("Operator", "matmul", 0, 2, launch(1, 2, kernel("gemm", 0, 40))),
            span("Operator", "Global_GradNodeAccumulation", 2, 4).around(
                launch(3, 4, kernel("ncclDevKernel_AllReduce", 20, 60, stream=8))
            ),
            span("Communication", "broadcast[axis=dp group=3 peers=0,1]", 70, 90),
        ),
    )
    found = passes(Profile(read(write(tmp_path / "a.pb", main)))).filter(kind="own")
    assert (found["end_ns"] - found["start_ns"]).to_list() == [80]


def test_what_computation_hides_is_no_waiting(tmp_path):
    """
    ::

        compute   __####__
        dp        ____####       two of four exposed, of a step of 10
    """
    reduced = "all_reduce[axis=dp group=3 bytes=4 dtype=float32 peers=0,1]"
    main = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#4", 0, 100).around(
            span("Operator", "matmul", 0, 10, launch(1, 2, kernel("gemm", 20, 60))),
            span("Communication", reduced, 11, 15).around(
                launch(12, 13, kernel("ncclAllReduce", 40, 80, stream=8))
            ),
        ),
    )
    trace = read(write(tmp_path / "a.pb", main))
    found = passes(Profile(trace)).filter(kind="own")
    assert (found["end_ns"] - found["start_ns"]).to_list() == [80]


@pytest.mark.parametrize("own_ns", [(0, 0), (0, 10)])
def test_steps_whose_usual_times_are_0_are_not_replayed(own_ns):
    """The lower median of both ranks' work is 0, and nothing comes after it: no ratio to it exists."""
    length = max(own_ns)
    tables = [
        pl.DataFrame(
            [
                (rank, 1, "step", None, None, 5, 5 + length, False),
                (rank, 1, "own", None, None, 5, 5 + own, False),
            ],
            PASSES,
            orient="row",
        )
        for rank, own in enumerate(own_ns)
    ]
    assert what_if(tables, Topology.of(dp=2)).is_empty()


def test_reductions_of_data_parallel_on_a_cpu_are_no_own_work(tmp_path):
    """They record no event: of a step of 100, 13 to 40 less the division until 15 is waiting."""
    reduced = span("Operator", "Global_GradNodeAccumulation", 10, 40).around(
        span("DygraphKernelLaunch", "scale kernel launch", 13, 15)
    )
    main = Thread(1, "main", (span("ProfileStep", "ProfileStep#0", 0, 100, reduced),))
    found = passes(Profile(read(write(tmp_path / "a.pb", main)))).filter(kind="own")
    assert (found["end_ns"] - found["start_ns"]).to_list() == [75]
