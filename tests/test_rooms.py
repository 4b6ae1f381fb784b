"""Who may import whom: the one direction in which data moves, checked on the source itself."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import ppprof

PACKAGE = Path(ppprof.__file__).parent
LEAVES = {"arrays", "errors", "hardware", "paths", "safe_yaml", "topology", "units"}
MAY_IMPORT = {
    "config": LEAVES,
    "rundir": LEAVES,
    "capture": LEAVES | {"config", "rundir", "trace"},
    "trace": LEAVES | {"rundir"},
    "analysis": LEAVES | {"trace"},
    "report": LEAVES | {"rundir", "trace", "analysis"},
    # Tables that a run left are read in report/data.py, which is to become a module of rundir.
    "run": LEAVES | {"rundir", "trace", "analysis", "report"},
    "train": LEAVES | {"rundir", "config", "capture"},
    "integrations": LEAVES | {"rundir", "config", "capture"},
    "remote": LEAVES | {"rundir", "config", "capture"},
    "cli": LEAVES
    | {"config", "rundir", "capture", "trace", "analysis", "report", "run", "integrations"},
}
MAY_IMPORT_PADDLE = {"capture", "train", "integrations"}
PUBLIC = {"capture", "config", "topology", "cli", "run", "remote", "attach", "main"}
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


def _forbidden(path: Path) -> set[str]:
    """Return what a file imports and its room may not."""
    room, names = _room(path), _imported(path)
    tops = {name.partition(".")[0] for name in names}
    rooms = {name.split(".")[1] for name in names if name.startswith("ppprof.")}
    if room in ("__init__", "__main__"):
        allowed = PUBLIC
    elif room in LEAVES:
        allowed = LEAVES
    else:
        allowed = MAY_IMPORT[room] | {room}
    paddle = set() if room in MAY_IMPORT_PADDLE else tops & {"paddle"}
    own = {path.stem} if room == "integrations" else set()
    return (rooms - allowed) | paddle | ((tops & TRAINERS) - own)


def test_imports_follow_the_table() -> None:
    found = {str(path.relative_to(PACKAGE)): _forbidden(path) for path in FILES}
    assert {path: names for path, names in found.items() if names} == {}


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
