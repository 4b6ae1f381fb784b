"""Comparison of two runs: operators, modules, significance and thresholds."""
