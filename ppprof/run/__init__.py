"""The library: open a run directory and ask it; one module for each command."""
