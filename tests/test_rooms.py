"""Who may import whom: the one direction in which data moves, checked on the source itself."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import ppprof

PACKAGE = Path(ppprof.__file__).parent
LEAVES = {
    "bounded_yaml",
    "errors",
    "paths",
    "units",
    "topology",
    "rundir",
    "clocks",
    "calls",
    "recordings",
    "steptimes",
    "window_requests",
    "wording",
}
MAY_IMPORT = {
    "config": LEAVES,
    "capture": LEAVES | {"config", "trace"},
    "trace": LEAVES,
    "analysis": LEAVES | {"trace"},
    "report": LEAVES | {"trace", "analysis"},
    "reading": LEAVES | {"trace"},
    "window_tables": LEAVES | {"analysis", "report"},
    "run": LEAVES | {"trace", "analysis", "report", "reading", "window_tables"},
    "compare": LEAVES | {"analysis", "reading", "run"},
    "reporting": LEAVES | {"analysis", "report", "reading", "run", "compare", "advising"},
    "advising": LEAVES | {"trace", "analysis", "reading", "run"},
    "train": LEAVES | {"config", "capture"},
    "integrations": LEAVES | {"config", "capture"},
    "remote": LEAVES | {"config", "capture"},
    "cli": LEAVES
    | {
        "config",
        "capture",
        "trace",
        "analysis",
        "report",
        "window_tables",
        "run",
        "compare",
        "reporting",
        "advising",
        "integrations",
    },
}
MAY_IMPORT_PADDLE = {"capture", "train", "integrations"}
TRAINERS = {"paddlenlp", "paddleformers"}
FILES = sorted(path for path in PACKAGE.rglob("*.py"))


def _imported(path: Path) -> set[str]:
    """Full names of the modules that a file imports, wherever in the file it does."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def _room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_table(path: Path) -> None:
    room = _room(path)
    names = _imported(path)
    if room not in MAY_IMPORT_PADDLE:
        assert not {name for name in names if name.partition(".")[0] == "paddle"}
    frameworks = {name.partition(".")[0] for name in names} & TRAINERS
    assert frameworks <= ({path.stem} if room == "integrations" else set())
    rooms = {name.split(".")[1] for name in names if name.startswith("ppprof.")}
    if room in ("__init__", "__main__"):
        assert rooms <= {
            "capture",
            "config",
            "topology",
            "cli",
            "run",
            "compare",
            "reporting",
            "advising",
            "remote",
        } | {
            "attach",
            "main",
        }
    elif room in LEAVES:
        assert rooms <= LEAVES
    else:
        assert rooms - {room} <= MAY_IMPORT[room]


def test_every_module_has_a_room() -> None:
    rooms = {_room(path) for path in FILES}
    assert rooms <= set(MAY_IMPORT) | LEAVES | {"__init__", "__main__"}


def _mapped() -> list[str]:
    """Paths in the first column of the map."""
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*?) \|", text[text.index("## The map") :], re.MULTILINE)
    return [path for row in rows for path in re.findall(r"`([^`]+)`", row)]


def test_what_is_on_the_map_is_there() -> None:
    paths = [PACKAGE.parent / path for path in _mapped()]
    assert [path for path in paths if not path.exists()] == []


def test_every_room_is_on_the_map() -> None:
    rooms = {_room(path) for path in FILES} - {"__init__", "__main__"}
    mapped = {_room(PACKAGE.parent / path) for path in _mapped() if path.startswith("ppprof/")}
    assert mapped == rooms
