"""The module of each gradient in a backward pass: the one whose forward created it."""

from __future__ import annotations

import numpy as np
import polars as pl

from ppprof.analysis.profile.event_tree import Tree
from ppprof.arrays import Bool, Int64

_MAX_ORDER = 100
"""How many times a gradient can be a gradient of another gradient."""


def modules_of_gradients(tree: Tree, forward: pl.Series, is_module: Bool) -> Int64:
    """Return the module in which the forward of each gradient ran.

    ::

        Net                  ############           module
          Linear               ######               module
            addmm               ####
        Backward                            #####   module
          AddmmBackward                      ###    forward: addmm, so its module is Linear

    If the forward ran in a gradient itself (a gradient of a gradient), its module counts.

    Args:
        tree: of a window with N host events.
        forward: the column of `ppprof.trace.schema.EVENTS`, shape (N,) or more.
        is_module: shape (N,).

    Returns:
        Row of the module, which begins before the gradient. -1 for other events, for gradients
        outside any Backward, and for gradients whose forward ran in no module, or only in modules
        that contain the Backward. Shape (N,).
    """
    size = tree.size
    forward_row = forward.slice(0, len(size)).fill_null(-1).to_numpy()
    category = tree.hosts["category"]
    is_backward = (category == "Backward").to_numpy() & is_module
    is_step = (category == "ProfileStep").to_numpy()
    start = tree.hosts["start_ns"].to_numpy()
    parent = tree.hosts["parent"].fill_null(-1).to_numpy()
    backward = tree.enclosing(is_backward)  # a Backward with a link is not a gradient itself
    # An event in a gradient with the same forward is part of that gradient.
    is_gradient = (forward_row >= 0) & (forward_row < len(size)) & (backward >= 0)
    is_gradient &= (parent < 0) | (forward_row[parent] != forward_row)
    is_gradient &= ~is_step  # damaged traces link steps, too
    rows = np.flatnonzero(is_gradient)
    rows = rows[start[forward_row[rows]] < start[rows]]
    is_gradient = np.zeros(len(size), bool)
    is_gradient[rows] = True
    enclosing = tree.innermost(np.flatnonzero(is_module | is_gradient))
    module = enclosing[forward_row[rows]]
    for _ in range(_MAX_ORDER):
        unresolved = np.flatnonzero((module >= 0) & is_gradient[module])
        if not len(unresolved):
            break
        module[unresolved] = enclosing[forward_row[module[unresolved]]]
    is_valid = (module >= 0) & ~is_gradient[module] & ~is_backward[module] & ~is_step[module]
    is_valid &= (backward[rows] < module) | (backward[rows] > module + size[module])
    modules = np.full(len(size), -1, np.int64)
    modules[rows[is_valid]] = module[is_valid]
    return modules
