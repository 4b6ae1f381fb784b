"""The reference harness: a GPT that trains for real, so that the profiler has something to show."""
