"""The schema of ``ppprof path``."""

from ppprof.schemas.shorthand import document, fields, schema_version, tables

_KINDS = [
    *("host", "own code", "data loading", "communication", "runtime call", "kernel", "copy"),
    *("launch latency", "synchronisation", "device gap", "thread gap", "not recorded"),
]

_PART = {
    "kind?": {"enum": _KINDS, "description": "What the time is."},
    "rank?": "integer | null: The rank.",
    "link?": "string | null: Sender and receiver of waited transfers.",
    "axis?": "string | null: Axis of the communication.",
    "module?": "string | null: The module.",
    "operator?": "string | null: The operator.",
    "name?": "string | null: The event.",
    "line?": "string | null: The line of the user's code.",
    "step?": "integer | null: The step.",
    "time_ns": "number: Time on the critical path, in an average step.",
    "ratio": "number: time_ns as a ratio of the step.",
}

_STEP = {
    "window": "integer: Number of the window, from 0.",
    "step": "integer: Number of the step.",
    "begin_ns": "integer: Start of the first rank.",
    "end_ns": "integer: End of the last rank.",
}

_CHANGE = {
    "change": "string: The change; the first row, as recorded, has none.",
    "on_path_ns": "number | null: What is on the path that the change concerns.",
    "step_ns": "number | null: The step with the change.",
    "low_ns": "number | null: Lower end of the range of step_ns.",
    "high_ns": "number | null: Upper end of the range of step_ns.",
    "saved_ns": "number | null: What the step gets shorter by.",
    "saved_ratio": "number | null: saved_ns as a ratio of the step.",
}

SCHEMA = document(
    "path",
    1,
    "What the length of a step depends on. Times are in nanoseconds.",
    fields(
        {
            "schema_version": schema_version(1),
            "run": "string: The run.",
            "tables": tables(
                {
                    "path": fields(
                        _PART,
                        "One row for each combination of --by (kind, rank, link, module and operator without it); the times add up to the step.",
                    ),
                    "steps": fields(_STEP, "The steps; times on the reference clock."),
                    "what_if?": fields(
                        _CHANGE,
                        "With --what-if: the step with the changes, each alone; of several also together.",
                    ),
                }
            ),
        }
    ),
)
