"""Which module each piece of a backward pass belongs to: the one whose forward made it."""

from __future__ import annotations

import numpy as np
import polars as pl

from ppprof.analysis.profile.event_tree import Tree
from ppprof.arrays import Bool, Int64

_LONGEST = 100
"""How often a gradient may be of what another gradient did."""


def modules_of_gradients(tree: Tree, forward: pl.Series, is_module: Bool) -> Int64:
    """The module in which what an event is the gradient of ran.

    ::

        Net                  ############           module
          Linear               ######               module
            addmm               ####
        Backward                            #####   module
          AddmmBackward                      ###    forward: addmm, so of Linear

    What ran in a gradient itself, as that of a gradient does, belongs to that one's module.

    Args:
        tree: of a window with N host events.
        forward: of `ppprof.trace.schema.EVENTS`, shape (N,) or more.
        is_module: shape (N,).

    Returns:
        Row of the module, which begins before the gradient does; -1 for all else, for a gradient
        in no Backward, and for one whose forward ran in no module but such as hold the Backward as
        well. Shape (N,).
    """
    size = tree.size
    of = forward.slice(0, len(size)).fill_null(-1).to_numpy()
    category = tree.hosts["category"]
    is_backward = (category == "Backward").to_numpy() & is_module
    start = tree.hosts["start_ns"].to_numpy()
    parent = tree.hosts["parent"].fill_null(-1).to_numpy()
    backward = tree.enclosing(is_backward)  # a Backward with a link is no gradient of its own
    # What is inside a gradient and says so of itself, too, is a part of it.
    is_gradient = (of >= 0) & (of < len(size)) & (backward >= 0)
    is_gradient &= (parent < 0) | (of[parent] != of)
    is_gradient &= (category != "ProfileStep").to_numpy()  # damaged traces link steps as well
    rows = np.flatnonzero(is_gradient)
    rows = rows[start[of[rows]] < start[rows]]
    is_gradient = np.zeros(len(size), bool)
    is_gradient[rows] = True
    holder = tree.innermost(np.flatnonzero(is_module | is_gradient))
    at = holder[of[rows]]
    for _ in range(_LONGEST):
        again = np.flatnonzero((at >= 0) & is_gradient[at])
        if not len(again):
            break
        at[again] = holder[of[at[again]]]
    is_told = (at >= 0) & ~is_gradient[at] & ~is_backward[at]
    is_told &= (category != "ProfileStep").to_numpy()[at]
    is_told &= (backward[rows] < at) | (backward[rows] > at + size[at])
    found = np.full(len(size), -1, np.int64)
    found[rows[is_told]] = at[is_told]
    return found
