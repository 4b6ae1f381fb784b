"""`span`: a named part of a step, marked in the training's code."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import cast


def span(name: str) -> AbstractContextManager[object]:
    """Mark a part of a step: it is recorded as a span in a window, and does nothing outside one.

        with ppprof.span("augment"):
            batch = augment(batch)

    The span appears in the table of UserDefined spans (``summary.udf``), in the timeline, and in
    the module tree that ``ppprof diff`` compares. Exit it on the thread that entered it.

    Args:
        name: of the span; the same in every step.

    Returns:
        A context manager, which is Paddle's own ``RecordEvent``.
    """
    from paddle.profiler import RecordEvent

    return cast("AbstractContextManager[object]", RecordEvent(name))
