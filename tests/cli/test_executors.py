"""How many processes read a run."""

from __future__ import annotations

import os
import sys

import pytest

from ppprof.cli import executors


def threads_of_polars() -> str | None:
    return os.environ.get("POLARS_MAX_THREADS")


def has_polars() -> bool:
    return "polars" in sys.modules


@pytest.mark.parametrize(
    ("workers", "num_windows", "expected"),
    [
        (None, 8, 1),
        (None, 31, 1),
        (None, 32, 2),
        (None, 48, 3),
        (None, 512, 4),
        (1, 512, 1),
        (3, 1, 3),
    ],
)
def test_many_windows_are_read_by_one_process_per_processor(
    monkeypatch: pytest.MonkeyPatch,
    workers: int | None,
    num_windows: int,
    expected: int,
) -> None:
    monkeypatch.setattr(executors, "num_processors", lambda: 4)
    with executors.processes(workers, num_windows) as executor:
        assert (1 if executor is None else executor._max_workers) == expected  # type: ignore[attr-defined]


@pytest.mark.parametrize(("stated", "expected"), [(None, "1"), ("3", "3")])
def test_each_has_one_thread_of_polars(
    monkeypatch: pytest.MonkeyPatch, stated: str | None, expected: str
) -> None:
    monkeypatch.delenv("POLARS_MAX_THREADS", raising=False)
    if stated is not None:
        monkeypatch.setenv("POLARS_MAX_THREADS", stated)
    with executors.processes(2, 2) as executor:
        assert executor is not None
        assert executor.submit(threads_of_polars).result() == expected
    assert threads_of_polars() == stated


def test_they_import_the_reader_before_the_first_task() -> None:
    with executors.processes(2, 2) as executor:
        assert executor is not None
        assert len(executor._processes) == 2  # type: ignore[attr-defined]
        assert executor.submit(has_polars).result()
