"""What users choose: the names are those of the tables that they select, and other texts are rejected."""

from __future__ import annotations

import pytest

from ppprof.analysis.diff.run_costs import VALUES
from ppprof.analysis.summaries.views import TABLES
from ppprof.choices import (
    ACROSS,
    ALL_VIEWS,
    DIFF_SORT_KEYS,
    DIFF_VIEWS,
    VIEWS,
    StepRange,
    check_across,
)
from ppprof.errors import UsageError
from ppprof.report.diff_rows import KINDS


def test_every_view_has_a_function():
    assert tuple(TABLES) == ALL_VIEWS
    assert ALL_VIEWS[: len(VIEWS)] == VIEWS


def test_every_table_of_a_comparison_is_a_view():
    assert ("overview", "rank", *KINDS, "module") == DIFF_VIEWS


def test_sort_keys_of_a_comparison_are_its_values():
    columns = (*VALUES["operators"], *VALUES["kernels"])
    assert tuple(dict.fromkeys(column.removesuffix("_ns") for column in columns)) == DIFF_SORT_KEYS


@pytest.mark.parametrize(
    ("chosen", "by", "message"),
    [
        (["op"], "node", "by 'node': expected rank or name"),
        (
            ["op", "mem", "device"],
            "name",
            "'mem', 'device': expected some of model, dist, op, kernel, memcpy, udf, "
            "whose rows are names that ranks share",
        ),
    ],
)
def test_views_that_cannot_be_compared_across_ranks(chosen, by, message):
    with pytest.raises(UsageError) as error:
        check_across(chosen, by)
    assert str(error.value) == message


def test_the_views_are_of_the_nine_in_their_order():
    assert [view for view in VIEWS if view in ACROSS] == list(ACROSS)


@pytest.mark.parametrize(
    ("text", "start", "stop"),
    [("2:5", 2, 5), ("2:", 2, None), (":5", 0, 5), ("4", 4, 5), (4, 4, 5), ("0:1", 0, 1)],
)
def test_how_steps_are_written(text, start, stop):
    assert StepRange.parse(text) == StepRange(start, stop)


@pytest.mark.parametrize("text", ["", ":", "a:b", "-1", "-2:3", "1:2:3", "1.5", "1-3"])
def test_what_is_no_range_of_steps(text):
    with pytest.raises(UsageError, match=r"expected A:B \(steps A to B-1\)"):
        StepRange.parse(text)


@pytest.mark.parametrize("text", ["5:5", "5:1", ":0"])
def test_a_range_without_a_step(text):
    with pytest.raises(UsageError, match="no step is in it"):
        StepRange.parse(text)
