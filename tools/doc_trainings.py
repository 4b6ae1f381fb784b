"""Run the trainings in pages again and compare what they print with what the pages show.

A block marked ``output`` shows parts of what the commands in the ``bash`` block above it print,
stdout and stderr together. A line ``...`` stands for lines that are left out::

    ```bash
    ppprof run --nproc 2 examples/gpt_fleet.py
    ```

    ```output
    ppprof: rank 0: window 0, steps 21 to 30, on ranks 0-1: step 6 is reached
    ...
    what to change: ppprof advise profiler_log
    ```

All ``bash`` blocks of such a page run in one shell, in an empty folder with the repository's
``configs``, ``examples`` and ``tools``. Two outputs have the same words if only numbers, units of
time and size, the widths of columns, and the smaller findings in the sentence about a run differ.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.jobs.launching import environment

ROOT = Path(__file__).parents[1]
TRIES = 3
"""A burst of other work may change which finding comes first: then all is run again."""

_BLOCK = re.compile(r"^```(bash|output)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LEFT_OUT = "..."
_END = "=== end of a block ==="
_MASKS = (
    (re.compile(r"[-+]?\d+(?:[.,]\d+)*"), "0"),
    (re.compile(r"\b0 (?:ns|us|ms|s|min|h)\b"), "0 TIME"),
    (re.compile(r"\b0 (?:B|[KMGT]i?B)\b"), "0 SIZE"),
    (re.compile(r"--+"), "-"),
    (re.compile(r"==+"), "="),
    (re.compile(r"\s+"), " "),
    # Which parts of a step are the largest, and in which order, depends on the machine, too.
    (re.compile(r"^.* (?:0 TIME|-) (?:0 TIME|-) 0%$"), "a part of the step"),
    # What a run says after its largest finding depends on the machine.
    (re.compile(r"(step 0 TIME), slower ones \(0 of 0\) left out"), r"\1"),
    (re.compile(r"(: (?:recorded )?step 0 TIME: [^,(]*[^,( ]).*"), r"\1"),
)


class TrainingError(Exception):
    """Commands of a page failed, or printed no such lines as the page shows."""


class Remade(NamedTuple):
    """A page after its commands have run again."""

    outputs: list[str]
    """What each ``bash`` block printed."""
    text: str
    """The page with these outputs."""


def pages() -> list[str]:
    """Return the English pages that show the output of trainings, relative to the repository."""
    paths = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    return [
        str(path.relative_to(ROOT))
        for path in paths
        if not path.name.endswith(".zh-CN.md") and "```output\n" in path.read_text(encoding="utf-8")
    ]


def compare(*, write: bool) -> int:
    """Run the trainings of all pages; print how their words differ from what the pages show.

    Args:
        write: replace the outputs in the pages that differ, and in their Chinese pages.

    Returns:
        1 if words differ or commands failed, else 0.
    """
    code = 0
    for name in pages():
        print(f"{name}: runs its trainings", file=sys.stderr, flush=True)
        shown = read(name)
        try:
            text = remade(name).text
        except TrainingError as error:
            print(f"{name}: {error}", file=sys.stderr)
            code = 1
            continue
        lines = difference(shown, text)
        if lines and write:
            chinese = name.replace(".md", ".zh-CN.md")
            _write(name, text)
            _write(chinese, with_outputs(read(chinese), output_blocks(text)))
            print(f"{name}, {chinese}: written; check the numbers in the sentences around")
        elif lines:
            print("\n".join(lines))
            print(f"{name}: write it by python -m tools.docs --trainings --write", file=sys.stderr)
            code = 1
    return code


@cache
def remade(name: str) -> Remade:
    """Run the commands of a page, up to `TRIES` times until it has the same words.

    Raises:
        TrainingError: commands fail, or print no such lines as the page shows.
    """
    page = read(name)
    for turn in range(TRIES):
        try:
            outputs = run(page)
            result = Remade(outputs, updated(page, outputs))
        except TrainingError:
            if turn == TRIES - 1:
                raise
            continue
        if not difference(page, result.text):
            break
    return result


def commands(page: str) -> list[str]:
    """Return the text of each ``bash`` block."""
    return [text for kind, text in _BLOCK.findall(page) if kind == "bash"]


def output_blocks(page: str) -> list[str]:
    """Return the text of each ``output`` block."""
    return [text for kind, text in _BLOCK.findall(page) if kind == "output"]


def run(page: str) -> list[str]:
    """Run all ``bash`` blocks of a page in one shell; return what each prints.

    Raises:
        TrainingError: a command failed.
    """
    script = "set -e\n" + "".join(f"{text}echo '{_END}'\n" for text in commands(page))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs = {"python": "", "ppprof": "-m ppprof"}
        (folder / "bin").mkdir()
        for program, arguments in programs.items():
            path = folder / "bin" / program
            path.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
            path.chmod(0o755)
        for part in ("configs", "examples", "tools"):
            (folder / part).symlink_to(ROOT / part)
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=folder,
            env=environment(folder, PATH=f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    if done.returncode:
        raise TrainingError(f"exit code {done.returncode} after:\n{done.stdout[-3000:]}")
    return done.stdout.split(f"{_END}\n")[:-1]


def updated(page: str, outputs: list[str]) -> str:
    """Return a page with new outputs of its ``bash`` blocks in the ``output`` blocks.

    Raises:
        TrainingError: an output has no such lines as the page shows.
    """
    number = -1
    blocks = []
    for kind, text in _BLOCK.findall(page):
        if kind == "bash":
            number += 1
        else:
            blocks.append(excerpt(text, outputs[number]))
    return with_outputs(page, blocks)


def with_outputs(page: str, blocks: list[str]) -> str:
    """Return a page with other texts in its ``output`` blocks."""
    texts = iter(blocks)

    def block(match: re.Match[str]) -> str:
        return f"```output\n{next(texts)}```" if match[1] == "output" else match[0]

    return _BLOCK.sub(block, page)


def excerpt(shown: str, printed: str) -> str:
    """Return the lines of an output that correspond to those that a page shows.

    Each part of ``shown`` between lines ``...`` begins and ends with a line that the output has,
    too, apart from its numbers.

    Raises:
        TrainingError: the output has no such line.
    """
    lines = [line.rstrip() for line in printed.splitlines()]
    masks = [masked(line) for line in lines]
    parts, begin = [], 0
    for part in re.split(rf"^{re.escape(_LEFT_OUT)}\n", shown, flags=re.MULTILINE):
        wanted = [masked(line) for line in part.splitlines()]
        first = _index(masks, wanted[0], begin, 1)
        end = _index(masks, wanted[-1], first, wanted.count(wanted[-1])) + 1
        parts.append("".join(f"{line}\n" for line in lines[first:end]))
        begin = end
    return f"{_LEFT_OUT}\n".join(parts)


def _index(masks: list[str], wanted: str, begin: int, count: int) -> int:
    """Return where ``wanted`` occurs for the ``count``-th time at or after ``begin``."""
    places = [place for place in range(begin, len(masks)) if masks[place] == wanted]
    if len(places) < count:
        text = "\n".join(masks[begin:])
        raise TrainingError(f"no line {wanted!r}, which the page shows, in:\n{text[-3000:]}")
    return places[count - 1]


def difference(shown: str, text: str) -> list[str]:
    """Return how the words of two pages differ, as lines of a diff; empty if they do not."""
    return list(difflib.unified_diff(list(_masked(shown)), list(_masked(text)), lineterm="", n=1))


def _masked(page: str) -> Iterator[str]:
    for block in output_blocks(page):
        yield from map(masked, block.splitlines())


def masked(line: str) -> str:
    """Return a line without its numbers, units of time and size, and widths.

    >>> masked("  Forward   10   54.73 / 5.47 / 20.18")
    ' Forward 0 0 / 0 / 0'
    >>> masked("-----Model Summary-----"), masked("costs 1.2 s of a step (8%)")
    ('-Model Summary-', 'costs 0 TIME of a step (0%)')
    """
    for pattern, text in _MASKS:
        line = pattern.sub(text, line)
    return line.rstrip()


def read(name: str) -> str:
    """Return the text of a page."""
    return (ROOT / name).read_text(encoding="utf-8")


def _write(name: str, text: str) -> None:
    (ROOT / name).write_text(text, encoding="utf-8")
