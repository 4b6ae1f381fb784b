"""Change the package in one place at a time, and see whether a test of the quick tiers fails.

    python tools/mutants.py --seed 1 --count 60 --tiers covering,test,jobs --out mutants.jsonl

Each changed copy is a mutant, and it is killed if a test fails or runs out of time. The tool works
in a scratch copy of the last commit. Exit code 0 if at least 90% of the mutants were killed, else 1.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[1]
TIERS = {  # as in the Makefile; first those tests of `make test` that execute the line
    "covering": ("not jobs and not all", "worksteal"),
    "test": ("not jobs and not all", "worksteal"),
    "jobs": ("jobs", "loadscope"),
}
SWAPS = {
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    **{"in": "not in", "not in": "in", "is": "is not", "is not": "is"},
    **{"+": "-", "-": "+", "*": "/", "/": "*", "//": "/", "and": "or", "or": "and"},
}
ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv)
OPERATOR = re.compile(rb"not\s+in|is\s+not|in|is|and|or|[<>=!]=|//|[-+*/<>]")
NO_OPERATOR = re.compile(rb"(?:[\s()\\]|#[^\n]*)*")
OPENING_QUOTE = re.compile(rb"[rRuU]?(?:\"\"\"|'''|\"|')")
TYPES_ONLY = {"annotation", "returns", "decorator_list", "type_params"}
MAX_FIRST_TESTS, MAX_FIRST_SECONDS, SERIAL_SECONDS = 300, 60.0, 10.0
ENOUGH = 0.9


@dataclass(frozen=True)
class Mutant:
    """One change of one file: the bytes from ``start`` to ``end`` become ``text``."""

    path: str
    start: int
    end: int
    text: str
    line: int
    last_line: int
    old: str
    new: str

    def __str__(self) -> str:
        """Return where and what, as ``ppprof/x.py:3: a < b -> a <= b``."""
        old, new = (textwrap.shorten(part, 80, placeholder=" ...") for part in (self.old, self.new))
        return f"{self.path}:{self.line}: {old} -> {new}"

    @property
    def key(self) -> str:
        """Identifies the mutant among those of a commit."""
        return f"{self.path}:{self.start}-{self.end}:{self.text}"

    def apply(self, source: bytes) -> bytes:
        """Return the changed source."""
        return source[: self.start] + self.text.encode() + source[self.end :]


class _File:
    """Finds the mutants of one source file."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source = path, source
        self.lines = [0]
        for line in source.split(b"\n"):
            self.lines.append(self.lines[-1] + len(line) + 1)

    def mutants(self, node: ast.AST) -> Iterator[Mutant]:
        """Yield the mutants of a node and below, in the order of the source."""
        if isinstance(node, (ast.Assert, ast.JoinedStr)) or _is_typing(node):
            return
        if isinstance(node, ast.Assign) and _name(node.targets[0]) == "__all__":
            return
        if isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING":
            for child in node.orelse:
                yield from self.mutants(child)
            return
        yield from self._edits(node)
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and field not in TYPES_ONLY:
                    yield from self.mutants(child)

    def _edits(self, node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, ast.Compare):
            yield from self._swaps(node, [node.left, *node.comparators])
        elif isinstance(node, ast.BoolOp):
            yield from self._swaps(node, node.values)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ARITHMETIC):
            yield from self._swaps(node, [node.left, node.right])
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ARITHMETIC):
            yield from self._swaps(node, [node.target, node.value])
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            start, end = self._span(node)
            rest = self.source[start + len("not") : end].lstrip()
            yield self._mutant(node, start, end - len(rest), "")
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            other = not node.value if isinstance(node.value, bool) else node.value + 1
            yield self._mutant(node, *self._span(node), str(other))
        elif isinstance(node, ast.Return) and node.value and not _is_null(node.value):
            yield self._mutant(node, *self._span(node), "return None")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield self._mutant(node, *self._span(node), "pass")
        elif isinstance(node, ast.If):
            start, end = self._span(node.test)
            condition = self.source[start:end].decode()
            yield self._mutant(node.test, start, end, f"not ({condition})", "if ")
        for text in _texts(node):
            start = self._span(text)[0]
            quote = OPENING_QUOTE.match(self.source, start)
            assert quote, (self.path, text.lineno)
            yield self._mutant(text, quote.end(), quote.end(), "XX")

    def _swaps(self, node: ast.expr | ast.stmt, operands: Sequence[ast.expr]) -> Iterator[Mutant]:
        for left in operands[:-1]:
            gap = NO_OPERATOR.match(self.source, self._span(left)[1])
            operator = OPERATOR.match(self.source, gap.end()) if gap else None
            assert operator, (self.path, node.lineno)
            swapped = SWAPS[" ".join(operator[0].decode().split())]
            yield self._mutant(node, *operator.span(), swapped)

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self.lines[node.lineno - 1] + node.col_offset
        return start, self.lines[node.end_lineno - 1] + node.end_col_offset

    def _mutant(
        self, node: ast.expr | ast.stmt, start: int, end: int, text: str, lead: str = ""
    ) -> Mutant:
        first, last = self._span(node)
        # 30 bytes on either side are enough to recognize the place.
        head = self.source[max(first, start - 30) : start].decode(errors="ignore")
        tail = self.source[end : min(last, end + 30)].decode(errors="ignore")
        old = self.source[start:end].decode()
        shown = (f"{lead}{head}{part}{tail}" for part in (old, text))
        last_line = node.end_lineno or node.lineno
        return Mutant(self.path, start, end, text, node.lineno, last_line, *shown)


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _is_typing(node: ast.AST) -> bool:
    """Return whether a node is a type such as ``Literal["a"]``, or a call that takes one."""
    if isinstance(node, ast.Call):
        return _name(node.func) in ("cast", "TypeVar")
    name = _name(node.value) if isinstance(node, ast.Subscript) else ""
    return name in typing.__all__ or isinstance(getattr(builtins, name, None), type)


def _is_null(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _texts(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield the strings of a node that are keys, arguments or sides of a comparison."""
    expressions: list[ast.expr | None] = []
    if isinstance(node, ast.Dict):
        expressions = node.keys
    elif isinstance(node, ast.Subscript):
        expressions = [node.slice]
    elif isinstance(node, ast.Call):
        expressions = [*node.args, *(keyword.value for keyword in node.keywords)]
    elif isinstance(node, ast.Compare):
        for side in (node.left, *node.comparators):
            expressions += side.elts if isinstance(side, (ast.Tuple, ast.List, ast.Set)) else [side]
    for expression in expressions:
        if isinstance(expression, ast.Constant) and type(expression.value) is str:
            yield expression


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Return every mutant of a source file, in the order of the source."""
    return list(_File(path, source).mutants(ast.parse(source)))


def mutants_by_room(root: Path) -> dict[str, list[Mutant]]:
    """Return every mutant of the package below ``root``, by subfolder; "top" for its own modules."""
    rooms: dict[str, list[Mutant]] = {}
    for path in sorted((root / "ppprof").rglob("*.py")):
        parts = path.relative_to(root / "ppprof").parts
        room = rooms.setdefault(parts[0] if len(parts) > 1 else "top", [])
        room += mutants_of(path.relative_to(root).as_posix(), path.read_bytes())
    return {room: rooms[room] for room in sorted(rooms) if rooms[room]}


def draw(rooms: dict[str, list[Mutant]], count: int, seed: int) -> list[tuple[str, Mutant]]:
    """Return ``count`` different (room, mutant), drawn evenly over rooms and uniformly in each."""
    generator = random.Random(seed)
    shares = [count // len(rooms) + (i < count % len(rooms)) for i in range(len(rooms))]
    drawn = [
        [(room, mutant) for mutant in generator.sample(mutants, min(share, len(mutants)))]
        for share, (room, mutants) in zip(shares, rooms.items())
    ]
    # Round-robin, so that an interrupted run has seen every room.
    return [row[i] for i in range(max(shares)) for row in drawn if i < len(row)]


@dataclass(frozen=True)
class Outcome:
    """The result of one run of pytest; ``code`` None means a timeout."""

    code: int | None
    failed: list[str]
    durations: dict[str, float]
    seconds: float


class Suite:
    """The tests of a commit in a scratch copy, and which of them execute which line."""

    def __init__(self, scratch: Path, cache: Path, commit: str) -> None:
        self.root, self.temporary, self.cache = scratch / "copy", scratch / "tmp", cache / commit
        self.cache.mkdir(parents=True, exist_ok=True)
        self.scratch, self.known = scratch, {tier: self.cache / f"{tier}.json" for tier in TIERS}
        self.known["covering"] = self.known["test"]
        archive = scratch / "copy.tar"
        subprocess.run(["git", "archive", "-o", archive, commit], cwd=ROOT, check=True)
        shutil.unpack_archive(archive, self.root)
        own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        self.environment = {
            **own,
            "HYPOTHESIS_PROFILE": "ci",
            "PYTHONPATH": str(self.root),
            "TMPDIR": str(self.temporary),
            "XDG_CACHE_HOME": str(self.temporary / "cache"),
            "COVERAGE_FILE": str(scratch / "coverage"),
            "COVERAGE_CORE": "ctrace",  # the one of sys.monitoring does not know which test runs
        }
        code = "import ppprof; print(ppprof.__file__)"
        imported = subprocess.check_output(
            [sys.executable, "-c", code], cwd=scratch, env=self.environment, text=True
        )
        if not imported.startswith(str(self.root)):
            raise SystemExit(f"tests would import {imported.strip()}, not the copy {self.root}")

    def baseline(self, tier: str) -> None:
        """Run a tier without a mutant, unless an earlier run of this commit left its results.

        Raises:
            SystemExit: a test fails twice.
        """
        known = self.known[tier]
        if not known.exists():
            print(f"baseline: running the tier {tier!r} without a mutant", flush=True)
            settings = self.scratch / "coveragerc"
            settings.write_text("[run]\nrelative_files = true\n")
            coverage = ("--cov=ppprof", "--cov-context=test", "--cov-report=")
            options = (
                (*coverage, f"--cov-config={settings}") if tier in ("covering", "test") else ()
            )
            outcome = self.run(tier, *options, is_parallel=True)
            failed = outcome.failed
            if outcome.code == 1:  # by chance, or because coverage slows a test down
                print("baseline: running again:", *failed, sep="\n  ", flush=True)
                outcome = replace(outcome, code=self.run(tier, tests=failed).code)
            if outcome.code:
                log = (self.scratch / "log").read_text(errors="replace")
                raise SystemExit(f"baseline: tests fail without a mutant:\n{log[-4000:]}")
            if tier != "jobs":
                shutil.copy(self.scratch / "coverage", self.cache / "coverage")
            results = {"seconds": outcome.seconds, "durations": outcome.durations}
            known.write_text(json.dumps(results))
        results = json.loads(known.read_text())
        num_tests, seconds = len(results["durations"]), results["seconds"]
        print(f"baseline: tier {tier!r} passes: {num_tests} tests, {seconds:.0f} s", flush=True)

    def covering(self, mutant: Mutant) -> tuple[list[str], float]:
        """Return the tests to try first, the fastest first, and their seconds.

        These are tests that execute the line; for a line executed on import, the file.
        """
        data = CoverageData(str(self.cache / "coverage"))
        data.read()
        contexts = data.contexts_by_lineno(mutant.path)
        lines = range(mutant.line, mutant.last_line + 1)
        tests = _tests(context for line in lines for context in contexts.get(line, ()))
        tests = tests or _tests(context for tests in contexts.values() for context in tests)
        durations = json.loads(self.known["test"].read_text())["durations"]
        first: list[str] = []
        total = 0.0
        for test in sorted(tests, key=lambda test: (durations.get(test, 1.0), test)):
            if len(first) == MAX_FIRST_TESTS or total > MAX_FIRST_SECONDS:
                break
            first.append(test)
            total += durations.get(test, 1.0)
        return first, total

    def killer(self, mutant: Mutant, tier: str) -> str | None:
        """Return the test that fails with a mutant, or "timeout"; None if the mutant survives."""
        path = self.root / mutant.path
        source, status = path.read_bytes(), path.stat()
        path.write_bytes(mutant.apply(source))
        # Python compiles a file again only if its size or its time in whole seconds changes.
        other_time = int(status.st_mtime) + 1 + mutant.start
        os.utime(path, (other_time, other_time))
        limit = 3 * float(json.loads(self.known[tier].read_text())["seconds"]) + 120
        try:
            if tier != "covering":
                return self._failing(tier, [], True, limit)
            tests, seconds = self.covering(mutant)
            if not tests:
                return None
            return self._failing(tier, tests, seconds > SERIAL_SECONDS, 3 * seconds + 60)
        finally:
            path.write_bytes(source)
            os.utime(path, (status.st_mtime, status.st_mtime))

    def _failing(self, tier: str, tests: list[str], is_parallel: bool, limit: float) -> str | None:
        """Return a test that fails twice or the third that fails once, or "timeout"; else None."""
        flaky: list[str] = []
        while True:
            skipped = [f"--deselect={test}" for test in flaky]
            outcome = self.run(
                tier, "-x", *skipped, tests=tests, is_parallel=is_parallel, limit=limit
            )
            # 4: a test that the mutant gives another name; 5: every test is deselected.
            if outcome.code == 0 or (tests and outcome.code in (4, 5)):
                return None
            if outcome.code is None:
                return f"timeout of {limit:.0f} s"
            if not outcome.failed:
                return f"pytest's exit code {outcome.code}"
            test = outcome.failed[0]
            if self.run(tier, tests=[test], limit=limit).code != 0 or len(flaky) == 2:
                return test
            print(f"{test}: failed, but passed when run again: not counted", file=sys.stderr)
            flaky.append(test)

    def run(
        self,
        tier: str,
        *options: str,
        tests: Sequence[str] = (),
        is_parallel: bool = False,
        limit: float | None = None,
    ) -> Outcome:
        """Run tests of a tier in the copy; end all their processes after ``limit`` seconds."""
        marker, distribution = TIERS[tier]
        report = self.scratch / "report.xml"
        report.unlink(missing_ok=True)
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir()
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marker]
        words += [f"--junitxml={report}", "-o", "junit_family=xunit1", *options, *tests]
        words += ["-n", "2", "--dist", distribution] if is_parallel else []
        start = time.monotonic()
        with (self.scratch / "log").open("wb") as log:
            process = subprocess.Popen(
                words, cwd=self.root, env=self.environment, stdout=log, stderr=subprocess.STDOUT
            )
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                self._end_processes()
                process.kill()
                process.wait()
                self._end_processes()  # those started meanwhile
        failed, durations = read_report(report) if report.exists() else ([], {})
        return Outcome(code, failed, durations, time.monotonic() - start)

    def _end_processes(self) -> None:
        """Kill what tests left running: launchers give their ranks a process group of their own."""
        mark = f"TMPDIR={self.temporary}".encode()
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in environment.read_bytes().split(b"\0"):
                    os.kill(int(environment.parent.name), signal.SIGKILL)


def _tests(contexts: Iterable[str]) -> set[str]:
    """Return the tests of coverage's contexts; lines executed on import have the context ""."""
    return {context.rpartition("|")[0] for context in contexts if context}


def read_report(report: Path) -> tuple[list[str], dict[str, float]]:
    """Return the tests that failed and the seconds of each test, from a JUnit report."""
    failed: list[str] = []
    durations: dict[str, float] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        file, name, owner = (case.get(key, "") for key in ("file", "name", "classname"))
        module = file.removesuffix(".py").replace("/", ".")
        classes = owner[len(module) + 1 :].replace(".", "::") if owner.startswith(module) else ""
        # A file that cannot be imported is a case with the name of its module.
        test = "::".join(part for part in (file, classes, name) if part not in ("", module))
        durations[test] = durations.get(test, 0.0) + float(case.get("time", 0))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(test)
    return failed, durations


class Results:
    """Which tiers judged a mutant and what killed it, kept as JSON lines; the last line counts."""

    def __init__(self, resumed: Path | None, path: Path | None, commit: str) -> None:
        self.path, self.commit = path, commit
        self.rows: dict[str, dict[str, Any]] = {}
        for line in resumed.read_text().splitlines() if resumed else ():
            row = json.loads(line)
            if row["commit"] != commit:
                raise SystemExit(f"{resumed}: results of commit {row['commit']}, expected {commit}")
            self.rows[row["key"]] = row

    def add(self, room: str, mutant: Mutant, tier: str, killer: str | None, seconds: float) -> None:
        """Print and write the verdict of a tier."""
        tiers = [*self.rows.get(mutant.key, {}).get("tiers", []), tier]
        verdict = f"killed by {killer}" if killer else f"survived {' and '.join(tiers)}"
        print(f"{mutant}: {verdict} ({seconds:.0f} s)", flush=True)
        self.rows[mutant.key] = {
            **{"commit": self.commit, "key": mutant.key, "room": room, "mutant": str(mutant)},
            **{"tiers": tiers, "killer": killer, "seconds": round(seconds)},
        }
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps(self.rows[mutant.key]) + "\n")

    def killer(self, mutant: Mutant) -> str | None:
        """Return what killed a mutant."""
        return self.rows.get(mutant.key, {}).get("killer")

    def is_open(self, mutant: Mutant, tier: str) -> bool:
        """Return whether a tier has yet to judge a mutant."""
        tiers = self.rows.get(mutant.key, {}).get("tiers", [])
        return tier not in tiers and not self.killer(mutant)


def summary(drawn: Sequence[tuple[str, Mutant]], results: Results) -> tuple[int, str]:
    """Return how many mutants were killed, and a table by room with the survivors below."""
    lines = [f"{'room':<14}{'mutants':>8}{'killed':>8}"]
    alive = [mutant for _, mutant in drawn if not results.killer(mutant)]
    for room in sorted({room for room, _ in drawn}):
        own = [mutant for other, mutant in drawn if other == room]
        num_killed = sum(mutant not in alive for mutant in own)
        lines.append(f"{room:<14}{len(own):>8}{num_killed:>8}")
    num_killed = len(drawn) - len(alive)
    lines.append(f"killed {num_killed} of {len(drawn)}")
    return num_killed, "\n".join([*lines, *(f"survived: {mutant}" for mutant in alive)])


def main() -> int:
    """Draw mutants, run the tiers on each, print the results; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, required=True, help="the same seed draws the same")
    parser.add_argument("--count", type=int, default=60, help="mutants; default: %(default)s")
    parser.add_argument("--tiers", default="covering,test,jobs", help="default: %(default)s")
    parser.add_argument("--only", metavar="ROOM", help="a subfolder of ppprof, or top")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="skip what FILE has; add to it")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write results as JSON lines")
    cache = Path(tempfile.gettempdir(), "ppprof-mutants")
    parser.add_argument("--cache", type=Path, default=cache, help="default: %(default)s")
    options = parser.parse_args()
    tiers = options.tiers.split(",")
    if set(tiers) - set(TIERS):
        parser.error(f"--tiers: {options.tiers}: expected some of {','.join(TIERS)}")
    git = ("git", "-C", str(ROOT))
    commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    if subprocess.check_output([*git, "status", "--porcelain", "ppprof", "tests"]):
        print("uncommitted changes in ppprof and tests are left out", file=sys.stderr)
    results = Results(options.resume, options.out or options.resume, commit)
    # SIGTERM ends the tests and removes the copy, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        suite = Suite(Path(scratch), options.cache, commit)
        rooms = mutants_by_room(suite.root)
        if options.only and options.only not in rooms:
            parser.error(f"--only: {options.only}: expected one of {', '.join(rooms)}")
        drawn = draw(
            {options.only: rooms[options.only]} if options.only else rooms,
            options.count,
            options.seed,
        )
        for tier in tiers:
            waiting = [(room, mutant) for room, mutant in drawn if results.is_open(mutant, tier)]
            if waiting:
                suite.baseline(tier)
            for room, mutant in waiting:
                start = time.monotonic()
                killer = suite.killer(mutant, tier)
                results.add(room, mutant, tier, killer, time.monotonic() - start)
    num_killed, table = summary(drawn, results)
    print(table)
    return 0 if num_killed >= ENOUGH * len(drawn) else 1


if __name__ == "__main__":
    sys.exit(main())
