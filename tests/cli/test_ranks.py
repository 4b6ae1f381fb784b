"""``ppprof ranks`` and `Run.breakdown`, on runs whose pipelines are known."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

import ppprof
from ppprof.analysis.profile.intervals import covered
from ppprof.errors import InputError, UsageError
from tests.fixtures.gpu_traces import no_step, training
from tests.fixtures.pipelines import OPTIMIZER_NS, one_f_one_b, pipeline_run, raw
from tests.fixtures.timeline import Thread, write
from tests.fixtures.words import words

STEP_NS = 5 * 80 + OPTIMIZER_NS
"""1F1B of 2 stages with 4 micro-batches of 30 + 50: one in five is bubble."""


@pytest.fixture
def run(tmp_path):
    """Two replicas of a pipeline on two hosts, two steps each."""
    return pipeline_run(tmp_path / "log", steps=2)


def test_a_row_a_rank_and_below_them_the_spread(run, cli):
    out, err = cli("ranks", run, "--time-unit", "ns")
    lines = out.splitlines()
    rows = [line.split() for line in lines if line[:1].isdigit()]
    step, share = f"{STEP_NS}.00", lambda ns: [f"{ns}.00", "/", f"{100 * ns / STEP_NS:.1f}"]
    assert lines[0] == f"{run}: ranks 0-3, steps 0-1"
    assert "rank host dp pp Step Time Computation Bubble Rest" in " ".join(out.split())
    assert rows == [
        [
            *(str(rank), f"host-{rank // 2}", str(rank // 2), str(rank % 2), step),
            *share(4 * 80 + OPTIMIZER_NS),
            *share(80),
            *share(0),
        ]
        for rank in range(4)
    ]
    assert [line.split()[:2] for line in lines if line.startswith(("min", "median", "max"))] == [
        ["min", step],
        ["median", step],
        ["max", step],
    ]
    assert lines[-2].endswith("of 2 steps: rank 0 in 2")
    assert lines[-1] == "Unknown whether a rank or link is slow: ranks share fewer than 3 steps."
    assert err == ""


def test_formats_hold_the_same_numbers(run, cli):
    expected = ppprof.open(run).breakdown("pp", steps="1:").rows(named=True)
    document = json.loads(cli("ranks", run, "--by", "pp", "--steps", "1:", "--format", "json").out)
    assert document["tables"]["breakdown"] == expected
    assert (document["by"], document["steps"]) == (["pp"], [1])

    text = cli("ranks", run, "--by", "pp", "--steps", "1:", "--format", "csv").out
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [float(row["bubble_ns"]) for row in rows] == [80, 80]
    text = cli("ranks", run, "--by", "pp", "--steps", "1:", "--format", "md").out
    assert [line.count("|") for line in text.splitlines()] == [len(expected[0]) + 1] * 4


def test_by_rank_and_step_whole_nanoseconds_add_up(run):
    table = ppprof.open(run).breakdown()
    parts = ["computation_ns", "exposed_pp_ns", "bubble_ns", "data_loading_ns", "rest_ns"]
    assert table.select(parts).sum_horizontal().to_list() == table["step_ns"].to_list()
    assert table["step_ns"].to_list() == [STEP_NS] * 8


@pytest.mark.parametrize(
    ("selector", "found"), [("all", [0, 1, 2, 3]), ("1-2", [1, 2]), ("pp=1,dp=all", [1, 3])]
)
def test_ranks_are_selected(selector, found, run, cli):
    out = cli("ranks", run, "--rank", selector, "--format", "csv").out
    assert [int(row["rank"]) for row in csv.DictReader(io.StringIO(out))] == found


def test_workers_find_the_same(run, cli):
    alone = cli("ranks", run, "--format", "csv").out
    assert cli("ranks", run, "--format", "csv", "--workers", "2").out == alone
    with ThreadPoolExecutor(2) as executor:
        opened = ppprof.open(run)
        assert_frame_equal(opened.breakdown(executor=executor), opened.breakdown())


def test_what_cannot_be_used_is_named_and_left_out(run, cli):
    (run / raw(0)).write_bytes(b"\xff broken")
    (run / raw(1)).unlink()
    write(run / raw(2), *no_step())
    out, err = cli("ranks", run, "--format", "csv")
    assert [int(row["rank"]) for row in csv.DictReader(io.StringIO(out))] == [3]
    assert len(err.splitlines()) == 3
    assert raw(0) in err
    assert f"{run}: no trace of rank 1" in err
    assert f"{run / raw(2)}: no step in it; left out" in err


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_usable_is_exit_code_3(workers, run, cli):
    for rank in range(4):
        (run / raw(rank)).write_bytes(b"\xff broken")
    out, err = cli("ranks", run, "--workers", workers, code=3)
    assert out == ""
    assert all(raw(rank) in err for rank in range(4))


def test_without_any_step_the_whole_trace_is_one(tmp_path, caplog):
    """As of an inference server: its parts add up to the time from the first event to the last."""
    path = write(tmp_path / "a.pb", *no_step())
    opened = ppprof.open(path)
    events = opened.events()
    whole_ns = (events["start_ns"] + events["dur_ns"]).max() - events["start_ns"].min()
    (row,) = opened.breakdown().iter_rows(named=True)
    assert (row["step"], row["step_ns"]) == (0, whole_ns)
    kernels = events.filter(category="Kernel")
    busy = covered(
        kernels["start_ns"].to_numpy(), (kernels["start_ns"] + kernels["dur_ns"]).to_numpy()
    )
    assert row["computation_ns"] == busy > 0
    assert f"{path}: no steps: the whole trace counts as one, step 0" in caplog.messages
    assert opened.summary("model").filter(name="ProfileStep").is_empty()  # Paddle's tables do not


@pytest.mark.parametrize("command", [["ranks"], ["advise"], ["report", "-o", "page.html"]])
def test_commands_take_a_trace_without_steps(command, tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "a.pb", *no_step())
    assert "the whole trace counts as one, step 0" in cli(*command, path).err


def test_a_trace_of_a_device_alone_is_one_step_too(tmp_path):
    kernels = [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": ts, "dur": 30,
         "args": {"device": 0, "stream": 7, "correlation": ts}}
        for ts in (100, 200)
    ]  # fmt: skip
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": kernels}))
    (row,) = ppprof.open(path).breakdown().iter_rows(named=True)
    assert (row["step_ns"], row["computation_ns"]) == (130_000, 60_000)


def test_a_trace_without_events_has_nothing_to_break_down(tmp_path):
    opened = ppprof.open(write(tmp_path / "a.pb", Thread(1, "main")))
    with pytest.raises(InputError, match="no event in any of its traces"):
        opened.breakdown()


def test_all_problems_of_a_command_are_reported_at_once(run, cli):
    arguments = "--by t-p --window x --steps 3:2 --workers 0 --time-unit h --format csv"
    out, err = cli("ranks", run, *arguments.split(), code=2)
    assert out == ""
    assert [line.partition(":")[0] for line in err.splitlines()] == words(
        "--by --window --steps --workers --time-unit --time-unit"
    )


@pytest.mark.parametrize("keys", [*itertools.permutations(("rank", "step", "host", "dp", "pp"), 2)])
def test_any_two_keys_give_a_row_for_each_pair_that_there_is(keys, run, cli):
    pairs = itertools.product(range(4), range(2))
    of = {
        "rank": lambda rank, step: rank,
        "step": lambda rank, step: step,
        "host": lambda rank, step: f"host-{rank // 2}",
        "dp": lambda rank, step: rank // 2,
        "pp": lambda rank, step: rank % 2,
    }
    expected = {tuple(str(of[key](*pair)) for key in keys) for pair in pairs}
    out = cli("ranks", run, "--by", ",".join(keys), "--format", "csv").out
    rows = [tuple(row[key] for key in keys) for row in csv.DictReader(io.StringIO(out))]
    assert len(rows) == len(expected)
    assert set(rows) == expected
    assert cli("ranks", run, "--by", ",".join(keys)).err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rank", "7"], 'ranks "7": expected 0 to 3'),
        (["--rank", "pp=x"], "pp: 'x': expected all or 0 to 1"),
        (["--window", "3"], "no window 3; it has window 0"),
        (["--steps", "7:9"], "no step of 7:9; it has steps 0-1"),
    ],
)
def test_what_is_missing_is_reported_with_what_exists(arguments, message, run, cli):
    assert message in cli("ranks", run, *arguments, code=2).err


def test_traces_without_a_manifest(tmp_path, cli):
    """File names say the coordinate where they are ours, and nothing says the host."""
    for rank, stage in enumerate(one_f_one_b(2, 4, meets=True)):
        write(tmp_path / raw(rank).removeprefix("raw/"), stage)
    out = cli("ranks", tmp_path, "--by", "pp", "--format", "csv").out
    assert [row["pp"] for row in csv.DictReader(io.StringIO(out))] == ["0", "1"]
    assert (
        "'host': the ranks' hosts and coordinates are unknown"
        in cli("ranks", tmp_path, "--by", "host", code=2).err
    )
    assert "coordinates need a manifest" in cli("ranks", tmp_path, "--rank", "pp=0", code=2).err


def test_a_single_gpu_trace(tmp_path, cli):
    path = write(tmp_path / "a.pb", *training())
    out, _ = cli("ranks", path)
    assert "Host Bound" in out
    assert "Host Launch" in out
    assert "of the rows above" not in out
    table = ppprof.open(path).breakdown("rank")
    assert table["host"].to_list() == [None]


def test_groups_are_checked_in_the_library_too(run):
    with pytest.raises(UsageError, match="'tp': expected some of rank, step"):
        ppprof.open(run).breakdown("tp")


def test_the_row_limit_counts_for_the_what_if_table_too(cli):
    run = Path(__file__).parents[1] / "fixtures" / "runs" / "eight_ranks"
    table = cli("ranks", run, "--what-if", "--row-limit", "2").out.partition("What-if Summary")[2]
    assert re.search(r"\d+ more rows: row_limit is 2; --row-limit none shows all", table)
    assert "more rows" not in cli("ranks", run, "--what-if", "--row-limit", "none").out
