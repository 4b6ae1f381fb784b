"""Who may import whom: the one direction in which data moves, checked on the source itself."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import ppprof

PACKAGE = Path(ppprof.__file__).parent
TESTS = Path(__file__).parent
LEAVES = {
    *("arrays", "choices", "errors", "hardware", "messages", "packages", "paths", "remote_names"),
    *("safe_yaml", "slow_ranks", "topology", "units"),
}
MAY_IMPORT = {
    "config": LEAVES,
    "rundir": LEAVES,
    "trace": LEAVES | {"rundir"},
    "analysis": LEAVES | {"trace"},
    "run": LEAVES | {"rundir", "config", "trace", "analysis"},
    "report": LEAVES | {"analysis", "run"},
    "schemas": LEAVES | {"config"},
    "cli": LEAVES | {"config", "rundir", "trace", "analysis", "run", "report", "schemas"},
    "capture": LEAVES | {"config", "rundir", "trace"},
    "train": LEAVES | {"config", "rundir", "capture"},
    "integrations": LEAVES | {"config", "rundir", "capture"},
    "remote": LEAVES | {"config", "rundir", "capture"},
    "selftest": LEAVES | {"rundir", "trace", "analysis", "run", "capture"},
}
INSIDE_FUNCTIONS = {"cli/doctor.py": {"capture", "selftest"}}
"""More rooms that a file may import, but only inside its functions: the import loads a lot."""
MAY_IMPORT_PADDLE = {"capture", "train", "integrations", "selftest"}
PUBLIC = {"capture", "cli", "remote", "report", "run"}
TRAINERS = {"paddlenlp", "paddleformers", "paddlefleet"}
LIGHT = {
    *("choices", "cli", "errors", "messages", "packages", "paths", "remote_names", "topology"),
    "units",
}
"""Rooms that are imported for every command line, so without packages that take long to import."""
HEAVY = {"msgspec", "numpy", "pandas", "polars", "upath", "yaml"}
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
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.update(re.findall(r"\Appprof(?:\.\w+)+\Z", node.value))  # for import_module
    return names


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _room(path: Path) -> str:
    return _room_of(path.relative_to(PACKAGE).with_suffix("").parts)


def _room_of(parts: Sequence[str]) -> str:
    """Return the room of a module from the parts of its path or name: cli, diff -> cli."""
    room = "/".join(parts[:2])
    return room if room in MAY_IMPORT else parts[0]


def _forbidden(path: Path) -> set[str]:
    """Return what a file imports and its room may not."""
    room, names = _room(path), _imported(path)
    tops = {name.partition(".")[0] for name in names}
    rooms = {_room_of(name.split(".")[1:]) for name in names if name.startswith("ppprof.")}
    if room in ("__init__", "__main__"):
        allowed = PUBLIC
    elif room in LEAVES:
        allowed = LEAVES
    else:
        allowed = MAY_IMPORT[room] | {room} | INSIDE_FUNCTIONS.get(_name(path), set())
    paddle = set() if room in MAY_IMPORT_PADDLE else tops & {"paddle"}
    own = {path.stem} if room == "integrations" else set()
    return (rooms - allowed) | paddle | ((tops & TRAINERS) - own)


def test_imports_follow_the_table() -> None:
    found = {_name(path): _forbidden(path) for path in FILES}
    assert {path: names for path, names in found.items() if names} == {}


def test_some_rooms_are_imported_only_inside_functions() -> None:
    for name, rooms in INSIDE_FUNCTIONS.items():
        for node in ast.parse((PACKAGE / name).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[1:2] not in [[room] for room in rooms], name


def test_light_rooms_import_heavy_packages_only_inside_functions() -> None:
    for path in FILES:
        if _room(path) in LIGHT:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
            names = {name.name for node in top for name in node.names}
            names.update(node.module or "" for node in top if isinstance(node, ast.ImportFrom))
            assert {name.partition(".")[0] for name in names} & HEAVY == set(), _name(path)


def test_every_module_has_a_room() -> None:
    rooms = {_room(path) for path in FILES}
    assert rooms <= set(MAY_IMPORT) | LEAVES | {"__init__", "__main__"}


def test_the_tree_stays_small_enough_to_know() -> None:
    top = [path for path in PACKAGE.glob("*.py") if not path.stem.startswith("__")]
    assert len(top) <= 13
    stems = Counter((_room(path), path.stem) for path in FILES if path.stem != "__init__")
    assert [key for key, count in stems.items() if count > 1] == []


def test_no_files_import_each_other() -> None:
    """A file is read after those that it imports, also in functions and for types alone."""
    modules = {".".join(_parts(path)): path for path in FILES}
    imports = {name: _files_imported(path, modules) - {name} for name, path in modules.items()}
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the files


def _files_imported(path: Path, modules: Mapping[str, Path]) -> set[str]:
    """Return the modules that a file imports; of `from package import module`, the module alone."""
    names = _imported(path) & modules.keys()
    packages: Counter[str] = Counter()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            own = {f"{node.module}.{alias.name}" for alias in node.names}
            packages[node.module or ""] += not own <= modules.keys()
    names -= {package for package, num_others in packages.items() if not num_others}
    return names


def _parts(path: Path) -> list[str]:
    """Return the parts of a module's name: those of its package for an ``__init__.py``."""
    parts = ["ppprof", *path.relative_to(PACKAGE).with_suffix("").parts]
    return parts[:-1] if parts[-1] == "__init__" else parts


def test_no_file_imports_from_a_test() -> None:
    """What tests share is in `tests/fixtures`: a test can be renamed or deleted alone."""
    imports = re.compile(r"\bfrom tests[\w.]*(\.test_\w+ import| import test_)")
    importers = {
        path.relative_to(TESTS).as_posix()
        for path in TESTS.rglob("*.py")
        if imports.search(path.read_text(encoding="utf-8"))
    }
    assert not importers


def _mapped() -> list[str]:
    """Paths at the beginnings of the items of the map."""
    text = (PACKAGE.parent / "docs/architecture.md").read_text(encoding="utf-8")
    items = re.findall(r"^- ((?:`[^`]+`(?:, )?)+): ", text, re.MULTILINE)
    return [path for item in items for path in re.findall(r"`([^`]+)`", item)]


def test_what_is_on_the_map_is_there() -> None:
    paths = [PACKAGE.parent / path for path in _mapped()]
    assert [path for path in paths if not path.exists()] == []


def test_every_room_is_on_the_map() -> None:
    rooms = {_room(path) for path in FILES} - {"__init__", "__main__"}
    mapped = {_room(PACKAGE.parent / path) for path in _mapped() if path.startswith("ppprof/")}
    assert mapped == rooms
