"""PaddleFleet: ``Trainer(..., callbacks=[PpprofCallback(block)])``."""

from __future__ import annotations

from paddlefleet.trainer import TrainerCallback

from ppprof.integrations.callback import TrainerHooks


class PpprofCallback(TrainerHooks, TrainerCallback):  # type: ignore[misc]
    """A callback that records the training of PaddleFleet's ``Trainer``.

    The ``Trainer`` calls its methods, which open a session, end steps and close the session. They
    are defined in `TrainerHooks`.

    Args:
        profiler: the ``Profiler`` block: a `ppprof.config.ProfilerConfig`, a mapping, or the path
            of a YAML file.

    Raises:
        ConfigError: the block is invalid.
    """
