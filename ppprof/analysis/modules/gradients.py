"""The module of each gradient in a backward pass: the module whose forward created the gradient."""

from __future__ import annotations

import numpy as np
import polars as pl

from ppprof.analysis.profile.event_tree import Tree
from ppprof.arrays import Bool, Int64

_MAX_ORDER = 100
"""Maximum order of a gradient: a gradient of a gradient has order 2. Higher orders have no
module."""


def modules_of_gradients(tree: Tree, forward: pl.Series, is_module: Bool) -> Int64:
    """Return the module in which the forward of each gradient ran.

    ::

        Net                  ############           module
          Linear               ######               module
            addmm               ####
        Backward                            #####   module
          AddmmBackward                      ###    forward: addmm, so its module is Linear

    If the forward ran in another gradient, the module of that gradient is returned.

    Args:
        tree: the event tree of a window with N host events.
        forward: the column forward of `ppprof.trace.schema.EVENTS`, shape (N,) or more.
        is_module: whether each host event is a module, shape (N,).

    Returns:
        For each host event, the row of the module; shape (N,). -1 for events that are no gradients,
        for gradients outside any Backward, for gradients whose forward does not begin before them,
        and for gradients whose forward ran in no module or only in modules that contain the
        Backward.
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
