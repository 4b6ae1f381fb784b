"""Real text as bytes: found, written once as one memory-mapped file, cut into samples.

A token is a byte, so 256 tokens are the whole vocabulary and nothing needs to be downloaded: the
default text is the source of the Python standard library that runs this.
"""

from __future__ import annotations

import glob
import hashlib
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from paddle.io import BatchSampler, Dataset

from ppprof.train.errors import DataError

NUM_TOKENS = 256
"""Distinct bytes."""

_SEPARATOR = b"\x00"  # between files: no text holds it
_NOT_LIBRARY = frozenset(["test", "tests", "site-packages", "idlelib", "lib2to3", "__pycache__"])


def find_files(source: str | None) -> list[Path]:
    """The files of a dataset, in a stable order.

    Args:
        source: a file, a directory (every file below it), a glob, or None for the Python standard
            library's source.

    Raises:
        DataError: nothing there.
    """
    if source is None:
        library = Path(sysconfig.get_paths()["stdlib"])
        found = [
            path for path in library.rglob("*.py")
            if not _NOT_LIBRARY.intersection(path.relative_to(library).parts)
        ]  # fmt: skip
    elif Path(source).is_dir():
        found = list(Path(source).rglob("*"))
    else:
        found = [Path(path) for path in glob.glob(source, recursive=True)]  # noqa: PTH207 - absolute patterns
    files = sorted(path for path in found if path.is_file() and path.stat().st_size)
    if not files:
        what = "the Python standard library" if source is None else source
        raise DataError(f"{what}: no text there; expected a file, a directory or a glob with some")
    return files


def token_file(files: Sequence[Path], cache: Path | None = None) -> Path:
    """All bytes of ``files`` in one file, made on first use and again when a file changes.

    Several processes may make it at once: each writes its own and renames it.
    """
    signature = hashlib.sha256()
    for path in files:
        stat = path.stat()
        signature.update(f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    folder = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ppprof")
    target = folder / f"tokens_{signature.hexdigest()[:16]}.u8"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        hidden = target.with_suffix(f".{os.getpid()}")
        with hidden.open("wb") as file:
            for path in files:
                file.write(path.read_bytes() + _SEPARATOR)
        hidden.replace(target)
    return target


class TextSamples(Dataset):
    """Samples of a share of a token file: sample i is the i-th run of ``length`` tokens.

    Args:
        path: a file of `token_file`.
        length: tokens of a sample.
        share: start and end of the part to use, as ratios of the file.
        limit: samples at the most.

    Raises:
        DataError: the part is too short for one sample.
    """

    def __init__(
        self, path: Path, length: int, share: tuple[float, float] = (0.0, 1.0),
        limit: int | None = None,
    ) -> None:  # fmt: skip
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
    step do not depend on how many ranks share them, and a position is the number of steps taken.

    Args:
        num_samples: samples of an epoch.
        local: samples of a step on this rank.
        micro: samples of a micro-batch; divides ``local``.
        seed: of the order; None keeps the order of the text.
        start_step: steps already taken.
        epochs: passes over the data; None for no end.
    """

    def __init__(
        self, num_samples: int, local: int, micro: int, share: Share,
        seed: int | None = None, start_step: int = 0, epochs: int | None = None,
    ) -> None:  # fmt: skip
        self._num_samples = num_samples
        self._local = local
        self._micro = micro
        self._share = share
        self._seed = seed
        self._start_step = start_step
        self._epochs = epochs
        self.steps_per_epoch = num_samples // (local * share.replicas)
        if not self.steps_per_epoch:
            raise DataError(
                f"{num_samples} samples are fewer than one step's "
                f"{local * share.replicas} (local_batch_size x data-parallel ranks)"
            )

    def __iter__(self) -> Iterator[list[int]]:
        step = self._start_step
        while self._epochs is None or step < self._epochs * self.steps_per_epoch:
            epoch, within = divmod(step, self.steps_per_epoch)
            order = self._order(epoch)
            for at in range(within, self.steps_per_epoch):
                first = (at * self._share.replicas + self._share.rank) * self._local
                for micro in range(first, first + self._local, self._micro):
                    yield order[micro : micro + self._micro].tolist()
                step += 1

    def __len__(self) -> int:
        return self.steps_per_epoch * (self._local // self._micro)

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        if self._seed is None:
            return np.arange(self._num_samples)
        return np.random.default_rng([self._seed, epoch]).permutation(self._num_samples)
