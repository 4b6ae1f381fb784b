"""Mixed precision."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle
from paddle.distributed import fleet

from ppprof.config import Config


class Amp:
    """Mixed precision on GPU; on CPU, where Paddle takes the settings and ignores them, nothing."""

    def __init__(self, config: Config) -> None:
        mix = config.Engine.mix_precision
        wanted = mix.enable or mix.use_pure_fp16
        self._mix = mix
        self._level = mix.level.upper()
        self._on = wanted and config.Global.device != "cpu"
        self.scaler: Any = None
        """Scales the loss where gradients are float16, else None."""
        if self._on and mix.dtype == "float16":
            self.scaler = paddle.amp.GradScaler(init_loss_scaling=mix.scale_loss)
            if config.topology.world_size > config.topology.degree("dp"):
                self.scaler = fleet.distributed_scaler(self.scaler)
        self.notes: tuple[str, ...] = ()
        if wanted and not self._on:
            self.notes = (
                f"Engine.mix_precision: Paddle's CPU build computes in float32 whatever the "
                f"setting ({mix.dtype} {self._level}); so does this run",
            )

    def decorate(self, model: Any, optimizer: Any) -> tuple[Any, Any]:
        """O2 keeps the parameters in the short type and the optimizer's copies in float32."""
        if self._on and self._level == "O2":
            model, optimizer = paddle.amp.decorate(
                model, optimizer, level="O2", dtype=self._mix.dtype
            )
        return model, optimizer

    def cast(self) -> Any:
        """The context of a forward pass."""
        if not self._on:
            return contextlib.nullcontext()
        return paddle.amp.auto_cast(
            True,
            custom_white_list=self._mix.custom_white_list,
            custom_black_list=self._mix.custom_black_list,
            level=self._level,
            dtype=self._mix.dtype,
        )

    def scale(self, loss: paddle.Tensor) -> paddle.Tensor:
        """The loss, scaled where gradients are float16."""
        return self.scaler.scale(loss) if self.scaler else loss

    def step(self, optimizer: Any) -> None:
        """The optimizer's step, left out where a scaled gradient overflowed."""
        if self.scaler:
            self.scaler.step(optimizer)
            self.scaler.update()
        else:
            optimizer.step()

    def state(self) -> dict[str, Any]:
        """What a resumed run needs of it."""
        if not self.scaler:
            return {}
        return {
            key: value.item() if hasattr(value, "item") else value
            for key, value in self.scaler.state_dict().items()
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`."""
        if state and self.scaler:
            scale = np.array([state["scale"]], np.float32)
            self.scaler.load_state_dict({**state, "scale": scale})
