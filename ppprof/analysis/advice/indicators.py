"""Small tables of one rank's window that the rules of advice read in addition to a `Cluster`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import polars as pl

from ppprof.analysis.advice.collective_lines import COLLECTIVE_LINES, collective_lines
from ppprof.analysis.advice.discarded_rows import discarded_rows
from ppprof.analysis.advice.growing_work import GROWING, growing_operators
from ppprof.analysis.advice.interpreter_lock import held_by_others
from ppprof.analysis.advice.memory_growth import KEPT, kept_memory
from ppprof.analysis.advice.multiplied_by_zero import multiplied_by_zero
from ppprof.analysis.advice.own_lines import (
    LEAST_BESIDE,
    line_of_operators,
    paused_lines,
    starts_beside,
)
from ppprof.analysis.advice.padding import padded
from ppprof.analysis.advice.penalties import penalties
from ppprof.analysis.advice.remote_waits import REMOTE_WAITS, remote_waits
from ppprof.analysis.advice.repeated_calls import repeated_calls
from ppprof.analysis.advice.repeated_gradients import repeated_gradients
from ppprof.analysis.advice.small_operators import UPDATES, small_operators
from ppprof.analysis.advice.unexplained import CONTAINERS, LEAST_GAP_NS, host_time
from ppprof.analysis.advice.unneeded_gradients import unneeded_gradients
from ppprof.analysis.advice.wide_dtypes import WIDE, wide_dtypes
from ppprof.analysis.efficiency.avoidable import (
    fusible_chains,
    thin_products,
    unused_rows,
    vocabulary_work,
)
from ppprof.analysis.efficiency.copied_inputs import casts, strided_inputs
from ppprof.analysis.efficiency.efficiency import (
    EFFICIENCY_BY_STEP,
    efficiency_by_step,
    flops_of_hosts,
)
from ppprof.analysis.efficiency.written_out import written_out
from ppprof.analysis.profile.grouping import intervals_of, matching
from ppprof.analysis.profile.intervals import (
    Intervals,
    contains,
    covered_within,
    difference,
    intersection,
    together,
    union,
)
from ppprof.analysis.profile.module_tree import (
    OCCURRENCE,
    PHASES,
    SEPARATOR,
    modules,
    with_gradients_of_modules,
)
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import (
    LOADERS,
    SampledSteps,
    call_lines,
    called_by,
    sample_lines,
    sampled_steps,
    samples_by_line,
)
from ppprof.analysis.profile.remote_flows import remote_waiting, wait_spans
from ppprof.analysis.profile.runtime_calls import COPY, WAIT, is_of_kind, name_of_call
from ppprof.analysis.ranks.device_queue import idle_causes
from ppprof.analysis.ranks.device_steps import steps_of_rank
from ppprof.analysis.ranks.rank_communication import communication_of
from ppprof.analysis.ranks.step_breakdown import (
    LONG_CALL_NS,
    Breakdown,
    loading_intervals,
    waiting_intervals,
)
from ppprof.arrays import Float64, Int64
from ppprof.trace import GARBAGE_COLLECTION, joined_source
from ppprof.trace.labels import Labels
from ppprof.trace.schema import is_kernel, nullable
from ppprof.trace.steps import steps_at

TINY_NS = 10_000
"""Shorter kernels are tiny: each ends before the next kernel is launched, since a launch from
Python takes Paddle some 10 us (``cudaLaunchKernel`` alone takes about 5)."""

MOST_NAMES = 20
"""Maximum number of names of a kind of `_OF_MODEL` in `NAMES`; the names with the largest times are kept."""
_OF_MODEL = frozenset(("gap", "kernel", "line", "operator", "module", "calling"))
"""Kinds of which a large model has thousands of names. No rule adds up their times."""

Sums = TypeVar("Sums", Int64, Float64)

_SUM = "^global_gradnodeaccumulation"
"""The node that adds to the gradient of a parameter, in lower case."""

_COPIES = "^gpumemcpysync"
"""Paddle's span around a copy for which the host waits (paddle/phi/core/memory/memcpy.cc)."""

_FROM_PAGEABLE = r'(?i)pageable ?->|"source": ?"pageable"'
_TO_PAGEABLE = r'(?i)-> ?pageable|"target": ?"pageable"'
"""In the name or the attributes of a copy: the kind of memory of the host, if it is not pinned."""

_ALLOCATES = r"malloc|(^|[a-z])free|hostalloc|hostregister|hostunregister|memalloc|memfree"
_LOADS = r"moduleload|moduleunload|libraryload|modulegetfunction|librarygetkernel|funcload"
"""Runtime calls, in lower case, that allocate or free, and those that load kernels."""

LOADING_NS = 1_000_000
"""A launch that takes this long loads its kernel first: launches take some 5 us."""

_SYNCHRONOUS = r"^cuda(memcpy|memcpy2d)(_v\d+)?$"
"""Runtime calls that return only when their copy is done."""

STEPS = {
    "step": pl.Int64,
    "num_micro_batches": pl.Int64,
    "num_operators": pl.Int64,
    "forward_flops": pl.Float64,
    "num_kernels": pl.Int64,
    "num_tiny_kernels": pl.Int64,
    "idle_ns": pl.Int64,
    "idle_of_profiler_ns": pl.Int64,
    "idle_in_calls_ns": pl.Int64,
    "idle_after_copies_ns": pl.Int64,
    "idle_in_optimizer_ns": pl.Int64,
    "idle_between_tiny_ns": pl.Int64,
    "num_blocking_copies": pl.Int64,
    "blocking_copies_ns": pl.Int64,
    "num_pageable_copies": pl.Int64,
    "pageable_copies_ns": pl.Int64,
    "exposed_pageable_ns": pl.Int64,
    "exposed_reads_ns": pl.Int64,
    "accumulation_ns": pl.Int64,
    "thin_ns": pl.Int64,
    "recompute_ns": pl.Int64,
    "optimizer_ns": pl.Int64,
    "optimizer_overhead_ns": pl.Int64,
    "num_updates": pl.Int64,
    "outlived_ns": pl.Int64,
    "remote_ns": pl.Int64,
    "num_remote_waits": pl.Int64,
}
"""Columns of a table with one row per step:

- ``num_micro_batches``: number of Backward phases for each update, of one or several optimizers: a GAN has two of each;
- ``num_operators``: number of operators;
- ``forward_flops``: FLOPs of the operators outside of Backward and Optimization whose work is known (of gradients, it is known
  in some steps only); null without shapes;
- ``num_kernels``, ``num_tiny_kernels``: number of kernels, and of those shorter than `TINY_NS`;
- ``idle_ns``: all devices are idle, nothing is in their queues, and the stepping thread neither
  waits nor loads data (host_bound of `ppprof.analysis.ranks.step_breakdown`);
- ``idle_of_profiler_ns``, ``idle_in_calls_ns``, ``idle_after_copies_ns``, ``idle_in_optimizer_ns``,
  ``idle_between_tiny_ns``: disjoint parts of idle_ns, in which the profiler itself works
  (`ppprof.trace.schema.OVERHEADS`), or the stepping thread is in a call that allocates, frees or
  loads kernels; which follow a blocking copy, lie among the updates of parameters, or lie between
  two tiny kernels;
- ``num_blocking_copies``, ``blocking_copies_ns``: copies for which the stepping thread waits, and its
  other waits for a device that works;
- ``num_pageable_copies``, ``pageable_copies_ns``, ``exposed_pageable_ns``: copies to the device from
  memory that is not pinned; their time, and the part of it in which no kernel runs;
- ``exposed_reads_ns``: the time of copies to such memory in which no kernel runs;
- ``accumulation_ns``: the time of ``Global_`` gradient nodes without the ``Local_`` nodes in them; on a
  host, with that of the nodes that add to gradients of parameters, without communication and hooks;
- ``thin_ns``: on a host, the time of products that mostly read their weights (`thin_products`);
- ``recompute_ns``: the time of Forward events in a Backward, and of operators that ``recompute(function)`` calls there; without device events, with the time
  in the gradient node around them in which nothing works;
- ``optimizer_ns``: the time in Optimization phases, without the phases in them;
- ``optimizer_overhead_ns``: the time from the first to the last update of parameters, outside
  kernels; null in a trace with device events, and if no kernel launch in an Optimization is
  recorded;
- ``num_updates``: number of operators that update parameters;
- ``outlived_ns``: for how long device events ran after the host had ended the step that launched
  them (`ppprof.analysis.ranks.device_steps`);
- ``remote_ns``: the time in which a remote call is under way, while the stepping thread records
  nothing and no device works. With device events, it is a part of idle_ns, disjoint from the others.

accumulation_ns and recompute_ns are device time if the trace has device events, else CPU time.
Without device events, the columns of kernels, idle time and blocking copies, and outlived_ns, are
null. If the trace lacks the events of its device, so are accumulation_ns, recompute_ns and
optimizer_overhead_ns, and no name is of kind gap or accumulation: the host's time is that of
launches."""

NAMES = {
    "step": pl.Int64,
    "what": pl.String,
    "subject": pl.String,
    "name": pl.String,
    "calls": pl.Int64,
    "time_ns": pl.Int64,
}
"""Columns of a table with one row per step, kind, subject and name. ``subject``: what a name belongs to; "" of
most kinds. Below, it is in brackets. The values of ``what``: kernel (name of a tiny kernel), copy (name of the
host event around a blocking copy), accumulation (name of a gradient node), optimizer (name of an operator in an Optimization), gap (a layer or span, or the
neighbours in the step, around unexplained time: `ppprof.analysis.advice.unexplained`), beside (a
line of the user's code beside the training; calls are samples: `ppprof.analysis.advice.own_lines`),
statement (likewise, the statement of the training that calls the line),
paused [what the pause is for] (line in which a pause between steps passes; calls are samples),
beside by statement [statement of the training that calls it] (likewise), beside in function [name of beside] (the innermost functions below it), without gradients (likewise, the statements;
without gradients in function [statement]: the innermost functions below them, or the line in such a one,
while layers compute without gradients ahead of a Backward), compiling (likewise, while ``to_static`` compiles), again (line of a Backward that computes gradients again), repeated (layer, with the line that calls it, whose calls compute again
what is known, with the time of its gradients; or function, with the line that calls it, of such operators), repeated layer (likewise, by layer), repeated function (the functions alone), repeated unused (calls of layers without gradients), caller and earlier [name of repeated] (the lines of
`ppprof.analysis.advice.repeated_calls`), zero (line that multiplies by the number 0, with the time of gradients that are 0 for it), zero term [name of zero] (line that computes
what it multiplies), zero operators (lines of products, with the time of the operators that only they need), unneeded (layer without an updated parameter,
with the time of its gradients; or whose optimizer clears them), unneeded passing (likewise, where gradients of other layers pass through it), unneeded
cleared (those whose optimizer clears them), caller [name of unneeded cleared] (line that calls the function of its line), collection (a line in
which Python collects garbage), lock
(a line of another thread that runs while the training stands still:
`ppprof.analysis.advice.interpreter_lock`), reader (those of threads that read samples), small (a layer with many small operators:
`ppprof.analysis.advice.small_operators`), chain
(operators that one kernel could replace, with the time that it would save:
`ppprof.analysis.efficiency.avoidable`), vocabulary (operators on logits:
`ppprof.analysis.efficiency.avoidable`), strided (operators that first copy a view, with the time of the copy:
`ppprof.analysis.efficiency.copied_inputs`), cast (casts and their gradients), strided line and cast line (lines that call them), discarded (operators on rows that the next operator leaves out, with the time of these
rows: `ppprof.analysis.advice.discarded_rows`), discarded by (their products, with the time of all), discarded rows and discarded kept (products; calls
are their rows, and those that are used), discarded line and discarded taker [product] (lines that compute it, and that take rows), discarded for [product] (the operator that takes rows), padded [remedy] (operators that compute for padding, with
the time that the remedy saves: `ppprof.analysis.advice.padding`), padded by (the remedies), padded line [remedy] (lines that look its batches up), padded numbers, padded words and
padded kept [remedy] (likewise; calls are what is looked up, the words among it, and what the remedy leaves), penalty [form] (operators of penalties on
parameters: `ppprof.analysis.advice.penalties`), penalty form (the forms; calls are parameters), penalty of some (those that only some of the updated
parameters have), written (what is written out in several operators, with what one of them saves: `ppprof.analysis.efficiency.written_out`), written
parts (likewise, with the time of the operators), written line [kind of what is written out] (lines that call it), penalty line [form] (line that calls them), table [sparse, if it is an update by a sparse gradient] (operators on an embedding's table, with the time of rows that do
not occur), used (updates of such a table, with the time of rows that may occur), lookup (line that looks up rows of such a table), remote (name of a remote call), overhead (what the profiler
itself does), loader (a Dataloader event), call (runtime call that allocates, frees or loads kernels), pageable (copy from
memory that is not pinned), line (line of the user's code, without the lines that it calls, by samples), loading (likewise, of
threads that end no steps, while data is loaded; those that a DataLoader calls, if any), sampler (likewise, of any thread, while Paddle's
loader calls the line, but not to read or to collate samples), reading ahead and sampler ahead (likewise, of threads and workers
that a DataLoader has, at any time), communication line [axis] (likewise, of threads that end steps, while they communicate over
an axis or launch that), read (line that reads the values of tensors, with the time of these calls), recomputed (layer or operator that is computed again in a Backward), of_layer (line that calls its operators, or the operator), update (line that
calls updates of parameters), phase, operator and module (a phase of the step, an operator without the
operators in it, a module without the modules in it), calling (a line, with the operators that it calls and
their gradients)."""

_FETCHER = "paddle.io.dataloader.fetcher"
"""Where Paddle's loader reads and collates samples. It calls samplers elsewhere."""
_COMPUTES = 0.1
"""Share of a line's time in layers, or in operators, from which all of it may be for them: noise for a teacher, a metric of its result."""

MEMORY = {
    "place": pl.String,
    "peak_allocated_bytes": pl.Int64,
    "peak_reserved_bytes": pl.Int64,
    "total_bytes": pl.Int64,
}
"""Columns of a table with one row per place, such as ``Place(gpu:0)``. The peaks are the highest
since the process started. ``total_bytes``: the size of the device's memory; null if unknown."""


class Indicators(NamedTuple):
    """The indicators of one or several windows of a rank."""

    steps: pl.DataFrame
    """Columns of `STEPS`."""
    names: pl.DataFrame
    """Columns of `NAMES`."""
    memory: pl.DataFrame
    """Columns of `MEMORY`."""
    products: pl.DataFrame
    """The matrix products of `ppprof.analysis.efficiency.efficiency.efficiency_by_step`."""
    unrecorded_device: str = ""
    """The device whose events the trace lacks, such as ``npu:0``; "" for none."""
    wide: pl.DataFrame = pl.DataFrame(schema=WIDE)
    """Columns of `WIDE`."""
    kept: pl.DataFrame = pl.DataFrame(schema=KEPT)
    """Columns of `KEPT`."""
    growing: pl.DataFrame = pl.DataFrame(schema=GROWING)
    """Columns of `GROWING`, of the latest window that has some."""
    doubts: frozenset[str] = frozenset()
    """`ppprof.trace.schema.Trace.doubts` of the windows."""
    source: Mapping[str, Mapping[int, str]] = MappingProxyType({})
    """File -> line number -> text, of the user's code: see `ppprof.rundir.python_stacks`."""
    framework: str = ""
    """``torch`` or ``paddle``: whose words the advice is in; "" if unknown."""
    collectives: pl.DataFrame = pl.DataFrame(schema=COLLECTIVE_LINES)
    """Columns of `COLLECTIVE_LINES`."""
    remote_waits: pl.DataFrame = pl.DataFrame(schema=REMOTE_WAITS)
    """Columns of `REMOTE_WAITS`."""

    def select_steps(self, steps: Iterable[int]) -> Indicators:
        """Return the indicators of ``steps`` only. ``memory``, ``kept`` and ``growing`` are unchanged."""
        is_selected = pl.col("step").is_in(list(steps))
        return self._replace(
            steps=self.steps.filter(is_selected),
            names=self.names.filter(is_selected),
            products=self.products.filter(is_selected),
            wide=self.wide.filter(is_selected),
            remote_waits=self.remote_waits.filter(is_selected),
        )


def collect_indicators(profile: Profile, parts: Breakdown) -> Indicators:
    """Return the indicators of one rank's window.

    Returns:
        The three tables. They have no rows if the window has no steps.
    """
    if not profile.steps:
        return concat_indicators(())
    builder = IndicatorBuilder(profile)
    for_nothing = builder.add_zero()
    penalised = pl.Series([], dtype=pl.Int64)
    if not profile.unrecorded_device:
        penalised = builder.add_penalties(for_nothing)
    written = builder.add_written_out(pl.concat([penalised, for_nothing]))
    if not profile.unrecorded_device:
        time = host_time(profile, parts.bubbles)
        builder.add_names("gap", time.gaps)
        in_written = contains(
            together(intervals_of(builder.hosts(np.array(written, np.int64)))),
            time.beside["time_ns"].to_numpy(),
        )
        named = time.beside.with_columns(time_ns="dur_ns", is_written=pl.Series(in_written))
        builder.add_names("beside", named)
        builder.add_names("statement", named.with_columns(name="statement"))
        builder.add_names("compiling", named.filter("compiles"))
        steps_ns = int(np.subtract(*builder.extents[::-1]).sum())
        computing, beside = _computing(named, steps_ns)
        computing = computing.filter(~pl.col("is_written"))
        builder.add_names("without gradients", computing.with_columns(name="caller"))
        inner = pl.when(pl.col("name") != pl.col("caller")).then("name")
        functions = computing.with_columns(
            subject="caller", name=pl.coalesce("function", inner)
        ).drop_nulls("name")
        builder.add_names("without gradients in function", functions)
        builder.add_names("beside by statement", beside.with_columns(subject="statement"))
        functions = beside.with_columns(subject="name", name="function").drop_nulls("name")
        builder.add_names("beside in function", functions)
        waiting = (waiting_intervals(profile), loading_intervals(profile), builder.remote)
        waits_ns = int(builder.within(together(*waiting, intervals_of(parts.bubbles))).sum())
        waits_ns += int(time.beside["dur_ns"].sum())
        held = held_by_others(profile, waits_ns)
        builder.add_names("lock", held.drop("reads_ahead"))
        builder.add_names("reader", held.filter("reads_ahead").drop("reads_ahead"))
        if not builder.on_device:
            builder.add_names("small", small_operators(profile, builder.updating))
        builder.add_samples()
    saved_ns = pl.col("saved_ns").round().cast(pl.Int64)
    chains = fusible_chains(profile, written)
    builder.add_names("chain", chains.select("step", "name", time_ns=saved_ns))
    vocabulary = vocabulary_work(profile, for_nothing)
    saved_rows = [pl.Series(written, dtype=pl.Int64), for_nothing]
    if not profile.unrecorded_device:
        discarded = builder.add_discarded(for_nothing)
        saved_rows += [discarded["row"], penalised]
        vocabulary = vocabulary.filter(~pl.col("name").is_in(discarded["name"].unique().implode()))
    builder.add_names("vocabulary", vocabulary)
    if not profile.unrecorded_device:
        cast = casts(profile).filter(~pl.col("name").is_in(vocabulary["name"].unique().implode()))
        if not builder.on_device:
            cast = cast.filter(~pl.Series(starts_beside(profile))[cast["row"]])
        copied: list[pl.DataFrame] = []
        for kind, copies in (("strided", strided_inputs(profile)), ("cast", cast)):
            copies = copies.filter(~pl.col("row").is_in(pl.concat(saved_rows).implode()))
            builder.add_names(kind, copies)
            builder.add_names(f"{kind} line", builder.in_lines(copies))
            copied.append(copies.select("row", "time_ns"))
        builder.add_padded(saved_rows, copied, vocabulary["name"])
    builder.add_names("again", repeated_gradients(profile))
    builder.add_repeated_calls()
    builder.add_unneeded()
    tables = unused_rows(profile)
    is_other = pl.col("row").is_null() | ~pl.col("row").is_in(for_nothing.implode())
    tables = tables.filter(is_other)
    saves = tables.filter(pl.col("saved_ns") > 0)
    of_sparse = pl.when("is_sparse").then(pl.lit("sparse")).otherwise(pl.lit(""))
    builder.add_names("table", saves.select("step", "name", subject=of_sparse, time_ns="saved_ns"))
    used = saves.filter("is_update").with_columns(pl.col("time_ns") - pl.col("saved_ns"))
    builder.add_names("used", used)
    lookups = tables.filter(pl.col("is_lookup") & (pl.col("table_saved_ns") > 0))
    builder.add_names("lookup", builder.in_lines(lookups.with_columns(time_ns="table_saved_ns")))
    if not profile.unrecorded_device:
        builder.add_largest()
    loads = builder.hosts(builder.phase("Dataloader")["row"].to_numpy())
    builder.add_names("loader", loads.select("step", "name", time_ns="cpu_ns"))
    remote_ns, waits = builder.add_remote_waits()
    step = builder.step_of_host
    columns: dict[str, Int64 | Float64 | None] = {
        "num_micro_batches": builder.count_micro_batches(),
        "num_operators": builder.count_by_step(
            step.gather(profile.tree.events.host_rows("Operator"))
        ),
        "forward_flops": builder.forward_flops(),
        **builder.device_columns(),
        **builder.gradient_columns(),
        **builder.optimizer_columns(),
        "remote_ns": remote_ns,
        "num_remote_waits": builder.num_remote_waits(),
    }
    steps = pl.DataFrame(
        {"step": builder.steps["step"], **{name: columns[name] for name in list(STEPS)[1:]}}, STEPS
    )
    steps = steps.group_by("step").agg(_sum(name) for name in list(STEPS)[1:]).sort("step")
    names = pl.concat([pl.DataFrame(schema=NAMES), *builder.names])
    products = efficiency_by_step(profile).filter(pl.col("m").is_not_null())
    return Indicators(
        steps,
        names,
        _memory(profile),
        products,
        profile.unrecorded_device,
        pl.DataFrame(schema=WIDE) if profile.unrecorded_device else wide_dtypes(profile),
        kept_memory(profile),
        pl.DataFrame(schema=GROWING) if profile.unrecorded_device else growing_operators(profile),
        frozenset(profile.whole.doubts),
        {} if profile.trace.stacks is None else profile.trace.stacks.source,
        profile.trace.framework,
        collective_lines(profile),
        waits,
    )


def _computing(lines: pl.DataFrame, steps_ns: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the lines beside the training that compute without gradients, and the others.

    So do the operators of a caller that mostly does, and its lines of Python if all of these take little time:
    more of it is work of its own, such as a simulator's between two calls of a policy.
    """
    time_ns = pl.col("time_ns")

    def some_of(kind: str) -> pl.Expr:
        of_kind = (time_ns * pl.col(kind)).sum().over("name")
        return of_kind >= _COMPUTES * time_ns.sum().over("name")

    of_caller = (time_ns * pl.col("computes")).sum().over("caller")
    mostly = of_caller > time_ns.sum().over("caller") / 2
    is_python = (some_of("computes") | some_of("operates")).not_()
    is_little = (time_ns * is_python).sum().over("caller") < LEAST_BESIDE * steps_ns
    computes = some_of("computes") | mostly & (is_python.not_() | is_little)
    return lines.filter(computes), lines.filter(computes.not_())


def concat_indicators(parts: Sequence[Indicators]) -> Indicators:
    """Return the indicators of several windows of a rank as one; memory has the highest peaks."""

    def joined(name: str, schema: Mapping[str, Any]) -> pl.DataFrame:
        tables: list[pl.DataFrame] = [getattr(part, name) for part in parts]
        return pl.concat([pl.DataFrame(schema=schema), *tables])

    memory = joined("memory", MEMORY).group_by("place", maintain_order=True)
    return Indicators(
        joined("steps", STEPS),
        joined("names", NAMES),
        memory.agg(pl.col(list(MEMORY)[1:]).max()),
        joined("products", EFFICIENCY_BY_STEP),
        next((part.unrecorded_device for part in parts if part.unrecorded_device), ""),
        joined("wide", WIDE),
        joined("kept", KEPT),
        next(
            (part.growing for part in reversed(parts) if part.growing.height),
            pl.DataFrame(schema=GROWING),
        ),
        frozenset().union(*(part.doubts for part in parts)),
        joined_source([part.source for part in parts]),
        parts[0].framework if parts else "",
        joined("collectives", COLLECTIVE_LINES),
        joined("remote_waits", REMOTE_WAITS),
    )


def _sum(name: str) -> pl.Expr:
    return pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).alias(name)


class IndicatorBuilder:
    """Computes the columns of `STEPS` for one window, and collects the rows of `NAMES`.

    A column has one value per ProfileStep, in the order of their starts.

    Attributes:
        steps: the result of `steps_of_rank`.
        extents: start and end of each of ``steps``.
        step_of_host: the step of each host event; null outside steps.
        on_device: whether the trace has device events.
        names: tables with the columns of `NAMES`, collected so far.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile, self.tree = profile, profile.tree
        self.steps = steps_of_rank(profile)
        self.extents = intervals_of(self.steps)
        self.step_of_host = profile.trace.events["step"].slice(0, self.tree.hosts.height)
        self.on_device = not self.tree.devices.is_empty()
        self.names: list[pl.DataFrame] = []

    def phase(self, category: str) -> pl.DataFrame:
        """Return the events of a phase, as rows of `Profile.disjoint_phases`."""
        return self.profile.disjoint_phases.filter(pl.col("category") == category)

    def hosts(self, rows: Int64) -> pl.DataFrame:
        """Return these rows of ``tree.hosts``, with the column step."""
        return self.tree.hosts[rows].with_columns(step=self.step_of_host.gather(rows))

    def step_at(self, times: Int64) -> pl.Series:
        """Return the step in which each time lies; null outside steps."""
        return nullable(steps_at(self.steps, times))

    def count_by_step(self, step: pl.Series) -> Int64:
        """Return how often each step occurs, shape (steps,)."""
        return self.sum_by_step(step, np.ones(len(step), np.int64))

    def forward_flops(self) -> Float64 | None:
        """Return the FLOPs of each step outside of Backward and Optimization, shape (steps,); None without shapes."""
        flops = flops_of_hosts(self.profile)
        if flops is None:
            return None
        rows = self.tree.events.host_rows("Backward", "Optimization")
        flops[self.tree.below(rows)] = 0
        return self.sum_by_step(self.step_of_host, flops.astype(np.float64))

    def count_micro_batches(self) -> Int64:
        """Return the number of Backward phases of each step for each update, shape (steps,).

        Optimizers that step one after another update together::

            BBBBBBBBUU    8            BUBU    1, as of a GAN
        """
        outer = (
            self.profile.outermost
        )  # an optimizer that calls a closure again accumulates nothing
        phases = outer.filter(pl.col("category").is_in(["Backward", "Optimization"])).sort(
            "start_ns"
        )
        is_update = (phases["category"] == "Optimization").to_numpy()
        begins = is_update & ~np.append(False, is_update)[:-1]
        step = self.step_of_host.gather(phases["row"])
        backwards, updates = (self.sum_by_step(step, counted) for counted in (~is_update, begins))
        return np.where(backwards > 0, np.maximum(1, backwards // np.maximum(1, updates)), 0)

    def sum_by_step(self, step: pl.Series, values: Sums) -> Sums:
        """Return the sum of the values of each step, shape (steps,).

        Values without a step, or of a step without a ProfileStep, are dropped. If a step number
        occurs twice, the first ProfileStep has the sum and the second has 0.
        """
        by_step = pl.DataFrame({"step": step, "value": values}).drop_nulls("step")
        sums = by_step.group_by("step").agg(pl.col("value").sum())
        # A step number may occur twice; its values count once.
        first = self.steps.select("step", first=pl.col("step").is_first_distinct())
        joined = first.join(sums, on="step", how="left", maintain_order="left")
        dtype = pl.Float64 if values.dtype.kind == "f" else pl.Int64
        value = pl.when("first").then("value").fill_null(0).cast(dtype)
        found: Sums = joined.select(value).to_series().to_numpy()
        return found

    def within(self, instants: Intervals) -> Int64:
        """Return the nanoseconds of ``instants``, a union, in each step, shape (steps,)."""
        return covered_within(instants, *self.extents)

    def add_names(self, kind: str, events: pl.DataFrame) -> None:
        """Add the rows of one kind to ``names``; of a kind of `_OF_MODEL`, the `MOST_NAMES` names with the largest times.

        Args:
            kind: the value of the column what: ``copy``.
            events: one row per event: step, name, time_ns; calls if it stands for several; and subject if the kind
                has one. Events without a step are dropped.
        """
        others = {"calls": pl.lit(1, pl.Int64), "subject": pl.lit("")}
        missing = {
            column: value for column, value in others.items() if column not in events.columns
        }
        events = events.drop_nulls("step").with_columns(pl.col("name").cast(pl.String), **missing)
        events = events.with_columns(pl.col("subject").cast(pl.String).fill_null(""))
        rows = events.group_by("step", "subject", "name").agg(
            calls=pl.col("calls").sum(), time_ns=pl.col("time_ns").sum()
        )
        if kind in _OF_MODEL:
            totals = rows.group_by("name").agg(pl.col("time_ns").sum())
            largest = totals.sort("time_ns", "name", descending=[True, False]).head(MOST_NAMES)
            rows = rows.join(largest, "name", "semi")
        named = rows.sort("step", "subject", "name").with_columns(what=pl.lit(kind))
        self.names.append(named.select(*NAMES))

    def add_repeated_calls(self) -> None:
        """Add the repeated calls of layers and operators, and the lines around them."""
        calls = repeated_calls(self.profile).calls
        self.add_names("repeated", calls)
        self.add_names("repeated layer", calls.with_columns(name="layer").drop_nulls("name"))
        self.add_names("repeated function", calls.filter(pl.col("layer").is_null()))
        self.add_names("repeated unused", calls.filter("is_unused").drop_nulls("layer"))
        for kind in ("caller", "earlier"):
            lines = calls.with_columns(subject="name", name=kind).drop_nulls("name")
            self.add_names(kind, lines)

    def add_zero(self) -> pl.Series:
        """Add the lines that multiply by the number 0; return the rows of what is computed for nothing."""
        found = multiplied_by_zero(self.profile)
        self.add_names("zero", found.gradients)
        terms = found.gradients.with_columns(subject="name", name="term").drop_nulls("name")
        self.add_names("zero term", terms)
        self.add_names("zero operators", found.operators)
        tables = (found.gradients, found.operators)
        rows: pl.Series = pl.concat([table["row"].cast(pl.Int64) for table in tables])
        return rows

    def add_unneeded(self) -> None:
        """Add the layers whose gradients are unused."""
        nodes = unneeded_gradients(self.profile)
        cleared = nodes.filter("is_cleared")
        self.add_names("unneeded", nodes)
        self.add_names("unneeded passing", nodes.filter("passes"))
        self.add_names("unneeded cleared", cleared)
        callers = cleared.with_columns(subject="name", name="caller").drop_nulls("name")
        self.add_names("caller", callers)

    def add_samples(self) -> None:
        """Add the lines of the user's code by samples: of stepping threads, and of others that load."""
        sampled = sampled_steps(self.profile)
        if sampled is None:
            return
        self.add_names("paused", paused_lines(self.profile))
        samples = samples_by_line(sampled)
        loads = contains(together(loading_intervals(self.profile)), samples["time_ns"].to_numpy())
        named = pl.col("step"), pl.col("name")
        of_steps, others = (
            samples.filter("is_step"),
            samples.filter(~pl.col("is_step") & pl.Series(loads)),
        )
        self.add_names("line", of_steps.select(*named, time_ns="dur_ns"))
        self.add_names("read", self._reads(sampled))
        collections = self._noted(sampled, sampled.stacks.collections)
        self.add_names("collection", collections.fill_null(GARBAGE_COLLECTION))
        of_loaders = others.filter(pl.Series(called_by(sampled, LOADERS)[others["stack"]]))
        # Without any, the training has a thread of its own that loads; with some, others do something else.
        loading = of_loaders if of_loaders.height else others
        self.add_names("loading", loading.select(*named, time_ns="dur_ns"))
        samples_next = called_by(sampled, "paddle.io") & ~called_by(sampled, _FETCHER)
        is_of_sampler = pl.Series(samples_next[samples["stack"].to_numpy()])
        own = samples.filter(is_of_sampler & pl.Series(loads))
        self.add_names("sampler", own.select(*named, time_ns="dur_ns"))
        is_of_loader = ~pl.col("is_step") & pl.Series(called_by(sampled, LOADERS)[samples["stack"]])
        for kind, ahead in (
            ("reading ahead", is_of_loader),
            ("sampler ahead", is_of_loader & is_of_sampler),
        ):
            self.add_names(kind, samples.filter(ahead).select(*named, time_ns="dur_ns"))
        time_ns = of_steps["time_ns"].to_numpy()
        backward = together(intervals_of(self.phase("Backward")))
        lines = of_steps.filter(pl.Series(contains(backward, time_ns)))
        self.add_names("backward", lines.select(*named, time_ns="dur_ns"))
        for axis, calls in self._communication():
            lines = of_steps.filter(pl.Series(contains(calls, time_ns)))
            lines = lines.select(*named, subject=pl.lit(axis), time_ns="dur_ns")
            self.add_names("communication line", lines)

    def _communication(self) -> Iterator[tuple[str, Intervals]]:
        """Yield each axis, and when a thread communicates over it or launches that."""
        rows = communication_of(self.profile)
        hosts = self.hosts(rows.host[rows.host >= 0])
        calls = hosts.select("start_ns", "end_ns", axis=rows.axis.column().filter(rows.host >= 0))
        for (axis,), of_axis in calls.group_by("axis", maintain_order=True):
            yield str(axis), together(intervals_of(of_axis))

    def _reads(self, sampled: SampledSteps) -> pl.DataFrame:
        """Return step, name (the line) and time_ns of the stepping threads' reads of tensors."""
        reads = sampled.stacks.reads
        of_steps = np.isin(reads[:, 0], self.steps["thread"].to_numpy())
        return self._noted(sampled, reads[of_steps]).drop_nulls()

    def _noted(self, sampled: SampledSteps, rows: Int64) -> pl.DataFrame:
        """Return step, name (the line; null if unknown) and time_ns of what was noted with its line."""
        lines = sample_lines(sampled)
        return pl.DataFrame(
            {
                "step": self.step_at(rows[:, 1]),
                "name": pl.Series([lines[row] for row in rows[:, 3].tolist()], dtype=pl.String),
                "time_ns": rows[:, 2],
            }
        )

    def in_lines(self, operators: pl.DataFrame) -> pl.DataFrame:
        """Return step, name, time_ns and subject of operators, named by the lines that call them where known.

        Args:
            operators: row (of ``tree.hosts``), step, time_ns, and subject if they have one.
        """
        stacks = self.profile.trace.events["callstack"].gather(operators["row"])
        names = call_lines(self.profile, stacks)
        line = pl.col("line").replace_strict(names, default=None, return_dtype=pl.String)
        called = operators.with_columns(line=stacks.cast(pl.String))
        return called.select("step", "time_ns", "^subject$", name=line).drop_nulls("name")

    def add_discarded(self, others: pl.Series) -> pl.DataFrame:
        """Add the products with rows that nothing uses, their rows, and their lines; return them, without the rows of ``others``."""
        found = discarded_rows(self.profile)
        found = found.filter(~pl.col("row").is_in(others.implode()))
        self.add_names("discarded", found)
        products = found.filter(pl.col("rows").is_not_null())
        for kind in ("rows", "kept"):
            self.add_names(f"discarded {kind}", products.with_columns(calls=kind, name="product"))
        self.add_names("discarded by", found.with_columns(name="product"))
        takers = products.with_columns(name="taker", subject="product")
        self.add_names("discarded for", takers)
        for kind, row in (("line", "product_row"), ("taker", "taker_row")):
            lines = self.in_lines(found.with_columns(row=row, subject="product"))
            self.add_names(f"discarded {kind}", lines)
        return found

    def add_padded(
        self, saved: Sequence[pl.Series], copied: Sequence[pl.DataFrame], names: pl.Series
    ) -> None:
        """Add the operators that compute for padding, the lines that look up its batches, and their numbers.

        Args:
            saved: rows of operators that have other findings.
            copied: row and time_ns of the copies that have.
            names: names of other operators that have.
        """
        others = dict(pl.concat(copied).group_by("row").agg(pl.col("time_ns").sum()).iter_rows())
        whole = (
            [*saved]
            if self.on_device
            else [*saved, pl.Series(starts_beside(self.profile)).arg_true()]
        )
        for rows in whole:
            others.update(dict.fromkeys(rows.to_list(), np.iinfo(np.int64).max))
        found = padded(self.profile, others).with_columns(subject="remedy")
        found = found.filter(~pl.col("name").is_in(names.unique().implode()))
        self.add_names("padded", found)
        self.add_names("padded by", found.with_columns(name="remedy"))
        lines = self.in_lines(found.with_columns(row="lookup_row"))
        self.add_names("padded line", lines)
        lookups = found.drop_nulls("numbers")
        for kind in ("numbers", "words", "kept"):
            counts = self.in_lines(lookups.with_columns(time_ns=kind))
            self.add_names(f"padded {kind}", counts.with_columns(calls="time_ns"))

    def add_written_out(self, others: pl.Series) -> Sequence[int]:
        """Add what is written out, and the lines that call it, by its kind; return the rows of the operators.

        An operator of ``others`` is a part of nothing.
        """
        if self.profile.unrecorded_device:
            return ()
        found = written_out(self.profile, others)
        saved = found.table.with_columns(time_ns="saved_ns")
        self.add_names("written", saved)
        self.add_names("written parts", found.table)
        self.add_names("written line", self.in_lines(saved.with_columns(subject="kind")))
        return found.rows

    def add_penalties(self, others: pl.Series) -> pl.Series:
        """Add the penalties on parameters in the loss, their forms, and their line; return their rows.

        The rows ``others`` have another finding: a penalty whose weight is 0 is nothing for the optimizer.
        """
        found = penalties(self.profile).filter(~pl.col("row").is_in(others.implode()))
        calls = pl.col("is_parameter").cast(pl.Int64)
        forms = found.with_columns(name="form", calls=calls)
        self.add_names("penalty form", forms)
        self.add_names("penalty of some", forms.filter("is_of_some"))
        found = found.with_columns(subject="form")
        self.add_names("penalty", found)
        for _, own in found.group_by("form", maintain_order=True):
            line = line_of_operators(self.profile, own["called_row"])
            if line is not None:
                self.add_names("penalty line", own.with_columns(name=pl.lit(line)))
        return found["row"]

    def add_largest(self) -> None:
        """Add the names of phases, operators, modules and lines, with their times.

        The time is device time if the trace has device events, else CPU time: of an operator without
        the operators in it, of a module without the modules in it, forward and backward together, and
        of a line that of the operators that it calls, with their gradients.
        """
        time = self.tree.time_column
        phases = self.profile.disjoint_phases
        step = self.step_of_host.gather(phases["row"])
        self.add_names("phase", phases.select(step=step, name="category", time_ns=time))
        hosts = self.tree.hosts
        is_operator = (hosts["category"] == "Operator").to_numpy()
        own_ns = self.tree.own(time, is_operator, self.tree.enclosing(is_operator))
        operators = hosts.select("name", "row", step=self.step_of_host, time_ns=pl.Series(own_ns))
        operators = operators.filter(pl.Series(is_operator))
        self.add_names("operator", operators)
        called = self.in_lines(operators)
        if 2 * called["time_ns"].sum() >= operators["time_ns"].sum():  # else most lines are unknown
            self.add_names("calling", called)
        tree = with_gradients_of_modules(modules(self.profile))
        tree = tree.filter(pl.col("path") != "", pl.col("self_ns") > 0)
        path = pl.col("path").str.replace_all(f"{OCCURRENCE}[0-9]+", "")
        is_layer = ~path.str.split(SEPARATOR).list.last().is_in(PHASES)
        name = path.str.replace_all(SEPARATOR, "/", literal=True)
        is_remote = name.str.contains(r"(^|/)rpc[#.]")  # a call, or the wait for one
        layers = tree.filter(is_layer & ~is_remote).select("step", name=name, time_ns="self_ns")
        self.add_names("module", layers)

    @cached_property
    def closures(self) -> pl.DataFrame:
        """The phases that an Optimization contains, since its optimizer calls a closure."""
        phases = self.profile.disjoint_phases
        below = self.tree.below(self.phase("Optimization")["row"].to_numpy())
        return phases.filter(pl.Series(below)[phases["row"]])

    @cached_property
    def updating(self) -> Intervals:
        """The time from the first to the last update of parameters in each Optimization: a union.

        Optimization   ##############
        operators      norm scale  u u u u       u: adamw
        out                        =======
        """
        spans = self.phase("Optimization").sort("start_ns")
        hosts = self.tree.hosts
        below = self.tree.below(spans["row"].to_numpy())
        updates = hosts.filter(
            pl.Series(below) & (pl.col("category") == "Operator") & matching(hosts["name"], UPDATES)
        )
        span = np.searchsorted(
            spans["start_ns"].to_numpy(), updates["start_ns"].to_numpy(), "right"
        )
        extents = updates.group_by(span=pl.Series(span)).agg(
            pl.col("start_ns").min(), pl.col("end_ns").max()
        )
        return difference(together(intervals_of(extents)), together(intervals_of(self.closures)))

    def device_columns(self) -> dict[str, Int64 | None]:
        """Return the columns of kernels, blocking copies and idle time; adds names of both.

        In a trace without device events, every column has the value None.
        """
        if not self.on_device:
            nothing = dict.fromkeys(name for name in STEPS if name.startswith("idle_"))
            counts = (
                *("num_kernels", "num_tiny_kernels", "num_blocking_copies", "blocking_copies_ns"),
                *("num_pageable_copies", "pageable_copies_ns", "exposed_pageable_ns"),
                *("exposed_reads_ns", "outlived_ns"),
            )
            return {**nothing, **dict.fromkeys(counts)}
        events = self.profile.trace.events
        kernels = events.filter(is_kernel())
        tiny = kernels.filter(pl.col("dur_ns") < TINY_NS)
        self.add_names("kernel", tiny.select("step", "name", time_ns="dur_ns"))
        copies = self._blocking_copies()
        waiting = together(waiting_intervals(self.profile), loading_intervals(self.profile))
        idle = difference(idle_causes(self.profile)["nothing_queued"], waiting)
        launching = difference(idle, self.remote)
        of_profiler = intersection(launching, union(*intervals_of(self._overheads())))
        launching = difference(launching, of_profiler)
        in_calls = intersection(launching, union(*intervals_of(self._slow_calls())))
        launching = difference(launching, in_calls)
        after = _after(launching, copies)
        rest = difference(launching, after)
        copied = events.filter(category="Memcpy")
        text = pl.concat_str(pl.col("name", "attributes").cast(pl.String), ignore_nulls=True)
        pageable = copied.filter(text.str.contains(_FROM_PAGEABLE))
        self.add_names("pageable", pageable.select("step", "name", time_ns="dur_ns"))
        beside = union(*intervals_of(_with_end(kernels)))
        # What the thread of the steps waits for its loader is the loader's.
        hidden = together(beside, loading_intervals(self.profile))
        exposed = difference(union(*intervals_of(_with_end(pageable))), hidden)
        reads = copied.filter(text.str.contains(_TO_PAGEABLE))
        reading = difference(union(*intervals_of(_with_end(reads))), beside)
        in_optimizer = intersection(rest, self.updating)
        between = difference(_between_tiny(rest, self.tree.devices), in_optimizer)
        return {
            "num_kernels": self.count_by_step(kernels["step"]),
            "num_tiny_kernels": self.count_by_step(tiny["step"]),
            "idle_ns": self.within(idle),
            "idle_of_profiler_ns": self.within(of_profiler),
            "idle_in_calls_ns": self.within(in_calls),
            "idle_after_copies_ns": self.within(after),
            "idle_in_optimizer_ns": self.within(in_optimizer),
            "idle_between_tiny_ns": self.within(between),
            "num_blocking_copies": self.count_by_step(copies["step"]),
            "blocking_copies_ns": self.sum_by_step(copies["step"], copies["time_ns"].to_numpy()),
            "num_pageable_copies": self.count_by_step(pageable["step"]),
            "pageable_copies_ns": self.sum_by_step(pageable["step"], pageable["dur_ns"].to_numpy()),
            "exposed_pageable_ns": self.within(exposed),
            "exposed_reads_ns": self.within(reading),
            "outlived_ns": self.steps["outlived_ns"].to_numpy(),
        }

    def _overheads(self) -> pl.DataFrame:
        """Return the times in which the profiler itself works: start_ns, end_ns; adds their names."""
        overheads = _with_end(self.profile.trace.overheads)
        self.add_names("overhead", self._with_step(overheads))
        return overheads

    def _slow_calls(self) -> pl.DataFrame:
        """Return the rows of ``tree.launches`` that allocate, free or load kernels; adds their names."""
        calls = self.tree.launches.filter(
            pl.col("thread").is_in(self.steps["thread"].unique().implode())
        )
        names = calls["name"]
        loads = pl.Series(matching(names, _LOADS))
        is_launch = pl.Series(matching(names, "launch"))
        allocates = pl.Series(matching(names, _ALLOCATES))
        long = pl.col("end_ns") - pl.col("start_ns") >= LOADING_NS
        chosen = calls.filter(allocates | loads | (is_launch & long))
        named = pl.Series("name", map(name_of_call, chosen["name"].cast(pl.String)), pl.String)
        self.add_names("call", self._with_step(chosen).with_columns(named))
        return chosen

    def _with_step(self, spans: pl.DataFrame) -> pl.DataFrame:
        """Return step, name and time_ns of spans, by the step in which each begins."""
        step = self.step_at(spans["start_ns"].to_numpy())
        return spans.select("name", step=step, time_ns=pl.col("end_ns") - pl.col("start_ns"))

    @cached_property
    def remote(self) -> Intervals:
        """When the rank waits for a remote call: the stepping thread records nothing, no device works."""
        is_own = pl.col("thread").is_in(self.steps["thread"].unique().implode())
        works = is_own & pl.col("category").is_in(CONTAINERS).not_()
        busy = [self.tree.hosts.filter(works), self.tree.launches.filter(is_own), self.tree.devices]
        return difference(remote_waiting(self.profile), together(*map(intervals_of, busy)))

    def add_remote_waits(self) -> tuple[Int64, pl.DataFrame]:
        """Return the column remote_ns and the rows of `REMOTE_WAITS`; adds the names of remote calls."""
        calls = self.profile.remote_calls
        time_ns = pl.col("end_ns") - pl.col("start_ns")
        calls = self.hosts(calls["row"].to_numpy()).with_columns(time_ns=time_ns)
        self.add_names("remote", calls.select("step", "name", "time_ns"))
        idle = self.remote
        if self.on_device:
            idle = intersection(idle, idle_causes(self.profile)["nothing_queued"])
        waiting, waits = remote_waits(self.profile, idle, self.step_at)
        return self.within(waiting), waits

    def num_remote_waits(self) -> Int64:
        """Return how often the stepping threads wait for a call by rpc in each step, also for one that is not recorded."""
        return self.count_by_step(self.step_at(wait_spans(self.profile)["start_ns"].to_numpy()))

    def _blocking_copies(self) -> pl.DataFrame:
        """Return the blocking copies and other waits for work of the device; adds their names.

        Those of the stepping threads inside steps.

        Returns:
            step, name, time_ns and end_ns. name is that of the operator around the call; without one,
            the call's own name.
        """
        hosts, launches = self.tree.hosts, self.tree.launches
        is_own = pl.col("thread").is_in(self.steps["thread"].unique().implode())
        spans = hosts.filter(matching(hosts["name"], _COPIES), is_own)
        kinds = Labels.of(launches["name"])
        is_copy, waits = (pl.Series(is_of_kind(kinds, kind)) for kind in (COPY, WAIT))
        copying = launches.filter(is_copy)["host"].drop_nulls().unique()
        of_copy = launches["host"].is_in(copying.implode()).fill_null(value=False)
        works = covered_within(union(*intervals_of(self.tree.devices)), *intervals_of(launches))
        waits &= of_copy | pl.Series(works > 0)
        waits |= matching(launches["name"], _SYNCHRONOUS)
        calls = launches.filter(waits, is_own)
        calls = calls.join(spans, left_on="host", right_on="row", how="anti", maintain_order="left")
        names = pl.Series(map(name_of_call, calls["name"].cast(pl.String)), dtype=pl.String)
        name, is_first = pl.col("name").cast(pl.String), pl.col("host").is_first_distinct()
        copies = pl.concat(
            [
                spans.select("start_ns", "end_ns", host="parent", name=name, is_first=False),
                calls.select("start_ns", "end_ns", "host", name=names, is_first=is_first),
            ]
        )
        # torch's .item() waits in the copy that it then synchronises with.
        dur = pl.col("end_ns") - pl.col("start_ns")
        queued = launches.filter(is_copy & (dur >= LONG_CALL_NS)).drop_nulls("host")
        queued = queued.group_by("host").agg(copy_ns=dur.sum())
        copy_ns = pl.when("is_first").then("copy_ns").fill_null(0)
        callers = hosts.filter(pl.col("category").is_in(CONTAINERS).not_())
        copies = (
            copies.with_columns(step=self.step_at(copies["start_ns"].to_numpy()))
            .join(queued, "host", "left", maintain_order="left")
            .join(callers.select(host="row", caller=name), "host", "left", maintain_order="left")
            .select(
                "step", name=pl.coalesce("caller", "name"), time_ns=dur + copy_ns, end_ns="end_ns"
            )
            .drop_nulls("step")
        )
        self.add_names("copy", copies)
        return copies

    def gradient_columns(self) -> dict[str, Int64 | None]:
        """Return the columns of gradient accumulation and recomputation; adds gradient names."""
        if self.profile.unrecorded_device:
            return {"accumulation_ns": None, "thin_ns": None, "recompute_ns": None}
        hosts = self.tree.hosts
        time = self.tree.time_column
        local = hosts.filter(
            (pl.col("category") != "Operator") & matching(hosts["name"], "^local_")
        )
        local_times = local.drop_nulls("parent").group_by("parent").agg(local_ns=pl.col(time).sum())
        nodes = (
            hosts.with_columns(step=self.step_of_host)
            .filter((pl.col("category") == "Operator") & matching(hosts["name"], "^global_"))
            .join(local_times, left_on="row", right_on="parent")
            .with_columns(time_ns=(pl.col(time) - pl.col("local_ns")).clip(0))
            .select("step", "name", "time_ns")
        )
        nodes = pl.concat([nodes, self._sums()])
        self.add_names("accumulation", nodes)
        backward = self.phase("Backward")["row"].to_numpy()
        is_recomputed = self.tree.below(backward) & self.tree.is_recomputed
        outermost = is_recomputed & ~self.tree.below(np.flatnonzero(is_recomputed))
        rows = np.flatnonzero(outermost)
        is_layer = pl.col("category") == "Forward"
        around_ns = np.zeros(len(rows), np.int64)
        if not self.on_device:
            around_ns = self._around_recomputed(rows, backward)
        around = pl.Series(around_ns, dtype=pl.Int64)
        recomputed = self.hosts(rows).with_columns(time_ns=time, whole_ns=pl.col(time) + around)
        named = pl.when(is_layer).then("whole_ns").otherwise("time_ns")
        self.add_names("recomputed", recomputed.select("step", "name", time_ns=named))
        self._add_lines_of_layers(recomputed.filter(is_layer)["name"], backward)
        self.add_names("of_layer", self.in_lines(recomputed.filter(~is_layer)))
        thin = thin_products(self.profile)
        return {
            "accumulation_ns": self.sum_by_step(nodes["step"], nodes["time_ns"].to_numpy()),
            "thin_ns": self.sum_by_step(thin["step"], thin["time_ns"].to_numpy()),
            "recompute_ns": self.sum_by_step(recomputed["step"], recomputed["whole_ns"].to_numpy()),
        }

    def _sums(self) -> pl.DataFrame:
        """Return the nodes in which a host adds to gradients of parameters; none with device events.

        They run hooks, too: that of ``paddle.DataParallel`` communicates, and nodes with another line of
        the user's than most are left out.

        Returns:
            step, name and time_ns, without communication.
        """
        hosts = self.tree.hosts.with_columns(step=self.step_of_host)
        nodes = hosts.filter((pl.col("category") == "Operator") & matching(hosts["name"], _SUM))
        if self.on_device:
            nodes = nodes.clear()
        communication = communication_of(self.profile)
        times = communication.times(np.arange(len(communication.step)))
        start, end = intervals_of(nodes)
        sums = difference(together((start, end)), together(times))
        nodes = nodes.with_columns(time_ns=covered_within(sums, start, end))
        sampled = sampled_steps(self.profile)
        if sampled is not None and nodes.height:
            samples = samples_by_line(sampled).filter("is_step").drop_nulls("name")
            samples = samples.filter(pl.Series(contains(sums, samples["time_ns"].to_numpy())))
            usual = samples["name"].mode().sort().head(1).implode()
            hooks = samples.filter(pl.col("name").is_in(usual).not_())["time_ns"].sort().to_numpy()
            holds = np.searchsorted(hooks, end) > np.searchsorted(hooks, start)
            nodes = nodes.filter(pl.Series(~holds))
        return nodes.select("step", "name", "time_ns")

    def _around_recomputed(self, rows: Int64, backward: Int64) -> Int64:
        """Return the time of the gradient node around each recomputed layer or operator outside all work in it.

        There, Python restores the random state and starts a Backward of its own. The longest layer or operator
        in a node has it::

            node        ######################
              Forward       ####                    recomputed
              Backward              #########
                work                 ### ###
            out         ####    #####   #   #
        """
        tree, hosts = self.tree, self.tree.hosts
        is_node = tree.is_outermost_operator & tree.below(backward)
        above = tree.enclosing(is_node).astype(np.int64)
        cpu_ns = hosts["cpu_ns"].to_numpy()
        order = np.lexsort((-cpu_ns[rows], above[rows]))
        node, first = np.unique(above[rows][order], return_index=True)
        node, longest = node[node >= 0], order[first[node >= 0]]
        is_work = hosts["category"].is_in(CONTAINERS).not_().to_numpy() & tree.below(node)
        is_work[rows] = True
        work = np.flatnonzero(is_work)
        is_work &= ~tree.below(work)
        around = np.zeros(len(rows), np.int64)
        inside = np.zeros(len(cpu_ns), np.int64)
        np.add.at(inside, above[is_work], cpu_ns[is_work])
        around[longest] = cpu_ns[node] - inside[node]
        return around

    def _add_lines_of_layers(self, names: pl.Series, backward: Int64) -> None:
        """Add the lines that call the operators of layers ahead of a Backward: kind ``of_layer``."""
        hosts = self.tree.hosts
        is_layer = (hosts["category"] == "Forward") & hosts["name"].is_in(names.unique().implode())
        below = self.tree.below(np.flatnonzero(is_layer)) & ~self.tree.below(backward)
        calls = self.hosts(np.flatnonzero(below & (hosts["category"] == "Operator").to_numpy()))
        self.add_names("of_layer", self.in_lines(calls.with_columns(time_ns="cpu_ns")))

    def optimizer_columns(self) -> dict[str, Int64 | None]:
        """Return the columns of the optimizer; adds the names of its operators."""
        hosts = self.tree.hosts
        spans = self.phase("Optimization")
        below = self.tree.below(spans["row"].to_numpy())
        below &= self.tree.innermost(self.closures["row"].to_numpy()) < 0
        inside = hosts.with_columns(step=self.step_of_host).filter(pl.Series(below))
        operators = inside.filter(pl.col("category") == "Operator").with_columns(time_ns="cpu_ns")
        self.add_names("optimizer", operators)
        updates = operators.filter(matching(operators["name"], UPDATES))
        self.add_names("update", self.in_lines(updates))
        whole = difference(together(intervals_of(spans)), together(intervals_of(self.closures)))
        launched = inside.filter(
            pl.col("category").is_in(["DygraphKernelLaunch", "StaticKernelLaunch"])
            | (pl.col("category") == "OperatorInner") & matching(inside["name"], " compute$")
        )
        overhead = None
        if not self.on_device and not self.profile.unrecorded_device and launched.height:
            kernels = together(intervals_of(launched))
            overhead = self.within(difference(self.updating, kernels))
        return {
            "optimizer_ns": self.within(whole),
            "optimizer_overhead_ns": overhead,
            "num_updates": self.count_by_step(updates["step"]),
        }


def _with_end(spans: pl.DataFrame) -> pl.DataFrame:
    return spans.with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"))


def _after(gaps: Intervals, waits: pl.DataFrame) -> Intervals:
    """Return the beginning of each gap in which waits end, as long as they took: what a host would be ahead.

    ::

        waits   ####
        gaps    __==========        before
        out     __====
    """
    start, end = gaps
    waits = waits.sort("end_ns")
    ends, taken = (waits[name].to_numpy() for name in ("end_ns", "time_ns"))
    before = np.append(0, np.cumsum(taken))
    rows = (np.searchsorted(ends, times, "left") for times in (start, end))
    first, last = (before[row] for row in rows)
    return start, np.minimum(end, start + last - first)


def _between_tiny(gaps: Intervals, devices: pl.DataFrame) -> Intervals:
    """Return the intervals of ``gaps``, a union, between two tiny kernels.

    The last device event before the interval and the first after it must both be tiny kernels. In
    `LEAST_GAP_NS` or more, the host does something else than launching them.

    kernels   ##__##__######__##      the first two are tiny
    out         ==
    """
    start, end = gaps
    first, last = intervals_of(devices)
    is_tiny = (last - first < TINY_NS) & devices.select(is_kernel()).to_series().to_numpy()
    by_end, by_start = np.argsort(last, kind="stable"), np.argsort(first, kind="stable")
    before = np.searchsorted(last[by_end], start, "right") - 1
    following = np.searchsorted(first[by_start], end, "left")
    is_between = (before >= 0) & (following < len(first)) & (end - start < LEAST_GAP_NS)
    is_between &= is_tiny[by_end[np.maximum(before, 0)]]
    is_between &= is_tiny[by_start[np.minimum(following, len(first) - 1)]]
    return start[is_between], end[is_between]


def _memory(profile: Profile) -> pl.DataFrame:
    totals = {
        f"Place(gpu:{device.get('id')})": device.get("totalGlobalMem")
        for device in profile.trace.devices
    }
    peaks = profile.trace.memory.group_by("place", maintain_order=True).agg(
        peak_allocated_bytes=pl.col("peak_allocated").max(),
        peak_reserved_bytes=pl.col("peak_reserved").max(),
    )
    place = pl.col("place").cast(pl.String)
    total = place.replace_strict(totals, default=None, return_dtype=pl.Int64)
    return peaks.select(place, *list(MEMORY)[1:3], total_bytes=total)
