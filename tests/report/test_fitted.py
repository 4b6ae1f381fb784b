"""Tables in the width of a terminal: small tables in, whole text out."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ppprof.report.text import layout
from ppprof.report.text.layout import Layout, draw, draw_rows
from ppprof.report.text.table import Column, Painted, Table

STATS = "Total / Avg / Max / Min / Ratio(%)"
OPERATORS = Table(
    "Operator Summary",
    [
        Column("Name", 52),
        Column("Calls", 6),
        Column(f"CPU {STATS}", 40),
        Column(f"GPU {STATS}", 40),
    ],
    [
        "Thread: 7",
        ("matmul", 12, "9.00 / 0.75 / 1.50 / 0.25 / 90.00", "4.00 / 0.50 / 0.75 / 0.25 / 80.00"),
        ("  a_rather_long_kernel", 3, "- / - / - / - / -", "1.00 / 0.50 / 0.75 / 0.25 / 20.00"),
    ],
    "ms",
)
ON_HOST = Table(
    OPERATORS.title,
    OPERATORS.columns,
    [("matmul", 12, "9.00 / 0.75 / 1.50 / 0.25 / 90.00", "0.00 / 0.00 / 0.00 / 0.00 / 0.00")],
)


def lines(table: Table, columns: int) -> list[str]:
    """Return the lines of a table, with rules as "-" and texts in rules as "- text -"."""
    drawn = draw(table, columns, Layout(columns).paint).rstrip("\n").split("\n")
    return [
        re.sub(r"^-+(?:([^-]+)-+)?$", lambda m: f"- {m[1]} -" if m[1] else "-", x) for x in drawn
    ]


def test_cells_with_several_times_become_columns() -> None:
    assert lines(OPERATORS, 120) == [
        "Operator Summary",
        "Time unit: ms",
        "-",
        "Name                    Calls  CPU Total   Avg   Max   Min  Ratio(%)  GPU Total   Avg   Max   Min  Ratio(%)",
        "-",
        "- Thread: 7 -",
        "matmul                     12       9.00  0.75  1.50  0.25     90.00       4.00  0.50  0.75  0.25     80.00",
        "  a_rather_long_kernel      3          -     -     -     -         -       1.00  0.50  0.75  0.25     20.00",
        "-",
    ]


def test_max_and_min_go_first_then_avg_then_the_middle_of_names() -> None:
    assert lines(OPERATORS, 90)[3:] == [
        "Name                    Calls  CPU Total   Avg  Ratio(%)  GPU Total   Avg  Ratio(%)",
        "-",
        "- Thread: 7 -",
        "matmul                     12       9.00  0.75     90.00       4.00  0.50     80.00",
        "  a_rather_long_kernel      3          -     -         -       1.00  0.50     20.00",
        "-",
        "Not shown: Max, Min; --style paddle shows all",
    ]
    assert lines(OPERATORS, 65)[3:] == [
        "Name              Calls  CPU Total  Ratio(%)  GPU Total  Ratio(%)",
        "-",
        "- Thread: 7 -",
        "matmul               12       9.00     90.00       4.00     80.00",
        "  a_rat.._kernel      3          -         -       1.00     20.00",
        "-",
        "Not shown: Max, Min, Avg; --style paddle shows all",
    ]


def test_columns_of_a_device_that_is_not_there_are_left_out() -> None:
    assert lines(ON_HOST, 120) == [
        "Operator Summary",
        "-",
        "Name    Calls  CPU Total   Avg   Max   Min  Ratio(%)",
        "-",
        "matmul     12       9.00  0.75  1.50  0.25     90.00",
        "-",
        "Not shown: GPU Total (empty); --style paddle shows all",
    ]


def test_columns_that_do_not_fit_stand_below() -> None:
    table = Table(
        "Ranks",
        [Column(name, 6) for name in ("rank", "first column", "second column", "third")],
        [(0, "1.00 / 2.0", "-", "5"), (10, "2.00 / 4.0 *", "3.00", "7"), "2 more ranks"],
        note="A sentence that is long enough to be continued on the next line of\nthe note.\nShort:\n  |__|",
    )
    assert lines(table, 39) == [
        "Ranks",
        "-",
        "rank  first column  second column",
        "-",
        "0       1.00 / 2.0              -",
        "10    2.00 / 4.0 *           3.00",
        "- 2 more ranks -",
        "-",
        "-",
        "rank  third",
        "-",
        "0         5",
        "10        7",
        "2 more ranks",
        "-",
        "A sentence that is long enough to be continued on the next line of the note.",
        "Short:",
        "  |__|",
    ]


def test_wide_characters_take_two_columns() -> None:
    assert draw_rows(["名称", "n"], [["数据加载", "1"], ["io", "20"]], 40, Layout(40).paint) == [
        "名称       n",
        "数据加载   1",
        "io        20",
    ]
    assert draw_rows(["名称"], [["数据加载数据加载数据加载"]], 10, Layout(10).paint) == [
        "名称",
        "数据..加载",
    ]


def test_colours_take_no_columns_and_names_cannot_bring_them() -> None:
    table = Table(
        "Changes",
        [Column("Name", 4), Column("Delta", 5)],
        [("evil\x1b[31m", Painted("+1.00", "bad")), ("b", Painted("-10.00", "good"))],
    )
    text = draw(table, 40, Layout(40, has_colour=True).paint)
    assert text.split("\n") == [
        "\x1b[1mChanges\x1b[0m",
        "-" * 20,
        "Name           Delta",
        "-" * 20,
        "evil\\x1b[31m   \x1b[31m+1.00\x1b[0m",
        "b             \x1b[32m-10.00\x1b[0m",
        "-" * 20,
        "",
        "",
    ]
    assert str(table).count("\x1b") == 1  # as Paddle prints it; the command escapes it


NAMES = st.text(st.characters(min_codepoint=32, max_codepoint=0x9FFF, categories=("L", "N", "P")))


def width(char: str) -> int:
    """Return the columns that a terminal draws a character in.

    Hangul vowels and final consonants are drawn into the consonant before them, and fillers not at all.
    """
    if "\u1160" <= char <= "\u11ff" or char == "\u3164":
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


@example([("", "0" * 20 + "\u1100\u1161\u3001\u3001", 0)], 40)
@given(st.lists(st.tuples(NAMES, NAMES, st.integers(0, 10**12)), max_size=5), st.integers(40, 100))
def test_no_row_is_wider_than_the_terminal(rows: list[tuple[str, str, int]], columns: int) -> None:
    table = Table("T", [Column(name, 4) for name in ("Name", "Inputs", "Total")], rows)
    for line in lines(table, columns):
        assert sum(map(width, line)) <= columns
    shown = re.findall(r"(\d+)$", "\n".join(lines(table, columns)), re.M)
    assert [str(number) for *_, number in rows] == shown[-len(rows) :] if rows else True


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "  one two three four five six seven eight nine",
            ["  one two three four five six seven", "  eight nine"],
        ),
        (f"ppprof report {'x' * 50} -o y", ["ppprof report", "x" * 50, "-o y"]),
        ("\x1b[2J", ["\\x1b[2J"]),
    ],
)
def test_prose_breaks_at_words(text: str, lines: list[str]) -> None:
    assert Layout(40).fit(text).split("\n") == lines


def test_painted_prose_has_no_colours_of_its_own() -> None:
    paint = Layout(40, has_colour=True).paint
    assert paint("a\x1b[31mb", "good") == "\x1b[32ma\\x1b[31mb\x1b[0m"
    assert paint("a\x1b[31mb") == "a\\x1b[31mb"
    assert Layout(40).paint("plain", "bad") == "plain"


def test_each_cell_is_measured_a_few_times_only(monkeypatch) -> None:
    """A table of 10,000 threads took minutes when each step of the layout measured all cells."""
    rows = [
        [f"void cutlass::Kernel<{row}, float>", "12.5 / 3.0 / 4.0 / 1.0 / 0.1"] for row in range(99)
    ]
    columns = [Column("Name", 10), Column("CPU Total / Avg / Max / Min / Ratio(%)", 10)]
    measured = []

    def counted(text: str) -> int:
        measured.append(text)
        return len(text)

    monkeypatch.setattr(layout, "_width_of_text", counted)
    draw(Table("Operators", columns, rows), 40, lambda text, *_: text)
    assert len(measured) < 3 * 99 * 6  # to choose widths, to draw
