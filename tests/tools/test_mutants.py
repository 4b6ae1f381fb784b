"""``tools/mutants.py``: which places of a source file it changes, and how; no mutant is run here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tools import mutants


def changed(source: str) -> list[str]:
    """Return the source with each of its mutants, in order."""
    return [
        mutant.apply(source.encode()).decode()
        for mutant in mutants.mutants_of("ppprof/x.py", source.encode())
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a < b", "a <= b"),
        ("a <= b", "a < b"),
        ("a > b", "a >= b"),
        ("a >= b", "a > b"),
        ("a == b", "a != b"),
        ("a != b", "a == b"),
        ("a in b", "a not in b"),
        ("a not  in b", "a in b"),
        ("a is b", "a is not b"),
        ("a is not b", "a is b"),
        ("a + b", "a - b"),
        ("a - b", "a + b"),
        ("a * b", "a / b"),
        ("a / b", "a * b"),
        ("a // b", "a / b"),
        ("a += b", "a -= b"),
        ("a and b", "a or b"),
        ("a or b", "a and b"),
        ("not a", "a"),
        ("not(a)", "(a)"),
        ("a[7]", "a[8]"),
        ("True", "False"),
        ("False", "True"),
        ("a(b)", "pass"),
        ("if a:\n    b", "if not (a):\n    b"),
        ("while x:\n    y(\n        z\n    )", "while x:\n    pass"),
        ('x = {"a": "b"}', 'x = {"XXa": "b"}'),
        ('x = {**a, r"a": b}', 'x = {**a, r"XXa": b}'),
        ('x = a["b"]', 'x = a["XXb"]'),
        ('x = a("b")', 'x = a("XXb")'),
        ("x = a(b='''c''')", "x = a(b='''XXc''')"),
        ("(a  # not in\n) == (b)", "(a  # not in\n) != (b)"),
        ('x = "größer", a < b  # größer', 'x = "größer", a <= b  # größer'),
    ],
)
def test_an_operator(old: str, new: str) -> None:
    rest = "# before\n\n"
    assert changed(f"{rest}{old}\n{rest}") == [f"{rest}{new}\n{rest}"]


def test_every_place_of_a_function() -> None:
    source = """\
def area(shape):
    if shape["kind"] == "square" and shape.side:
        return shape.side * 2
    return None
"""
    head, test, first, last = source.splitlines()
    condition = test[len("    if ") : -1]
    expected = [
        (f"    if not ({condition}):", first),
        (test.replace("and", "or"), first),
        (test.replace("==", "!="), first),
        (test.replace("square", "XXsquare"), first),
        (test.replace("kind", "XXkind"), first),
        (test, "        return None"),
        (test, first.replace("*", "/")),
        (test, first.replace("2", "3")),
    ]
    assert changed(source) == ["\n".join([head, *lines, last, ""]) for lines in expected]


def test_strings_in_a_comparison() -> None:
    source = 'x = a in ("b", "c") == "d"\n'
    assert changed(source)[2:] == [
        source.replace('"b', '"XXb'),
        source.replace('"c', '"XXc'),
        source.replace('"d', '"XXd'),
    ]


@pytest.mark.parametrize(
    "source",
    [
        '"""True, 1 < 2."""',
        'def f():\n    """True, 1 < 2."""',
        'class C:\n    field: int\n    """True, 1 < 2."""',
        'def f(a: Literal[1, "x"], *b: List["y"]) -> Literal[True]: ...',
        'a: Literal["x"] = b',
        'A = Literal["x"]',
        'A = dict["x", 1]',
        'T = TypeVar("T", bound="A")',
        'x = cast("A", y)',
        '@decorated("x", 1)\ndef f(): ...',
        'assert a == 1, "x"',
        '__all__ = ["a"] + ["b"]',
        "if TYPE_CHECKING:\n    a(1)",
        "x = f'{a + 1}'",
        'x = "a"',
        "def f():\n    return None",
        "def f():\n    return",
        "x = a % b ** c | d",
        "x = 1.5",
        'x = a(b"c")',
    ],
)
def test_no_place(source: str) -> None:
    assert changed(source + "\n") == []


def test_the_other_branch_of_type_checking() -> None:
    source = "if TYPE_CHECKING:\n    a = 1\nelse:\n    a = 2\n"
    assert changed(source) == [source.replace("2", "3")]


def test_what_is_printed() -> None:
    source = b"\n\ndef f():\n    return [\n        a,\n        b < c,\n    ]\n"
    assert [str(mutant) for mutant in mutants.mutants_of("ppprof/x.py", source)] == [
        "ppprof/x.py:4: return [ a, b < c, ] -> return None",
        "ppprof/x.py:6: b < c -> b <= c",
    ]


@pytest.fixture
def rooms(tmp_path: Path) -> dict[str, list[mutants.Mutant]]:
    """The mutants of three rooms: eight in "top", four in "cli", one in "trace"."""
    for path, num_mutants in {"a.py": 8, "cli/a.py": 3, "cli/b/c.py": 1, "trace/a.py": 1}.items():
        file = tmp_path / "ppprof" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n" * num_mutants)
    return mutants.mutants_by_room(tmp_path)


def test_rooms(rooms: dict[str, list[mutants.Mutant]]) -> None:
    assert {room: [f"{mutant.path}:{mutant.line}" for mutant in rooms[room]] for room in rooms} == {
        "cli": [*(f"ppprof/cli/a.py:{line}" for line in (1, 2, 3)), "ppprof/cli/b/c.py:1"],
        "top": [f"ppprof/a.py:{line}" for line in range(1, 9)],
        "trace": ["ppprof/trace/a.py:1"],
    }


def test_a_draw_is_even_over_rooms(rooms: dict[str, list[mutants.Mutant]]) -> None:
    drawn = mutants.draw({room: rooms[room] for room in ("cli", "top")}, 7, seed=1)
    assert [room for room, _ in drawn] == ["cli", "top"] * 3 + ["cli"]
    assert len({mutant.key for _, mutant in drawn}) == 7


def test_a_room_with_few_places_gives_them_all(rooms: dict[str, list[mutants.Mutant]]) -> None:
    counts = Counter(room for room, _ in mutants.draw(rooms, 9, seed=1))
    assert counts == {"cli": 3, "top": 3, "trace": 1}


def test_a_seed_draws_the_same(rooms: dict[str, list[mutants.Mutant]]) -> None:
    draws = [mutants.draw(rooms, 6, seed) for seed in (1, 1, 2, 3)]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2] or draws[0] != draws[3]


def test_results_are_resumed(
    rooms: dict[str, list[mutants.Mutant]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results"
    survivor, killed, other = rooms["top"][:3]
    results = mutants.Results(None, path, "c0ffee")
    results.add("top", survivor, "test", None, 61.2)
    results.add("top", killed, "test", None, 60)
    results.add("top", killed, "jobs", "tests/a.py::test_b", 5)
    assert capsys.readouterr().out == (
        "ppprof/a.py:1: 1 -> 2: survived test (61 s)\n"
        "ppprof/a.py:2: 1 -> 2: survived test (60 s)\n"
        "ppprof/a.py:2: 1 -> 2: killed by tests/a.py::test_b (5 s)\n"
    )

    resumed = mutants.Results(path, path, "c0ffee")
    waiting = [
        (tier, mutant.line)
        for tier in ("test", "jobs")
        for mutant in (survivor, killed, other)
        if resumed.is_open(mutant, tier)
    ]
    assert waiting == [("test", 3), ("jobs", 1), ("jobs", 3)]
    num_killed, table = mutants.summary([("top", survivor), ("top", killed)], resumed)
    assert num_killed == 1
    assert table.splitlines() == [
        "room           mutants  killed",
        "top                  2       1",
        "killed 1 of 2",
        "survived: ppprof/a.py:1: 1 -> 2",
    ]
    with pytest.raises(SystemExit, match="results of commit c0ffee, expected d00d"):
        mutants.Results(path, path, "d00d")


def test_the_report_of_pytest(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text("""\
<testsuites><testsuite>
  <testcase file="tests/a.py" classname="tests.a" name="test_b[c - d::e]" time="0.5"/>
  <testcase file="tests/a.py" classname="tests.a.TestC" name="test_d" time="0.25"><failure/></testcase>
  <testcase file="tests/a.py" classname="tests.a.TestC" name="test_d" time="0.25"><error/></testcase>
  <testcase file="ppprof/b.py" classname="ppprof.b" name="ppprof.b.f" time="1"><skipped/></testcase>
  <testcase file="tests/c.py" classname="" name="tests.c" time="0"><error/></testcase>
</testsuite></testsuites>
""")
    failed, durations = mutants.read_report(report)
    assert failed == ["tests/a.py::TestC::test_d", "tests/a.py::TestC::test_d", "tests/c.py"]
    assert durations == {
        "tests/a.py::test_b[c - d::e]": 0.5,
        "tests/a.py::TestC::test_d": 0.5,
        "ppprof/b.py::ppprof.b.f": 1.0,
        "tests/c.py": 0.0,
    }
