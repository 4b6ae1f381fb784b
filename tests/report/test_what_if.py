from __future__ import annotations

from pathlib import Path

import polars as pl

import ppprof
from ppprof.analysis.ranks.what_if import WHAT_IF
from ppprof.report.text.ranks import render_what_if
from ppprof.report.text.summary import TableOptions

PLANTED = Path(__file__).parent.parent / "fixtures" / "runs"

TABLE = pl.DataFrame(
    [
        ("recorded", None, None, None, None, 10.2e6, None, None, None, None),
        ("nothing", None, None, None, None, 10.0e6, 1.0, 0.0, None, 0.02),
        ("all", None, "0,1,2,3", None, None, 8.0e6, 1.25, 1.0, None, None),
        ("steady", None, None, None, None, 9.9e6, 10 / 9.9, 0.05, None, None),
        ("balanced", None, "0,1,2,3", None, None, 8.1e6, 10 / 8.1, 1.0, None, None),
        ("slowest", None, "3", None, None, 8.5e6, 10 / 8.5, 0.75, None, None),
        ("kind", None, None, "forward", None, 8.8e6, 10 / 8.8, 0.6, 1.15, None),
        ("stage", 1, "1,3", None, None, 8.2e6, 10 / 8.2, 0.9, 1.2, None),
        ("stage", 0, "0,2", None, None, 10.0e6, 1.0, 0.0, 1.0, None),
        ("worker", 1, "3", None, None, 8.5e6, 10 / 8.5, 0.75, 1.1, None),
        ("link", None, "2,3", None, None, 10.1e6, 10 / 10.1, -0.05, 1.0004, None),
        ("step", None, None, None, 12, 8.0e6, 1.5, None, None, None),
    ],
    WHAT_IF,
    orient="row",
)


def test_what_stragglers_cost():
    text = render_what_if(TABLE).partition("\nNote:")[0]
    assert [line.rstrip() for line in text.splitlines()] == [
        "-------------------------------------What-if Summary--------------------------------------",
        "Time unit: ms",
        "S 1.25, M_W 75.0%, M_S 90.0%",
        "The replay differs from the recording by 2.0%, mean over steps",
        "------------------------  ----------------  ------------  ------------  --------  --------",
        "If as fast as usual       Ranks             Step Time     Saved         Share     Alone",
        "------------------------  ----------------  ------------  ------------  --------  --------",
        "as recorded               -                 10.20         -             -         -",
        "as replayed               -                 10.00         0.00          0.0%      -",
        "everything                0,1,2,3           8.00          2.00          100.0%    -",
        "each as it usually is     -                 9.90          0.10          5.0%      -",
        "stages balanced           0,1,2,3           8.10          1.90          100.0%    -",
        "slowest workers           3                 8.50          1.50          75.0%     -",
        "every forward             -                 8.80          1.20          60.0%     1.150",
        "stage 1                   1,3               8.20          1.80          90.0%     1.200",
        "stage 0                   0,2               10.00         0.00          0.0%      1.000",
        "worker of stage 1         3                 8.50          1.50          75.0%     1.100",
        "link                      2,3               10.10         -0.10         -5.0%     1.000",
        "everything in step 12     -                 8.00          4.00          -         -",
        "------------------------  ----------------  ------------  ------------  --------  --------",
    ]


def last_line_of_note(table):
    return render_what_if(table).rstrip("-\n").splitlines()[-1]


def with_share(table, fixed, share, **more):
    row = pl.col("fixed") == fixed
    values = {"share": share, **more}
    return table.with_columns(
        pl.when(row).then(pl.lit(value)).otherwise(name).alias(name)
        for name, value in values.items()
    )


def test_a_large_share_of_the_last_stage_is_its_size_unless_a_slow_worker_explains_as_much():
    too_large = "M_S: share of the last stage. Near 100%: its part of the model is too large"
    assert last_line_of_note(TABLE) == f"{too_large}."
    slow_worker = with_share(TABLE, "slowest", 0.95)
    assert last_line_of_note(slow_worker) == (
        f"{too_large}. Here slow workers in it explain the delay at least as well "
        "(ranks 3: M_W): look at them first."
    )
    elsewhere = with_share(slow_worker, "slowest", 0.95, ranks="2")
    assert last_line_of_note(elsewhere) == f"{too_large}."
    one_replica = with_share(TABLE, "slowest", 0.95, ranks="1,3")
    assert last_line_of_note(one_replica) == (
        f"{too_large}, or its machines are slow (ranks 1,3); without another replica of the stage "
        "the replay cannot separate the two."
    )


def test_the_note_names_the_slow_rank_of_a_recorded_job():
    # Rank 3 computes longer; it shares a worker of stage 1 with rank 2.
    run = ppprof.open(PLANTED / "slow_rank_and_link")
    note = last_line_of_note(run.cluster().what_if)
    assert "slow workers in it explain the delay at least as well (ranks 2,3: M_W)" in note


def test_the_row_limit_hides_rows():
    text = render_what_if(TABLE, TableOptions("us", row_limit=3))
    assert "Time unit: us" in text
    assert "9 more rows: row_limit is 3" in text
    assert "slowest workers" not in text


def test_without_possible_savings_there_are_no_shares():
    even = TABLE.with_columns(step_ns=pl.lit(8e6), share=pl.lit(None, pl.Float64))
    assert "M_W -, M_S -" in render_what_if(even)


def test_without_a_pipeline_there_is_no_last_stage():
    assert "M_W 75.0%, M_S -" in render_what_if(TABLE.filter(pl.col("fixed") != "stage"))


def test_without_a_replay_the_table_is_empty():
    assert render_what_if(TABLE.clear()) == ""
