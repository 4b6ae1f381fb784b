"""Compares the clocks of a job's ranks with rank 0's, by questions over UDP beside the training.

::

    rank 0   answers, in a thread, until the ranks that asked have left
    rank 3   attach ** * ** reading     window ends * *** * reading       leaves
                    64 questions, the fastest counts

Rank 0 posts its address in the job's store. The others look there when they attach and after their
first step, by when it has attached as well if it ever does, so that none waits for it. They ask in a
thread: the training is held up by the little Python of it only, and the thread waits for a busy
interpreter, here and on rank 0, in most round trips but not in the fastest.
"""

from __future__ import annotations

import itertools
import json
import logging
import secrets
import socket
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ppprof.capture.schedule import State
from ppprof.rundir.clocks import Clock, Reading, clocks_path, line_of

log = logging.getLogger("ppprof")

_QUESTION = struct.Struct("!8s c I i")  # token, kind, number, rank
_ANSWER = struct.Struct("!8s I q")  # token, number of the question, time in ns

_ASK, _LEAVE, _STOP = b"?", b".", b"!"

_TRIPS = 64
_BURST_SECONDS = 1.5
"""For all questions of a reading: 64 take 5 ms, but 10 ms each while both ranks are in Python."""
_TRIP_SECONDS = 0.1
_SILENCE_SECONDS = 0.3
"""How long to ask without an answer."""
_TURN_SECONDS = 0.001
"""Between one rank's questions and the next one's, for the answers come from a single thread."""
_LEAVE_SECONDS = 5.0
"""How long rank 0 waits for the last questions of ranks that still save their windows."""


class ClockSync(ABC):
    """A rank's part in the exchange, for the length of its session; none of its methods raises."""

    def __init__(self, run: Path, rank: int) -> None:
        self._rank = rank
        self._path = run / clocks_path(rank)
        self._told = False

    def turn(self, before: State, step: int) -> None:
        """Ahead of step number ``step``, the one before it having been in state ``before``."""
        if before is State.LAST or step == 0:
            self._compare()

    @abstractmethod
    def close(self, compare: bool, failed: bool) -> None:
        """Ends the exchange: no thread and no socket is left.

        Args:
            compare: a window has just ended.
            failed: the training ends by an exception: other ranks are not waited for.
        """

    @abstractmethod
    def _compare(self) -> None:
        """Starts a reading, if this rank asks."""

    def _keep(self, reading: Reading) -> None:
        self._path.parent.mkdir(exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line_of(reading))

    @contextmanager
    def _suppress_and_report(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever a store raises, too
            self._tell_once(f"comparing clocks failed: {error}")

    def _tell_once(self, why: str) -> None:
        if not self._told:
            self._told = True
            log.warning(f"rank {self._rank}: {why}; traces may not align on one clock")


class ClockServer(ClockSync):
    """Rank 0's part: answers what time it is.

    Args:
        run: the run directory.
        host: where the other ranks reach this one.
        store: the job's store.
        key: of the store, and known to all ranks.

    Raises:
        OSError: there is no such address here.
        RuntimeError: the store fails.
    """

    def __init__(self, run: Path, host: str, store: Any, key: str) -> None:
        super().__init__(run, rank=0)
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        self._token = secrets.token_bytes(8)
        self._asking: set[int] = set()
        self._thread = threading.Thread(target=self._answer, name="ppprof clock", daemon=True)
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        try:
            self._socket.bind(address)
            port = self._socket.getsockname()[1]
            store.set(f"{key}/address", json.dumps([host, port, self._token.hex()]))
            store.add(f"{key}/posted", 1)
        except BaseException:
            self._socket.close()
            raise
        self._thread.start()

    def close(self, compare: bool, failed: bool) -> None:
        """Stops to answer once the ranks that asked have left."""
        deadline = time.monotonic() + (0 if failed else _LEAVE_SECONDS)
        try:
            if compare:
                self._compare()
            while self._asking and time.monotonic() < deadline:
                time.sleep(0.005)
        finally:
            with suppress(OSError):
                stop = _QUESTION.pack(self._token, _STOP, 0, 0)
                self._socket.sendto(stop, self._socket.getsockname())
            self._thread.join(1)
            self._socket.close()

    def _compare(self) -> None:
        with self._suppress_and_report():
            self._keep(Reading(time.time_ns(), 0, 0))

    def _answer(self) -> None:
        while True:
            try:
                packet, sender = self._socket.recvfrom(64)
                now = time.time_ns()
                if len(packet) != _QUESTION.size:
                    continue
                token, kind, number, rank = _QUESTION.unpack(packet)
                if token != self._token:
                    continue
                if kind == _STOP:
                    return
                # Before the answer: a rank that has it may leave at once.
                (self._asking.discard if kind == _LEAVE else self._asking.add)(rank)
                self._socket.sendto(_ANSWER.pack(token, number, now), sender)
            except OSError:
                if self._socket.fileno() < 0:
                    return


class ClockClient(ClockSync):
    """The part of any other rank: asks rank 0 for its time.

    Args:
        run: the run directory.
        rank: of this process.
        store: the job's store.
        key: of the store, and known to all ranks.
    """

    def __init__(self, run: Path, rank: int, store: Any, key: str) -> None:
        super().__init__(run, rank)
        self._store = store
        self._key = key
        self._socket: socket.socket | None = None
        self._token = b""
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def turn(self, before: State, step: int) -> None:
        """As above; and looks for rank 0 until the first step is over."""
        if self._socket is None and step <= 1:
            with self._suppress_and_report():
                self._look_for_rank_0()
                if self._socket is not None:
                    self._compare()
        elif self._socket is not None:
            super().turn(before, step)

    def close(self, compare: bool, failed: bool) -> None:
        """Asks for the last time, and says so."""
        if self._thread is not None:
            self._thread.join(_BURST_SECONDS + 2)
        if self._socket is None:
            return
        with self._suppress_and_report():
            if compare and not failed:
                self._ask()
            for _ in range(3):
                with suppress(OSError):
                    self._round_trip(_LEAVE)
                    break
        self._socket.close()

    def _look_for_rank_0(self) -> None:
        if not self._store.add(f"{self._key}/posted", 0):
            return
        host, port, token = json.loads(self._store.get(f"{self._key}/address"))
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        self._token = bytes.fromhex(token)
        self._socket = socket.socket(family, kind)
        self._socket.settimeout(_TRIP_SECONDS)
        self._socket.connect(address)  # which makes the kernel tell when nobody listens there

    def _compare(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._ask, name="ppprof clock", daemon=True)
            self._thread.start()

    def _ask(self) -> None:
        with self._suppress_and_report():
            time.sleep(min(self._rank * _TURN_SECONDS, 1))
            best = None
            start = time.monotonic()
            for _ in range(_TRIPS):
                try:
                    reading = self._round_trip(_ASK)
                except OSError:  # lost on the way, or nobody is there
                    reading = None
                if reading is not None and (best is None or reading.error_ns < best.error_ns):
                    best = reading
                if time.monotonic() - start > (_BURST_SECONDS if best else _SILENCE_SECONDS):
                    break
            if best is not None:
                self._keep(best)
            else:
                self._tell_once("rank 0 does not answer what time it is")

    def _round_trip(self, kind: bytes) -> Reading | None:
        """One question; None when the own clock was set back meanwhile.

        Raises:
            OSError: no answer.
        """
        assert self._socket is not None
        number = next(self._numbers)
        question = _QUESTION.pack(self._token, kind, number, self._rank)
        asked = time.time_ns()
        self._socket.send(question)
        while True:
            answer = self._socket.recv(64)
            heard = time.time_ns()
            if len(answer) == _ANSWER.size:
                token, of, theirs = _ANSWER.unpack(answer)
                if (token, of) == (self._token, number):  # and no late answer to an earlier one
                    break
        middle = (asked + heard) // 2
        return Reading(middle, theirs - middle, heard - middle) if heard >= asked else None


def described(clocks: Mapping[int, Clock]) -> str | None:
    """How far the ranks' clocks are from rank 0's, in a line; None where none was compared.

    >>> clock = Clock(1, (Reading(0, -800_000_000, 30_000), Reading(10**10, -799_500_000, 20_000)))
    >>> described({1: clock})
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
