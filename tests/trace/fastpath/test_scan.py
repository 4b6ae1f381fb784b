"""Matching a format string backwards returns the values that it printed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.trace.fastpath.fixed_layout import new_scanner
from ppprof.trace.fastpath.layouts import DIALECTS, Dialect
from ppprof.trace.fastpath.scan import EventPattern, Text
from ppprof.trace.fastpath.string_table import StringTable
from ppprof.trace.source import MARGIN, Block

FORM = '\n{"name":"%s{name}","n":%d{n},"f":%f{f},"g":%g{g},"w":"%w{w}",\n  "l":%l{},"d":%d{d}},'
LAYOUT = EventPattern("event", FORM)
START = b'\n{"name":"'
free_text = st.text(st.characters(codec="utf-8", exclude_characters="\n{"), max_size=90)
events = st.tuples(
    free_text,
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


def block_of(text: str) -> Block:
    data = text.encode()
    return Block(bytearray(MARGIN) + data + bytes(MARGIN), len(data), 0, True)


@given(st.lists(events, min_size=1, max_size=12))
def test_printed_values_are_read(values):
    text = Text(block_of("".join(printed(*value) for value in values)))
    start = text.positions(START)
    assert len(start) == len(values)
    found = LAYOUT.match(text, start, np.append(start[1:], text.end))
    assert found.rows.tolist() == list(range(len(values)))
    columns = {name: column.tolist() for name, column in found.columns.items()}
    assert columns["n"] == [value[1] for value in values]
    assert columns["f"] == [value[2] for value in values]
    assert columns["d"] == [value[6] for value in values]
    for read, (_, _, _, real, _, _, _) in zip(columns["g"], values):
        assert read == pytest.approx(real, abs=1e-6) if np.isfinite(real) else np.isnan(read)
    for name, field in (("name", 0), ("w", 4)):
        texts = [
            bytes(text.raw[first:end]).decode()
            for first, end in zip(columns[name], columns[f"{name}_end"])
        ]
        assert texts == [value[field] for value in values]
    assert columns.keys() == {"name", "name_end", "n", "f", "g", "w", "w_end", "d"}


@given(events, st.integers(0, 10**6), st.integers(1, 255))
def test_one_different_byte_is_no_match_or_another_value(value, place, change):
    """A wrong literal never matches."""
    whole = printed(*value).encode()
    at = len(START) + place % (len(whole) - len(START))
    data = bytearray(whole)
    data[at] ^= change
    text = Text(Block(bytearray(MARGIN) + data + bytes(MARGIN), len(data), 0, True))
    found = LAYOUT.match(text, np.array([MARGIN]), np.array([text.end]))
    if len(found.rows):
        for literal in (b'","n":', b',"f":', b',"g":', b',"w":"', b'",\n  "l":', b',"d":', b"},"):
            assert literal in data


@pytest.mark.parametrize("num_digits", range(1, 19))
def test_numbers_of_any_length(num_digits):
    number = "1234567890123456789"[:num_digits]
    text = Text(block_of(f"x{number},"))
    value, count = text.digits_before(np.array([MARGIN + 1 + num_digits]))
    assert (value.tolist(), count.tolist()) == ([int(number)], [num_digits])


def test_longer_numbers_do_not_match():
    layout = EventPattern("event", '\n{"n":%d{n}}')
    text = Text(block_of('\n{"n":1234567890123456789}'))
    assert not len(layout.match(text, np.array([MARGIN]), np.array([text.end])).rows)


@given(st.binary(max_size=200), st.integers(0, 200), st.sampled_from([b'"', b"[", b"a", b"\x00"]))
def test_the_last_byte_before(data, end, byte):
    end = min(end, len(data))
    text = Text(Block(bytearray(b"-" * MARGIN) + data + b"-" * MARGIN, len(data), 0, True))
    found = int(text.last_before(np.array([MARGIN + end]), byte, reach=256)[0])
    expected = data[:end].rfind(byte)
    assert found == (expected + MARGIN if expected >= 0 else -1)


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=40))
def test_texts_are_distinguished(pieces):
    data = b"".join(pieces)
    ends = np.cumsum([len(piece) for piece in pieces]) + MARGIN
    text = Text(Block(bytearray(MARGIN) + data + bytes(MARGIN), len(data), 0, True))
    texts = StringTable()
    first = np.append(MARGIN, ends[:-1])
    numbers = [texts.between(text, first, ends) for _ in range(2)]
    assert [texts.all()[number] for number in numbers[0]] == pieces
    assert numbers[0].tolist() == numbers[1].tolist()
    assert len(texts) == len(set(pieces))


def test_text_in_no_layout_is_returned_with_its_range(each_core):
    dialect = Dialect((LAYOUT,), START, escapes=True, ts_is_exact=True)
    sound = printed("a", 1, 2, 3.0, "w", "l", 4)
    odd = '\n{"name":"odd"},'
    text = "junk" + sound + odd + odd + sound + odd
    scanner = new_scanner(dialect)
    ranges = scanner.add(block_of(text))
    assert [text[first:end] for first, end in ranges] == ["junk", odd + odd, odd]
    ((kind, columns),) = scanner.scanned().parts
    assert kind == "event"
    assert columns["position"].tolist() == [4, 4 + len(sound) + 2 * len(odd)]


def test_every_layout_begins_as_its_dialect_says():
    for dialect in DIALECTS.values():
        for layout in dialect.layouts:
            assert layout.form.encode().startswith(dialect.start)


def matched(form: str, data: bytes) -> dict[str, list]:
    text = Text(Block(bytearray(MARGIN) + data + bytes(MARGIN), len(data), 0, True))
    found = EventPattern("event", form).match(text, np.array([MARGIN]), np.array([text.end]))
    return {name: column.tolist() for name, column in found.columns.items() if len(column)}


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
        ends = [columns[name][0] - MARGIN for name in ("a", "a_end", "b", "b_end")]
        assert (data[ends[0] : ends[1]], data[ends[2] : ends[3]]) == texts
