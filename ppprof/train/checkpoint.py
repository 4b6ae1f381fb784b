"""Save and resume: tensors as safetensors, the rest as JSON; nothing that a reader would run.

A checkpoint is a directory ``step_00000020`` with ``model_pp0_sharding0_mp0.safetensors``,
``optimizer_pp0_sharding0_mp0.safetensors`` and so on, as many as the grid has parts, and
``state.json``. It appears under its name when it is complete, on a disk that all ranks share.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import paddle
from paddle import nn
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ppprof.errors import InputError
from ppprof.train.grid import Grid
from ppprof.train.model import parameters
from ppprof.train.optim import SLICE

Arrays = dict[str, npt.NDArray[Any]]

_STAGE = "sharding_stage"

_MASTER = "master:"  # before the float32 copy of a short parameter


@dataclass(frozen=True)
class Progress:
    """How far a run has come, beside its tensors."""

    step: int
    """Optimizer steps done."""
    samples: int
    """Samples taken from the data, over all ranks."""
    scaler: Mapping[str, Any]
    """State of the gradient scaler; empty where there is none."""


def save(folder: Path, progress: Progress, model: nn.Layer, optimizer: Any, grid: Grid) -> Path:
    """Writes a checkpoint, every rank its part; returns where.

    Copies of a part (other dp ranks', and for parameters other sharding ranks') are not written.
    """
    if paddle.get_device().startswith("gpu"):
        paddle.device.synchronize()  # broadcast_overlap: parameters may still be on their way
    target = folder / f"step_{progress.step:08d}"
    hidden = folder / f".{target.name}.part"
    if grid.rank == 0:
        shutil.rmtree(hidden, ignore_errors=True)  # of a run that was killed here
        hidden.mkdir(parents=True)
    grid.barrier()
    tensors = optimizer.state_dict()
    document = {
        "step": progress.step,
        "samples": progress.samples,
        "scaler": dict(progress.scaler),
        "schedule": tensors.pop("LR_Scheduler"),
        "grid": _degrees(grid),
    }
    at = grid.coordinate
    if at["dp"] == 0:
        names = {param.name: name for name, param in parameters(model)}
        masters = tensors.pop("master_weights", {})
        renamed = {_renamed(key, names): tensor for key, tensor in tensors.items()}
        for key, tensor in masters.items():
            renamed[_MASTER + _mark(key) + _renamed(tensor.name, names)] = tensor
        _write(_arrays(renamed), hidden / _part("optimizer", at))
        held = {name: _held(param) for name, param in parameters(model)}
        is_sliced = any(held[name] is not param for name, param in parameters(model))
        if at["sharding"] == 0 or is_sliced:
            _write(_arrays(held), hidden / _part("model", at))
    grid.barrier()
    if grid.rank == 0:
        (hidden / "state.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
        older = folder / f".{target.name}.older"
        shutil.rmtree(older, ignore_errors=True)
        if target.exists():
            target.replace(older)
        hidden.replace(target)
        shutil.rmtree(older, ignore_errors=True)
    return target


def load(folder: Path, model: nn.Layer, optimizer: Any, grid: Grid) -> Progress:
    """Puts this rank's part of a checkpoint into model and optimizer.

    Raises:
        InputError: not a checkpoint, or one of another model or grid.
    """
    at = grid.coordinate
    try:
        document = _document((folder / "state.json").read_text(encoding="utf-8"))
        if document["grid"] != _degrees(grid):
            raise InputError(
                f"{folder}: a checkpoint of another grid: {_text(document['grid'])} saved, "
                f"{_text(_degrees(grid))} in the config; only dp may differ"
            )
        own = dict(parameters(model))
        weights = _weights(folder, at, own)
        state = _optimizer_state(load_file(folder / _part("optimizer", at)), model)
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"{folder}: not a checkpoint: {error}") from error
    _check_model(folder, own, weights)
    for name, param in own.items():
        param.set_value(weights[name])
    optimizer.set_state_dict({**state, "LR_Scheduler": document["schedule"]})
    return Progress(document["step"], document["samples"], document["scaler"])


def _held(param: paddle.Tensor) -> paddle.Tensor:
    """What this rank has of a parameter: all, or under sharding stage 3 its slice, flat."""
    return param.fw_storage if getattr(param, "status", "all") == "part" else param


def _weights(folder: Path, at: Mapping[str, int], own: Mapping[str, paddle.Tensor]) -> Arrays:
    """The parameters of a part, put together where sharding ranks have slices of them."""
    first = load_file(folder / _part("model", {**at, "sharding": 0}))
    pieces = {name: [array] for name, array in first.items()}
    for rank in itertools.count(1):
        path = folder / _part("model", {**at, "sharding": rank})
        if not path.exists():
            break
        for name, array in load_file(path).items():
            pieces[name].append(array)
    return {name: _whole(arrays, own.get(name)) for name, arrays in pieces.items()}


def _whole(slices: list[npt.NDArray[Any]], param: paddle.Tensor | None) -> npt.NDArray[Any]:
    """An array of the parameter's shape, unless it is not this model's."""
    if param is None or len(slices) == 1 or list(slices[0].shape) == param.shape:
        return slices[0]
    flat = np.concatenate(slices)
    return flat[: param.size].reshape(param.shape) if flat.size >= param.size else flat


def _part(what: str, at: Mapping[str, int]) -> str:
    """File of the rank at a coordinate."""
    axes = "_".join(f"{axis}{at[axis]}" for axis in ("pp", "sharding", "mp"))
    return f"{what}_{axes}.safetensors"


def _degrees(grid: Grid) -> dict[str, int]:
    """What the parts of a checkpoint depend on; copies do not matter."""
    degrees = {axis: grid.topology.degree(axis) for axis in ("pp", "sharding", "mp")}
    # Each stage gives ranks other parts of the optimizer's state.
    return {**degrees, _STAGE: grid.sharding_stage} if degrees["sharding"] > 1 else degrees


def _text(degrees: Mapping[str, Any]) -> str:
    stage = f" in {_STAGE} {degrees[_STAGE]}" if _STAGE in degrees else ""
    return " x ".join(f"{axis} {at}" for axis, at in degrees.items() if axis != _STAGE) + stage


def _write(arrays: Arrays, path: Path) -> None:
    save_file(arrays, path)
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _document(text: str) -> dict[str, Any]:
    document = json.loads(text)
    expected = {"step": int, "samples": int, "scaler": dict, "schedule": dict, "grid": dict}
    for key, kind in expected.items():
        value = document.get(key) if isinstance(document, dict) else None
        if type(value) is not kind:
            raise ValueError(f"state.json: {key}: {value!r}: expected {kind.__name__}")
    return {key: document[key] for key in expected}


def _optimizer_state(arrays: Arrays, model: nn.Layer) -> dict[str, Any]:
    """Tensors under the names that this process gave its parameters."""
    names = {name: param.name for name, param in parameters(model)}
    state: dict[str, Any] = {}
    masters: dict[str, Any] = {}
    for key, array in arrays.items():
        own = key[len(_MASTER) :] if key.startswith(_MASTER) else key
        tensor = paddle.to_tensor(array)
        tensor.name = _renamed(own, names)  # Paddle finds the moments of a master by its name
        if own is key:
            state[tensor.name] = tensor
        else:
            mark = _mark(own)
            masters[mark + names[_owner(own[len(mark) :], names)]] = tensor
    return {**state, "master_weights": masters} if masters else state


def _renamed(key: str, names: Mapping[str, str]) -> str:
    """A tensor's name with the name of its parameter exchanged for another.

    Paddle numbers parameters as they are made (``linear_3.w_0_moment1_0``); a checkpoint has the
    model's own names (``blocks.1.mlp.up.weight_moment1_0``), which every process shares.
    """
    mark = _mark(key)
    owner = _owner(key[len(mark) :], names)
    return mark + names[owner] + key[len(mark) + len(owner) :]


def _mark(key: str) -> str:
    return SLICE if key.startswith(SLICE) else ""


def _owner(key: str, names: Mapping[str, str]) -> str:
    # Group sharding calls the float32 copy of a parameter what the parameter is called.
    owners = [name for name in names if key == name or key.startswith(f"{name}_")]
    if not owners:
        raise ValueError(f"{key}: no such parameter")
    return max(owners, key=len)


def _arrays(tensors: Mapping[str, Any]) -> Arrays:
    return {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in tensors.items()}


def _check_model(folder: Path, own: Mapping[str, paddle.Tensor], weights: Arrays) -> None:
    wanted = {name: _form(param) for name, param in own.items()}
    found = {name: _form(array) for name, array in weights.items()}
    differing = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
    if differing:
        name = differing[0]
        raise InputError(
            f"{folder}: a checkpoint of another model: {len(differing)} tensors differ, the first "
            f"{name}: {found.get(name, 'missing')} saved, {wanted.get(name, 'none')} in the config"
        )


def _form(tensor: Any) -> str:
    """``float32 [256, 64]``; numpy sees Paddle's bfloat16 as uint16."""
    dtype = str(tensor.dtype).replace("paddle.", "").replace("uint16", "bfloat16")
    return f"{dtype} {list(tensor.shape)}"
