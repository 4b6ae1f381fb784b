"""What a worker notes of a remote call: the line with most of the time, and the size of what is sent."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from ppprof.capture.recording.call_samples import LineSampler, size_of
from ppprof.capture.recording.user_files import UserFiles
from tests.fixtures import busy_lines

LINE = 'File "{file}", line {line}, in {function}'


def sampled(function: str, seconds: float) -> str:
    files = UserFiles(Path.cwd())

    def call() -> str:
        sampler = LineSampler(files, call.__code__)
        getattr(busy_lines, function)(time.perf_counter() + seconds)
        return sampler.stop()

    return call()


def line_of(text: str) -> int:
    """The number of the line of the fixture with a text."""
    lines = Path(busy_lines.__file__).read_text("utf-8").splitlines()
    return next(number for number, each in enumerate(lines, start=1) if text in each)


@pytest.mark.parametrize(
    ("function", "text", "name"),
    [
        pytest.param("in_one_line", "sum(range(5000))", "in_one_line", id="one line"),
        pytest.param(
            "in_a_function",
            "step_of(until)",
            "in_a_function",
            id="lines of a function that one line calls",
        ),
        pytest.param("asleep", "time.sleep", "asleep", id="a line that waits"),
    ],
)
def test_the_innermost_line_with_half_of_the_time_is_named(
    function: str, text: str, name: str
) -> None:
    file = str(Path(busy_lines.__file__).relative_to(Path.cwd()))
    expected = LINE.format(file=file, line=line_of(text), function=name)
    assert sampled(function, 1.0) == expected


def test_a_short_call_has_no_line() -> None:
    assert sampled("in_one_line", 0.0) == ""


def test_the_size_of_values_is_that_of_what_is_in_them() -> None:
    class Batch:
        def __init__(self) -> None:
            self.images = np.zeros((4, 8), np.float32)
            self.labels = [1] * 50

    assert size_of(np.zeros((4, 8), np.float32)) == (128, 1)
    assert size_of(Batch()) == (128 + 450, 1 + 1 + 51)
    assert size_of(([], {}, "four")) == (4, 4)
    assert size_of([np.zeros(2)] * 1000) == (16_000, 1001)
    assert size_of([(3, [1.0] * 1000)] * 1) == (9 * 1001, 1004)
    assert size_of([[(number, [1.0] * 100) for number in range(64)]])[1] == pytest.approx(
        64 * 103, rel=0.02
    )
    cyclic: list[object] = []
    cyclic.append(cyclic)
    assert size_of(cyclic)[0] == 0


def test_the_size_of_a_tensor_is_that_of_its_elements() -> None:
    paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    assert size_of(paddle.zeros([3, 4], "float64")) == (96, 1)
