"""Recording a window: Paddle's profiler, spans of our own, files and disk space."""
