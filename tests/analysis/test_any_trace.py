"""No trace, however odd, ends an analysis in a traceback."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ppprof
from ppprof.analysis.diff.costs import costs
from ppprof.analysis.diff.naming import Naming
from ppprof.analysis.ranks.step_breakdown import PARTS
from ppprof.analysis.report_data.rank import collect_rank_report_data
from ppprof.errors import PpprofError
from ppprof.trace import read
from tests.fixtures.random_traces import traces
from tests.fixtures.timeline import Thread, write


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
        except PpprofError:
            continue
        parts = [name for name in steps.columns if name.startswith("exposed_")]
        parts += [f"{part}_ns" for part in PARTS if part != "exposed"]
        # Without device events, the parts of a device's steps are unknown.
        steps = steps.filter(steps["computation_ns"].is_not_null())
        sums = steps.select(parts).fill_null(0).sum_horizontal()
        assert sums.equals(steps["step_ns"].alias(sums.name))
        assert (steps.select(parts).fill_null(0).min_horizontal() >= 0).all()
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
