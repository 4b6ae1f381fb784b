"""Kineto's events of devices and of memory, and the properties of devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from ppprof.trace.json.values import drop_nonportable_numbers
from ppprof.trace.kineto.lookup import first_rows, looked_up, mapped, per_text, sorted_by
from ppprof.trace.kineto.terms import DEVICES, PLACES
from ppprof.trace.schema import KERNELS, MEMORY, conform, nullable


def device_events(
    devices: pl.DataFrame, launches: pl.DataFrame, annotations: pl.DataFrame
) -> pl.DataFrame:
    """Return the device events with their category, annotations and launch, sorted by launch.

    ``parent`` is the row of the launch. It is null for device events without a recorded launch,
    which come last.

    Args:
        devices: the table ``devices`` of `KinetoColumns.tables`.
        launches: reads correlation and row, the launch's row in the events table.
        annotations: the result of `_annotations` for device events.
    """
    launch = first_rows(launches["correlation"], devices["correlation"])
    parent = np.append(launches["row"].to_numpy(), np.int32(-1))[launch]
    annotated = looked_up(
        annotations.drop("index"), first_rows(annotations["index"], devices["index"])
    )
    if annotated.width:
        devices = devices.with_columns(
            annotated.drop("bytes"), bytes=devices["bytes"].fill_null(annotated["bytes"])
        )
    devices = devices.with_columns(
        parent=nullable(parent),
        category=mapped(devices["cat"], DEVICES),
        # Until torch 1.11 some events lack device and stream in their args.
        device=pl.coalesce("device", "process"),
        stream=pl.coalesce("stream", "thread"),
        correlation_id="correlation",
    ).drop("index", "cat", "process", "thread", "correlation")
    return sorted_by(devices, np.where(parent < 0, np.iinfo(np.int32).max, parent))


def kernel_table(devices: pl.DataFrame, first_device: int) -> pl.DataFrame:
    """Return the launch configurations of kernels, with the columns of `KERNELS`.

    Kernels whose grid is not recorded, such as those of ROCm, have no row.

    Args:
        devices: the device events in their final order.
        first_device: row of the first device event in the events table.
    """
    per_sm = pl.col("blocks_per_sm", "warps_per_sm", "occupancy")
    columns = [name for name in KERNELS if name in devices.columns]
    table = (
        devices.select("grid", "block", *columns)
        .with_row_index("event", offset=first_device)
        .filter(devices["category"] == "Kernel", devices["grid"].is_not_null())
    )
    table = (
        table.with_columns(*_sizes(table["grid"]), *_sizes(table["block"]))
        .with_columns(pl.when(per_sm.is_finite()).then(per_sm))
        .with_columns(occupancy=pl.col("occupancy") / 100)
        .drop_nulls("grid_x")
    )
    return conform(table, KERNELS)


def _sizes(texts: pl.Series) -> pl.DataFrame:
    """Return the sizes along x, y and z in each text, such as ``[4, 1, 1]``."""
    three = r"\[(\d+), ?(\d+), ?(\d+)\]"
    return per_text(
        texts,
        **{
            f"{texts.name}_{axis}": pl.col("text")
            .str.extract(three, number)
            .cast(pl.Int64, strict=False)
            for number, axis in enumerate("xyz", start=1)
        },
    )


def memory_table(memory: pl.DataFrame) -> pl.DataFrame:
    """Return the allocations and frees, with the columns of `MEMORY`.

    Kineto records no peaks. So a peak is the highest value so far in this window, per process and
    place.

    Args:
        memory: memory events with ``parent``, from `with_parent`.
    """
    number = pl.col("device_id").cast(pl.String)
    kind = pl.col("device_type").replace_strict(
        PLACES, default=pl.format("device_type{}", "device_type"), return_dtype=pl.String
    )
    place = (
        pl.when(kind == "cpu")
        .then(pl.lit("Place(cpu)"))
        .otherwise(pl.format("Place({}:{})", kind, number))
    )
    table = memory.sort("start_ns", maintain_order=True).select(
        "key",
        "process",
        "thread",
        "addr",
        time_ns="start_ns",
        event="parent",
        kind=pl.when(pl.col("size") < 0).then(pl.lit("Free")).otherwise(pl.lit("Allocate")),
        place=place,
        bytes="size",
        current_allocated="allocated",
        current_reserved="reserved",
    )
    peaks = (
        pl.col(f"current_{kind}").cum_max().over("process", "place").alias(f"peak_{kind}")
        for kind in ("allocated", "reserved")
    )
    return conform(table.with_columns(*peaks).sort("key", maintain_order=True), MEMORY)


def device_properties(properties: Any) -> Iterator[Mapping[str, object]]:
    """Yield each device's properties with Paddle's keys: ``smCount`` instead of ``numSms``."""
    for item in properties if isinstance(properties, list) else ():
        if isinstance(item, dict):
            values = drop_nonportable_numbers(item)
            yield {"smCount" if key == "numSms" else key: value for key, value in values.items()}
