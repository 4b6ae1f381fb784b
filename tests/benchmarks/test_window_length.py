"""``benchmarks.window_length``: the picture has a point for each measurement."""

from __future__ import annotations

from xml.etree import ElementTree

from benchmarks.window_length import picture


def test_a_line_for_each_way_rises_with_its_stalls() -> None:
    text = picture([100, 200, 400], {"paddle": [0.1, 0.4, 1.6], "ppprof": [0.1, 0.1, 0.1]})
    lines = [
        [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        for line in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}polyline")
    ]
    theirs, ours = lines
    assert [x for x, _ in theirs] == [x for x, _ in ours] == [188.0, 320.0, 584.0]
    heights = [264 - y for _, y in theirs]
    assert heights == [13.0, 52.0, 208.0]
    assert [264 - y for _, y in ours] == [13.0] * 3
