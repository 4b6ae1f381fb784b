"""``ppprof advise``: what is slow in a run, what it costs, and what to change."""

from __future__ import annotations

import argparse

from ppprof.cli.options import (
    Checks,
    add_format,
    add_layout,
    add_output,
    add_paths,
    add_reading,
    add_renamed,
    add_rows,
    add_selection,
)
from ppprof.messages import LANGUAGES

EXAMPLES = {
    "ppprof advise profiler_log": "what costs time, how much, and what to change",
    "ppprof advise profiler_log --language zh --row-limit 3": "the first three, in Chinese",
}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Prints what costs a run its time, the most severe and most costly first: each finding "
        "with the time it would save per step, how certain that is, the rows that show it, and "
        "the config key or code to change."
    )
    add = parser.add_argument
    add_paths(parser)
    add_selection(parser)
    add("--language", choices=LANGUAGES, default="en", help="language of the findings: en or zh")
    add_rows(parser, "findings", "none")
    add_renamed(parser, "--limit", "--row-limit")
    add(
        "--verbose",
        action="store_true",
        default=None,
        help="add definitions, and the lines of source around each place",
    )
    add_format(
        parser, "json: everything, in nanoseconds; csv: a row for each finding; md: for a comment"
    )
    add_layout(parser)
    add_output(parser)
    add_reading(parser)


def check(args: argparse.Namespace) -> None:
    """Replace the texts of options by their values, or raise UsageError."""
    checks = Checks(args)
    checks.selection()
    checks.workers()
    checks.row_limit(None)
    if args.format in ("json", "csv"):
        checks.no_effect(["row_limit"], f"on {args.format}, which holds every finding")
    if args.format != "table":
        checks.no_effect(["verbose"], f"on {args.format}")
    checks.layout()
    checks.output(args.paths)
    checks.done()


def run(args: argparse.Namespace) -> int:
    """Return 0 when the findings were shown, whatever they are."""
    from ppprof.cli.executors import processes
    from ppprof.cli.output import show
    from ppprof.cli.runs import open_run
    from ppprof.messages import logged_in
    from ppprof.report.markdown import findings_markdown
    from ppprof.report.text.advice import findings_document, findings_table, render_findings
    from ppprof.run.advise import advise
    from ppprof.rundir.summaries import dumps

    language, row_limit = args.language, args.row_limit
    with logged_in(language):
        run = open_run(*args.paths, reading=args.reading)
        with processes(args.workers, len(run.recordings)) as executor:
            findings = advise(run, args.rank, args.window, steps=args.steps, executor=executor)
        if args.format == "json":
            text = f"{dumps(findings_document(findings, language, run=str(run)))}\n"
        elif args.format == "csv":
            text = findings_table(findings, language).write_csv()
        elif args.format == "md":
            text = findings_markdown(findings, language, row_limit)
        else:
            text = render_findings(findings, language, row_limit, args.layout, bool(args.verbose))
        show(args, [text])
    return 0
