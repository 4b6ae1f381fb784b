"""The benchmark of Kineto's files measures every reader on the same valid trace."""

from __future__ import annotations

import json

from benchmarks import kineto_reading
from ppprof.trace import read

MIB = 2**20


def test_the_trace_is_a_valid_one_of_the_size(tmp_path):
    path = tmp_path / "kineto.json"
    num_events = kineto_reading.write_trace(path, 1)
    assert 10**6 <= path.stat().st_size < 1.2 * 10**6
    assert len(json.loads(path.read_bytes())["traceEvents"]) == num_events
    trace = read(path)
    assert not trace.skipped
    assert trace.events.height > 1000
