"""The library: open a run directory and compute its tables; one module for each command."""
