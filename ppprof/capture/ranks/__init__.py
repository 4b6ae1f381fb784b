"""Coordination of ranks while they train: places in the job, clocks, windows on demand."""
