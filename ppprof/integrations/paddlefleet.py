"""PaddleFleet: ``Trainer(..., callbacks=[PpprofCallback(block)])``."""

from __future__ import annotations

from paddlefleet.trainer import TrainerCallback

from ppprof.integrations.callback import TrainerHooks


class PpprofCallback(TrainerHooks, TrainerCallback):  # type: ignore[misc]
    """Records the training of PaddleFleet's ``Trainer``; see `TrainerHooks`."""
