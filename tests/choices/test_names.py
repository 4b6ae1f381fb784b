"""The names that users choose, against the tables of the code that they select."""

from __future__ import annotations

from ppprof.analysis.diff.run_costs import VALUES
from ppprof.analysis.summaries import views
from ppprof.choices.rows import DIFF_SORT_KEYS
from ppprof.choices.views import ALL_VIEWS, DIFF_VIEWS, VIEWS
from ppprof.report.diff_rows import KINDS


def test_every_view_has_a_function():
    assert tuple(views.VIEWS) == VIEWS
    assert tuple(views.ALL_VIEWS) == ALL_VIEWS


def test_every_table_of_a_comparison_is_a_view():
    assert ("overview", "rank", *KINDS, "module") == DIFF_VIEWS


def test_sort_keys_of_a_comparison_are_its_values():
    columns = (*VALUES["operators"], *VALUES["kernels"])
    assert tuple(dict.fromkeys(column.removesuffix("_ns") for column in columns)) == DIFF_SORT_KEYS
