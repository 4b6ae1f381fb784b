"""Recording a training run: config in, run directory out."""

from ppprof.capture.attach import attach

__all__ = ["attach"]
