"""Events of one window, taken apart: the tree with costs, intervals, steps and communication."""
