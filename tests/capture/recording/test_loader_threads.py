"""Two iterators of one dataset: a window must not change how their threads take turns."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppprof.capture.recording.python_stacks import StackSampler


@pytest.mark.paddle
@pytest.mark.parametrize("begins", ["before the window", "in the window"])
@pytest.mark.parametrize(("num_datasets", "is_shortened"), [(1, False), (2, True)])
def test_two_threads_that_read_one_dataset_take_turns_as_without_a_window(
    begins: str, num_datasets: int, is_shortened: bool, tmp_path: Path
) -> None:
    from paddle.io import DataLoader, Dataset

    class Numbers(Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 1000

        def __getitem__(self, index: int) -> Any:
            return np.full(4, index)

    loaders = [DataLoader(Numbers(), batch_size=2) for _ in range(num_datasets)]
    iterators = [iter(loaders[0])]
    before = sys.getswitchinterval()
    sampler = StackSampler(tmp_path, 1000)
    if begins == "before the window":
        iterators.append(iter(loaders[-1]))
    sampler.started()
    try:
        if begins == "in the window":
            assert sys.getswitchinterval() == pytest.approx(0.0002)
            iterators.append(iter(loaders[-1]))
        shortened = pytest.approx(0.0002)
        assert sys.getswitchinterval() == (shortened if is_shortened else before)
        for iterator in iterators:  # both read on
            assert [next(iterator)[0, 0].item() for _ in range(9)] == [*range(0, 18, 2)]
    finally:
        sampler.uninstall()
        for iterator in iterators:
            iterator._try_shutdown_all()
    assert sys.getswitchinterval() == before
