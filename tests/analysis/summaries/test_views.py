"""The declared schemas of the nine views, against the tables themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.views import TABLES, schema_of, summarize
from ppprof.choices import VIEWS, SummaryOptions
from ppprof.errors import UsageError
from ppprof.trace import Trace, read
from ppprof.trace.schema import EVENTS, KERNELS, MEMORY, MEMSETS, empty
from tests.fixtures import gpu_traces
from tests.fixtures.timeline import write


def nothing(folder: Path) -> Trace:
    return Trace(empty(EVENTS), empty(MEMORY), empty(KERNELS), empty(MEMSETS))


def gpu(folder: Path) -> Trace:
    return read(write(folder / "a.pb", *gpu_traces.training()))


@pytest.mark.parametrize("trace_of", [nothing, gpu])
@pytest.mark.parametrize("thread_sep", [False, True])
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_has_its_declared_schema(view, thread_sep, trace_of, tmp_path):
    table = summarize(Profile(trace_of(tmp_path), SummaryOptions(thread_sep=thread_sep)), view)
    schema = schema_of(view, thread_sep=thread_sep)
    assert list(table.schema.items()) == list(schema.items())


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_a_real_capture_has_its_declared_schema(view, cpu_capture):
    table = summarize(Profile(read(cpu_capture / "capture.pb")), view)
    assert list(table.schema.items()) == list(TABLES[view][1].items())


def test_an_unknown_view_is_rejected(tmp_path):
    with pytest.raises(UsageError, match="view 'ops': expected one of device, overview"):
        summarize(Profile(nothing(tmp_path)), "ops")
