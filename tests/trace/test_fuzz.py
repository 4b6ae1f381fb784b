"""No input crashes a reader, hangs it or exhausts the memory.

Real traces of every format are truncated, flipped, doubled and spliced. Further inputs are built to
be slow. Memory limit: `MOST_MEMORY` times the unpacked text, plus `FIXED_BYTES`.
"""

from __future__ import annotations

import gzip
import random
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.views import summarize
from ppprof.choices import VIEWS
from ppprof.errors import TraceError
from ppprof.trace import Trace, read, write_paddle_json
from ppprof.trace.fastpath import core
from ppprof.trace.schema import EVENTS, KERNELS, MEMORY, MEMSETS
from tests.fixtures import gpu_traces
from tests.fixtures.hostile_bytes import KINETO, LONG, MOST_SECONDS, mutated, mutated_json
from tests.fixtures.timeline import write

MOST_MEMORY = 40
FIXED_BYTES = 64 << 20
FORMATS = ["pb", "pb.gz", "ours", "ours.gz", "paddle", "paddle.gz", "kineto"]


@pytest.fixture(scope="module")
def seeds(tmp_path_factory) -> dict[str, bytes]:
    """A trace of each format, of some tens of kilobytes; no Paddle, none of its own."""
    directory = tmp_path_factory.mktemp("seeds")
    pb = write(directory / "a.pb", *gpu_traces.training(2))
    write_paddle_json(read(pb), directory / "ours.json")
    found = {"pb": pb.read_bytes(), "kineto": KINETO.read_bytes()}
    found["ours"] = (directory / "ours.json").read_bytes()
    try:
        from tests.oracles import paddle_tables

        paddle_tables.load_result(pb).save(str(directory / "theirs.json"), "json")
        found["paddle"] = (directory / "theirs.json").read_bytes()
    except ImportError:
        found["paddle"] = found["ours"]
    for name in ("pb", "ours", "paddle"):
        found[f"{name}.gz"] = gzip.compress(found[name], mtime=0)
    return found


def assert_sound(trace: Trace) -> None:
    """Properties that every table may rely on."""
    tables = (
        (trace.events, EVENTS),
        (trace.memory, MEMORY),
        (trace.kernels, KERNELS),
        (trace.memsets, MEMSETS),
    )
    for table, schema in tables:
        assert table.schema == {name: dtype for name, (dtype, _) in schema.items()}
    row = np.arange(trace.events.height)
    parent = trace.events["parent"].fill_null(-1).to_numpy()
    assert ((parent >= -1) & (parent < row)).all()
    assert (trace.memory["event"].fill_null(0).to_numpy() < max(len(row), 1)).all()
    assert all(count > 0 for count in trace.skipped.values())
    profile = Profile(trace)
    for view in VIEWS:
        summarize(profile, view)


def assert_clean(path: Path) -> None:
    """Return a valid trace, or an error that names the file."""
    found = _outcome(path)
    if isinstance(found, Trace):
        assert_sound(found)
    else:
        assert str(found).startswith(str(path))


def _outcome(path: Path) -> Trace | TraceError:
    try:
        return read(path)
    except TraceError as error:
        return error


@pytest.mark.parametrize("name", FORMATS)
@given(seed=st.integers(0, 2**32))
def test_changed_bytes(seeds, name, each_core, seed, tmp_path):
    path = tmp_path / "trace"
    path.write_bytes(mutated(seeds[name], random.Random(seed)))
    began = time.process_time()
    assert_clean(path)
    assert time.process_time() - began < MOST_SECONDS


@pytest.mark.skipif(core.load(core.FOLDER)[0] is None, reason="needs the compiled core")
@pytest.mark.parametrize("change", [mutated, mutated_json])
@pytest.mark.parametrize("name", ["ours", "paddle"])
@given(seed=st.integers(0, 2**32))
def test_both_cores_read_changed_files_alike(seeds, name, change, seed, tmp_path, monkeypatch):
    """The compiled one reads what is whole; text that is broken is left to the portable one."""
    path = tmp_path / "trace"
    path.write_bytes(change(seeds[name], random.Random(seed)))
    found = []
    for each in (core.NATIVE, core.PYTHON):
        monkeypatch.setenv(core.VARIABLE, each)
        found.append(_outcome(path))
    compiled, portable = found
    if isinstance(compiled, TraceError) or isinstance(portable, TraceError):
        assert str(compiled) == str(portable)
        return
    for table in ("events", "memory", "kernels", "memsets"):
        assert_frame_equal(
            getattr(compiled, table), getattr(portable, table), categorical_as_str=True
        )
    assert compiled.skipped == portable.skipped
    assert compiled.ignored == portable.ignored


@pytest.mark.parametrize("what", LONG)
@pytest.mark.all
def test_files_made_to_be_slow(what, each_core, tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(LONG[what]())
    tracemalloc.start()
    began = time.process_time()
    try:
        assert_clean(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < MOST_SECONDS
    assert peak < MOST_MEMORY * path.stat().st_size + FIXED_BYTES
