"""How close operators and modules come to what their device can do.

::

    FLOP/s |        _________ peak of the dtype
           |      / *           compute: at best FLOPs / peak
           |    /
           |  / *               memory: at best bytes / bandwidth
           |/_______________
             FLOPs per byte

The least time in which a device can do some work, its *roof*, is the larger of both.

Source: Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance model".
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import polars as pl

from ppprof.analysis.efficiency.operator_work import product_of, work_of_profile
from ppprof.analysis.profile.module_tree import (
    OCCURRENCE,
    SEPARATOR,
    join_path,
    module_nodes,
    modules,
    with_gradients_of_modules,
)
from ppprof.analysis.profile.profile import Profile, once
from ppprof.arrays import Int64
from ppprof.hardware import Device, known_device
from ppprof.trace.labels import map_texts
from ppprof.trace.operator_inputs import (
    dtype_as_shown,
    names_of_layers,
    operator_of_gradient,
    shapes_as_shown,
)
from ppprof.trace.schema import Trace

_TF32 = re.compile(r"tf32|tensorop_s1688")
"""Part of the names of CUDA's kernels that compute in TF32."""
_HALVES = ("bfloat16", "float16")
_REALS = (*_HALVES, "float32", "float64")


@dataclass(frozen=True)
class Roof:
    """What a device can do at best."""

    bytes_per_s: float | None
    """Bandwidth of its memory; None if unknown."""
    device: Device | None = None
    """None for a device whose vendor's numbers are unknown."""
    stated_flops: float | None = None
    """Peak FLOP/s that the job states; None if it states none."""
    uses_tf32: bool = False
    """Whether float32 is computed in TF32 where the device can."""

    def computed_in(self, dtype: str) -> str:
        """Return the dtype whose peak holds for operators on ``dtype``: ``tf32`` or itself."""
        if dtype != "float32" or not self.uses_tf32 or self.device is None:
            return dtype
        return "tf32" if self.device.peak_flops("tf32") is not None else dtype

    def flops(self, dtype: str) -> float | None:
        """Return the peak FLOP/s of operators on a dtype such as ``float32``; None if unknown.

        The number that the job states holds for bf16 and fp16, in which trainings compute; of an
        unknown device, for all real numbers.
        """
        stated_for = _HALVES if self.device is not None else _REALS
        dtype = self.computed_in(dtype)
        if self.stated_flops is not None and dtype in stated_for:
            return self.stated_flops
        return self.device.peak_flops(dtype) if self.device is not None else None

    def lines(self, dtypes: Iterable[str]) -> dict[str, float]:
        """Return the known peaks of some dtypes, keyed by dtype; empty without a bandwidth."""
        if self.bytes_per_s is None:
            return {}
        peaks = {dtype: self.flops(dtype) for dtype in sorted(set(dtypes))}
        return {dtype: peak for dtype, peak in peaks.items() if peak is not None}


def roof_of(trace: Trace) -> Roof:
    """Return the roof of the device that a trace was recorded on.

    Devices without events do not count. Of a trace without device events, it is the CPU's, which only the job can state. Float32 is computed
    in TF32 if the framework may, or if a kernel's name says so.
    """
    names = {str(device.get("name", "")) for device in trace.used_devices}
    has_device = trace.events["device"].count() > 0
    device = known_device(names.pop()) if has_device and len(names) == 1 else None
    published = device.memory_bandwidth if device is not None else None
    uses_tf32 = trace.uses_tf32 or (
        device is not None and any(map(_TF32.search, trace.names.texts))
    )
    return Roof(trace.stated_bytes_per_s or published, device, trace.stated_flops, uses_tf32)


@once
def roof_of_profile(profile: Profile) -> Roof:
    """Return `roof_of` a profile's trace.

    Float32 is also computed in TF32 if an operator is faster than the device without TF32.
    """
    roof = roof_of(profile.trace)
    rate = _kinds(profile).filter(dtype="float32")["flops_per_s"].max()
    exact = roof.flops("float32")
    if isinstance(rate, float) and exact is not None and rate > exact:
        return dataclasses.replace(roof, uses_tf32=True)
    return roof


EFFICIENCY: dict[str, pl.DataType] = {
    "name": pl.String(),
    "shapes": pl.String(),
    "dtype": pl.String(),
    "calls": pl.Int64(),
    "time_ns": pl.Int64(),
    "flops": pl.Int64(),
    "bytes": pl.Int64(),
    "flops_per_s": pl.Float64(),
    "bytes_per_s": pl.Float64(),
    "flops_per_byte": pl.Float64(),
    "peak_dtype": pl.String(),
    "roof_ratio": pl.Float64(),
    "bound": pl.String(),
    "above_roof_ns": pl.Float64(),
}
"""Columns of `efficiency`."""

EFFICIENCY_BY_STEP: dict[str, pl.DataType] = {
    "step": pl.Int64(),
    **EFFICIENCY,
    "least_ns": pl.Float64(),
    **dict.fromkeys(("batch", "m", "n", "k"), pl.Int64()),
    "half_ns": pl.Float64(),
}
"""Columns of `efficiency_by_step`."""

LEAST_KERNEL_NS = 2_000
"""A kernel of current devices takes about as long even if it does nothing."""


def efficiency(profile: Profile) -> pl.DataFrame:
    """Return operators by name and shapes of their inputs, the largest possible saving first.

    An operator has a row for each combination of shapes, dtype and attributes that differ in work.
    Its time is that of the device work that it launched, or its CPU time in a trace without device
    events; in both cases without that of operators that it calls. The table is empty if the trace
    lacks the events of its device.

    Returns:
        name (without " dygraph"; that of a gradient is ``matmul_grad``); shapes (for a gradient, of
        its operator's inputs; ``[4,128] [128,64]``); dtype (of the first input of real numbers, else of the first); calls;
        time_ns of all calls; flops and bytes of one call (`operator_work`); flops_per_s;
        bytes_per_s; flops_per_byte; peak_dtype (whose peak holds: ``tf32`` for float32 on devices
        that compute it so, else dtype); roof_ratio (0 to 1 and, where the peak is not exact, above);
        bound (``compute``, ``memory``, or ``launch`` if a kernel cannot be as short as the roof, see
        `LEAST_KERNEL_NS`); above_roof_ns (time per step that the roof would save).

        The last four are null for an unknown device, and for dtypes without a known peak.
        The last row has the operators whose work is unknown: name, shapes and all after time_ns are
        null. Operators without a call on the device are left out there.
    """
    if profile.unrecorded_device:
        return pl.DataFrame(schema=EFFICIENCY)
    calls = _calls(profile)
    roof, has_device = roof_of_profile(profile), not profile.tree.devices.is_empty()
    rows = _with_roof(_kinds(profile), roof, has_device)
    rows = rows.with_columns(pl.col("above_roof_ns") / max(1, len(profile.steps))).sort(
        "above_roof_ns", "time_ns", descending=True, nulls_last=True, maintain_order=True
    )
    unknown = calls.filter(pl.col("flops").is_null()).select(_TOTALS)
    unknown = unknown.filter(pl.col("calls") > 0)
    return pl.concat([rows, unknown], how="diagonal").select(
        pl.col(name).cast(dtype) for name, dtype in EFFICIENCY.items()
    )


def efficiency_by_step(profile: Profile) -> pl.DataFrame:
    """Return the rows of `efficiency` for each step, without operators of unknown work.

    Returns:
        Columns of `EFFICIENCY_BY_STEP`: step; those of `efficiency`, above_roof_ns for all calls;
        least_ns (the least time of all calls); of matrix products batch, m, n, k (see
        `ppprof.analysis.efficiency.operator_work.Product`); and half_ns (least_ns if computed in
        bf16 or fp16). No rows if the device's roof is unknown. Unordered.
    """
    roof, has_device = roof_of_profile(profile), not profile.tree.devices.is_empty()
    schema = EFFICIENCY_BY_STEP
    if profile.unrecorded_device or roof.bytes_per_s is None:
        return pl.DataFrame(schema=schema)
    calls = _calls(profile).filter(pl.col("flops").is_not_null())
    calls = calls.with_columns(step=profile.trace.events["step"].gather(calls["row"]))
    rows = _with_roof(_rates(calls.drop_nulls("step"), ["step"]), roof, has_device)
    half = roof.flops("bfloat16") or roof.flops("float16")
    calls_ns = pl.col("calls") * 1e9
    compute_ns = pl.col("flops").cast(pl.Float64) * calls_ns / pl.lit(half, pl.Float64)
    # float32 in half of the bytes
    memory_ns = pl.col("bytes").cast(pl.Float64) / 2 * calls_ns / roof.bytes_per_s
    rows = rows.with_columns(half_ns=_larger(compute_ns, memory_ns))
    return rows.select(pl.col(name).cast(dtype) for name, dtype in schema.items())


_TOTALS = [pl.len().cast(pl.Int64).alias("calls"), pl.col("time_ns").sum()]


@once
def _calls(profile: Profile) -> pl.DataFrame:
    """Return the operators that take time, with their inputs and their work."""
    tree = profile.tree
    is_operator = (tree.hosts["category"] == "Operator").to_numpy()
    own_ns = tree.own(tree.time_column, is_operator, tree.enclosing(is_operator))
    work = work_of_profile(profile)
    inputs = profile.trace.events.select(
        pl.int_range(pl.len(), dtype=pl.Int32).alias("row"),
        pl.col("shapes", "dtypes", "attributes").cast(pl.String),
    )
    return (
        tree.hosts.select("row", pl.col("name").cast(pl.String), time_ns=pl.Series(own_ns))
        .filter(pl.Series(is_operator) & (pl.col("time_ns") > 0))
        .join(work, on="row", how="left")
        .join(inputs, on="row", how="left")
    )


@once
def _kinds(profile: Profile) -> pl.DataFrame:
    """Return a row for each kind of call of known work; see `_rates`."""
    return _rates(_calls(profile).filter(pl.col("flops").is_not_null()), [])


@once
def operator_work(profile: Profile) -> pl.DataFrame:
    """Return the calls of operators that take time, with what they compute.

    Returns:
        row (of the events), name and shapes as in `efficiency`, time_ns, flops, bytes; the last two
        and shapes null where unknown. No rows if the trace lacks the events of its device.
    """
    calls = _calls(profile)
    if profile.unrecorded_device:
        calls = calls.clear()
    return calls.select(
        "row",
        map_texts(calls["name"], _shown),
        map_texts(calls["shapes"], shapes_as_shown),
        *("time_ns", "flops", "bytes"),
    )


def _rates(calls: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return a row for each kind of call, with the columns of `EFFICIENCY` that need no roof."""
    kind = ["name", "shapes", "dtypes", "flops", "bytes"]
    rows = calls.group_by([*keys, *kind], maintain_order=True).agg(
        *_TOTALS, pl.col("attributes").first()
    )
    kinds = rows.select("name", "shapes", "attributes").unique(maintain_order=True)
    products = [
        product_of(name.partition(" ")[0], *rest) or (None,) * 4 for name, *rest in kinds.rows()
    ]
    schema = {name: pl.Int64() for name in ("batch", "m", "n", "k")}
    kinds = kinds.hstack(pl.DataFrame(products, schema, orient="row"))
    rows = rows.join(
        kinds, on=["name", "shapes", "attributes"], nulls_equal=True, maintain_order="left"
    )
    total_ns = pl.col("time_ns").cast(pl.Float64)
    return rows.with_columns(
        name=map_texts(rows["name"], _shown),
        shapes=pl.Series([shapes_as_shown(text) for text in rows["shapes"]], dtype=pl.String),
        dtype=pl.Series([dtype_as_shown(text) for text in rows["dtypes"]], dtype=pl.String),
        flops_per_s=pl.col("flops").cast(pl.Float64) * pl.col("calls") * 1e9 / total_ns,
        bytes_per_s=pl.col("bytes").cast(pl.Float64) * pl.col("calls") * 1e9 / total_ns,
        flops_per_byte=pl.when(pl.col("bytes") > 0).then(pl.col("flops") / pl.col("bytes")),
    )


def _with_roof(rows: pl.DataFrame, roof: Roof, has_device: bool) -> pl.DataFrame:
    """Add least_ns, roof_ratio, bound and above_roof_ns, of all calls.

    Without a peak of the dtype, an operator that computes nothing is bound by memory.
    """
    dtypes = rows["dtype"].unique().drop_nulls().to_list()
    peaks = {dtype: roof.flops(dtype) for dtype in dtypes}
    peak_dtypes = {dtype: roof.computed_in(dtype) for dtype in dtypes if peaks[dtype] is not None}
    peak = pl.col("dtype").replace_strict(peaks, default=None, return_dtype=pl.Float64)
    computes = pl.col("flops") > 0
    compute_ns = pl.when(computes).then(pl.col("flops") * 1e9 / peak).otherwise(0.0)
    memory_ns = pl.col("bytes") * 1e9 / pl.lit(roof.bytes_per_s, pl.Float64)
    least_ns = _larger(compute_ns, memory_ns)
    rows = rows.with_columns(
        peak_dtype=pl.col("dtype").replace_strict(
            peak_dtypes, default=None, return_dtype=pl.String
        ),
        least_ns=least_ns * pl.col("calls"),
        bound=pl.when(pl.lit(has_device) & (least_ns < LEAST_KERNEL_NS))
        .then(pl.lit("launch"))
        .when(compute_ns >= memory_ns)
        .then(pl.lit("compute"))
        .when(compute_ns < memory_ns)
        .then(pl.lit("memory")),
    )
    return rows.with_columns(
        roof_ratio=pl.col("least_ns") / pl.col("time_ns"),
        above_roof_ns=(pl.col("time_ns") - pl.col("least_ns")).clip(0),
    )


def _larger(one: pl.Expr, other: pl.Expr) -> pl.Expr:
    """Return the larger of two columns; null where either is null."""
    return pl.when(one >= other).then(one).when(one < other).then(other)


def _shown(name: str) -> str:
    """Return an operator's name as it is shown.

    >>> _shown("matmul dygraph"), _shown("Global_LayerNormGradNode")
    ('matmul', 'layer_norm_grad')
    """
    operator = operator_of_gradient(name)
    return f"{operator}_grad" if operator is not None else name.partition(" ")[0]


_KIND = ["name", "shapes", "dtype"]


def mean_efficiency(tables: Sequence[pl.DataFrame], num_steps: int) -> pl.DataFrame:
    """Return one table for several ranks or windows, per step of an average rank.

    Returns:
        Columns of `EFFICIENCY`, sorted likewise; calls (float64), time_ns (float64), and above_roof_ns
        per step. Without operators of unknown work.
    """
    table = pl.concat([pl.DataFrame(schema=EFFICIENCY), *tables]).drop_nulls("name")
    calls, time_ns = pl.col("calls").sum(), pl.col("time_ns").sum()
    all_bytes = pl.col("bytes").cast(pl.Float64) * pl.col("calls")
    known_bytes = pl.when(pl.col("bytes").count() > 0).then(all_bytes.sum())
    sums = table.with_columns(least_ns=pl.col("roof_ratio") * pl.col("time_ns")).group_by(_KIND)
    means = sums.agg(
        calls=calls / num_steps,
        time_ns=time_ns / num_steps,
        flops=(pl.col("flops").cast(pl.Float64) * pl.col("calls")).sum() / calls,
        bytes=known_bytes / calls,
        flops_per_s=(pl.col("flops").cast(pl.Float64) * pl.col("calls")).sum() * 1e9 / time_ns,
        bytes_per_s=known_bytes * 1e9 / time_ns,
        roof_ratio=pl.when(pl.col("least_ns").count() > 0).then(pl.col("least_ns").sum() / time_ns),
        peak_dtype=pl.col("peak_dtype").first(),
        bound=pl.col("bound").first(),
    ).with_columns(
        flops_per_byte=pl.when(pl.col("bytes") > 0).then(pl.col("flops") / pl.col("bytes")),
        above_roof_ns=(pl.col("time_ns") * (1 - pl.col("roof_ratio"))).clip(0),
    )
    return means.select(*EFFICIENCY).sort(
        "above_roof_ns",
        "time_ns",
        *_KIND,
        descending=[True, True, False, False, False],
        nulls_last=True,
    )


LAYERS: dict[str, pl.DataType] = {
    "depth": pl.Int64(),
    "name": pl.String(),
    "attribute": pl.String(),
    "steps": pl.Int64(),
    "forward_ns": pl.Float64(),
    "backward_ns": pl.Float64(),
    "ratio": pl.Float64(),
    "flops": pl.Float64(),
    "backward_flops": pl.Float64(),
    "flops_per_s": pl.Float64(),
    "mfu": pl.Float64(),
}


def layers(profile: Profile) -> pl.DataFrame:
    """Return the modules of a step, with their times, FLOPs and rates.

    They come in the order in which they run. If the profile's options name a sort key, modules of
    one parent come with the longest first.

    A module is an ``nn.Layer``, or a span of the user; see `ppprof.analysis.profile.module_tree`.
    The second ``Block`` of a ``GPT`` is one row for all steps.

    Returns:
        depth (0 for an outermost module); name; attribute (the names from the outermost layer on,
        ``blocks.0.mlp``, null if they are not recorded); steps (number of steps that have it); per step, with
        all modules below: forward_ns, backward_ns, flops of the forward, and backward_flops. Times
        are those of the device if the module launches work on it, else of the CPU. ratio is the
        share of forward and backward in the time of all steps, which is the sum of ``self_ns`` of
        `ppprof.analysis.profile.module_tree.modules`. FLOPs are those
        of the operators whose work is known; gradients are those that are known to belong to the
        module, and backward_ns and backward_flops are null if none is; of a span around a
        Backward, all of it. flops_per_s of both
        together, and mfu, its share of the device's peak for the dtype in which most of them are
        computed; null if that is unknown. Empty if the trace lacks the
        events of its device.
    """
    if profile.unrecorded_device:
        return pl.DataFrame(schema=LAYERS)
    flops = flops_of_hosts(profile)
    table = modules(
        profile, flops=np.zeros(profile.tree.hosts.height, np.int64) if flops is None else flops
    )
    whole_ns = table["self_ns"].sum()
    table = with_gradients_of_modules(table.filter(pl.col("path") != ""))
    forward = table.filter(~pl.col("is_phase"))
    around = _around_backwards(table).join(forward, ["step", "path"], "semi")
    # A module around a Backward has all of it as its gradients.
    backward = table.filter("is_gradient").join(around, ["step", "path"], "anti")
    backward = pl.concat([backward, around])
    forward = pl.concat([forward, around.with_columns(-pl.col("time_ns", "flops"))])
    last = pl.col("path").str.split(SEPARATOR)
    sums = [pl.col("time_ns").sum(), pl.col("flops").sum(), pl.col("step").n_unique()]
    of_forward = forward.group_by("path", maintain_order=True).agg(*sums)
    of_backward = backward.group_by("path").agg(*sums[:2])
    rows = of_forward.join(of_backward, "path", "left", suffix="_of_backward")
    name = last.list.last().str.split(OCCURRENCE).list.first()
    whole = pl.sum_horizontal
    rows = rows.with_columns(
        depth=last.list.len().cast(pl.Int64) - 1,
        name=name,
        steps=pl.col("step").cast(pl.Int64),
        forward_ns=pl.col("time_ns") / pl.col("step"),
        backward_ns=pl.col("time_ns_of_backward") / pl.col("step"),
        ratio=whole("time_ns", "time_ns_of_backward") / pl.lit(max(whole_ns, 1)),
        flops_per_s=whole("flops", "flops_of_backward")
        * 1e9
        / whole("time_ns", "time_ns_of_backward"),
        flops=pl.col("flops") / pl.col("step"),
        backward_flops=pl.col("flops_of_backward") / pl.col("step"),
    )
    peak = _peak(profile)
    rows = (
        rows.join(_attributes(profile), "path", "left", maintain_order="left")
        .with_columns(
            pl.when(pl.col("flops_per_s").is_finite()).then("flops_per_s"),
        )
        .with_columns(mfu=pl.col("flops_per_s") / pl.lit(peak, pl.Float64))
    )
    rows = rows.select(pl.col(column).cast(dtype) for column, dtype in LAYERS.items())
    return rows if profile.options.sorted_by == "auto" else rows[_longest_first(rows)]


def _around_backwards(table: pl.DataFrame) -> pl.DataFrame:
    """Return a row with the values of each Backward for each module around it."""
    backwards = table.filter("is_backward")
    paths = [[*accumulate(path.split(SEPARATOR), join_path)][:-1] for path in backwards["path"]]
    around = backwards.with_columns(path=pl.Series(paths, dtype=pl.List(pl.String)))
    return around.explode("path").drop_nulls("path")


def _attributes(profile: Profile) -> pl.DataFrame:
    """Return the paths of layers, and the attributes that lead to them: path, attribute."""
    texts = profile.trace.events["attributes"].slice(0, profile.tree.hosts.height)
    names = pl.DataFrame({"attribute": names_of_layers(texts)}).with_row_index("row").drop_nulls()
    return (
        module_nodes(profile)
        .select(pl.col("row").cast(pl.UInt32), "path")
        .join(names, "row")
        .group_by("path")
        .agg(pl.col("attribute").first())
    )


def _longest_first(rows: pl.DataFrame) -> list[int]:
    """Return the order of rows in pre-order in which the longest of siblings comes first."""
    above: list[tuple[float, int]] = []
    keys = []
    for row, (depth, ratio) in enumerate(rows.select("depth", "ratio").iter_rows()):
        above[depth:] = [(-ratio, row)]
        keys.append(tuple(above))
    return sorted(range(len(keys)), key=keys.__getitem__)


LARGEST: dict[str, pl.DataType] = {
    "name": pl.String(),
    "modules": pl.Int64(),
    "forward_ns": pl.Float64(),
    "backward_ns": pl.Float64(),
    "ratio": pl.Float64(),
}


def largest_modules(profile: Profile, steps: pl.Series) -> pl.DataFrame:
    """Return the parts of a step that add up to it: modules without the modules below them.

    Modules of one class in parents of the same classes are one row: all ``Linear`` of all ``Block``.
    Modules of other threads, beside the step, do not count, nor do pauses.

    Args:
        profile: the events of a window.
        steps: the steps of the window that count.

    Returns:
        name: the classes from the outermost module on, joined by " > "; ``Backward`` is what no
        module's gradients are, and the empty name is outside all modules. modules: how many there
        are. forward_ns and backward_ns: per step. ratio: the share of both; the sum is 1. The
        largest first. Empty if the trace lacks the events of its device, or has no step.
    """
    if profile.unrecorded_device:
        return pl.DataFrame(schema=LARGEST)
    outermost = pl.col("path").str.split(SEPARATOR).list.first().alias("outermost")
    nodes, tree = module_nodes(profile), profile.tree
    is_step = (tree.hosts["category"] == "ProfileStep").to_numpy()
    beside = tree.enclosing(is_step)[nodes["row"].to_numpy()] < 0  # other threads', remote calls
    table = modules(profile).filter(pl.col("step").is_in(steps.implode())).with_columns(outermost)
    if is_step.any():
        others = nodes.filter(beside, ~pl.col("is_step")).select("step", outermost)
        table = table.join(others, ["step", "outermost"], "anti")
    pauses = nodes.filter(pl.col("row").is_in(profile.pauses["row"].implode()))
    table = table.join(pauses, ["step", "path"], "anti")
    table = with_gradients_of_modules(table)
    num_steps = max(table["step"].n_unique(), 1)
    whole_ns = max(table["self_ns"].sum(), 1)
    names = pl.col("path").str.replace_all(f"{OCCURRENCE}[0-9]+", "")
    own_ns = pl.col("self_ns")
    is_backward = pl.col("is_gradient") | pl.col("is_backward")
    return (
        table.with_columns(
            name=pl.when("is_backward")
            .then(pl.lit("Backward"))
            .otherwise(names.str.replace_all(SEPARATOR, " > ", literal=True))
        )
        .group_by("name")
        .agg(
            modules=pl.col("path").n_unique(),
            forward_ns=own_ns.filter(~is_backward).sum() / num_steps,
            backward_ns=own_ns.filter(is_backward).sum() / num_steps,
            ratio=own_ns.sum() / whole_ns,
        )
        .sort("ratio", "name", descending=[True, False])
        .select(pl.col(column).cast(dtype) for column, dtype in LARGEST.items())
    )


def flops_of_hosts(profile: Profile) -> Int64 | None:
    """Return the FLOPs of each host event, shape (hosts,); None if those of no event are known.

    0 for an event of unknown work, and for one that lies in another one with known FLOPs.
    """
    hosts = profile.tree.hosts
    work = work_of_profile(profile).drop_nulls("flops").filter(pl.col("row") < hosts.height)
    if work.is_empty():
        return None
    rows = work["row"].to_numpy()
    known = np.zeros(hosts.height, bool)
    known[rows] = True
    is_nested = profile.tree.enclosing(known)[rows] >= 0
    flops = np.zeros(hosts.height, np.int64)
    flops[rows] = np.where(is_nested, 0, work["flops"].to_numpy())
    return flops


def _peak(profile: Profile) -> float | None:
    """Return the peak FLOP/s for the dtype of the operators that do most of the work."""
    dtype = main_dtype(profile)
    return None if dtype is None else roof_of_profile(profile).flops(dtype)


def main_dtype(profile: Profile) -> str | None:
    """Return the dtype in which most FLOPs are computed; None if no work is known."""
    flops = (pl.col("flops") * pl.col("calls")).sum()
    work = _kinds(profile).drop_nulls("dtype").group_by("dtype", maintain_order=True).agg(flops)
    if work.is_empty():
        return None
    return str(work.sort("flops", descending=True, maintain_order=True)["dtype"][0])
