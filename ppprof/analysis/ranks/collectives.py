"""Find each rank's collectives, and match them across ranks.

Within a step, the k-th collective of a group on one rank is the k-th of that group on every other
rank. `collectives` returns the collectives of one rank as a small table; `match_collectives` joins
the tables of all ranks.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import compress
from typing import NamedTuple, Optional

import numpy as np
import polars as pl

from ppprof.analysis.profile.event_tree import EventArrays
from ppprof.analysis.profile.intervals import Intervals
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.ranks.rank_communication import UNKNOWN_AXIS, communication_of
from ppprof.arrays import Bool, Int64
from ppprof.topology import Topology
from ppprof.trace import Clock
from ppprof.trace.schema import Trace
from ppprof.trace.unrecorded_device import unrecorded_device

COLLECTIVES: dict[str, pl.DataType] = {
    "members": pl.String(),
    "axis": pl.String(),
    "op": pl.String(),
    "step": pl.Int64(),
    "index": pl.Int64(),
    "rank": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "bytes": pl.Int64(),
    "is_on_device": pl.Boolean(),
}
"""Columns of `collectives`. ``members`` are global ranks: ``0,4`` for a group, ``0>2`` for a
transfer from rank 0 to rank 2, ``0>?`` if the other rank is not recorded; null if no members are
recorded, see `with_members`. ``axis`` is that of
`ppprof.analysis.ranks.rank_communication.RankCommunication`. ``op`` is the name of the span, or
``send`` for every send and receive whose other rank is known, ``c10d::send`` for those of torch: a
host may end them before the other rank begins. ``index`` numbers the collectives of a step with
equal members and op, from 0. ``is_on_device``: the times are those of kernels, not of the host."""

_PLACED = {**COLLECTIVES, "first_row": pl.Int64(), "last_row": pl.Int64()}

KEYS = ("members", "op", "step", "index")
"""The columns that identify a collective: its rows have equal values there on all ranks."""

_ROLE = re.compile(r"(?:\w+::?)?i?(send|recv)(?:_|_any_source_)?(?: .*)?")
"""The names of sends and receives: Paddle's, ``c10d::recv_``, ``nccl:send 0->1``."""
_PADDLE_TRANSFERS = ("send", "isend", "recv", "irecv")
_UNKNOWN_PEER = "?"

_UNKNOWN_RANK = -1


def with_rank(table: pl.DataFrame, rank: int | Int64) -> pl.DataFrame:
    """Return results of `collectives` whose rank was unknown (-1), with the rank filled in.

    Fills in ``rank`` in the column rank and in the members of transfers: ``-1>2`` -> ``0>2``.

    Args:
        table: the results of one or several ranks, N rows.
        rank: the rank, or that of each row, shape (N,).
    """
    ranks = pl.Series(np.broadcast_to(rank, table.height), dtype=pl.Int64)
    members = pl.col("members").str.replace(str(_UNKNOWN_RANK), ranks.cast(pl.String), literal=True)
    return table.with_columns(members, rank=ranks)


def collectives(trace: Trace, rank: int = _UNKNOWN_RANK) -> pl.DataFrame:
    """Return the collectives and transfers of one rank's window, sorted by start.

    A host span and the kernels launched in it are one collective, timed by the kernels. A batch of
    transfers has a row for each transfer, all with the times of the batch. Three kinds
    of spans are no collectives: spans without peers; spans that wait (with a dot in their name);
    and ``isend`` and ``irecv`` that only start a ``send`` or ``recv`` span
    (`_started_transfers`). In a trace with device events, a span without any is counted in ``index`` and has no row:
    its own time is that of the host, which only launches. A trace that lacks the events of its
    device has no collectives for the same reason.

    Args:
        trace: the window.
        rank: the rank of the trace; -1 if unknown, see `with_rank`.

    Returns:
        Columns of `COLLECTIVES`, on the rank's own clock.
    """
    return _rows_and_posts(trace, rank)[0].select(*COLLECTIVES)


def collectives_of(profile: Profile) -> pl.DataFrame:
    """Return the columns of `COLLECTIVES` of the result of `placed_collectives`."""
    return placed_collectives(profile).select(*COLLECTIVES)


def placed_collectives(profile: Profile) -> pl.DataFrame:
    """Return the result of `collectives`, and the communication whose ranks are not recorded.

    That is communication outside spans, such as the kernels of DataParallel's reducer, and in spans
    without peers, such as torch's without arguments. Its members are null; `with_members` fills them
    in. Sends and receives are left out: their ranks do not follow from their number.

    Returns:
        Columns of `COLLECTIVES`, on the rank's own clock, and first_row and last_row: the rows, in the
        profile's whole tree, of the events that begin and end the collective. Of communication in
        no event of its own, both are the row of the host event around it.
    """
    known = _rows_and_posts(profile.whole, _UNKNOWN_RANK)[0].drop("row")
    rows = communication_of(profile)
    events = profile.tree.events
    has_peers = np.append(events.events["peers"].is_not_null().to_numpy(), False)[rows.span]
    is_transfer = rows.name.where(lambda name: bool(_TRANSFERS.search(name.lower())))
    is_wait = (rows.span >= 0) & events.names.take(rows.span).where(lambda name: "." in name)
    chosen = np.flatnonzero(~has_peers & ~is_transfer & ~is_wait & (rows.step >= 0))
    if not len(chosen):
        return known
    start, end = rows.times(chosen)
    unnamed = pl.DataFrame(
        {
            "members": pl.Series([None] * len(chosen), dtype=pl.String),
            "axis": rows.axis.take(chosen).column().cast(pl.String),
            "op": rows.name.take(chosen).column().cast(pl.String),
            "step": rows.step[chosen],
            "rank": np.full(len(chosen), _UNKNOWN_RANK),
            "start_ns": start,
            "end_ns": end,
            "first_row": rows.row[chosen],
            "last_row": rows.row[chosen],
        }
    ).sort("start_ns")
    index = pl.int_range(pl.len()).over("axis", "op", "step")
    unnamed = unnamed.with_columns(
        index=index, bytes=pl.lit(None, pl.Int64), is_on_device=pl.lit(events.has_devices)
    )
    return pl.concat([known, unnamed.select(known.columns).cast(_PLACED)])  # type: ignore[arg-type]


_TRANSFERS = re.compile("send|recv")


def with_members(table: pl.DataFrame, topology: Topology | None) -> pl.DataFrame:
    """Return the collectives of all ranks, with the members that their number shows.

    Ranks that do not record the members of their collectives meet in the order of their calls: the
    k-th all_reduce of a step on one rank is the k-th on the others. Over an axis of the topology they
    are the ranks of the group on that axis, else all ranks::

        rank   op (no members)           members of all three: 0,1
        0      a a b
        1      a a b c                   c is on one rank only: dropped

    Args:
        table: columns of `COLLECTIVES`, of all ranks.
        topology: the ranks' coordinates; None if unknown: all ranks of ``table``.

    Returns:
        The rows, without those whose members remain unknown: an operation must have as many calls in
        a step on each of the members.
    """
    unnamed = table.filter(pl.col("members").is_null())
    if unnamed.is_empty():
        return table
    groups = _groups(unnamed["axis"].unique(), table["rank"].unique(), topology)
    named = unnamed.drop("members").join(groups, ["rank", "axis"])
    same = ["members", "op", "step"]
    calls = named.group_by(*same, "rank").agg(calls=pl.len())
    even = calls.group_by(same).agg(ranks=pl.len(), kinds=pl.col("calls").n_unique())
    num_members = pl.col("members").str.count_matches(",") + 1
    even = even.filter((pl.col("kinds") == 1) & (pl.col("ranks") == num_members))
    named = named.join(even, same, "semi").select(table.columns)
    return pl.concat([table.filter(pl.col("members").is_not_null()), named])


def _groups(axes: Iterable[str], ranks: Iterable[int], topology: Topology | None) -> pl.DataFrame:
    """Return the group of each rank on each axis: rank, axis, members. No group has a single rank."""
    everybody = range(topology.world_size) if topology else sorted(ranks)
    rows = [
        (rank, axis, ",".join(map(str, group)))
        for axis in axes
        for group in (topology.groups(axis) if topology and axis in topology.order else [everybody])
        if len(group) > 1
        for rank in group
    ]
    schema = {"rank": pl.Int64, "axis": pl.String, "members": pl.String}
    return pl.DataFrame(rows, schema, orient="row")


def linked_rows(trace: Trace) -> pl.DataFrame:
    """Return the spans that a picture can link to the same communication on other ranks.

    Returns:
        row (of the span), members, op, step and index as in `collectives`, for an unknown rank; and
        is_post (bool). An ``isend`` or ``irecv`` that only starts a transfer is a row, too, with the
        transfer's values and is_post.
    """
    table, posts = _rows_and_posts(trace, _UNKNOWN_RANK)
    keys = table.select("row", *KEYS)
    started = pl.DataFrame(list(posts.items()), {"post": pl.Int64, "row": pl.Int64}, orient="row")
    posting = started.join(keys, on="row").select(pl.col("post").alias("row"), *KEYS)
    return pl.concat(
        [
            keys.with_columns(is_post=pl.lit(value=False)),
            posting.with_columns(is_post=pl.lit(value=True)),
        ]
    )


def _rows_and_posts(trace: Trace, rank: int) -> tuple[pl.DataFrame, dict[int, int]]:
    """Return the result of `collectives` with the row of each span, and that of `_started_transfers`."""
    schema = {"row": pl.Int64(), **_PLACED}
    if unrecorded_device(trace):
        return pl.DataFrame(schema=schema), {}
    events = EventArrays(trace)
    spans = events.host_rows("Communication")
    spans = spans[np.argsort(events.start_ns[spans], kind="stable")]
    texts = trace.events[list(_READ)][spans].rows()
    is_collective = [peers is not None and "." not in name for name, peers, *_ in texts]
    spans = spans[np.array(is_collective, bool)]
    first, last, is_timed = kernel_rows(events, spans)
    start, end = events.start_ns[first], events.ends(last)
    times = zip(*(each.tolist() for each in (spans, start, end, is_timed, first, last)))
    calls = [
        (name, role, one_peers, axis, step, one_bytes, time)
        for (name, peers, axis, step, num_bytes), time in zip(compress(texts, is_collective), times)
        for role, one_peers, one_bytes in _transfers(name, peers, num_bytes)
    ]
    posts = _started_transfers(
        _TransferSpan(row, _in_paddle(name), peers, num_bytes, thread, start_ns, end_ns)
        for (name, peers, _, _, num_bytes), row, thread, start_ns, end_ns in zip(
            compress(texts, is_collective),
            spans.tolist(),
            trace.events["thread"].gather(spans).to_list(),
            events.start_ns[spans].tolist(),
            events.ends(spans).tolist(),
        )
        if _in_paddle(name) in _PADDLE_TRANSFERS
    )
    calls = [call for call in calls if call[-1][0] not in posts]
    indices: Counter[tuple[object, ...]] = Counter()
    rows = []
    for name, role, peers, axis, step, num_bytes, (row, start_ns, end_ns, has_time, *ends) in calls:
        members = {"send": f"{rank}>{peers}", "recv": f"{peers}>{rank}"}.get(role, peers)
        op = _op(name, role, peers)
        index = indices[members, op, step]
        indices[members, op, step] += 1
        if has_time:
            axis = axis or UNKNOWN_AXIS
            on_device = events.has_devices
            values = (axis, op, step, index, rank, start_ns, end_ns, num_bytes, on_device, *ends)
            rows.append((row, members, *values))
    rows.sort(key=lambda row: row[7])
    return pl.DataFrame(rows, schema, orient="row"), posts


_READ = ("name", "peers", "axis", "step", "bytes")
_TRANSFER = re.compile(r"([<>])([0-9]{1,18}):([0-9]{1,18})")


def _transfers(name: str, peers: str, num_bytes: int | None) -> Iterator[_Transfer]:
    """Yield role, peers and bytes of each transfer of a batch, or of a collective.

    >>> list(_transfers("batch_isend_irecv", ">1:8,<3:4", 12))
    [('send', '1', 8), ('recv', '3', 4)]
    >>> list(_transfers("isend", "1", 8)), list(_transfers("all_reduce", "0,4", None))
    ([('send', '1', 8)], [('', '0,4', None)])

    torch may record a group instead of the other rank:

    >>> list(_transfers("c10d::recv_", "1", 8)), list(_transfers("c10d::recv_", "0,1", 8))
    ([('recv', '1', 8)], [('recv', '?', 8)])
    """
    role = _role(name)
    for text in peers.split(",") if "<" in peers or ">" in peers else [peers]:
        if transfer := _TRANSFER.fullmatch(text):
            way, peer, size = transfer.groups()
            yield "send" if way == ">" else "recv", peer, int(size)
        else:
            yield role, _UNKNOWN_PEER if role and not text.isdecimal() else text, num_bytes


@lru_cache(1 << 10)
def _role(name: str) -> str:
    match = _ROLE.fullmatch(name)
    return match[1] if match else ""


def _in_paddle(name: str) -> str:
    """Return the name of a transfer in Paddle: `ppprof.trace.kineto.writer` writes ``c10d::isend``."""
    return name.replace("c10d::", "", 1)


def _op(name: str, role: str, peer: str) -> str:
    """Return the value of ``op`` in `COLLECTIVES`."""
    if not role or peer == _UNKNOWN_PEER:
        return name
    return "c10d::send" if ":" in name else "send"


_Transfer = tuple[str, str, Optional[int]]


def kernel_times(events: EventArrays, rows: Int64) -> tuple[Intervals, Bool]:
    """Return the start of the first kernel and the end of the last kernel of some host events.

    A kernel belongs to the innermost of the events around its launch. An event with copies and no
    kernel has their start and end, since a library may run a collective as copies. In a trace
    without device events, start and end are the host's.

    ::

        host     [all_gather]  [send]  [all_reduce ]
        device       kkkk         (none)    ccc kkkk       kernels before copies

    Returns:
        An interval for each of the rows, and whether it has one, shape (N,); an event without
        device events in a trace that has some has none.
    """
    first, last, is_timed = kernel_rows(events, rows)
    return (events.start_ns[first], events.ends(last)), is_timed


def kernel_rows(events: EventArrays, rows: Int64) -> tuple[Int64, Int64, Bool]:
    """Return the rows of the first and the last kernel of some host events: see `kernel_times`.

    Returns:
        Two rows for each of the rows (its own, if it has no device event), and whether it has one,
        shape (N,).
    """
    if not events.has_devices:
        return rows, rows, np.ones(len(rows), bool)
    is_chosen = np.zeros(events.num_hosts + 1, bool)
    is_chosen[rows] = True
    around = events.host_of_device.copy()
    while (climbs := np.flatnonzero((around >= 0) & ~is_chosen[around])).size:
        around[climbs] = events.parent[around[climbs]]  # one turn for each nesting level
    has_kernel = np.zeros(events.num_hosts + 1, bool)
    has_kernel[around[events.is_kernel]] = True
    counts = np.flatnonzero((around >= 0) & (events.is_kernel == has_kernel[around]))
    around, kernel = around[counts], events.first_device + counts
    first, last = (np.append(np.arange(events.num_hosts), -1) for _ in range(2))
    # Of several assignments to one host event, the last one remains.
    by_start = np.argsort(-events.start_ns[kernel], kind="stable")
    first[around[by_start]] = kernel[by_start]
    by_end = np.argsort(events.ends(kernel), kind="stable")
    last[around[by_end]] = kernel[by_end]
    return first[rows], last[rows], first[rows] != rows


def match_collectives(tables: Sequence[pl.DataFrame], clocks: Mapping[int, Clock]) -> pl.DataFrame:
    """Return the collectives that all members of their group recorded, on the reference clock.

    ::

        rank 0   ...[ all_reduce     ]...      arrives first, waits
        rank 4   .........[all_reduce]...      arrives last; the rest is transfer

    Args:
        tables: the result of `collectives` for each rank, on the rank's own clock.
        clocks: each rank's clock, keyed by rank. Ranks without a clock keep their times.

    Returns:
        Columns of `COLLECTIVES`, one row per collective and member, sorted by members, op, step,
        index and rank. A collective has no rows if a member did not record it, or recorded it
        twice, since windows of one rank have steps of equal numbers.
    """
    on_one_clock = [to_reference_clock(table, clocks) for table in tables]
    joined = pl.concat(on_one_clock) if on_one_clock else pl.DataFrame(schema=COLLECTIVES)
    members = pl.col("members").str.replace(">", ",", literal=True).str.split(",")
    joined = joined.filter(members.list.contains(pl.col("rank").cast(pl.String)))
    num_members = pl.col("members").str.count_matches(r"[,>]") + 1
    num_ranks = pl.col("rank").n_unique().over(KEYS)
    is_whole = (pl.len().over(KEYS) == num_members) & (num_ranks == num_members)
    return joined.filter(is_whole).sort(*KEYS, "rank")


def to_reference_clock(table: pl.DataFrame, clocks: Mapping[int, Clock]) -> pl.DataFrame:
    """Return one rank's table with start_ns and end_ns on the reference clock.

    The table is returned unchanged if its rank has no clock or if it has no rows.
    """
    if table.is_empty() or table["rank"][0] not in clocks:
        return table
    clock = clocks[table["rank"][0]]
    return table.with_columns(
        pl.Series(name, clock.to_reference(table[name].to_numpy()))
        for name in ("start_ns", "end_ns")
    )


_POSTED = {"isend": "send", "irecv": "recv"}
"""Function that posts a transfer -> function that does it."""


class _TransferSpan(NamedTuple):
    """A host event of a transfer between two ranks."""

    row: int
    name: str
    """``send``, ``recv``, ``isend`` or ``irecv``."""
    peer: str
    num_bytes: int | None
    thread: int | None
    start_ns: int
    end_ns: int


def _started_transfers(spans: Iterable[_TransferSpan]) -> dict[int, int]:
    """Return the row of each posted transfer that only starts another span, with that span's row.

    An ``isend`` or ``irecv`` may do the transfer itself, or only start it: a ``send`` or ``recv`` on
    another thread, or inside it, then is the transfer, and both spans are of one transfer::

        main      isend   send .......      isend
        thread      send ......                          one transfer by each of these three

    The other span is the first one with the same peer and bytes that begins later, is on another
    thread or inside, and that no earlier ``isend`` or ``irecv`` has started.
    """
    posted: defaultdict[tuple[str, str, int | None], list[_TransferSpan]] = defaultdict(list)
    started: dict[int, int] = {}
    for span in spans:
        name = _POSTED.get(span.name)
        if name is not None:
            posted[name, span.peer, span.num_bytes].append(span)
            continue
        waiting = posted[span.name, span.peer, span.num_bytes]
        for number, post in enumerate(waiting):
            if post.thread != span.thread or span.end_ns <= post.end_ns:
                started[post.row] = span.row
                del waiting[number]
                break
    return started
