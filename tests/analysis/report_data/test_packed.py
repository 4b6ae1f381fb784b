"""Packed columns: what went in comes out; the page's script unpacks the same bytes elsewhere."""

from __future__ import annotations

import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ppprof.analysis.report_data.timeline import pack, pack_text
from tests.fixtures.unpacked import unpack

NUMBERS = st.lists(st.integers(0, 2**53), max_size=50)


def test_the_bytes_are_those_of_the_description():
    """Two columns: 1, 258 as they are, and 5, 3 as differences 5 and -2, in zigzag 10 and 3."""
    blob = pack([np.array([1, 258]), np.array([5, 3])], [False, True])
    assert zlib.decompress(blob) == (
        bytes([2, 0, 2, 0, 0, 0, 1, 2, 0, 1]) + bytes([1, 1, 2, 0, 0, 0, 10, 3])
    )


@given(st.lists(st.tuples(NUMBERS, st.booleans()), max_size=6))
def test_columns_come_out_as_they_went_in(columns):
    values = [np.array(numbers, np.int64) for numbers, _ in columns]
    blob = pack(values, [is_delta for _, is_delta in columns])
    assert [column.tolist() for column in unpack(blob)] == [column.tolist() for column in values]


def test_a_text_without_meaning_in_utf_8_is_kept_readable():
    assert zlib.decompress(pack_text("kernel \ud800 é")).decode() == "kernel ? é"
