r"""Remote calls: what is known of each, on which clocks, and their files in a run directory.

::

    caller   sent -----------------------------------------> received
                  \                                         /
    worker         arrived   began ======== ended   left --

The outer times are the caller's clock, the inner ones the worker's: the four of NTP (RFC 5905).
They give the offset of the two clocks, wrong by half of what the call was under way at the most,
waiting in a queue included. On the caller's clock began and ended lie between sent and received.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ppprof.paths import read_bounded, write_atomically
from ppprof.rundir.clocks import Reading

_MOST_BYTES = 1 << 20  # of a call; one has some 400

REMOTE = "#remote_op: "
"""In a name, between a call and what was recorded in it on the other side."""


@dataclass(frozen=True)
class RemoteCall:
    """One call of a function on another process."""

    id: str
    """Unique."""
    parent: str | None
    """The call in which it was made; None for one of the recorded rank itself."""
    name: str
    """Of the function."""
    caller: str
    worker: str
    """Names without spaces and parentheses of who called and who was called."""
    process: str
    """``host:pid`` of the worker: whose clock the inner times are."""
    thread: int
    """Thread of the worker that ran it, as its trace numbers them."""
    sent_ns: int
    arrived_ns: int
    began_ns: int
    ended_ns: int
    left_ns: int
    received_ns: int
    note: str = ""
    """Why there are no events of it; empty where there are."""

    @property
    def span(self) -> str:
        """Its name in traces and tables: ``rpc#name(worker0 -> worker1)``."""
        return f"rpc#{self.name}({self.caller} -> {self.worker})"

    @property
    def reading(self) -> Reading:
        """The worker's clock against the caller's.

        >>> times = dict(sent_ns=100, arrived_ns=1030, began_ns=1040, ended_ns=1050, left_ns=1060)
        >>> RemoteCall("a", None, "f", "w0", "w1", "h:1", 1, **times, received_ns=150).reading
        Reading(at_ns=1030, offset_ns=-920, error_ns=10)
        """
        out, back = self.sent_ns - self.arrived_ns, self.received_ns - self.left_ns
        # Below 0 where a clock was set meanwhile: then nothing is known of the error.
        return Reading(self.arrived_ns, (out + back) // 2, max(0, -(-(back - out) // 2)))


def aligned(calls: Iterable[RemoteCall]) -> dict[str, Reading]:
    """The offset of each call's worker to its caller, by id: that of the pair's fastest call.

    As far as that is possible: it stays within what the call's own times allow, so that the call
    lies between sent and received whatever the clocks did in between.

    >>> def call(id, sent, arrived, left, received):
    ...     return RemoteCall(id, None, "f", "w0", "w1", "h:1", 1, sent, arrived, arrived, left,
    ...                       left, received)
    >>> fast, queued = call("fast", 100, 1101, 1111, 112), call("queued", 100, 1150, 1160, 170)
    >>> queued.reading.offset_ns, queued.reading.error_ns
    (-1020, 30)
    >>> [(at.offset_ns, at.error_ns) for at in aligned([fast, queued]).values()]
    [(-1000, 1), (-1000, 1)]
    """
    own = {call.id: (call, call.reading) for call in calls}
    of_process = {call.id: call.process for call, _ in own.values()}
    best: dict[tuple[str | None, str], Reading] = {}
    for call, reading in own.values():
        pair = (of_process.get(call.parent or ""), call.process)
        best[pair] = min(best.get(pair, reading), reading, key=lambda at: at.error_ns)
    found = {}
    for id, (call, reading) in own.items():
        fastest = best[of_process.get(call.parent or ""), call.process]
        low, high = reading.offset_ns - reading.error_ns, reading.offset_ns + reading.error_ns
        offset_ns = min(max(fastest.offset_ns, low), high)
        drifted_ns = abs(offset_ns - fastest.offset_ns)
        error_ns = min(reading.error_ns, fastest.error_ns + drifted_ns)
        found[id] = Reading(reading.at_ns, offset_ns, error_ns)
    return found


def write_call(folder: Path, call: RemoteCall, raw: bytes) -> None:
    """Keeps a call and what was recorded in it, Paddle's ``.pb`` or nothing.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if raw:
        write_atomically(folder / f"{call.id}.pb", raw)
    write_atomically(folder / f"{call.id}.json", json.dumps(asdict(call)).encode())


def has_call(folder: Path, call: RemoteCall) -> bool:
    """Whether `write_call` has kept it."""
    return (folder / f"{call.id}.json").exists()


def read_calls(folder: Path) -> tuple[list[RemoteCall], int]:
    """The calls in a folder, by the time they were sent, and how many could not be read."""
    calls, num_lost = [], 0
    for path in folder.glob("*.json"):
        try:
            call = _checked(RemoteCall(**json.loads(read_bounded(path, _MOST_BYTES))), path.stem)
        except (OSError, ValueError, TypeError, RecursionError):
            num_lost += 1
        else:
            calls.append(call)
    return sorted(calls, key=lambda call: (call.sent_ns, call.id)), num_lost


def _checked(call: RemoteCall, id: str) -> RemoteCall:
    """The call, if it is what `write_call` writes.

    Raises:
        ValueError: it is not.
    """
    if call.id != id:
        raise ValueError(f"id {call.id!r} in the file of {id!r}")
    for field in fields(call):
        value = getattr(call, field.name)
        fits = {
            "str": isinstance(value, str),
            "str | None": value is None or isinstance(value, str),
            "int": type(value) is int and 0 <= value < 2**62,
        }
        if not fits[str(field.type)]:
            raise ValueError(f"{field.name} {value!r}")
    return call
