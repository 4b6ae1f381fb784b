"""The trace of one window: its event tree with costs, intervals, steps, modules and communication."""
