"""Write what a rank holds when an allocation fails: parameters, gradients, optimizer states, local tensors.

Activations that only the graph of the backward holds cannot be walked from Python. They are the difference to
the allocator's figure; a window says who made them (`ppprof.analysis.summaries.held_memory`).
"""

from __future__ import annotations

import gc
import itertools
import logging
import math
import mmap
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import paddle
from paddle.base import core
from paddle.nn import Layer
from paddle.optimizer import Optimizer

from ppprof.capture.parts import Ending, Part
from ppprof.capture.ranks.flight_recorder import layer_name
from ppprof.capture.recording.holders import allocator_bytes, frames_of, held_containers
from ppprof.capture.recording.operator_calls import local_shape
from ppprof.capture.recording.user_files import UserFiles
from ppprof.capture.signals import ignoring_errors
from ppprof.capture.steps.step_log import DeviceMemory
from ppprof.rundir.out_of_memory import (
    KINDS,
    HeldContainer,
    HeldTensor,
    OutOfMemory,
    write_out_of_memory,
)
from ppprof.units import without_cpp_stack

log = logging.getLogger("ppprof")

_MOST_TENSORS = 200
_MOST_CHARACTERS = 400
_RESERVED_BYTES = 32 << 20
_REQUESTED = re.compile(r"alloc(?:ate)?\D{1,20}([0-9]+(?:\.[0-9]+)?) ?([KMGT]?i?B)?", re.IGNORECASE)
_OF_WORKER = "DataLoader worker("
"""Paddle raises the exception of a worker again, in the training's process."""
_OF_PADDLE, _OF_HOST = "ResourceExhausted", "Fail to alloc memory of"
"""In the messages of Paddle's allocators, and of that of the host's memory alone."""
_CONTAINER = "container"
_Named = tuple[str, str, Any]
"""Kind, name and tensor."""
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class OutOfMemoryPart(Part):
    """Writes `OutOfMemory` if a MemoryError ends the session, which Paddle's ResourceExhausted is.

    Also if another error was raised from it, or while it was handled. What Python raises in the backward of a
    ``PyLayer``, such as that of recompute, arrives as an OSError with its text.

    Args:
        run: the run directory.
        rank: of this process.
        device: the device that Paddle computes on, such as ``gpu:0``.
        device_memory: returns the memory of the device; None for a CPU.
    """

    task = "noting who holds the memory"

    def __init__(
        self,
        run: Path,
        rank: int,
        device: str,
        device_memory: Callable[[], DeviceMemory] | None,
    ) -> None:
        self._run, self._rank = run, rank
        self._device = device
        self._device_memory = device_memory
        self._files = UserFiles(Path.cwd())
        self._reserve: mmap.mmap | None = None
        """Addresses without memory: under a limit of them (``ulimit -v``), the search itself needs some."""
        with suppress(OSError, ValueError):
            self._reserve = mmap.mmap(-1, _RESERVED_BYTES)

    def close(self, ending: Ending) -> None:
        """Write what the rank holds, if its memory ran out."""
        if self._reserve is not None:
            self._reserve.close()
        error = _shortage(ending.error)
        if error is not None:
            walked = list(_walked())
            known = self._described(error, ending.step, walked)
            write_out_of_memory(self._run, known)
            with ignoring_errors():  # memory that ran out, too
                containers = self._containers(error, walked, known.device)
                if containers:
                    write_out_of_memory(
                        self._run, replace(known, containers=containers), again=True
                    )
            log.warning(
                f"rank {self._rank}: the memory ran out; who held it: ppprof memory {self._run}"
            )

    def _described(self, error: BaseException, step: int, walked: list[_Named]) -> OutOfMemory:
        calls = list(traceback.walk_tb(error.__traceback__))
        lines = [
            (frame, f"{self._files[frame.f_code.co_filename][0]}:{line} {frame.f_code.co_name}")
            for frame, line in calls
            if self._files[frame.f_code.co_filename][1]
        ]
        message = str(error)
        on_device = self._device_memory is not None and (
            _OF_PADDLE in message and _OF_HOST not in message
        )
        device = self._device if on_device else "cpu"
        tensors = list(_once([*walked, *_local(lines)], on_device=on_device))
        tensors.sort(key=lambda tensor: -tensor.bytes)
        summary = without_cpp_stack(message)
        text = next((line for line in summary.splitlines() if _REQUESTED.search(line)), "")
        text = text or summary.strip("- \n").partition("\n")[0]
        memory = DeviceMemory()
        if on_device and self._device_memory is not None:
            memory = self._device_memory()
        return OutOfMemory(
            rank=self._rank,
            step=step,
            error=f"{type(error).__name__}: {text.strip()}"[:_MOST_CHARACTERS],
            requested_bytes=requested_bytes(text),
            place=lines[-1][1] if lines else "",
            module=_module([frame for frame, _ in calls]),
            device=device,
            allocated_bytes=allocator_bytes(device, "Allocated"),
            reserved_bytes=allocator_bytes(device, "Reserved"),
            total_bytes=memory.total_bytes,
            bytes_by_kind={
                kind: sum(tensor.bytes for tensor in tensors if tensor.kind == kind)
                for kind in KINDS
            },
            largest=tuple(tensors[:_MOST_TENSORS]),
        )

    def _containers(
        self, error: BaseException, walked: list[_Named], device: str
    ) -> tuple[HeldContainer, ...]:
        """Return the containers with tensors beside those of layers and optimizers."""
        calls = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        # Not in a variable: with this function's own frame, it would keep all variables of all callers.
        found = held_containers(
            itertools.chain(reversed(calls), frames_of(sys._getframe(1))), self._files
        )
        holders: dict[str, Any] = {}
        for holder in found:
            holders.setdefault(holder.name[:_MOST_CHARACTERS], holder)
        inside = [
            (_CONTAINER, name, tensor)
            for name, holder in holders.items()
            for tensor in itertools.chain(*holder.elements)
        ]
        held: dict[str, list[int]] = {}
        for tensor in _once([*walked, *inside], on_device=device != "cpu"):
            if tensor.kind == _CONTAINER:
                held.setdefault(tensor.name, []).append(tensor.bytes)
        containers = [
            HeldContainer(name, len(sizes), sum(sizes), holders[name].has_graphs)
            for name, sizes in held.items()
        ]
        return tuple(sorted(containers, key=lambda each: -each.bytes))


def _shortage(error: BaseException | None) -> BaseException | None:
    """Return the error which says that memory ran out, of an error and of those that led to it; None without."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        text = ""
        with suppress(Exception):  # the exception's own __str__ may fail
            text = str(error)
        if isinstance(error, MemoryError) or _OF_PADDLE in text:
            return None if text.startswith(_OF_WORKER) else error
        seen.append(error)
        error = error.__cause__ or error.__context__
    return None


def requested_bytes(text: str) -> int | None:
    """Return how much an allocation asked for, from Paddle's message; None if it does not say.

    >>> requested_bytes("Cannot allocate 1.500000GB memory on GPU 0, 30GB memory has been allocated")
    1610612736
    >>> requested_bytes("(ResourceExhausted) Fail to alloc memory of 17179869184 size, error code is 12.")
    17179869184
    """
    found = _REQUESTED.search(text)
    if found is None:
        return None
    return int(float(found[1]) * _UNITS[(found[2] or "").upper().rstrip("IB")])


def _walked() -> Iterator[_Named]:
    """Yield kind, name and tensor of what layers and optimizers hold."""
    # `isinstance` would ask proxies for their class.
    objects = [each for each in gc.get_objects() if issubclass(type(each), (Layer, Optimizer))]
    layers = [each for each in objects if isinstance(each, Layer)]
    inner = {id(sublayer) for layer in layers for sublayer in layer.children()}
    names: dict[str, str] = {}
    for layer in layers:
        if id(layer) in inner:
            continue
        root = type(layer).__name__
        for name, parameter in layer.named_parameters():
            names[parameter.name] = f"{root}.{name}"
            yield "parameter", f"{root}.{name}", parameter
            # The slices of sharding's third stage.
            yield "parameter", f"{root}.{name}", getattr(parameter, "fw_storage", None)
            # Those of Fleet's mixed precision, and of the third stage, are no `grad`.
            for attribute in ("grad", "main_grad", "bw_storage"):
                yield "gradient", f"{root}.{name}", getattr(parameter, attribute, None)
        for name, buffer in layer.named_buffers():
            yield "buffer", f"{root}.{name}", buffer
    for optimizer in (each for each in objects if isinstance(each, Optimizer)):
        states = {**getattr(optimizer, "_accumulators", {})}
        states["master weight"] = getattr(optimizer, "_master_weights", {})
        for state, by_parameter in states.items():
            for name, tensor in by_parameter.items():
                yield "optimizer state", f"{names.get(name, name)}: {state}", tensor


def _local(lines: list[tuple[FrameType, str]]) -> Iterator[_Named]:
    """Yield the tensors in local variables of the user's functions, also those in lists."""
    for frame, line in lines:
        for name, value in frame.f_locals.items():
            values = value if isinstance(value, (list, tuple)) else [value]
            for each in values[:_MOST_TENSORS]:
                yield "local variable", f"{line}: {name}", each


def _once(tensors: list[_Named], *, on_device: bool) -> Iterator[HeldTensor]:
    """Yield each tensor in the device's memory, or in the host's, for the first of its names.

    Views are left out: tensors within the memory of another one.
    """
    found: list[tuple[int, int, HeldTensor]] = []
    for kind, name, tensor in tensors:
        if type(tensor) is not core.eager.Tensor and not isinstance(tensor, paddle.Tensor):
            continue
        with suppress(Exception):  # without memory, or not dense
            if on_device == (tensor.place.is_cpu_place() or tensor.place.is_cuda_pinned_place()):
                continue
            shape = tuple(local_shape(tensor))
            begin, size = tensor.data_ptr(), math.prod(shape) * tensor.element_size()
            if size and begin:
                dtype = str(tensor.dtype).rpartition(".")[2]
                held = HeldTensor(kind, name[:_MOST_CHARACTERS], shape, dtype, size)
                found.append((begin, begin + size, held))
    found.sort(key=lambda each: (each[0], -each[1]))
    covered = 0
    for _, end, held in found:
        if end > covered:
            covered = end
            yield held


def _module(frames: list[FrameType]) -> str:
    """Return the innermost layer that was called, with its name in the outermost one."""
    calls = [each for each in frames if each.f_code is Layer.__call__.__code__]
    layers = [each.f_locals.get("self") for each in calls]
    if not layers or not isinstance(layers[-1], Layer) or not isinstance(layers[0], Layer):
        return ""
    return layer_name(layers[-1], layers[0])
