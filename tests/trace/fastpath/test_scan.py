"""Matching a format string backwards returns the values that it printed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.trace.fastpath import core
from ppprof.trace.fastpath.fixed_layout import Scanned
from ppprof.trace.fastpath.layouts import DIALECTS, Dialect, EventPattern
from ppprof.trace.fastpath.native.scanner import Scanner
from ppprof.trace.source import MARGIN, Block

pytestmark = pytest.mark.skipif(
    core.load(core.FOLDER)[0] is None,
    reason="needs the compiled core: run `python tools/build_core.py`",
)

FORM = '\n{"name":"%s{name}","n":%d{n},"f":%f{f},"g":%g{g},"w":"%w{w}",\n  "l":%l{},"d":%d{d}},'
LAYOUT = EventPattern("event", FORM)
TEXT_FIELDS = ("name", "w", "a", "b")
START = b'\n{"name":"'
free_text = st.text(st.characters(codec="utf-8", exclude_characters="\n{"), max_size=90)
json_text = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters='"\\{'),
    max_size=90,
)  # what a writer that escapes leaves as it is
events = st.tuples(
    json_text,
    st.integers(-(10**18) + 1, 10**18 - 1),
    st.integers(-(10**15), 10**15),
    st.one_of(st.floats(0, 1e6), st.sampled_from([float("inf"), float("-inf"), float("nan")])),
    st.text("abc XYZ()_", max_size=40),
    free_text,
    st.integers(0, 9),
)


def printed(name, number, thousandths, real, word, line, digit) -> str:
    sign = "-" if thousandths < 0 else ""
    whole, rest = divmod(abs(thousandths), 1000)
    return (
        f'\n{{"name":"{name}","n":{number},"f":{sign}{whole}.{rest:03},"g":{real:.6f},'
        f'"w":"{word}",\n  "l":{line},"d":{digit}}},'
    )


def scanned(data: bytes, layout: EventPattern = LAYOUT, start: bytes = START) -> Scanned:
    scanner = Scanner(Dialect((layout,), start, escapes=True, ts_is_exact=True), core.library())
    ranges = scanner.add(Block(bytearray(MARGIN) + data + bytes(MARGIN), len(data), 0, True))
    found = scanner.scanned()
    assert found.unmatched == ranges
    return found


def columns_of(found: Scanned) -> dict[str, list]:
    """The values of each column, texts as bytes; empty without an event."""
    columns = dict(found.events).get("event", {})
    return {
        name: [found.texts[number] for number in values] if name in TEXT_FIELDS else values.tolist()
        for name, values in columns.items()
    }


@given(st.lists(events, min_size=1, max_size=12))
def test_printed_values_are_read(values):
    found = scanned("".join(printed(*value) for value in values).encode())
    assert found.unmatched == []
    columns = columns_of(found)
    assert columns["n"] == [value[1] for value in values]
    assert columns["f"] == [value[2] for value in values]
    assert columns["d"] == [value[6] for value in values]
    for read, (_, _, _, real, _, _, _) in zip(columns["g"], values):
        assert read == pytest.approx(real, abs=1e-6) if np.isfinite(real) else np.isnan(read)
    for name, field in (("name", 0), ("w", 4)):
        assert [text.decode() for text in columns[name]] == [value[field] for value in values]
    assert columns.keys() == {"name", "n", "f", "g", "w", "d", "position"}


@given(events, st.integers(0, 10**6), st.integers(1, 255))
def test_one_different_byte_is_no_match_or_another_value(value, place, change):
    """A wrong literal never matches."""
    whole = printed(*value).encode()
    at = len(START) + place % (len(whole) - len(START))
    data = bytearray(whole)
    data[at] ^= change
    if scanned(bytes(data)).events:
        for literal in (b'","n":', b',"f":', b',"g":', b',"w":"', b'",\n  "l":', b',"d":', b"},"):
            assert literal in data


@pytest.mark.parametrize("num_digits", range(1, 19))
def test_numbers_of_any_length(num_digits):
    number = b"1234567890123456789"[:num_digits]
    assert matched('\n{"n":%d{n}}', b'\n{"n":%b}' % number) == {"n": [int(number)]}


def test_longer_numbers_do_not_match():
    assert matched('\n{"n":%d{n}}', b'\n{"n":1234567890123456789}') == {}


def test_text_in_no_layout_is_returned_with_its_range():
    sound = printed("a", 1, 2, 3.0, "w", "l", 4)
    odd = '\n{"name":"odd"},'
    text = "junk" + sound + odd + odd + sound + odd
    found = scanned(text.encode())
    assert [text[first:end] for first, end in found.unmatched] == ["junk", odd + odd, odd]
    assert columns_of(found)["position"] == [4, 4 + len(sound) + 2 * len(odd)]


def test_every_layout_begins_as_its_dialect_says():
    for dialect in DIALECTS.values():
        for layout in dialect.layouts:
            assert layout.form.encode().startswith(dialect.start)


def matched(form: str, data: bytes) -> dict[str, list]:
    """The values of an event that is printed as ``form``; empty if it has another layout."""
    layout = EventPattern("event", form)
    columns = columns_of(scanned(data, layout, layout.prefix))
    return {name: values for name, values in columns.items() if name != "position"}


def test_nothing_may_stand_between_the_first_literal_and_its_field():
    assert matched('\n{"n":%d{n}}', b'\n{"n":17}') == {"n": [17]}
    assert matched('\n{"n":%d{n}}', b'\n{"n":"x",1:17}') == {}


@pytest.mark.parametrize(
    ("number", "value"),
    [
        (b"9223372036854774.999", [9223372036854774999]),
        (b"-9223372036854774.999", [-9223372036854774999]),
        (b"9223372036854775.000", None),
        (b"9999999999999999.999", None),
    ],
)
def test_thousandths_that_do_not_fit_do_not_match(number, value):
    """They would wrap around to another time."""
    assert matched('\n{"f":%f{f}}', b'\n{"f":%b}' % number).get("f") == value


ONE_LINE = '\n{"n":%d{n},"a":%o{a},"b":%o{b}}'


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (b'\n{"n":1,"a":{"x":[1]},"b":{}}', (b'{"x":[1]}', b"{}")),
        (b'\n{"n":1,"a":{"x":[1],"b":2},"b":{"b":1}}', (b'{"x":[1],"b":2}', b'{"b":1}')),
        (b'\n{"n":1,"a":{"x":[1]},"c":{},"b":{}}', None),
        (b'\n{"n":1,"a":{"x":[1]},"b":{"y":1},"c":{}}', None),
        (b'\n{"n":1,"a":{"x":{}},"b":{}}', None),
        (b'\n{"n":1,"a":{"x":[1]},"b":{"y":"}"}}', None),
        (b'\n{"n":1,"a":[1],"b":{}}', None),
        (b'\n{"n":1,"a":{},"b":{"y":' + b"1" * (1 << 16) + b"}}", None),
    ],
)
def test_objects_on_one_line(data, texts):
    columns = matched(ONE_LINE, data)
    if texts is None:
        assert columns == {}
    else:
        assert (*columns["a"], *columns["b"]) == texts
