"""Reject words that make sentences and names hard to read; part of ``make check``.

    python tools/check_words.py [PATH...]

Looks at names, docstrings, comments and strings of Python files and at every line of pages and of
texts in YAML, English and Chinese. CONTRIBUTING.md explains the rules and holds the glossary.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACES = ("ppprof", "tools", "tests", "benchmarks", "configs", "docs", ".")
WORDS = re.compile(
    r"\b(?:tells?|telling|told|untold|who(?:m|so)?ever|nobody|somebody|anybody"
    r"|(?-i:(?:is|are|was|were) none)|how-manieth|what is of|as of any)\b",
    re.IGNORECASE,
)
CHINESE_WORDS = re.compile(
    "录制|代价|下发|微批|检查点|暴露的|未掩盖|同伴|堆栈|作业|时间线文件|流水线级|(?<!性能)分析器|您"
    "|(?<=[一-鿿] )step(?= ?[一-鿿，。：；、）])"
)
"""Second words for a term of the glossary; pages address the reader as 你."""
_CODE = re.compile(r"`+[^`]*`+")
NAME_PARTS = frozenset({"tell", "tells", "told", "whoever", "nobody", "somebody", "anybody"})
LOOP_NAMES = frozenset({"at", "of", "found", "made", "told", "known"})
_EXCEPT = ("check_words.py", "test_check_words.py", "echarts.min.js")


def files(paths: list[str]) -> Iterator[Path]:
    """Return the files to check: those given, or all of the project's."""
    for path in map(Path, paths) if paths else (ROOT / place for place in PLACES):
        if path.is_file():
            yield path
            continue
        pages = path.glob("*.md") if path == ROOT / "." else path.rglob("*")
        for file in sorted(pages):
            if file.suffix in (".py", ".md", ".yaml", ".html") and file.name not in _EXCEPT:
                yield file


def rejected_words(path: Path) -> re.Pattern[str]:
    """Return the words that a page or a file of texts must not contain, by its language."""
    return CHINESE_WORDS if "zh" in path.name else WORDS


def words_of_python(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and word: in names, loop variables, comments and strings."""
    for node in ast.walk(ast.parse(text)):
        for name in _bound_names(node):
            if NAME_PARTS & set(name.lower().split("_")):
                yield getattr(node, "lineno", 1), f"name {name}"
        for target in _loop_targets(node):
            for child in ast.walk(target):
                if isinstance(child, ast.Name) and child.id in LOOP_NAMES:
                    yield child.lineno, f"loop variable {child.id}"
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) or token.type in _FSTRING_PARTS:
            for line, word in words_of_text(token.string):
                yield token.start[0] + line - 1, word


_FSTRING_PARTS = {getattr(tokenize, "FSTRING_MIDDLE", -1)}


def _bound_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr


def _loop_targets(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield node.target


def words_of_text(text: str, words: re.Pattern[str] = WORDS) -> Iterator[tuple[int, str]]:
    """Yield line and word; code between backticks has no words, nor has Python's ``is None``."""
    for match in words.finditer(_CODE.sub(lambda code: "\n" * code[0].count("\n"), text)):
        yield match.string.count("\n", 0, match.start()) + 1, match[0].lower()


def main(paths: list[str]) -> int:
    """Print what was found; return 1 if there was anything, else 0."""
    count = 0
    for path in files(paths):
        if path.suffix != ".py" and "fixtures" in path.parts:  # recorded data
            continue
        text = path.read_text(encoding="utf-8")
        is_python = path.suffix == ".py"
        found = words_of_python(text) if is_python else words_of_text(text, rejected_words(path))
        for line, word in found:
            count += 1
            print(f"{path.relative_to(ROOT) if path.is_absolute() else path}:{line}: {word}")
    if count:
        print(f"{count} words that CONTRIBUTING.md asks to avoid", file=sys.stderr)
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
