"""Data of every step, recorded or not: times, sizes, scalars, and their summary."""
