"""``ppprof summary --by``: all ranks in one table."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from datetime import datetime
from pathlib import Path

import pytest

import ppprof
from ppprof.report.text.across_ranks import node_ids
from ppprof.rundir import TraceName, claim
from tests.fixtures.run_directories import make_run, trace_name
from tests.fixtures.timeline import Thread, kernel, launch, span, write
from tests.fixtures.words import cells, words

MS = 1_000_000


def rank_of(run: Path, rank: int, label: str, *inside) -> None:
    """A rank with one step, and what it holds."""
    name = TraceName(rank, label, datetime(2026, 11, 20, 20, 15, 30), 0)
    step = span("ProfileStep", "ProfileStep#3", 0, 100 * MS, *inside)
    write(run / name.raw, Thread(1, "main", (step,)))


def op(name: str, start: int, end: int, *inside):
    return span("Operator", name, start * MS, end * MS, *inside)


@pytest.fixture
def run(tmp_path):
    """Two ranks on CPU: rank 1 is slow in matmul; only rank 0 embeds."""
    run = claim(tmp_path / "log")
    operators = (
        op("embedding", 0, 5),
        op("matmul", 10, 20, op("reshape", 12, 14)),
        op("matmul", 30, 40),
    )
    rank_of(run, 0, "dp0_pp0_mp0", *operators)
    rank_of(run, 1, "dp0_pp0_mp1", op("matmul", 10, 40, op("reshape", 12, 14)))
    return run


def printed_rows(text: str) -> list[list[str]]:
    """The cells below the head of the first table, its head first."""
    lines = text.splitlines()
    above, below, end = [index for index, line in enumerate(lines) if re.match("-+  -", line)]
    table = [lines[above + 1], *lines[below + 1 : end]]
    return [re.split(r"  +", line.strip()) for line in table]


def test_an_operator_and_rank_a_row_with_node_id(run, cli):
    """The columns of the table in pytorch/pytorch issue 39675."""
    out = cli.quiet("summary", run, "--by", "rank")
    assert out.startswith("ranks 0-1, window 0, steps 3 to 3\n\n---")
    assert "-Operator Summary by rank-" in out
    assert "\nTime unit: ms\n" in out
    assert printed_rows(out) == [
        cells(
            "Name | Self CPU total % | Self CPU total | CPU total % | CPU total | CPU time avg",
            "Number of Calls | Node ID",
        ),
        ["matmul", "72.00", "18.00", "74.07", "20.00", "10.00", "2", "0 (mp0)"],
        ["matmul", "93.33", "28.00", "93.75", "30.00", "30.00", "1", "1 (mp1)"],
        ["embedding", "20.00", "5.00", "18.52", "5.00", "5.00", "1", "0 (mp0)"],
        ["reshape", "8.00", "2.00", "7.41", "2.00", "2.00", "1", "0 (mp0)"],
        ["reshape", "6.67", "2.00", "6.25", "2.00", "2.00", "1", "1 (mp1)"],
    ]
    assert "Self CPU: time in an operator without the operators it calls.\n" in out


def test_an_operator_a_row_with_what_differs_most_on_top(run, cli):
    out = cli.quiet("summary", run, "--by", "name", "--time-unit", "us", "--row-limit", "2")
    assert "-Operator Summary by name: CPU total of 2 ranks-" in out
    assert "\nTime unit: us\n" in out
    *rows, (cut,) = printed_rows(out)
    assert rows == [
        cells(
            "Name | Number of Calls | Ranks | Total | Min | Median | Max | Spread | Node ID of max"
        ),
        ["matmul", "3", "2", "50000.00", "20000.00", "25000.00", "30000.00", "10000.00", "1 (mp1)"],
        ["embedding", "1", "1", "5000.00", "0.00", "2500.00", "5000.00", "5000.00", "0 (mp0)"],
    ]
    assert cut.strip("-") == "1 more name: row_limit is 2; --row-limit none shows all"
    assert "waits for other ranks takes longest on the rank that arrives first" in out


def test_gpu_times_where_there_are_any(tmp_path, cli):
    run = claim(tmp_path / "log")
    for rank in (0, 1):
        gemm = launch(11 * MS, 12 * MS, kernel("void gemm<int>(int*)", 12 * MS, (14 + rank) * MS))
        rank_of(run, rank, f"dp{rank}", op("matmul", 10, 20, gemm))
    head, *rows = printed_rows(cli.quiet("summary", run, "--by", "rank"))
    assert [row[head.index("GPU total %") :] for row in (head, *rows)] == [
        ["GPU total %", "GPU total", "GPU time avg", "Number of Calls", "Node ID"],
        ["100.00", "2.00", "2.00", "1", "0 (dp0)"],
        ["100.00", "3.00", "3.00", "1", "1 (dp1)"],
    ]
    kernels = cli.quiet("summary", run, "--by", "name", "--views", "kernel")
    assert "Kernel Summary by name: GPU total of 2 ranks" in kernels
    (row,) = [line for line in kernels.splitlines() if line.startswith("void gemm")]
    assert re.split(r"  +", row.strip()) == cells(
        "void gemm<int> | 2 | 2 | 5.00 | 2.00 | 2.50 | 3.00 | 1.00 | 1 (dp1)"
    )


def test_every_view_that_ranks_share(tmp_path, cli):
    run = make_run(tmp_path, {0: 1, 1: 1})
    out = cli.quiet("summary", run, "--by", "name", "--views", "all", "--sorted-by", "cpu_avg")
    for title in (
        "Model Summary by name: CPU avg of 2 ranks",
        "Distribution Summary by name: Time of 2 ranks",
        "Operator Summary by name: CPU avg of 2 ranks",
        "Kernel Summary by name: GPU total of 2 ranks",
        "Memory Manipulation Summary by name: CPU avg of 2 ranks",
        "UserDefined Summary by name: CPU avg of 2 ranks",
    ):
        assert f"-{title}-" in out
    assert "in this trace" not in out


def test_a_table_for_each_window(tmp_path, cli):
    run = make_run(tmp_path, {0: 2, 1: 2})
    out = cli.quiet("summary", run, "--by", "rank", "--views", "dist")
    assert [line for line in out.splitlines() if line.startswith("ranks")] == [
        "ranks 0-1, window 0, steps 0 to 2",
        "ranks 0-1, window 1, steps 10 to 12",
    ]
    out = cli.quiet("summary", run, "--by", "rank", "--views", "dist", "--window", 1, "--steps", 11)
    assert out.startswith("ranks 0-1, window 1, steps 11 to 11\n")
    assert out.count("Distribution Summary by rank") == 1


def test_json_holds_what_the_library_says(run, cli):
    (window,) = json.loads(cli.quiet("summary", run, "--by", "name", "--format", "json"))
    tables = window.pop("tables")
    assert window == {
        "schema_version": 1,
        "by": "name",
        "window": 0,
        "sorted_by": "cpu_total",
        "ranks": [
            {
                "rank": rank,
                "coordinate": f"dp0_pp0_mp{rank}",
                "file": str(
                    run / f"raw/rank_0000{rank}_dp0_pp0_mp{rank}_time_20261120T201530_000.pb"
                ),
                "steps": [3],
                "lost": {},
            }
            for rank in (0, 1)
        ],
        "left_out": [],
    }
    assert tables == {"op": ppprof.open(run).summary("op", by="name").rows(named=True)}


def test_csv_and_markdown(run, cli):
    text = cli.quiet("summary", run, "--by", "rank", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0])[:5] == ["path", "window", "rank", "coordinate", "name"]
    assert [(row["rank"], row["name"], row["cpu_self_ns"]) for row in rows][:2] == [
        ("0", "matmul", "18000000"),
        ("1", "matmul", "28000000"),
    ]
    lines = cli.quiet("summary", run, "--by", "name", "--format", "md").splitlines()
    assert lines[:3] == ["## ranks 0-1, window 0, steps 3 to 3", "", "### op"]
    assert [cell.strip() for cell in lines[6].strip("|").split("|")] == words(
        "`matmul` 2 3 50000000 cpu_total",
        "20000000 25000000.0 30000000 10000000 1 dp0_pp0_mp1",
    )


def test_a_broken_rank_is_reported_and_the_others_are_shown(tmp_path, cli):
    run = make_run(tmp_path, {0: 1, 1: 1, 2: 1, 3: 1})
    broken = run / trace_name(1).raw
    os.truncate(broken, 100)
    (run / trace_name(2).raw).unlink()
    out, err = cli("summary", run, "--by", "rank")
    assert out.startswith("ranks 0, 3, window 0, steps 0 to 2\n")
    first, second = err.splitlines()
    assert first.startswith(f"{broken}: ")
    assert second == f"{run}: window 0: no rank 2; left out"


def test_no_usable_rank_is_exit_code_3(tmp_path, cli):
    run = make_run(tmp_path, {0: 1, 1: 1})
    for rank in (0, 1):
        (run / trace_name(rank).raw).write_bytes(b"\x0f" * 9)
    out, err = cli("summary", run, "--by", "name", code=3)
    assert out == ""
    assert len(err.splitlines()) == 2


def test_one_rank_has_nothing_to_be_compared_with(run, cli):
    out, err = cli("summary", run, "--by", "name", "--rank", "1")
    assert "Operator Summary by name: CPU total of 1 rank-" in out
    assert err == f"{run}: window 0: only rank 1: no other rank to compare with\n"
    assert cli.quiet("summary", run, "--by", "rank", "--rank", "1").startswith("rank 1, window 0, ")


def test_every_problem_of_the_command_line_at_once(run, cli):
    arguments = ["--by", "name", "--views", "op,mem", "--thread-sep", "--no-op-detail"]
    assert cli("summary", run, *arguments, code=2).err.splitlines() == [
        "--views: 'mem': expected some of model, dist, op, kernel, memcpy, udf, "
        "whose rows are names that ranks share",
        "--thread-sep: has no effect with --by: each operator is one row of a rank",
        "--op-detail: has no effect with --by: each operator is one row of a rank",
    ]


def test_what_sorted_by_changes(run, cli):
    for by, changed in (("rank", "op, kernel, udf"), ("name", "model, op, kernel, memcpy, udf")):
        err = cli("summary", run, "--by", by, "--views", "dist", "--sorted-by", "cpu_avg").err
        assert err == f"--sorted-by: has no effect on dist; it changes {changed}\n"


def test_node_ids_say_where_ranks_differ():
    assert node_ids({0: "dp0_pp0_mp0", 5: "dp1_pp0_mp1"}) == {0: "0 (dp0 mp0)", 5: "5 (dp1 mp1)"}
    assert node_ids({7: "dp0_pp0_mp0"}) == {7: "7"}
    assert node_ids({0: None, 1: None}) == {0: "0", 1: "1"}
