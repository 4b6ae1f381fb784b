"""Save and load checkpoints: tensors as safetensors, the rest as JSON; no executable content.

A checkpoint is a directory such as ``step_00000020`` on a disk that all ranks share. It holds
``state.json`` and, for each (pp, sharding, mp) coordinate, ``model_pp0_sharding0_mp0.safetensors``
and ``optimizer_pp0_sharding0_mp0.safetensors``. Model files of sharding ranks above 0 exist only
under sharding stage 3. The directory gets its name only when it is complete.
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

_MASTER = "master:"  # prefix of the float32 copy of a low-precision parameter


@dataclass(frozen=True)
class Progress:
    """The progress of a run, apart from its tensors."""

    step: int
    """Completed optimizer steps."""
    samples: int
    """Samples taken from the data, over all ranks."""
    scaler: Mapping[str, Any]
    """State of the gradient scaler; empty without a scaler."""


def save(folder: Path, progress: Progress, model: nn.Layer, optimizer: Any, grid: Grid) -> Path:
    """Write this rank's files of a checkpoint; return the checkpoint's directory. All ranks call it.

    Only ranks with dp coordinate 0 write files. Of these, only sharding rank 0 writes parameters,
    except under sharding stage 3, where every sharding rank writes its slices. Rank 0 also writes
    ``state.json``. A checkpoint of the same step is replaced.

    Args:
        folder: directory of all checkpoints.
        progress: the progress to write into ``state.json``.
        model: this rank's model.
        optimizer: this rank's optimizer.
        grid: this rank's place in the topology.

    Raises:
        OSError: the directory cannot be written.
    """
    if paddle.get_device().startswith("gpu"):
        paddle.device.synchronize()  # broadcast_overlap: broadcasts of parameters may be pending
    target = folder / f"step_{progress.step:08d}"
    hidden = folder / f".{target.name}.part"
    if grid.rank == 0:
        shutil.rmtree(hidden, ignore_errors=True)  # left by a killed run
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
    coordinate = grid.topology.coordinate(grid.rank)
    if coordinate["dp"] == 0:
        names = {param.name: name for name, param in parameters(model)}
        masters = tensors.pop("master_weights", {})
        renamed = {_rename(key, names): tensor for key, tensor in tensors.items()}
        for key, tensor in masters.items():
            renamed[_MASTER + _slice_prefix(key) + _rename(tensor.name, names)] = tensor
        _write(_arrays(renamed), hidden / _file_name("optimizer", coordinate))
        local = {name: _local_part(param) for name, param in parameters(model)}
        is_sliced = any(local[name] is not param for name, param in parameters(model))
        if coordinate["sharding"] == 0 or is_sliced:
            _write(_arrays(local), hidden / _file_name("model", coordinate))
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
    """Load this rank's tensors of a checkpoint into model and optimizer; return its progress.

    Call it before Fleet wraps the model and the optimizer. Only dp_degree may differ from the run
    that saved the checkpoint.

    Args:
        folder: the checkpoint, such as ``step_00000020``.
        model: this rank's model; its parameters are overwritten.
        optimizer: this rank's optimizer; its state and learning rate schedule are overwritten.
        grid: this rank's place in the topology.

    Raises:
        InputError: ``folder`` is not a checkpoint, or is one of another model or topology.
    """
    coordinate = grid.topology.coordinate(grid.rank)
    try:
        document = _parse_state((folder / "state.json").read_text(encoding="utf-8"))
        if document["grid"] != _degrees(grid):
            raise InputError(
                f"{folder}: a checkpoint with other degrees: "
                f"{_format_degrees(document['grid'])} saved, "
                f"{_format_degrees(_degrees(grid))} in the config; only dp may differ"
            )
        own = dict(parameters(model))
        weights = _read_weights(folder, coordinate, own)
        _check_model(folder, own, weights, grid)
        file = folder / _file_name("optimizer", coordinate)
        state = _optimizer_state(load_file(file), model)
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"{folder}: not a checkpoint: {error}") from error
    for name, param in own.items():
        param.set_value(weights[name])
    optimizer.set_state_dict({**state, "LR_Scheduler": document["schedule"]})
    return Progress(document["step"], document["samples"], document["scaler"])


def _local_part(param: paddle.Tensor) -> paddle.Tensor:
    """Return the whole parameter; under sharding stage 3, this rank's slice of it, which is flat."""
    return param.fw_storage if getattr(param, "status", "all") == "part" else param


def _read_weights(
    folder: Path, coordinate: Mapping[str, int], own: Mapping[str, paddle.Tensor]
) -> Arrays:
    """Return the saved parameters of this rank's (pp, mp) coordinate, keyed by name.

    Slices of several sharding ranks are joined.
    """
    first = load_file(folder / _file_name("model", {**coordinate, "sharding": 0}))
    slices = {name: [array] for name, array in first.items()}
    for rank in itertools.count(1):
        path = folder / _file_name("model", {**coordinate, "sharding": rank})
        if not path.exists():
            break
        for name, array in load_file(path).items():
            slices[name].append(array)
    return {name: _join_slices(arrays, own.get(name)) for name, arrays in slices.items()}


def _join_slices(slices: list[npt.NDArray[Any]], param: paddle.Tensor | None) -> npt.NDArray[Any]:
    """Return the slices joined to the parameter's shape, without the padding at the end.

    A single slice, and the first slice if it has the parameter's shape, is returned as it is. The
    first slice is also returned if the model lacks the parameter. Slices that are too short for the
    parameter are joined to a flat array.
    """
    if param is None or len(slices) == 1 or list(slices[0].shape) == param.shape:
        return slices[0]
    flat = np.concatenate(slices)
    return flat[: param.size].reshape(param.shape) if flat.size >= param.size else flat


def _file_name(kind: str, coordinate: Mapping[str, int]) -> str:
    """Return the name of the file for a coordinate, such as ``model_pp1_sharding0_mp2.safetensors``."""
    axes = "_".join(f"{axis}{coordinate[axis]}" for axis in ("pp", "sharding", "mp"))
    return f"{kind}_{axes}.safetensors"


def _degrees(grid: Grid) -> dict[str, int]:
    """Return the degrees that must be equal to load a checkpoint: those of pp, sharding and mp.

    With several sharding ranks, the sharding stage is included. dp_degree may differ, since dp ranks
    hold copies.
    """
    degrees = {axis: grid.topology.degree(axis) for axis in ("pp", "sharding", "mp")}
    # Each sharding stage divides the optimizer's state in another way.
    return {**degrees, _STAGE: grid.sharding_stage} if degrees["sharding"] > 1 else degrees


def _format_degrees(degrees: Mapping[str, Any]) -> str:
    stage = f" in {_STAGE} {degrees[_STAGE]}" if _STAGE in degrees else ""
    axes = (f"{axis} {degree}" for axis, degree in degrees.items() if axis != _STAGE)
    return " x ".join(axes) + stage


def _write(arrays: Arrays, path: Path) -> None:
    save_file(arrays, path)
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _parse_state(text: str) -> dict[str, Any]:
    document = json.loads(text)
    expected = {"step": int, "samples": int, "scaler": dict, "schedule": dict, "grid": dict}
    for key, kind in expected.items():
        value = document.get(key) if isinstance(document, dict) else None
        if type(value) is not kind:
            raise ValueError(f"state.json: {key}: {value!r}: expected {kind.__name__}")
    return {key: document[key] for key in expected}


def _optimizer_state(arrays: Arrays, model: nn.Layer) -> dict[str, Any]:
    """Return the optimizer's state for Paddle: named after this process's names of parameters.

    Float32 copies of low-precision parameters are under ``master_weights``; without copies, that
    key is missing.
    """
    names = {name: param.name for name, param in parameters(model)}
    state: dict[str, Any] = {}
    masters: dict[str, Any] = {}
    for key, array in arrays.items():
        own = key[len(_MASTER) :] if key.startswith(_MASTER) else key
        tensor = paddle.to_tensor(array)
        tensor.name = _rename(own, names)  # Paddle finds the moments of a master by its name
        if own is key:
            state[tensor.name] = tensor
        else:
            prefix = _slice_prefix(own)
            masters[prefix + names[_parameter(own[len(prefix) :], names)]] = tensor
    return {**state, "master_weights": masters} if masters else state


def _rename(key: str, names: Mapping[str, str]) -> str:
    """Return a tensor's name with the parameter's name inside it replaced.

    Paddle numbers parameters in the order of creation (``linear_3.w_0_moment1_0``), so its names
    differ between processes. A checkpoint uses the model's names, which all processes share
    (``blocks.1.mlp.up.weight_moment1_0``).
    """
    prefix = _slice_prefix(key)
    parameter = _parameter(key[len(prefix) :], names)
    return prefix + names[parameter] + key[len(prefix) + len(parameter) :]


def _slice_prefix(key: str) -> str:
    return SLICE if key.startswith(SLICE) else ""


def _parameter(key: str, names: Mapping[str, str]) -> str:
    """Return the name of the parameter that a tensor belongs to: the longest name that fits."""
    # Group sharding gives the float32 copy of a parameter the same name as the parameter.
    candidates = [name for name in names if key == name or key.startswith(f"{name}_")]
    if not candidates:
        raise ValueError(f"{key}: no such parameter")
    return max(candidates, key=len)


def _arrays(tensors: Mapping[str, Any]) -> Arrays:
    return {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in tensors.items()}


def _check_model(
    folder: Path, own: Mapping[str, paddle.Tensor], weights: Arrays, grid: Grid
) -> None:
    expected = {name: _type_and_shape(param) for name, param in own.items()}
    saved = {name: _type_and_shape(array) for name, array in weights.items()}
    names = {*expected, *saved}
    differing = sorted(name for name in names if expected.get(name) != saved.get(name))
    if differing:
        name = differing[0]
        model = "model or virtual_pp_degree" if grid.topology.degree("pp") > 1 else "model"
        raise InputError(
            f"{folder}: a checkpoint of another {model}: {len(differing)} tensors differ, the first "
            f"{name}: {saved.get(name, 'missing')} saved, {expected.get(name, 'none')} in the config"
        )


def _type_and_shape(tensor: Any) -> str:
    """Return data type and shape as text, such as ``float32 [256, 64]``.

    uint16 becomes bfloat16: NumPy has no bfloat16, so Paddle's bfloat16 tensors are uint16 there.
    """
    dtype = str(tensor.dtype).replace("paddle.", "").replace("uint16", "bfloat16")
    return f"{dtype} {list(tensor.shape)}"
