"""Find the line of the user's code that makes a step slow, in all steps of the training.

A thread looks at the stack of the thread that ends the steps: seldom while a step takes as long as others, often once it
takes longer. A look stands for the time since the look before::

    steps   |   .   |  .    |    .  |   .  ..................  |  .    |
    line        7      12        15     7  30 (called by 20)      12

Line 20 has most of what the fourth step takes longer, and no other step has been seen in it. So what that step
does is known, though no window was open. A look takes 10 us (a stack of 20 frames), ten times a second in other steps: a
loop of Python with steps of 2 ms took 0.2% longer (medians of six runs each, two cores).
"""

from __future__ import annotations

import random
import threading
import time
from _thread import allocate_lock
from collections import Counter, deque
from collections.abc import Callable, Sequence
from types import CodeType
from typing import NamedTuple

from ppprof.capture.process import current_frames, stack_of, start_thread
from ppprof.capture.recording.user_files import UserFiles, function_name
from ppprof.capture.steps.running_steps import RunningSteps
from ppprof.units import format_line, format_ratio, format_time

_SLOW = 1.5
"""As `ppprof.analysis.profile.step_basis.SLOW`: from this number of times the median on, a step is slow."""
_LONG = 1.25
"""From this number of times the median on, a step is looked at often."""
_LEAST_NS, _MOST_NS = 100_000_000, 1_000_000_000
"""Between two looks in steps like others: half a step, within these bounds."""
_FIRST_NS = 20_000_000
"""As `_LEAST_NS`, with an eighth of a step, until there are enough looks to compare a slow step with."""
_OFTEN = 32
_LEAST_OFTEN_NS, _MOST_OFTEN_NS = 10_000_000, 60_000_000_000
"""Between two looks in a long step: this part of the time that it has taken so far, within these bounds."""
_LEAST_STEPS = 5
"""Fewest steps that show how long steps take: the first ones take longer."""
_LEAST_LOOKS = 3
"""Fewest looks at a line that say where the time of a step goes."""
_NUM_USUAL, _LEAST_USUAL, _FEW_USUAL = 200, 50, 10
"""Latest looks in usual steps that are kept, and fewest with which a slow one is compared: by the second number, a line
that other steps hardly spend time in is known; by the third, if it takes longer than they do (`_LONGER`)."""
_LONGER = 3
"""In how many times the median step a line has more time than other steps can have in it."""
_USUAL = 0.02
"""Share of the looks in usual steps up to which a line is one that other steps hardly spend time in."""
_LOOP = 0.9
"""A line with more of the looks in usual steps has the loop of steps below it."""
_MOST_FRAMES = 64
_PATIENCE_S = 1.0
"""Longest wait for the end of a look."""

_LEAST_SHARE = 0.05
"""Least part of the time of all steps that is worth a sentence at the end."""

_Line = tuple[str, int]
"""The path of a file, and the number of a line: Paddle's SOT makes several codes of one function."""
_Path = tuple[_Line, ...]
"""The user's lines of a stack, the outermost first."""


class SlowLine(NamedTuple):
    """Where a slow step has most of the time that it takes longer than others."""

    line: str | None = None
    """The outermost line that other steps hardly spend time in, ``train.py:20, main(): evaluate(model)``; None without one."""
    inner_line: str | None = None
    """The innermost line that has half of that time; None if no line has."""
    line_ns: int | None = None
    """Time of ``line`` in the step; what ``inner_line`` has more than in other steps if that is None."""


_NOTHING = SlowLine()


class SlowLines:
    """Looks at the thread that calls `step`, from the second call on until `close`.

    Args:
        files: which code is the user's.
        is_paused: whether the training is in a pause, whose time is no step's.
        keeps_source: whether names of lines have their source.
        clock: in ns.
    """

    def __init__(
        self,
        files: UserFiles,
        is_paused: Callable[[], bool],
        *,
        keeps_source: bool = True,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._files = files
        self._is_paused = is_paused
        self._keeps_source = keeps_source
        self._clock = clock
        self._steps = RunningSteps()
        self._looks: deque[tuple[int, _Path, int]] = deque()
        """The number of a step, the path in it, and the time that it stands for."""
        self._usual: deque[_Path] = deque(maxlen=_NUM_USUAL)
        self._number = 0
        """Of the step that goes on, from 1."""
        self._begin_ns = 0
        """When it began; later, if it pauses."""
        self._looked_ns = 0
        self._last_path: _Path = ()
        self._sampled = 0
        """The thread that ends steps."""
        self._codes: dict[_Line, CodeType] = {}
        self._names: dict[_Line, str] = {}
        self._excess_ns: Counter[str] = Counter()
        """By `SlowLine.line`."""
        self._num_slow: Counter[str] = Counter()
        self._whole_ns = 0
        self._of_device = RunningSteps()
        self._ends = allocate_lock()
        self._ends.acquire()
        self._thread: threading.Thread | None = None

    def step(self, step_ns: int | None, *, is_usual: bool, communication_ns: int = 0) -> SlowLine:
        """End a step, and return where it has its time if it is slow.

        Args:
            step_ns: its length; None while a device works on it.
            is_usual: whether the profiler does nothing in it.
            communication_ns: time in communication: a rank that waits for another one counts in no `summary`.
        """
        now_ns = self._clock()
        host_ns = now_ns - self._begin_ns if step_ns is None else step_ns
        looks = self._take() if self._looks else []
        found = self._judge(host_ns, looks) if is_usual and self._number else _NOTHING
        if is_usual and step_ns is not None:
            self._count(found, step_ns, step_ns, communication_ns)
        self._begin_ns, self._sampled = now_ns, threading.get_ident()
        self._number += 1
        if self._thread is None:
            self._thread = start_thread(self._run, "slow steps")
        return found

    def _judge(self, step_ns: int, looks: Sequence[tuple[_Path, int]]) -> SlowLine:
        steps, median_ns = self._steps, self._steps.median_ns
        steps.add(step_ns)
        if len(steps) <= _LEAST_STEPS:
            return _NOTHING
        if step_ns <= _SLOW * median_ns:
            self._usual.extend(path for path, _ in looks)
            return _NOTHING
        if len(self._usual) < _FEW_USUAL:
            return _NOTHING
        return self._line_of(looks, step_ns - median_ns, median_ns)

    def done(self, found: SlowLine, step_ns: int, communication_ns: int) -> SlowLine:
        """Return what `step` has returned for a usual step that a device has done now; nothing if it took as long as others.

        The host waits for the device in some steps only, as for a logged loss, and for earlier steps, too: its time in these is
        no step's.

        Args:
            found: of the step.
            step_ns: its length.
            communication_ns: as for `step`.
        """
        median_ns = self._of_device.median_ns
        self._of_device.add(step_ns)
        if step_ns <= _SLOW * median_ns or (found.line_ns or 0) > step_ns:
            found = _NOTHING
        self._count(found, step_ns, max(0, step_ns - median_ns), communication_ns)
        return found

    def _count(self, found: SlowLine, step_ns: int, most_ns: int, communication_ns: int) -> None:
        if len(self._steps) > _LEAST_STEPS:
            self._whole_ns += step_ns
        if found.line is None or found.line_ns is None:
            return
        if 2 * communication_ns < found.line_ns:
            self._excess_ns[found.line] += min(found.line_ns, most_ns)
            self._num_slow[found.line] += 1

    def _take(self) -> list[tuple[_Path, int]]:
        """Return the looks at the step that ends; the thread may add others meanwhile."""
        looks = [self._looks.popleft() for _ in range(len(self._looks))]
        return [(path, time_ns) for number, path, time_ns in looks if number == self._number]

    def _line_of(
        self, looks: Sequence[tuple[_Path, int]], excess_ns: int, median_ns: int
    ) -> SlowLine:
        times: Counter[_Path] = Counter()
        seen: Counter[_Path] = Counter()
        for path, time_ns in looks:
            for depth in range(1, len(path) + 1):
                times[path[:depth]] += time_ns
                seen[path[:depth]] += 1
        outer: tuple[_Line, int] | None = None
        inner: tuple[_Line, int] | None = None
        around: _Path = ()
        while True:
            below = [path for path in times if path[:-1] == around and seen[path] >= _LEAST_LOOKS]
            shares = {path: self._share(path) for path in below}
            more = {path: times[path] - round(shares[path] * median_ns) for path in below}
            around = max(more, key=more.__getitem__, default=())
            if not around or 2 * more[around] < excess_ns:
                break
            if shares[around] < _LOOP:
                inner = around[-1], more[around]
            is_sure = len(self._usual) >= _LEAST_USUAL or times[around] >= _LONGER * median_ns
            if outer is None and self._share_of_line(around[-1]) <= _USUAL and is_sure:
                outer = around[-1], times[around]
        if inner is None:
            return _NOTHING
        if outer is None:
            return SlowLine(None, self._name(inner[0]), inner[1])
        return SlowLine(self._name(outer[0]), self._name(inner[0]), outer[1])

    def _share(self, path: _Path) -> float:
        """Return the share of looks in usual steps that have been in a line."""
        return sum(usual[: len(path)] == path for usual in self._usual) / len(self._usual)

    def _share_of_line(self, line: _Line) -> float:
        """Return the same for a line at any depth: of a recursion, another step may have gone deeper."""
        return sum(line in usual for usual in self._usual) / len(self._usual)

    def _name(self, line: _Line) -> str:
        if line not in self._names:
            code, number = self._codes[line], line[1]
            file = self._files[code.co_filename][0]
            lines = self._files.lines_of(file) if self._keeps_source else ()
            source = next(iter(lines[number - 1 : number]), "").strip()
            self._names[line] = format_line(f"{file}:{number}", function_name(code), source)
        return self._names[line]

    def summary(self) -> str:
        """Return what the line adds to the training that adds most, in a sentence; "" without one."""
        for line, excess_ns in self._excess_ns.most_common(1):
            share = excess_ns / max(1, self._whole_ns)
            if share >= _LEAST_SHARE:
                num = self._num_slow[line]
                took = f"{format_time(excess_ns)} ({format_ratio(share)} of the time)"
                steps = f"{num} slow step{'s' * (num > 1)} spent {took}"
                return f"outside windows, {steps} in {line}"
        return ""

    def _run(self) -> None:
        while not self._ends.acquire(timeout=self._wait_ns() / 1e9):
            self.look()

    def look(self) -> None:
        """Look once at the stack; called by another thread than the one that ends steps."""
        now_ns = self._clock()
        if self._is_paused():
            self._begin_ns = now_ns
            return
        number, begin_ns = self._number, self._begin_ns
        path = self._path()
        if number != self._number:  # the step has ended meanwhile
            return
        if path == self._last_path:
            path = self._last_path  # one object: a step may last for days
        time_ns = max(0, now_ns - max(begin_ns, self._looked_ns))
        self._looks.append((number, path, time_ns))
        self._last_path, self._looked_ns = path, now_ns

    def _wait_ns(self) -> float:
        """Return the time to the next look, at random: steps of one length are looked at everywhere."""
        median_ns, taken_ns = self._steps.median_ns, self._clock() - self._begin_ns
        if not median_ns or taken_ns > _LONG * median_ns:
            wait_ns = min(max(_LEAST_OFTEN_NS, taken_ns / _OFTEN), _MOST_OFTEN_NS)
        else:
            is_known = len(self._usual) >= 2 * _LEAST_USUAL
            least_ns, part = (_LEAST_NS, 2) if is_known else (_FIRST_NS, 8)
            wait_ns = min(max(least_ns, median_ns / part), _MOST_NS)
        return wait_ns * random.uniform(0.5, 1.5)

    def _path(self) -> _Path:
        path: list[_Line] = []
        for code, line in self._lines():
            if line and self._files[code.co_filename][1]:
                self._codes.setdefault((code.co_filename, line), code)
                path.append((code.co_filename, line))
        return tuple(reversed(path))

    def _lines(self) -> list[tuple[CodeType, int]]:
        """Return code and line of each frame, the innermost first. No frame is kept: what it holds would be freed here."""
        frame = current_frames().get(self._sampled)
        stack = () if frame is None else stack_of(frame, _MOST_FRAMES)
        return [(each.f_code, each.f_lineno or 0) for each in stack]

    def close(self, *, waits: bool = True) -> None:
        """End the looks.

        Args:
            waits: whether to wait for a look that goes on.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ends.release()
            if waits:
                thread.join(_PATIENCE_S)
