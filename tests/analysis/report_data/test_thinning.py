"""Rows of spans thinned out: nothing is lost but detail."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ppprof.analysis.report_data.timeline import _begins, thinned


def test_short_neighbours_become_one_and_long_ones_stay():
    """
    ::

        a=========  b c d   e=========      pieces of 100: a; b, c and d; e
        f                                   another row, in the piece of a
    """
    times = np.array([(0, 900), (1000, 1010), (1020, 1050), (1060, 1070), (2000, 2900), (0, 5)])
    start, dur, row = times[:, 0], times[:, 1] - times[:, 0], np.array([0, 0, 0, 0, 0, 1])
    assert _begins(start, dur, row, 100).tolist() == [True, True, False, False, True, True]


def test_a_span_stands_for_its_events():
    start, dur = np.array([0, 1000, 1020, 1060, 2000]), np.array([900, 10, 30, 10, 900])
    found = thinned(start, dur, np.zeros(5, np.int64), 3)
    assert [column.tolist() for column in found] == [
        *([0, 1000, 2000], [900, 70, 900], [0, 0, 0]),
        *([0, 2, 4], [1, 3, 1]),
    ]


@given(
    st.lists(
        st.tuples(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 2)),
        min_size=1,
        max_size=60,
    ),
    st.integers(3, 40),
)
def test_thinning_loses_no_event_and_no_time(lengths, budget):
    gaps, durs, rows = np.array(lengths, np.int64).T
    start = np.cumsum(gaps + durs) - durs
    found = thinned(start, durs, rows, budget)
    assert len(found.start) <= budget
    for row in set(rows.tolist()):
        own, spans = rows == row, found.depth == row
        assert found.num[spans].sum() == own.sum()
        ends = (found.start + found.dur)[spans]
        assert (found.start[spans][0], ends.max()) == (start[own][0], (start + durs)[own].max())
        assert (found.start[spans][1:] >= ends[:-1]).all()
    assert durs[found.longest].max() == durs.max()
    assert (rows[found.longest] == found.depth).all()
