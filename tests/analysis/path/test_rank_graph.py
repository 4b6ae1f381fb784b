from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl
import pytest

from ppprof.analysis.path.change_language import parse_change
from ppprof.analysis.path.change_replay import what_if
from ppprof.analysis.path.graph import job_graph
from ppprof.analysis.path.rank_graph import rank_graph
from ppprof.run.run import open as open_run
from ppprof.topology import Topology
from ppprof.trace import read
from ppprof.trace.fastpath import core
from tests.analysis.path.graphs import job, slack_ns
from tests.fixtures.kineto_files import FIXTURES
from tests.fixtures.pipelines import schedule
from tests.fixtures.timeline import Thread, kernel, launch, memcpy, span, write
from tests.jobs.planted import COMMITTED

US = 1000


def on_path(graph, *groups):
    """What lies on the path: {group or groups: time, of all steps}."""
    rows = graph.on_path(groups).select(*groups, pl.col("time_ns") * graph.steps.height).rows()
    return {key[0] if len(groups) == 1 else tuple(key): time_ns for *key, time_ns in rows}


def comm(name, start, end, peers, num_bytes=4):
    annotations = f"axis=dp group=1 bytes={num_bytes} peers={peers}"
    return span("Communication", f"{name}[{annotations}]", start, end)


def step(start, end, *inside, number=1):
    return span("ProfileStep", f"ProfileStep#{number}", start, end, *inside)


def test_a_thread_is_in_its_innermost_event(tmp_path):
    """
    ::

        step      ....................
        Dataloader  ##
        Forward        ###########
        relu             ####
        inner             #
    """
    main = Thread(1, "main").around(
        step(
            *(0, 200),
            span("Dataloader", "Loader", 20, 40),
            span("Forward", "Block", 50, 160).around(
                span("Operator", "relu dygraph", 70, 110).around(
                    span("OperatorInner", "relu compute", 80, 90)
                )
            ),
        )
    )
    graph = job(tmp_path, [main])
    assert on_path(graph, "kind", "operator", "module") == {
        ("own code", "(own code)", "(own code)"): 20 + 10 + 40,
        ("host", "(host)", "Block"): 20 + 50,
        ("host", "relu dygraph", "Block"): 40,
        ("data loading", "(data loading)", "(data loading)"): 20,
    }
    assert on_path(graph, "name")["relu compute"] == 10
    assert on_path(graph, "rank") == {0: 200}


def test_a_module_is_called_by_its_attributes(tmp_path):
    """Where shapes are recorded, a Forward says which layer it is; other attributes say nothing."""
    main = Thread(1, "main").around(
        step(
            *(0, 100),
            span("Forward", "Block", 10, 40).around(span("Operator", "relu dygraph", 20, 30)),
            span("Forward", "Block", 50, 70),
        )
    )
    trace = read(write(tmp_path / "0.pb", main))
    texts = iter(['{"layer":"blocks.3"}', '{"axis":1}'])
    attributes = [
        next(texts) if category == "Forward" else None
        for category in trace.events["category"].to_list()
    ]
    events = trace.events.with_columns(attributes=pl.Series(attributes, dtype=pl.Categorical))
    graph = job_graph([(0, 0, rank_graph(dataclasses.replace(trace, events=events)))], None, None)
    modules = on_path(graph, "module")
    assert modules == {"(own code)": 50, "blocks.3": 30, "Block": 20}


def test_kernels_follow_each_other_and_their_launches(tmp_path):
    """
    ::

        main     [L1][L2]          [synchronize ]   step ends
        stream      [k1       ][k2      ]
        path     ##############################__#   the launch of k1, both kernels, the rest
    """
    main = Thread(1, "main").around(
        step(
            *(0, 100 * US),
            span("Operator", "matmul dygraph", 0, 20 * US).around(
                launch(2 * US, 4 * US, kernel("k1", 7 * US, 40 * US)),
                launch(10 * US, 12 * US, kernel("k2", 41 * US, 80 * US)),
            ),
            launch(30 * US, 85 * US, name="cudaDeviceSynchronize"),
        )
    )
    graph = job(tmp_path, [main])
    assert on_path(graph, "kind", "name") == {
        ("kernel", "k2"): 39 * US,
        ("kernel", "k1"): 33 * US,
        ("own code", "(own code)"): 15 * US,
        ("launch latency", "k1"): 5 * US,
        ("synchronisation", "cudaDeviceSynchronize"): 5 * US,
        ("host", "matmul dygraph"): 2 * US,
        ("device gap", "(device gap)"): 1 * US,
    }
    assert on_path(graph, "operator")["matmul dygraph"] == (39 + 33 + 5 + 2) * US
    pieces = graph.pieces().select("begin_ns", "end_ns", "thread", "device", "stream")
    assert pieces.with_columns(pl.col("begin_ns", "end_ns") - graph.time_ns[0]).rows() == [
        (0, 2 * US, 1, None, None),
        (2 * US, 80 * US, None, 0, 7),
        (80 * US, 100 * US, 1, None, None),
    ]


def test_an_event_waits_for_one_of_another_stream_if_it_has_long_been_launched(tmp_path):
    """
    ::

        stream 7    [k1            ]
        stream 8                    .[k2]      launched long before
    """
    main = Thread(1, "main").around(
        step(
            *(0, 10 * US),
            launch(0, 1 * US, kernel("k1", 3 * US, 60 * US)),
            launch(2 * US, 3 * US, kernel("k2", 61 * US, 90 * US, stream=8)),
        )
    )
    graph = job(tmp_path, [main])
    assert on_path(graph, "kind", "name") == {
        ("kernel", "k1"): 57 * US,
        ("kernel", "k2"): 29 * US,
        ("launch latency", "k1"): 3 * US,
        ("synchronisation", "k2"): 1 * US,
    }


def test_an_event_waits_for_none_of_another_device(tmp_path):
    """Launched long before, but k1 is on device 1, and nothing ends on device 0 before k2 starts."""
    main = Thread(1, "main").around(
        step(
            *(0, 10 * US),
            launch(0, 1 * US, kernel("k1", 3 * US, 60 * US, device=1)),
            launch(2 * US, 3 * US, kernel("k2", 61 * US, 90 * US)),
        )
    )
    assert on_path(job(tmp_path, [main]), "kind", "name") == {
        ("kernel", "k2"): 29 * US,
        ("launch latency", "k2"): 59 * US,
        ("runtime call", "cudaLaunchKernel"): 1 * US,
        ("own code", "(own code)"): 1 * US,
    }


def test_a_name_changes_the_work_and_not_what_its_launch_waits_for(tmp_path):
    """k2 was launched 59 us ahead: it waited for something that is not in the trace."""
    main = Thread(1, "main").around(
        step(
            *(0, 10 * US),
            launch(0, 1 * US, kernel("k1", 3 * US, 60 * US, device=1)),
            launch(2 * US, 3 * US, kernel("k2", 61 * US, 90 * US)),
        )
    )
    table = what_if(job(tmp_path, [main]), [parse_change("k2: 0")])
    assert table["on_path_ns"].to_list() == [0, 29 * US]


def test_steps_with_a_pause_are_left_out_unless_all_have_one(tmp_path):
    """
    ::

        steps    |1 ## |2 ##.......... |3 ## |        an evaluation in step 2
    """

    def thread(*paused):
        starts = {1: 0, 2: 100, 3: 400, 4: 500}
        return Thread(1, "main").around(
            *(
                step(
                    *(starts[number], starts[number + 1]),
                    span("Operator", "relu dygraph", starts[number] + 10, starts[number] + 60),
                    *[
                        span(
                            *("PythonUserDefined", "paused: evaluation"),
                            *(starts[number] + 70, starts[number + 1] - 5),
                        )
                    ]
                    * (number in paused),
                    number=number,
                )
                for number in (1, 2, 3)
            )
        )

    graph = job(tmp_path, [thread(2)])
    assert graph.steps["step"].to_list() == [1, 3]
    assert on_path(graph, "kind") == {"host": 100, "own code": 100}
    assert graph.step_ns(np.where(graph.labels["kind"] == "host", 0.5, 1)).tolist() == [75, 75]
    assert job(tmp_path, [thread(1, 2, 3)]).steps["step"].to_list() == [1, 2, 3]


def test_a_copy_of_unpinned_memory_has_ended_when_its_call_returns(tmp_path):
    main = Thread(1, "main").around(
        step(0, 100, launch(10, 60, memcpy(20, 55, 64), name="cudaMemcpyAsync"))
    )
    assert on_path(job(tmp_path, [main]), "kind") == {
        "own code": 10 + 40,
        "copy": 35,
        "launch latency": 10,
        "synchronisation": 5,
    }


def test_the_last_rank_to_arrive_is_on_the_path_of_all(tmp_path):
    """
    ::

        rank 0   F  [all_reduce     ]   end
        rank 1   FFFFFFFFFF[all_red  ]end      rank 0 ends last, and waited for rank 1
    """
    ranks = [
        [
            Thread(1, "main").around(
                step(
                    *(0, last),
                    span("Forward", "Net", 0, work),
                    comm("all_reduce", work, end, "0,1"),
                )
            )
        ]
        for work, end, last in ((10, 80, 100), (60, 85, 95))
    ]
    graph = job(tmp_path, *ranks)
    assert on_path(graph, "kind", "rank", "link") == {
        ("host", 1, None): 60,
        ("communication", None, "0,1"): 20,
        ("own code", 0, None): 20,
    }
    pieces = graph.pieces().select("begin_ns", "end_ns", "rank", "thread")
    assert pieces.with_columns(pl.col("begin_ns", "end_ns") - graph.time_ns[0]).rows() == [
        (0, 60, 1, 1),
        (60, 100, 0, 1),  # the transfer is where the path goes on
    ]
    without = graph.step_ns(np.where(graph.labels["kind"] == "host", 0.0, 1.0))
    assert without.tolist() == [100 - 60], "the transfer and what follows remain"


def test_a_buffered_send_does_not_wait_and_a_receive_does(tmp_path):
    """
    ::

        rank 0   send | 10 of its own                     rank 0 ends early
        rank 1   recv ..........................|
    """
    ranks = [
        [Thread(1, "main").around(step(0, 50, comm("send", 30, 33, "1")))],
        [Thread(1, "main").around(step(0, 90, comm("recv", 5, 40, "0")))],
    ]
    graph = job(tmp_path, *ranks)
    assert on_path(graph, "kind", "rank") == {
        ("own code", 1): 50,
        ("own code", 0): 30,
        ("communication", None): 10,
    }
    late = job(
        tmp_path, ranks[0], [Thread(1, "main").around(step(0, 90, comm("recv", 35, 40, "0")))]
    )
    assert late.num_against_time == 1, "the send ended before the receiver arrived"
    assert on_path(late, "rank")[1] == 85


def test_a_receive_of_another_thread_ends_a_wait_only_outside_of_spans(tmp_path):
    """
    ::

        rank 0   irecv  (waits, in no span)   Forward          irecv  Forward (a sleep)
        thread    [recv         ]                               [recv ]
    """
    sender = Thread(1, "main").around(
        step(0, 30, comm("send", 28, 30, "0")), step(30, 150, comm("send", 100, 101, "0"), number=2)
    )
    main = Thread(1, "main").around(
        step(
            *(0, 60),
            comm("irecv", 1, 2, "1"),
            span("Forward", "Block", 45, 60),
        ),
        step(
            *(60, 200),
            comm("irecv", 70, 71, "1"),
            span("Forward", "Block", 80, 200),
            number=2,
        ),
    )
    other = Thread(2, "channel").around(comm("recv", 2, 40, "1"), comm("recv", 71, 120, "1"))
    graph = job(tmp_path, [main, other], [sender])
    assert on_path(graph, "step", "kind", "rank") == {
        (1, "own code", 1): 28,
        (1, "communication", None): 12,
        (1, "own code", 0): 5,
        (1, "host", 0): 15,
        (2, "own code", 0): 140 - 120 - 1,
        (2, "communication", 0): 1,
        (2, "host", 0): 120,
    }


def test_a_span_that_waits_is_no_work_of_its_rank(tmp_path):
    """
    ::

        rank 1   Block                         send
        rank 0   irecv  [irecv.wait                 ]Block       the receive is on another thread
        thread     [recv                           ]
    """
    sender = Thread(1, "main").around(
        step(0, 60, span("Forward", "Block", 0, 50), comm("send", 50, 51, "0"))
    )
    main = Thread(1, "main").around(
        step(
            *(0, 100),
            comm("irecv", 1, 2, "1"),
            wait("irecv", 10, 60, "1"),
            span("Forward", "Block", 60, 100),
        )
    )
    thread = Thread(2, "channel").around(comm("recv", 2, 55, "1"))
    graph = job(tmp_path, [main, thread], [sender])
    assert on_path(graph, "kind", "name", "rank") == {
        ("host", "Block", 1): 50,
        ("communication", "send", None): 5,
        ("communication", "irecv.wait", 0): 5,  # the thread goes on
        ("host", "Block", 0): 40,
    }
    without = graph.step_ns(np.where(graph.labels["rank"].eq_missing(1), 0.0, 1.0))
    assert without.tolist() == [2 + 5 + 5 + 40], "the receive, the transfer, the thread, the block"


def test_a_wait_is_the_end_of_what_no_other_thread_does(tmp_path):
    """Calls and waits of equal arguments belong together, in whatever order these are.

    ::

        rank 1   Block     send of a    Block   send of b
        rank 0   irecv of a  irecv of b    [b.wait       ]Block [a.wait]
    """
    sender = Thread(1, "main").around(
        step(
            *(0, 90),
            span("Forward", "Block", 0, 30),
            comm("send", 30, 31, "0", num_bytes=4),
            span("Forward", "Block", 31, 80),
            comm("send", 80, 81, "0", num_bytes=8),
        )
    )
    main = Thread(1, "main").around(
        step(
            *(0, 110),
            comm("irecv", 0, 1, "1", num_bytes=4),
            comm("irecv", 1, 2, "1", num_bytes=8),
            wait("irecv", 20, 83, "1", num_bytes=8),
            span("Forward", "Block", 83, 108),
            wait("irecv", 108, 110, "1", num_bytes=4),
        )
    )
    graph = job(tmp_path, [main], [sender])
    assert on_path(graph, "kind", "rank") == {
        ("host", 1): 30 + 49,
        ("communication", None): 1 + 3,
        ("host", 0): 25,
        ("communication", 0): 2,
    }


def wait(op, start, end, peers, num_bytes=4):
    annotations = f"op={op} axis=dp group=1 bytes={num_bytes} peers={peers}"
    return span("Communication", f"wait[{annotations}]", start, end)


def test_the_result_of_a_remote_call_ends_a_wait(tmp_path):
    """
    ::

        main      (waits, in no span)        Forward
        calls     [rpc#f    [remote op]  ]
    """
    call = "rpc#f(worker0 -> worker1)"
    main = Thread(1, "main").around(step(0, 60, span("Forward", "Block", 45, 60)))
    calls = Thread(2, "calls").around(
        span("PythonUserDefined", call, 5, 40).around(
            span("PythonUserDefined", f"{call}#remote_op: relu", 10, 30)
        )
    )
    assert on_path(job(tmp_path, [main, calls]), "kind", "name") == {
        ("own code", "(own code)"): 5 + 5,
        ("host", call): 5 + 10,
        ("host", f"{call}#remote_op: relu"): 20,
        ("host", "Block"): 15,
    }


def test_a_thread_without_steps_goes_on_when_one_with_steps_has_come_there(tmp_path):
    """The backward of torch: its thread does nothing until the main thread calls it."""
    main = Thread(1, "main").around(
        step(0, 100, span("UserDefined", "backward", 40, 90)),
    )
    other = Thread(2, "autograd").around(
        span("Operator", "MulBackward", 50, 80).around(
            launch(55, 60, kernel("k", 70, 150)),
        )
    )
    graph = job(tmp_path, [main, other])
    assert on_path(graph, "kind") == {
        "own code": 40,
        "host": 10 + 5,
        "launch latency": 15,
        "kernel": 80,
    }


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), [(2, 3), (2, 4), (4, 4), (4, 9)])
def test_the_path_of_1f1b_holds_one_pass_of_each_micro_batch_and_the_pipelines_ramp(
    tmp_path, num_stages, num_micro_batches
):
    """(m + p - 1) forward and backward passes, whatever rank they are on; stages are equal."""
    ranks = _pipeline(num_stages, num_micro_batches, forward=30, backward=50)
    graph = job(tmp_path, *ranks, topology=Topology.of(pp=num_stages))
    num = num_micro_batches + num_stages - 1
    times = on_path(graph, "name")
    assert times["forward"] == num * 30
    assert times["backward"] == num * 50
    assert sum(times.values()) == graph.step_ns().sum()
    ticks = graph.step_ns().sum() - num * 80
    assert 0 <= ticks < 4 * num, "each transfer takes a tick or two"


def _pipeline(num_stages, num_micro_batches, forward, backward):
    """The threads of each stage: transfers take one tick, and a send's ends at once."""
    length = {"F": forward, "B": backward}
    waiting = [list(schedule(stage, num_stages, num_micro_batches)) for stage in range(num_stages)]
    free, sent = [0] * num_stages, {}
    inside = [[] for _ in range(num_stages)]
    while any(waiting):
        for stage, tasks in enumerate(waiting):
            while tasks:
                kind, batch = tasks[0]
                source, target = (stage - 1, stage + 1) if kind == "F" else (stage + 1, stage - 1)
                if 0 <= source < num_stages:
                    if (kind, source, batch) not in sent:
                        break
                    arrived = max(free[stage], sent[kind, source, batch]) + 1
                    inside[stage].append(_transfer("recv", free[stage], arrived, source))
                    free[stage] = arrived
                tasks.pop(0)
                name = {"F": "forward", "B": "backward"}[kind]
                end = free[stage] + length[kind]
                category = name.capitalize()
                inside[stage].append(
                    span(category, f"{name}[stage={stage} micro_batch={batch}]", free[stage], end)
                )
                free[stage] = end
                if 0 <= target < num_stages:
                    sent[kind, stage, batch] = end
                    inside[stage].append(_transfer("send", end, end + 1, target))
                    free[stage] = end + 1
    return [[Thread(1, "main").around(step(0, end, *spans))] for end, spans in zip(free, inside)]


def _transfer(name, start, end, peer):
    return span("Communication", f"{name}[axis=pp group=1 bytes=4 peers={peer}]", start, end)


@pytest.mark.parametrize(
    ("file", "instance", "length_us"),
    [("simple_add", 1, 241_724), ("alexnet", 1, 35_834), ("two_streams", None, 1_178)],
)
def test_hta_finds_the_same_longest_path(file, instance, length_us):
    """Holistic Trace Analysis 0.5.0 with pandas 2.3.3 gives these lengths for an instance of a span.

    Its graph has no gaps between outermost events, and waiting calls of its list weigh nothing. With
    these weights our graph has the same longest path.
    """
    trace = read(FIXTURES / f"critical_path/{file}.json.gz")
    first, last = -(2**62), 2**62
    if instance is not None:
        name = pl.col("name").cast(pl.String) == _MEASURED
        start, dur = trace.events.filter(name)["start_ns", "dur_ns"].sort("start_ns").row(instance)
        first, last = start, start + dur
    graph = job_graph([(0, 0, rank_graph(trace))])
    labels = graph.labels[graph.label]
    target = np.repeat(np.arange(len(graph.time_ns)), np.diff(graph.first))
    begins = graph.time_ns[graph.source]
    span_ns = graph.time_ns[target] - begins
    kind, name = labels["kind"].cast(pl.String), labels["name"].fill_null("")
    binds = np.zeros(len(target), bool)
    binds[graph.binding[graph.binding >= 0]] = True
    works = kind.is_in(["host", "runtime call", "kernel", "copy"]).to_numpy()
    works &= ~((kind == "runtime call") & name.is_in(_BLOCKING)).to_numpy()
    works &= ~name.str.starts_with("[param").to_numpy()  # an annotation is no operator
    delays = kind.is_in(["launch latency", "device gap"]).to_numpy() & binds
    is_inside = (begins >= first) & (begins <= last)
    weight_ns = np.where((works | delays) & is_inside, span_ns, 0)
    length_ns = np.zeros(len(graph.time_ns), np.int64)
    core.call("earliest", len(length_ns), graph.first, graph.source, weight_ns, length_ns)
    assert length_ns.max() == length_us * 1000
    assert (graph.replayed() == graph.time_ns).all()
    assert (slack_ns(graph) >= 0).all()


_MEASURED = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"
_BLOCKING = (
    *("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventQuery", "cudaEventSynchronize"),
    *("cudaMemcpy", "cudaMemcpyAsync"),
)


@pytest.mark.parametrize("name", ["slow_rank_and_link", "two_ranks_on_a_device", "small_net"])
def test_a_recorded_job_is_replayed_to_the_nanosecond(name):
    run = open_run(COMMITTED / name)
    parts = [
        (result.recording.rank, result.recording.window, result.value)
        for result in run.map_windows(rank_graph)
    ]
    graph = job_graph(parts, run.clocks, run.topology)
    assert (graph.replayed() == graph.time_ns).all()
    assert (slack_ns(graph) >= 0).all()
    lengths = graph.steps["end_ns"] - graph.steps["begin_ns"]
    assert graph.step_ns().tolist() == lengths.to_list()
    by_step = graph.on_path("step").sort("step")["time_ns"] * graph.steps.height
    assert by_step.to_list() == pytest.approx(lengths.to_list())
    if name == "slow_rank_and_link":  # planted: 4 times 60 ms in rank 3's block, 200 ms on the link
        planted = on_path(graph, "rank", "module")[3, "Block"], on_path(graph, "link")["1,5"]
        assert [time_ns / 3e6 for time_ns in planted] == pytest.approx([240, 200], abs=10)
