"""Datasets over a token file, and the sampler that divides samples over ranks and steps."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from paddle.io import BatchSampler, Dataset

from ppprof.train.corpus import DataError
from ppprof.train.tokenizer import NUM_BYTES, BytePairs

_MOST_TOKENS = 4096
"""Limit for the vocabulary that `TokenizedText` learns; learning a larger one takes too long."""


class TextSamples(Dataset):
    """A dataset over a share of a token file, in which each byte is a token.

    Sample i holds the i-th run of ``length`` tokens in the share, and for each token the next one.

    Args:
        path: a result of `ppprof.train.corpus.token_file`.
        length: tokens of a sample.
        share: start and end of the part to use, as ratios of the file from 0 to 1.
        limit: the largest number of samples to use; None for no limit.

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
                f"{last - first} bytes of text are too few for a sample of max_seq_len {length} "
                "tokens"
            )

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the sample's tokens and, for each, the next token: two int64 arrays (length,)."""
        start = index * self._length
        run = self._tokens[start : start + self._length + 1].astype(np.int64)
        return run[:-1], run[1:]


class TokenizedText(Dataset):
    """A dataset over a share of a packed text that unpacks and tokenizes each sample on access.

    Sample i holds the first ``length`` tokens of the i-th passage in the share, and for each token
    the next one. A passage has ``4 * length`` bytes; one with too few tokens is repeated. Each
    access unpacks the whole shard (a separately compressed part of the file) with the passage,
    which is simple and costs much more than the sample itself.

    Args:
        path: a result of `ppprof.train.corpus.packed_file`.
        length: tokens of a sample.
        vocab_size: the largest number of distinct tokens; above 4096 it has no effect. The tokens
            are the 256 bytes, and pairs of tokens that are learned from the first 64 KiB of the
            text.
        share: start and end of the part to use, as ratios of the passages from 0 to 1.
        limit: the largest number of samples to use; None for no limit.

    Raises:
        DataError: the part holds no passage.
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
        # Read into memory: the data loader's workers would share an open file's position.
        self._shards = zipfile.ZipFile(io.BytesIO(path.read_bytes()))
        shards = self._shards.infolist()
        beginning = self._shards.read(shards[0])[: 64 << 10]
        self._pairs = BytePairs.learn(beginning, min(vocab_size, _MOST_TOKENS) - NUM_BYTES)
        self._length = length
        self._passage = 4 * length
        passages = [
            (shard, start)
            for shard in shards
            for start in range(0, shard.file_size - self._passage + 1, self._passage)
        ]
        first, last = (int(len(passages) * ratio) for ratio in share)
        self._passages = passages[first:last][:limit]
        if not self._passages:
            raise DataError(
                f"{last - first} of {len(passages)} passages of text are too few for a sample of "
                f"max_seq_len {length} tokens"
            )

    def __len__(self) -> int:
        return len(self._passages)

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the sample's tokens and, for each, the next token: two int64 arrays (length,).

        A passage with too few tokens is repeated.
        """
        shard, start = self._passages[index]
        tokens = self._pairs.encode(self._shards.read(shard)[start : start + self._passage])
        while len(tokens) <= self._length:  # a long row of one character is only a few tokens
            tokens += tokens
        run = np.array(tokens[: self._length + 1], np.int64)
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
