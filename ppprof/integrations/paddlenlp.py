"""PaddleNLP: ``Trainer(..., callbacks=[PpprofCallback(block)])``."""

from __future__ import annotations

from paddlenlp.trainer import TrainerCallback

from ppprof.integrations.callback import TrainerHooks


class PpprofCallback(TrainerHooks, TrainerCallback):  # type: ignore[misc]
    """Records the training of PaddleNLP's ``Trainer``; see `TrainerHooks`."""
