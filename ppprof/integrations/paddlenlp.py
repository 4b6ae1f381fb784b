"""PaddleNLP: ``Trainer(..., callbacks=[PpprofCallback(block)])``."""

from __future__ import annotations

from paddlenlp.trainer import TrainerCallback

from ppprof.integrations.trainer import TrainerHooks


class PpprofCallback(TrainerHooks, TrainerCallback):  # type: ignore[misc]
    """A callback that records the training of PaddleNLP's ``Trainer``; see `TrainerHooks`."""
