"""`span`: a piece of a step, marked and named by its author."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import cast


def span(name: str) -> AbstractContextManager[object]:
    """Marks a piece of a step: in a window it is a span of its own, outside one nothing.

        with ppprof.span("augment"):
            batch = augment(batch)

    It is in the table of UserDefined spans (``summary.udf``), in the timeline, and in the tree of
    modules that ``ppprof diff`` compares. To be left on the thread that entered it.

    Args:
        name: what it is called; the same in every step.

    Returns:
        A context manager, which is Paddle's own ``RecordEvent``.
    """
    from paddle.profiler import RecordEvent

    return cast("AbstractContextManager[object]", RecordEvent(name))
