"""Our tables are Paddle's, cell by cell and line by line, for the same events.

The expected text is what Paddle's own ``_build_table`` prints. Event types above
PythonUserDefined, which Paddle records and prints but cannot load from a file, are compared in two
ways: a real capture against the tables of the live result, and random traces against Paddle's
builder given the tree that protobuf reads (`paddle_tables.adopt`).

What differs on purpose is left out of the comparison and tested on its own: the row ``gradient
accumulation`` below a Global_*GradNode, the row ``Exposed Communication`` of the Distribution
Summary with the line that defines it and, where a trace has no device events, that summary's rows
Computation and Overlap and its note (test_distributed.py). FLOPs, of which Paddle knows none, are
not compared: they are ours, and ``-`` where they are unknown, while Paddle prints 0.
"""

from __future__ import annotations

import json
from itertools import product

import pytest
from hypothesis import given

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.views import summarize
from ppprof.trace import read
from ppprof.trace.communication_names import is_communication
from tests.fixtures import gpu_traces
from tests.fixtures.random_traces import traces
from tests.fixtures.tiers import one_in
from tests.fixtures.timeline import write

pytestmark = pytest.mark.paddle
pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")

from tests.oracles import paddle_tables  # noqa: E402
from tests.oracles.equal_tables import assert_equal, lines_of, ours  # noqa: E402

SETTINGS = [
    *(
        {"sorted_by": by, "time_unit": unit}
        for by, unit in product(paddle_tables.SORTED_BY, paddle_tables.TIME_UNITS)
    ),
    *(
        {"sorted_by": by, "op_detail": detail, "thread_sep": sep}
        for by in ("cpu_total", "gpu_min")
        for detail, sep in ((False, False), (True, True), (False, True))
    ),
]


@pytest.mark.parametrize("name", one_in(3, gpu_traces.SOUND))
def test_every_setting(name, tmp_path):
    path = write(tmp_path / "a.pb", *gpu_traces.SOUND[name]())
    trace, theirs = read(path), paddle_tables.load(path)
    for chosen in SETTINGS:
        assert_equal(trace, theirs.text(**chosen), chosen)


@pytest.mark.parametrize("view", paddle_tables.VIEWS)
def test_each_view_alone(view, tmp_path):
    path = write(tmp_path / "a.pb", *gpu_traces.training())
    theirs = paddle_tables.load(path).text([view])
    assert "Summary" in theirs
    assert ours(read(path), [view]) == lines_of(theirs)


@pytest.mark.parametrize("view", ["device", "overview", "model", "op", "kernel", "udf"])
def test_no_line_in_a_pipe_is_wider_than_paddles_table(view, tmp_path, cli):
    """Names of the length of a C++ kernel's, of a thousand characters, and Chinese ones."""
    names = ("void k<4, " + "functor<float>, " * 9 + ">(int)", "x" * 1_000, "模型" * 300)
    path = write(tmp_path / "a.pb", *gpu_traces.odd_names(names))
    theirs = paddle_tables.load(path).text([view])
    lines = cli("summary", path, "--views", view).out.splitlines()
    assert 100 < max(map(len, lines)) <= max(map(len, theirs.splitlines()))


def test_kernels_of_other_makers_are_computation_as_in_paddles_tables(tmp_path):
    path = write(tmp_path / "a.pb", *gpu_traces.other_makers())
    assert_equal(read(path), paddle_tables.load(path).text(["overview"]), {"views": ["overview"]})


def test_where_paddle_knows_no_communication_the_table_has_that_of_all_makers(tmp_path):
    path = write(tmp_path / "a.pb", *gpu_traces.other_makers())
    assert lines_of(paddle_tables.load(path).text(["dist"])) == [""]
    kernels = [row for row in read(path).events.rows(named=True) if row["category"] == "Kernel"]
    spans = {is_of: [] for is_of in (True, False)}
    for row in kernels:
        instants = range(row["start_ns"], row["start_ns"] + row["dur_ns"])
        spans[is_communication(row["name"])].extend(instants)
    shown = dict(summarize(Profile(read(path)), "dist").select("name", "time_ns").rows())
    communicates, computes = (set(spans[is_of]) for is_of in (True, False))
    assert shown["Communication"] == len(communicates)
    assert shown["Computation"] == len(computes)
    assert shown["Overlap"] == len(communicates & computes)


def test_views_print_in_paddles_order(tmp_path):
    path = write(tmp_path / "a.pb", *gpu_traces.training())
    views = list(reversed(paddle_tables.VIEWS))
    assert ours(read(path), views) == lines_of(paddle_tables.load(path).text(views))


@pytest.mark.jobs
def test_a_real_cpu_capture(cpu_capture):
    trace = read(cpu_capture / "capture.pb")
    assert "DygraphKernelLaunch" in trace.events["category"].unique()
    pairs = json.loads((cpu_capture / "tables.json").read_text(encoding="utf-8"))
    for chosen, theirs in pairs:
        assert_equal(trace, theirs, chosen)


@given(threads=traces())
def test_random_traces(threads, tmp_path):
    path = write(tmp_path / "a.pb", *threads)
    trace, theirs = read(path), paddle_tables.load(path)
    for chosen in (
        {"sorted_by": "cpu_total", "time_unit": "us"},
        {"sorted_by": "gpu_avg", "time_unit": "ns", "thread_sep": True},
        {"sorted_by": "gpu_min", "time_unit": "s"},
    ):
        assert_equal(trace, theirs.text(**chosen), chosen)


@given(threads=traces(newer_types=True))
def test_random_traces_with_newer_types(threads, tmp_path):
    path = write(tmp_path / "a.pb", *threads)
    chosen = {"sorted_by": "cpu_avg"}
    assert_equal(read(path), paddle_tables.adopt(path).text(**chosen), chosen)
