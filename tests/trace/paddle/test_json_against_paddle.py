"""Our JSON is strict, exact and in Paddle's dialect: it holds the events of Paddle's file, no others.

Paddle's file of the same events is written by its ``result.save(path, "json")``. Intended
differences:

- names are escaped, control characters made visible (Paddle escapes nothing);
- the duration in a name is always in ms (Paddle picks ns, us, ms or s);
- ``ts`` has nanoseconds (Paddle cuts it to whole us), ``start_time`` and ``end_time`` are exact
  (Paddle prints float32);
- ``bytes`` above 2 GiB are right (Paddle's wrap at 2**31);
- no ``inf`` (Paddle prints it as ``blocks per SM`` if the device is unknown);
- ``input_shapes``, ``input_dtypes`` and ``callstack`` only where they have a value; Paddle's loader
  loses the values (`tests/trace/test_operator_inputs.py`);
- ``cname``: the colour only; memory events have a scope ``"s"``, which the format requires;
- ``span_indx`` beside ``span_index``; no ``{}`` at the end; one event per line.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from decimal import Decimal

import pytest
from hypothesis import given

from ppprof.trace import read, write_paddle_json
from tests.fixtures import gpu_traces
from tests.fixtures.paddle_json import repaired
from tests.fixtures.paddle_proto import EVENT_TYPES, NodeTrees
from tests.fixtures.random_traces import traces
from tests.fixtures.timeline import EPOCH_NS, Thread, kernel, launch, span, write

EVENT_NAMES = {number: name for name, number in EVENT_TYPES.items()}
DROPPED_ARGS = {"input_shapes", "input_dtypes", "callstack"}
SUFFIX = re.compile(r"\[[\d.]+ (?:ns|us|ms|s)\]$")


def strict(text: str):
    """The content of a JSON text; no NaN, no infinity, no duplicate key; numbers exact."""

    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")

    def unique(pairs):
        keys = [key for key, _ in pairs]
        if len(keys) != len(set(keys)):
            raise ValueError(f"duplicate keys: {keys}")
        return dict(pairs)

    return json.loads(text, parse_constant=refuse, object_pairs_hook=unique, parse_float=Decimal)


def written(tmp_path, *threads):
    """Our JSON of a trace, and the protobuf it was made from."""
    path = write(tmp_path / "a.pb", *threads)
    target = tmp_path / "a.paddle_trace.json"
    write_paddle_json(read(path), target)
    return strict(target.read_bytes().decode("utf-8")), NodeTrees.FromString(path.read_bytes())


def of_phase(content, phase):
    """Events of this ``ph``, without the spans that only VisualDL needs (test_folded_phases.py)."""
    return [
        event
        for event in content["traceEvents"]
        if event and event["ph"] == phase and "folded" not in event.get("args", {})
    ]


def bare(name):
    return SUFFIX.sub("", name)


def ns(us: Decimal | str) -> int:
    return int(Decimal(us) * 1000)


@pytest.mark.parametrize("name", [*gpu_traces.SOUND, "no_step", "nothing"])
def test_strict_and_exact(name, tmp_path):
    content, trees = written(tmp_path, *getattr(gpu_traces, name)())
    assert_exact(content, trees)


@given(threads=traces(newer_types=True))
def test_random_traces_are_strict_and_exact(threads, tmp_path):
    assert_exact(*written(tmp_path, *threads))


def assert_exact(content, trees):
    """The JSON holds exactly the protobuf's events, with exact times."""
    expected, memory = Counter(), Counter()
    for tree in trees.thread_trees:
        for node in tree.host_nodes:
            event = node.host_trace_event
            if node.parentid != -1:
                expected[EVENT_NAMES[event.type], event.start_ns, event.end_ns] += 1
            for runtime in node.runtime_nodes:
                event = runtime.runtime_trace_event
                expected["CudaRuntime", event.start_ns, event.end_ns] += 1
                for device in runtime.device_nodes:
                    event = device.device_event
                    expected[EVENT_NAMES[event.type], event.start_ns, event.end_ns] += 1
            for item in node.mem_nodes:
                memory[item.mem_event.timestamp_ns, item.mem_event.increase_bytes] += 1
    complete = of_phase(content, "X")
    assert expected == Counter(
        (event["cat"], ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])) for event in complete
    )
    assert memory == Counter(
        (ns(event["ts"]), event["args"]["increase_bytes"]) for event in of_phase(content, "i")
    )
    for event in complete:
        start, end = (event["args"][f"{side}_time"].split(" ") for side in ("start", "end"))
        assert start[1] == end[1] == "us"
        assert ns(end[0]) - ns(start[0]) == ns(event["dur"])
        assert SUFFIX.search(event["name"])
    on_host = [event for event in complete if isinstance(event["tid"], str)]
    if on_host:
        assert min(ns(e["args"]["start_time"].split(" ")[0]) for e in on_host) == 0


def test_names_survive_unless_they_hold_control_characters(tmp_path):
    (thread,) = gpu_traces.odd_names()
    content, trees = written(tmp_path, thread)
    shown = {bare(event["name"]) for event in of_phase(content, "X")}
    recorded = {"cudaLaunchKernel"} | {
        node.host_trace_event.name
        for node in trees.thread_trees[0].host_nodes
        if node.parentid != -1
    }
    plain = {name for name in recorded if not re.search(r"[\x00-\x1f\x7f-\x9f]", name) and name}
    assert plain <= shown
    assert len(shown) == len(recorded)
    assert not any(re.search(r"[\x00-\x1f\x7f]", name) for name in shown)
    assert thread.name in content["ExtraInfo"].values()


def test_gzip_holds_the_same(tmp_path):
    trace = read(write(tmp_path / "a.pb", *gpu_traces.training()))
    write_paddle_json(trace, tmp_path / "a.json")
    write_paddle_json(trace, tmp_path / "a.json.gz")
    assert (
        gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == (tmp_path / "a.json").read_bytes()
    )


@pytest.mark.parametrize("text", ["-nan", "inf", "many"])
def test_utilisations_are_numbers(text, tmp_path):
    """VisualDL answers what float() makes of them, and its page refuses a NaN."""
    info = {"Process Cpu Utilization": text, "System Cpu Utilization": "0.500000"}
    path = write(tmp_path / "a.pb", *gpu_traces.one_step(), extra_info=info)
    write_paddle_json(read(path), tmp_path / "a.json")
    shown = strict((tmp_path / "a.json").read_text(encoding="utf-8"))["ExtraInfo"]
    assert float(shown["Process Cpu Utilization"]) == 0
    assert shown["System Cpu Utilization"] == "0.500000"


def test_infinite_and_nan_values_are_left_out(tmp_path):
    odd = [
        kernel("k", 20 * number, 20 * number + 10, blocks_per_sm=value, occupancy=value)
        for number, value in enumerate((float("inf"), float("-inf"), float("nan"), 0.5))
    ]
    content, _ = written(
        tmp_path, Thread(1, "t", (span("ProfileStep", "ProfileStep#0", 0, 99, launch(1, 2, *odd)),))
    )
    values = [event["args"].get("blocks per SM") for event in of_phase(content, "X")[2:]]
    assert values == [None, None, None, Decimal("0.5")]


@pytest.fixture(
    params=[
        "training",
        "ties",
        "one_step",
        pytest.param("a real CPU capture", marks=pytest.mark.jobs),
    ]
)
def both(request, tmp_path):
    """(our content, Paddle's content) of one trace; the capture is written twice by Paddle."""
    pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    from tests.oracles import paddle_tables

    if request.param in gpu_traces.SOUND:
        source = write(tmp_path / "a.pb", *gpu_traces.SOUND[request.param]())
        theirs = tmp_path / "theirs.json"
        paddle_tables.load_result(source).save(str(theirs), "json")
    else:
        source = request.getfixturevalue("cpu_capture") / "capture.pb"
        theirs = source.with_suffix(".json")
    write_paddle_json(read(source), tmp_path / "ours.json")
    ours = strict((tmp_path / "ours.json").read_text(encoding="utf-8"))
    return ours, repaired(theirs.read_text(encoding="utf-8"))


def length(event):
    """Nanoseconds, as far as Paddle's float32 microseconds hold them.

    From 2**14 us on, neighbours are 2 ns apart; on a slow machine even a small capture has such
    events.
    """
    dur = ns(str(event.get("dur", 0)))
    return dur if dur < 2**14 * 1000 else "long"


def track(event):
    return event["pid"], event["tid"]


@pytest.mark.paddle
def test_the_same_events_on_the_same_tracks(both):
    for phase in "Xi":
        keys = [
            Counter(
                (bare(e["name"]), e["cat"], track(e), int(e["ts"]), length(e))
                for e in of_phase(content, phase)
            )
            for content in both
        ]
        assert keys[0] == keys[1]


@pytest.mark.paddle
def test_the_same_arguments(both):
    ours, theirs = ({}, {})
    for arguments, content in zip((ours, theirs), both):
        for event in [*of_phase(content, "X"), *of_phase(content, "i")]:
            args = event["args"]
            key = (
                bare(event["name"]),
                event["cat"],
                track(event),
                int(event["ts"]),
                str(args.get("addr", "")),
                args.get("place"),
                args.get("correlation id"),
                length(event),
            )
            arguments.setdefault(key, []).append(args)
    assert len(ours) == len(theirs)
    for key, all_args in theirs.items():
        for mine, args in zip(ours[key], all_args):
            for name in args.keys() - DROPPED_ARGS:
                assert same(name, mine[name], args[name]), (key, name)


def same(name, mine, value) -> bool:
    """Whether an argument of ours says what Paddle's says, its known faults allowed for."""
    if name in ("start_time", "end_time"):
        # float32 microseconds
        return float(mine.split(" ")[0]) == pytest.approx(float(value.split(" ")[0]), rel=1e-6)
    if name == "bytes":
        return (mine - value) % 2**32 == 0
    if isinstance(mine, Decimal):
        return float(mine) == pytest.approx(value, rel=1e-6, abs=0.0005)  # float32 there
    return mine == value


@pytest.mark.paddle
def test_the_same_arrows_from_launches_to_device_events(both):
    arrows = [
        {
            phase: Counter((track(e), e["id"], int(e["ts"])) for e in of_phase(content, phase))
            for phase in "sf"
        }
        for content in both
    ]
    assert arrows[0] == arrows[1]


@pytest.mark.paddle
def test_the_same_names_and_order_of_tracks(both):
    def of_process(event):
        return event["name"].startswith("process")

    labels = [
        {
            # The name of a process stands on any of its tracks.
            (e["name"], e["pid"], None if of_process(e) else e["tid"]): e["args"]
            for e in of_phase(content, "M")
        }
        for content in both
    ]
    assert labels[0] == labels[1]


@pytest.mark.paddle
def test_the_same_head(both):
    ours, theirs = both
    assert ours["span_indx"] == ours["span_index"] == theirs["span_index"]
    for key in ("schemaVersion", "displayTimeUnit", "ExtraInfo"):
        assert ours[key] == theirs[key]


def test_device_properties(tmp_path):
    content, trees = written(tmp_path, *gpu_traces.training())
    device = content["deviceProperties"][1]
    assert device["id"] == 1
    assert device["name"] == "Imaginary GPU 1"
    assert (device["totalGlobalMem"], device["computeMajor"], device["computeMinor"]) == (
        80 << 30,
        9,
        0,
    )
    assert device["smCount"] == trees.device_property[1].sm_count
    starts = [ns(e["ts"]) for e in of_phase(content, "X") if e["cat"] == "ProfileStep"]
    assert min(starts) == EPOCH_NS
