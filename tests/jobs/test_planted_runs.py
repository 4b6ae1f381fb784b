"""The committed runs are those that today's code records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import ppprof
from ppprof import rundir
from tests.jobs import planted


def test_each_run_is_committed_and_nothing_else() -> None:
    assert {path.name for path in planted.COMMITTED.iterdir()} == planted.RUNS.keys()


LATER = r"^\[|^(__mul__|divide_?|exp_?|multiply_?|put_along_axis_?|subtract)( |$)"
"""Rows that differ since the runs were recorded: shapes; and on CPUs the loss over mp, which computes in place."""


def shape(run: ppprof.Run) -> dict[str, object]:
    """Return what does not depend on how fast a machine is."""
    manifest = rundir.read_manifest(run.paths[0])
    return {
        "manifest": dict.fromkeys(manifest),
        "axes": manifest["axes"],
        "groups": manifest["groups"],
        # The default of row_limit was 100 when the runs were recorded.
        "profiler": manifest["profiler"] | {"profiler_log": "", "row_limit": 0},
        "config": manifest["config"],
        "calls": {
            rank: run.summary("op", rank=rank)
            .filter(pl.col("name").str.contains(LATER).not_())
            .select("name", "calls")
            .sort(pl.all())
            .rows()
            for rank in run.ranks
        },
        "collectives": run.events()
        .filter(category="Communication")
        .filter(~pl.col("name").cast(pl.String).str.ends_with(".wait"))  # recorded later, too
        .group_by("rank", "step", pl.col("name", "axis", "peers").cast(pl.String), "bytes")
        .len()
        .sort(pl.all())
        .rows(),
    }


def known_keys(anew: object, committed: object) -> object:
    """Return ``anew`` without keys that ``committed`` lacks, in mappings of any depth.

    A later version may write more; what an earlier one wrote must still be there.
    """
    if not isinstance(anew, dict) or not isinstance(committed, dict):
        return anew
    return {key: known_keys(anew[key], committed[key]) for key in anew if key in committed}


@pytest.mark.paddle
@pytest.mark.all
@pytest.mark.parametrize("name", planted.RUNS)
def test_a_run_recorded_anew_is_like_the_committed_one(
    name: str, once: Callable[[str, Callable[[Path], object]], Path]
) -> None:
    folder = once(f"planted_{name}_None", lambda folder: planted.record(name, folder))
    anew = ppprof.open(folder / "profiler_log")
    committed = shape(ppprof.open(planted.COMMITTED / name))
    assert known_keys(shape(anew), committed) == committed
