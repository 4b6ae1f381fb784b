"""The schema of ``ppprof memory``."""

from ppprof.schemas.shorthand import document, fields, rows, schema_version

_TENSOR = {
    "kind": "string",
    "name": "string",
    "shape": "array[integer]",
    "dtype": "string",
    "bytes": "integer",
}

_CONTAINER = {
    "name": "string: As in Trainer.history (list).",
    "num_tensors": "integer",
    "bytes": "integer: Of tensors that no layer, optimizer or container ahead of it has.",
    "has_graphs": "boolean: Whether the tensors have graphs, which may keep more.",
}

_FAILURE = {
    "rank": "integer",
    "step": "integer: Steps that had ended.",
    "error": "string",
    "requested_bytes": "integer | null: What did not fit.",
    "place": "string: The user's line: train.py:41 step.",
    "module": 'string: The module; "" outside modules.',
    "device": "string",
    "allocated_bytes": "integer | null: In tensors.",
    "reserved_bytes": "integer | null: Taken from the device.",
    "total_bytes": "integer | null: Size of the device's memory.",
    "bytes_by_kind": "object[integer]: Bytes of parameters, gradients, optimizer states ...",
    "largest": rows(_TENSOR, "The largest tensors."),
    "containers": rows(
        _CONTAINER, "Lists, dicts, deques and sets with the most tensors, most bytes first."
    ),
}

_PEAK = {
    "rank": "integer",
    "step": "integer",
    "peak_bytes": "integer | null: Peak so far.",
    "reserved_bytes": "integer | null",
    "total_bytes": "integer | null",
}

_ALLOCATIONS = {"num": "integer: Number of allocations.", "bytes": "integer"}

_HELD = {
    "phase": "string | null",
    "module": "string | null",
    "operator": "string | null",
    "line": "string | null",
    **_ALLOCATIONS,
}

_WINDOW = {
    "rank": "integer",
    "window": "integer",
    "place": "string: The device or memory.",
    "step": "integer | null: Step of the peak; null outside steps.",
    "allocated_bytes": "integer",
    "before_bytes": "integer: Allocated before the window; the rest is in table.",
    "lines": rows(
        {"line": "string", **_ALLOCATIONS},
        "The sums of table by line, the most bytes first; what has no line is left out.",
    ),
    "table": rows(_HELD),
}

_REMEDY = {
    "name": "string",
    "bytes": "integer: What it gives back at most.",
    "why": "string",
}

SCHEMA = document(
    "memory",
    1,
    "Who holds the memory, in bytes.",
    fields(
        {
            "schema_version": schema_version(1),
            "failures": rows(_FAILURE, "Ranks whose memory ran out."),
            "peaks": rows(_PEAK, "After the last steps of each rank."),
            "window": {"anyOf": [{"type": "null"}, fields(_WINDOW, "The peak of the window.")]},
            "remedies": rows(_REMEDY, "What would give memory back, each alone."),
        }
    ),
)
