"""Nothing vanishes: each object of a file is an event, ignored by a known kind, or skipped.

The objects are counted by `json.loads` and by protobuf's own parser.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ppprof
from ppprof.trace import Trace, read, write_paddle_json
from ppprof.trace.json.recovery import MISFIT_FIELDS
from tests.fixtures import gpu_traces, paddle_proto, random_traces
from tests.fixtures.timeline import write

FIXTURES = Path(__file__).parent.parent / "fixtures"


def accounted(trace: Trace) -> int:
    """What a trace says that its file held."""
    made = 0
    if "aten::" in str(trace.events["name"].unique().to_list()):
        made = trace.events.filter(category="Backward").height  # Kineto's files have none
    if trace.has_derived_steps:
        made += trace.events.filter(category="ProfileStep").height
    skipped = {kind: count for kind, count in trace.skipped.items() if kind != MISFIT_FIELDS}
    rest = sum(skipped.values()) + sum(trace.ignored.values())
    return trace.events.height + trace.memory.height + rest - made


def objects_in_json(path: Path) -> int:
    packed = path.suffix == ".gz"
    text = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    return len(json.loads(text)["traceEvents"])


def objects_in_pb(path: Path) -> int:
    trees = paddle_proto.message_class("NodeTreesProto")()
    trees.ParseFromString(path.read_bytes())
    count = 0
    for tree in trees.thread_trees:
        for node in tree.host_nodes:
            count += 1 + len(node.mem_nodes)
            count += sum(1 + len(launch.device_nodes) for launch in node.runtime_nodes)
    return count


@pytest.mark.parametrize(
    "path",
    [
        *FIXTURES.glob("kineto/*.json.gz"),
        *FIXTURES.glob("runs/*/*.json.gz"),
        *FIXTURES.glob("kineto/gpu_ddp.json"),
    ],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_every_object_of_a_committed_trace(path: Path) -> None:
    if "key_averages" in path.name:
        pytest.skip("no trace")
    assert accounted(read(path)) == objects_in_json(path)


def test_every_node_of_a_raw_capture_and_every_event_of_its_json(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pb", *gpu_traces.training())
    trace = read(path)
    assert accounted(trace) == objects_in_pb(path)
    write_paddle_json(trace, tmp_path / "a.json")
    assert accounted(read(tmp_path / "a.json")) == objects_in_json(tmp_path / "a.json")


@given(random_traces.traces(newer_types=True), st.data())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_nodes_that_hang_on_nothing(threads: Any, data: st.DataObject) -> None:
    """Any node's parent may be lost: it and all below it are skipped, by kind."""
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "a.pb", *threads)
        trees = paddle_proto.message_class("NodeTreesProto")()
        trees.ParseFromString(path.read_bytes())
        for tree in trees.thread_trees:
            for node in tree.host_nodes:
                if node.parentid != -1 and data.draw(st.integers(0, 5)) == 0:
                    node.parentid = 10**6
        path.write_bytes(trees.SerializeToString())
        trace = read(path)
        assert accounted(trace) == objects_in_pb(path)


PHASES = ["X", "X", "X", "M", "i", "s", "f", "C", "B", "", "Q"]
DAMAGE: dict[str, list[Any]] = {
    "ph": [*PHASES, None],
    "cat": ["", "hpu_op", "mtia_thing", "Kernel", "kernel", "cpu_op", "overhead", "Operator", 7],
    "ts": ["soon", None, -1],
    "dur": ["long", None, -5],
    "pid": ["x", None],
    "tid": ["y", None],
    "args": [{}, None, 3],
}


@st.composite
def damaged(draw: st.DrawFn, event: dict[str, Any]) -> dict[str, Any]:
    """The event, with some of its fields changed or removed; perhaps nothing is left of it."""
    event = dict(event)
    for key in draw(st.sets(st.sampled_from([*DAMAGE]), max_size=3)):
        if draw(st.booleans()):
            event.pop(key, None)
        else:
            event[key] = draw(st.sampled_from(DAMAGE[key]))
    return {} if draw(st.integers(0, 20)) == 0 else event


def kineto() -> dict[str, Any]:
    return json.loads((FIXTURES / "kineto/gpu_ddp.json").read_text())


def ours() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.json"
        write_paddle_json(read(write(Path(name) / "a.pb", *gpu_traces.training())), path)
        return json.loads(path.read_text())


WRITERS = {"kineto": kineto(), "ppprof": ours()}


@given(st.sampled_from([*WRITERS]), st.data())
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_damaged_events(writer: str, data: st.DataObject) -> None:
    document = dict(WRITERS[writer])
    whole = document["traceEvents"][:40]
    some = data.draw(st.lists(st.sampled_from(document["traceEvents"]), max_size=40))
    document["traceEvents"] = [*whole, *(data.draw(damaged(event)) for event in some)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged.json"
        path.write_text(json.dumps(document))
        assert accounted(read(path)) == objects_in_json(path)


def test_device_events_of_an_unknown_kind_are_kept_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As torch writes them on Gaudi: the device's operators are no kernels of CUDA's."""
    document = kineto()
    for event in document["traceEvents"]:
        if event.get("cat") == "kernel":
            event["cat"] = "hpu_op"
    path = tmp_path / "hpu.json"
    path.write_text(json.dumps(document))
    theirs, ours = ppprof.open(FIXTURES / "kineto/gpu_ddp.json"), ppprof.open(path)
    kinds = ours.events().filter(category="hpu_op").height
    assert kinds == theirs.events().filter(category="Kernel").height > 0
    columns = ["step_ns", "computation_ns", "exposed_comm_ns"]
    expected, steps = theirs.breakdown(), ours.breakdown()
    columns = [name for name in expected.columns if name in columns]
    assert len(columns) >= 2
    assert steps.select(columns).equals(expected.select(columns))
    assert f"{path}: {kinds} device events of the unknown kind hpu_op: counted as kernels" in (
        caplog.messages
    )


COMMANDS = {
    "summary": ["summary"],
    "ranks": ["ranks"],
    "ranks together": ["summary", "--by", "name"],
    "merge": ["merge", "-o", "merged.json"],
    "advise": ["advise"],
    "report": ["report", "-o", "page.html"],
    "diff": ["diff"],
    "convert": ["convert"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_reports_skipped_events_once(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    document = kineto()
    document["traceEvents"].append({"ph": "X", "name": "odd", "ts": 1, "dur": 1})
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(document))
    whole = str(FIXTURES / "kineto/gpu_ddp.json")
    others = {"diff": [whole], "convert": ["out.json"]}
    err = cli(*COMMANDS[command], path, *others.get(command, [])).err
    assert err.count(f"{path}: partly read: skipped 1 event without a category\n") == 1


def test_host_events_of_an_unknown_kind_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    document = kineto()
    event = next(event for event in document["traceEvents"] if event.get("cat") == "cpu_op")
    document["traceEvents"] += [{**event, "cat": "glow"}, {**event, "cat": "glow"}]
    path = tmp_path / "glow.json"
    path.write_text(json.dumps(document))
    ppprof.open(path).summary("op")
    assert caplog.messages[0] == f"{path}: partly read: skipped 2 events of the unknown kind glow"
