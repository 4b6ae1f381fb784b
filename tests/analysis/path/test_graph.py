from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.path.graphs import edges, graph_of, job, slack_ns
from tests.fixtures.timeline import Thread, span


def weights_of(times, edges):
    """What each edge takes, by the definition: the edge from the latest source takes all the time.

    Of several sources at that instant the last node counts.
    """
    weights = []
    for source, target, least in edges:
        span = times[target] - times[source]
        latest = max(one for one, node, _ in edges if node == target)
        weights.append(span if source == latest else min(least, span))
    return weights


def longest(num_nodes, edges, weights, start):
    """The time of each node, edge by edge."""
    times = [start] * num_nodes
    for node in range(1, num_nodes):
        times[node] = max(
            times[source] + weight
            for (source, target, _), weight in zip(edges, weights)
            if target == node
        )
    return times


@given(edges())
def test_a_replay_without_a_change_is_the_recording(each_core, drawn):
    times, pairs = drawn
    graph = graph_of(times, pairs)
    assert graph.replayed().tolist() == times
    assert graph.num_against_time == 0
    assert longest(len(times), pairs, weights_of(times, pairs), times[0]) == times


@given(edges())
def test_the_path_is_the_step(each_core, drawn):
    times, pairs = drawn
    graph = graph_of(times, pairs)
    rows, path, begin_ns, end_ns = graph.paths
    if times[0] == times[-1]:
        assert not len(path)
        return
    assert set(rows) == {0}
    assert end_ns[0] == times[-1]
    assert begin_ns[-1] == times[0]
    assert begin_ns[:-1].tolist() == end_ns[1:].tolist()
    assert graph.on_path("kind")["time_ns"].to_list() == [times[-1] - times[0]]
    by_name = graph.on_path("name")
    assert by_name["time_ns"].sum() == times[-1] - times[0]
    assert by_name["ratio"].sum() == pytest.approx(1)


@given(edges(), st.data())
def test_speeding_anything_up_lengthens_nothing(each_core, drawn, data):
    times, pairs = drawn
    graph = graph_of(times, pairs)
    factors = data.draw(
        st.lists(st.floats(0, 1), min_size=len(graph.source), max_size=len(graph.source))
    )
    faster = (graph.weight_ns * np.array(factors)).astype(np.int64)
    assert (graph.replayed(faster) <= graph.time_ns).all()


@given(edges(), st.data())
def test_a_replay_with_other_times_is_the_longest_way(each_core, drawn, data):
    times, pairs = drawn
    graph = graph_of(times, pairs)
    factor = data.draw(st.lists(st.integers(0, 3), min_size=len(pairs), max_size=len(pairs)))
    weights = [w * f for w, f in zip(weights_of(times, pairs), factor)]
    changed = graph.weight_ns * np.array(factor)[graph.label]
    assert graph.replayed(changed).tolist() == longest(len(times), pairs, weights, times[0])


@given(edges())
def test_slack_is_what_an_edge_can_take_longer(each_core, drawn):
    """No more and no less: one tick more, and the end is a tick later."""
    times, pairs = drawn
    graph = graph_of(times, pairs)
    slack = slack_ns(graph)
    assert (slack >= 0).all()
    for edge in range(len(graph.source)):
        for more in (0, 1):
            longer = graph.weight_ns.copy()
            longer[edge] += slack[edge] + more
            assert graph.replayed(longer).max() == times[-1] + more


def test_edges_back_in_time_are_left_out_and_counted():
    graph = graph_of([0, 5, 9], [(0, 1, 0), (1, 2, 0), (2, 1, 0)])
    assert graph.num_against_time == 1
    assert graph.replayed().tolist() == [0, 5, 9]


@given(edges(), st.randoms(use_true_random=False))
def test_the_numbers_of_nodes_do_not_matter(each_core, drawn, random):
    """At one instant, nodes are put in the order of their edges."""
    times, pairs = drawn
    place = list(range(1, len(times) - 1))
    random.shuffle(place)
    place = [0, *place, len(times) - 1]
    moved = [0] * len(times)
    for node, number in enumerate(place):
        moved[number] = times[node]
    graph = graph_of(moved, [(place[a], place[b], least) for a, b, least in pairs])
    assert graph.num_against_time == 0
    assert sorted(graph.time_ns.tolist()) == graph.time_ns.tolist()
    assert (graph.replayed() == graph.time_ns).all()
    assert graph.step_ns().sum() == times[-1] - times[0]


def meeting(parts, apart, transfer):
    """When each rank works, for each part, and when it has met the other behind it.

    Args:
        parts: what ranks 0 and 1 work for ahead of each collective.
        apart: the collectives in which they do not wait for each other.
        transfer: the time of each transfer.
    """
    now, spans = [0, 0], ([], [])
    for number, lengths in enumerate(parts):
        starts = [time + length for time, length in zip(now, lengths)]
        met = [time if number in apart else max(starts) for time in starts]
        for own, start, end in zip(spans, starts, met):
            own.append((start, end + transfer))
        now = [time + transfer for time in met]
    return spans, max(now)


@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=5),
    st.sets(st.integers(0, 4)),
)
def test_ranks_that_do_not_wait_in_some_collectives_wait_in_the_others(
    tmp_path_factory, parts, apart
):
    """The replay is what a walk along both ranks shows."""
    facts = "all_reduce[axis=dp group=1 bytes=4 peers=0,1]"
    spans, end = meeting(parts, set(), 7)
    ranks = [
        [
            Thread(1, "main").around(
                span("ProfileStep", "ProfileStep#1", 0, end).around(
                    *(span("Communication", facts, *times) for times in own)
                )
            )
        ]
        for own in spans
    ]
    graph = job(tmp_path_factory.mktemp("ranks"), *ranks)
    chosen = graph.meetings.filter(pl.col("index").is_in(list(apart)))
    assert graph.meetings.height == 2 * len(parts)
    assert graph.step_ns(source=graph.apart(chosen)).tolist() == [meeting(parts, apart, 7)[1]]
    assert graph.step_ns(source=graph.apart(chosen.clear())).tolist() == [end]
