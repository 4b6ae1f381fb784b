"""docs/reliability.md names existing tests only, and every tested fault."""

from __future__ import annotations

import re

from tests.jobs.launching import ROOT

PAGE = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(test_\w+)(?:::(test_\w+))?(?:\[(\w+)\])?`", PAGE)


def exists(file: str, function: str, case: str) -> bool:
    (path,) = (ROOT / "tests").rglob(f"{file}.py")
    source = path.read_text(encoding="utf-8")
    has_function = not function or re.search(rf"^def {function}\(", source, re.M)
    has_case = not case or re.search(rf'^    "{case}": Fault\(|id="{case}"', source, re.M)
    return bool(function or case) and bool(has_function) and bool(has_case)


def test_every_named_test_exists() -> None:
    assert [named for named in NAMED if not exists(*named)] == []


def test_every_fault_has_a_row() -> None:
    faults = ROOT / "tests/jobs/test_faults.py"
    tested = re.findall(r'^    "(\w+)": Fault\(', faults.read_text(encoding="utf-8"), re.M)
    assert len(tested) > 20
    assert set(tested) == {case for file, _, case in NAMED if file == "test_faults" and case}


def test_every_row_names_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    assert [row for row in rows if "test" not in row.rpartition(" | ")[2]] == []
