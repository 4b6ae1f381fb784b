"""The gradient all-reduces of ``paddle.DataParallel``, which record no event on a CPU.

Its reducer runs in C++, as a hook of the last gradient of each group of parameters. It copies the
group into one tensor, divides that by the number of ranks, and reduces it over gloo::

    Global_GradNodeAccumulation      ############################
      empty kernel launch             #
      scale kernel launch                ##
    (the all-reduce, no event)             #####################

Only the reducer divides inside such a node without an operator of its own around the division. If
several groups are ready, one node reduces them one after another.

Source: EagerReducer::FusedAllReduceSchedule, paddle/fluid/distributed/collective/reducer.cc.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from ppprof.analysis.profile.event_tree import Tree
from ppprof.analysis.profile.intervals import Intervals
from ppprof.arrays import Array

DATA_PARALLEL = "DataParallel"
"""Name of these all-reduces."""
DATA_PARALLEL_AXIS = "dp"
"""Their axis."""

_NODE = re.compile(r"(^|_)gradnodeaccumulation\Z")
"""In lower case."""
_DIVISION = re.compile(r"^scale (kernel launch|compute)\Z")
"""The kernel that divides, in Paddle 3 and in Paddle 2."""


def hidden_reductions(tree: Tree) -> tuple[Array, Intervals]:
    """Return the gradient all-reduces that no event shows.

    The times include the wait for the slowest rank, and the copies back into the gradients.

    Returns:
        The row of the node in ``tree.hosts`` for each all-reduce, ascending, and their intervals.
        Each begins where a division ends and ends where the next event of the node begins, or the
        node ends. All arrays are empty for a trace with device events, in which the all-reduces are
        kernels.
    """
    events, none = tree.events, np.empty(0, np.int64)
    if events.has_devices:
        return none, (none, none)
    operators = events.host_rows("Operator")
    is_node = np.zeros(events.num_hosts + 1, bool)  # the last one stands for "no parent"
    is_node[operators[events.names.take(operators).where(_matches(_NODE))]] = True
    parent = events.parent[: events.num_hosts]
    inside = np.flatnonzero(is_node[parent])
    inside = inside[np.lexsort((events.start_ns[inside], parent[inside]))]
    node = parent[inside]
    start_ns, until_ns = events.ends(inside), events.ends(node)
    is_followed = np.flatnonzero(node[1:] == node[:-1])
    next_ns = events.start_ns[inside[is_followed + 1]]
    until_ns[is_followed] = np.minimum(next_ns, until_ns[is_followed])
    is_division = events.names.take(inside).where(_matches(_DIVISION))
    chosen = is_division & (start_ns < until_ns)
    return node[chosen], (start_ns[chosen], until_ns[chosen])


def _matches(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda name: pattern.search(name.lower()) is not None
