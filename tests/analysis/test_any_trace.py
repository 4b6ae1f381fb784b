"""No trace, however odd, ends an analysis in a traceback."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ppprof
from ppprof.analysis.diff.costs import costs
from ppprof.analysis.diff.naming import Naming
from ppprof.analysis.efficiency.avoidable import unused_rows, vocabulary_work
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.ranks.step_breakdown import PARTS
from ppprof.analysis.report_data.report import collect_rank_report_data
from ppprof.errors import PpprofError
from ppprof.trace import read
from tests.analysis.path.graphs import slack_ns
from tests.fixtures.random_traces import traces
from tests.fixtures.timeline import Shapes, Thread, kernel, launch, span, write


@given(threads=traces(newer_types=True), other=traces(newer_types=True))
@settings(
    max_examples=settings.default.max_examples // 2,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_every_analysis_ends(
    threads: tuple[Thread, ...],
    other: tuple[Thread, ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    paths = [write(folder / f"{name}.pb", *each) for name, each in (("a", threads), ("b", other))]
    runs = [ppprof.open(path) for path in paths]
    for path, run in zip(paths, runs):
        costs(read(path), Naming())
        collect_rank_report_data(read(path), Naming(), share=0.5)
        try:
            steps = run.breakdown()
            ppprof.advise(run)
            run.cluster().what_if  # noqa: B018 (computed when it is read)
            graph = run.graph()
        except PpprofError:
            continue
        parts = [name for name in steps.columns if name.startswith("exposed_")]
        parts += [f"{part}_ns" for part in PARTS if part != "exposed"]
        # Without device events, the parts of a device's steps are unknown.
        steps = steps.filter(steps["computation_ns"].is_not_null())
        sums = steps.select(parts).fill_null(0).sum_horizontal()
        assert sums.equals(steps["step_ns"].alias(sums.name))
        assert (steps.select(parts).fill_null(0).min_horizontal() >= 0).all()
        assert (graph.replayed() == graph.time_ns).all()
        assert (slack_ns(graph) >= 0).all()
        lengths = graph.steps["end_ns"] - graph.steps["begin_ns"]
        on_path_ns = graph.on_path("step")["time_ns"].sum() * graph.steps.height
        assert on_path_ns == pytest.approx(lengths.sum())
        assert graph.step_ns().tolist() == lengths.to_list()
    try:
        diff = ppprof.diff(*runs)
        assert diff.overview.height
        assert diff.modules.height >= 0
    except PpprofError:
        pass


@given(threads=traces(newer_types=True), steps=st.integers(0, 5))
@settings(
    max_examples=settings.default.max_examples // 2,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_every_selection_of_steps_ends(
    threads: tuple[Thread, ...], steps: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = ppprof.open(write(tmp_path_factory.mktemp("any") / "a.pb", *threads))
    try:
        run.breakdown(steps=f"{steps}:")
        ppprof.advise(run, steps=f"{steps}:")
        run.summary("op", steps=steps)
    except PpprofError:
        pass


def test_numbers_beyond_all_limits_end_no_analysis(tmp_path: Path) -> None:
    """Names and shapes come from files, and Python converts no number of more than 4,300 digits."""
    digits = "9" * 5000
    shapes = {"X0": [[2**40, 2**40, 0]], "X1": [[0, 1]]}
    thread = Thread(1, "main").around(
        span("ProfileStep", f"ProfileStep#{digits}", 0, 50),
        span("ProfileStep", "ProfileStep#3", 100, 200).around(
            span("Operator", "matmul dygraph", 110, 190).around(
                Shapes(shapes, {"X0": ["float32"], "X1": ["float32"]}),
                launch(120, 130, kernel("gemm", 130, 180), name=f"Runtime API {digits}"),
            ),
        ),
    )
    device = {"id": 0, "name": "NVIDIA A100-SXM4-80GB"}
    trace = replace(read(write(tmp_path / "a.pb", thread)), devices=(device,))
    data = collect_rank_report_data(trace, Naming(), share=0.5)
    assert data.analysis.breakdown.parts["step"].unique().to_list() == [3]
    assert data.efficiency["flops"].to_list() == [0]
    assert data.costs.runtime_calls["name"].to_list() == [f"Runtime API {digits}"]
    text = pl.lit(f'{{"X":"[{digits}]"}}', pl.Categorical())
    shapes_of_others = pl.when(pl.col("shapes").is_not_null()).then(text)
    trace = replace(trace, events=trace.events.with_columns(shapes=shapes_of_others))
    assert vocabulary_work(Profile(trace)).is_empty()
    assert unused_rows(Profile(trace)).is_empty()
