"""Every command lists a directory once, reads a manifest once and parses a trace once."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from ppprof.run import traces
from ppprof.rundir.run_file import RunFile
from tests.fixtures.tiers import one_in

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"
TORCH = Path(__file__).parents[1] / "fixtures" / "kineto" / "cpu_small_net.json.gz"
TWO_RANKS, ONE_RANK, PADDLE = RUNS / "slow_rank_of_two", RUNS / "slow_layer", RUNS / "small_net"


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Counter[str]]:
    """How often each trace is parsed, each manifest read, and each directory with traces listed."""
    parsed, manifests, listed = Counter[str](), Counter[str](), Counter[str]()
    read, read_json, list_directory = traces.read_ranks, RunFile.read_json, os.scandir

    def count_read(path, **options):
        parsed[str(path)] += 1
        return read(path, **options)

    def count_manifest(file, most_bytes):
        if str(file).endswith("manifest.json"):
            manifests[str(file)] += 1
        return read_json(file, most_bytes)

    def count_list(path="."):
        listed[str(path)] += 1
        return list_directory(path)

    monkeypatch.setattr(traces, "read_ranks", count_read)
    monkeypatch.setattr(RunFile, "read_json", count_manifest)
    monkeypatch.setattr(os, "scandir", count_list)
    return {"parsed": parsed, "manifests": manifests, "listed": listed}


@pytest.mark.parametrize(
    ("arguments", "num_traces"),
    one_in(
        2,
        [
            (["summary", TWO_RANKS, "--rank", "all", "--views", "all"], 2),
            (["summary", TWO_RANKS, "--by", "name"], 2),
            (["ranks", TWO_RANKS], 2),
            (["advise", TWO_RANKS], 2),
            (["merge", TWO_RANKS, "-o", "{out}.json"], 2),
            (["merge", "{unclocked}", "-o", "{out}.json"], 2),
            (["report", TWO_RANKS, "-o", "{out}.html"], 2),
            (["report", ONE_RANK, "--baseline", TWO_RANKS, "-o", "{out}.html"], 3),
            (["report", PADDLE, "--baseline", TORCH, "-o", "{out}.html"], 2),
            (["diff", TWO_RANKS, ONE_RANK], 3),
            (["diff", PADDLE, TORCH], 2),
            (["diff", TORCH, ONE_RANK, "--format", "json"], 2),
        ],
    ),
    ids=lambda value: (
        " ".join(Path(part).name for part in value) if isinstance(value, list) else ""
    ),
)
def test_each_file_is_read_once_and_each_directory_listed_once(
    arguments, num_traces, counts, tmp_path, cli
):
    without_clocks = tmp_path / "run"
    shutil.copytree(TWO_RANKS, without_clocks, ignore=shutil.ignore_patterns("clocks"))
    names = {"{out}": str(tmp_path / "out"), "{unclocked}": str(without_clocks)}
    arguments = list(map(str, arguments))
    for name, value in names.items():
        arguments = [argument.replace(name, value) for argument in arguments]
    counts["listed"].clear()  # copying lists too
    cli(*arguments)
    assert len(counts["parsed"]) == num_traces
    assert set(counts["parsed"].values()) == {1}
    assert set(counts["manifests"].values()) <= {1}
    run_paths = {str(TWO_RANKS), str(ONE_RANK), str(PADDLE), str(without_clocks)}
    runs = {path: counts["listed"][path] for path in run_paths & counts["listed"].keys()}
    assert set(runs.values()) <= {1}
    assert runs or str(TORCH) in arguments[1]
    assert counts["manifests"] or str(PADDLE) in arguments[1]
