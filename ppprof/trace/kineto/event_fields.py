"""The fields of Kineto's events that are read, and the kinds of events.

Sources: libkineto/src/output_json.cpp and ActivityType.h of pytorch/kineto,
torch/csrc/distributed/c10d/ParamCommsUtils.hpp of pytorch/pytorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

import msgspec

from ppprof.trace.json.trace_events import NO_TEXT, Args, Event, Scalar
from ppprof.trace.kineto.names import DEVICES, LAUNCHES, OPERATORS


class KinetoArgs(Args, gc=False):
    """The fields of an event's ``args`` that are read."""

    labels: Scalar = None
    correlation: Scalar = None
    occupancy: Scalar = msgspec.field(default=None, name="est. achieved occupancy %")
    collective: Scalar = msgspec.field(default=None, name="Collective name")
    group: Scalar = msgspec.field(default=None, name="Process Group Name")
    group_id: Scalar = msgspec.field(default=None, name="Process Group ID")
    description: Scalar = msgspec.field(default=None, name="Process Group Description")
    ranks: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Process Group Ranks")
    source: Scalar = msgspec.field(default=None, name="Src Rank")
    destination: Scalar = msgspec.field(default=None, name="Dst Rank")
    num_in: Scalar = msgspec.field(default=None, name="In msg nelems")
    num_out: Scalar = msgspec.field(default=None, name="Out msg nelems")
    sequence: Scalar = msgspec.field(default=None, name="Sequence number")
    forward_thread: Scalar = msgspec.field(default=None, name="Fwd thread id")
    addr: Scalar = msgspec.field(default=None, name="Addr")
    size: Scalar = msgspec.field(default=None, name="Bytes")
    allocated: Scalar = msgspec.field(default=None, name="Total Allocated")
    reserved: Scalar = msgspec.field(default=None, name="Total Reserved")
    device_type: Scalar = msgspec.field(default=None, name="Device Type")
    device_id: Scalar = msgspec.field(default=None, name="Device Id")
    dims: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Input type")
    concrete: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Concrete Inputs")


NO_ARGS = KinetoArgs()


class OtherArgs(KinetoArgs, gc=False):
    """Also the fields that `ppprof.trace.kineto.other_writers` reads."""

    connection: Scalar = msgspec.field(default=None, name="connection_id")
    task_type: Scalar = msgspec.field(default=None, name="Task Type")
    begin_ns: Scalar = msgspec.field(default=None, name="BeginNs")
    end_ns: Scalar = msgspec.field(default=None, name="EndNs")
    host_process: Scalar = msgspec.field(default=None, name="pid")
    device_number: Scalar = msgspec.field(default=None, name="dev-id")
    stream_number: Scalar = msgspec.field(default=None, name="stream-id")
    queue_number: Scalar = msgspec.field(default=None, name="queue-id")
    queued: Scalar = msgspec.field(default=None, name="correlation_id")


class KinetoEvent(Event, gc=False):
    """One event of the list ``traceEvents``."""

    id: Scalar = None
    args: Optional[OtherArgs] = None


EMPTY = KinetoEvent()

FRAME = "python_function"
PROCESS_NAMES = ("process_name", "process_labels")
"""Names of the metadata events that name a process."""
OVERHEAD = "overhead"
"""``cat`` of the times that the profiler itself takes: ``Activity Buffer Request``."""
ANNOTATION = "gpu_user_annotation"
"""``cat`` of the device's copies of the host's annotations: from the first to the last kernel in each."""
COLLECTIVE_CALL = "record_param_comms"
"""Name of the operators that are calls of collectives, or waits for them."""
WAIT = "wait"
"""``Collective name`` of a wait. The wait is no collective: that has an event of its own."""
WAIT_SPAN = f"{COLLECTIVE_CALL}.{WAIT}"
"""The name that waits get. They become user spans without args."""
KINDS = {
    **dict.fromkeys([*OPERATORS, "user_annotation"], "hosts"),
    **dict.fromkeys(LAUNCHES, "launches"),
    **dict.fromkeys(DEVICES, "devices"),
}
"""``cat`` of a span -> kind of event."""
COLLECTIVE_SPAN = "collective_comm"
"""``cat`` of a library's own spans: oneCCL's ``xccl::allreduce`` on the host; others have a device."""
ENQUEUE, DEQUEUE = "enqueue", "dequeue"
"""``cat`` of torch_npu's spans around a task that one thread puts into a queue, and another runs."""
IGNORED_SPANS = frozenset(
    [
        *(ENQUEUE, DEQUEUE),
        *(FRAME, ANNOTATION, "cuda_sync", "xpu_sync", "cuda_event", OVERHEAD, "Trace"),
        *("external_correlation", "cuda_profiler_range", "cpu_instant_event"),
    ]
)
"""Values of ``cat`` for spans that are no work of the model, or copies of other events."""
Columns = Mapping[str, str]
"""Name of a column -> name of its dtype. A file is begun to be read while polars is imported."""

_SPAN: Columns = {
    "index": "Int64",
    **dict.fromkeys(("name", "cat"), "Categorical"),
    **dict.fromkeys(("process", "thread", "start_ns", "dur_ns"), "Int64"),
}
ARGS: Mapping[str, Columns] = {
    "hosts": {},
    "launches": {"correlation": "Int64"},
    "devices": {
        **dict.fromkeys(("correlation", "device", "context", "stream", "bytes"), "Int64"),
        **dict.fromkeys(("grid", "block"), "Categorical"),
        **dict.fromkeys(("registers", "shared_bytes"), "Int64"),
        **dict.fromkeys(("blocks_per_sm", "warps_per_sm", "occupancy"), "Float64"),
    },
    "memory": {
        "addr": "UInt64",
        **dict.fromkeys(("size", "allocated", "reserved", "device_type", "device_id"), "Int64"),
    },
    "frames": {},
    "overheads": {},
    "annotations": {},
}
"""Kind of event -> its columns that come from `KinetoArgs`."""
SPANS: Mapping[str, Columns] = {kind: {**_SPAN, **args} for kind, args in ARGS.items()}
"""Kind of event -> its columns. ``hosts`` are operators, annotations and modules.

``index`` orders the events as in the file. It is the byte offset of an event or, for a decoded
event, the offset of its piece of text plus the event's number in the piece.
"""
_COLLECTIVE: Columns = {
    **dict.fromkeys(("group", "group_id", "num_in", "num_out"), "Int64"),
    **dict.fromkeys(("source", "destination", "description"), "String"),
    **dict.fromkeys(("ranks", "dtype"), "Categorical"),
}
DETAILS: Mapping[str, tuple[str, str, Columns]] = {
    "host collectives": ("hosts", "num_in", _COLLECTIVE),
    "device collectives": ("devices", "num_in", _COLLECTIVE),
    "sequences": ("hosts", "sequence", {"sequence": "Int64", "forward_thread": "Int64"}),
}
"""Table of args that only some events have -> kind of event, the arg they must have, columns.

Each table also has ``index``, as in `SPANS`.
"""
