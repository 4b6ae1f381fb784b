"""PaddleFormers: ``Trainer(..., callbacks=[PpprofCallback(block)])``."""

from __future__ import annotations

from paddleformers.trainer import TrainerCallback

from ppprof.integrations.callback import TrainerHooks


class PpprofCallback(TrainerHooks, TrainerCallback):  # type: ignore[misc]
    """Records the training of PaddleFormers' ``Trainer``; see `TrainerHooks`."""
