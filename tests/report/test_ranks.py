"""The breakdown of ranks as text."""

from __future__ import annotations

import polars as pl

from ppprof.report.text.ranks import render_ranks
from ppprof.report.text.summary import TableOptions
from tests.fixtures.words import cells


def lines(table, by):
    """Return the cells above the note; two spaces separate columns."""
    text = render_ranks(pl.DataFrame(table), by, TableOptions("ns")).partition("Note:")[0]
    return [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()
    ]


def test_differing_places_are_shown_and_the_largest_value_of_each_column_is_marked():
    rows = lines(
        {
            "rank": [0, 1, 2],
            "host": ["a"] * 3,
            "pp": [0, 0, 1],
            "mp": [0, 1, None],
            "num_steps": [2, 2, 2],
            "step_ns": [100.0, 100.0, 80.0],
            "computation_ns": [50.0, 70.0, 70.0],
            "exposed_pp+mp_ns": [0.0, 20.0, 0.0],
            "bubble_ns": [0.0, 0.0, 0.0],
            "host_bound_ns": [None, 10.0, 10.0],
            "rest_ns": [50.0, 0.0, 0.0],
            "communication_pp+mp_ns": [0.0, 25.0, 0.0],
        },
        ["rank"],
    )
    assert rows[1] == ["Time unit: ns / % of the step"]
    headers = [
        "rank",
        "pp",
        "mp",
        "Step Time",
        "Computation",
        "Exposed pp+mp",
        "Host Bound",
        "Rest",
    ]
    assert rows[3] == headers
    assert rows[5:8] == [
        cells("0 | 0 | 0 | 100.00 * | 50.00 / 50.0 | 0.00 / 0.0 | - | 50.00 / 50.0 *"),
        cells("1 | 0 | 1 | 100.00 * | 70.00 / 70.0 * | 20.00 / 20.0 * | 10.00 / 10.0 | 0.00 / 0.0"),
        cells("2 | 1 | - | 80.00 | 70.00 / 87.5 * | 0.00 / 0.0 | 10.00 / 12.5 | 0.00 / 0.0"),
    ]
    assert rows[9:12] == [
        ["min", "80.00", "50.00", "0.00", "10.00", "0.00"],
        ["median", "100.00", "70.00", "0.00", "10.00", "0.00"],
        ["max", "100.00", "70.00", "20.00", "10.00", "50.00"],
    ]


def test_a_step_names_its_slowest_rank():
    rows = lines(
        {
            "step": [4, 5],
            "num_ranks": [3, 1],
            "num_steps": [1, 1],
            "step_ns": [10.0, 0.0],
            "computation_ns": [4.0, 0.0],
            "rest_ns": [6.0, 0.0],
            "slowest_rank": [7, 0],
            "slowest_own_ns": [9, 0],
            "median_own_ns": [6.0, 0.0],
        },
        ["step"],
    )
    assert rows[3][-1] == "Slowest Rank (own time / median)"
    assert rows[5] == ["4", "10.00 *", "4.00 / 40.0 *", "6.00 / 60.0 *", "7 (1.50 x)"]
    assert rows[6] == ["5", "0.00", "0.00", "0.00", "0 (1.00 x)"]


def test_one_row_needs_no_spread():
    times = {"step_ns": [10.0], "computation_ns": [4.0], "rest_ns": [6.0]}
    table = {"pp": [0], "num_ranks": [1], "num_steps": [1], **times}
    assert not [line for line in lines(table, ["pp"]) if "median" in line]
    assert "*" not in str(lines(table, ["pp"])[5])


def test_a_note_explains_an_unknown_axis():
    times = {"step_ns": 9.0, "computation_ns": 4.0, "rest_ns": 2.0}
    known = pl.DataFrame({"rank": [0], "num_steps": [1], **times, "exposed_dp_ns": [3.0]})
    unknown = known.rename({"exposed_dp_ns": "exposed_?_ns"})
    texts = [render_ranks(table, ["rank"], TableOptions()) for table in (known, unknown)]
    assert ["axis is not known" in text for text in texts] == [False, True]
