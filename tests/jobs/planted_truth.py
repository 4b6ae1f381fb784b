"""Measure a planted bottleneck without ppprof: ``python -m tests.jobs.planted_truth SCRIPT``.

The script marks its loop by ``# loop`` and the statement with the bottleneck by ``# planted``. Both get
a stopwatch, and nothing else; the share of the marked statement in the loop is printed, and the median
iteration. The first iterations warm up and do not count. The mark may name the lines that a finding may
name, ``# planted: 8-12``. Other marks:

- ``# planted, else: CODE``: with ``--healthy``, CODE stands in place of the statement. The share is what
  the median iteration is shorter then.
- ``# loop, planted``: the bottleneck is the time between two iterations, in which data is loaded.
- ``def f():  # loop``: each call is an iteration.
- ``# ranks: 2``, the first line: to be run by Paddle's launcher. The largest share of a rank counts.
"""

from __future__ import annotations

import ast
import re
import sys
import time
from pathlib import Path
from statistics import median

SKIPPED = 20
"""First iterations that do not count."""
_MARK = re.compile(r"# (loop, planted|loop|planted)(?:: ([0-9]+)(?:-([0-9]+))?)?(?:, else: (.+))?$")


class Stopwatch:
    """The time in a loop and in a marked statement."""

    def __init__(self) -> None:
        self.iteration = 0
        self.planted = 0.0
        self._loop_began = self._began = 0.0
        self._starts: list[float] = []

    def step(self) -> None:
        """Begin an iteration."""
        self.iteration += 1
        self._starts.append(time.perf_counter())
        if self.iteration == SKIPPED + 1:
            self._loop_began = time.perf_counter()

    def enter(self) -> None:
        """Begin the marked statement."""
        self._began = time.perf_counter()

    def leave(self) -> None:
        """End the marked statement."""
        if self.iteration > SKIPPED and self._began >= self._loop_began:
            self.planted += time.perf_counter() - self._began

    def share(self) -> float:
        """Return the statement's share of the loop, which has just ended."""
        return self.planted / (time.perf_counter() - self._loop_began)

    def median(self) -> float:
        """Return the median iteration in seconds."""
        starts = self._starts[SKIPPED:]
        return median(later - earlier for earlier, later in zip(starts, starts[1:]))


def marks(script: Path) -> dict[str, set[int]]:
    """Return the lines of each mark, ``loop`` and ``planted``: its own, and those that it names."""
    lines: dict[str, set[int]] = {"loop": set(), "planted": set()}
    for number, line in enumerate(script.read_text(encoding="utf-8").splitlines(), 1):
        if match := _MARK.search(line):
            kinds, first, last, _ = match.groups()
            named = set(range(int(first or number), int(last or first or number) + 1))
            for kind in kinds.split(", "):
                lines[kind] |= {number} if kind == "loop" else {number, *named}
    return lines


def healthy(script: Path) -> str | None:
    """Return the text of a script without its bottleneck; None if it does not say what replaces it."""
    lines = script.read_text(encoding="utf-8").splitlines()
    found = [(n, match) for n, line in enumerate(lines) if (match := _MARK.search(line))]
    others = {n: str(match[4]) for n, match in found if match[4]}
    for number, code in others.items():
        indent = len(lines[number]) - len(lines[number].lstrip())
        lines[number] = " " * indent + code
    return "\n".join(lines) if others else None


class _Timed(ast.NodeTransformer):
    def __init__(self, text: str) -> None:
        lines = text.splitlines()
        self._planted = {n for n, line in enumerate(lines, 1) if "  # planted" in line}
        self._loop = {n for n, line in enumerate(lines, 1) if "  # loop" in line}
        self._between = {n for n, line in enumerate(lines, 1) if "  # loop, planted" in line}

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse"):
            statements = getattr(node, name, None)
            if not isinstance(statements, list):
                continue
            timed: list[ast.stmt] = []
            for statement in statements:
                if statement.lineno in self._planted:
                    timed += [_call("enter"), statement, _call("leave")]
                else:
                    timed.append(statement)
            setattr(node, name, timed)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        if node.lineno in self._between:
            node.body = [_call("leave"), *node.body, _call("enter")]
        if node.lineno in self._loop:
            node.body.insert(0, _call("step"))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if node.lineno in self._loop:
            node.body.insert(0, _call("step"))
        return node


def _call(name: str) -> ast.stmt:
    return ast.parse(f"__stopwatch__.{name}()").body[0]


def main(script: Path, is_healthy: bool = False) -> None:
    """Run a script with stopwatches, and print the share and the median iteration."""
    text = (healthy(script) if is_healthy else None) or script.read_text(encoding="utf-8")
    tree = _Timed(text).visit(ast.parse(text))
    stopwatch = Stopwatch()
    names = {"__name__": "__main__", "__stopwatch__": stopwatch}
    exec(compile(ast.fix_missing_locations(tree), str(script), "exec"), names)  # noqa: S102
    print(f"share {stopwatch.share():.4f}\nmedian {stopwatch.median():.9f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--healthy" in sys.argv)
