"""Measure a planted bottleneck without ppprof: ``python -m tests.jobs.planted_truth SCRIPT``.

The script marks its loop by ``# loop`` and the statement with the bottleneck by ``# planted``. Both get
a stopwatch, and nothing else; the share of the marked statement in the loop is printed. The first
iterations warm up and do not count.
"""

from __future__ import annotations

import ast
import re
import sys
import time
from pathlib import Path

SKIPPED = 20
"""First iterations that do not count."""
_MARK = re.compile(r"# (loop|planted)(?:: ([0-9]+)(?:-([0-9]+))?)?$")


class Stopwatch:
    """The time in a loop and in a marked statement."""

    def __init__(self) -> None:
        self.iteration = 0
        self.planted = 0.0
        self._loop_began = self._began = 0.0

    def step(self) -> None:
        """Begin an iteration."""
        self.iteration += 1
        if self.iteration == SKIPPED + 1:
            self._loop_began = time.perf_counter()

    def enter(self) -> None:
        """Begin the marked statement."""
        self._began = time.perf_counter()

    def leave(self) -> None:
        """End the marked statement."""
        if self.iteration > SKIPPED:
            self.planted += time.perf_counter() - self._began

    def share(self) -> float:
        """Return the statement's share of the loop, which has just ended."""
        return self.planted / (time.perf_counter() - self._loop_began)


def marks(script: Path) -> dict[str, set[int]]:
    """Return the lines of each mark, ``loop`` and ``planted``: its own, and those that it names."""
    lines: dict[str, set[int]] = {"loop": set(), "planted": set()}
    for number, line in enumerate(script.read_text(encoding="utf-8").splitlines(), 1):
        if match := _MARK.search(line):
            kind, first, last = match.groups()
            lines[kind] |= {number, *range(int(first or number), int(last or first or number) + 1)}
    return lines


class _Timed(ast.NodeTransformer):
    def __init__(self, script: Path) -> None:
        text = script.read_text(encoding="utf-8").splitlines()
        self._planted = {n for n, line in enumerate(text, 1) if "# planted" in line}

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
        if node.col_offset == 0:
            node.body.insert(0, _call("step"))
        return node


def _call(name: str) -> ast.stmt:
    return ast.parse(f"__stopwatch__.{name}()").body[0]


def main(script: Path) -> None:
    """Run a script with stopwatches, and print the share."""
    tree = _Timed(script).visit(ast.parse(script.read_text(encoding="utf-8")))
    stopwatch = Stopwatch()
    names = {"__name__": "__main__", "__stopwatch__": stopwatch}
    exec(compile(ast.fix_missing_locations(tree), str(script), "exec"), names)  # noqa: S102
    print(f"share {stopwatch.share():.4f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
