"""Coordinate ranks while they train: rank and topology, run directory, clocks, windows on demand."""
