"""The modules of a step as a tree: what ran in which, how often, for how long.

A module is a Forward event (``nn.Layer``, ``nn.Module``), a span of the user's, or one of the other
pieces of a step: Dataloader, Backward, Optimization; and in a Backward, the gradients of what ran
in a module, where the trace tells (``forward`` of `ppprof.trace.schema.EVENTS`). Steps are laid over one another: the second
``Block`` in the first ``GPTModel`` of a step is one node of all steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ppprof.analysis.modules.gradients import modules_of_gradients
from ppprof.analysis.profile.grouping import matching
from ppprof.analysis.profile.profile import Profile
from ppprof.arrays import Int64
from ppprof.trace.tree_arrays import subtree_sums

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


def modules(profile: Profile, step: pl.Series, *, attribute_backward: bool = True) -> pl.DataFrame:
    r"""One rank's modules, step by step.

    ::

        ProfileStep#3  ###################################
          GPT           ##########
            Block        ###  ####                          Block, Block: two nodes
          Backward                 ############
            GPT                     ##########              where the trace tells whose forward
              Block                  ####                   made each gradient: the second Block
              Block                      ####               the first

    Args:
        profile: a window.
        step: of each event of the trace; events of no step are left out.
        attribute_backward: whether gradients are told apart by whose forward made them, as far as the trace
            tells; else all are the Backward's.

    Returns:
        Columns of `MODULES`; no row of the step itself where the trace has no ProfileStep. ``path``:
        names from the outermost on, each with its number among those of its name in its parent,
        ``GPT\x1e0\x1fBlock\x1e1``; empty for the step itself. In a Backward, of what a module's
        forward made: the Backward's path and then that of the module, without what holds both.
        start_ns: since the step began. cpu_ns: how long it was; gpu_ns: kernels, copies and sets
        launched in it. self_ns: what of it lies in no module below, in device time where anything
        is launched in the module, else in CPU time; of the step itself, the *unknown*. time_ns is
        the sum of self_ns over the module and all below it. Gradients of one module in one Backward
        are one row of all of them, and so is what runs in them.

    Source: "critical path time" of PyTorch's RFC for differentiating runs (pytorch/kineto issue
    342): GPU time for GPU work, CPU time for CPU work.
    """
    tree, hosts = profile.tree, profile.tree.hosts
    step_of = step.slice(0, hosts.height).to_numpy()
    is_step = (hosts["category"] == "ProfileStep").to_numpy()
    is_piece = hosts["category"].is_in(_PIECES).to_numpy()
    is_piece &= ~matching(hosts["name"], "#remote_op: ").to_numpy()
    known = ~np.isnan(step_of.astype(float))
    is_node = (is_piece | is_step) & known
    is_node &= _depths(np.flatnonzero(is_node), tree.size) < _DEEPEST
    of_module = np.full(hosts.height, -1, np.int64)
    if attribute_backward and has_forward_links(profile):
        of_module = modules_of_gradients(tree, profile.trace.events["forward"], is_node)
        of_module[~known] = -1
        is_node |= of_module >= 0
    above = tree.enclosing(is_node)
    rows = np.flatnonzero(is_node)
    if not len(rows):
        return pl.DataFrame(schema=MODULES)
    at = pl.DataFrame(
        {
            "row": rows,
            "above": above[rows],
            "of_module": of_module[rows],
            "step": step_of[rows].astype(np.int64),
            "is_step": is_step[rows],
            "category": hosts["category"].gather(rows).cast(pl.String),
            "name": hosts["name"].gather(rows).cast(pl.String),
            "start_ns": hosts["start_ns"].gather(rows),
            "cpu_ns": hosts["cpu_ns"].gather(rows),
            "gpu_ns": hosts["device_ns"].gather(rows),
            "own_cpu_ns": tree.own("cpu_ns", is_node, above)[rows],
            "own_gpu_ns": tree.own("device_ns", is_node, above)[rows],
        }
    )
    # Paddle calls its loader by the class, which depends on the number of workers.
    is_phase = pl.col("category").is_in(_PHASES)
    at = at.with_columns(
        name=pl.when(is_phase).then("category").otherwise("name"),
        is_backward=pl.col("category") == "Backward",
    )
    is_inside = (of_module >= 0) | tree.below(np.flatnonzero(of_module >= 0))
    at = _with_paths(at, is_inside[rows])
    begun = at.filter("is_step").group_by("step").agg(begin_ns=pl.col("start_ns").min())
    at = at.join(begun, on="step", how="left", maintain_order="left").with_columns(
        start_ns=pl.col("start_ns") - pl.coalesce("begin_ns", "start_ns")
    )
    gradients = _gradients(at.drop_nulls("backward"))
    own_ns = np.zeros(hosts.height, np.int64)
    own_ns[rows] = np.where(_launches(at, gradients), at["own_gpu_ns"], at["own_cpu_ns"])
    plain = at.with_columns(
        self_ns=own_ns[rows], time_ns=pl.Series(subtree_sums(own_ns, tree.size)[rows])
    ).filter(pl.col("backward").is_null())
    return pl.concat([table.select(*MODULES) for table in (plain, gradients)])


def has_forward_links(profile: Profile) -> bool:
    """Whether the trace tells of any gradient what it is the gradient of."""
    forward = profile.trace.events["forward"]
    return forward.null_count() < len(forward)


def _depths(rows: Int64, size: Int64) -> Int64:
    """How many of some host events lie above each one, shape (hosts,)."""
    change = np.zeros(len(size) + 1, np.int64)
    np.add.at(change, rows + 1, 1)  # in pre-order all that lies in an event follows it
    np.add.at(change, rows + size[rows] + 1, -1)
    depth: Int64 = np.cumsum(change)[:-1]
    return depth


def _with_paths(at: pl.DataFrame, is_inside: npt.NDArray[np.bool_]) -> pl.DataFrame:
    """A node's path is that of the one above, its name and its number there.

    Args:
        at: N nodes in pre-order; reads row, above, of_module, step, is_step, is_backward, name and
            start_ns.
        is_inside: which of them are gradients of modules or run in one, shape (N,).

    Returns:
        at with path; and backward, the path of the Backward that what is inside is in, else null.
    """
    paths: dict[int, str] = {}
    origins: dict[int, str] = {}  # the same, but of the Backward and what holds it: of the forward
    backwards: dict[int, int] = {}
    taken: dict[tuple[int, str, str], int] = {}
    has_gradients = bool(is_inside.any())
    # In pre-order a module comes after the one that it lies in, by time a gradient after the module
    # whose forward made it.
    nodes = at.with_columns(is_inside=is_inside).sort(
        "is_inside", pl.when("is_inside").then("start_ns"), "row"
    )
    columns = ("row", "above", "of_module", "step", "is_step", "is_backward", "is_inside", "name")
    for row, above, module, step, is_step, is_backward, inside, name in nodes.select(
        columns
    ).iter_rows():
        outer, origin = paths.get(above, ""), origins.get(above, "")
        backwards[row] = row if is_backward and not inside else backwards.get(above, -1)
        if is_step:  # a damaged trace may have one in a gradient, where it is part of that
            outer, origin = (outer, origin) if inside else ("", "")
        elif module >= 0:
            outer, around = paths[backwards[row]], origins[backwards[row]]
            origin = origins[module]
            outer = _joined(outer, origin.removeprefix(f"{around}{SEPARATOR}"))
        elif not inside or origin.count(SEPARATOR) < _DEEPEST:
            key = (step, outer, name)
            # No number of a module whose gradients may be there, too.
            is_told = has_gradients and outer != origin
            number = taken.get(key, taken.get((step, origin, name), 0) if is_told else 0)
            taken[key] = number + 1
            own = f"{name}{OCCURRENCE}{number}"
            outer = _joined(outer, own)
            origin = origin if is_backward else _joined(origin, own)
        paths[row], origins[row] = outer, origin
    rows = at["row"].to_list()
    backward = [
        paths[backwards[row]] if inside else None for row, inside in zip(rows, is_inside.tolist())
    ]
    return at.with_columns(
        path=pl.Series([paths[row] for row in rows], dtype=pl.String),
        backward=pl.Series(backward, dtype=pl.String),
    )


def _joined(outer: str, own: str) -> str:
    return f"{outer}{SEPARATOR}{own}" if outer else own


def _gradients(inside: pl.DataFrame) -> pl.DataFrame:
    """One row a step and module with gradients: columns of `MODULES`, sums over what is below."""
    own = inside.group_by("step", "path", "backward", maintain_order=True).agg(
        pl.col("start_ns").min(), pl.col("own_cpu_ns", "own_gpu_ns").sum()
    )
    found: dict[tuple[int, str], dict[str, Any]] = {}

    def add(step: int, path: str, backward: str, start_ns: int, **values: int) -> None:
        """To the module and those that it lies in."""
        while len(path) > len(backward):
            empty = {**dict.fromkeys(MODULES, 0), "start_ns": start_ns, "step": step, "path": path}
            row = found.setdefault((step, path), empty)
            row["start_ns"] = min(row["start_ns"], start_ns)
            for name, value in values.items():
                row[name] += value
            path = path.rpartition(SEPARATOR)[0]

    for step, path, backward, start_ns, cpu_ns, gpu_ns in own.iter_rows():
        add(step, path, backward, start_ns, cpu_ns=cpu_ns, gpu_ns=gpu_ns)
    for step, path, backward, start_ns, cpu_ns, gpu_ns in own.iter_rows():
        row = found[step, path]
        row["self_ns"] = gpu_ns if row["gpu_ns"] > 0 else cpu_ns
        add(step, path, backward, start_ns, time_ns=row["self_ns"])
    return pl.DataFrame(list(found.values()), MODULES)


def _launches(at: pl.DataFrame, gradients: pl.DataFrame) -> pl.Series:
    """Whether anything is launched in each node; of a gradient: in any of its module."""
    if gradients.is_empty():
        return at["gpu_ns"] > 0
    of_module = at.join(
        gradients, on=["step", "path"], how="left", maintain_order="left", suffix="_of_module"
    )["gpu_ns_of_module"]
    is_plain = at["backward"].is_null()
    return pl.select(pl.when(is_plain).then(at["gpu_ns"]).otherwise(of_module) > 0).to_series()
