"""Types of the values in the rows of summary tables: what `ppprof.run.kept_tables` may read.

The columns and their order are those of `ppprof.analysis.summaries.views.SCHEMAS`, which needs
polars. Values that the text of a table needs may not be null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Optional

from msgspec import Meta

_INT = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_DEPTH = Annotated[int, Meta(ge=0, le=1000)]  # the text is indented
_KINDS = Literal["operator", "inner", "inner_device", "accumulation", "device", "shape"]
_MAYBE_INT, _MAYBE_FLOAT, _MAYBE_TEXT = Optional[_INT], Optional[float], Optional[str]

_STATS: Mapping[str, Any] = {
    "calls": _MAYBE_INT,
    **{
        f"{clock}_{stat}_ns": _MAYBE_FLOAT if stat == "avg" else _MAYBE_INT
        for clock in ("cpu", "gpu")
        for stat in ("total", "avg", "max", "min")
    },
    "cpu_ratio": _MAYBE_FLOAT,
    "gpu_ratio": _MAYBE_FLOAT,
}
_SPANS: Mapping[str, Any] = {"name": str, **_STATS}

ROWS: Mapping[str, Mapping[str, Any]] = {
    "device": {"device": str, "utilization": _MAYBE_FLOAT},
    "overview": {
        "side": Literal["cpu", "gpu"],
        "event_type": str,
        "calls": _MAYBE_INT,
        "time_ns": _INT,
        "ratio": _MAYBE_FLOAT,
    },
    "model": _SPANS,
    "dist": {
        "name": str,
        "time_ns": _MAYBE_INT,
        "ratio": _MAYBE_FLOAT,
        "computed_by": Optional[Literal["kernels", "operators", "nothing"]],
    },
    "op": {
        "thread": _MAYBE_INT,
        "kind": _KINDS,
        **_SPANS,
        "flops": _MAYBE_INT,
        "node": _MAYBE_TEXT,
    },
    "kernel": {name: kind for name, kind in _SPANS.items() if not name.startswith("cpu_")},
    "memcpy": _SPANS,
    "udf": {**_SPANS, "node": _MAYBE_TEXT},
    "mem": {
        **{"place": str, "type": str, "name": str},
        **dict.fromkeys(("allocation_count", "free_count"), _INT),
        **dict.fromkeys(("allocation_bytes", "free_bytes", "increase_bytes"), _INT),
        **dict.fromkeys(("peak_allocated_bytes", "peak_reserved_bytes"), _INT),
    },
    "shape": {"name": str, "shapes": _MAYBE_TEXT, **_STATS, "flops": _MAYBE_INT},
    "layer": {
        "depth": _DEPTH,
        "name": str,
        "steps": _INT,
        "forward_ns": float,
        **dict.fromkeys(("backward_ns", "flops", "backward_flops"), _MAYBE_FLOAT),
        **dict.fromkeys(("flops_per_s", "mfu"), _MAYBE_FLOAT),
    },
    "efficiency": {
        **{"name": _MAYBE_TEXT, "shapes": _MAYBE_TEXT, "dtype": _MAYBE_TEXT},
        **{"calls": _INT, "time_ns": _INT, "flops": _MAYBE_INT, "bytes": _MAYBE_INT},
        **dict.fromkeys(("flops_per_s", "bytes_per_s", "flops_per_byte"), _MAYBE_FLOAT),
        **{"roof_ratio": _MAYBE_FLOAT, "bound": _MAYBE_TEXT, "above_roof_ns": _MAYBE_FLOAT},
    },
}
"""View -> column -> type of its values."""


def row_types(view: str, *, thread_sep: bool) -> Mapping[str, Any]:
    """Return the type of each column of a view; the arguments are those of `schema_of`."""
    columns = ROWS[view]
    return {"thread": _MAYBE_INT, **columns} if thread_sep and view == "udf" else columns
