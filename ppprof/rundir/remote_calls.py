r"""Remote calls: times, clock offsets computed from the times, and files in a run directory.

::

    caller   sent ---------------------------------------------------> received
                  \                                                   /
    worker         arrived   called   began ======== ended   left ----

Between sent and called, the arguments are pickled, sent and unpickled; behind left, the result is. From called to
began and from ended to left, the worker is busy with the recording.

Sent and received are times on the caller's clock, the other times are on the worker's clock. Sent,
arrived, left and received are the four times of NTP (RFC 5905), and give the offset between the
clocks. The error of the offset is at most half the time that request and response were under way,
including time in queues. Converted to the caller's clock, began and ended lie between sent and
received.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from ppprof.rundir.clocks import Reading
from ppprof.rundir.run_file import RunFile, matches

_CALL = re.compile(r"(.*)\.json")
_MOST_BYTES = 1 << 20  # limit for a call's file; a call takes about 400 bytes


@dataclass(frozen=True)
class RemoteCall:
    """One call of a function on another process.

    ``sent_ns`` to ``received_ns`` are the times of the module's picture, in ns of wall time.
    """

    id: str
    """Unique id of the call."""
    parent: str | None
    """Id of the remote call whose function made this call; None if the recorded rank made it."""
    name: str
    """Name of the called function."""
    caller: str
    """Name of the calling process, without spaces and parentheses."""
    worker: str
    """Name of the called process, without spaces and parentheses."""
    process: str
    """``host:pid`` of the worker. ``arrived_ns`` to ``left_ns`` are on its clock."""
    thread: int
    """Thread id of the call in the worker's trace."""
    sent_ns: int
    arrived_ns: int
    began_ns: int
    ended_ns: int
    left_ns: int
    received_ns: int
    note: str = ""
    """Why the call has no events; empty if it has events."""
    called_ns: int = 0
    """When the worker had unpickled the arguments, on its clock; 0 if unknown."""
    line: str = ""
    """The user's line that makes the call, as Paddle writes call stacks; empty if unknown."""
    function_line: str = ""
    """The user's line on the worker that has most of the function's time, likewise."""
    num_bytes: int = 0
    """About how many bytes arguments and result take; 0 if unknown."""
    carrier: str = ""
    """``rpc`` if waits of the caller are recorded as spans; empty if unknown, and for other carriers."""
    num_objects: int = 0
    """Of about how many Python objects they are made: an array is one, a list of 1,000 numbers 1,001."""

    @property
    def before_ns(self) -> int:
        """How long the worker was busy with the recording before it began the function."""
        return max(0, self.began_ns - self.called_ns) if self.called_ns else 0

    @property
    def after_ns(self) -> int:
        """How long the worker was busy with the recording after the function had ended."""
        return max(0, self.left_ns - self.ended_ns)

    @property
    def span(self) -> str:
        """Name of the call in traces and tables: ``rpc#name(worker0 -> worker1)``."""
        return f"rpc#{self.name}({self.caller} -> {self.worker})"

    @property
    def reading(self) -> Reading:
        """The caller's clock minus the worker's clock, and the bound of its error, from one call.

        >>> times = dict(sent_ns=100, arrived_ns=1030, began_ns=1040, ended_ns=1050, left_ns=1060)
        >>> RemoteCall("a", None, "f", "w0", "w1", "h:1", 1, **times, received_ns=150).reading
        Reading(at_ns=1030, offset_ns=-920, error_ns=10)
        """
        out, back = self.sent_ns - self.arrived_ns, self.received_ns - self.left_ns
        # Negative if a clock was set during the call: the error is unknown then, and 0 here.
        return Reading(self.arrived_ns, (out + back) // 2, max(0, -(-(back - out) // 2)))


def aligned(calls: Iterable[RemoteCall]) -> dict[str, Reading]:
    """Return the clock offset of each call, keyed by the call's id.

    A call gets the offset of the call with the smallest error between the same two processes. The
    offset is then limited to the range that the call's own times allow, so that on the caller's
    clock the call lies between sent and received even if the clocks drift.

    >>> def call(id, sent, arrived, left, received):
    ...     return RemoteCall(id, None, "f", "w0", "w1", "h:1", 1, sent, arrived, arrived, left,
    ...                       left, received)
    >>> fast, queued = call("fast", 100, 1101, 1111, 112), call("queued", 100, 1150, 1160, 170)
    >>> queued.reading.offset_ns, queued.reading.error_ns
    (-1020, 30)
    >>> [(reading.offset_ns, reading.error_ns) for reading in aligned([fast, queued]).values()]
    [(-1000, 1), (-1000, 1)]
    """
    own = {call.id: (call, call.reading) for call in calls}
    processes = {call.id: call.process for call, _ in own.values()}
    best: dict[tuple[str | None, str], Reading] = {}
    for call, reading in own.values():
        pair = (processes.get(call.parent or ""), call.process)
        best[pair] = min(best.get(pair, reading), reading, key=lambda candidate: candidate.error_ns)
    readings = {}
    for id, (call, reading) in own.items():
        fastest = best[processes.get(call.parent or ""), call.process]
        low, high = reading.offset_ns - reading.error_ns, reading.offset_ns + reading.error_ns
        offset_ns = min(max(fastest.offset_ns, low), high)
        drift_ns = abs(offset_ns - fastest.offset_ns)
        error_ns = min(reading.error_ns, fastest.error_ns + drift_ns)
        readings[id] = Reading(reading.at_ns, offset_ns, error_ns)
    return readings


def write_call(folder: RunFile, call: RemoteCall, raw: bytes) -> None:
    """Write a call to ``<id>.json`` in a folder, and its recording to ``<id>.pb``.

    Args:
        folder: `ppprof.rundir.TraceName.calls` of the window; created if missing.
        call: the call.
        raw: the bytes of the worker's ``.pb``. If empty, no ``.pb`` is written.

    Raises:
        OSError: a file cannot be written.
    """
    if raw:
        (folder / f"{call.id}.pb").write(raw)
    (folder / f"{call.id}.json").write(json.dumps(asdict(call)).encode())


def has_call(folder: RunFile, call: RemoteCall) -> bool:
    """Whether `write_call` has written ``call`` completely in ``folder``."""
    return (folder / f"{call.id}.json").exists()


def read_calls(folder: RunFile) -> tuple[list[RemoteCall], int]:
    """Return the calls in a folder, sorted by sent time, and the number of unreadable call files.

    No calls if there is no such folder.
    """
    calls, num_unreadable = [], 0
    for id in (match[1] for match in matches(folder.run, folder.name, _CALL)):
        try:
            call = _checked(RemoteCall(**(folder / f"{id}.json").read_json(_MOST_BYTES)), id)
        except (OSError, ValueError, TypeError):
            num_unreadable += 1
        else:
            calls.append(call)
    return sorted(calls, key=lambda call: (call.sent_ns, call.id)), num_unreadable


def _checked(call: RemoteCall, id: str) -> RemoteCall:
    """Return ``call`` unchanged if its values are valid."""
    if call.id != id:
        raise ValueError(f"id {call.id!r} in the file of {id!r}")
    for field in fields(call):
        value = getattr(call, field.name)
        is_valid = {
            "str": isinstance(value, str),
            "str | None": value is None or isinstance(value, str),
            "int": type(value) is int and 0 <= value < 2**62,
        }
        if not is_valid[str(field.type)]:
            raise ValueError(f"{field.name} {value!r}")
    return call
