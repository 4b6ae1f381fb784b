"""Compare the clocks of a job's ranks with rank 0's clock, by UDP queries beside the training.

::

    rank 0   answers, in a thread, until the ranks that sent queries have left
    rank 3   attach ** * ** reading     window ends * *** * reading       leaves
                    64 queries, the fastest counts

Rank 0 writes its address into the job's store. The other ranks look for the address when they
attach and after their first step. No rank waits for rank 0: if rank 0 attaches at all, it has
attached by then. A thread sends the queries, so the training is held up only while that thread runs
its little Python. In most round trips a thread waits for a busy interpreter, on this rank or on
rank 0. In the fastest round trip no thread waits, so only that one counts.
"""

from __future__ import annotations

import itertools
import logging
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ppprof.capture import process
from ppprof.capture.parts import Ending, Part
from ppprof.capture.ranks import udp
from ppprof.capture.ranks.udp import Socket
from ppprof.capture.schedule import State
from ppprof.capture.step_states import Transition
from ppprof.rundir.clocks import Clock, Reading, clocks_path, line_of
from ppprof.rundir.run_file import RunFile

log = logging.getLogger("ppprof")

_QUERY = struct.Struct("!8s c I i")  # token, kind, number, rank
_ANSWER = struct.Struct("!8s I q")  # token, number of the query, time in ns

_ASK, _LEAVE, _STOP = b"?", b".", b"!"

_SEARCHED_STEPS = 3
"""Steps ahead of which a rank looks for rank 0."""
_TRIPS = 64
_BURST_SECONDS = 1.5
"""Limit for all queries of a reading. 64 queries take 5 ms, but 10 ms each while both ranks run
Python."""
_STRANGER_SECONDS = 0.001
"""Pause after a packet that is no query, so that a flood of packets takes no time from the training."""
_TRIP_SECONDS = 0.1
_SILENCE_SECONDS = 0.3
"""How long to send queries if no answer arrives."""
_STAGGER_SECONDS = 0.001
"""Delay between the queries of one rank and those of the next, since one thread answers all ranks."""
_LEAVE_SECONDS = 5.0
"""How long rank 0 waits, as it closes, for the last queries of ranks that still save windows."""


class ClockSync(Part, ABC):
    """Compares one rank's clock with rank 0's: when the session begins, and after each window.

    A reading is one comparison: the offset of the two clocks, with its error. It is appended to the
    rank's file in the run directory. No method raises. The first failure is logged.
    """

    task = "comparing clocks"

    def __init__(self, run: Path, rank: int) -> None:
        self._rank = rank
        self._file = RunFile(run, clocks_path(rank))
        self._has_warned = False
        self._first_step: int | None = None

    def on_transition(self, transition: Transition) -> int:
        """Start a reading if a window has ended, or the provisional steps; a thread takes it."""
        if self._first_step is None:
            self._first_step = transition.step
        before = State.LAST if transition.ends_recording else transition.before
        self.advance(before, transition.step - self._first_step)
        return 0

    def wait(self, ending: Ending) -> None:
        """Take a last reading if a window was open, unless an exception ends the training; stop."""
        self.stop(compare=ending.is_in_window, failed=ending.failed)

    def advance(self, before: State, num_steps: int) -> None:
        """Start a reading before the first step, or if a window has ended."""
        if before is State.LAST or num_steps == 0:
            self._start_reading()

    @abstractmethod
    def stop(self, compare: bool, failed: bool) -> None:
        """Stop comparing clocks; end the thread and close the socket.

        Args:
            compare: whether to take a last reading, since a window has just ended.
            failed: whether an exception ends the training; if so, do not wait for other ranks.
        """

    @abstractmethod
    def _start_reading(self) -> None:
        """Start a reading in a thread; on rank 0, write one at once, since no query is needed."""

    def _write(self, reading: Reading) -> None:
        self._file.append(line_of(reading).encode())

    @contextmanager
    def _suppress_and_report(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a store raises its own errors
            self._warn_once(f"comparing clocks failed: {error}")

    def _warn_once(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(f"rank {self._rank}: {why}; traces may be misaligned with other ranks'")


class ClockServer(ClockSync):
    """The `ClockSync` of rank 0, which answers the other ranks' queries with its time.

    Args:
        host: address at which the other ranks reach rank 0.
        key: prefix of the keys in the store; all ranks must pass the same prefix.

    Raises:
        OSError: this machine does not have the address ``host``.
        RuntimeError: the store fails.
    """

    def __init__(self, run: Path, host: str, store: Any, key: str) -> None:
        super().__init__(run, rank=0)
        self._clients: set[int] = set()
        self._socket, token = udp.bind(host, store, key)
        self._token = bytes.fromhex(token)
        self._thread = process.start_thread(self._serve, "clock")

    def stop(self, compare: bool, failed: bool) -> None:
        """Stop answering queries; first wait up to 5 s until all ranks that sent queries have left.

        Args:
            compare: as for `ClockSync.stop`.
            failed: whether an exception ends the training; if so, do not wait.
        """
        deadline = time.monotonic() + (0 if failed else _LEAVE_SECONDS)
        try:
            if compare:
                self._start_reading()
            while self._clients and time.monotonic() < deadline:
                time.sleep(0.005)
        finally:
            with suppress(OSError):
                stop = _QUERY.pack(self._token, _STOP, 0, 0)
                self._socket.sendto(stop, self._socket.getsockname())
            self._thread.join(1)
            self._socket.close()

    def _start_reading(self) -> None:
        with self._suppress_and_report():
            self._write(Reading(time.time_ns(), 0, 0))

    def _serve(self) -> None:
        while True:
            try:
                packet, sender = self._socket.recvfrom(64)
                now = time.time_ns()
                if len(packet) != _QUERY.size or not packet.startswith(self._token):
                    time.sleep(_STRANGER_SECONDS)
                    continue
                _, kind, number, rank = _QUERY.unpack(packet)
                if kind == _STOP:
                    return
                # Before the answer: a rank that has the answer may leave at once.
                (self._clients.discard if kind == _LEAVE else self._clients.add)(rank)
                self._socket.sendto(_ANSWER.pack(self._token, number, now), sender)
            except OSError:
                if not self._socket.is_ours:
                    return


class ClockClient(ClockSync):
    """The `ClockSync` of any rank but 0, which asks rank 0 for its time.

    Args:
        key: prefix of the keys in the store; all ranks must pass the same prefix.
    """

    def __init__(self, run: Path, rank: int, store: Any, key: str) -> None:
        super().__init__(run, rank)
        self._store = store
        self._key = key
        self._socket: Socket | None = None
        self._token = b""
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_reading = self._is_wanted = False

    def advance(self, before: State, num_steps: int) -> None:
        """Start a reading if rank 0 was just found, or if a window has ended.

        Ahead of the first three steps, look for rank 0 if it is not found yet. If it is not found by then,
        this rank's clock is never compared.
        """
        if self._socket is None and num_steps < _SEARCHED_STEPS:
            with self._suppress_and_report():
                self._look_for_rank_0()
                if self._socket is not None:
                    self._start_reading()
        elif self._socket is not None:
            super().advance(before, num_steps)

    def stop(self, compare: bool, failed: bool) -> None:
        """Take a last reading, notify rank 0 that this rank leaves, and close the socket.

        The last reading is taken only if ``compare`` is True and ``failed`` is False; for these
        arguments see `ClockSync.stop`.
        """
        if self._thread is not None:
            self._thread.join(2 * _BURST_SECONDS + 2)
        if self._socket is None:
            return
        with self._suppress_and_report():
            if compare and not failed:
                self._take_reading()
            for _ in range(3):
                with suppress(OSError):
                    self._round_trip(_LEAVE)
                    break
        self._socket.close()

    def _look_for_rank_0(self) -> None:
        endpoint = udp.connect(self._store, self._key)
        if endpoint is not None:
            self._socket, self._token = endpoint.socket, bytes.fromhex(endpoint.token)
            self._socket.settimeout(_TRIP_SECONDS)

    def _start_reading(self) -> None:
        with self._lock:
            self._is_wanted = True
            if self._is_reading:  # with busy ranks, a reading may last longer than a window
                return
            self._is_reading = True
        self._thread = process.start_thread(self._take_readings, "clock")

    def _take_readings(self) -> None:
        while True:
            with self._lock:
                if not self._is_wanted:
                    self._is_reading = False
                    return
                self._is_wanted = False
            self._take_reading()

    def _take_reading(self) -> None:
        with self._suppress_and_report():
            time.sleep(min(self._rank * _STAGGER_SECONDS, 1))
            best = None
            start = time.monotonic()
            for _ in range(_TRIPS):
                try:
                    reading = self._round_trip(_ASK)
                except OSError:  # a packet was lost, or rank 0 is gone
                    if self._socket is not None and not self._socket.is_ours:
                        raise
                    reading = None
                if reading is not None and (best is None or reading.error_ns < best.error_ns):
                    best = reading
                if time.monotonic() - start > (_BURST_SECONDS if best else _SILENCE_SECONDS):
                    break
            if best is not None:
                self._write(best)
            else:
                self._warn_once("rank 0 does not answer clock queries")

    def _round_trip(self, kind: bytes) -> Reading | None:
        """Send one query and return its reading; None if this machine's clock was set back meanwhile."""
        assert self._socket is not None
        number = next(self._numbers)
        query = _QUERY.pack(self._token, kind, number, self._rank)
        sent = time.time_ns()
        self._socket.send(query)
        deadline = time.monotonic() + _TRIP_SECONDS
        while True:
            if time.monotonic() > deadline:  # only other packets arrive
                raise TimeoutError("no answer")
            answer = self._socket.recv(64)
            received = time.time_ns()
            if len(answer) == _ANSWER.size:
                token, answered_number, theirs = _ANSWER.unpack(answer)
                # An earlier query's answer may be late.
                if (token, answered_number) == (self._token, number):
                    break
        middle = (sent + received) // 2
        return Reading(middle, theirs - middle, received - middle) if received >= sent else None


def describe_clocks(clocks: Mapping[int, Clock]) -> str | None:
    """Return a line about the largest offset, drift and error of the clocks; None without readings.

    Readings of rank 0 itself do not count.

    >>> clock = Clock(1, (Reading(0, -800_000_000, 30_000), Reading(10**10, -799_500_000, 20_000)))
    >>> describe_clocks({1: clock})
    "clocks: 1 rank within 0.800000 s of rank 0's, drift up to 50.0 ± 5.0 ppm, known to 30 us"
    """
    others = [clock for clock in clocks.values() if clock.rank != 0]
    if not others:
        return None
    ranks = f"{len(others)} rank{'s' * (len(others) > 1)}"
    offset = max(abs(clock.offset_ns) for clock in others) / 1e9
    drifts = [
        (abs(clock.drift_ppm), clock.drift_error_ppm)
        for clock in others
        if clock.drift_ppm is not None and clock.drift_error_ppm is not None
    ]
    drift = "drift up to {:.1f} ± {:.1f} ppm".format(*max(drifts)) if drifts else "drift not known"
    error = max(clock.error_ns for clock in others) / 1e3
    return f"clocks: {ranks} within {offset:.6f} s of rank 0's, {drift}, known to {error:.0f} us"
