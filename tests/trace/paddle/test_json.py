"""A trace read from JSON equals the one read from the .pb of the same run.

From ppprof's JSON, every column is equal. From Paddle's, columns are equal up to these losses:

- ``ts`` is cut to whole microseconds, so every ``start_ns`` may be off by the same amount below 1
us; - ``start_time`` and ``dur`` are float32: lengths are exact below 16 ms, 1 in 2**23 beyond; -
bytes of a Memset or Memcpy are cut to 32 bits; the bandwidth of a copy restores them, if the copy
  took any time;
- a Memcpy has no context, and a build without GPU writes no device properties;
- inputs of operators: Paddle's loader of ``.pb`` keeps only their names;
- memory events of one microsecond have no order;
- names end at a NUL.

If events of zero length, or overlapping siblings, share an instant, Paddle's order does not show
how they nest; no recorder writes such events.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import random
import re
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import numpy as np
import polars as pl
import polars.selectors as cs
import pytest
from hypothesis import given
from polars.testing import assert_frame_equal

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.views import summarize
from ppprof.choices import VIEWS
from ppprof.errors import TraceError
from ppprof.trace import Trace, json_reader, read, source, write_paddle_json
from ppprof.trace.fastpath import core, ranges
from ppprof.trace.fastpath.native import scanner
from ppprof.trace.fastpath.native.scanner import Scanner
from ppprof.units import TRUNCATED
from tests.fixtures import gpu_traces, torch_modules
from tests.fixtures.paddle_json import repaired
from tests.fixtures.random_traces import traces
from tests.fixtures.same_traces import TABLES, assert_same, without_memories
from tests.fixtures.timeline import Thread, span, write

EXACT_NS = 16_000_000
"""Below it a float32 of microseconds is exact to the nanosecond."""


def assert_same_as_paddle_writes_it(found: Trace, exact: Trace) -> None:
    """Everything but what Paddle's writer rounds or leaves out."""
    assert found.skipped == {}
    assert dict(found.extra_info) == dict(exact.extra_info)
    late = (found.events["start_ns"] - exact.events["start_ns"]).abs()
    assert late.max() is None or late.max() < 1000
    dur, exact_dur = found.events["dur_ns"], exact.events["dur_ns"]
    short = exact_dur < EXACT_NS
    assert dur.filter(short).equals(exact_dur.filter(short))
    assert ((dur - exact_dur).abs() <= exact_dur * 2**-23 + 1).all()  # one step of a float32
    rounded = ["start_ns", "dur_ns"]
    is_copy = pl.col("category") == "Memcpy"
    is_cut = is_copy & (pl.col("dur_ns") == 0) | (pl.col("category") == "Memset")
    exact_events = (
        without_memories(exact)
        .events.with_columns(
            _until_nul(pl.col("name")).cast(pl.Categorical),
            bytes=pl.col("bytes") % pl.when(is_cut).then(2**32).otherwise(2**62),
            context=pl.when(is_copy.not_()).then("context"),
            **{column: _only_names(pl.col(column)) for column in ("shapes", "dtypes")},
            step=_step_unless_rounded(exact.events),
        )
        .drop(rounded)
    )
    found_events = found.events.with_columns(
        step=pl.when(_step_unless_rounded(exact.events).is_not_null()).then("step")
    )
    assert_frame_equal(found_events.drop(rounded), exact_events, categorical_as_str=True)
    assert_frame_equal(found.memsets, exact.memsets)
    assert_frame_equal(found.kernels, exact.kernels, abs_tol=1e-3)
    assert_frame_equal(_memory_in_microseconds(found), _memory_in_microseconds(exact))


def _step_unless_rounded(events: pl.DataFrame) -> pl.Series:
    """The steps; null where another thread's event begins within a rounding of a step's ends.

    Its step is the one that it began in, so a microsecond decides.
    """
    steps = events.filter(pl.col("category") == "ProfileStep")
    edges = np.concatenate((steps["start_ns"], steps["start_ns"] + steps["dur_ns"]))
    start = events["start_ns"].to_numpy()
    near = (np.abs(start[:, None] - edges[None, :]) < 1000).any(1)
    elsewhere = events["thread"].is_in(steps["thread"].unique().implode()).not_().fill_null(True)
    return events["step"].set(pl.Series(near) & elsewhere, None)


def _only_names(inputs: pl.Expr) -> pl.Expr:
    lists = r"\[[^\]\[]*(\[[^\]]*\][^\]\[]*)*\]"
    return inputs.cast(pl.String).str.replace_all(lists, "[]").cast(pl.Categorical)


def _until_nul(name: pl.Expr) -> pl.Expr:
    return name.cast(pl.String).str.replace(r"\x00.*", "")


def _memory_in_microseconds(trace: Trace) -> pl.DataFrame:
    table = trace.memory.cast({"kind": pl.String, "place": pl.String})
    return table.with_columns(time_ns=pl.col("time_ns") // 1000).sort(pl.all())


@pytest.fixture(
    params=[
        *sorted(gpu_traces.SOUND.keys() - {"ties"}),
        pytest.param("cpu_capture", marks=pytest.mark.jobs),
    ]
)
def both(request, tmp_path):
    """One trace as Paddle's .pb and as Paddle's own JSON."""
    from tests.oracles import paddle_tables

    if request.param == "cpu_capture":
        pb = request.getfixturevalue("cpu_capture") / "capture.pb"
        return pb, pb.with_suffix(".json")
    pb = write(tmp_path / "a.pb", *gpu_traces.SOUND[request.param]())
    paddle_tables.load_result(pb).save(str(tmp_path / "theirs.json"), "json")
    return pb, tmp_path / "theirs.json"


@pytest.mark.paddle
def test_paddles_json_holds_the_same_as_its_pb(both):
    pb, theirs = both
    assert_same_as_paddle_writes_it(read(theirs), read(pb))


@pytest.mark.paddle
def test_the_tables_from_paddles_json(both):
    """Times within 1 us an event in them and 1 in 10**6; ratios within one hundredth."""
    exact, found = (Profile(read(path)) for path in both)
    for view in VIEWS:
        # Paddle drops shapes, and with them FLOPs, when it reads a file.
        tables = [summarize(each, view).drop("flops", strict=False) for each in (found, exact)]
        texts = [table.select(_until_nul(cs.string() | cs.categorical())) for table in tables]
        numbers = [table.select(cs.numeric().cast(pl.Float64)) for table in tables]
        assert_frame_equal(*texts)
        calls = max(tables[1]["calls"].max() or 1 if "calls" in tables[1].columns else 1, 1)
        assert_frame_equal(*numbers, rel_tol=1e-2, abs_tol=1000.0 * calls)


@pytest.mark.paddle
@given(threads=traces(ties=False))
def test_random_traces_in_paddles_json(threads, tmp_path):
    from tests.oracles import paddle_tables

    pb = write(tmp_path / "a.pb", *threads)
    paddle_tables.load_result(pb).save(str(tmp_path / "theirs.json"), "json")
    assert_same_as_paddle_writes_it(read(tmp_path / "theirs.json"), read(pb))


@pytest.mark.paddle
def test_an_event_that_begins_as_another_threads_step_ends(tmp_path):
    from tests.oracles import paddle_tables

    end = 17_000_187
    threads = (
        Thread(31, "first", (span("ProfileStep", "ProfileStep#7", 0, end),)),
        Thread(11, "other", (span("Operator", "a", end, end + 333_337),)),
    )
    pb = write(tmp_path / "a.pb", *threads)
    paddle_tables.load_result(pb).save(str(tmp_path / "theirs.json"), "json")
    assert_same_as_paddle_writes_it(read(tmp_path / "theirs.json"), read(pb))


def ours(directory: Path, *threads: Thread) -> tuple[Trace, Path]:
    """A trace and our JSON of it, which says how many memories of copies it lacks."""
    pb = write(directory / "a.pb", *threads)
    exact = read(pb)
    omitted = write_paddle_json(exact, directory / "ours.json")
    num = exact.events.filter(pl.col("category") == "Memcpy")["attributes"].count()
    assert omitted.get("memories of copies", 0) == num
    return without_memories(exact), directory / "ours.json"


@pytest.mark.parametrize("name", [*gpu_traces.SOUND, "no_step", "nothing"])
def test_our_json_omits_nothing(name, tmp_path):
    exact, path = ours(tmp_path, *getattr(gpu_traces, name)())
    assert_same(read(path), _with_visible_names(exact))


def test_a_kernel_without_a_correlation_id_has_no_arrow(tmp_path):
    """A recorder leaves it out where it knows no launch."""
    relu = torch_modules.event("relu", 11, 12, "kernel", 7, device=0, stream=7)
    gemm = torch_modules.launch("gemm", 3, 5, 9)
    trace = read(torch_modules.written(tmp_path, torch_modules.step(0, 0, 40), *gemm, relu))
    write_paddle_json(trace, tmp_path / "ours.json")
    lines = json.loads((tmp_path / "ours.json").read_text())["traceEvents"]
    assert [line["id"] for line in lines if line["ph"] == "f"] == [3]
    kernels = read(tmp_path / "ours.json").events.filter(pl.col("device").is_not_null())
    assert kernels.select("name", "dur_ns", "correlation_id").rows() == [
        ("gemm", 4000, 3),
        ("relu", 1000, None),
    ]


@given(threads=traces(newer_types=True))
def test_random_traces_in_our_json(threads, tmp_path):
    exact, path = ours(tmp_path, *threads)
    assert_same(read(path), exact)


def _with_visible_names(trace: Trace) -> Trace:
    """No name is empty in JSON, and control characters are written out."""
    control = {*map(chr, range(32)), "\x7f", "\u2028", "\u2029"}
    names = [
        "".join(repr(c)[1:-1] if c in control else c for c in name) or "(no name)"
        for name in trace.events["name"].to_list()
    ]
    names = pl.Series("name", names, pl.Categorical)
    return dataclasses.replace(trace, events=trace.events.with_columns(names))


def dump(content: Any, indent: int = -1) -> str:
    """JSON of numbers as they are; indent -1 is a line without white space."""
    text = msgspec.json.Encoder(decimal_format="number").encode(content)
    return msgspec.json.format(text, indent=indent).decode()


VARIANTS = {
    "one line": dump,
    "spaced": lambda content: dump(content, indent=0),
    "indented": lambda content: dump(content, indent=7),
    "shuffled keys": lambda content: dump(_shuffled(content, random.Random(1))),
    "further keys": lambda content: dump(_with_further_keys(content)),
    "a bare list": lambda content: dump(content["traceEvents"]),
    "events last": lambda content: dump(
        {key: content[key] for key in sorted(content, key=lambda key: key == "traceEvents")}
    ),
    "escaped": lambda content: re.sub(r"[^\x00-\x7f]", _escape, dump(content)),
    "a mark in front": lambda content: "\ufeff" + dump(content),
}
"""The same content in other layouts."""


def _escape(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]


def _shuffled(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict):
        items = [(key, _shuffled(item, rng)) for key, item in value.items()]
        rng.shuffle(items)
        return dict(items)
    return [_shuffled(item, rng) for item in value] if isinstance(value, list) else value


def _with_further_keys(value: Any) -> Any:
    kept = ("ExtraInfo", "deviceProperties", "input_shapes", "input_dtypes")
    if isinstance(value, dict):
        items = {
            key: item if key in kept else _with_further_keys(item) for key, item in value.items()
        }
        return {"new": {"of": [1, None, "{"]}, **items, "more": "]}"}
    return [_with_further_keys(item) for item in value] if isinstance(value, list) else value


@pytest.fixture(params=["theirs", "ours"])
def written(request, tmp_path):
    """One trace in either dialect."""
    if request.param == "ours":
        return ours(tmp_path, *gpu_traces.training())[1]
    pytest.importorskip("paddle")
    from tests.oracles import paddle_tables

    pb = write(tmp_path / "a.pb", *gpu_traces.training())
    paddle_tables.load_result(pb).save(str(tmp_path / "theirs.json"), "json")
    return tmp_path / "theirs.json"


@pytest.mark.parametrize("variant", VARIANTS)
def test_fixed_layout_and_general_path_agree(written, variant, each_core, monkeypatch, tmp_path):
    content = repaired(written.read_text(encoding="utf-8"), parse_float=Decimal)
    content["traceEvents"] = [event for event in content["traceEvents"] if event]
    path = tmp_path / "other.json"
    path.write_text(VARIANTS[variant](content), encoding="utf-8")
    fixed = read(written)
    monkeypatch.setattr(json_reader, "_scan_events", _no_scan)
    general = read(path)
    assert general.events.height
    if variant == "a bare list":  # the keys beside it are gone
        for name in TABLES:
            assert_frame_equal(
                getattr(fixed, name), getattr(general, name), categorical_as_str=True
            )
    else:
        assert_same(fixed, general)


def _no_scan(*_):
    raise AssertionError("this file is in no known layout")


def test_known_layouts_are_scanned(written, monkeypatch):
    """Otherwise both paths would be the same one."""
    needs_compiled_core()
    decoded = []

    def counted(self, pieces):
        pieces = list(pieces)
        decoded.extend(event for _, events in pieces for event in events)
        add(self, pieces)

    add = json_reader.PaddleColumns.add_decoded
    monkeypatch.setattr(json_reader.PaddleColumns, "add_decoded", counted)
    trace = read(written)
    num_odd = sum(event.ph == "X" for event in decoded)
    assert num_odd < trace.events.height / 10, [event for event in decoded if event.ph == "X"][:3]


def test_no_event_is_lost_where_a_line_break_is_missing(written, each_core):
    """The text of two events looks like one event with a long name."""
    whole = read(written)
    text = written.read_bytes()
    for start in (b'\n{"name":"', b'\n  {\n    "name": "'):
        places = [match.start() for match in re.finditer(re.escape(start), text)]
        for place in places[3:90:11]:
            written.write_bytes(text[:place] + text[place + 1 :])
            trace = read(written)
            for name in ("start_ns", "dur_ns", "parent"):
                assert trace.events[name].equals(whole.events[name]), name


@pytest.mark.parametrize("num_bytes", [700, 3000, 20_000])
def test_blocks_of_any_length_give_the_same(written, each_core, num_bytes, monkeypatch):
    whole = read(written)
    monkeypatch.setattr(Scanner, "block_bytes", num_bytes)
    monkeypatch.setattr(source, "BLOCK_BYTES", num_bytes)
    assert_same(read(written), whole)


def test_packed_is_the_same(written, tmp_path):
    packed = tmp_path / "named_like.nothing"
    packed.write_bytes(gzip.compress(written.read_bytes()))
    assert_same(read(packed), read(written))


def test_a_packed_pb_is_the_same(tmp_path):
    pb = write(tmp_path / "a.pb", *gpu_traces.training())
    packed = tmp_path / "a.pb.gz"
    packed.write_bytes(gzip.compress(pb.read_bytes()))
    assert_same(read(packed), read(pb))
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(TraceError, match=r"damaged gzip: .*cannot be read in part"):
        read(packed)


def needs_compiled_core() -> None:
    if not core.load(core.FOLDER)[0]:
        pytest.skip("needs the compiled core: run `python tools/build_core.py`")


@pytest.fixture
def small_ranges(monkeypatch):
    monkeypatch.setattr(ranges, "RANGE_BYTES", 20_000)
    monkeypatch.setattr(scanner, "num_processors", lambda: 3)


def test_progress_ends_at_the_size_for_any_number_of_readers(written, each_core, small_ranges):
    calls = []
    read(written, progress=lambda *of: calls.append(of))
    size = written.stat().st_size
    assert calls[-1] == (size, size)
    assert all(0 <= done <= size and whole == size for done, whole in calls)


def test_several_threads_read_the_same(written, small_ranges, monkeypatch):
    needs_compiled_core()
    monkeypatch.setenv(core.VARIABLE, core.PYTHON)
    whole = read(written)
    scanned = []

    def counted(self, number, source):
        scanned.append(take(self, number, source))
        return scanned[-1]

    take = ranges.RangeScans.take
    monkeypatch.setenv(core.VARIABLE, core.NATIVE)
    monkeypatch.setattr(ranges.RangeScans, "take", counted)
    assert_same(read(written), whole)
    assert len(scanned) >= 3
    assert all(part.events for part in scanned)


def test_a_thread_that_cannot_start_loses_nothing(written, small_ranges, each_core, monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    whole = read(written)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert_same(read(written), whole)


def test_a_file_in_a_store_is_read_by_one_reader(written, small_ranges, each_core):
    """fsspec's store in memory has one position for all readers of a file."""
    fsspec.filesystem("memory").pipe("/folder/trace.json", written.read_bytes())
    assert_same(read("memory://folder/trace.json"), read(written))


def test_a_file_that_shrinks_while_it_is_read_is_read_in_part(
    written, small_ranges, each_core, monkeypatch
):
    """A mapped file would end the process."""
    whole = read(written)
    half = written.stat().st_size // 2

    def cut(skipped):
        os.truncate(written, half)
        return new_columns(skipped)

    new_columns = json_reader.PaddleColumns
    monkeypatch.setattr(json_reader, "PaddleColumns", cut)
    part = read(written)
    assert 0 < part.events.height < whole.events.height
    assert TRUNCATED in part.skipped
