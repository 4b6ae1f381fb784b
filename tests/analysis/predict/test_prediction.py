"""Predictions from given times of parts, by hand."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from ppprof.analysis.predict.parts import PARTS, Measured, Message, measure
from ppprof.analysis.predict.prediction import predict
from ppprof.analysis.predict.training_spec import TrainingSpec
from ppprof.analysis.ranks.cluster import Cluster
from ppprof.analysis.ranks.passes import PASSES
from ppprof.topology import Topology
from tests.analysis.ranks.tables import collectives_of
from tests.fixtures.training_specs import SPEC


def run_of(spec: TrainingSpec, messages: tuple[Message, ...] = (), **times: float) -> Measured:
    """Return a run whose parts take no time but the given ones; the step is 1,000 ns."""
    return Measured(spec, {**dict.fromkeys(PARTS, 0.0), **times}, 1000, 0, messages)


BASE = run_of(SPEC, layer_forward=10, layer_backward=20, tail=7, head=2)
DOUBLE = run_of(
    replace(SPEC, micro_batch_size=2, micro_batches=4), layer_forward=14, layer_backward=28
)


def step_of(spec: TrainingSpec, *runs: Measured) -> float | None:
    return predict(runs or [BASE], spec)[0]["step_ns"]


def test_the_recorded_step_is_the_sum_of_its_parts() -> None:
    # head of 8 samples, (8 + 3) rounds of two blocks, tail
    assert step_of(SPEC) == 8 * 2 + 11 * 2 * 30 + 7
    row, parts = predict([BASE], SPEC)
    assert {part["basis"] for part in parts} == {"measured"} == {row["basis"]}
    assert row["bubble_ns"] == 3 * 2 * 30


def test_no_range_is_narrower_than_the_errors_that_were_measured() -> None:
    exact = run_of(SPEC, layer_forward=10, layer_backward=20, tail=7, head=2)
    exact = replace(exact, step_ns=683)
    row, _ = predict([exact], SPEC)
    assert row["low_ns"] == row["step_ns"] == row["high_ns"] == 683
    row, _ = predict([exact], replace(SPEC, micro_batches=4))
    assert row["high_ns"] == pytest.approx(1.07 * row["step_ns"])


@pytest.mark.parametrize("step_ns", [500, 683, 1000])
def test_the_recorded_step_is_in_its_own_range(step_ns: int) -> None:
    row, _ = predict([replace(BASE, step_ns=step_ns)], SPEC)
    assert row["low_ns"] <= step_ns * (1 + 1e-9)
    assert row["high_ns"] >= step_ns * (1 - 1e-9)


def test_communication_that_there_is_none_of_is_known_at_any_size() -> None:
    row, _ = predict([run_of(SPEC, layer_forward=10)], replace(SPEC, micro_batch_size=2))
    assert row["exposed_ns"] == 0


def test_a_part_without_a_likely_time_is_unknown() -> None:
    spec = replace(SPEC, micro_batch_size=2, recompute="full")
    _, parts = predict([BASE], spec)
    (part,) = (part for part in parts if part["part"] == PARTS["layer_backward"])
    assert (part["likely_ns"], part["basis"]) == (None, "unknown")


def test_a_sum_over_other_ranks_was_not_measured() -> None:
    base = run_of(replace(SPEC, dp=2, sharding=2), replicas=5)
    _, parts = predict([base], replace(SPEC, dp=1, sharding=4))
    (part,) = (part for part in parts if part["part"] == PARTS["replicas"])
    assert part["basis"] == "modelled"


def test_stages_share_the_blocks() -> None:
    ratio = replace(SPEC, pp=2).most_parameters() / SPEC.most_parameters()
    assert step_of(replace(SPEC, pp=2)) == pytest.approx(16 + 9 * 4 * 30 + 7 * ratio)


def test_recompute_adds_a_forward_pass() -> None:
    recomputed = replace(SPEC, recompute="full")
    assert step_of(recomputed) == 8 * 2 + 11 * 2 * 40 + 7
    base = run_of(recomputed, layer_forward=10, layer_backward=30)
    assert step_of(SPEC, base) == 11 * 2 * 30


def test_one_run_gives_a_range_for_another_micro_batch() -> None:
    row, _ = predict([BASE], replace(SPEC, micro_batch_size=2, micro_batches=4))
    error = 1000 / 683 - 1
    assert (row["step_ns"], row["basis"]) == (None, "unknown")
    assert row["low_ns"] == pytest.approx((16 + 7 * 2 * 30 + 7) * (1 - error))
    assert row["high_ns"] == pytest.approx((16 + 7 * 2 * 60 + 7) * (1 + error))


def test_two_runs_separate_fixed_cost_from_cost_for_each_sample() -> None:
    row, parts = predict([BASE, DOUBLE], replace(SPEC, micro_batch_size=4, micro_batches=2))
    assert row["basis"] == "fitted"
    # 10 and 14 for one and two samples: 6 + 4 x 4 = 22 for four
    assert {part["part"]: part["likely_ns"] for part in parts}[PARTS["layer_forward"]] == 22
    assert row["step_ns"] == 16 + 5 * 2 * 66 + 7


def test_a_sum_that_the_run_lacks_has_no_upper_bound() -> None:
    spec = replace(SPEC, dp=2)
    row, _ = predict([BASE], spec)
    assert (row["step_ns"], row["high_ns"], row["basis"]) == (None, None, "unknown")


def test_a_sum_that_the_run_lacks_is_between_its_other_messages() -> None:
    spec = replace(SPEC, dp=2)
    # 1 ns a byte after 5 ns; a ring of two carries the bytes once.
    base = replace(BASE, messages=(Message(4, 2, 9), Message(100, 2, 105)))
    size = 4 * spec.most_parameters()
    row, parts = predict([base], spec)
    assert row["step_ns"] == pytest.approx(683 + 5 + size)
    assert row["basis"] == "modelled"
    (replicas,) = (part for part in parts if part["part"] == PARTS["replicas"])
    # At least the shortest; at most the larger one again and again.
    assert (replicas["low_ns"], replicas["high_ns"]) == (9, 105 * -(-size // 100))


def test_the_sum_of_the_gradients_is_that_of_the_stage_that_the_step_ends_with() -> None:
    """Stage 0 sums for 128, and stage 1, with fewer parameters, for 76; the optimizer takes 10.

    ::

        stage 0   10 F 20            50 B 60 sum 188 optimizer 198      the later replica; the other
        stage 1         20 F 30 B 50 sum 126 optimizer and wait 198     one waits for it for 2
    """
    topology = Topology.of(dp=2, pp=2)
    passes, steps = [], []
    for rank in range(4):
        stage, early = topology.coordinate(rank)["pp"], 2 * (topology.coordinate(rank)["dp"] == 0)
        forward, backward = ((20, 30), (30, 50)) if stage else ((10, 20), (50, 60 - early))
        rows = [("step", None, 0, 198), ("forward", 0, *forward), ("backward", 0, *backward)]
        passes.append(
            pl.DataFrame(
                [
                    (rank, 1, kind, number, number, start, end, False)
                    for kind, number, start, end in rows
                ],
                PASSES,
                orient="row",
            )
        )
        steps.append((rank, 1, (76 if stage else 128) + early))
    spec = replace(SPEC, dp=2, pp=2, micro_batches=1)
    table = pl.DataFrame(steps, ["rank", "step", "exposed_dp_ns"], orient="row")
    table = table.with_columns(host=pl.lit("host"))
    cluster = Cluster(
        table, [], [collectives_of(rank=rank) for rank in range(4)], passes, {}, topology
    )
    measured = measure(cluster, spec)
    assert measured is not None
    assert (measured.times["replicas"], measured.times["tail"]) == (128, 10)


def test_more_ranks_take_more_messages_of_a_ring() -> None:
    base = replace(BASE, messages=(Message(1 << 20, 2, 1000),))
    _, parts = predict([base], replace(SPEC, dp=4))
    (replicas,) = (part for part in parts if part["part"] == PARTS["replicas"])
    assert replicas["high_ns"] == 3 * 1000


def test_two_runs_say_what_mp_does_not_split() -> None:
    base = replace(BASE, messages=(Message(1 << 20, 2, 0.0),))
    row, parts = predict([base, DOUBLE], replace(SPEC, mp=2))
    # 10 and 14 for one and two samples: 6 + 4 for one, of which mp takes half of the 4.
    assert {part["part"]: part["likely_ns"] for part in parts}[PARTS["layer_forward"]] == 6 + 2
    assert (row["step_ns"] is not None, row["basis"]) == (True, "modelled")


def test_two_runs_with_mp_say_what_another_mp_does_not_split() -> None:
    """A sum over two ranks takes 2 for one sample and 3.5 for two, and a block's forward pass has two.

    The work is then 10 - 4 = 6 and 17 - 7 = 10, which is 2 and 4 a sample on either rank. Four ranks carry
    1.5 times the bytes on a link.
    """
    one = run_of(replace(SPEC, mp=2), layer_forward=10, mp=4)
    two = run_of(replace(SPEC, mp=2, micro_batch_size=2, micro_batches=4), layer_forward=17, mp=7)
    for mp, likely in ((1, 2 + 8), (4, 2 + 2 + 2 * 3)):
        _, parts = predict([one, two], replace(SPEC, mp=mp))
        (part,) = (part for part in parts if part["part"] == PARTS["layer_forward"])
        assert (part["likely_ns"], part["basis"]) == (likely, "modelled")
        assert part["low_ns"] <= likely <= part["high_ns"]


def test_mp_sums_hidden_states_four_times_in_a_block() -> None:
    hidden = 4 * SPEC.length * SPEC.hidden
    base = replace(BASE, messages=(Message(hidden, 2, 10), Message(4 * SPEC.length, 2, 1)))
    _, parts = predict([base], replace(SPEC, mp=2))
    times = {part["part"]: (part["low_ns"], part["high_ns"]) for part in parts}
    assert times[PARTS["layer_forward"]][1] == 10 + 2 * 10
    assert times[PARTS["layer_backward"]][1] == 20 + 2 * 10
    # The work of half of it, and messages as short as the shortest of their size.
    assert times[PARTS["layer_backward"]][0] == 10 + 2 * 1
    assert times[PARTS["first_forward"]][1] == times[PARTS["last_backward"]][1] == 10
    assert times[PARTS["last_forward"]][1] == 3
    # Three products take hidden states instead of one; what is computed again is summed again.
    for settings, count in (
        ({"fused_qkv": False}, 4),
        ({"recompute": "full"}, 2 + 2),
        ({"recompute": "full_attn"}, 2 + 1),
        ({"recompute": "core_attn"}, 2),
    ):
        old = replace(base, spec=replace(SPEC, **settings))
        _, parts = predict([old], replace(old.spec, mp=2))
        times = {part["part"]: (part["low_ns"], part["high_ns"]) for part in parts}
        assert times[PARTS["layer_backward"]][1] == 20 + count * 10


def test_recompute_repeats_its_sums_over_mp() -> None:
    mp = replace(SPEC, mp=2)
    base = run_of(mp, layer_forward=10, layer_backward=20, mp=4)
    row, _ = predict([base], replace(mp, recompute="full"))
    # 2 + 2 sums of 2 ns in two passes become 2 + 4; a stage has 2 blocks and 8 micro-batches.
    assert row["exposed_ns"] == 2 * 2 * 8 * (2 + 4) * 2 / 2


def test_messages_of_mixed_precision_have_two_bytes_a_value() -> None:
    spec = replace(SPEC, word_bytes=2)
    num_values = replace(spec, dp=2).most_parameters()
    messages = (Message(2 * num_values, 2, 500), Message(4 * num_values, 2, 1000))
    _, parts = predict([run_of(spec, messages, layer_forward=1)], replace(spec, dp=2))
    assert {part["part"]: part["likely_ns"] for part in parts}[PARTS["replicas"]] == 500


def test_a_fitted_time_does_not_fall_with_the_micro_batch() -> None:
    one = run_of(SPEC, layer_forward=10, gap=3, transfer=4)
    two = run_of(
        replace(SPEC, micro_batch_size=2, micro_batches=4), layer_forward=12, gap=2, transfer=3
    )
    _, parts = predict([one, two], replace(SPEC, micro_batch_size=8, micro_batches=1))
    times = {part["part"]: part["likely_ns"] for part in parts}
    assert (times[PARTS["gap"]], times[PARTS["transfer"]]) == (3, 4)


def test_one_step_gives_no_upper_bound() -> None:
    row, _ = predict([replace(BASE, error_ratio=float("inf"))], SPEC)
    assert (row["step_ns"], row["low_ns"], row["high_ns"]) == (683, 0, None)


def test_queries_keys_and_values_are_one_tensor_or_three() -> None:
    fused, split = (replace(SPEC, fused_qkv=is_fused) for is_fused in (True, False))
    assert fused.most_parameters() == split.most_parameters()
    # Three weights and three biases instead of one of each, in two blocks.
    assert len(split.tensors(1)) == len(fused.tensors(1)) + 2 * 4


def test_a_recorded_sum_scales_with_the_ring() -> None:
    base = run_of(replace(SPEC, dp=2), layer_forward=10, layer_backward=20, replicas=30)
    # 2 (n - 1) / n: 1 for two ranks, 1.5 for four; as many messages as ranks, but for one
    assert step_of(replace(SPEC, dp=4), base) == 11 * 2 * 30 + 45
    _, parts = predict([base], replace(SPEC, dp=4))
    times = {part["part"]: (part["low_ns"], part["high_ns"]) for part in parts}
    assert times[PARTS["replicas"]] == (45, 90)


def test_another_mp_degree_is_between_the_same_work_and_half_of_it() -> None:
    row, _ = predict([BASE], replace(SPEC, mp=2))
    assert (row["step_ns"], row["high_ns"]) == (None, None)
    base = run_of(replace(SPEC, mp=2), layer_forward=10, layer_backward=20, mp=4)
    row, _ = predict([base], SPEC)
    error = 1000 / 660 - 1
    assert row["low_ns"] == pytest.approx(11 * 2 * (6 + 16) * (1 - error))
    assert row["high_ns"] == pytest.approx(11 * 2 * (12 + 32) * (1 + error))
