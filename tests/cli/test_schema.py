"""``ppprof schema``: what commands print with ``--format json`` matches the published schemas."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ppprof.capture.doctor import Check
from ppprof.choices import ALL_VIEWS
from ppprof.cli import COMMANDS, command_parser
from ppprof.cli.schema import DESCRIBED, schema_text
from ppprof.rundir.flight import FlightRing, open_stacks
from ppprof.rundir.liveness import LivenessRegistry
from ppprof.rundir.out_of_memory import HeldTensor, OutOfMemory, write_out_of_memory
from ppprof.topology import Topology
from tests.conftest import Cli
from tests.fixtures.findings import TRIGGERS
from tests.fixtures.json_schemas import validate
from tests.fixtures.run_directories import make_run, run, step_lines

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests/fixtures/runs"
KINETO = ROOT / "tests/fixtures/kineto"
SOURCES = [*sorted(RUNS.iterdir()), KINETO / "gpu_ddp.json", KINETO / "cpu_small_net.json.gz"]


def schema(command: str) -> dict[str, Any]:
    return json.loads(schema_text(command))


def checked(cli: Cli, *words: object, code: int = 0) -> Any:
    """Run a command, and return its document, which has to match the schema."""
    document = json.loads(cli(*words, "--format", "json", code=code).out)
    described = schema(str(words[0]))
    validate(document, described)
    (number,) = re.findall(r"^urn:ppprof:[a-z]+:(\d+)$", described["$id"])
    for each in document if isinstance(document, list) else [document]:
        assert words[0] == "config" or each["schema_version"] == int(number)
    return document


def properties(described: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every property of a schema with its name."""
    if isinstance(described, list):
        for each in described:
            yield from properties(each)
    elif isinstance(described, dict):
        yield from described.get("properties", {}).items()
        yield from described.get("patternProperties", {}).items()
        for each in described.values():
            yield from properties(each)


def test_every_command_with_json_has_a_schema(cli: Cli) -> None:
    with_json = []
    for command in COMMANDS:
        parser = command_parser([command])
        (commands,) = (each for each in parser._actions if isinstance(each.choices, dict))
        actions = commands.choices[command]._actions
        if any(each.dest == "format" and "json" in (each.choices or ()) for each in actions):
            with_json.append(command)
    assert sorted(with_json) == [*DESCRIBED]
    for command in DESCRIBED:
        jsonschema.Draft202012Validator.check_schema(json.loads(cli.quiet("schema", command)))


UNIT = re.compile(
    r"(_ns|_s|_ppm|bytes|ratio|flops|_per_s|_per_byte|calls)\$?$|^delta_ratio_|^(baseline|experiment)$"
)


@pytest.mark.parametrize("command", [name for name in DESCRIBED if name != "config"])
def test_numbers_have_their_unit_in_the_name_or_are_ratios(command: str) -> None:
    for name, described in properties(schema(command)):
        if "number" in described.get("type", ()) and not UNIT.search(name):
            assert re.search("ratio|Ratio|[Nn]umber|unit|logarithm", described["description"]), name


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_tables_and_findings_match(source: Path, cli: Cli) -> None:
    checked(cli, "advise", source)
    checked(cli, "summary", source, "--views", ",".join(ALL_VIEWS))
    for by in ("rank", "name"):
        views = "model,dist,op,kernel,memcpy,udf"
        checked(cli, "summary", source, "--views", views, "--by", by)
    document = checked(cli, "ranks", source, "--what-if")
    assert document["tables"]["breakdown"]
    checked(cli, "ranks", source, "--by", "rank,step")
    if source.parent == RUNS:  # the others have no matmul
        document = checked(cli, "path", source, "--what-if", "matmul: 0.7x")
        assert document["tables"]["what_if"]
    checked(cli, "path", source, "--by", "axis,name,line,step")


def test_predictions_match(cli: Cli) -> None:
    run = RUNS / "eight_ranks"
    checked(cli, "predict", run, "-o", "Global.micro_batch_size=1")
    checked(cli, "predict", run, "--search", "--world-size", "8")


@pytest.mark.parametrize("rule", TRIGGERS)
def test_each_finding_says_where_and_what_to_do(rule: str, tmp_path: Path, cli: Cli) -> None:
    path = run(tmp_path / "log", **TRIGGERS[rule][0])
    document = checked(cli, "advise", path)
    finding = next(each for each in document["findings"] if each["rule"] == rule)
    assert finding["proposal"]["text"] == finding["do"]
    assert (finding["cost_ns"] is None) == (finding["basis"] is None)
    where = finding["where"]
    assert where["rank"] == finding["facts"].get("rank")
    time = where["time"]
    if time is not None:
        assert time["start_ns"] < time["end_ns"]
        assert where["rank"] in (None, time["rank"])
        assert where["step"] in (None, time["step"])


def test_a_finding_names_module_file_line_and_the_longest_step(tmp_path: Path, cli: Cli) -> None:
    def found(rule: str) -> dict[str, Any]:
        path = run(tmp_path / rule, **TRIGGERS[rule][0])
        findings = checked(cli, "advise", path)["findings"]
        return next(each for each in findings if each["rule"] == rule)

    where = found("wider-dtype")["where"]
    assert (where["module"], where["file"], where["line"]) == (None, "train.py", 7)
    where = found("many-small-operators")["where"]
    assert (where["module"], where["file"], where["line"]) == ("Net/WindowMean", None, None)
    slow = found("slow-steps")["where"]
    assert slow["time"]["step"] in (3, 6, 9)
    assert slow["time"]["end_ns"] - slow["time"]["start_ns"] == 5_000_000
    proposal = found("input-bound")["proposal"]
    assert (proposal["to"], proposal["values"]["workers"]) == ("config", 2)


def test_runs_without_a_window_match(tmp_path: Path, cli: Cli) -> None:
    lines = [
        {**line, "communication_ns": 1000, "window": None}
        for line in step_lines(1_000_000, samples=1)
    ]
    path = run(tmp_path / "log", [], step_lines=[lines, lines])
    document = checked(cli, "ranks", path)
    assert len(document["tables"]["ranks"]) == 2
    (peaks, window) = (checked(cli, "memory", path)[key] for key in ("peaks", "window"))
    assert peaks
    assert window is None
    (finding,) = checked(cli, "advise", run(tmp_path / "slow", [], step_lines=[slow_reader()]))[
        "findings"
    ]
    assert (finding["basis"], finding["where"]["time"]) == ("without a window", None)


def slow_reader() -> list[dict[str, Any]]:
    return [{**line, "reader_cost_ns": 480_000} for line in step_lines(1_000_000, noise=0)]


def test_comparisons_match(cli: Cli) -> None:
    for experiment, failed in (("nothing_again", 0), ("slow_layer", 1), ("added_layer", 1)):
        words = ("diff", RUNS / "nothing", RUNS / experiment, "--fail-if", "step_time > 5%")
        document = checked(cli, *words, code=failed)
        assert (document["rules"][0]["status"] == "fail") == bool(failed)
    document = checked(cli, "diff", RUNS / "eight_ranks", RUNS / "slow_rank_and_link")
    assert document["tables"]["module"]
    traces = KINETO / "gpu_ddp.json", KINETO / "cpu_small_net.json.gz"
    assert checked(cli, "diff", *traces)["tables"]["kernel"]


def test_several_runs_match(tmp_path: Path, cli: Cli) -> None:
    runs = [
        run(tmp_path / str(number), [], step_lines=[step_lines(cost)])
        for number, cost in enumerate((1_000_000, 1_010_000, 1_200_000, 1_190_000))
    ]
    words = ("diff", "--fail-if", "step_time > 5%", "--format", "json", *runs[:2], "--", *runs[2:])
    document = json.loads(cli(*words, code=1).out)
    validate(document, schema("diff"))
    assert document["change"]["verdict"] == "slower"


def test_who_holds_the_memory_matches(tmp_path: Path, cli: Cli) -> None:
    path = make_run(tmp_path / "log", {0: 1})
    tensor = HeldTensor("parameter", "Net.weight", (10, 25), "float32", 1_000)
    nothing = dict.fromkeys(("requested_bytes", "reserved_bytes", "total_bytes"))
    kinds = {"parameter": 1_000, "optimizer state": 2_000}
    held = {"allocated_bytes": 9_000, "bytes_by_kind": kinds, "largest": (tensor,)}
    place = {"place": "train.py:41 step", "module": "", "device": "gpu:0"}
    write_out_of_memory(path, OutOfMemory(0, 7, "MemoryError", **nothing, **place, **held))
    document = checked(cli, "memory", path, "--window", "0")
    assert document["failures"][0]["largest"][0]["shape"] == [10, 25]
    growing = run(tmp_path / "growing", **TRIGGERS["growing-memory"][0])
    assert checked(cli, "memory", growing)["window"]["table"]


def test_a_hang_matches(tmp_path: Path, cli: Cli) -> None:
    """Ranks 0 to 2 wait in a barrier, to which rank 3 does not come."""
    (tmp_path / "manifest.json").write_text("{}")
    for rank in range(4):
        ring = FlightRing(tmp_path, rank)
        ring.group(0, range(4), "dp")
        texts = [ring.text(text) for text in ("barrier", "?", "train.py:7 step", "optimizer")]
        for sequence in (1, 2)[: 1 if rank == 3 else 2]:
            number = ring.add(0, sequence, 0, 10**18 + sequence, 0, -1, *texts)
            if sequence == 1:
                ring.returned(number, 10**18 + 3)
                ring.waited(number, 10**18 + 4)
    LivenessRegistry(tmp_path, Topology.of(), 0)
    fd = open_stacks(tmp_path, 3)
    os.write(fd, b"Fatal Python error: Segmentation fault\n  in train\n")
    os.close(fd)
    document = checked(cli, "hang", tmp_path)
    assert document["causes"] == [3]
    assert len(document["waiting"]) == 3
    assert [each["pid"] for each in document["ranks"]] == [os.getpid(), None, None, None]
    assert document["stacks"] == {"3": "Fatal Python error: Segmentation fault\n  in train"}


def test_checks_of_a_machine_match(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    found = [
        Check("Paddle", "ok", "3.3.1", values={"free_bytes": 7}),
        Check("disk", "warning", "-"),
    ]
    monkeypatch.setattr("ppprof.capture.doctor.examine", lambda *_: found)
    assert len(checked(cli, "doctor")["checks"]) == 2


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.yaml")), ids=lambda p: p.stem)
def test_configs_match(path: Path, cli: Cli) -> None:
    document = checked(cli, "config", path)
    assert document["Profiler"]["profiler_log"]


@pytest.mark.parametrize(
    ("key", "value"), [("cost_ns", "4 ms"), ("where", None), ("severity", "large"), ("new", 1)]
)
def test_other_documents_are_rejected(key: str, value: Any, cli: Cli) -> None:
    document = checked(cli, "advise", RUNS / "slow_layer")
    document["findings"][0][key] = value
    with pytest.raises(jsonschema.ValidationError):
        validate(document, schema("advise"))
