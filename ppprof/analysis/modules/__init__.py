"""The modules of a step as a tree, forward and backward."""
