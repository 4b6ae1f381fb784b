"""The benchmark measures what it says: time, memory of all processes, and who failed why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_job, peers, trace_reading
from benchmarks.trace_reading import FLOOR, PPPROF, Measured, Reader
from tests.fixtures.timeline import write

MIB = 2**20
HOLD = "import time; held = bytearray(b'x') * (64 << 20); time.sleep(0.4)"
TOGETHER = f"""
import subprocess, sys
children = [subprocess.Popen([sys.executable, "-c", {HOLD!r}]) for _ in range(2)]
{HOLD}
[child.wait() for child in children]
"""
LINES = "import sys; open(sys.argv[1], 'a').write('run\\n')"


def python(code, **settings):
    return Reader("a reader", ("-c", code), **settings)


def run_apart(code, *, watched=False):
    """What `trace_reading.run` says of ``code``; from a process that is small, as it asks for."""
    ask = (
        "import dataclasses, json; from benchmarks import trace_reading as at; "
        f"measured = at.run([{sys.executable!r}, '-c', {code!r}], watched={watched}); "
        "print(json.dumps(dataclasses.asdict(measured)))"
    )
    root = Path(trace_reading.__file__).parents[1]
    said = subprocess.run([sys.executable, "-c", ask], cwd=root, check=True, stdout=subprocess.PIPE)
    return Measured(**json.loads(said.stdout))


def test_time_and_memory_of_one_process():
    measured = run_apart(HOLD)
    assert 0.4 <= measured.median_s < 5
    assert 64 * MIB < measured.peak_bytes < 128 * MIB


def test_memory_of_processes_that_run_together_is_added_up():
    measured = run_apart(TOGETHER, watched=True)
    assert 3 * 64 * MIB < measured.peak_bytes < 4 * 64 * MIB


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; print('one\\ntwo', file=sys.stderr); sys.exit(3)", "two"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "exit code -9"),
    ],
)
def test_a_failure_gives_its_last_words(code, reason):
    assert trace_reading.run([sys.executable, "-c", code]) == Measured(error=reason)


@pytest.mark.parametrize(("primed", "num_runs"), [(False, 1 + 3), (True, 1 + 1 + 3)])
def test_one_run_warms_up_and_the_others_are_timed(tmp_path, primed, num_runs):
    file = tmp_path / "a.json"
    measured = trace_reading.measure([python(LINES, primed=primed)], {".json": file}, repeats=3)
    assert file.read_text().count("run") == num_runs
    assert len(measured["a reader"].seconds) == 3


def test_a_slow_reader_runs_once(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_reading, "PATIENCE_S", 0)
    file = tmp_path / "a.json"
    measured = trace_reading.measure([python(LINES)], {".json": file}, repeats=3)
    assert file.read_text() == "run\n"
    assert len(measured["a reader"].seconds) == 1


def test_a_failure_is_reported_without_the_folder_and_not_retried(tmp_path):
    file = tmp_path / "a.json"
    code = f"{LINES}; sys.exit(f'{{sys.argv[1]}}: broken')"
    measured = trace_reading.measure([python(code)], {".json": file}, repeats=3)
    assert measured == {"a reader": Measured(error="a.json: broken")}
    assert file.read_text() == "run\n"


def test_events_are_counted_across_the_pieces_of_a_file(tmp_path):
    key = b'"ph": "X"'
    piece = 1 << 16
    for cut in range(len(key) + 1):
        file = tmp_path / f"{cut}.json"
        file.write_bytes(b" " * (piece - cut) + key + b" " * piece + key)
        assert trace_reading.num_events(file) == 2


def test_the_table_of_a_size(tmp_path):
    file = tmp_path / "a.json"
    file.write_bytes(b'{"ph": "X"}'.ljust(2 * MIB))
    measured = {
        PPPROF: Measured([0.5, 0.4, 0.6], 3 * MIB),
        FLOOR: Measured([0.1], MIB),
        "orjson.loads alone": Measured(error="unexpected end of data"),
        "json.loads alone": Measured([5.0], 1024 * MIB),
    }
    assert trace_reading.size_table(20, file, measured) == (
        "### 20 MB (2.1 MB of JSON, 1 trace events)\n"
        "\n"
        "| reader | seconds | runs | / ppprof | / floor | peak MiB | peak / file |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| ppprof, .json | 0.50 (0.40 to 0.60) | 3 | 1.00 | 5.00 | 3 | 1.50 |\n"
        "| floor: the bytes read once | 0.10 | 1 | 0.20 | 1.00 | 1 | 0.50 |\n"
        "| orjson.loads alone | unexpected end of data | - | - | - | - | - |\n"
        "| json.loads alone | 5.00 | 1 | 10.00 | 50.00 | 1,024 | 512.00 |\n"
    )


def test_the_table_of_all_sizes():
    results = {
        20: {PPPROF: Measured([0.4], 40_000_000), "json.loads alone": Measured([1.0], 60_000_000)},
        100: {PPPROF: Measured([1.5], 150_000_000), FLOOR: Measured(error="gone")},
    }
    assert trace_reading.scaling_table(results, {20: 20_000_000, 100: 100_000_000}) == (
        "### Is it linear?\n"
        "\n"
        "| seconds for 100 MB; peak / file | 20 MB | 100 MB |\n"
        "| --- | ---: | ---: |\n"
        "| ppprof, .json | 2.00; 2.00 | 1.50; 1.50 |\n"
        "| json.loads alone | 5.00; 3.00 | - |\n"
    )


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


def test_only_some_readers(two_readers, tmp_path, capsys):
    trace_reading.main(
        ["--sizes", "20", "--repeats", "1", "--keep", str(tmp_path), "--only", "peer"]
    )
    out = capsys.readouterr().out
    assert "| peer |" in out
    assert PPPROF not in out


def test_peers_of_other_events_are_refused(tmp_path):
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps({"machine": "", "events": gpu_job.VERSION + 1, "results": {}}))
    with pytest.raises(ValueError, match=r"saved\.json: measured with other events"):
        trace_reading.main(["--peers-from", str(saved)])


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """The same small trace as Paddle's ``.json`` and as ``.pb``."""
    pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    from tests.oracles import paddle_tables

    folder = tmp_path_factory.mktemp("trace")
    pb = write(folder / "a.pb", *gpu_job.threads(num_steps=2, num_layers=1))
    paddle_tables.load_result(pb).save(str(folder / "a.json"), "json")
    return folder / "a.json", pb


@pytest.mark.paddle
def test_paddles_route_prints_all_nine_tables(trace, capsys):
    from tests.oracles import paddle_tables

    peers.paddle_summary(str(trace[1]))
    assert capsys.readouterr().out == f"{paddle_tables.load(trace[1]).text()}\n"


@pytest.mark.paddle
@pytest.mark.parametrize("name", ["json_loads", "orjson_loads", "msgspec_decode"])
def test_decoders_hold_every_event(trace, name):
    decoded = peers.READERS[name](str(trace[0]))
    events = decoded["traceEvents"] if isinstance(decoded, dict) else decoded.traceEvents
    assert len(events) == trace_reading.num_events(trace[0]) + 1  # Paddle's empty one


@pytest.mark.paddle
def test_msgspec_keeps_what_the_tables_need(trace):
    decoded = peers.msgspec_decode(str(trace[0])).traceEvents
    for ours, event in zip(decoded, json.loads(trace[0].read_bytes())["traceEvents"]):
        args = event.get("args", {})
        assert (ours.name, ours.dur) == (event.get("name", ""), event.get("dur", 0))
        if ours.args is not None:
            assert ours.args.correlation_id == args.get("correlation id", 0)
            assert ours.args.increase_bytes == args.get("increase_bytes", 0)


@pytest.mark.paddle
def test_visualdl_has_all_its_pages(trace):
    pytest.importorskip("visualdl", reason="needs the visualdl wheel")
    views = peers.visualdl_pages(str(trace[0])).get_views()
    assert {"Overview", "Operator", "GPU Kernel", "Distributed", "Memory"} <= set(views)
