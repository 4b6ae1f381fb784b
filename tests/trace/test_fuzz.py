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

from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.views import VIEWS, summarize
from ppprof.errors import TraceError
from ppprof.trace import Trace, read, write_paddle_json
from ppprof.trace.schema import EVENTS, KERNELS, MEMORY, MEMSETS
from tests.fixtures import gpu_traces
from tests.fixtures.timeline import write

MOST_SECONDS = 60
"""A longer read counts as a hang. Most take less than a second, and memory is watched meanwhile."""
MOST_MEMORY = 40
FIXED_BYTES = 64 << 20
KINETO = Path(__file__).parent.parent / "fixtures" / "kineto" / "gpu_ddp.json"
FORMATS = ["pb", "pb.gz", "ours", "ours.gz", "paddle", "paddle.gz", "kineto"]
NASTY = [
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\x00", b"\xff", b"-", b"e9", b"."),
    *(b'{"name":"', b'\n  {\n    "name": "', b"},\n  \n  {", b"null", b"NaN", b"9" * 30, b"-1"),
    *(b'"args":{', b"[[[[", b"}]", b'],"a":', b"\x1f\x8b", b"\xef\xbb\xbf"),
]


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


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One to five changes, at random places."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 5)):
        at, other = sorted(rng.choices(range(len(found) + 1), k=2))
        other = min(other, at + rng.choice([1, 8, 300, len(found)]))
        piece = bytes(found[at:other])
        change = rng.randrange(6)
        if change == 0:
            del found[at:other]
        elif change == 1:
            found[at:at] = piece
        elif change == 2:
            place = rng.randrange(len(found) + 1)
            found[place:place] = piece
        elif change == 3:
            found[at:at] = rng.choice(NASTY)
        elif change == 4:
            found[at : at + 1] = bytes([rng.randrange(256)])
        else:
            found[at:] = b""
        if not found:
            break
    return bytes(found)


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
    began = time.monotonic()
    assert_clean(path)
    assert time.monotonic() - began < MOST_SECONDS


HEAD = b'{"schemaVersion":"1.0.2","traceEvents":['
EVENT = (
    b'{"name":"a[1.0 ms]","pid":1,"tid":"1(C++)","ts":10,"dur":1.0,"ph":"X","cat":"Operator",'
    b'"args":{"start_time":"0.0 us","end_time":"1.0 us"}}'
)
HUGE = EVENT.replace(b":10,", b":" + b"9" * 30 + b",")
SIZE = 1 << 20


def flood(piece: bytes, head: bytes = HEAD) -> bytes:
    return head + piece * (SIZE // len(piece))


def events(*pieces: bytes) -> bytes:
    return HEAD + b",".join(pieces) + b"]}"


LONG = {
    "names": lambda: flood(b'"name":"'),
    "names of events": lambda: flood(b'{"name":"'),
    "breaks between events": lambda: flood(b'},{"name":'),
    "braces": lambda: flood(b"}"),
    "open braces": lambda: flood(b"{"),
    "ends of the list": lambda: flood(b"}]"),
    "keys behind the list": lambda: flood(b'}],"'),
    "brackets": lambda: flood(b"]"),
    "open brackets": lambda: flood(b"["),
    "quotes": lambda: flood(b'"'),
    "backslashes": lambda: flood(b"\\", HEAD + b'{"name":"'),
    "commas": lambda: flood(b","),
    "infinities": lambda: flood(b": inf", HEAD + b'{"a"'),
    "Paddle's beginnings": lambda: flood(b'\n  {\n    "name": "', HEAD + b"\n  \n  "),
    "our beginnings": lambda: flood(b'\n{"name":"'),
    "blanks": lambda: HEAD + EVENT + b" " * SIZE + b"," + b" " * SIZE + EVENT + b" " * SIZE + b"]}",
    "one long event": lambda: events(EVENT[:-2] + b',"x":"' + b"y" * SIZE + b'"}}'),
    "one long broken event": lambda: events(EVENT[:-2] + b',"x":"' + b'"' * SIZE + b'"}}'),
    "broken events": lambda: events(*[EVENT.replace(b'"a[', b'"a"[')] * 9_000),
    "one instant": lambda: events(*[EVENT] * 9_000),
    "threads": lambda: events(
        *(EVENT.replace(b'"1(', b'"%d(' % number) for number in range(15_000))
    ),
    "numbers of 30 digits": lambda: events(EVENT, *[HUGE] * 9_000),
    "lists behind the list": lambda: (
        HEAD + EVENT + b"]," + b'"a":[{"name":"b"},{"name":"c"}],' * 50_000 + b'"b":1}'
    ),
    "no list": lambda: flood(b'"a":1,', b"{"),
}


@pytest.mark.parametrize("what", LONG)
@pytest.mark.all
def test_files_made_to_be_slow(what, each_core, tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(LONG[what]())
    tracemalloc.start()
    began = time.monotonic()
    try:
        assert_clean(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.monotonic() - began < MOST_SECONDS
    assert peak < MOST_MEMORY * path.stat().st_size + FIXED_BYTES
