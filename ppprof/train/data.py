"""Datasets over a token file, and the sampler that divides samples over ranks and steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from paddle.io import BatchSampler, Dataset

from ppprof.train.corpus import DataError


class TextSamples(Dataset):
    """A dataset over a share of a token file, in which each byte is a token.

    Sample i holds the i-th run of ``length`` tokens in the share, and for each token the next one.

    Args:
        path: a result of `ppprof.train.corpus.token_file`.
        length: tokens of a sample.
        share: start and end of the part to use, as ratios of the file from 0 to 1.
        limit: the largest number of samples to use; None for no limit.
        latency_ms: time that each read of a sample waits, in place of slow storage.

    Raises:
        DataError: the part is too short for one sample.
    """

    def __init__(
        self,
        path: Path,
        length: int,
        share: tuple[float, float] = (0.0, 1.0),
        limit: int | None = None,
        latency_ms: float = 0.0,
    ) -> None:
        super().__init__()
        tokens: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
        first, last = (int(len(tokens) * ratio) for ratio in share)
        self._tokens = tokens[first:last]
        self._length = length
        self._latency_s = latency_ms / 1000
        self._count = max(0, (len(self._tokens) - 1) // length)
        if limit is not None:
            self._count = min(self._count, limit)
        if not self._count:
            raise DataError(
                f"{last - first} bytes of text are too few for a sample of max_seq_len {length} "
                "tokens"
            )

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the sample's tokens and, for each, the next token: two int64 arrays (length,)."""
        if self._latency_s:
            time.sleep(self._latency_s)
        start = index * self._length
        run = self._tokens[start : start + self._length + 1].astype(np.int64)
        return run[:-1], run[1:]


@dataclass(frozen=True)
class Share:
    """This rank's share of every global batch."""

    rank: int
    """Index of this rank's data-parallel replica, from 0 to ``replicas - 1``."""
    replicas: int
    """Number of data-parallel replicas: dp_degree x sharding_degree."""


class StepBatches(BatchSampler):
    """A sampler that yields, step after step, the sample indices of each micro-batch of this rank.

    A step takes the next ``replicas * local`` samples of the epoch's order; samples at the end of an
    epoch that do not fill a step are skipped. So the samples of a step do not depend on how they are
    divided among ranks, and ``taken`` is enough to resume.

    Args:
        num_samples: samples of an epoch.
        local: samples of a step on this rank.
        micro: samples of a micro-batch; must divide ``local``.
        share: this rank's replica and the number of replicas, which give its part of each step.
        seed: seed of the order, which differs between epochs; None keeps the order of the text.
        taken: samples that all ranks together took before a resume, even in steps of another size.
        epochs: passes over the data, those before a resume included; None for no limit.

    Raises:
        DataError: an epoch has fewer samples than a step.
    """

    def __init__(
        self,
        num_samples: int,
        local: int,
        micro: int,
        share: Share,
        seed: int | None = None,
        taken: int = 0,
        epochs: int | None = None,
    ) -> None:
        self._num_samples = num_samples
        self._local = local
        self._micro = micro
        self._share = share
        self._seed = seed
        self._taken = taken
        self._epochs = epochs
        self._step = local * share.replicas
        self._steps_per_epoch = num_samples // self._step
        if not self._steps_per_epoch:
            raise DataError(
                f"{num_samples} samples are fewer than the {self._step} of one step "
                "(local_batch_size x data-parallel ranks)"
            )

    def __iter__(self) -> Iterator[list[int]]:
        epoch, taken = divmod(self._taken, self._steps_per_epoch * self._step)
        while self._epochs is None or epoch < self._epochs:
            order = self._order(epoch)
            for step in range(taken, self._num_samples - self._step + 1, self._step):
                first = step + self._share.rank * self._local
                for micro in range(first, first + self._local, self._micro):
                    yield order[micro : micro + self._micro].tolist()
            epoch, taken = epoch + 1, 0

    def __len__(self) -> int:
        return self._steps_per_epoch * (self._local // self._micro)

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        if self._seed is None:
            return np.arange(self._num_samples)
        return np.random.default_rng([self._seed, epoch]).permutation(self._num_samples)
