"""Our summary tables are Paddle's, line by line."""

from __future__ import annotations

import dataclasses
import re

import polars as pl

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.views import summarize
from ppprof.choices import SummaryOptions
from ppprof.report.text.summary import TableOptions, render_tables
from ppprof.rundir.summaries import rows_of
from tests.oracles import paddle_tables

OURS_ALONE = ("  Exposed Communication", "Exposed Communication time")

OURS_WITHOUT_DEVICES = re.compile(
    r"^  Computation .*?^Note:\n.*?^(?=---)", re.MULTILINE | re.DOTALL
)

FLOPS = re.compile(r"(/ [\d.]+ +)[\d-]+ +$", re.MULTILINE)
"""The end of an operator's row."""


GPU_SHARES = re.compile(
    r"^(GPU\d+ +)[\d.]+( *)$|^(  [A-Z]\w+ +\d+ +[\d.]+ +)[\d.]+( *)$", re.MULTILINE
)
"""Utilization of a GPU; share of a type of event."""

OTHERS = re.compile(r"^  Others .*$", re.MULTILINE)


def ours(
    trace,
    views=tuple(paddle_tables.VIEWS),
    *,
    sorted_by="cpu_total",
    time_unit="ms",
    op_detail=True,
    thread_sep=False,
):
    # Memory of a GPU without a kernel: Paddle prints 0 then, ours is unknown.
    trace = dataclasses.replace(trace, unrecorded_device="")
    profile = Profile(trace, SummaryOptions(sorted_by=sorted_by, thread_sep=thread_sep))
    tables = {view: summarize(profile, view) for view in views}
    if "op" in tables:  # before it is printed: a long number in these rows widens the table
        tables["op"] = tables["op"].filter(~pl.col("kind").is_in(["accumulation", "shape"]))
    text = render_tables(rows_of(tables), TableOptions(time_unit, op_detail, row_limit=None))
    text = FLOPS.sub(r"\1", text)
    return [line for line in text.split("\n") if not line.startswith(OURS_ALONE)]


def lines_of(theirs):
    """Return the lines of Paddle's text, without FLOPs."""
    assert not re.search(FLOPS.pattern.replace("[\\d-]+", "[1-9]\\d*"), theirs, re.MULTILINE)
    return FLOPS.sub(r"\1", theirs).split("\n")


def assert_equal(trace, theirs, settings):
    """``theirs`` is Paddle's text."""
    if "Distribution Summary" not in theirs:  # ours shows communication that Paddle does not count
        settings = {"views": [view for view in paddle_tables.VIEWS if view != "dist"], **settings}
    lines = [ours(trace, **settings), lines_of(theirs)]
    if trace.events["device"].is_null().all():
        lines = [OURS_WITHOUT_DEVICES.sub("", "\n".join(side)).split("\n") for side in lines]
    if not _is_device_in_steps(trace):  # Paddle's are above 100% then
        lines = [GPU_SHARES.sub("", "\n".join(side)).split("\n") for side in lines]
    if any(OTHERS.match(line) and "-" in line.replace(" - ", "") for line in lines[1]):
        lines = [OTHERS.sub("", "\n".join(side)).split("\n") for side in lines]
    assert lines[0] == lines[1], settings


def _is_device_in_steps(trace):
    """Whether each device event runs inside the host's steps."""
    spans = trace.events.with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"))
    steps = spans.filter(pl.col("category") == "ProfileStep").select("start_ns", "end_ns").rows()
    devices = spans.filter(pl.col("device").is_not_null()).select("start_ns", "end_ns").rows()
    return all(
        any(first <= start and end <= last for first, last in steps) for start, end in devices
    )
