"""Thin adapters of `ppprof.attach` to loops that are not ours; imports none of their frameworks.

- `ppprof.integrations.script`: a script that knows nothing of ppprof (``tools/attach.py``)
- `ppprof.integrations.paddle_model`: ``paddle.Model.fit``
- `ppprof.integrations.paddlenlp`, `ppprof.integrations.paddleformers`: their ``Trainer``
"""
