"""Events of writers other than torch, in Kineto's terms.

===========================  ==================================================================
writer                       what it writes
===========================  ==================================================================
any                          a begin and an end (``ph`` B, E) in place of a span (X)
torch_npu, msprof (Ascend)   times in quotes; spans without ``cat``, on processes with the names
                             below; ``connection_id`` joins a call of CANN and its task
rocprof                      likewise; ids in quotes, exact times in ``args``; arrows join a call
                             and its kernel
===========================  ==================================================================

Ascend writes one collective several times: as a whole on the process ``HCCL`` or ``Communication``,
and as its parts there and on ``Ascend Hardware``. The whole counts. ``Overlap Analysis`` repeats
intervals of other processes. Waits and records of a stream are no work. torch_npu's operators put
tasks into a queue; the thread that takes them out calls CANN. Such a call counts where its task was
put in, since the operator launches it (`_TaskQueue`).

Sources: analysis/csrc/application/timeline and analysis/viewer of Ascend's msprof,
torch_npu/profiler/analysis of Ascend/pytorch; bin/tblextr.py of ROCm/roctracer.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from operator import itemgetter

import msgspec

from ppprof.trace.communication_names import is_communication
from ppprof.trace.json.trace_events import Scalar
from ppprof.trace.kineto.event_fields import DEQUEUE, ENQUEUE, KinetoEvent, OtherArgs

ROCPROF = b'"CPU HIP API"'
"""What a file of rocprof has in its first bytes. Its arrows are the only links of launches."""

_OPERATOR, _MARK, _LAUNCH = "cpu_op", "user_annotation", "cuda_runtime"
_KERNEL, _COPY = "kernel", "gpu_memcpy"
_TASK, _COLLECTIVE, _DERIVED = "task", "collective", "derived"
_HOSTS = (_OPERATOR, _MARK, _LAUNCH)
_PROCESSES = {
    **{"Python": _OPERATOR, "MindSpore": _OPERATOR, "Markers and Ranges": _MARK},
    **dict.fromkeys(("CANN", "CPU HIP API", "CPU HSA API"), _LAUNCH),
    **{"Ascend Hardware": _TASK, "HCCL": _COLLECTIVE, "Communication": _COLLECTIVE},
    **{"COPY": _COPY, "Overlap Analysis": _DERIVED},
}
"""Name of a process -> ``cat`` of its spans, or how to find it."""
_GPU = re.compile(r"GPU(\d{1,4})\b")
_NPU = re.compile(r"NPU[ _]?(\d{1,4})\b")
_STREAM_ONLY = re.compile("(event|notify|capture)_(wait|record)", re.IGNORECASE)
_FIRST_GROUP = 1 << 20
"""Streams of collectives, which are threads of their own process, begin here."""
_Positioned = tuple[int, KinetoEvent]


class OtherEvents:
    """Events that no rule of Kineto's fits, until the whole file is known."""

    def __init__(self) -> None:
        self._bounds: list[_Positioned] = []
        self._spans: list[_Positioned] = []
        self._arrows: list[KinetoEvent] = []
        self._queued: list[KinetoEvent] = []
        self.counts: Counter[str] = Counter()
        """Kind -> number of events that are left out on purpose, or have no use."""

    def add(self, position: int, event: KinetoEvent) -> bool:
        """Keep an event that `resolved` needs; return whether `resolved` may yield it.

        It may yield begins, ends, and spans without a category. It needs arrows too, which link a span
        to its launch, and the spans of torch_npu's queue. Other events are not kept.
        """
        if event.ph in ("B", "E"):
            self._bounds.append((position, event))
        elif event.ph == "X" and not event.cat:
            self._spans.append((position, event))
        else:
            if event.ph in ("s", "t", "f") and isinstance(event.id, int):
                self._arrows.append(event)
            elif event.ph == "X" and event.cat in (ENQUEUE, DEQUEUE):
                self._queued.append(event)
            return False
        return True

    def resolved(self, names: Mapping[int, str], skipped: Counter[str]) -> Iterator[_Positioned]:
        """Yield the spans that the events are, with their positions. Called once.

        Args:
            names: process id -> its names and labels.
            skipped: counts the begins without an end, and ends without a begin.
        """
        yield from (span for span in self._paired(skipped) if span[1].cat)
        writer = _Writer(names, self._spans, _joined(self._spans, self._arrows))
        queue = _TaskQueue(self._queued)
        for position, event in self._spans:
            ignored = writer.convert(event)
            if ignored:
                self.counts[ignored] += 1
            else:
                if event.cat == _LAUNCH:
                    queue.move(event)
                yield position, event

    def _paired(self, skipped: Counter[str]) -> Iterator[_Positioned]:
        """Yield a span for each begin and its end; those without a category go to ``_spans``.

        An end closes the last open begin of its thread or, if it has a name, the last one so named.
        """
        open_spans: defaultdict[object, list[_Positioned]] = defaultdict(list)
        timed = [(_decimal(event.ts), position, event) for position, event in self._bounds]
        for time, position, event in sorted(timed, key=lambda item: item[0] or 0):
            above = open_spans[event.pid, event.tid]
            if event.ph == "B":
                above.append((position, event))
                continue
            same = [
                index for index, (_, begun) in enumerate(above) if event.name in ("", begun.name)
            ]
            if not same or time is None:
                skipped["ends of spans without a begin"] += 1
                continue
            first, span = above.pop(same[-1])
            begin = _decimal(span.ts)
            if begin is not None:
                span.dur = msgspec.Raw(str(time - begin).encode())
            span.ph, span.cat, span.args = "X", span.cat or event.cat, span.args or event.args
            if span.cat:
                yield first, span
            else:
                self._spans.append((first, span))
        num_open = sum(map(len, open_spans.values()))
        if num_open:
            skipped["begins of spans without an end"] += num_open


class _Writer:
    """Converts spans without a category by the names of their processes."""

    def __init__(
        self,
        names: Mapping[int, str],
        spans: list[_Positioned],
        correlations: Mapping[int, int],
    ) -> None:
        self._correlations = correlations
        self._kinds: Mapping[Scalar, str | None] = {
            process: _kind_of(name) for process, name in names.items()
        }
        self._names: Mapping[Scalar, str] = dict(names.items())
        hosts = [process for process, kind in self._kinds.items() if kind == _OPERATOR]
        self._python = hosts[0] if len(hosts) == 1 else None
        devices = sorted(process for process in names if self._kinds[process] == _TASK)
        self._devices: Mapping[Scalar, int] = {
            process: number for number, process in enumerate(devices)
        }
        self._collectives = {
            event.name
            for _, event in spans
            if self._kinds.get(event.pid) == _COLLECTIVE and is_communication(event.name)
        }

    def convert(self, event: KinetoEvent) -> str | None:
        """Give a span Kineto's fields; return a kind of events if it is to be counted only."""
        process, arrow = event.pid, self._correlations.get(id(event))
        kind = self._kinds.get(process)
        args = event.args = event.args or OtherArgs()
        task = str(args.task_type or event.name)
        if kind == _DERIVED:
            return "intervals derived from other events"
        if kind == _COLLECTIVE and event.name not in self._collectives:
            return "parts of collectives"
        if kind == _TASK and event.name in self._collectives:
            return "parts of collectives"
        if kind == _TASK and _STREAM_ONLY.match(task):
            return "waits and records of streams"
        if kind in _HOSTS:
            event.cat = kind
            event.pid = _first(args.host_process, self._python, event.pid)
        elif kind is not None:
            is_copy = kind == _COPY or (kind == _TASK and "MEMCPY" in event.name.upper())
            event.cat = _COPY if is_copy else _KERNEL
            args.device = _first(args.device_number, self._device_of(process))
            args.stream = _first(args.stream_number, args.queue_number, event.tid)
            if kind == _COLLECTIVE and isinstance(event.tid, int):
                args.stream = _FIRST_GROUP + event.tid
        if kind is not None and kind not in (_OPERATOR, _MARK):
            args.correlation = _first(args.connection, arrow)
        _with_exact_times(event)
        return None

    def _device_of(self, process: Scalar) -> int:
        name = self._names.get(process, "")
        match = _GPU.search(name) or _NPU.search(name)
        return int(match[1]) if match else self._devices.get(process, 0)


class _TaskQueue:
    """The tasks of torch_npu's queue, by the thread that takes them out.

    ::

    operator    aten::mm
      enqueue     ==
    dequeue                 ========
      CANN                    ====
    """

    def __init__(self, events: list[KinetoEvent]) -> None:
        sent = {event.args.queued: event for event in events if event.args and event.cat == ENQUEUE}
        tasks: defaultdict[Scalar, list[tuple[Decimal, Decimal, KinetoEvent]]] = defaultdict(list)
        for event in events:
            begin, length = _decimal(event.ts), _decimal(event.dur)
            enqueue = sent.get(event.args.queued) if event.args else None
            if event.cat == DEQUEUE and enqueue and begin is not None and length is not None:
                tasks[event.tid].append((begin, begin + length, enqueue))
        self._tasks = {thread: sorted(own, key=itemgetter(0)) for thread, own in tasks.items()}
        self._begins = {thread: [task[0] for task in own] for thread, own in self._tasks.items()}

    def move(self, call: KinetoEvent) -> None:
        """Give a call inside a dequeue the thread and the start of its enqueue."""
        time = _decimal(call.ts) if call.tid in self._tasks else None
        if time is None:
            return
        last = bisect_right(self._begins[call.tid], time) - 1
        _, end, enqueue = self._tasks[call.tid][last]
        if last >= 0 and time < end:
            call.pid, call.tid, call.ts = enqueue.pid, enqueue.tid, enqueue.ts


def _kind_of(names: str) -> str | None:
    """Return what the spans of a process are, by its names; None if they are unknown."""
    for name in names.split(", "):
        if name in _PROCESSES:
            return _PROCESSES[name]
        if _GPU.fullmatch(name):
            return _KERNEL
    return None


def _with_exact_times(event: KinetoEvent) -> None:
    """Replace the times of rocprof's spans, which are rounded to microseconds."""
    args = event.args
    begin, end = (
        (_decimal(value) for value in (args.begin_ns, args.end_ns)) if args else (None, None)
    )
    if begin is not None and end is not None:
        event.ts, event.dur = (
            msgspec.Raw(str(value / 1000).encode()) for value in (begin, end - begin)
        )


def _joined(spans: list[_Positioned], arrows: list[KinetoEvent]) -> dict[int, int]:
    """Return the number of the arrow that begins in a span or ends at its start, by ``id(span)``.

    A thread's calls follow each other: an arrow begins in the last one that began before it.
    """
    threads: defaultdict[object, list[tuple[Decimal, int]]] = defaultdict(list)
    for _, event in spans if arrows else ():
        threads[event.pid, event.tid].append((_decimal(event.ts) or Decimal(0), id(event)))
    ordered = {thread: sorted(calls) for thread, calls in threads.items()}
    begins = {thread: [begin for begin, _ in calls] for thread, calls in ordered.items()}
    numbers: dict[int, int] = {}
    for arrow in arrows:
        assert isinstance(arrow.id, int)
        thread, time = (arrow.pid, arrow.tid), _decimal(arrow.ts) or Decimal(0)
        last = bisect_right(begins.get(thread, []), time) - 1
        if last >= 0 and (arrow.ph == "s" or begins[thread][last] == time):
            numbers.setdefault(ordered[thread][last][1], arrow.id + 1)
    return numbers


def _first(*values: Scalar) -> Scalar:
    """Return the first value that is not missing."""
    return next((value for value in values if value is not None), None)


def _decimal(value: object) -> Decimal | None:
    """Return a number in JSON, in quotes or not; None for anything else."""
    text = bytes(value).decode("utf-8", "replace") if isinstance(value, msgspec.Raw) else str(value)
    try:
        number = Decimal(text.strip('"'))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None
