"""Where Paddle prints nothing or raises: expectations worked out by hand."""

from __future__ import annotations

import json

import pytest

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.views import summarize
from ppprof.choices import VIEWS, SummaryOptions
from ppprof.report.text.summary import TableOptions
from ppprof.trace import read
from tests.fixtures import gpu_traces
from tests.fixtures.rendered import render
from tests.fixtures.saved_tables import to_json
from tests.fixtures.timeline import Shapes, Thread, kernel, launch, span, write


def profile_of(tmp_path, *threads, **written):
    return Profile(read(write(tmp_path / "a.pb", *threads, **written)), SummaryOptions("cpu_total"))


def text_of(profile, *views):
    return render(profile, views or tuple(VIEWS), TableOptions(row_limit=None)).split("\n")


def test_gradient_accumulation_is_global_minus_local(tmp_path):
    """
    ::

        Global_X   # # # # # # # # # #    # # # # #      10 + 5
        Local_X    _ # # # # # # _ _ _    # # # # _       6 + 4
        gpu  of Local: 30, 7; besides Local: 12 + 1
    """
    local = [
        span("OperatorInner", "Local_X", 1, 7, launch(2, 3, kernel("mul", 10, 40))),
        span("OperatorInner", "Local_X", 20, 24, launch(21, 22, kernel("mul", 50, 57))),
    ]
    add = span("Operator", "add dygraph", 8, 9, launch(8, 9, kernel("add", 60, 72)))
    threads = Thread(1, "t").around(
        span("ProfileStep", "ProfileStep#0", 0, 100).around(
            span("Operator", "Global_X", 0, 10, local[0], add),
            span("Operator", "Global_X", 20, 25, local[1], launch(24, 25, kernel("copy", 72, 73))),
        ),
    )
    rows = summarize(profile_of(tmp_path, threads), "op").rows(named=True)

    assert [(row["kind"], row["name"]) for row in rows[:5]] == [
        ("operator", "Global_X"),
        ("inner", "Local_X"),
        ("inner_device", "mul"),
        ("accumulation", "gradient accumulation"),
        ("device", "copy"),
    ]
    left = {key: rows[3][key] for key in rows[3] if key not in ("thread", "kind", "name")}
    assert left == {
        "calls": 2,
        "cpu_total_ns": (10 - 6) + (5 - 4),
        "cpu_avg_ns": 2.5,
        "cpu_max_ns": 4,
        "cpu_min_ns": 1,
        "cpu_ratio": pytest.approx(5 / 15),
        "gpu_total_ns": 13,
        "gpu_avg_ns": 6.5,
        "gpu_max_ns": 12,
        "gpu_min_ns": 1,
        "gpu_ratio": pytest.approx(13 / 50),
        "flops": None,
        "node": None,
    }


def test_gradient_accumulation_as_printed(tmp_path):
    lines = text_of(profile_of(tmp_path, *gpu_traces.training()), "op")
    row = next(row for row, line in enumerate(lines) if line.startswith("Global_MatmulGradNode"))
    # Global 1.499 ms - Local 1.198 ms, and the 0.1 ms of add_n's kernel, three times
    assert lines[row + 1].split()[0] == "Local_MatmulGradNode"
    assert " ".join(lines[row + 2].split()) == (
        "gradient accumulation 3 0.90 / 0.30 / 0.30 / 0.30 / 20.08 "
        "0.30 / 0.10 / 0.10 / 0.10 / 6.45 -"
    )


def test_no_accumulation_without_a_local_node(tmp_path):
    older = span("Operator", "AddGradNode", 1, 9, span("OperatorInner", "add_grad compute", 2, 8))
    alone = span("Operator", "Global_AddGradNode", 10, 19)
    thread = Thread(1, "t", (span("ProfileStep", "ProfileStep#0", 0, 20, older, alone),))
    kinds = summarize(profile_of(tmp_path, thread), "op")["kind"].to_list()
    assert "accumulation" not in kinds


def test_without_steps_what_needs_their_length_is_unknown(tmp_path):
    profile = profile_of(tmp_path, *gpu_traces.no_step())
    tables = {view: summarize(profile, view) for view in VIEWS}

    assert tables["device"].rows()[2] == ("GPU0", None)
    assert tables["overview"].select("event_type", "calls", "time_ns", "ratio").rows() == [
        ("Operator", 1, 100, None),
        ("PythonUserDefined", 1, 60, None),
        ("CudaRuntime", 1, 10, None),
        ("Kernel", 1, 50, None),
    ]
    assert tables["udf"].select("name", "cpu_total_ns", "cpu_ratio").rows() == [("mine", 60, None)]
    assert tables["op"]["cpu_ratio"].to_list() == [1.0, None]
    assert tables["kernel"].select("name", "gpu_total_ns", "gpu_ratio").rows() == [
        ("relu_kernel", 50, 1.0)
    ]
    for view in ("model", "dist", "memcpy", "mem"):
        assert tables[view].is_empty()


def test_phases_without_steps_have_no_others(tmp_path):
    thread = Thread(1, "t", (span("Forward", "Net", 0, 30), span("Backward", "b", 30, 90)))
    rows = summarize(profile_of(tmp_path, thread), "model")
    assert rows.select("name", "calls", "cpu_total_ns", "cpu_ratio").rows() == [
        ("Forward", 1, 30, None),
        ("Backward", 1, 60, None),
    ]


@pytest.mark.parametrize("name", ["no_step", "nothing", "empty_thread"])
def test_little_or_nothing_still_prints_and_serialises(name, tmp_path):
    profile = profile_of(tmp_path, *getattr(gpu_traces, name)())
    lines = text_of(profile)
    assert [line.strip("-") for line in lines if "Summary" in line][:2] == [
        "Device Summary",
        "Overview Summary",
    ]
    assert json.loads(to_json(profile))["tables"].keys() == set(VIEWS)


@pytest.mark.parametrize("text", ["-nan", "nan", "inf", "-inf", "many", ""])
def test_a_utilisation_that_is_no_number_is_unknown(text, tmp_path):
    """Paddle divides clock ticks: a window shorter than one gives 0 / 0."""
    info = {"Process Cpu Utilization": text, "System Cpu Utilization": "0.5"}
    profile = profile_of(tmp_path, *gpu_traces.one_step(), extra_info=info)
    assert summarize(profile, "device").rows() == [("CPU(Process)", None), ("CPU(System)", 0.5)]
    assert [line.split() for line in text_of(profile, "device")[4:6]] == [
        ["CPU(Process)", "-"],
        ["CPU(System)", "50.00"],
    ]
    assert json.loads(to_json(profile))["tables"]["device"][0]["utilization"] is None


def test_operators_with_shapes_have_flops(tmp_path):
    lines = text_of(profile_of(tmp_path, *gpu_traces.training()), "op")
    (row,) = (line for line in lines if line.startswith("matmul dygraph"))
    # Six times [4, 128, 256] by [256, 1024].
    assert int(row.split()[-1]) == 6 * 2 * (4 * 128) * 256 * 1024


def test_flops_are_unknown_if_those_of_one_call_are(tmp_path):
    known, unknown = (
        Shapes({"X0": [shape], "X1": [[8, 2]]}, {"X0": ["float32"], "X1": ["float32"]})
        for shape in ([4, 8], [4, 9])
    )
    calls = [span("Operator", "matmul dygraph", 10, 15).around(known)] * 2
    for inputs, flops in ((known, 3 * 128), (unknown, None)):
        last = span("Operator", "matmul dygraph", 20, 25).around(inputs)
        thread = Thread(31, "main", (span("ProfileStep", "ProfileStep#0", 0, 90, *calls, last),))
        table = summarize(profile_of(tmp_path, thread), "op")
        assert table.filter(kind="operator")["flops"].to_list() == [flops]


CALL = "rpc#f(w0 -> w1)"


def test_the_functions_of_remote_calls_have_a_node_id(tmp_path):
    """::

    main  ProfileStep    mine ..
    w1    rpc#f ...........      100: the call
            f =======             60: the function
              load ==             20: a span in it
    """

    def spanning(name, start, end, *inside):
        return span("PythonUserDefined", name, start, end, *inside)

    load = spanning(f"{CALL}#remote_op: load", 40, 60)
    function = spanning(f"{CALL}#remote_op: f", 30, 90, load)
    main = Thread(
        1, "main", (span("ProfileStep", "ProfileStep#0", 0, 200, spanning("mine", 5, 15)),)
    )
    profile = profile_of(tmp_path, main, Thread(9, "w1", (spanning(CALL, 10, 110, function),)))
    table = summarize(profile, "udf")
    assert table.select("name", "calls", "cpu_total_ns", "cpu_ratio", "node").rows() == [
        (CALL, 1, 100, 0.5, "w0"),
        ("mine", 1, 10, 0.05, "w0"),
        (f"{CALL}#remote_op: f", 1, 60, None, "w1"),
        (f"{CALL}#remote_op: load", 1, 20, None, "w1"),
    ]
    lines = text_of(profile, "udf")
    header = next(line for line in lines if line.startswith("Name"))
    assert header.split()[-2:] == ["Node", "ID"]
    first = lines.index(header) + 2
    cells = [line.strip("-").split() for line in lines[first : first + 6]]
    names = [(row[0], row[-1]) for row in cells]
    assert names == [
        ("Thread:", "merged"),
        (CALL.split()[0], "w0"),
        ("mine", "w0"),
        (CALL.split()[0], "w1)"),
        ("f", "w1"),
        ("load", "w1"),
    ]


def test_without_remote_calls_spans_have_no_node_id(tmp_path):
    profile = profile_of(tmp_path, *gpu_traces.no_step())
    assert summarize(profile, "udf")["node"].to_list() == [None]
    assert "Node ID" not in "\n".join(text_of(profile, "udf"))
