"""What ``ppprof path --what-if`` promises of a planted delay's removal, against trainings without the delay.

::

    python -m benchmarks.what_if FOLDER train     # train what FOLDER lacks in quiet steps, as long as a turn takes
    python -m benchmarks.what_if FOLDER...        # the table of one or more rounds

Four ranks, two replicas of two stages. Blocks sleep for their work, so that ranks on two cores do not
slow each other down. Steps in which a rank waits for a processor for more than 2% are left out.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

import ppprof
from benchmarks.predict import DP, LOCAL, PP, train
from ppprof.analysis.advice.evidence import mean_of
from ppprof.analysis.path.graph import Graph
from ppprof.run.run import Run
from tests.jobs.launching import JOBS, SMALL

NOTHING = "nothing"
PLANTED = "planted: 0"
PLANTS: Sequence[tuple[str, Sequence[str]]] = (
    (NOTHING, ()),
    ("layer:1:0.04", (PLANTED,)),
    ("rank:1:0.05", ("rank 1: as usual",)),
    ("link:0,2:0.2", ("link 0,2: usual",)),
    ("transfer:0,1:0.05", ("link 0>1: usual", "link 1>0: usual")),
    ("optimizer:0:0.15", (PLANTED,)),
    (NOTHING, ()),
    ("data:0:0.6", ("num_workers: enough",)),
    ("layer:1:0.04+rank:3:0.05", (PLANTED,)),
    ("link:0,2:0.2+optimizer:0:0.15", (PLANTED, "link 0,2: usual")),
    ("layer:0:0.08", (PLANTED,)),
    ("rank:2:0.03", ("rank 2: as usual",)),
    ("transfer:2,3:0.1", ("link 2>3: usual", "link 3>2: usual")),
    (NOTHING, ()),
    ("link:1,3:0.08", ("link 1,3: usual",)),
    ("data:0:0.05", ("num_workers: enough",)),
    ("rank:0:0.04+transfer:0,1:0.05", (PLANTED, "link 0>1: usual", "link 1>0: usual")),
)
"""What is planted, and the changes that remove it. The usual time of a link is that of its siblings."""

_WORK = "work:0.03:0.0009375"
_STEPS = (3, 6)
_TURN_S = 100
_SETTINGS = {
    **dict(setting.split("=") for setting in SMALL),
    **{PP: 2, DP: 2, LOCAL: 4, "Model.num_layers": 4, "Engine.logging_freq": 100},
    **{"Engine.max_steps": 7, "Profiler.scheduler": list(_STEPS)},
}
_MOST_WAIT = 0.02
_LEAST_STEPS = 2
_LINKS = {"0,2": "1,3", "1,3": "0,2", "0>1": "2>3", "1>0": "3>2", "2>3": "0>1", "3>2": "1>0"}


def quiet_steps(path: Path) -> pl.DataFrame:
    """Return step and own_ns of the recorded steps of a training in which no rank waits for a processor."""
    run = ppprof.open(path / "profiler_log")
    steps = run.step_times.filter(pl.col("step").is_between(*_STEPS, closed="left")).with_columns(
        wait=pl.col("processor_wait_ns") / pl.col("batch_cost_ns"),
        own_ns=pl.col("batch_cost_ns") - pl.col("stall_ns").fill_null(0),
    )
    steps = steps.group_by("step").agg(pl.col("wait").max(), pl.col("own_ns").max()).sort("step")
    return steps.filter(pl.col("wait") < _MOST_WAIT)


def factor(graph: Graph, link: str) -> float:
    """Return the time of a link's siblings as a share of its own."""
    summed = graph.labels.with_columns(
        time_ns=pl.Series(_by_label(graph)), link=pl.col("link").cast(pl.String)
    )
    times = dict(summed.group_by("link").agg(pl.col("time_ns").sum()).iter_rows())
    return float(times[_LINKS[link]] / times[link])


def _by_label(graph: Graph) -> list[int]:
    table = pl.DataFrame({"label": graph.label, "time_ns": graph.weight_ns})
    sums = dict(table.group_by("label").agg(pl.col("time_ns").sum()).iter_rows())
    return [sums.get(label, 0) for label in range(graph.labels.height)]


def promised_ns(run: Run, changes: Sequence[str], steps: Iterable[int]) -> float:
    """Return the mean length of some steps in a replay with all changes."""
    lengths = []
    for step in steps:
        graph = run.graph(steps=step)
        texts = [
            f"{text.rpartition(':')[0]}: {factor(graph, text.split()[1].rstrip(':')):.6f}x"
            if text.endswith("usual") and text.startswith("link")
            else text
            for text in changes
        ]
        lengths.append(run.what_if(*texts, steps=step)["step_ns"][-1])
    return float(statistics.mean(lengths))


class Row(NamedTuple):
    """A plant: the steps that count, and in nanoseconds the step with it, promised without it, and without it."""

    what: str
    num_steps: int
    planted: float
    promised: float
    real: float

    @property
    def is_kept(self) -> bool:
        """Whether what the plant's removal won is within 10% or 10 ms of what was promised."""
        won = self.planted - self.real
        return abs(self.planted - self.promised - won) <= max(0.1 * won, 10e6)


def rows_in(folder: Path) -> Iterator[Row]:
    """Yield the plants of a round that have enough quiet steps."""
    runs = [
        (what, changes, ppprof.open(path / "profiler_log"), quiet)
        for (what, changes), path in zip(PLANTS, paths_in(folder))
        if path.exists() and (quiet := quiet_steps(path)).height >= _LEAST_STEPS
    ]
    without = [mean_of(steps, "own_ns") for what, _, _, steps in runs if what == NOTHING]
    real = statistics.median(without)
    print(
        f"{folder}, without a plant: {', '.join(f'{each / 1e6:,.0f}' for each in sorted(without))} ms"
    )
    for what, changes, run, steps in runs:
        if what != NOTHING:
            promised = promised_ns(run, changes, steps["step"])
            yield Row(what, steps.height, mean_of(steps, "own_ns"), promised, real)


def paths_in(folder: Path) -> list[Path]:
    """Return the folder of each training of a round."""
    return [folder / f"{number:02}" for number in range(len(PLANTS))]


def train_in(folder: Path) -> None:
    """Train what a round lacks in quiet steps, as long as a turn takes."""
    begin = time.monotonic()
    for (what, _), path in zip(PLANTS, paths_in(folder)):
        if path.exists() and quiet_steps(path).height < _LEAST_STEPS:
            shutil.rmtree(path)
        if not path.exists() and time.monotonic() - begin < _TURN_S:
            train(path, (JOBS / "planted_job.py", f"spans+{_WORK}+{what}"), _SETTINGS)
            num = quiet_steps(path).height
            print(path.name, what, num, f"{time.monotonic() - begin:.0f} s", flush=True)


def main() -> None:
    """Train or print."""
    if sys.argv[2:] == ["train"]:
        train_in(Path(sys.argv[1]))
        return
    rows = [row for folder in sys.argv[1:] for row in rows_in(Path(folder))]
    print("| plant | steps | step, ms | promised without it | error | to win | promised |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        times = [row.planted, row.promised, row.planted - row.real, row.planted - row.promised]
        planted, *cells = (f"{each / 1e6:,.0f}" for each in times)
        cells.insert(1, f"{row.promised / row.real - 1:+.1%}")
        print(f"| {' | '.join([f'`{row.what}`', str(row.num_steps), planted, *cells])} |")
    errors = [abs(row.promised / row.real - 1) for row in rows]
    print(f"median {statistics.median(errors):.1%}, worst {max(errors):.1%}")
    misses = [row.what for row in rows if not row.is_kept]
    print(
        f"gain not within 10% or 10 ms: {len(misses)} of {len(rows)}: {', '.join(misses) or 'no plant'}"
    )


if __name__ == "__main__":
    main()
