"""``ppprof mcp``: answer the questions of an assistant about runs (Model Context Protocol, stdio)."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ppprof.cli.options import add_paths
from ppprof.errors import PpprofError, UsageError

if TYPE_CHECKING:
    from ppprof.cli.answers import Answers

EXAMPLES = {
    "ppprof mcp profiler_log": "what an assistant starts to ask about this run",
    "ppprof mcp base_log new_log": "two runs, which it can compare",
}
INSTRUCTIONS = """Recordings of PaddlePaddle or PyTorch trainings. Call findings first: it says what is \
slow, where, what that costs a step and what to change, and usually answers the question. Then ask for the \
rows: ranks (who waits for whom), tables (operators, kernels, layers, memory), path (what a change would \
win), diff (two runs), timeline (what runs around a finding's where.time), source (around where.file and \
where.line). Times are in nanoseconds; units end a name. The resource ppprof://definitions says what the \
numbers mean. left_off counts the rows that an answer lacks; raise rows, or narrow the question.
Runs: """


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Serves the Model Context Protocol on stdin and stdout, for an assistant that starts this "
        "command: tools for findings, tables, ranks, the critical path, comparisons, the timeline and "
        "source lines, and the definitions of the numbers. It reads the RUNs only, writes nothing, and "
        "listens on no port. It needs the extra mcp: pip install 'ppprof[mcp]', and Python 3.10."
    )
    add_paths(parser, "each a run directory, a directory of traces or a trace")


def check(args: argparse.Namespace) -> None:
    """Do nothing: any path may be given; `run` reports those without a run."""


def run(args: argparse.Namespace) -> int:
    """Serve until stdin ends; return 0."""
    try:
        import mcp.server  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"mcp: {error}: pip install 'ppprof[mcp]', in Python 3.10 or newer"
        ) from error
    from ppprof.cli.answers import Answers
    from ppprof.rundir.recordings import resolve

    for path in args.paths:
        resolve(path)
    _server(Answers(args.paths)).run()
    return 0


def _server(answers: Answers) -> Any:
    from mcp.server import MCPServer
    from mcp_types import ToolAnnotations

    from ppprof.cli import versions
    from ppprof.cli.answers import definitions
    from ppprof.cli.schema import DESCRIBED, schema_text

    instructions = INSTRUCTIONS + ", ".join(answers.runs)
    version = versions().partition("\n")[0].removeprefix("ppprof ")
    server = MCPServer("ppprof", instructions=instructions, version=version, log_level="WARNING")
    for tool in answers.tools():
        hints = ToolAnnotations(read_only_hint=True, open_world_hint=False)
        server.tool(annotations=hints, structured_output=False)(_with_messages(tool))
    about = "What the numbers mean, and when each finding is reported"
    server.resource("ppprof://definitions", description=about, mime_type="text/markdown")(
        definitions
    )
    for name in DESCRIBED:
        about = f"JSON Schema of ppprof {name} --format json: every key with its unit"
        server.resource(
            f"ppprof://schema/{name}", name=name, description=about, mime_type="application/json"
        )(functools.partial(schema_text, name))
    return server


def _with_messages(tool: Callable[..., str]) -> Callable[..., str]:
    """Return a tool whose errors reach the assistant with their messages."""
    from mcp.server.mcpserver.exceptions import ToolError

    @functools.wraps(tool)
    def answer(*args: Any, **options: Any) -> str:
        try:
            return tool(*args, **options)
        except PpprofError as error:
            raise ToolError(str(error)) from error
        except OSError as error:
            raise ToolError(f"{error.filename}: {error.strerror or error}") from error

    return answer
