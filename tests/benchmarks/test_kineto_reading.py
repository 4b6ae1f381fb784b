"""The benchmark of Kineto's files measures every reader on the same valid trace."""

from __future__ import annotations

import json

from benchmarks import kineto_reading
from benchmarks.trace_reading import Measured
from ppprof.trace.json_reader import read_json

MIB = 2**20


def test_the_trace_is_a_valid_one_of_the_size(tmp_path):
    path = tmp_path / "kineto.json"
    num_events = kineto_reading.write_trace(path, 1)
    assert 10**6 <= path.stat().st_size < 1.2 * 10**6
    assert len(json.loads(path.read_bytes())["traceEvents"]) == num_events
    trace = read_json(path)
    assert not trace.skipped
    assert trace.events.height > 1000


def test_slow_and_failing_readers_run_once(tmp_path, monkeypatch):
    results = {
        "ppprof": Measured([2.0], 30 * MIB, user_s=[1.0]),
        "floor": Measured([0.1], 10 * MIB, user_s=[0.05]),
        "orjson_loads": Measured([100.0], 90 * MIB, user_s=[50.0]),
        "hta_breakdown": Measured(error="no hta"),
    }
    runs = []

    def run(command):
        name = next((name for name in results if name in command), "other")
        runs.append(name)
        return results.get(name, Measured([1.0], MIB, user_s=[1.0]))

    monkeypatch.setattr(kineto_reading, "run", run)
    measured = kineto_reading.measure(tmp_path / "a.json", "python-with-hta", 3)
    assert [runs.count(name) for name in results] == [8, 4, 1, 1]  # two cores of ppprof
    assert measured["ppprof"].seconds == [2.0, 2.0, 2.0]
    assert kineto_reading.table(measured, 60 * MIB).splitlines()[2:] == [
        "| ppprof | 2.00 | 1.00 | 1.00 | 1.00 | 30 | 0.50 |",
        "| ppprof, portable core | 2.00 | 1.00 | 1.00 | 1.00 | 30 | 0.50 |",
        "| floor: the bytes read once | 0.10 | 0.05 | 0.05 | 0.05 | 10 | 0.17 |",
        "| orjson.loads alone | 100.00 | 50.00 | 50.00 | 50.00 | 90 | 1.50 |",
        "| orjson.loads alone, gc off | 1.00 | 0.50 | 1.00 | 1.00 | 1 | 0.02 |",
        "| HTA, kernel and communication tables | no hta | - | - | - | - | - |",
    ]
