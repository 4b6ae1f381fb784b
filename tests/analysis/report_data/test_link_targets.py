"""The longest event of each name, and the operators of each module, of small traces.

::

    step 0   GPT        ##############                0 to 60 us
               Block       #########                  10 to 50
                 matmul    ===                        10 to 30, with a kernel of 25
             Block                       ####         60 to 90
               matmul                    ====         60 to 85, with a kernel of 15
             sgd                              ===     90 to 100
"""

from __future__ import annotations

import polars as pl
import pytest

from ppprof.analysis.diff.naming import Naming
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.steps import with_step
from ppprof.analysis.ranks.step_breakdown import breakdown
from ppprof.analysis.report_data.link_targets import longest_events
from ppprof.analysis.report_data.report import mean_module_work, module_work, remote_flows
from ppprof.trace import read
from tests.fixtures.timeline import Thread, kernel, launch, span, write

US = 1000


def matmul(at, start, end, busy):
    run = launch(
        at + start * US, at + start * US, kernel("gemm", at + start * US, at + (start + busy) * US)
    )
    return span("Operator", "matmul", at + start * US, at + end * US).around(run)


def step(number):
    at = 1000 * US * number
    block = span("Forward", "Block", at + 10 * US, at + 50 * US, matmul(at, 10, 30, 25))
    return span("ProfileStep", f"ProfileStep#{number}", at, at + 100 * US).around(
        span("Forward", "GPT", at, at + 60 * US, block),
        span("Forward", "Block", at + 60 * US, at + 90 * US, matmul(at, 60, 85, 15)),
        span("Operator", "sgd", at + 90 * US, at + 100 * US),
    )


@pytest.fixture
def profile(tmp_path):
    trace = write(tmp_path / "a.pb", Thread(1, "main", (step(0), step(1))))
    return Profile(with_step(read(trace)))


def test_the_longest_event_has_the_most_device_time(profile):
    places = longest_events(profile, Naming(), breakdown(profile))
    first = profile.tree.hosts["start_ns"].min()
    times = places.with_columns(pl.col("start_ns", "end_ns") - first)
    rows = {
        (row["kind"], row["name"].replace("\x1e", ":").replace("\x1f", "/")): (
            *(row["start_ns"] // US, row["end_ns"] // US),
            *(row[name] // US if row[name] is not None else None for name in ("cpu_ns", "gpu_ns")),
        )
        for row in times.rows(named=True)
        if row["kind"] != "gap"
    }
    assert rows == {
        ("operator", "matmul"): (10, 30, 25, 25),  # the longest on the host is the other one
        ("operator", "sgd"): (90, 100, 10, 0),
        ("phase", "Forward"): (0, 60, 60, 25),
        ("module", "GPT:0"): (0, 60, 60, 25),
        ("module", "GPT:0/Block:0"): (10, 50, 40, 25),
        ("module", "Block:0"): (60, 90, 30, 15),
        ("step", "0"): (0, 100, 100, None),
        ("step", "1"): (1000, 1100, 100, None),
        ("kernel", "gemm"): (10, 35, None, 25),
    }


def test_calls_outside_steps_are_not_the_longest(tmp_path):
    """The evaluation behind the steps calls matmul for longer; totals and means leave it out, too."""
    evaluation = span("Forward", "Block", 2000 * US, 2100 * US, matmul(2000 * US, 10, 90, 70))
    main = Thread(1, "main", (step(0), step(1), evaluation))
    profile = Profile(with_step(read(write(tmp_path / "a.pb", main))))
    longest = longest_events(profile, Naming(), breakdown(profile))
    maxima = {
        (row["kind"], row["name"]): (row["cpu_ns"], row["gpu_ns"])
        for row in longest.filter(pl.col("kind").is_in(["operator", "kernel"])).rows(named=True)
    }
    assert maxima == {
        ("operator", "matmul"): (25 * US, 25 * US),
        ("operator", "sgd"): (10 * US, 0),
        ("kernel", "gemm"): (None, 25 * US),
    }


def test_an_operator_belongs_to_the_innermost_module(profile):
    work = module_work(profile, Naming())
    rows = sorted(
        (kind, path.replace("\x1e", ":").replace("\x1f", "/"), name, calls, cpu / US, gpu / US)
        for kind, path, name, calls, cpu, gpu in work.select(
            "kind", "path", "name", "calls", "cpu_total_ns", "gpu_total_ns"
        ).iter_rows()
    )
    assert rows == [
        ("kernels", "Block:0", "gemm", 2, 0, 30),
        ("kernels", "GPT:0/Block:0", "gemm", 2, 0, 50),
        ("operators", "", "sgd", 2, 20, 0),
        ("operators", "Block:0", "matmul", 2, 50, 30),
        ("operators", "GPT:0/Block:0", "matmul", 2, 40, 50),
    ]


def test_means_of_modules_are_over_the_ranks_and_steps_of_a_stage(profile):
    work = module_work(profile, Naming())
    means = mean_module_work([(0, 2, work), (0, 2, work), (1, 2, work.clear())])
    assert set(means["stage"]) == {0}
    assert means.filter(name="sgd")["calls"].to_list() == [1]
    assert mean_module_work(()).is_empty()


def test_a_remote_call_is_followed_to_the_worker_and_back(tmp_path):
    call = "rpc#f(w0 -> w1)"

    def calling(start, *inside):
        events = [
            span("PythonUserDefined", f"{call}#remote_op: {name}", *times)
            for name, *times in inside
        ]
        return span("PythonUserDefined", call, start, start + 400 * US).around(*events)

    worker = Thread(
        9,
        "w1",
        (
            calling(10 * US, ("f", 110 * US, 310 * US)),
            calling(500 * US),  # the worker recorded nothing
        ),
    )
    main = Thread(1, "main", (span("ProfileStep", "ProfileStep#0", 0, 1000 * US),))
    flows = remote_flows(Profile(with_step(read(write(tmp_path / "a.pb", main, worker)))))
    first = flows["sent_ns"].min() - 10 * US
    times = pl.col("sent_ns", "began_ns", "ended_ns", "received_ns")
    assert flows.select("name", "worker", (times - first) // US).rows() == [
        (call, "w1", 10, 110, 310, 410),
        (call, "w1", 500, None, None, 900),
    ]
