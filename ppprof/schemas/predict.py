"""The schema of ``ppprof predict``."""

from ppprof.schemas.shorthand import document, fields, schema_version, tables

_BASES = ["measured", "fitted", "modelled", "unknown"]

_STEP = {
    "configuration": "string: What is changed, or as recorded.",
    "measured_ns": "number | null: The recorded step, mean over steps; null for a configuration that was not recorded.",
    "error_ratio": "number | null: Predicted over measured step, minus 1.",
    "ranks": "integer: Number of ranks.",
    "micro_batches": "integer: Micro-batches of a step.",
    "step_ns": "number | null: The likely step; null if it is not known.",
    "low_ns": "number: The least that the step can be.",
    "high_ns": "number | null: The most that the step can be; null without a bound.",
    "bubble_ns": "number | null: Idle time of an average stage in the pipeline, likely.",
    "bubble_ratio": "number | null: bubble_ns as a ratio of step_ns.",
    "exposed_ns": "number | null: Sum of the gradients over replicas, and all-reduces over mp, likely.",
    "basis": {
        "enum": _BASES,
        "description": "How the least certain part of the step is known.",
    },
    "memory_bytes": "integer | null: Memory of the rank with most, modelled; null with mixed precision of level O1.",
}

_PART = {
    "part": "string: The part of a step.",
    "low_ns": "number | null: Least.",
    "likely_ns": "number | null: Likely; null if not known.",
    "high_ns": "number | null: Most; null without a bound.",
    "basis": {
        "enum": _BASES,
        "description": "How it is known: measured in the run; fitted to two runs; modelled; unknown: a range.",
    },
}

_STAGE = {
    "stage": "integer: Pipeline stage.",
    "state_bytes": "integer: Weights, gradients and AdamW's moments.",
    "activation_bytes": "integer: What else is held at the peak: kept for backward passes, gradients of activations, copies of gradients.",
    "total_bytes": "integer: The sum, the peak.",
    "moment": "string: The part of a step in which the peak is held.",
}

_SEARCHED = {
    **_STEP,
    "dp_degree": "integer: Data parallel ranks.",
    "mp_degree": "integer: Tensor parallel ranks.",
    "pp_degree": "integer: Stages.",
    "vpp_degree": "integer: Chunks of a stage.",
    "micro_batch_size": "integer: Samples of a micro-batch.",
    "sharding_degree": "integer: Sharding ranks.",
    "sharding_stage": "integer: Sharding stage.",
    "use_recompute": "boolean: Whether blocks are computed again.",
    "recompute_granularity": "string | null: full, full_attn, core_attn, or null.",
}

_TUNED = {
    **_STEP,
    "measured_ns": "number | null: The step that the tuner measured; null for a configuration that did not train.",
}

SCHEMA = document(
    "predict",
    1,
    "The step and memory of configurations that were not run. Times are in nanoseconds.",
    fields(
        {
            "schema_version": schema_version(1),
            "runs": "array[string]: The recorded runs.",
            "tables": tables(
                {
                    "steps?": fields(
                        _STEP,
                        "Without --search: the recorded configurations, and the changed one last.",
                    ),
                    "parts?": fields(
                        _PART, "Without --search: the parts of the last configuration."
                    ),
                    "memory?": fields(
                        _STAGE, "Without --search: the memory of a rank of each stage, modelled."
                    ),
                    "search?": fields(
                        _SEARCHED, "With --search: the best configurations, the best first."
                    ),
                    "history?": fields(
                        _TUNED,
                        "With --history: the configurations of the tuner's file, in its order.",
                    ),
                }
            ),
        }
    ),
)
