"""Tables become bytes and the same tables again, in the narrowest form."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from ppprof.trace.packed_columns import PackedColumn, PackedTable, pack, unpack

INT64 = st.integers(-(2**63) + 1, 2**63 - 1)
VALUES = {
    pl.Int64(): st.one_of(INT64, st.integers(-300, 300)),
    pl.Int32(): st.integers(-(2**31), 2**31 - 1),
    pl.UInt64(): st.one_of(st.integers(0, 2**63 - 1), st.integers(2**63 + 1, 2**64 - 1)),
    pl.Float64(): st.floats(allow_nan=False),
    pl.String(): st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    pl.Categorical(): st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
}
MOST_TEXT = 1 << 20


def schema_of(table: pl.DataFrame) -> dict[str, tuple[pl.DataType, str]]:
    return {name: (dtype, "") for name, dtype in table.schema.items()}


def unpacked(table: pl.DataFrame) -> pl.DataFrame:
    packed, parts = pack(table, MOST_TEXT)
    content = b"".join(parts)
    assert packed.num_bytes() == len(content)
    return unpack(packed, schema_of(table), memoryview(content), MOST_TEXT)


@given(st.data())
def test_any_table(data):
    num_rows = data.draw(st.integers(0, 5))
    table = pl.DataFrame(
        pl.Series(
            f"{number}",
            data.draw(st.lists(st.none() | values, min_size=num_rows, max_size=num_rows)),
            dtype,
        )
        for number, (dtype, values) in enumerate(VALUES.items())
    )
    assert_frame_equal(unpacked(table), table)


@pytest.mark.parametrize(
    ("values", "width"),
    [
        ([None, None], 0),
        ([7, 7], 1),
        ([1_000, 1_255], 1),
        ([1_000, None, 1_255], 2),
        ([-(2**15), 2**15 - 1], 2),
        ([0, 2**32 - 1], 4),
        ([0, 2**32], 8),
        ([-(2**63) + 1, None, 2**63 - 1], 8),
    ],
)
def test_integers_take_the_least_width(values, width):
    table = pl.DataFrame({"a": pl.Series(values, dtype=pl.Int64)})
    packed, parts = pack(table, MOST_TEXT)
    assert (packed.columns[0].width, len(b"".join(parts))) == (width, width * len(values))
    assert_frame_equal(unpacked(table), table)


def test_a_text_is_stored_once():
    packed, parts = pack(pl.DataFrame({"a": ["x" * 100, None] * 50}), MOST_TEXT)
    assert packed.columns[0].width == 1
    assert len(b"".join(parts)) == 100 + len('["' + "x" * 100 + '"]')


def test_the_least_int64_stands_for_null_and_is_refused():
    with pytest.raises(ValueError, match="stands for null"):
        pack(pl.DataFrame({"a": [np.iinfo(np.int64).min]}), MOST_TEXT)


def test_texts_are_bounded_with_their_rows():
    table = pl.DataFrame({"a": ["x" * 100] * 10})
    for limit in (1000, 999):
        packed, parts = pack(table, 1000)
        content = memoryview(b"".join(parts))
        if limit == 1000:
            assert unpack(packed, schema_of(table), content, limit).equals(table)
            continue
        with pytest.raises(ValueError, match="more than 999 bytes"):
            unpack(packed, schema_of(table), content, limit)
        with pytest.raises(ValueError, match="more than 999 bytes"):
            pack(table, limit)


@pytest.mark.parametrize(
    ("dtype", "column"),
    [
        (pl.Int64(), PackedColumn(3, 0, False, 0)),
        (pl.Int64(), PackedColumn(16, 0, False, 0)),
        (pl.Int64(), PackedColumn(8, 1, False, 0)),
        (pl.Int64(), PackedColumn(0, 1, False, 0)),
        (pl.Int64(), PackedColumn(1, 2**63, False, 0)),
        (pl.Int64(), PackedColumn(1, 0, False, 2)),
        (pl.Float64(), PackedColumn(4, 0, False, 0)),
        (pl.String(), PackedColumn(1, 0, False, 0)),
        (pl.String(), PackedColumn(0, 0, False, 2)),
        (pl.String(), PackedColumn(1, 0, False, 2)),
        (pl.Categorical(), PackedColumn(1, -1, False, 2)),
    ],
)
def test_a_column_of_another_form_is_refused(dtype, column):
    packed = PackedTable(1, [column])
    content = memoryview(bytes(column.width) + b"[]"[: column.num_text_bytes])
    with pytest.raises(ValueError, match=r"not a packed column|texts"):
        unpack(packed, {"a": (dtype, "")}, content, MOST_TEXT)


def test_a_table_with_another_number_of_columns_is_refused():
    with pytest.raises(ValueError, match="0 columns, expected 1"):
        unpack(PackedTable(0, []), {"a": (pl.Int64(), "")}, memoryview(b""), MOST_TEXT)
