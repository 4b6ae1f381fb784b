"""Record a window: Paddle's profiler, additional spans, raw captures and disk space."""
