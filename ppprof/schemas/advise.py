"""The schema of ``ppprof advise``."""

from ppprof.schemas.shorthand import document, fields, rows, schema_version

_CONFIDENCE = "sure: measured directly; likely: the effect is measured, the cause is inferred; possible: one of several causes."

_LINE = {"line": "integer: Number of the line.", "text": "string"}

_FINDING = {
    "rule": "string: Name of the rule; the same for all findings of its kind.",
    "severity": {"enum": ["major", "moderate", "minor", "note"]},
    "confidence": {"enum": ["sure", "likely", "possible"], "description": _CONFIDENCE},
    "cost_ns": "number | null: Cost: what a typical step would get shorter by; null if the finding costs no time of its own.",
    "share": "number | null: cost_ns as a ratio of the step.",
    "basis": {
        "enum": ["recorded", "outside the window", "without a window", "with pauses", None],
        "description": "The steps that the cost is of; with pauses: of the time from a step to the next. Null without a cost.",
    },
    "alone_ns": "number | null: The cost without the other findings; cost_ns comes on top of what these cost. Null: it is cost_ns.",
    "replay": "null | $replay: The replay of all ranks that shows the cost; null if it is the rule's own estimate.",
    "title": "string: The problem in a few words, in the language of --language, as what, do and how.",
    "what": "string: The finding with its numbers.",
    "where": "$where",
    "do": "string: The proposal as a sentence; also in proposal.",
    "proposal": "$proposal",
    "how": "string: The definition of the numbers.",
    "facts": "object[string | number | boolean | null]: Numbers and names of what, do and where; units end a key.",
    "evidence": "array[object[string | number | boolean | null | array | object]]: The rows that show the finding; units end a column's name.",
    "source": rows(_LINE, "Lines of source around file and line, as they were recorded."),
}

_WHERE = {
    "rank": "integer | null: The rank that the finding names; null if it is about several or all.",
    "step": "integer | null: The step that the finding names; null if it is about all steps.",
    "module": "string | null: The module, such as Net/Block.",
    "file": "string | null: The file of the user's code, as the trace names it.",
    "line": "integer | null: The line in the file.",
    "time": "null | $time: A place in the trace that shows the finding: the longest step, of its rank if it names one; null without a trace.",
}

_TIME = {
    "rank": "integer",
    "step": "integer",
    "start_ns": "integer: On the clock of the rank's trace, as start_ns of its events.",
    "end_ns": "integer",
}

_PROPOSAL = {
    "to": {
        "enum": ["config", "code"],
        "description": "What to change: keys of the job's config, or the code.",
    },
    "text": "string: The proposal as a sentence.",
    "values": "object[string | number | boolean | null]: Proposed values by their names, such as workers.",
}

SCHEMA = document(
    "advise",
    1,
    "What is slow, what it costs and what to change, the most severe first. Times are in nanoseconds of an average step, ratios are from 0 to 1.",
    fields(
        {
            "schema_version": schema_version(1),
            "run": "string: The run.",
            "headline": "string: One line on the run.",
            "findings": "array[$finding]",
            "withheld": "array[string]: Rules whose findings were left out, since the recording is not whole.",
        }
    ),
    finding=fields(_FINDING),
    replay=fields({"changes": "array[string]: What it changes, for ppprof path --what-if."}),
    where=fields(_WHERE),
    time=fields(_TIME),
    proposal=fields(_PROPOSAL),
)
