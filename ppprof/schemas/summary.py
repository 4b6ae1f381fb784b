"""The schema of ``ppprof summary``."""

from ppprof.schemas.shorthand import document, fields, rows, schema_version, tables

_WINDOW = {"window": "integer: Number of the window, from 0."}
_SORTED_BY = {"sorted_by": "string: The sort key, such as gpu_total."}
_STEPS = {"steps": "array[integer]: Numbers of the steps."}
_LOST = {
    "lost": "object[integer]: Number of unreadable parts of the file by kind; empty if all was read.",
}
_RANK = {
    "rank": "integer: The rank.",
    "coordinate": "string | null: Position of the rank on each axis, such as dp0_pp0_sharding0_mp0; null if unknown.",
}

_NAME = {
    "name": "string: What the row is about: an operator, a kernel, a phase, a module, a line.",
}
_CALLS = {"calls": "integer | null: Number of calls."}
_CPU = {
    "cpu_total_ns": "integer | null: Time between start and end of the calls on the host, added up.",
    "cpu_avg_ns": "number | null: The mean of one call on the host.",
    "cpu_max_ns": "integer | null: The longest call on the host.",
    "cpu_min_ns": "integer | null: The shortest call on the host.",
}
_GPU = {
    "gpu_total_ns": "integer | null: Time of the kernels, copies and memory sets that the calls launched, added up.",
    "gpu_avg_ns": "number | null: The mean of one call on the device.",
    "gpu_max_ns": "integer | null: The longest call on the device.",
    "gpu_min_ns": "integer | null: The shortest call on the device.",
}
_CPU_RATIO = {
    "cpu_ratio": "number | null: cpu_total_ns as a ratio of the table's whole, as docs/definitions.md defines it.",
}
_GPU_RATIO = {
    "gpu_ratio": "number | null: gpu_total_ns as a ratio of the table's whole, as docs/definitions.md defines it.",
}
_STATISTICS = {**_CALLS, **_CPU, **_GPU, **_CPU_RATIO, **_GPU_RATIO}
_NODE = {"node": "string | null: The worker of a remote call; null elsewhere."}
_SHAPES = {
    "shapes": "string | null: Shapes of the inputs, such as [4,128] [128,64]; null if unknown.",
}
_FLOPS = {"flops": "integer | null: Floating point operations; null if unknown."}
_FLOPS_PER_S = {"flops_per_s": "number | null: Floating point operations per second."}
_BYTES_PER_S = {"bytes_per_s": "number | null: Bytes per second."}
_TIME = {"time_ns": "number | null: Time of all calls."}
_RATIO = {
    "ratio": "number | null: The time as a ratio of the time inside steps; null without steps.",
}

_DEVICE = {
    "device": "string: CPU(Process), CPU(System), GPU0 ...",
    "utilization": "number | null: Ratio of the time in which the device is busy; of CPU(Process), the number of busy cores. Null if unknown.",
}

_OVERVIEW = {
    "side": "string: cpu or gpu.",
    "event_type": "string: The type of event.",
    **_CALLS,
    **_TIME,
    **_RATIO,
}

_DIST = {
    **_NAME,
    **_TIME,
    **_RATIO,
    "computed_by": "string | null: kernels, operators or nothing: what counts as computation; null in the first two rows.",
}

_OP = {
    "thread": "integer | null: The thread; null if threads are merged.",
    "kind": "string: operator, or what the row is of the operator before it: inner, kernel, shape ...",
    **_NAME,
    **_STATISTICS,
    **_FLOPS,
    **_NODE,
}

_KERNEL = {**_NAME, **_CALLS, **_GPU, **_GPU_RATIO}

_MEM = {
    "place": "string: The device or memory, such as Place(gpu:0).",
    "type": "string: Allocated (memory of tensors) or Reserved (memory taken from the device).",
    "name": "string: The event.",
    "allocation_count": "integer: Number of allocations.",
    "free_count": "integer: Number of frees.",
    "allocation_bytes": "integer: Bytes allocated.",
    "free_bytes": "integer: Bytes freed.",
    "increase_bytes": "integer: allocation_bytes minus free_bytes.",
    "peak_allocated_bytes": "integer: Peak of the place in tensors.",
    "peak_reserved_bytes": "integer: Peak of the place taken from the device.",
}

_COPIES = {
    "direction": "string | null: HtoD (host to device), DtoH, DtoD, HtoH or PtoP (between devices).",
    "memory": "string | null: pinned, pageable or device; null if it is not recorded.",
    **_CALLS,
    "bytes": "number | null: Bytes; null if unknown.",
    **_GPU,
    "step_ratio": "number | null: Ratio of the time of steps in which at least one copy runs; null without steps.",
    **_BYTES_PER_S,
}

_LAYER = {
    "depth": "integer: 0 for an outermost module.",
    **_NAME,
    "attribute": "string | null: Names of the layer from the outermost one on, such as blocks.0.mlp; null if not recorded.",
    "steps": "integer: Number of steps that have the module.",
    "forward_ns": "number | null: Time of the forward per step.",
    "backward_ns": "number | null: Time of the backward per step; null if no gradient is known to belong to the module.",
    "ratio": "number | null: Ratio of forward and backward in the time of all steps.",
    "flops": "number | null: Floating point operations of the forward per step; null if unknown.",
    "backward_flops": "number | null: Floating point operations of the backward per step; null if unknown.",
    **_FLOPS_PER_S,
    "mfu": "number | null: flops_per_s as a ratio of the device's peak; null if unknown.",
}

_EFFICIENCY = {
    "name": "string | null: The operator; matmul_grad for a gradient.",
    **_SHAPES,
    "dtype": "string | null: Type of the first input of real numbers.",
    **_CALLS,
    **_TIME,
    "flops": "integer | null: Floating point operations of one call; null if unknown.",
    "bytes": "integer | null: Bytes that one call reads and writes; null if unknown.",
    **_FLOPS_PER_S,
    **_BYTES_PER_S,
    "flops_per_byte": "number | null: Floating point operations per byte.",
    "peak_dtype": "string | null: Type whose peak counts.",
    "roof_ratio": "number | null: Reached part of what the device could do at best, as a ratio; null for an unknown device.",
    "bound": "string | null: compute, memory or launch: what limits the operator at best.",
    "above_roof_ns": "number | null: Time per step that the device's best would save.",
}

_PYTHON = {
    "thread": "string | null: Name of the thread.",
    "kind": "string | null: The kind of code.",
    "file": "string | null: File of the line.",
    "line": "integer | null: Number of the line.",
    "function": "string | null: Function of the line.",
    "source": "string | null: Text of the line, as it was recorded.",
    "samples": "integer: Number of samples of the stack.",
    "self_ns": "number | null: Time with the line on top of the stack.",
    "total_ns": "number | null: Time with the line anywhere in the stack.",
    "self_ratio": "number | null: self_ns as a ratio of the time inside steps.",
    "total_ratio": "number | null: total_ns as a ratio of the time inside steps.",
    "low_ratio": "number | null: Lower end of the 95% interval of total_ratio; null for other threads.",
    "high_ratio": "number | null: Upper end of the 95% interval of total_ratio; null for other threads.",
}

_VIEWS = {
    "device?": fields(_DEVICE, "Utilization of CPU and devices."),
    "overview?": fields(_OVERVIEW, "Time by type of event."),
    "model?": fields(
        {**_NAME, **_STATISTICS},
        "Steps by phase: data loading, forward, backward, optimizer.",
    ),
    "dist?": fields(_DIST, "Communication, computation and their overlap."),
    "op?": fields(_OP, "Operators, each followed by what it calls and launches."),
    "kernel?": fields(_KERNEL, "Kernels by name."),
    "memcpy?": fields({**_NAME, **_STATISTICS}, "User-defined spans that copy or set memory."),
    "udf?": fields({**_NAME, **_STATISTICS, **_NODE}, "Spans recorded from Python."),
    "mem?": fields(_MEM, "Memory by event."),
    "copies?": fields(_COPIES, "Copies by direction and memory."),
    "shape?": fields(
        {**_NAME, **_SHAPES, **_STATISTICS, **_FLOPS}, "Operators by shapes of their inputs."
    ),
    "layer?": fields(_LAYER, "Layers, as a tree in pre-order."),
    "efficiency?": fields(
        _EFFICIENCY,
        "Operators against the best of the device; name is null in the row of operators of unknown work.",
    ),
    "python?": fields(_PYTHON, "Lines of Python, from samples of the stacks."),
}

_SELF = {
    "cpu_self_ns": "integer | null: Time of the operators on the host without the operators that they call; null if unknown.",
    "cpu_self_ratio": "number | null: cpu_self_ns as a ratio of all operators of the rank.",
}

_VIEWS_BY_RANK = {
    "model?": fields({**_RANK, **_NAME, **_STATISTICS}),
    "dist?": fields({**_RANK, **_DIST}),
    "op?": fields({**_RANK, **_NAME, **_STATISTICS, **_NODE, **_SELF}),
    "kernel?": fields({**_RANK, **_KERNEL}),
    "memcpy?": fields({**_RANK, **_NAME, **_STATISTICS}),
    "udf?": fields({**_RANK, **_NAME, **_STATISTICS, **_NODE}),
}

_ACROSS_RANKS = {
    **_NAME,
    "num_ranks": "integer: Number of ranks with this name.",
    "calls": "integer | null: Sum over all ranks.",
    "total_ns": "number | null: Sum over all ranks.",
    "compared": "string: The number that is compared across ranks, such as cpu_total.",
    "min_ns": "number | null: Smallest value of the compared number.",
    "median_ns": "number | null: Median of the compared number.",
    "max_ns": "number | null: Largest value of the compared number.",
    "spread_ns": "number | null: max_ns minus min_ns.",
    "max_rank": "integer | null: The rank with the largest value; null if all are equal.",
    "max_coordinate": "string | null: Position of max_rank.",
}

_RECORDING = {
    "rank": "integer",
    "coordinate": "string | null",
    "file": "string: The trace that was read.",
    **_STEPS,
    **_LOST,
}

_OF_RANKS = {
    **_WINDOW,
    **_SORTED_BY,
    "ranks": rows(_RECORDING, "The ranks in the tables."),
    "left_out": "array[integer]: Ranks that were selected and are missing or unreadable.",
}

SCHEMA = document(
    "summary",
    1,
    "A list of windows. Times are in nanoseconds, ratios are from 0 to 1.",
    "array[$window | $by_rank | $by_name]",
    window=fields(
        {
            "schema_version": schema_version(1),
            "file": "string: The trace or file of tables that was read.",
            **_RANK,
            **_WINDOW,
            **_STEPS,
            **_SORTED_BY,
            **_LOST,
            "tables": tables(_VIEWS),
        },
        "One window of one rank; the tables are those of --views.",
    ),
    by_rank=fields(
        {
            "schema_version": schema_version(1),
            "by": {"const": "rank"},
            **_OF_RANKS,
            "tables": tables(_VIEWS_BY_RANK),
        },
        "--by rank: a row for each name and rank; ratios are relative to the rank.",
    ),
    by_name=fields(
        {
            "schema_version": schema_version(1),
            "by": {"const": "name"},
            **_OF_RANKS,
            "tables": tables(dict.fromkeys(_VIEWS_BY_RANK, fields(_ACROSS_RANKS))),
        },
        "--by name: a row for each name.",
    ),
)
