"""PaddleNLP: ``Trainer(..., callbacks=[PpprofCallback(block)])``."""

from __future__ import annotations

from paddlenlp.trainer import TrainerCallback

from ppprof.integrations.trainer import TrainerHooks


class PpprofCallback(TrainerHooks, TrainerCallback):  # type: ignore[misc]
    """`TrainerHooks` as a callback of PaddleNLP."""
