"""The host events of Paddle's JSON: their order, and which of them is around another event."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ppprof.trace.paddle.json_tree import HostTree

small = st.integers(0, 6)
events = st.lists(st.tuples(small, small, small, small, small), max_size=25)


def table(rows: list[tuple[int, ...]], positions: list[int]) -> dict[str, np.ndarray]:
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    named = dict(zip(("pid", "tid", "start", "dur", "slack"), columns))
    return {"position": np.array(positions, np.int64), **named}


@given(rows=events, data=st.data(), has_depths=st.booleans())
def test_host_events_by_the_order_of_the_file(rows, data, has_depths):
    """Compared with a loop over the events before it, event by event."""
    is_host = [data.draw(st.booleans()) for _ in rows]
    places = {
        side: [place for place, host in enumerate(is_host) if host == side]
        for side in (True, False)
    }
    hosts, inner = (
        table([rows[place] for place in places[side]], places[side]) for side in (True, False)
    )
    tree = HostTree(dict(hosts))
    tree._has_depths = has_depths
    if not places[True]:
        assert tree.around(inner).tolist() == [-1] * len(places[False])
        return
    owner = tree._before(inner).tolist()
    position = tree._table["position"].tolist()
    for place, index in zip(places[False], owner):
        before = [other for other in places[True] if other < place]
        expected = -2
        if before:
            pid, tid, start, dur, slack = rows[place]
            host_pid, host_tid, first, length, host_slack = rows[before[-1]]
            off = slack + host_slack
            agrees = first - off <= start and start + dur <= first + length + off
            if (pid, tid) == (host_pid, host_tid) and (agrees or has_depths):
                expected = before[-1]
        assert (position[index] if index >= 0 else index) == expected


@given(rows=events)
def test_rows_are_sorted_by_thread_and_parents_come_first(rows):
    hosts = table(rows, list(range(len(rows))))
    tree = HostTree(dict(hosts))
    position = tree._table["position"].tolist()
    rows_of = tree.rows(np.arange(len(rows))).tolist()
    whole = {name: np.empty(len(rows), np.int64) for name in ("start", "parent")}
    columns = {**tree.in_order(whole), **whole}
    assert position == sorted(range(len(rows)), key=lambda row: (rows[row][1], rows[row][0], row))
    assert sorted(rows_of) == list(range(len(rows)))
    for row, place in enumerate(rows_of):
        assert columns["start"][place] == rows[position[row]][2]
    is_root = columns["depth"] == 0
    assert (columns["parent"][is_root] == -1).all()
    for row in np.flatnonzero(~is_root):
        parent = columns["parent"][row]
        assert 0 <= parent < row
        assert columns["depth"][parent] == columns["depth"][row] - 1


def test_many_threads_of_many_processes_stay_apart():
    """Numbers of pairs do not fit 32 bits here; and each thread has its own host event."""
    number = 70_000
    one_each = np.arange(number)
    zeros = np.zeros(number, np.int64)
    hosts = {"pid": one_each, "tid": one_each, "start": zeros, "dur": zeros + 9, "slack": zeros}
    tree = HostTree({"position": one_each * 2, **hosts})
    inner = {"position": one_each * 2 + 1, **hosts}
    assert (tree.rows(tree.around(inner)) == one_each).all()
    inner["pid"] = one_each[::-1]
    assert (tree.around(inner) == -1).all()
