"""The schema of ``ppprof hang``."""

from ppprof.schemas.shorthand import document, fields, rows, schema_version

_RANK = {
    "rank": "integer",
    "step": "integer",
    "state": "string | null: State of its process; null if unknown.",
    "pid?": "integer | null: Its process on this machine; null if none runs here.",
    "last": "$operation | null",
    "seen_at?": "string | null: The line of its main thread in its stacks, or where it crashed; null if unknown.",
}

_WAIT = {
    "rank": "integer",
    "group": "integer: Number in groups.",
    "missing": "array[integer]: Members that have not called it.",
    "overwritten": "array[integer]: Members of which that is unknown: later operations have overwritten their notes.",
    "operation": "$operation",
}

_DEPARTURE = {
    "rank": "integer",
    "step": "integer",
    "called": "$operation",
    "usual_step": "integer: The earlier step that is alike for longest.",
    "expected": "$operation | null",
    "num_now": "integer",
    "num_usual": "integer",
}

_UNEVEN = {
    "group": "integer: Number in groups.",
    "step": "integer",
    "counts": "object[integer]: Collectives of the group in the step, keyed by rank.",
    "call": "string: The call of which most were left out.",
}

_MISMATCH = {
    "group": "integer: Number in groups.",
    "sequence": "integer",
    "differs": "array[string]: name, size, dtype, peer.",
    "calls": "object[$operation]: Keyed by rank.",
}

_OPERATION = {
    "number": "integer: Number among all operations of the rank, from 1.",
    "group": "integer: Paddle's number of the group.",
    "sequence": "integer: Number among the operations of the group, from 1.",
    "step": "integer",
    "called_ns": "integer: When it was called, Unix time.",
    "returned_ns": "integer: When the call returned; 0 if it has not; below 0, the negative of when an exception ended it, or the wait for it.",
    "waited_ns": "integer: When waiting for it ended; below 0, the negative of when the rank began to wait; 0 if it has not waited.",
    "size": "integer: Bytes of its tensors on this rank.",
    "peer": "integer: The other rank of a transfer, the root of a broadcast or reduce; else -1.",
    "name": "string: Such as all_reduce.",
    "dtype": "string",
    "place": "string: The user's line: train.py:41 step.",
    "context": "string: Phase and module; ? if unknown.",
    "is_pending": "boolean: Whether the rank is in the call, or waits for it.",
}

SCHEMA = document(
    "hang",
    1,
    "Which rank a job waits for, and in which operation.",
    fields(
        {
            "schema_version": schema_version(1),
            "run": "string: The run.",
            "verdict": "string: One sentence.",
            "idle_s": "number | null: Seconds without any operation; null if unknown.",
            "on_devices": "boolean: Whether operations went to devices, so that no host waits.",
            "is_sure": "boolean: Whether the verdict is sure; else it is likely.",
            "unreadable": "object[string]: Messages for ranks whose notes are unreadable, keyed by rank.",
            "ranks": rows(_RANK),
            "stacks?": "object[string]: What the ranks that the others wait for wrote last on their threads, keyed by rank.",
            "causes": "array[integer]: Ranks that the others wait for.",
            "absent": "array[integer]: Ranks that the others wait for, and of which it is unknown what they do.",
            "circle": "array[integer]: Ranks that wait for one another.",
            "waiting": rows(_WAIT),
            "departures": rows(
                _DEPARTURE, "Steps that go another way than the rank's earlier ones."
            ),
            "uneven?": {
                "anyOf": [fields(_UNEVEN), {"type": "null"}],
                "description": "The first step in which ranks of a group called different numbers of collectives; null without one.",
            },
            "mismatches": rows(_MISMATCH, "Collectives of equal number that are not the same."),
            "groups": rows({"ranks": "array[integer]", "axis": "string | null"}),
        }
    ),
    operation=fields(_OPERATION),
)
