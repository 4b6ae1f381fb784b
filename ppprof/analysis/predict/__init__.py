"""The step time and memory of a configuration that was not run."""
