"""Comparison of two runs: operators, modules, significance, thresholds."""
