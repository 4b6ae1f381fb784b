"""What a rank held when its memory ran out: ``memory/00003.json``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ppprof.rundir.run_file import RunFile, matches

KINDS = ("parameter", "gradient", "optimizer state", "buffer", "local variable")
"""What a tensor is; local variables are those of the functions that the exception came through."""
_ENTRY = re.compile(r"(?P<rank>[0-9]{5,6})\.json")
_MOST_BYTES = 8 << 20


@dataclass(frozen=True)
class HeldTensor:
    """A tensor that was alive, and where it is held."""

    kind: str
    """One of `KINDS`."""
    name: str
    """``Net.blocks.0.linear.weight``, with ``moment1`` of an optimizer; ``train.py:41 step: logits``."""
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True)
class HeldContainer:
    """A list, dict, deque or set whose elements held tensors, or objects with tensors."""

    name: str
    """``losses, train.py (list)``, ``Trainer.history (dict)``."""
    num_tensors: int
    bytes: int
    """Of these tensors, without parameters, gradients, optimizer states and buffers, and without those of the containers
    ahead of this one."""
    has_graphs: bool
    """Whether its latest tensors have graphs of gradients, which may keep more memory."""


@dataclass(frozen=True)
class OutOfMemory:
    """The memory of a rank when an allocation failed."""

    rank: int
    step: int
    """Steps that had ended."""
    error: str
    """The exception's first line."""
    requested_bytes: int | None
    """What did not fit; None if the message does not say."""
    place: str
    """The user's innermost line: ``train.py:41 step``."""
    module: str
    """The innermost module that was called: ``blocks.0 (Block)``; "" outside modules."""
    device: str
    allocated_bytes: int | None
    """Bytes in tensors, by Paddle's allocator; None if the device does not count them."""
    reserved_bytes: int | None
    total_bytes: int | None
    """Size of the device's memory; None for a CPU."""
    bytes_by_kind: Mapping[str, int]
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
            failure = _parse(file.read_json(_MOST_BYTES))
            if failure.rank != int(entry["rank"]):
                raise ValueError(f"rank: {failure.rank}")
            found[failure.rank] = failure
        except OSError as error:
            problems.append(f"{file}: {error.strerror or error}")
        except (ValueError, TypeError, KeyError) as error:
            problems.append(f"{file}: damaged, or of another version of ppprof: {error}")
    return found, problems


def _parse(values: Any) -> OutOfMemory:
    if not isinstance(values, dict):
        raise ValueError("expected a JSON object")
    numbers = {"rank", "step"}
    optional = {"requested_bytes", "allocated_bytes", "reserved_bytes", "total_bytes"}
    values = {"containers": [], **values}  # earlier versions had none
    for name in (each.name for each in fields(OutOfMemory)):
        value = values[name]
        if name in numbers | optional:
            is_valid = _is_count(value) or (name in optional and value is None)
        elif name == "bytes_by_kind":
            is_valid = isinstance(value, dict) and all(map(_is_count, value.values()))
        elif name in ("largest", "containers"):
            is_valid = isinstance(value, list)
        else:
            is_valid = isinstance(value, str)
        if not is_valid:
            raise ValueError(f"{name}: {str(value)[:40]}")
    largest, containers = map(_tensor, values["largest"]), map(_container, values["containers"])
    return OutOfMemory(**{**values, "largest": tuple(largest), "containers": tuple(containers)})


def _container(values: Any) -> HeldContainer:
    container = HeldContainer(**values)
    is_valid = isinstance(container.name, str) and type(container.has_graphs) is bool
    if not is_valid or not all(map(_is_count, (container.num_tensors, container.bytes))):
        raise ValueError(f"containers: {str(values)[:40]}")
    return container


def _tensor(values: Any) -> HeldTensor:
    tensor = HeldTensor(**values)
    texts, shape = (tensor.kind, tensor.name, tensor.dtype), tensor.shape
    is_valid = _is_count(tensor.bytes) and all(isinstance(text, str) for text in texts)
    if not is_valid or not isinstance(shape, list) or not all(map(_is_count, shape)):
        raise ValueError(f"largest: {str(values)[:40]}")
    return replace(tensor, shape=tuple(shape))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63
