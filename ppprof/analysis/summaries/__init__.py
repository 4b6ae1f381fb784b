"""The nine tables of Paddle's profiler, of one rank or over ranks."""
