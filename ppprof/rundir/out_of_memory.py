"""What a rank held when its memory ran out: ``memory/00003.json``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Optional

import msgspec

from ppprof.rundir.run_file import RunFile, matches

KINDS = ("parameter", "gradient", "optimizer state", "buffer", "local variable")
"""What a tensor is; local variables are those of the functions that the exception came through."""
_ENTRY = re.compile(r"(?P<rank>[0-9]{5,6})\.json")
_MOST_BYTES = 8 << 20

_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
# Python 3.9 cannot evaluate "int | None", and msgspec evaluates annotations.
_UnknownCount = Optional[_Count]


@dataclass(frozen=True)
class HeldTensor:
    """A tensor that was alive, and where it is held."""

    kind: str
    """One of `KINDS`."""
    name: str
    """``Net.blocks.0.linear.weight``, with ``moment1`` of an optimizer; ``train.py:41 step: logits``."""
    shape: tuple[_Count, ...]
    dtype: str
    bytes: _Count


@dataclass(frozen=True)
class HeldContainer:
    """A list, dict, deque or set whose elements held tensors, or objects with tensors."""

    name: str
    """``losses, train.py (list)``, ``Trainer.history (dict)``."""
    num_tensors: _Count
    bytes: _Count
    """Of these tensors, without parameters, gradients, optimizer states and buffers, and without those of the containers
    ahead of this one."""
    has_graphs: bool
    """Whether its latest tensors have graphs of gradients, which may keep more memory."""


@dataclass(frozen=True)
class OutOfMemory:
    """The memory of a rank when an allocation failed."""

    rank: _Count
    step: _Count
    """Steps that had ended."""
    error: str
    """The exception's first line."""
    requested_bytes: _UnknownCount
    """What did not fit; None if the message does not say."""
    place: str
    """The user's innermost line: ``train.py:41 step``."""
    module: str
    """The innermost module that was called: ``blocks.0 (Block)``; "" outside modules."""
    device: str
    allocated_bytes: _UnknownCount
    """Bytes in tensors, by Paddle's allocator; None if the device does not count them."""
    reserved_bytes: _UnknownCount
    total_bytes: _UnknownCount
    """Size of the device's memory; None for a CPU."""
    bytes_by_kind: Mapping[str, _Count]
    """All tensors that were found, of each of `KINDS`."""
    largest: tuple[HeldTensor, ...]
    """The largest of them, the largest first."""
    containers: tuple[HeldContainer, ...] = ()
    """Those with the most tensors, most bytes first."""


def write_out_of_memory(run: Path, what: OutOfMemory, *, again: bool = False) -> None:
    """Write what a rank held, the first time, or again with more.

    Raises:
        OSError: the file cannot be written, or exists and is not written again.
    """
    file = RunFile(run, f"memory/{what.rank:05d}.json")
    (file.write if again else file.write_new)(json.dumps(asdict(what)).encode())


def read_out_of_memory(run: Path) -> tuple[dict[int, OutOfMemory], list[str]]:
    """Return what ranks held, by rank, and a message for each file that is unreadable."""
    found, problems = {}, []
    for entry in matches(run, "memory", _ENTRY):
        file = RunFile(run, f"memory/{entry[0]}")
        try:
            values = file.read_json(_MOST_BYTES)
            failure = msgspec.convert(values, OutOfMemory)
            if failure.rank != int(entry["rank"]):
                raise ValueError(f"rank: {failure.rank}")
            known = json.loads(json.dumps(asdict(failure)))
            if known != {"containers": [], **values}:  # earlier versions had none
                raise ValueError("unknown keys")
            found[failure.rank] = failure
        except OSError as error:
            problems.append(f"{file}: {error.strerror or error}")
        except (ValueError, msgspec.MsgspecError) as error:  # one only from msgspec 0.21 on
            problems.append(f"{file}: damaged, or of another version of ppprof: {error}")
    return found, problems
