"""Mixed precision for the reference harness, as ``Engine.mix_precision`` sets it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle
from paddle.distributed import fleet

from ppprof.config import Config


class Amp:
    """Mixed precision on a GPU. On a CPU the methods change nothing.

    Paddle's CPU build accepts the settings but ignores them; ``notes`` holds a warning if so.
    """

    def __init__(self, config: Config) -> None:
        mix = config.Engine.mix_precision
        is_requested = mix.enable or mix.use_pure_fp16
        self._mix = mix
        self._level = mix.level.upper()
        self._is_enabled = is_requested and config.Global.device != "cpu"
        self.scaler: Any = None
        """The gradient scaler; None unless gradients are float16."""
        if self._is_enabled and mix.dtype == "float16":
            self.scaler = paddle.amp.GradScaler(init_loss_scaling=mix.scale_loss)
            if config.topology.world_size > config.topology.degree("dp"):
                self.scaler = fleet.distributed_scaler(self.scaler)
        self.notes: tuple[str, ...] = ()
        if is_requested and not self._is_enabled:
            self.notes = (
                f"Engine.mix_precision: {mix.dtype} {self._level} has no effect: Paddle's CPU build "
                "computes in float32",
            )

    def decorate(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        """Return model and optimizer, prepared for level O2; unchanged at any other level.

        With O2, the parameters have low precision, and the optimizer keeps float32 copies.
        """
        if self._is_enabled and self._level == "O2":
            model, optimizer = paddle.amp.decorate(
                model, optimizer, level="O2", dtype=self._mix.dtype
            )
        return model, optimizer

    def cast(self) -> Any:
        """Return the context manager for a forward pass; it does nothing without mixed precision."""
        if not self._is_enabled:
            return contextlib.nullcontext()
        return paddle.amp.auto_cast(
            True,
            custom_white_list=self._mix.custom_white_list,
            custom_black_list=self._mix.custom_black_list,
            level=self._level,
            dtype=self._mix.dtype,
        )

    def scale(self, loss: paddle.Tensor) -> paddle.Tensor:
        """Return the loss, scaled if gradients are float16, else unchanged."""
        return self.scaler.scale(loss) if self.scaler else loss

    def step(self, optimizer: Any) -> None:
        """Step the optimizer; skip the step if a scaled gradient has overflowed.

        Also update the scale of the gradient scaler, if there is one.
        """
        if self.scaler:
            self.scaler.step(optimizer)
            self.scaler.update()
        else:
            optimizer.step()

    def state(self) -> dict[str, Any]:
        """Return the gradient scaler's state as values for JSON; empty without a scaler."""
        if not self.scaler:
            return {}
        return {
            key: value.item() if hasattr(value, "item") else value
            for key, value in self.scaler.state_dict().items()
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the gradient scaler from a result of `state`.

        Does nothing if ``state`` is empty or if this run has no scaler.
        """
        if state and self.scaler:
            scale = np.array([state["scale"]], np.float32)
            self.scaler.load_state_dict({**state, "scale": scale})
