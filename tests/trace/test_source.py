"""The blocks of a file, of any length."""

from __future__ import annotations

import pytest

from ppprof.trace.source import MARGIN, TraceStream


@pytest.mark.timeout(60)
@pytest.mark.parametrize("num_bytes", [1, 60, MARGIN, 2 * MARGIN, 5 * MARGIN])
def test_an_event_longer_than_a_block_gets_a_longer_one(tmp_path, num_bytes):
    """Also if the block is shorter than its margins: its buffer once stayed full for ever."""
    text = bytes(range(256)) * 20
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    with TraceStream(path) as stream:
        blocks = [
            (block.text(), block.first, block.is_last)
            for block in stream.blocks(lambda _, first, end: first, num_bytes=num_bytes)
        ]
    assert blocks == [(text, 0, True)]
