"""The modules of a step as a tree: what ran in which, how often, for how long.

A module is a Forward event (``nn.Layer``, ``nn.Module``), a span of the user's, or one of the other
pieces of a step: Dataloader, Backward, Optimization. Steps are laid over one another: the second
``Block`` in the first ``GPTModel`` of a step is one node of all steps.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from ppprof.analysis.profile import Profile
from ppprof.trace.forest import subtree_sums

Int64 = npt.NDArray[np.int64]

MODULES = {
    "path": pl.String,
    "step": pl.Int64,
    "start_ns": pl.Int64,
    "time_ns": pl.Int64,
    "self_ns": pl.Int64,
    "cpu_ns": pl.Int64,
    "gpu_ns": pl.Int64,
}

SEPARATOR = "\x1f"
"""Between the nodes of a path."""
OCCURRENCE = "\x1e"
"""In a node, between its name and which one of that name it is within its parent."""

_PIECES = ("Forward", "Backward", "Optimization", "Dataloader", "PythonUserDefined")
_PHASES = ("Backward", "Optimization", "Dataloader")
"""Pieces that are named by what they are: frameworks have other names for them."""
_DEEPEST = 100
"""Levels of modules; what lies deeper is part of the last one."""


def modules(profile: Profile, step: pl.Series) -> pl.DataFrame:
    r"""One rank's modules, step by step.

    ::

        ProfileStep#3  #############################
          GPT           ##########
            Block        ###  ####                    Block, Block: two nodes
          Backward                 ######

    Args:
        profile: a window.
        step: of each event of the trace; events of no step are left out.

    Returns:
        Columns of `MODULES`; no row of the step itself where the trace has no ProfileStep. ``path``: names from the outermost on, each with its number among
        those of its name in its parent, ``GPT\x1e0\x1fBlock\x1e1``; empty for the step itself.
        start_ns: since the step began. cpu_ns: how long it was; gpu_ns: kernels, copies and sets
        launched in it. self_ns: what of it lies in no module below, in device time where anything
        is launched in the module, else in CPU time; of the step itself, the *unknown*. time_ns is
        the sum of self_ns over the module and all below it.

    Source: "critical path time" of PyTorch's RFC for differentiating runs (pytorch/kineto issue
    342): GPU time for GPU work, CPU time for CPU work.
    """
    tree, hosts = profile.tree, profile.tree.hosts
    step_of = step.slice(0, hosts.height).to_numpy()
    is_step = (hosts["category"] == "ProfileStep").to_numpy()
    has_name = hosts["name"].cast(pl.String).str.contains("#remote_op: ", literal=True).not_()
    is_piece = hosts["category"].is_in(_PIECES).to_numpy() & has_name.to_numpy()
    known = ~np.isnan(step_of.astype(float))
    is_node = (is_piece | is_step) & known
    is_node &= _depths(np.flatnonzero(is_node), tree.size) < _DEEPEST
    above = tree.enclosing(is_node)
    gpu_ns = hosts["device_ns"].to_numpy()
    own_ns = np.where(
        gpu_ns > 0, tree.own("device_ns", is_node, above), tree.own("cpu_ns", is_node, above)
    )
    # Paddle calls its loader by the class, which depends on the number of workers.
    category = hosts["category"].cast(pl.String)
    names = pl.select(
        pl.when(category.is_in(_PHASES)).then(category).otherwise(hosts["name"].cast(pl.String))
    ).to_series()
    rows = np.flatnonzero(is_node)
    if not len(rows):
        return pl.DataFrame(schema=MODULES)
    at = pl.DataFrame(
        {
            "row": rows,
            "above": above[rows],
            "step": step_of[rows].astype(np.int64),
            "is_step": is_step[rows],
            "name": names.gather(rows),
            "start_ns": hosts["start_ns"].gather(rows),
            "cpu_ns": hosts["cpu_ns"].gather(rows),
            "gpu_ns": hosts["device_ns"].gather(rows),
            "self_ns": own_ns[rows],
            "time_ns": subtree_sums(np.where(is_node, own_ns, 0), tree.size)[rows],
        }
    )
    begun = at.filter("is_step").group_by("step").agg(begin_ns=pl.col("start_ns").min())
    at = at.join(begun, on="step", how="left", maintain_order="left").with_columns(
        start_ns=pl.col("start_ns") - pl.coalesce("begin_ns", "start_ns")
    )
    return _with_paths(at).select(*MODULES)


def _depths(rows: Int64, size: Int64) -> Int64:
    """How many of some host events lie above each one, shape (hosts,)."""
    change = np.zeros(len(size) + 1, np.int64)
    np.add.at(change, rows + 1, 1)  # in pre-order all that lies in an event follows it
    np.add.at(change, rows + size[rows] + 1, -1)
    depth: Int64 = np.cumsum(change)[:-1]
    return depth


def _with_paths(at: pl.DataFrame) -> pl.DataFrame:
    """A node's path is that of the one above, its name and its number there."""
    paths: dict[int, str] = {}
    taken: dict[tuple[int, str, str], int] = {}
    texts = []
    # In pre-order: a module comes after the one that it lies in.
    for row, above, step, is_step, name in at.select(
        "row", "above", "step", "is_step", "name"
    ).iter_rows():
        if is_step:
            paths[row] = ""
        else:
            outer = paths.get(above, "")
            key = (step, outer, name)
            number = taken.get(key, 0)
            taken[key] = number + 1
            own = f"{name}{OCCURRENCE}{number}"
            paths[row] = f"{outer}{SEPARATOR}{own}" if outer else own
        texts.append(paths[row])
    return at.with_columns(path=pl.Series(texts, dtype=pl.String))
