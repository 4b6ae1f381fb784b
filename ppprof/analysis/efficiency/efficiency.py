"""How close operators come to what their device can do, by operator and shapes of its inputs."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from ppprof.analysis.efficiency.operator_work import product_of, work_of_profile
from ppprof.analysis.efficiency.roof import Roof, roof_of
from ppprof.analysis.profile.profile import Profile
from ppprof.trace.operator_inputs import (
    dtype_as_shown,
    operator_of_gradient,
    shapes_as_shown,
)

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
        bytes_per_s; flops_per_byte; roof_ratio (0 to 1 and, where the peak is not exact, above);
        bound (``compute``, ``memory``, or ``launch`` if a kernel cannot be as short as the roof, see
        `LEAST_KERNEL_NS`); above_roof_ns (time per step that the roof would save).

        The last three are null for an unknown device, and for dtypes without a known peak.
        The last row has the operators whose work is unknown: name, shapes and all after time_ns are
        null. Operators without a call on the device are left out there.
    """
    if profile.unrecorded_device:
        return pl.DataFrame(schema=EFFICIENCY)
    calls = profile.once(_calls)
    roof, has_device = roof_of(profile.trace), not profile.tree.devices.is_empty()
    rows = _rates(calls.filter(pl.col("flops").is_not_null()), [])
    rows = _with_roof(rows, roof, has_device)
    rows = rows.with_columns(pl.col("above_roof_ns") / max(1, len(profile.steps))).sort(
        "above_roof_ns", "time_ns", descending=True, nulls_last=True, maintain_order=True
    )
    unknown = calls.filter(pl.col("flops").is_null()).select(_TOTALS)
    unknown = unknown.filter(pl.col("calls") > 0)
    return pl.concat([rows, unknown], how="diagonal").select(
        (pl.col(name) if name in rows.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in EFFICIENCY.items()
    )


def efficiency_by_step(profile: Profile) -> pl.DataFrame:
    """Return the rows of `efficiency` for each step, without operators of unknown work.

    Returns:
        Columns of `EFFICIENCY_BY_STEP`: step; those of `efficiency`, above_roof_ns for all calls;
        least_ns (the least time of all calls); of matrix products batch, m, n, k (see
        `ppprof.analysis.efficiency.operator_work.Product`); and half_ns (least_ns if computed in
        bf16 or fp16). No rows if the device's roof is unknown. Unordered.
    """
    roof, has_device = roof_of(profile.trace), not profile.tree.devices.is_empty()
    schema = EFFICIENCY_BY_STEP
    if profile.unrecorded_device or roof.bytes_per_s is None:
        return pl.DataFrame(schema=schema)
    calls = profile.once(_calls).filter(pl.col("flops").is_not_null())
    calls = calls.with_columns(step=profile.trace.events["step"].gather(calls["row"]))
    rows = _with_roof(_rates(calls.drop_nulls("step"), ["step"]), roof, has_device)
    half = roof.flops("bfloat16") or roof.flops("float16")
    calls_ns = pl.col("calls") * 1e9
    compute_ns = pl.col("flops").cast(pl.Float64) * calls_ns / pl.lit(half, pl.Float64)
    # float32 in half of the bytes
    memory_ns = pl.col("bytes").cast(pl.Float64) / 2 * calls_ns / roof.bytes_per_s
    rows = rows.with_columns(
        half_ns=pl.when(compute_ns.is_not_null()).then(pl.max_horizontal(compute_ns, memory_ns))
    )
    return rows.select(pl.col(name).cast(dtype) for name, dtype in schema.items())


_TOTALS = [pl.len().cast(pl.Int64).alias("calls"), pl.col("time_ns").sum()]


def _calls(profile: Profile) -> pl.DataFrame:
    """Return the operators that take time, with their inputs and their work."""
    tree = profile.tree
    clock = "cpu_ns" if tree.devices.is_empty() else "device_ns"
    is_operator = (tree.hosts["category"] == "Operator").to_numpy()
    own_ns = tree.own(clock, is_operator, tree.enclosing(is_operator))
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


def operator_work(profile: Profile) -> pl.DataFrame:
    """Return the calls of operators that take time, with what they compute.

    Returns:
        row (of the events), name and shapes as in `efficiency`, time_ns, flops, bytes; the last two
        and shapes null where unknown. No rows if the trace lacks the events of its device.
    """
    return profile.once(_operator_work)


def _operator_work(profile: Profile) -> pl.DataFrame:
    calls = profile.once(_calls)
    if profile.unrecorded_device:
        calls = calls.clear()
    texts = calls["shapes"].drop_nulls().unique()
    shapes = {text: shapes_as_shown(text) for text in texts}
    names = {name: _shown(name) for name in calls["name"].unique()}
    return calls.select(
        "row",
        pl.col("name").replace_strict(names, default=None, return_dtype=pl.String),
        pl.col("shapes").replace_strict(shapes, default=None, return_dtype=pl.String),
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
    shown = {name: _shown(name) for name in rows["name"].unique()}
    total_ns = pl.col("time_ns").cast(pl.Float64)
    return rows.with_columns(
        name=pl.col("name").replace_strict(shown, return_dtype=pl.String),
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
    peak = pl.col("dtype").replace_strict(peaks, default=None, return_dtype=pl.Float64)
    computes = pl.col("flops") > 0
    compute_ns = pl.when(computes).then(pl.col("flops") * 1e9 / peak).otherwise(0.0)
    memory_ns = pl.col("bytes") * 1e9 / pl.lit(roof.bytes_per_s, pl.Float64)
    is_launch = pl.lit(has_device) & (pl.max_horizontal(compute_ns, memory_ns) < LEAST_KERNEL_NS)
    rows = rows.with_columns(
        least_ns=pl.when(compute_ns >= memory_ns)
        .then(compute_ns)
        .when(compute_ns < memory_ns)
        .then(memory_ns)
        * pl.col("calls"),
        bound=pl.when((compute_ns + memory_ns).is_not_null() & is_launch)
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

    Args:
        tables: results of `efficiency`.
        num_steps: the number of their steps, of all ranks together.

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
