"""docs/run-directory.schema.json describes the files of a run directory."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ppprof.capture.steps.step_log import StepRecord
from ppprof.errors import InputError
from ppprof.rundir import summaries, triggers
from ppprof.rundir.clocks import Reading
from ppprof.rundir.manifest import SCHEMA_VERSION, read_manifest
from tests.fixtures.json_schemas import validate

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs/run-directory.schema.json").read_text(encoding="utf-8"))
RUNS = sorted((ROOT / "tests/fixtures/runs").iterdir())


def check(kind: str, value: Any, schema: Any = SCHEMA) -> None:
    validate(value, {**schema["$defs"][kind], "$schema": schema["$schema"]})


def lines(run: Path, folder: str) -> Iterator[Any]:
    for path in run.glob(f"{folder}/*.jsonl"):
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def properties(kind: str) -> Mapping[str, Any]:
    return SCHEMA["$defs"][kind]["properties"]


def test_the_schema_is_one() -> None:
    for kind in SCHEMA["$defs"].values():
        jsonschema.Draft202012Validator.check_schema(kind)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_committed_runs_match(run: Path) -> None:
    check("manifest", json.loads((run / "manifest.json").read_text(encoding="utf-8")))
    steps = list(lines(run, "steps"))
    assert steps
    for step in steps:
        check("step", step)
    for reading in lines(run, "clocks"):
        check("clock", reading)


def test_tables_of_a_window_match(cli) -> None:
    (document,) = json.loads(
        cli("summary", ROOT / "tests/fixtures/runs/small_net", "--format", "json").out
    )
    del document["file"]  # only the command knows it
    check("summary", document)


@pytest.mark.paddle
def test_a_capture_matches(two_rank_job: tuple[Path, str]) -> None:
    run = two_rank_job[0]
    check("manifest", json.loads((run / "manifest.json").read_text(encoding="utf-8")))
    for kind, folder in (("step", "steps"), ("clock", "clocks")):
        assert len(list(run.glob(f"{folder}/*.jsonl"))) == 2
        for line in lines(run, folder):
            check(kind, line)
    summaries = sorted(run.glob("summary/*.json"))
    assert len(summaries) >= 2
    for path in summaries:
        check("summary", json.loads(path.read_text(encoding="utf-8")))


def test_requests_and_answers_match(tmp_path: Path) -> None:
    triggers.accept_requests(tmp_path)
    triggers.write_request(tmp_path, 4, {"dp": 0})
    check("request", json.loads((tmp_path / "trigger/request").read_text(encoding="utf-8")))
    for response in (
        triggers.TriggerResponse("requested", "a", refused="already recording"),
        triggers.TriggerResponse("requested", "a", None, 2, 10, 4, [0, 8]),
    ):
        triggers.append_response(tmp_path, response)
    answers = list(lines(tmp_path, "trigger"))
    assert len(answers) == 2
    for answer in answers:
        check("answer", answer)
    triggers.write_completion(tmp_path, 3, 2, [tmp_path / "a.json"], None)
    completion = (tmp_path / "trigger/rank_00003_w2.json").read_text(encoding="utf-8")
    check("completion", json.loads(completion))


def test_the_schema_names_every_property_that_is_written() -> None:
    assert list(properties("step")) == list(StepRecord._fields)
    assert list(properties("clock")) == [field.name for field in fields(Reading)]
    answer = {field.name for field in fields(triggers.TriggerResponse)}
    assert set(properties("answer")) == answer


def test_the_page_names_every_schema_and_the_version() -> None:
    page = (ROOT / "docs/run-directory.md").read_text(encoding="utf-8")
    assert [kind for kind in SCHEMA["$defs"] if f"| `{kind}` |" not in page] == []
    assert f"The layout has version {SCHEMA_VERSION}," in page
    assert f"Tables have version {summaries.SCHEMA_VERSION}." in page


def test_a_newer_version_is_refused_and_a_new_property_is_not(tmp_path: Path) -> None:
    manifest = json.loads((RUNS[0] / "manifest.json").read_text(encoding="utf-8"))
    tables = {"rank": 0, "window": 0, "tables": {}}
    for name, value, read, version in (
        ("manifest.json", manifest, lambda path: read_manifest(path.parent), SCHEMA_VERSION),
        ("rank_00000_w0.json", tables, summaries.read_document, summaries.SCHEMA_VERSION),
    ):
        path = tmp_path / name
        for readable in range(1, version + 1):
            path.write_text(json.dumps({**value, "schema_version": readable, "new": 1}))
            assert read(path)
        path.write_text(json.dumps({**value, "schema_version": version + 1}))
        with pytest.raises(InputError, match="newer than this ppprof"):
            read(path)


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("manifest", "world_size", 0),
        ("manifest", "world_size", "8"),
        ("manifest", "axes", {"order": ["tp"], "degrees": [8]}),
        ("manifest", "unknown", 1),
        ("step", "batch_cost_ns", None),
        ("step", "batch_cost_ns", 1.5),
        ("step", "window", -1),
    ],
)
def test_invalid_values_are_rejected(kind: str, key: str, value: Any) -> None:
    run = ROOT / "tests/fixtures/runs/eight_ranks"
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    valid = manifest if kind == "manifest" else next(lines(run, "steps"))
    check(kind, valid)
    changed = {**copy.deepcopy(valid), key: value}
    with pytest.raises(jsonschema.ValidationError):
        check(kind, changed)
