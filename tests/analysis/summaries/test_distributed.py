"""Communication, computation and overlap of a trace that has no device events, beyond Paddle's."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict

import pytest
from hypothesis import given

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.ranks.step_breakdown import breakdown
from ppprof.analysis.summaries.views import summarize
from ppprof.choices import SummaryOptions
from ppprof.report.text.summary import TableOptions, render_tables
from ppprof.run.summary import read_tables
from ppprof.rundir.summaries import rows_of
from ppprof.trace import read
from tests.fixtures import gpu_traces
from tests.fixtures.random_traces import traces
from tests.fixtures.saved_tables import to_json
from tests.fixtures.timeline import Launch, Span, Thread, kernel, launch, span, write


def profile_of(path, *threads):
    trace = dataclasses.replace(read(write(path, *threads)), unrecorded_device="")
    return Profile(trace, SummaryOptions("cpu_total"))


def times_of(profile):
    return {row["name"]: row["time_ns"] for row in summarize(profile, "dist").rows(named=True)}


def two_threads(*devices):
    """
    ::

        main    step     ############################################################
          operator       ######### ########### ##############
            inner                   #########
            communicates                          ###########         ######
              operator                               ####
        sender
          communicates       ########             #####
          inner, launch                                #####           ###

        Communication        #################    ###########         ######          17 + 11 + 6
        Computation      #########             ###     #####           ###            9 + 3 + 5 + 3
        Overlap              #####                     #####           ###            5 + 5 + 3

    The second operator, 10 to 21, is named after a collective.
    """
    return (
        Thread(1, "main").around(
            span("ProfileStep", "ProfileStep#0", 0, 60).around(
                span("Operator", "matmul dygraph", 0, 9, *devices),
                span("Operator", "c_allreduce_sum", 10, 21).around(
                    span("OperatorInner", "c_allreduce_sum compute", 11, 20)
                ),
                span("Operator", "fused", 22, 36).around(
                    span("Communication", "all_reduce", 25, 36, span("Operator", "scale", 28, 32))
                ),
                span("UserDefined", "neither", 38, 44),
                span("Communication", "barrier", 45, 51),
            ),
        ),
        Thread(2, "sender").around(
            span("Communication", "isend", 4, 12),
            span("Communication", "isend.wait", 25, 30),
            span("OperatorInner", "copy", 30, 35),
            span("DygraphKernelLaunch", "add", 46, 49),
        ),
    )


def test_operators_stand_for_kernels(tmp_path):
    rows = summarize(profile_of(tmp_path / "a.pb", *two_threads()), "dist")
    assert rows.rows() == [
        ("ProfileStep", 60, 1.0, None),
        ("Communication", 34, 34 / 60, None),
        ("Computation", 20, 20 / 60, "operators"),
        ("Overlap", 13, 13 / 60, "operators"),
        ("Exposed Communication", 21, 21 / 60, "operators"),
    ]


def test_one_kernel_and_only_kernels_compute(tmp_path):
    """Communication goes on from 4 to 21 without a break; the kernel runs from 5 to 15."""
    devices = launch(1, 2, kernel("gemm", 5, 15))
    rows = summarize(profile_of(tmp_path / "a.pb", *two_threads(devices)), "dist")
    assert rows.select("name", "time_ns", "computed_by").rows()[1:] == [
        ("Communication", 34, None),
        ("Computation", 10, "kernels"),
        ("Overlap", 10, "kernels"),
        ("Exposed Communication", 24, "kernels"),
    ]


def test_a_rank_that_only_communicates_hides_nothing(tmp_path):
    thread = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#0", 0, 20, span("Communication", "recv", 3, 17)),
    )
    assert times_of(profile_of(tmp_path / "a.pb", thread)) == {
        "ProfileStep": 20,
        "Communication": 14,
        "Computation": 0,
        "Overlap": 0,
        "Exposed Communication": 14,
    }


def test_without_communication_there_is_no_table(tmp_path):
    assert times_of(profile_of(tmp_path / "a.pb", *gpu_traces.one_step())) == {}


@pytest.mark.parametrize(
    "name", ["warpctc dygraph", "Global_WarpctcGradNode", "broadcast_to dygraph"]
)
def test_an_operator_with_letters_of_a_collective_does_not_communicate(tmp_path, name):
    """Paddle's rule finds "rpc" in the loss of CTC."""
    thread = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#0", 0, 20, span("Operator", name, 3, 17)),
    )
    assert times_of(profile_of(tmp_path / "a.pb", thread)) == {}


def test_a_conversion_between_placements_communicates_where_it_moves_data(tmp_path):
    """Paddle's Communication events stand around each: to cut out a part, here 5 to 9, moves nothing."""
    thread = Thread(1, "main").around(
        span("ProfileStep", "ProfileStep#0", 0, 60).around(
            span("Communication", "dtensor_from_local dygraph", 1, 3),
            span("Communication", "reshard dygraph", 4, 10).around(
                span("OperatorInner", "RToSReshard", 5, 9),
            ),
            span("Communication", "reshard dygraph", 20, 40).around(
                span("OperatorInner", "SToRReshard", 21, 38),
            ),
            span("Communication", "dtensor_to_local dygraph", 50, 55),
        )
    )
    assert times_of(profile_of(tmp_path / "a.pb", thread))["Communication"] == 38 - 21


def test_as_printed_and_as_printed_from_data(tmp_path):
    profile = profile_of(tmp_path / "a.pb", *two_threads())
    lines = render_tables(
        rows_of({"dist": summarize(profile, "dist")}), TableOptions("ns")
    ).splitlines()
    assert [line.split() for line in lines[5:10]] == [
        ["ProfileStep", "60.00", "100.00"],
        ["Communication", "34.00", "56.67"],
        ["Computation", "20.00", "33.33"],
        ["Overlap", "13.00", "21.67"],
        ["Exposed", "Communication", "21.00", "35.00"],
    ]
    assert "here operators stand for kernels." in "\n".join(lines)

    (tmp_path / "w0.json").write_text(to_json(profile), encoding="utf-8")
    _, tables = read_tables(tmp_path / "w0.json")
    assert (
        render_tables(rows_of({"dist": tables["dist"]}), TableOptions("ns")).splitlines() == lines
    )


def test_tables_of_older_runs_keep_paddles_note(tmp_path):
    """They were written when Computation was kernels, and nothing said so."""
    document = to_json(profile_of(tmp_path / "a.pb", *two_threads()))
    older = re.sub(r',\s*"computed_by": (null|"operators")', "", document)
    (tmp_path / "w0.json").write_text(older, encoding="utf-8")
    _, tables = read_tables(tmp_path / "w0.json")
    assert "Computation time: Kernel time" in render_tables(
        rows_of({"dist": tables["dist"]}), TableOptions()
    )


@given(threads=traces(newer_types=True))
def test_random_traces_against_counting(threads, tmp_path):
    """Between two neighbouring instants of a trace nothing changes: each such stretch is a tick."""
    threads = [_without_launches(thread) for thread in threads]
    communicates, operates = defaultdict(list), defaultdict(list)
    for thread in threads:
        for event in _spans(thread):
            if _is_communication(event):
                communicates[thread.id].append(event)
            elif event.category in OPERATORS:
                operates[thread.id].append(event)
    instants = {time for thread in threads for event in _spans(thread) for time in _ends(event)}
    communication = computation = both = 0
    for start, end in zip(sorted(instants), sorted(instants)[1:]):
        talking = {id for id, events in communicates.items() if _any_at(events, start)}
        running = {id for id, events in operates.items() if _any_at(events, start)}
        communication += (end - start) * bool(talking)
        computation += (end - start) * bool(running - talking)
        both += (end - start) * bool(talking and running - talking)

    times = times_of(profile_of(tmp_path / "a.pb", *threads))
    times.pop("ProfileStep", None)
    expected = {
        "Communication": communication,
        "Computation": computation,
        "Overlap": both,
        "Exposed Communication": communication - both,
    }
    assert times == (expected if any(communicates.values()) else {})


OPERATORS = ("Operator", "OperatorInner", "DygraphKernelLaunch", "StaticKernelLaunch")


def _is_communication(event):
    named = any(word in event.name.lower() for word in ("allreduce", "broadcast", "rpc"))
    return event.category == "Communication" or (event.category == "Operator" and named)


def _any_at(events, time):
    return any(event.start <= time < event.end for event in events)


def _ends(event):
    return event.start, event.end


def _spans(node):
    for item in node.inside:
        if isinstance(item, Span):
            yield item
            yield from _spans(item)


def _without_launches(node):
    inside = [
        _without_launches(item) if isinstance(item, Span) else item
        for item in node.inside
        if not isinstance(item, Launch)
    ]
    return dataclasses.replace(node, inside=tuple(inside))


def test_reductions_of_data_parallel_are_communication_on_a_cpu(tmp_path):
    """They have no event: of the gradient node, 10 to 40, all after the division, as in ``ranks``."""
    reduced = span("Operator", "Global_GradNodeAccumulation", 10, 40).around(
        span("DygraphKernelLaunch", "empty kernel launch", 11, 12),
        span("DygraphKernelLaunch", "scale kernel launch", 13, 15),
    )
    step = span("ProfileStep", "ProfileStep#0", 0, 50, reduced)
    profile = profile_of(tmp_path / "a.pb", Thread(1, "main", (step,)))
    times = times_of(profile)
    assert (times["Communication"], times["Computation"], times["Overlap"]) == (25, 5, 0)
    parts = breakdown(profile).parts.filter(part="exposed")["time_ns"].sum()
    assert times["Exposed Communication"] == parts == 25
