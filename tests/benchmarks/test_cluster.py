"""The benchmark of many ranks runs."""

from __future__ import annotations

from benchmarks import cluster
from benchmarks.cluster import ALONE
from benchmarks.trace_reading import Reader


def test_runs_that_are_there_are_measured(tmp_path, capsys, monkeypatch):
    for size in (8, 16, 32):
        (tmp_path / f"{size}_ranks").mkdir()
    lists = ("-c", "import os, sys; sys.exit(os.path.basename(sys.argv[1]))")
    monkeypatch.setattr(cluster, "COMMANDS", (Reader(ALONE, lists, suffix=""),))
    monkeypatch.setattr(cluster, "_RANKS", lists)
    options = ["--sizes", "8,16", "--largest", "32", "--repeats", "1"]
    cluster.main([*options, "--keep", str(tmp_path)])
    out = capsys.readouterr().out
    assert "| 8 | ppprof ranks --workers 1 | 8_ranks |" in out
    assert "| 16 | ppprof ranks --workers 1 | 16_ranks |" in out
    assert "| 32 | ppprof ranks | 32_ranks |" in out
