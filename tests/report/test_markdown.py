"""Tables in Markdown."""

from __future__ import annotations

from ppprof.report.markdown import markdown


def test_numbers_have_the_decimals_of_their_column():
    row = {
        "rank": 3,
        "time_ns": 1234.56,
        "mfu": 0.4321,
        "flops_per_byte": 0.1667,
        "flops_per_s": 312e12,
        "mean_slowdown": 1.25,
        "bytes": None,
    }
    *_, line = markdown([*row], [row]).splitlines()
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["3", "1234.6", "0.4321", "0.1667", "312000000000000", "1.2500", ""]


def test_texts_that_look_like_numbers_are_printed_as_they_are():
    """Such as names of spans and hosts."""
    rows = [{"name": "1e5", "host": "007", "calls": 1}, {"name": "x", "host": "1_0", "calls": 20}]
    assert markdown(["name", "host", "calls"], rows).splitlines()[2:] == [
        "| `1e5`  | 007    |       1 |",
        "| `x`    | 1_0    |      20 |",
    ]


def test_a_table_without_rows_has_its_heads():
    assert markdown(["name", "calls"], []).splitlines()[0] == "| name   | calls   |"
