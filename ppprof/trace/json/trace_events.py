"""What the events of all writers have in common, in the Trace Event Format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Union

import msgspec

Scalar = Union[int, float, str, bool, None]
"""Type of a field's value before it is checked.

Writers do not agree on types: ROCm's writes numbers as text, and some ids are names.
"""

IGNORED_PHASES: Mapping[str, str] = {
    **{"M": "metadata", "C": "counters"},
    **dict.fromkeys("iIR", "instants"),
    **dict.fromkeys("stf", "flows"),
    **dict.fromkeys("bneST", "asynchronous spans"),
}
"""``ph`` of events that no table needs -> what they are (Trace Event Format)."""

NO_TEXT = msgspec.Raw()
"""The JSON text of a missing field, which is empty."""


class Args(msgspec.Struct, gc=False):
    """The fields of ``args`` that Paddle and torch name alike; None or no text for a missing field."""

    name: Scalar = None
    bytes: Scalar = None
    dtype: Scalar = None
    device: Scalar = None
    context: Scalar = None
    stream: Scalar = None
    grid: msgspec.Raw = NO_TEXT
    block: msgspec.Raw = NO_TEXT
    registers: Scalar = msgspec.field(default=None, name="registers per thread")
    shared_bytes: Scalar = msgspec.field(default=None, name="shared memory")
    blocks_per_sm: Scalar = msgspec.field(default=None, name="blocks per SM")
    warps_per_sm: Scalar = msgspec.field(default=None, name="warps per SM")


class Event(msgspec.Struct, gc=False):
    """The fields that every event of the list ``traceEvents`` may have, other than ``args``.

    Times stay text, because a float64 of microseconds since 1970 holds only multiples of 250 ns.
    """

    name: str = ""
    ph: str = ""
    cat: str = ""
    pid: Scalar = None
    tid: Scalar = None
    ts: msgspec.Raw = NO_TEXT
    dur: msgspec.Raw = NO_TEXT
