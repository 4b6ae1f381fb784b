"""Thin adapters of `ppprof.attach` to other training loops. This package imports no framework.

- `ppprof.integrations.script`: an unmodified script (``tools/attach.py``)
- `ppprof.integrations.paddle_model`: ``paddle.Model.fit``
- `ppprof.integrations.paddlenlp`, `ppprof.integrations.paddleformers`, `ppprof.integrations.paddlefleet`: their ``Trainer``
"""
