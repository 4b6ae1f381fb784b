"""What each step is made of: small drawn timelines in, whole tables out; random ones by counting."""

from __future__ import annotations

import dataclasses
import itertools
import textwrap

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.ranks.rank_communication import communication_events
from ppprof.analysis.ranks.step_breakdown import LONG_CALL_NS, PARTS, breakdown
from ppprof.trace import read
from tests.fixtures import gpu_traces
from tests.fixtures.pipelines import OPTIMIZER_NS, one_f_one_b
from tests.fixtures.random_traces import traces
from tests.fixtures.timeline import EPOCH_NS, Thread, kernel, launch, memcpy, span, write

OPS = {"a": "all_reduce", "b": "broadcast", "s": "isend", "r": "irecv", "w": "irecv.wait"}


def drawn(text):
    """Threads from a drawing: a row is a label and a character a tick; a run is a span.

    Labels: ``step`` (digits are its number), ``op``, ``data``, ``pass`` (F and B), or the axis of
    the communication (letters of `OPS`, capitals separate neighbours). `` 2`` after a
    label is the second thread. ``pause`` is an evaluation. What lies in another span is its child.
    """
    spans = {}
    for row in textwrap.dedent(text).strip().splitlines():
        label, _, ticks = row.rpartition(" ")
        name, _, thread = label.strip().partition(" ")
        at = 0
        for char, run in itertools.groupby(ticks):
            end = at + len(list(run))
            if char != "_":
                drawn_span = (at, -end, len(spans), *_named(name, char))
                spans.setdefault(int(thread or 1), []).append(drawn_span)
            at = end
    return tuple(Thread(id, f"thread {id}", nested(rows)) for id, rows in spans.items())


def _named(label, char):
    if label == "step":
        return "ProfileStep", f"ProfileStep#{char}"
    if label == "op":
        return "Operator", "matmul dygraph"
    if label == "data":
        return "Dataloader", "DataLoader"
    if label == "pause":
        return "PythonUserDefined", "paused: evaluation"
    if label == "pass":
        kind = {"f": "Forward", "b": "Backward"}[char.lower()]
        return kind, f"{kind.lower()}[stage=1 micro_batch=0]"
    op, _, wait = OPS[char.lower()].partition(".")
    axis = "" if label == "?" else f" axis={label}"
    return (
        "Communication",
        f"wait[op={op}{axis} group=1]" if wait else f"{op}[{axis[1:] or 'group=1'}]",
    )


def nested(spans):
    """A forest of (start, -end, order, category, name), which hold one another or are apart."""
    spans, out = sorted(spans, key=lambda it: it[:3]), []
    while spans:
        start, negative_end, _, category, name = spans.pop(0)
        inside = list(itertools.takewhile(lambda it, end=-negative_end: it[0] < end, spans))
        del spans[: len(inside)]
        out.append(span(category, name, start, -negative_end, *nested(inside)))
    return tuple(out)


def table(path, *threads):
    """The breakdown as {"part" or "part axis": time of each step}."""
    rows = breakdown(Profile(read(write(path, *threads)))).parts
    found = {}
    for _, part, axis, time_ns in rows.rows():
        found.setdefault(f"{part} {axis}" if axis else part, []).append(time_ns)
    assert rows["step"].is_sorted()
    return found


def test_parts_are_disjoint_and_add_up(tmp_path):
    """In step 0 the second thread hides 2 of dp's ticks, and its mp wins 2 over dp."""
    threads = drawn(
        """
        step     00000000000000000000111111111111111__
        data     _ddd_________________________________
        op       ____ooooo_________oooo_________ooo___
        mp       ______aa______________aaa____________
        dp       _________aaaaaa______________________
        sharding __________________________aabb_______
        op 2     __________oo_________________________
        mp 2     _____________aaaa____________________
        """
    )
    assert table(tmp_path / "a.pb", *threads) == {
        "step": [20, 15],
        "computation": [3 + 2 + 2, 2 + 3],
        "exposed mp": [2 + 4, 3],
        "exposed sharding": [0, 4],
        "exposed dp": [2, 0],
        "data_loading": [3, 0],
        "bubble": [0, 0],
        "rest": [2, 3],
        "communication mp": [6, 3],
        "hidden mp": [0, 0],
        "communication sharding": [0, 4],
        "hidden sharding": [0, 0],
        "communication dp": [6, 0],
        "hidden dp": [2, 0],
    }


def test_slices_say_which_part_is_when(tmp_path):
    """A tick is a slice in step 0; in step 1 a slice is two ticks, and the first of them is shared."""
    threads = drawn(
        f"""
        step     {"0" * 240}{"1" * 480}
        data     {"_" * 10}{"d" * 30}{"_" * 200}{"_" * 480}
        op       {"_" * 40}{"o" * 90}{"_" * 110}{"o" * 301}{"_" * 179}
        dp       {"_" * 130}{"a" * 60}{"_" * 50}{"_" * 480}
        """
    )
    slices = breakdown(Profile(read(write(tmp_path / "a.pb", *threads)))).slices
    origin_ns = slices["start_ns"][0]
    assert slices.with_columns(pl.col("start_ns", "end_ns") - origin_ns).rows() == [
        (0, "rest", 0, 10),
        (0, "data_loading", 10, 40),
        (0, "computation", 40, 130),
        (0, "exposed", 130, 190),
        (0, "rest", 190, 240),
        (1, "computation", 240, 542),
        (1, "rest", 542, 720),
    ]


def test_a_stage_waits_between_its_passes_and_where_all_meet_after_them(tmp_path):
    """Between passes: a receive before the first, data and dp in the first gap, an idle last one."""
    threads = drawn(
        """
        step     00000000000000000000000000000000000000000
        data     __________________dd_____________________
        pass     ______FFFF_____BBB____FFFFF__BBB_________
        op       ______oo_o_____ooo____oo__o__ooo_______oo
        pp       __rrrr____srrr__________rr_________aabb__
        dp       ____________________aa__________aa_______
        """
    )
    assert table(tmp_path / "a.pb", *threads) == {
        "step": [41],
        "computation": [3 + 3 + 3 + 3 + 2],
        "exposed dp": [2 + 2],
        "exposed pp": [2 + 2],
        "data_loading": [2],
        "bubble": [4 + 5 + 2 + 2],
        "rest": [2 + 1 + 1],
        "communication dp": [4],
        "hidden dp": [0],
        "communication pp": [4 + 4 + 2 + 4],
        "hidden pp": [0],
    }


def test_a_receiving_thread_is_where_the_wait_shows(tmp_path):
    """The main thread's wait has no span; the sends of the pass before hide nothing."""
    threads = drawn(
        """
        step     00000000000000000000
        pass     FFFF______BBBB__FF__
        op       oooo______oooo__oo__
        pp 2     __sss_rrrr__________
        """
    )
    found = table(tmp_path / "a.pb", *threads)
    assert (found["bubble"], found["exposed pp"], found["hidden pp"]) == ([6 + 2], [0], [2])


def test_sends_to_unknown_ranks_go_to_a_stage_if_there_are_stages(tmp_path):
    threads = drawn(
        """
        step     000000000000
        pass     FFFF____BBBB
        op       oooo____oooo
        ?        ____srrr____
        """
    )
    found = table(tmp_path / "a.pb", *threads)
    assert (found["bubble"], found["exposed pp"]) == ([4], [0])


def test_passes_without_stages_are_no_pipeline(tmp_path):
    """Gradient accumulation: the time between two micro-batches waits for no rank."""
    steps = span("ProfileStep", "ProfileStep#0", 0, 100).around(
        span("Forward", "GPT", 0, 20),
        span("Backward", "Gradient Backward", 25, 60),
        span("Communication", "isend[group=1]", 60, 70),
        span("Forward", "GPT", 70, 90),
    )
    assert table(tmp_path / "a.pb", Thread(1, "main", (steps,))) == {
        "step": [100],
        "computation": [0],
        "exposed ?": [10],
        "data_loading": [0],
        "bubble": [0],
        "rest": [90],
        "communication ?": [10],
        "hidden ?": [0],
    }


def test_an_operator_named_after_a_collective_counts_where_nothing_better_is_known(tmp_path):
    def step(*inside):
        return Thread(1, "main", (span("ProfileStep", "ProfileStep#0", 0, 50, *inside),))

    named = span("Operator", "c_allreduce_sum", 10, 20)
    assert table(tmp_path / "a.pb", step(named))["exposed ?"] == [10]
    recorded = span("Communication", "all_reduce[axis=dp]", 20, 25)
    assert "exposed ?" not in table(tmp_path / "a.pb", step(named, recorded))


@pytest.mark.parametrize("division", ["scale kernel launch", "scale compute"])
def test_the_all_reduce_of_data_parallel_is_communication(division, tmp_path):
    """Of the gradient node, 10 to 40, all after the division; a node without one computes."""
    reduced = span("Operator", "Global_GradNodeAccumulation", 10, 40).around(
        span("DygraphKernelLaunch", "empty kernel launch", 11, 12),
        span("DygraphKernelLaunch", division, 13, 15),
    )
    hooked = span("Operator", "Global_GradNodeAccumulation", 42, 48).around(
        span("Operator", "scale dygraph", 43, 46, span("DygraphKernelLaunch", division, 44, 45))
    )
    step = span("ProfileStep", "ProfileStep#0", 0, 50, reduced, hooked)
    found = table(tmp_path / "a.pb", Thread(1, "main", (step,)))
    assert (found["computation"], found["exposed dp"], found["rest"]) == ([5 + 6], [25], [14])


def test_one_node_may_reduce_several_groups(tmp_path):
    """
    ::

        node        ####################    10 to 30
        prepares     ##      ##             11 to 13, 19 to 21
        all-reduce     ------  ---------    13 to 19, 21 to 30
    """
    name = "scale kernel launch"
    prepares = [span("DygraphKernelLaunch", name, start, start + 2) for start in (11, 19)]
    node = span("Operator", "Global_GradNodeAccumulation", 10, 30).around(*prepares)
    step = span("ProfileStep", "ProfileStep#0", 0, 40, node)
    found = table(tmp_path / "a.pb", Thread(1, "main", (step,)))
    assert (found["computation"], found["exposed dp"]) == ([1 + 2 + 2], [6 + 9])


def test_the_all_reduce_of_data_parallel_on_a_device_is_its_kernel(tmp_path):
    reduced = span("Operator", "Global_GradNodeAccumulation", 10, 40).around(
        span("DygraphKernelLaunch", "scale kernel launch", 13, 15).around(
            launch(13, 14, kernel("scale", 14, 16))
        ),
        launch(20, 21, kernel("ncclKernel_AllReduce", 21, 30)),
    )
    step = span("ProfileStep", "ProfileStep#0", 0, 50, reduced)
    found = table(tmp_path / "a.pb", Thread(1, "main", (step,)))
    assert (found["computation"], found["exposed ?"]) == ([2], [9])


def test_kernels_of_every_makers_library_communicate(tmp_path):
    """Paddle's own tables count hcom and cncl as computation: test_equals_paddle.py."""
    found = table(tmp_path / "a.pb", *gpu_traces.other_makers())
    assert found["computation"] == [30 + 5]
    assert (found["communication ?"], found["hidden ?"]) == ([30 + 10], [10])


def test_sends_that_another_call_launches_are_no_waiting(tmp_path):
    """The group's kernel is launched at its end, outside the two spans.

    ::

        tick           0         1         2
        passes         __FFFF______________
        spans          ______sssssrrrrr____
        gemm, nccl     __gggg____________nn
        bubble         __________________##   not the spans: nothing waits in them
        host-bound     ##____############__
    """
    thread = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#0", 0, 20).around(
            span("Forward", "forward[stage=0 micro_batch=0]", 2, 6).around(
                launch(2, 2, kernel("gemm", 2, 6))
            ),
            span("Communication", "send[axis=pp group=2 peers=1]", 6, 11),
            span("Communication", "recv[axis=pp group=2 peers=1]", 11, 16),
            launch(18, 18, kernel("ncclDevKernel_SendRecv", 18, 20, stream=20)),
        ),
    )
    found = table(tmp_path / "a.pb", thread)
    assert (found["bubble"], found["host_bound"]) == ([2], [2 + 12])


@pytest.mark.parametrize(
    ("stream", "only_axis", "expected"),
    [(20, None, "dp"), (7, None, "?"), (7, "sharding", "sharding")],
)
def test_the_reducers_kernels_have_the_axis_of_their_stream_or_of_the_job(
    stream, only_axis, expected, tmp_path
):
    """Stream 20 has kernels over dp alone; on stream 7 is computation, too."""
    reduced = span("Operator", "Global_GradNodeAccumulation", 10, 14).around(
        launch(12, 13, kernel("ncclDevKernel_AllReduce", 20, 30, stream=stream))
    )
    known = span("Communication", "broadcast[axis=dp group=3 peers=0,1]", 14, 16).around(
        launch(15, 15, kernel("ncclDevKernel_Broadcast", 30, 35, stream=20))
    )
    gemm = span("Operator", "matmul dygraph", 0, 9, launch(1, 2, kernel("gemm", 2, 8)))
    step = span("ProfileStep", "ProfileStep#0", 0, 40, gemm, reduced, known)
    trace = read(write(tmp_path / "a.pb", Thread(1, "main", (step,))))
    profile = Profile(dataclasses.replace(trace, only_axis=only_axis))
    events = communication_events(profile).sort("start_ns")
    assert events["axis"].to_list() == [expected, "dp"]


@pytest.mark.parametrize("only_axis", [None, "dp"])
def test_a_group_of_no_axis_has_none(only_axis, tmp_path):
    """Ranks 0 and 3 of dp2 x mp2 are on no axis; neither the stream nor the job says otherwise."""
    calls = [
        span("Communication", name, start, start + 2).around(
            launch(start, start, kernel("ncclDevKernel_AllReduce", start, start + 2, stream=20))
        )
        for start, name in (
            (10, "all_reduce[axis=dp group=3 peers=0,2]"),
            (20, "all_reduce[group=4 peers=0,3]"),
        )
    ]
    step = span("ProfileStep", "ProfileStep#0", 0, 40, *calls)
    trace = read(write(tmp_path / "a.pb", Thread(1, "main", (step,))))
    profile = Profile(dataclasses.replace(trace, only_axis=only_axis))
    events = communication_events(profile).sort("start_ns")
    assert events["axis"].to_list() == ["dp", "?"]


def test_a_group_of_calls_gives_its_kernel_the_axis(tmp_path):
    """The group's span has an axis and no operation; the kernel's own name says that it sends."""
    grouped = span("Communication", "coalesced[axis=pp group=2]", 6, 9).around(
        span("Communication", "send[axis=pp group=2 bytes=4 peers=1]", 7, 8),
        launch(8, 9, kernel("ncclDevKernel_SendRecv", 9, 14, stream=20)),
    )
    thread = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#0", 0, 20, grouped).around(
            span("Operator", "matmul dygraph", 0, 5, launch(1, 2, kernel("gemm", 2, 6)))
        )
    )
    profile = Profile(read(write(tmp_path / "a.pb", thread)))
    events = communication_events(profile)
    assert events.select("name", "axis").rows() == [("ncclDevKernel_SendRecv", "pp")]


def test_without_steps_there_are_no_rows(tmp_path):
    rows = breakdown(Profile(read(write(tmp_path / "a.pb", *drawn("op oooo"))))).parts
    assert rows.is_empty()
    assert rows.schema == {
        "step": pl.Int64,
        "part": pl.String,
        "axis": pl.String,
        "time_ns": pl.Int64,
    }


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("micro_batches", [4, 5, 6, 7, 8])
def test_the_bubble_of_1f1b_is_the_formula(stages, micro_batches, tmp_path):
    """(p - 1) / (m + p - 1) of the pipeline's time, on every stage, to the nanosecond."""
    pipeline_ns = (micro_batches + stages - 1) * (30 + 50)
    for thread in one_f_one_b(stages, micro_batches, meets=True):
        found = table(tmp_path / "a.pb", thread)
        assert found["step"] == [pipeline_ns + OPTIMIZER_NS]
        assert found["bubble"][0] * (micro_batches + stages - 1) == (stages - 1) * pipeline_ns
        assert found["computation"] == [micro_batches * 80 + OPTIMIZER_NS]
        assert (found["exposed pp"], found["rest"]) == ([0], [0])


def test_stages_that_do_not_meet_wait_in_the_next_step(tmp_path):
    """Each is late by what it drained early; from the second step on they all wait as long."""
    for thread in one_f_one_b(3, 4, meets=False, steps=3):
        assert table(tmp_path / "a.pb", thread)["bubble"][1:] == [160, 160]


def test_a_step_lasts_until_its_kernels_are_over_and_launches_stand_apart(tmp_path):
    """A gemm of step 0 ends after the host's step; the copy of step 1 is in the rest, its sync no idling.

    ::

        tick           0         1         2         3
        host's step    0000000000000000000011111111111111111111
        step           0000000000000000000000000000011111111111
        data           dddd____________________________________
        launches       ____lllll_ll__________ll________________
        sync           ___________________________________yyyyy
        gemm           _______ggggg___________gggggg___________
        nccl, dp       ___________nnnnn________________________
        copy           _______________________________cc_______
        queued         ______#_________#######______##_________
        host-bound     ____##___________________________##_____
    """

    def step(number, start, end):
        return span("ProfileStep", f"ProfileStep#{number}", start, end)

    thread = Thread(1, "main").around(
        step(0, 0, 20).around(
            span("Dataloader", "DataLoader", 0, 4),
            span("Operator", "matmul dygraph", 4, 9).around(
                launch(4, 6, kernel("gemm", 7, 12)), launch(7, 9, kernel("gemm", 23, 29))
            ),
            span("Communication", "all_reduce[axis=dp group=1]", 10, 12).around(
                launch(10, 12, kernel("ncclDevKernel_AllReduce", 11, 16, stream=20))
            ),
        ),
        step(1, 20, 40).around(
            launch(22, 24, memcpy(31, 33, 64), name="cudaMemcpyAsync"),
            launch(35, 40, name="cudaDeviceSynchronize"),
        ),
    )
    assert table(tmp_path / "a.pb", thread) == {
        "step": [29, 11],
        "computation": [5 + 6, 0],
        "exposed dp": [4, 0],
        "data_loading": [4, 0],
        "bubble": [0, 0],
        "host_bound": [2, 2],
        "queued": [1 + 7, 2],
        "rest": [0, 2 + 5],
        "communication dp": [5, 0],
        "hidden dp": [1, 0],
        "host_launch": [2 + 2 + 2 + 2, 0],
    }


def test_a_long_copy_beside_work_of_a_device_waits_for_it(tmp_path):
    """A copy from memory that is not pinned returns when its stream has reached it.

    ::

        tick      0         1
        calls     lCCCCCCC__cc________
        gemm      _ggggg______________
        copies    ______c____cc_______
        launches  #______#__##________    a short copy does not wait, whatever the devices do
    """
    tick = LONG_CALL_NS // 5

    def between(make, name, start, end, *devices):
        return make(start * tick, end * tick, *devices, name=name)

    thread = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#0", 0, 20 * tick).around(
            between(launch, "cudaLaunchKernel", 0, 1, kernel("gemm", 1 * tick, 6 * tick)),
            between(launch, "cudaMemcpyAsync", 1, 8, memcpy(6 * tick, 7 * tick, 64)),
            between(launch, "cudaMemcpyAsync", 10, 12, memcpy(11 * tick, 13 * tick, 64)),
        )
    )
    assert table(tmp_path / "a.pb", thread)["host_launch"] == [(1 + 1 + 2) * tick]


def test_a_device_waits_for_other_stages_in_its_receives(tmp_path):
    """The host launches all at once, but for a pause of 3 before the backward's second kernel.

    ::

        tick           0         1         2         3
        passes         ____FFFFFFFF____________BBBBBBBBBB______
        gemm           ____ggg__ggg____________ggg____ggg______
        mp             _______nn_______________________________
        pp             rrrrr_______s___rrrrrrrrr_______________
        sync           _____________y__________________________
        bubble         ####________##__########________________
        queued         _______________#_____________##_________
        host-bound     ______________#____________##_____######
    """

    def launched(at, name, start, end, stream=7):
        return launch(at, at, kernel(name, start, end, stream=stream))

    def sends(at, name, *devices):
        return span("Communication", f"{name}[axis=pp group=2]", at, at, *devices)

    thread = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#0", 0, 40).around(
            sends(0, "recv", launched(0, "ncclDevKernel_SendRecv", 0, 5, 20)),
            span("Forward", "forward[stage=0 micro_batch=0]", 0, 1).around(
                launched(0, "gemm", 4, 7),
                span("Communication", "all_reduce[axis=mp group=1]", 0, 0).around(
                    launched(0, "ncclDevKernel_AllReduce", 7, 9, 20)
                ),
                launched(1, "gemm", 9, 12),
            ),
            sends(1, "send", launched(1, "ncclDevKernel_SendRecv", 12, 13, 20)),
            launch(13, 14, name="cudaStreamSynchronize"),
            sends(15, "recv", launched(15, "ncclDevKernel_SendRecv", 16, 25, 20)),
            span("Backward", "backward[stage=0 micro_batch=0]", 15, 29).around(
                launched(15, "gemm", 24, 27), launched(29, "gemm", 31, 34)
            ),
        ),
    )
    assert table(tmp_path / "a.pb", thread) == {
        "step": [40],
        "computation": [3 + 3 + 3 + 3],
        "exposed mp": [2],
        "exposed pp": [0],
        "data_loading": [0],
        "bubble": [4 + 1 + 1 + 8],
        "host_bound": [1 + 2 + 6],
        "queued": [1 + 2],
        "rest": [0],
        "communication mp": [2],
        "hidden mp": [0],
        "communication pp": [5 + 1 + 9],
        "hidden pp": [1 + 1],
        "host_launch": [0],
    }


@st.composite
def drawings(draw):
    """Rows for `drawn`: up to three steps, with passes and pauses or without, and a second thread."""
    axes = sorted(draw(st.sets(st.sampled_from(["mp", "dp", "pp", "pp+mp", "?"]), min_size=1)))
    staged = draw(st.booleans())
    inner = st.sampled_from(["gap", "op", *axes])
    outer = st.sampled_from(["gap", "op", "data", "pause", *axes, *["pass"] * (3 * staged)])
    rows, letters = {}, {"data": "d", "pass": "fb", "op": "o", "pause": "z"}

    def put(label, at, end):
        row = rows.get(label, "").ljust(at, "_")
        letter = draw(st.sampled_from(letters.get(label.split()[0], "absrw")))
        apart = letter.upper() if row[-1:] == letter else letter
        rows[label] = row + apart * (end - at)

    def fill(at, thread, kinds, count):
        for kind in draw(st.lists(kinds, max_size=count)):
            end = at + draw(st.integers(1, 4))
            if kind in ("pass", "pause"):
                end = fill(at, thread, inner, 3) + 1
            if kind != "gap":
                put(f"{kind}{thread}", at, end)
            at = end
        return at

    at, steps = draw(st.integers(0, 3)), ""
    for number in range(draw(st.integers(1, 3))):
        end = fill(at, "", outer, 8) + 1
        steps = steps.ljust(at, "_") + str(number) * (end - at)
        at = end + draw(st.integers(0, 2))
    fill(0, " 2", inner, 12)
    return {"step": steps, **rows}


def runs(row):
    """Letter, first tick and tick after the last of each span of a row."""
    at = 0
    for char, run in itertools.groupby(row):
        end = at + len(list(run))
        if char != "_":
            yield char.lower(), at, end
        at = end


def at_ticks(spans):
    return {tick for start, end in spans for tick in range(start, end)}


def counted(rows):
    """What `table` has for a drawing, as sets of ticks one by one."""
    step_of = {tick: int(char) for tick, char in enumerate(rows["step"]) if char != "_"}
    spans = {label: list(runs(row)) for label, row in rows.items() if label != "step"}
    passes = [(start, end) for _, start, end in spans.pop("pass", [])]
    paused = at_ticks(span[1:] for span in spans.pop("pause", []))
    data = at_ticks(span[1:] for span in spans.pop("data", []))
    operators = {id: at_ticks(span[1:] for span in spans.pop(f"op{id}", [])) for id in ("", " 2")}
    sent, bubble, exposed, communication = [], set(), {}, {}
    with_passes = {step_of[start] for start, _ in passes}
    for label, drawn_spans in spans.items():
        axis, _, thread = label.partition(" ")
        operators[f" {thread}" if thread else ""] -= at_ticks(span[1:] for span in drawn_spans)
        for letter, start, end in drawn_spans:
            stages = "pp" in axis or (axis == "?" and passes)
            if stages and letter in "srw" and step_of.get(start) in with_passes:
                sent.append((start, end))
            else:
                exposed.setdefault(axis, []).append((letter, start, end))
    for step in with_passes:
        own = [ends for ends in passes if step_of[ends[0]] == step]
        all_of_it = own + [ends for ends in sent if step_of[ends[0]] == step]
        first, last = min(all_of_it)[0], max(end for _, end in all_of_it)
        bubble |= set(range(first, last)) - at_ticks(passes)
        meetings = [
            (start, axis, (letter, start, end))
            for axis, spans_of_axis in exposed.items()
            for letter, start, end in spans_of_axis
            if "pp" in axis
            and letter == "a"
            and step_of.get(start) == step
            and start >= max(end for _, end in own)
        ]
        if meetings:
            _, axis, meeting = min(meetings)
            exposed[axis].remove(meeting)
            communication.setdefault(axis, set()).update(range(*meeting[1:]))
            bubble |= set(range(*meeting[1:]))
    exposed = {
        axis: at_ticks(span[1:] for span in spans_of_axis)
        for axis, spans_of_axis in exposed.items()
    }
    exposed.setdefault("pp", set()).update(at_ticks(sent) - bubble)
    for axis, ticks in exposed.items():
        communication.setdefault(axis, set()).update(ticks)
    communication["pp"] |= at_ticks(sent)
    computation = operators[""] | operators[" 2"]
    axes = [axis for axis in ("mp", "dp", "pp", "pp+mp", "?") if communication.get(axis)]
    instants = {"step": set(step_of) - paused, "computation": computation}
    instants.update({f"exposed {axis}": exposed.get(axis, set()) for axis in axes})
    instants.update({"data_loading": data, "bubble": bubble, "rest": set(step_of)})
    taken = paused
    for part in list(instants)[1:]:
        instants[part], taken = instants[part] - taken, taken | instants[part]
    for axis in axes:
        instants[f"communication {axis}"] = communication[axis] - paused
        instants[f"hidden {axis}"] = communication[axis] & computation - paused
    return {
        part: [
            sum(step_of.get(tick) == step for tick in ticks) for step in sorted({*step_of.values()})
        ]
        for part, ticks in instants.items()
    }


@given(rows=drawings())
def test_drawings_against_counting(rows, tmp_path):
    text = "\n".join(f"{label} {row}" for label, row in rows.items())
    assert table(tmp_path / "a.pb", *drawn(text)) == counted(rows)


@given(threads=traces(newer_types=True))
def test_parts_of_random_traces_add_up(threads, tmp_path):
    trace = read(write(tmp_path / "a.pb", *threads))
    # Memory of a GPU without a kernel would leave only the step and its data loading.
    rows = breakdown(Profile(dataclasses.replace(trace, unrecorded_device=""))).parts
    whole = rows.filter(part="step").select("step", "time_ns")
    parts = rows.filter(pl.col("part").is_in(PARTS))
    assert parts["time_ns"].min() >= 0
    assert parts.group_by("step", maintain_order=True).agg(pl.sum("time_ns")).equals(whole)


@given(rows=drawings())
def test_slices_fill_their_step(rows, tmp_path):
    text = "\n".join(f"{label} {row}" for label, row in rows.items())
    slices = breakdown(Profile(read(write(tmp_path / "a.pb", *drawn(text))))).slices
    paused = at_ticks(span[1:] for span in runs(rows.get("pause", "")))
    for number in set(rows["step"]) - {"_"}:
        own = slices.filter(step=int(number))
        start, end = (own[name].to_numpy() - EPOCH_NS for name in ("start_ns", "end_ns"))
        ticks = {tick for tick, char in enumerate(rows["step"]) if char == number}
        assert at_ticks(zip(start, end)) == ticks - paused
        assert (start[1:] >= end[:-1]).all()
        assert (end > start).all()
