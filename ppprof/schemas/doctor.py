"""The schema of ``ppprof doctor``."""

from ppprof.schemas.shorthand import document, fields, rows, schema_version

_CHECK = {
    "name": "string",
    "status": {"enum": ["ok", "warning", "problem"]},
    "reason": "string: What was found.",
    "action": 'string: What to do; "" if nothing.',
    "values": "object: The measured values; units end a name.",
}

SCHEMA = document(
    "doctor",
    1,
    "What this machine can record.",
    fields({"schema_version": schema_version(1), "checks": rows(_CHECK)}),
)
