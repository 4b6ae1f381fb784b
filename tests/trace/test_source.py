"""The blocks of a file, of any length."""

from __future__ import annotations

import gzip
import random

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


@pytest.mark.parametrize("num_bytes", [7, 1000, 300_000])
@pytest.mark.parametrize("cut", [0, 1, 70_000, 200_000, 299_999])
def test_the_members_of_a_gzip_file_are_one_text(tmp_path, cut, num_bytes):
    """Programs that append to a file write several members, with zero bytes between them or not."""
    text = random.Random(1).randbytes(200_000) + b"[" * 100_000
    members = [gzip.compress(text[:cut]), gzip.compress(text[cut:])]
    for padding in (b"", bytes(100_000)):
        path = tmp_path / "trace.json.gz"
        path.write_bytes(padding.join([*members, b""]))
        with TraceStream(path) as stream:
            pieces = list(iter(lambda stream=stream: stream.read(num_bytes), b""))
            assert (b"".join(pieces) == text, stream.damage) == (True, None)
