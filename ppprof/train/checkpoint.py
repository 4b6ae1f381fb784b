"""Save and resume: tensors as safetensors, the rest as JSON; nothing that a reader would run.

A checkpoint is a directory ``step_00000020`` with ``model.safetensors``,
``optimizer.safetensors`` and ``state.json``. It appears under its name when it is complete.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import paddle
from paddle import nn
from safetensors.numpy import load_file, save_file

from ppprof.errors import InputError

Arrays = dict[str, npt.NDArray[Any]]


def save(folder: Path, step: int, model: nn.Layer, optimizer: Any, state: dict[str, Any]) -> Path:
    """Writes a checkpoint after ``step`` steps; returns where."""
    target = folder / f"step_{step:08d}"
    hidden = folder / f".{target.name}.{os.getpid()}"
    hidden.mkdir(parents=True)
    save_file(_arrays(model.state_dict()), hidden / "model.safetensors")
    tensors, others = _optimizer_state(model, optimizer)
    save_file(_arrays(tensors), hidden / "optimizer.safetensors")
    document = {"step": step, "optimizer": others, **state}
    (hidden / "state.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    if target.exists():
        shutil.rmtree(target)
    hidden.replace(target)
    return target


def load(folder: Path, model: nn.Layer, optimizer: Any) -> dict[str, Any]:
    """Puts a checkpoint into model and optimizer; returns its state, ``step`` included.

    Raises:
        InputError: not a checkpoint, or one of another model.
    """
    try:
        state: dict[str, Any] = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        weights = load_file(folder / "model.safetensors")
        moments = load_file(folder / "optimizer.safetensors")
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: not a checkpoint: {error}") from error
    _check_shapes(folder, model, weights)
    model.set_state_dict(weights)
    optimizer.set_state_dict({**_renamed_back(model, moments), **state["optimizer"]})
    return state


def _optimizer_state(model: nn.Layer, optimizer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors under names that do not depend on how many layers the process made before."""
    tensors: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for key, value in optimizer.state_dict().items():
        if isinstance(value, paddle.Tensor):
            tensors[_swap_prefix(key, _structured_names(model))] = value
        elif key == "master_weights":
            names = _structured_names(model)
            tensors.update({f"master:{names[name]}": tensor for name, tensor in value.items()})
        else:
            others[key] = value
    return tensors, others


def _renamed_back(model: nn.Layer, moments: Arrays) -> dict[str, Any]:
    names = {structured: name for name, structured in _structured_names(model).items()}
    masters = {
        names[key.partition(":")[2]]: paddle.to_tensor(value)
        for key, value in moments.items()
        if key.startswith("master:")
    }
    found: dict[str, Any] = {
        _swap_prefix(key, names): paddle.to_tensor(value)
        for key, value in moments.items()
        if not key.startswith("master:")
    }
    return {**found, "master_weights": masters} if masters else found


def _structured_names(model: nn.Layer) -> dict[str, str]:
    """Paddle's running names (``linear_3.w_0``) to the model's own (``blocks.1.mlp.up.weight``)."""
    return {param.name: name for name, param in model.named_parameters()}


def _swap_prefix(key: str, names: dict[str, str]) -> str:
    """``linear_3.w_0_moment1_0`` and ``blocks.1.mlp.up.weight_moment1_0``: one to the other."""
    own = max((name for name in names if key.startswith(f"{name}_")), key=len)
    return names[own] + key[len(own) :]


def _arrays(tensors: dict[str, Any]) -> Arrays:
    return {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in tensors.items()}


def _check_shapes(folder: Path, model: nn.Layer, weights: Arrays) -> None:
    wanted = {name: list(param.shape) for name, param in model.state_dict().items()}
    found = {name: list(array.shape) for name, array in weights.items()}
    differing = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
    if differing:
        name = differing[0]
        raise InputError(
            f"{folder}: a checkpoint of another model: {len(differing)} tensors differ, the first "
            f"{name}: {found.get(name, 'missing')} saved, {wanted.get(name, 'none')} in the config"
        )
