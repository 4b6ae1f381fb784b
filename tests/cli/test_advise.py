"""``ppprof advise`` as its users see it."""

from __future__ import annotations

import csv
import io
import json

import pytest

from tests.fixtures.findings import TRIGGERS, computing, loading, op, thread
from tests.fixtures.run_directories import run, step_lines
from tests.fixtures.words import words


@pytest.fixture
def slow_data(tmp_path):
    return run(tmp_path / "log", **TRIGGERS["input-bound"][0])


def test_the_first_finding_is_the_headline(slow_data, cli):
    out, err = cli("advise", slow_data)
    lines = out.splitlines()
    assert lines[0] == (
        "Findings: 1. First, major: The training waits for data, "
        "480 us of a step of 1 ms, recorded (48.0%)."
    )
    assert lines[2] == "1. The training waits for data [input-bound]"
    assert "   Do: Raise Data.Train.loader.num_workers to 2 (now 0)." in out
    assert err == ""


def test_nothing_stands_out(tmp_path, cli):
    path = run(tmp_path / "log", [thread(lambda at: (op(at, 0, 900),))])
    assert cli("advise", path).out == (
        "Nothing above minor: no rule reports a finding. Largest: operator matmul dygraph 90.0%.\n"
    )
    path = run(tmp_path / "small", [loading(20)])
    assert cli("advise", path).out.startswith(
        "Nothing above minor (small findings: 1). Largest: phase"
    )
    out = cli("advise", path, "--language", "zh").out
    assert out.startswith("没有高于轻微的问题：1 条轻微结论。最大的部分：环节")
    assert "\n\n1. 训练在等待数据 [input-bound]\n" in out


def test_formats_hold_the_same_findings(slow_data, cli):
    document = json.loads(cli("advise", slow_data, "--format", "json").out)
    (finding,) = document["findings"]
    assert (document["schema_version"], document["run"]) == (1, str(slow_data))
    assert (finding["rule"], finding["cost_ns"], finding["share"]) == ("input-bound", 480_000, 0.48)
    assert finding["facts"]["proposed_workers"] == 2
    assert finding["evidence"] == [
        {"rank": 0, "loading_ns": 480_000, "step_ns": 1_000_000, "loading_ratio": 0.48}
    ]
    (row,) = csv.DictReader(io.StringIO(cli("advise", slow_data, "--format", "csv").out))
    assert (row["rule"], float(row["cost_ns"])) == ("input-bound", 480_000)
    assert row["do"].startswith("Raise Data.Train.loader.num_workers to 2 (now 0).")
    text = cli("advise", slow_data, "--format", "md").out
    assert text.startswith("**Findings: 1. First, major: The training waits for data")
    assert "| rank | loading | step | loading ratio |\n| --- | --- | --- | --- |\n" in text


def test_parts_of_a_run(tmp_path, cli):
    path = run(tmp_path / "log", [computing(500), computing(900)])
    out = cli("advise", path).out
    assert "1. A rank is slower than its peers [slow-rank]" in out
    assert "slow-rank" not in cli("advise", path, "--rank", "0").out
    limited = cli("advise", path, "--row-limit", "1", "--steps", "0:5", "--window", "0").out
    assert "Not shown: 1 (--row-limit is 1)" in limited
    assert cli("advise", path, "--workers", "2").out == out


def test_step_times_alone(tmp_path, cli):
    lines = [{**line, "reader_cost_ns": 480_000} for line in step_lines(1_000_000, noise=0)]
    path = run(tmp_path / "log", [], step_lines=[lines])
    out = cli("advise", path).out
    assert "[input-bound]" in out
    assert "480 us of a step of 1 ms, without a window (48.0%)" in out
    _, err = cli("advise", path, "--window", "0", code=2)
    assert err == f"{path}: window 0: the run has step times only, no window\n"


@pytest.mark.parametrize("share", [0, 0.03], ids=["nothing", "small"])
def test_step_times_alone_are_not_called_healthy(tmp_path, cli, share):
    """A wait of 3% is minor."""
    lines = [
        {**line, "reader_cost_ns": int(share * 1e6)} for line in step_lines(1_000_000, noise=0)
    ]
    out = cli("advise", run(tmp_path / "log", [], step_lines=[lines])).out
    assert out.startswith("Nothing above minor in step times alone: they show waits for data")
    assert ("[input-bound]" in out) == bool(share)


def test_all_that_is_wrong_at_once(slow_data, cli):
    _, err = cli(
        "advise",
        slow_data,
        *words("--window a --steps 3:1 --workers 0 --row-limit 0 --format csv"),
        code=2,
    )
    assert [line.partition(":")[0] for line in err.splitlines()] == words(
        "--window --steps --workers --row-limit --row-limit"
    )
    assert "--row-limit: has no effect on csv, which holds every finding" in err
    assert "--workers: '0': expected a whole number from 1" in err


def test_what_is_not_there(slow_data, tmp_path, cli):
    _, err = cli("advise", tmp_path / "nothing", code=3)
    assert err == f"{tmp_path / 'nothing'}: No such file or directory\n"
    _, err = cli("advise", slow_data, "--steps", "9:", code=2)
    assert err == f"{slow_data}: no step of 9:; it has steps 0-5\n"
    _, err = cli("advise", slow_data, "--window", "7", code=2)
    assert err == f"{slow_data}: no window 7; it has window 0\n"
    _, err = cli("advise", slow_data, "--rank", "3", code=2)
    assert "expected 0 to 0" in err
