"""Samples of a token file, and which of them each rank takes at each step."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from paddle.io import BatchSampler, Dataset

from ppprof.train.errors import DataError
from ppprof.train.tokenizer import NUM_BYTES, BytePairs

_MOST_TOKENS = 4096
"""Learned by `TokenizedText`; more takes longer than a tiny training."""


class TextSamples(Dataset):
    """Samples of a share of a token file: sample i is the i-th run of ``length`` tokens.

    Args:
        path: a file of `ppprof.train.corpus.token_file`.
        length: tokens of a sample.
        share: start and end of the part to use, as ratios of the file.
        limit: samples at the most.

    Raises:
        DataError: the part is too short for one sample.
    """

    def __init__(
        self,
        path: Path,
        length: int,
        share: tuple[float, float] = (0.0, 1.0),
        limit: int | None = None,
    ) -> None:
        super().__init__()
        tokens: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
        first, last = (int(len(tokens) * ratio) for ratio in share)
        self._tokens = tokens[first:last]
        self._length = length
        self._count = max(0, (len(self._tokens) - 1) // length)
        if limit is not None:
            self._count = min(self._count, limit)
        if not self._count:
            raise DataError(
                f"{last - first} bytes of text make no sample of max_seq_len {length} tokens"
            )

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Tokens and the tokens that follow them, each int64 of shape (length,)."""
        start = index * self._length
        run = self._tokens[start : start + self._length + 1].astype(np.int64)
        return run[:-1], run[1:]


class TokenizedText(Dataset):
    """Samples of a share of a packed text, unpacked and tokenised whenever one is asked for.

    Sample i is the beginning of the i-th passage. To read it its whole shard is unpacked: the simple
    way, and much more work than the sample itself.

    Args:
        path: a file of `ppprof.train.corpus.packed_file`.
        length: tokens of a sample.
        vocab_size: distinct tokens at the most: bytes, and merges of them, 3840 at the most, that
            are learned from the beginning of the text.
        share: start and end of the part to use, as ratios of the text.
        limit: samples at the most.

    Raises:
        DataError: the part is too short for one sample.
    """

    def __init__(
        self,
        path: Path,
        length: int,
        vocab_size: int,
        share: tuple[float, float] = (0.0, 1.0),
        limit: int | None = None,
    ) -> None:
        super().__init__()
        # In memory, since loading processes would share one position in an open file.
        self._shards = zipfile.ZipFile(io.BytesIO(path.read_bytes()))
        shards = self._shards.infolist()
        beginning = self._shards.read(shards[0])[: 64 << 10]
        self._pairs = BytePairs.learn(beginning, min(vocab_size, _MOST_TOKENS) - NUM_BYTES)
        self._length = length
        self._passage = 4 * length
        passages = [
            (shard, at)
            for shard in shards
            for at in range(0, shard.file_size - self._passage + 1, self._passage)
        ]
        first, last = (int(len(passages) * ratio) for ratio in share)
        self._passages = passages[first:last][:limit]
        if not self._passages:
            raise DataError(
                f"{last - first} of {len(passages)} passages of text make no sample of "
                f"max_seq_len {length} tokens"
            )

    def __len__(self) -> int:
        return len(self._passages)

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Tokens and the tokens that follow them, each int64 of shape (length,)."""
        shard, at = self._passages[index]
        tokens = self._pairs.encode(self._shards.read(shard)[at : at + self._passage])
        while len(tokens) <= self._length:  # where a row of one sign is few tokens
            tokens += tokens
        run = np.array(tokens[: self._length + 1], np.int64)
        return run[:-1], run[1:]


@dataclass(frozen=True)
class Share:
    """Which samples of every global batch are this rank's."""

    rank: int
    """0 to replicas - 1."""
    replicas: int
    """dp x sharding."""


class StepBatches(BatchSampler):
    """Indices of this rank's micro-batches, step after step, without end.

    A step takes the next ``replicas * local`` samples of the epoch's order, so the samples of a
    step do not depend on how many ranks share them, and a position is the number of samples taken.

    Args:
        num_samples: samples of an epoch.
        local: samples of a step on this rank.
        micro: samples of a micro-batch; divides ``local``.
        seed: of the order; None keeps the order of the text.
        taken: samples already taken, over all ranks; by steps of another size too.
        epochs: passes over the data; None for no end.
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
                f"{num_samples} samples are fewer than one step's {self._step} "
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
