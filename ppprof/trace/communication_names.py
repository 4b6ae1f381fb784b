"""Which kernels communicate, by their names: one rule for the libraries of all makers.

``communication_names.yaml`` beside this file lists the libraries, and users may add to it.

Copies never count: NCCL 2.28 can run collectives as memory copies, whose names are those of all copies.
What looks like communication and is in no table is reported (`look_alikes`).

Paddle's own rule is narrower: see `PADDLE_PATTERN`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from ppprof.errors import InputError
from ppprof.paths import read_bounded, to_path
from ppprof.trace.labels import Labels

SECTION = "communication"
"""Key of a user's file for names that communicate; the others are names of operators."""
_LIBRARIES = ("nccl", "rccl", "bkcl", "hccl", "hcom", "cncl", "mccl", "tccl", "xccl")
_OPERATIONS = "all|barrier|bcast|broadcast|dev|gather|group|kernel|recv|reduce|scatter|send"
_MOST_BYTES = 1 << 20
_EXPECTED = "expected lines such as 'my library: [my_all_reduce]' under 'communication:'"
_LOOK_ALIKE = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv|shmem|multimem|ccl[A-Z_:]"
    r"|(?:intra|inter)_?node|p2p_?(?:send|recv|copy)|nvlink",
    re.IGNORECASE,
)
_NOT_ALIKE = re.compile(r"(?:warp|block|thread|group)_?all_?reduce", re.IGNORECASE)
"""Sums in one kernel, not over ranks."""

PADDLE_PATTERN = "nccl|xccl"
"""A kernel communicates by Paddle's rule if its name, in lower case, contains this pattern.

Source: ``TraceParseResult`` of paddle 3.3's profiler_statistic.py. Only the tables that equal Paddle's
use it.
"""

TORCH_SPANS = rf"^(c10d::|({'|'.join((*_LIBRARIES, 'gloo', 'mpi', 'ucc'))}):|record_param_comms$)"
"""The names of torch's host events that communicate: ``nccl:all_reduce``, ``c10d::allreduce_``."""


RESHARDING = re.compile(
    r"((PTo[RS]|STo[RS]|XToRShrink|RToXExpand|SameStatus|(Same|Cross)NdMesh)Reshard"
    r"|[PRS]To[PRS]ReshardCrossMesh)"
)
"""The whole names of the host events of Paddle's semi-automatic parallelism that move data: a tensor
from one placement on the ranks (P partial, R replicated, S sharded) or one mesh to another. The others,
such as RToSReshard, cut out what is there. On a mesh of several axes all have one name."""
PLACING = re.compile("(reshard|dtensor_(from|to)_local) dygraph")
"""The whole names of Paddle's Communication events around such conversions, also around those that
move nothing."""


def _library(name: str) -> str:
    """Return the regular expression of a library's name at the start of a word."""
    return (
        rf"(?<![A-Za-z]){name}(?![a-z])"
        rf"|(?<![A-Za-z])(?i:{name}(?:{_OPERATIONS}))"
        rf"|(?<![A-Z]){name.capitalize()}(?![a-z])"
        rf"|(?<![A-Z]){name.upper()}(?![A-Z](?![a-z]))"
    )


@dataclass(frozen=True)
class CommunicationNames:
    """The rule for the names of kernels that communicate; called with a name.

    >>> is_communication("ncclDevKernel_SendRecv"), is_communication("hcomplex_mul")
    (True, False)
    """

    added: tuple[str, ...] = ()
    """Regular expressions that count besides the built-in table."""

    def __call__(self, kernel: str) -> bool:
        """Return whether a kernel communicates, by its name."""
        return _matches(self.added, kernel)

    def is_alike(self, kernel: str) -> bool:
        """Return whether a name looks like communication and is in no table."""
        if not _LOOK_ALIKE.search(kernel) or _NOT_ALIKE.search(kernel):
            return False
        return not self(kernel)


is_communication = CommunicationNames()
"""The rule without names of a user's."""


@lru_cache(4096)
def _matches(added: tuple[str, ...], kernel: str) -> bool:
    return any(pattern.search(kernel) for pattern in _patterns(added))


@cache
def _patterns(added: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    """Return the patterns; each is compiled alone, since flags hold for a whole one."""
    return tuple(re.compile(text) for text in (*built_in_patterns(), *added))


def built_in_patterns() -> Iterator[str]:
    """Yield the regular expressions of the built-in table.

    PyYAML is not used: to import it takes as long as to read a short trace. The file has comments,
    small letters, and texts in single quotes without quotes inside.
    """
    text = re.sub(r"(?m)(^|\s)#.*$", "", Path(__file__).with_suffix(".yaml").read_text("utf-8"))
    for quoted, name in re.findall(r"'([^']*)'|(?<=[\[,])\s*([a-z]+)(?=[,\]])", text):
        yield quoted or _library(name)


def patterns_of(libraries: Any, where: str) -> Iterator[str]:
    """Yield the regular expressions of a table ``library: [patterns]``.

    Raises:
        InputError: it is no such table, or a pattern is invalid; says where.
    """
    if not isinstance(libraries, Mapping):
        raise InputError(f"{where}: {libraries!r}; {_EXPECTED}")
    for library, patterns in libraries.items():
        if not isinstance(patterns, list) or not all(isinstance(each, str) for each in patterns):
            raise InputError(f"{where}: {library}: {patterns!r}; {_EXPECTED}")
        for pattern in patterns:
            if re.fullmatch("[a-z]+", pattern):
                yield _library(pattern)
                continue
            try:
                re.compile(pattern)
            except re.error as error:
                raise InputError(
                    f"{where}: {library}: {pattern!r}: not a regular expression: {error}"
                ) from error
            yield pattern


def read_names(path: str | Path) -> Mapping[str, Any]:
    """Return the content of a user's file of names, a YAML mapping.

    Raises:
        InputError: missing, or not such a file; says where.
    """
    import yaml

    from ppprof.safe_yaml import safe_load

    try:
        groups = safe_load(read_bounded(to_path(path), _MOST_BYTES).decode("utf-8")) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: such as 2024-13-45
        raise InputError(f"{path}: {' '.join(str(error).split())}; {_EXPECTED}") from error
    if not isinstance(groups, Mapping):
        raise InputError(f"{path}: {groups!r}; {_EXPECTED}")
    return groups


def communication_patterns(path: str | Path) -> tuple[str, ...]:
    """Return the regular expressions under the key ``communication`` of a user's file.

    Raises:
        InputError: as `read_names` and `patterns_of`.
    """
    return tuple(patterns_of(read_names(path).get(SECTION) or {}, f"{path}: {SECTION}"))


def look_alikes(devices: pl.DataFrame, rule: CommunicationNames) -> list[tuple[str, int, int]]:
    """Return the kernels that look like communication and are in no table, the longest first.

    Args:
        devices: device events; reads name, category and dur_ns.
        rule: the tables.

    Returns:
        Name, calls and time in ns.
    """
    rows = (devices["category"] == "Kernel").arg_true()
    names = devices["name"].gather(rows)
    is_alike = Labels.of(names).where(rule.is_alike)
    if not is_alike.any():
        return []
    kernels = pl.DataFrame([names, devices["dur_ns"].gather(rows)]).filter(pl.Series(is_alike))
    times = (
        kernels.group_by("name")
        .agg(pl.len(), pl.col("dur_ns").sum())
        .sort("dur_ns", descending=True)
    )
    return [(str(name), num, time_ns) for name, num, time_ns in times.iter_rows()]


def communicates(kernels: pl.Series, rule: CommunicationNames = is_communication) -> pl.Series:
    """Return whether each kernel communicates.

    Args:
        kernels: names of kernels, a categorical column, shape (N,).
        rule: decides.

    Returns:
        Booleans, shape (N,).
    """
    return pl.Series(Labels.of(kernels).where(rule))
