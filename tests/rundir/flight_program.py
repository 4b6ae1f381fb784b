"""Notes operations without end, to be killed at any moment: ``flight_program.py RUN``."""

import sys
from pathlib import Path

from ppprof.rundir.flight import FlightRing


def note(run: Path) -> None:
    ring = FlightRing(run, 0)
    name, dtype, place = (ring.text(text) for text in ("all_reduce", "float32", "train.py:41"))
    print("begun", flush=True)
    sequence = 0
    while True:
        sequence += 1
        number = ring.add(7, sequence, sequence, 1, 4096, -1, name, dtype, place, 0)
        ring.returned(number, sequence)
        ring.step(sequence, sequence)


if __name__ == "__main__":
    note(Path(sys.argv[1]))
