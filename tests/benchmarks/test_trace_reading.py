"""The benchmark of reading runs, and takes its peers from an earlier run."""

from __future__ import annotations

import pytest

from benchmarks import gpu_job, trace_reading
from benchmarks.trace_reading import PPPROF, Reader

LINES = "import sys; open(sys.argv[1], 'a').write('run\\n')"


@pytest.fixture
def two_readers(monkeypatch, tmp_path):
    """ppprof's place and a peer's, both quick, on a file that is there."""
    traces = tmp_path / "a.json", tmp_path / "a.pb"
    for trace in traces:
        trace.write_bytes(b'{"ph": "X"}')
    monkeypatch.setattr(gpu_job, "files", lambda folder, size_mb: traces)
    readers = (Reader(PPPROF, ("-c", LINES)), Reader("peer", ("-c", LINES), suffix=".pb"))
    monkeypatch.setattr(trace_reading, "READERS", readers)
    monkeypatch.setattr(trace_reading, "_STARTS", {"python": "pass"})
    return traces


def test_peers_can_be_taken_from_an_earlier_run(two_readers, tmp_path, capsys):
    saved = tmp_path / "saved.json"
    common = ["--sizes", "20", "--repeats", "2", "--keep", str(tmp_path)]
    trace_reading.main([*common, "--save", str(saved)])
    first = capsys.readouterr().out
    ours, theirs = two_readers
    sizes = ours.stat().st_size, theirs.stat().st_size
    trace_reading.main([*common, "--peers-from", str(saved)])
    second = capsys.readouterr().out

    assert ours.stat().st_size > sizes[0]
    assert theirs.stat().st_size == sizes[1]
    assert "### Start-up" in first
    assert "### Start-up" not in second
    (row,) = [line for line in first.splitlines() if line.startswith("| peer | 0.")]
    seconds = row.split(" | ")[1]
    assert any(line.startswith(f"| peer | {seconds} | 2 |") for line in second.splitlines())
