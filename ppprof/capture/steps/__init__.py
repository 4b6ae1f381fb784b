"""Measure and write every step, recorded or not: times, sizes, scalars and the Perf Summary."""
