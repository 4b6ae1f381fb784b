"""The nine summary tables of Paddle's profiler, of one rank or of several ranks together."""
