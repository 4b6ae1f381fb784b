from __future__ import annotations

import dataclasses

import polars as pl

from ppprof.analysis.profile.module_tree import OCCURRENCE, SEPARATOR, modules
from ppprof.analysis.profile.profile import Profile
from ppprof.trace import read
from tests.fixtures.timeline import Thread, kernel, launch, span, write


def table(tmp_path, *threads):
    return paths(modules(Profile(read(write(tmp_path / "a.pb", *threads)))))


def paths(table):
    path = pl.col("path").str.replace_all(OCCURRENCE, "#").str.replace_all(SEPARATOR, "/")
    return table.sort("step", "start_ns", "path").with_columns(path)


def test_times_of_modules_on_a_cpu(tmp_path):
    """
    ::

        ProfileStep#0    ########################      24
          Forward GPT     ##############               1 to 15
            Block          ####                        2 to 6
              matmul        ##
            Block               #####                  7 to 12
          Backward                       ####          17 to 21
    """
    step = span("ProfileStep", "ProfileStep#0", 0, 24).around(
        span("Forward", "GPT", 1, 15).around(
            span("Forward", "Block", 2, 6, span("Operator", "matmul", 3, 5)),
            span("Forward", "Block", 7, 12),
        ),
        span("Backward", "Backward", 17, 21),
    )
    found = table(tmp_path, Thread(1, "main", (step,)))
    assert found.select("path", "start_ns", "time_ns", "self_ns", "cpu_ns", "gpu_ns").rows() == [
        ("", 0, 24, 6, 24, 0),
        ("GPT#0", 1, 14, 5, 14, 0),
        ("GPT#0/Block#0", 2, 4, 4, 4, 0),
        ("GPT#0/Block#1", 7, 5, 5, 5, 0),
        ("Backward#0", 17, 4, 4, 4, 0),
    ]


def test_what_launches_onto_a_device_takes_the_time_there(tmp_path):
    """
    ::

        GPT          ##########     0 to 10
          Linear       ###          launches a kernel of 20
          Tokens            ##      works on the CPU: 2
        (GPT itself)                launches a kernel of 3
    """
    step = span("ProfileStep", "ProfileStep#0", 0, 30).around(
        span("Forward", "GPT", 0, 10).around(
            span("Forward", "Linear", 2, 5, launch(3, 4, kernel("gemm", 5, 25))),
            span("Forward", "Tokens", 6, 8),
            span("Operator", "add", 8, 9, launch(8, 9, kernel("add", 25, 28))),
        )
    )
    found = table(tmp_path, Thread(1, "main", (step,)))
    assert found.select("path", "time_ns", "self_ns", "cpu_ns", "gpu_ns").rows() == [
        ("", 25, 0, 30, 23),
        ("GPT#0", 25, 3, 10, 23),
        ("GPT#0/Linear#0", 20, 20, 3, 20),
        ("GPT#0/Tokens#0", 2, 2, 2, 0),
    ]


def test_operators_of_a_program_are_modules_of_the_layer_that_runs_it(tmp_path):
    """
    ::

        Net                       ################              0 to 16
          interpreter_core_run     #############                1 to 14
            pd_op.gelu              ###    ####                 2 to 5 and 9 to 13
            pd_op.add_                 ####                     5 to 9
        Backward                                    ##########  20 to 30
          Global_Dy2StGradNode                       ########   21 to 29, of the run
            interpreter_core_run                      ######    22 to 28
              pd_op.gelu_grad                          ###      23 to 26
        executor    pd_op.full, on another thread                3 to 8
    """
    run = span("UserDefined", "interpreter_core_run", 1, 14).around(
        span("Operator", "pd_op.gelu", 2, 5),
        span("Operator", "pd_op.add_", 5, 9),
        span("Operator", "pd_op.gelu", 9, 13),
    )
    again = span("UserDefined", "interpreter_core_run", 22, 28).around(
        span("Operator", "pd_op.gelu_grad", 23, 26)
    )
    step = span("ProfileStep", "ProfileStep#0", 0, 30).around(
        span("Forward", "Net", 0, 16, run),
        span("Backward", "Backward", 20, 30).around(
            span("Operator", "Global_Dy2StGradNode", 21, 29, again)
        ),
    )
    others = Thread(2, "executor", (span("Operator", "pd_op.full", 3, 8),))
    trace = read(write(tmp_path / "a.pb", Thread(1, "main", (step,)), others))
    names = trace.events["name"].to_list()
    gradient = names.index("Global_Dy2StGradNode")
    forward = trace.events["forward"].scatter(gradient, names.index("interpreter_core_run"))
    trace = dataclasses.replace(trace, events=trace.events.with_columns(forward=forward))
    assert paths(modules(Profile(trace))).select("path", "time_ns", "self_ns").rows() == [
        (
            "",
            30,
            4,
        ),
        ("Net#0", 16, 5),
        ("Net#0/gelu#0", 3, 3),
        ("Net#0/add#0", 4, 4),
        ("Net#0/gelu#0", 4, 4),
        ("Backward#0", 10, 2),
        ("Backward#0/Net#0", 8, 5),
        ("Backward#0/Net#0/gelu#0", 3, 3),
    ]


def test_steps_lie_over_one_another(tmp_path):
    steps = [
        span("ProfileStep", f"ProfileStep#{step}", start, start + 10).around(
            span("Forward", "A", start + 1, start + 3),
            span("Forward", "A", start + 4, start + 5 + step),
        )
        for step, start in enumerate((0, 10))
    ]
    found = table(tmp_path, Thread(1, "main", tuple(steps)))
    assert found.select("step", "path", "start_ns", "time_ns").rows() == [
        (0, "", 0, 10),
        (0, "A#0", 1, 2),
        (0, "A#1", 4, 1),
        (1, "", 0, 10),
        (1, "A#0", 1, 2),
        (1, "A#1", 4, 2),
    ]


def test_no_modules_no_rows(tmp_path):
    trace = read(write(tmp_path / "a.pb", Thread(1, "main", (span("Operator", "a", 0, 5),))))
    assert modules(Profile(trace)).is_empty()
