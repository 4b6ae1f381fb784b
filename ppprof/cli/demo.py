"""``ppprof demo``: a recorded run to try the commands on, and its page.

``demo.zip`` was recorded by ``ppprof run --nproc 4 --steps 30:40 -o 'Profiler.formats=[pb]' train.py`` with the
``train.py`` in it; paths of the installation were shortened.
"""

from __future__ import annotations

import argparse
import os
import sys
import zipfile
from pathlib import Path

from ppprof.cli.options import Checks
from ppprof.errors import UsageError

EXAMPLES = {
    "ppprof demo": "a run of four ranks in ppprof_demo, and its page in a browser",
}
_FOLDER = "ppprof_demo"
_RECORDED = Path(__file__).with_name("demo.zip")
_PAGE = "report.html"
_NEXT = """
What is slow, what it costs, what to change:  ppprof advise {folder}
What each rank spends its steps on:           ppprof ranks {folder}
The tables:                                   ppprof summary {folder}
The training that was recorded:               {folder}/train.py
A run of your own:                            ppprof run train.py
"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Unpacks the recording of a small training of four ranks on a CPU, one of them slow, into DIR; "
        "makes its page; and opens it where there is a display. It needs no Paddle, no GPU and no network."
    )
    add = parser.add_argument
    add("-o", "--output", metavar="DIR", default=_FOLDER, help=f"new directory; default: {_FOLDER}")
    add("--no-browser", action="store_true", help="do not open the page")


def check(args: argparse.Namespace) -> None:
    """Replace the text of the directory by its path, or raise UsageError."""
    checks = Checks(args)
    args.output = checks.new_folder("-o", args.output)
    checks.done()


def run(args: argparse.Namespace) -> int:
    """Return 0 when the page was written."""
    from ppprof.cli import main

    folder = args.output
    try:
        with zipfile.ZipFile(_RECORDED) as recorded:
            recorded.extractall(folder)
    except OSError as error:
        raise UsageError(f"-o {folder}: {error.strerror or error}") from error
    page = folder / _PAGE
    code = main(["report", str(folder), "-o", str(page)])
    if code:
        return code
    print(_NEXT.format(folder=folder).strip())
    has_display = sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    if has_display and not args.no_browser:
        import webbrowser

        webbrowser.open(page.absolute().as_uri())
    return 0
