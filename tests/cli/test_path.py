"""``ppprof path``: tables, data, and what it rejects."""

from __future__ import annotations

import io
import json
import shutil

import polars as pl
import pytest

import ppprof
from tests.jobs.planted import COMMITTED

RUN = COMMITTED / "slow_rank_and_link"


def test_a_table_for_each_group_that_is_recorded(cli):
    out, err = cli("path", RUN)
    assert out.splitlines()[0] == f"{RUN}: ranks 0-7, steps 3-5"
    titles = [line.strip("-") for line in out.splitlines() if "Critical Path by" in line]
    groups = ("Kind", "Rank", "Link", "Module", "Operator")
    assert titles == [f"Critical Path by {group}" for group in groups]
    assert out.count("Note:") == 1
    assert err == ""


def test_what_is_missing_is_said(cli, tmp_path):
    copy = shutil.copytree(RUN, tmp_path / "log")
    next(copy.glob("rank_00006*")).write_bytes(b"garbage")
    err = cli("path", copy).err
    assert f"{copy}: without rank 6: what other ranks wait for there is unknown" in err


def test_steps_that_a_rank_lacks_are_left_out(cli, tmp_path):
    traces = [
        torch_trace(
            tmp_path / f"rank{rank}.pt.trace.json",
            *((f"ProfilerStep#{step}", 100 * step, 100) for step in steps),
            *(("mm", 100 * step, 50) for step in steps),
        )
        for rank, steps in enumerate(((0, 1, 2), (1, 2, 3), (4, 5)))
    ]
    out, err = cli("path", *traces[:2])
    assert "ranks 0-1, steps 1-2" in out.splitlines()[0]
    assert "steps 0, 3 left out: not all of ranks 0-1 recorded them" in err
    assert "no step of 3:4; it has steps 1-2" in cli("path", *traces[:2], "--steps", 3, code=2).err
    err = cli("path", *traces, code=3).err
    assert "no step was recorded by all of ranks 0-2: select fewer ranks" in err


def test_hidden_rows_are_summed_up(cli):
    table = ppprof.open(RUN).graph().on_path("module")
    rest = table.tail(table.height - 2)
    out = cli("path", RUN, "--by", "module", "--row-limit", "2").out
    time_ms = rest["time_ns"].sum() / 1e6
    assert f"{rest.height} more: {time_ms:.2f} / {rest['ratio'].sum():.1%}" in out


def test_formats_hold_the_same_numbers(cli):
    run = ppprof.open(RUN)
    graph = run.graph(steps="4:")
    expected = graph.on_path(["rank", "kind"])
    options = ("--steps", "4:", "--by", "rank,kind")
    document = json.loads(cli("path", RUN, *options, "--format", "json").out)
    assert [row["time_ns"] for row in document["tables"]["path"]] == expected["time_ns"].to_list()
    assert [row["step"] for row in document["tables"]["steps"]] == [4, 5]
    csv = pl.read_csv(io.StringIO(cli("path", RUN, *options, "--format", "csv").out))
    assert csv["time_ns"].to_list() == expected["time_ns"].to_list()
    assert cli("path", RUN, *options, "--format", "md").out.count("\n") == expected.height + 2


def test_changes_are_replayed_alone_and_together(cli):
    changes = ("link 1,5: 0", "rank 3: as usual")
    expected = ppprof.open(RUN).what_if(*changes)
    options = [option for change in changes for option in ("--what-if", change)]
    csv = pl.read_csv(io.StringIO(cli("path", RUN, *options, "--format", "csv").out))
    assert csv["saved_ns"].to_list() == pytest.approx(expected["saved_ns"].to_list())
    out = cli("path", RUN, *options).out
    assert "Critical Path" not in out
    assert [line.split("  ")[0] for line in out.splitlines() if line[:4] in ("link", "rank")] == [
        *changes
    ]
    assert f"{expected['saved_ns'][3] / 1e6:.2f}" in out


def test_one_rank_has_no_table_of_ranks(cli):
    out = cli("path", COMMITTED / "small_net").out
    assert "by Rank" not in out
    assert "by Link" not in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--by", "shape"], "--by: 'shape': expected some of kind, name, operator"),
        (["--what-if", "matmul"], "--what-if: 'matmul': expected TARGET: VALUE"),
        (["--what-if", "nonsense: 0"], "'nonsense: 0': no such operator"),
        (["--steps", "9"], "no step of 9:10; it has steps 3-5"),
        (
            ["--what-if", "matmul: 0", "--by", "rank", "--format", "csv"],
            "--by: has no effect on csv with --what-if",
        ),
    ],
)
def test_a_wrong_option_ends_the_command(cli, options, message):
    assert message in cli("path", RUN, *options, code=2).err


def torch_trace(path, *events):
    """Write a trace of PyTorch: (name, start, length) in us; return its path."""
    shared = {"ph": "X", "pid": 1, "tid": 1, "args": {}}
    rows = [
        {**shared, "name": name, "ts": ts, "dur": dur, "cat": "user_annotation"}
        for name, ts, dur in events
    ]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": rows}))
    return path


def test_steps_without_length_are_unusable(tmp_path, cli):
    trace = torch_trace(tmp_path / "a.pt.trace.json", ("mm", 10, 0))
    assert "none of its steps takes any time" in cli("path", trace, code=3).err


def test_times_beyond_int64_are_rejected(cli):
    slower = ("--what-if", "host: 999999x")
    cli("path", RUN, *slower)
    err = cli("path", RUN, *slower * 5, code=2).err
    assert "'all of these': the steps would take many years" in err


def test_texts_keep_a_row_of_markdown(tmp_path, cli):
    name = "a|b\n| c"
    events = ("ProfilerStep#1", 0, 100), (name, 10, 50)
    trace = torch_trace(tmp_path / "a.pt.trace.json", *events)
    out = cli("path", trace, "--what-if", f"{name}: 0", "--format", "md").out
    rows = out.splitlines()
    assert len(rows) == 4
    assert rows[-1].startswith(r"| a\|b \| c: 0 ")
