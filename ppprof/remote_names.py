"""Names of events that were recorded in remote calls, such as ``rpc#f(w0 -> w1)#remote_op: relu``."""

from __future__ import annotations

import re

REMOTE = "#remote_op: "
"""Separator in the name of a worker's event: the call, `REMOTE`, the event's name on the worker."""

WAIT = "rpc.wait("
"""Begin of the names of spans in which a thread waits for the result of a call by rpc: ``rpc.wait(worker1)``."""

_END = r"[^\s()]+"
_CALLS = re.compile(rf"(?:rpc#[^\s()]*\({_END} -> {_END}\){REMOTE})+")
_ENDS = re.compile(rf"\(({_END}) -> ({_END})\)")


def is_call(name: str) -> bool:
    """Return whether a name is that of a call or of an event in one.

    >>> is_call("rpc#f(w0 -> w1)"), is_call("rpc#mine")
    (True, False)
    """
    return name.startswith("rpc#") and _ENDS.search(name) is not None


def call_of(name: str) -> str | None:
    """Return the chain of remote calls in which an event was recorded; None for a local event.

    The span of a call on the caller's side is a local event.

    >>> call_of("rpc#f(w0 -> w1)#remote_op: rpc#g(w1 -> w2)#remote_op: relu")
    'rpc#f(w0 -> w1)#remote_op: rpc#g(w1 -> w2)'
    >>> call_of("rpc#f(w0 -> w1)"), call_of("relu")
    (None, None)
    """
    match = _CALLS.match(name)
    return match[0][: -len(REMOTE)] if match else None


def ends_of(call: str) -> tuple[str, str]:
    """Return the caller of a chain's outermost call, and the worker of its innermost call.

    >>> ends_of("rpc#f(w0 -> w1)#remote_op: rpc#g(w1 -> w2)")
    ('w0', 'w2')
    """
    ends = _ENDS.findall(call)
    return ends[0][0], ends[-1][1]
