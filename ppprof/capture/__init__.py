"""Record a training run: `attach` takes a ``Profiler`` block and writes a run directory."""

from ppprof.capture.attach import attach

__all__ = ["attach"]
