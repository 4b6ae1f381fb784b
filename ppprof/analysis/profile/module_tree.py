"""The modules of a step as a tree, with calls and times.

A module is a Forward event (``nn.Layer``, ``nn.Module``), a user's span, or another piece of a
step: Dataloader, Backward, Optimization. In a Backward, the gradients of a module's operators are a
module, too, if the trace links gradients to their forward (``forward`` of
`ppprof.trace.schema.EVENTS`). Operators of a program of ``to_static`` are modules in the layer that
runs it, those of one name and their gradients one module, without its ``pd_op.``. Steps share their nodes: the second ``Block`` in the first
``GPTModel`` of a step is one node for all steps.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import polars as pl

from ppprof.analysis.profile.event_tree import Tree
from ppprof.analysis.profile.grouping import matching
from ppprof.analysis.profile.profile import Profile, once
from ppprof.arrays import Bool, Int32, Int64
from ppprof.trace.schema import OPERATOR_OF_PROGRAM, RUN_OF_PROGRAM
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
"""Separates the nodes of a path."""
OCCURRENCE = "\x1e"
"""Separates a node's name from its number, from 0, among the siblings with that name."""

_PIECES = ("Forward", "Backward", "Optimization", "Dataloader", "PythonUserDefined")
PHASES = ("Backward", "Optimization", "Dataloader")
"""Pieces that are named by their category, since frameworks name their events differently."""
MAX_DEPTH = 100
"""Maximum number of levels of modules; deeper modules are part of the last level."""


def modules(
    profile: Profile, *, attribute_backward: bool = True, flops: Int64 | None = None
) -> pl.DataFrame:
    r"""Return one rank's modules, step by step.

    ::

        ProfileStep#3  ###################################
          GPT           ##########
            Block        ###  ####                          Block, Block: two nodes
          Backward                 ############
            GPT                     ##########              if the trace links gradients:
              Block                  ####                   of the second Block
              Block                      ####               of the first Block

    Modules that run again in a Backward, to recompute what their gradients need, count as a part of
    these gradients.

    Args:
        profile: a window; events without a step are left out.
        attribute_backward: whether gradients are attributed to the module of their forward, if the
            trace links gradients to it. If False, they belong to the Backward.
        flops: a number for each host event, shape (hosts,), to be summed; None for none.

    Returns:
        Columns of `MODULES`, and flops if it is given: the sum over the module and all below it. The
        step itself is a row, unless the trace has no ProfileStep. All gradients of one module in one
        Backward are one row, with everything in them.

        - path: the names from the outermost module on, each with its number among the siblings with
          that name, ``GPT\x1e0\x1fBlock\x1e1``; empty for the step itself. For gradients of a
          module: the path of the Backward, then the path of the module without the common part;
        - step;
        - start_ns: since the start of the step (0 if the step has no ProfileStep);
        - time_ns: the sum of self_ns over the module and all modules below it;
        - self_ns: the time outside the modules below. It is device time if anything is launched in
          the module, else CPU time. For the step itself, it is the time outside all modules;
        - cpu_ns: the duration;
        - gpu_ns: the time of kernels, copies and sets launched in the module.

    Source: "critical path time" of PyTorch's RFC for differentiating runs (pytorch/kineto issue
    342): GPU time for GPU work, CPU time for CPU work.
    """
    tree, hosts = profile.tree, profile.tree.hosts
    columns = {**MODULES, "flops": pl.Int64} if flops is not None else MODULES
    nodes = module_nodes(profile, attribute_backward=attribute_backward)
    rows = nodes["row"].to_numpy()
    if not len(rows):
        return pl.DataFrame(schema=columns)
    is_node = np.zeros(hosts.height, bool)
    is_node[rows] = True
    above = tree.enclosing(is_node)
    each = flops if flops is not None else np.zeros(hosts.height, np.int64)
    flops_within = subtree_sums(each, tree.size)
    nodes = nodes.with_columns(
        cpu_ns=hosts["cpu_ns"].gather(rows),
        gpu_ns=hosts["device_ns"].gather(rows),
        own_cpu_ns=pl.Series(tree.own("cpu_ns", is_node, above)[rows]),
        own_gpu_ns=pl.Series(tree.own("device_ns", is_node, above)[rows]),
        own_flops=pl.Series(tree.own(flops_within, is_node, above)[rows]),
    )
    begins = nodes.filter("is_step").group_by("step").agg(begin_ns=pl.col("start_ns").min())
    nodes = nodes.join(begins, on="step", how="left", maintain_order="left").with_columns(
        start_ns=pl.col("start_ns") - pl.coalesce("begin_ns", "start_ns")
    )
    gradients = _gradients(nodes.drop_nulls("backward"))
    own_ns = np.zeros(hosts.height, np.int64)
    own_ns[rows] = np.where(
        _has_launches(nodes, gradients), nodes["own_gpu_ns"], nodes["own_cpu_ns"]
    )
    plain = nodes.with_columns(
        self_ns=own_ns[rows],
        time_ns=pl.Series(subtree_sums(own_ns, tree.size)[rows]),
        flops=pl.Series(flops_within[rows]),
    ).filter(pl.col("backward").is_null())
    return pl.concat([table.select(*columns) for table in (plain, gradients)])


def module_nodes(profile: Profile, *, attribute_backward: bool = True) -> pl.DataFrame:
    """Return the host events that are modules or steps, with their paths.

    Returns:
        One row per event, in pre-order: row (of `ppprof.analysis.profile.event_tree.Tree.hosts`),
        above (the row of the nearest such event above it, -1 without), gradient_of (the row of the
        module of a gradient or of a module that runs again in a Backward, else -1), step, is_step,
        is_backward, name, start_ns, repeats (whether it lies in such a module), and path and backward:
        see `modules` and `_with_paths`.
    """
    tree, hosts = profile.tree, profile.tree.hosts
    step = profile.step.slice(0, hosts.height)
    is_step = (hosts["category"] == "ProfileStep").to_numpy()
    is_node = _module_mask(profile)
    gradient_of = np.full(hosts.height, -1, np.int64)
    repeats = np.zeros(hosts.height, bool)
    if attribute_backward and has_forward_links(profile):
        gradient_of = _modules_of_gradients(tree, profile.trace.events["forward"], is_node)
        first_run = _first_runs(profile, is_node, gradient_of)
        gradient_of = np.where(first_run >= 0, first_run, gradient_of)
        repeats = tree.below(np.flatnonzero(first_run >= 0))
        gradient_of[step.is_null().to_numpy()] = -1
        is_node |= gradient_of >= 0
    above = tree.enclosing(is_node)
    rows = np.flatnonzero(is_node)
    nodes = pl.DataFrame(
        {
            "row": rows,
            "above": above[rows],
            "gradient_of": gradient_of[rows],
            "step": step.to_numpy()[rows].astype(np.int64),
            "is_step": is_step[rows],
            "is_backward": (hosts["category"].gather(rows) == "Backward"),
            "name": _module_names(hosts[rows]),
            "start_ns": hosts["start_ns"].gather(rows),
            "repeats": repeats[rows],
            "is_of_program": _in_program(profile)[rows],
        }
    )
    is_inside = (gradient_of >= 0) | tree.below(np.flatnonzero(gradient_of >= 0))
    return _with_paths(nodes, is_inside[rows])


def _module_mask(profile: Profile) -> Bool:
    """Return whether each host event is a module or a step, shape (hosts,)."""
    tree, hosts = profile.tree, profile.tree.hosts
    is_module = hosts["category"].is_in([*_PIECES, "ProfileStep"]).to_numpy()
    is_module |= _in_program(profile)
    is_module &= ~matching(hosts["name"], "#remote_op: ").to_numpy()
    is_module &= profile.step.slice(0, hosts.height).is_not_null().to_numpy()
    is_module &= _depths(np.flatnonzero(is_module), tree.size) < MAX_DEPTH
    return is_module


@once
def _in_program(profile: Profile) -> Bool:
    """Return whether each host event is an operator in the run of a program, shape (hosts,).

    Not if it runs on another thread, where it may run beside others.
    """
    names = profile.tree.hosts["name"]
    is_operator = matching(names, f"^{re.escape(OPERATOR_OF_PROGRAM)}").to_numpy()
    if not is_operator.any():
        return np.zeros(len(names), bool)
    parent = profile.tree.hosts["parent"].fill_null(-1).to_numpy()
    is_run = np.append(matching(names, f"^{RUN_OF_PROGRAM}$").to_numpy(), False)
    return np.asarray(is_operator & is_run[parent], bool)


def _module_names(hosts: pl.DataFrame) -> pl.Series:
    """Return the names of modules, strings; phases are named by their category.

    Paddle names its loader by its class, which depends on the number of workers.
    """
    category, name = pl.col("category").cast(pl.String), pl.col("name").cast(pl.String)
    name = name.str.replace(f"^{re.escape(OPERATOR_OF_PROGRAM)}(.+?)(_grad)?_?$", "$1")
    is_phase = category.is_in(PHASES)
    return hosts.select(pl.when(is_phase).then(category).otherwise(name)).to_series()


def has_forward_links(profile: Profile) -> bool:
    """Return whether the trace links any gradient to its forward."""
    forward = profile.trace.events["forward"]
    return forward.null_count() < len(forward)


def _depths(rows: Int64, size: Int32) -> Int64:
    """Return how many of ``rows`` lie above each host event, shape (hosts,)."""
    change = np.zeros(len(size) + 1, np.int64)
    np.add.at(change, rows + 1, 1)  # in pre-order, descendants follow their event
    np.add.at(change, rows + size[rows] + 1, -1)
    depth: Int64 = np.cumsum(change)[:-1]
    return depth


def _with_paths(nodes: pl.DataFrame, is_inside: Bool) -> pl.DataFrame:
    """Return the nodes with their paths: the parent's path, the name, and its sibling number.

    Returns:
        ``nodes`` with the columns path and backward: the path of the Backward around a node that is
        or lies in a gradient, null for other nodes.
    """
    paths: dict[int, str] = {}
    origins: dict[int, str] = {}  # the path in the forward, also for nodes in a Backward
    backwards: dict[int, int] = {}
    taken: dict[tuple[int, str, str], int] = {}
    has_gradients = bool(is_inside.any())
    # In pre-order, a module follows its parent; by time, a gradient follows its module.
    ordered = nodes.with_columns(is_inside=is_inside).sort(
        "is_inside", pl.when("is_inside").then("start_ns"), "row"
    )
    columns = (
        *("row", "above", "gradient_of", "step", "is_step", "is_backward", "is_inside", "name"),
        *("repeats", "is_of_program"),
    )
    for (
        *(row, above, module, step, is_step, is_backward, inside, name, repeats, is_of_program),
    ) in ordered.select(columns).iter_rows():
        outer, origin = paths.get(above, ""), origins.get(above, "")
        backwards[row] = row if is_backward and not inside else backwards.get(above, -1)
        if is_step:  # in damaged traces, a step inside a gradient is part of it
            outer, origin = (outer, origin) if inside else ("", "")
        elif module >= 0:
            outer, common = paths[backwards[row]], origins[backwards[row]]
            origin = origins[module]
            outer = join_path(outer, origin.removeprefix(f"{common}{SEPARATOR}"))
        elif not inside or origin.count(SEPARATOR) < MAX_DEPTH:
            key = (step, outer, name)
            # Do not reuse the number of a module whose gradients may be here, too.
            is_reserved = has_gradients and outer != origin and not repeats
            number = taken.get(key, taken.get((step, origin, name), 0) if is_reserved else 0)
            number = 0 if is_of_program else number
            taken[key] = number + 1
            own = f"{name}{OCCURRENCE}{number}"
            outer = join_path(outer, own)
            origin = origin if is_backward else join_path(origin, own)
        paths[row], origins[row] = outer, origin
    rows = nodes["row"].to_list()
    backward = [
        paths[backwards[row]] if inside else None for row, inside in zip(rows, is_inside.tolist())
    ]
    return nodes.with_columns(
        path=pl.Series([paths[row] for row in rows], dtype=pl.String),
        backward=pl.Series(backward, dtype=pl.String),
    )


def join_path(outer: str, own: str) -> str:
    """Return the path of a module in another one; ``outer`` is "" for none."""
    return f"{outer}{SEPARATOR}{own}" if outer else own


_PHASE = f"(^|{SEPARATOR})({'|'.join(PHASES)}){OCCURRENCE}"
_BACKWARD = f"(^|{SEPARATOR})Backward{OCCURRENCE}[0-9]+"


def with_gradients_of_modules(table: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `modules`, those of a module's gradients with the path of the module.

    ::

        Backward/Net                        Net
        train_step/Backward/Net             train_step/Net, if there is such a module
        backward/Backward/forward/Net       forward/Net

    Returns:
        ``table``, and is_phase (whether a row is or lies in one of `PHASES`), is_gradient, and
        is_backward (whether it is a Backward, outside of gradients).
    """
    path = pl.col("path")
    is_phase, is_gradient = path.str.contains(_PHASE), path.str.contains(_BACKWARD + SEPARATOR)
    around = path.str.replace(_BACKWARD + SEPARATOR, "${1}")
    own = path.str.replace(f"(?s)^.*?{_BACKWARD}{SEPARATOR}", "")
    has_no_module = ~around.is_in(table.filter(~is_phase)["path"].unique().implode())
    return table.with_columns(
        path=pl.when(is_gradient & has_no_module).then(own).otherwise(around),
        is_phase=is_phase,
        is_gradient=is_gradient,
        is_backward=~is_gradient & path.str.contains(f"{_BACKWARD}$"),
    )


def _gradients(inside: pl.DataFrame) -> pl.DataFrame:
    """Return one row per step and module with gradients, or with such modules below it.

    Columns of `MODULES`, and flops. cpu_ns, gpu_ns and flops are sums over the gradients of the
    module and of all modules below it.
    """
    own = inside.group_by("step", "path", "backward", maintain_order=True).agg(
        pl.col("start_ns").min(), pl.col("own_cpu_ns", "own_gpu_ns", "own_flops").sum()
    )
    schema = {**MODULES, "flops": pl.Int64}
    modules: dict[tuple[int, str], dict[str, Any]] = {}

    def add(step: int, path: str, backward: str, start_ns: int, **values: int) -> None:
        """Add ``values`` to the row of the module and to the rows of the modules around it."""
        while len(path) > len(backward):
            empty = {**dict.fromkeys(schema, 0), "start_ns": start_ns, "step": step, "path": path}
            row = modules.setdefault((step, path), empty)
            row["start_ns"] = min(row["start_ns"], start_ns)
            for name, value in values.items():
                row[name] += value
            path = path.rpartition(SEPARATOR)[0]

    for step, path, backward, start_ns, cpu_ns, gpu_ns, flops in own.iter_rows():
        add(step, path, backward, start_ns, cpu_ns=cpu_ns, gpu_ns=gpu_ns, flops=flops)
    for step, path, backward, start_ns, cpu_ns, gpu_ns, _ in own.iter_rows():
        row = modules[step, path]
        row["self_ns"] = gpu_ns if row["gpu_ns"] > 0 else cpu_ns
        add(step, path, backward, start_ns, time_ns=row["self_ns"])
    return pl.DataFrame(list(modules.values()), schema)


def _has_launches(nodes: pl.DataFrame, gradients: pl.DataFrame) -> pl.Series:
    """Return whether anything is launched in each node.

    For a node in a gradient: whether anything is launched in any gradient of its module.
    """
    if gradients.is_empty():
        return nodes["gpu_ns"] > 0
    module_gpu_ns = nodes.join(
        gradients, on=["step", "path"], how="left", maintain_order="left", suffix="_of_module"
    )["gpu_ns_of_module"]
    is_plain = nodes["backward"].is_null()
    return pl.select(
        pl.when(is_plain).then(nodes["gpu_ns"]).otherwise(module_gpu_ns) > 0
    ).to_series()


_MAX_ORDER = 100
"""Maximum order of a gradient: a gradient of a gradient has order 2. Higher orders have no
module."""


def _modules_of_gradients(tree: Tree, forward: pl.Series, is_module: Bool) -> Int64:
    """Return the module in which the forward of each gradient ran.

    ::

        Net                  ############           module
          Linear               ######               module
            addmm               ####
        Backward                            #####   module
          AddmmBackward                      ###    forward: addmm, so its module is Linear

    If the forward ran in another gradient, the module of that gradient is returned.

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


def _first_runs(profile: Profile, is_module: Bool, gradient_of: Int64) -> Int64:
    """Return the module that each module in a Backward repeats, to recompute it.

    ::

        Net        ###############
          Block     ######                              without gradients
          Block            ######
        Backward                  ####################
          Block                    ####                 repeats the second Block
            its gradients              ####
          Block                            ####         repeats the first Block

    What one gradient repeats has the names of as many neighbours ahead of the Backward. It is the
    latest of these that was not repeated yet, and of whose operators there are no gradients. In the
    gradient of a module (Paddle's ``use_reentrant=False``), it is the module of this name around that.

    Of several micro-batches ahead of a Backward (1F1B), it is in the one whose number the Backward has
    (`ppprof.trace.annotations`), or that other gradients of this Backward are of; else in the first
    one that is left, if all modules of the name are repeated in the step::

        Net, Net, Backward, Net, Backward, Backward        the Backwards are of the Nets in their order
    """
    tree, hosts = profile.tree, profile.tree.hosts
    category = hosts["category"]
    is_forward = (category == "Forward").to_numpy() & is_module
    backwards = np.flatnonzero((category == "Backward").to_numpy() & is_module)
    above = tree.enclosing(is_module)
    first_runs = np.full(hosts.height, -1, np.int64)
    again = np.flatnonzero(is_forward & np.isin(above, backwards))
    if not len(again):
        return first_runs
    is_linked = np.zeros(hosts.height, np.int64)
    linked = profile.trace.events["forward"].slice(0, hosts.height).drop_nulls().to_numpy()
    is_linked[linked[linked < hosts.height]] = 1
    is_first = is_forward & ~tree.below(backwards) & (subtree_sums(is_linked, tree.size) == 0)
    columns = {"above": above, "step": profile.step.slice(0, hosts.height), "is_first": is_first}
    modules = (
        hosts.select("parent", "name", "start_ns").with_columns(**columns).with_row_index("row")
    )
    # The neighbours of one module and of the next one are apart: none has the name None.
    neighbours: dict[tuple[int, str], list[list[tuple[int, str, int]]]] = {}
    firsts = modules.filter("is_first").sort("start_ns")
    batches = _MicroBatches(profile, is_module, gradient_of, firsts, modules[again])
    for (step, _), rows in firsts.group_by("step", "above", maintain_order=True):
        siblings = rows.select("row", "name", "start_ns").rows()
        for number, (_, name, _) in enumerate(siblings):
            neighbours.setdefault((step, name), []).append(siblings[number:])
    for occurrences in neighbours.values():
        occurrences.sort(key=lambda siblings: siblings[0][2])
    repeated: set[int] = set()
    gradient = tree.enclosing(gradient_of >= 0)
    groups = modules[again].sort("start_ns").group_by("above", "parent", maintain_order=True)
    for (backward, _), rows in groups:
        names, step = rows["name"].to_list(), rows["step"][0]
        inside = gradient[rows["row"][0]]
        if inside > backward:
            around = gradient_of[inside]
            while around >= 0 and hosts["name"][int(around)] != names[0]:
                around = above[around]
            first_runs[rows["row"][0]] = around
            continue
        begin_ns = hosts["start_ns"][int(backward)]
        of_batch = batches.above(int(backward), step, names[0], repeated)
        for siblings in reversed(neighbours.get((step, names[0]), [])):
            found = siblings[: len(names)]
            is_alike = [name for _, name, _ in found] == names and found[-1][2] < begin_ns
            is_alike &= of_batch is None or above[found[0][0]] in of_batch
            if is_alike and repeated.isdisjoint(row for row, _, _ in found):
                first_runs[rows["row"].to_numpy()] = [row for row, _, _ in found]
                repeated.update(row for row, _, _ in found)
                break
    return first_runs


class _MicroBatches:
    """Which modules of one name ahead of a Backward are of its micro-batch; see `_first_runs`."""

    def __init__(
        self,
        profile: Profile,
        is_module: Bool,
        gradient_of: Int64,
        firsts: pl.DataFrame,
        repeats: pl.DataFrame,
    ) -> None:
        tree, hosts = profile.tree, profile.tree.hosts
        above = tree.enclosing(is_module)
        is_step = (hosts["category"] == "ProfileStep").to_numpy()
        self._outermost = np.arange(hosts.height)
        for row in np.flatnonzero(is_module & ~is_step):  # in pre-order
            if above[row] >= 0 and not is_step[above[row]]:
                self._outermost[row] = self._outermost[above[row]]
        gradients = np.flatnonzero(gradient_of >= 0)
        of_gradients = self._outermost[gradient_of[gradients]]
        self._linked: dict[int, set[int]] = {}
        for backward, module in zip(self._outermost[above[gradients]], of_gradients):
            if backward != module:  # else of a module that runs again
                self._linked.setdefault(int(backward), set()).add(int(module))
        self._start_ns = hosts["start_ns"]
        events = profile.trace.events.select("micro_batch", "chunk").slice(0, hosts.height)
        passes = events.with_row_index("row").drop_nulls("micro_batch")
        self._passes = {row: number for row, *number in passes.iter_rows()}
        self._firsts: dict[tuple[int, str], list[tuple[int, int]]] = {}
        for step, name, row, outer in firsts.select("step", "name", "row", "above").iter_rows():
            self._firsts.setdefault((step, name), []).append((row, outer))
        counted = repeats.group_by("step", "name").len()
        self._is_complete = {
            (step, name): len(self._firsts.get((step, name), ())) == num
            for step, name, num in counted.iter_rows()
        }
        counted = repeats.group_by("above", "name").len()
        self._num = {(row, name): num for row, name, num in counted.iter_rows()}
        self._known: dict[tuple[int, str], set[int] | None] = {}

    def above(self, backward: int, step: int, name: str, repeated: set[int]) -> set[int] | None:
        """Return the modules around those that the Backward repeats; None if any may be.

        ``repeated`` are the modules that it and earlier ones have repeated.
        """
        key = backward, name
        if key not in self._known:
            self._known[key] = self._find(*key, step, repeated)
        return self._known[key]

    def _find(self, backward: int, name: str, step: int, repeated: set[int]) -> set[int] | None:
        begin_ns = self._start_ns[backward]
        left = [
            (row, outer)
            for row, outer in self._firsts.get((step, name), ())
            if row not in repeated and self._start_ns[row] < begin_ns
        ]
        linked = self._linked.get(backward, set())
        if number := self._passes.get(backward):
            outermost = {int(self._outermost[row]) for row, _ in left}
            linked = {row for row in outermost if self._passes.get(row) == number} or linked
        of_linked = {outer for row, outer in left if self._outermost[row] in linked}
        every = dict.fromkeys(outer for _, outer in left)
        if 0 < len(of_linked) < len(every):
            return of_linked
        if not self._is_complete.get((step, name)):
            return None
        found: set[int] = set()
        num = 0
        for outer in every:
            if num < self._num[backward, name]:
                found.add(outer)
                num += sum(each == outer for _, each in left)
        return found


UNKNOWN = "(unknown)"
"""The name of a gap: the time of a step before, between or after its outermost modules."""


def gaps(profile: Profile) -> pl.DataFrame:
    r"""Return the time of one rank's steps outside all modules, one row per step and gap.

    ::

        ProfileStep#3  ###################################
          GPT             ##########
          Backward                     ############
                       ---          ---            -------    three gaps

    Returns:
        Columns of `ppprof.analysis.profile.module_tree.MODULES`, without gaps of no time.

        - path: `UNKNOWN` and the module after the gap, ``(unknown)\x1eGPT\x1e0``, so that the
          gaps before one module are one node in all steps; ``(unknown)\x1e`` for the last gap;
        - self_ns and time_ns: gpu_ns if anything is launched in the step, else cpu_ns. Their sum
          over a step's gaps is the self_ns of the step in
          `ppprof.analysis.profile.module_tree.modules`;
        - cpu_ns: the duration. It is negative if modules on one thread overlap in a damaged trace;
        - gpu_ns: the time of kernels, copies and sets launched in the gap.
    """
    tree, hosts = profile.tree, profile.tree.hosts
    is_module = _module_mask(profile)
    is_step = (hosts["category"] == "ProfileStep").to_numpy() & is_module
    above = tree.enclosing(is_module)
    steps = np.flatnonzero(is_step)
    inner = np.flatnonzero(is_module & (above >= 0) & is_step[above])
    start_ns, end_ns = hosts["start_ns"].to_numpy(), hosts["end_ns"].to_numpy()
    table = pl.DataFrame(
        {
            "owner": np.concatenate([above[inner], steps]),
            "row": np.concatenate([inner, np.full(len(steps), len(is_step))]),
            "name": [*_module_names(hosts[inner]), *[""] * len(steps)],
            "end_ns": np.concatenate([start_ns[inner], end_ns[steps]]),
            "next_ns": np.concatenate([end_ns[inner], end_ns[steps]]),
        },
        schema_overrides={"name": pl.String},
    ).sort("owner", "row")
    owner = table["owner"].to_numpy()
    table = table.with_columns(
        step=profile.step.gather(owner),
        step_ns=pl.Series(start_ns[owner]),
        has_launches=pl.Series(hosts["device_ns"].to_numpy()[owner] > 0),
    ).with_columns(
        start_ns=pl.coalesce(pl.col("next_ns").shift(1).over("owner"), "step_ns"),
        number=pl.int_range(pl.len()).over("step", "name"),
        begin_ns=pl.col("step_ns").min().over("step"),
    )
    is_last = pl.col("name") == ""
    following = pl.concat_str("name", pl.lit(OCCURRENCE), "number")
    return (
        table.with_columns(
            path=pl.concat_str(
                pl.lit(UNKNOWN + OCCURRENCE), pl.when(is_last).then(pl.lit("")).otherwise(following)
            ),
            cpu_ns=pl.col("end_ns") - pl.col("start_ns"),
            gpu_ns=pl.Series(_launched_ns(profile, is_step, is_module, table)),
        )
        .with_columns(
            start_ns=pl.col("start_ns") - pl.col("begin_ns"),
            self_ns=pl.when("has_launches").then("gpu_ns").otherwise("cpu_ns"),
        )
        .filter((pl.col("cpu_ns") != 0) | (pl.col("gpu_ns") != 0))
        .with_columns(time_ns="self_ns")
        .select(pl.col(name).cast(dtype) for name, dtype in MODULES.items())
    )


def _launched_ns(profile: Profile, is_step: Bool, is_module: Bool, table: pl.DataFrame) -> Int64:
    """Return the time of the device events that are launched in each gap."""
    events, hosts = profile.trace.events, profile.tree.hosts
    launched = events.select(launch="parent", dur_ns="dur_ns", device="device").filter(
        pl.col("device").is_not_null() & (pl.col("launch") >= hosts.height)
    )
    host = events["parent"].gather(launched["launch"])
    launched = launched.with_columns(host=host, at_ns=events["start_ns"].gather(launched["launch"]))
    launched = launched.drop_nulls("host")
    node = profile.tree.innermost(np.flatnonzero(is_module))[launched["host"].to_numpy()]
    in_gap = (node >= 0) & is_step[node]
    owner, at_ns = node[in_gap], launched["at_ns"].to_numpy()[in_gap]
    # In the order of steps and times, a launch follows the start of its gap.
    owners = np.concatenate([table["owner"].to_numpy(), owner])
    times = np.concatenate([table["start_ns"].to_numpy(), at_ns])
    is_launch = np.arange(len(owners)) >= table.height
    order = np.lexsort((is_launch, times, owners))
    gap = np.empty(len(owners), np.int64)
    gap[order] = np.cumsum(~is_launch[order]) - 1
    first = np.searchsorted(table["owner"].to_numpy(), owner)
    result = np.zeros(table.height, np.int64)
    launched_ns = launched["dur_ns"].to_numpy()[in_gap]
    np.add.at(result, np.maximum(gap[table.height :], first), launched_ns)
    return result
