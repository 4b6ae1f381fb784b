"""`span`: a named part of a step, marked in the training's code."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import cast


def span(name: str) -> AbstractContextManager[object]:
    """Mark a part of a step as a span. The span is recorded in a window; outside it has no effect.

        with ppprof.span("augment"):
            batch = augment(batch)

    The span appears in the table of UserDefined spans (``summary.udf``), in the timeline, and in
    the module tree that ``ppprof diff`` compares. Exit the span on the thread that entered it.

    Args:
        name: name of the span; use the same name in every step.

    Returns:
        Paddle's ``RecordEvent``, a context manager.
    """
    from paddle.profiler import RecordEvent

    return cast("AbstractContextManager[object]", RecordEvent(name))
