"""docs/config.md says what the dataclasses say."""

from __future__ import annotations

import dataclasses
import re

from ppprof.config import (
    ProfilerConfig,
    SlowStep,
    SummaryToggles,
    TriggerConfig,
    WindowSchedule,
    training,
)
from tests.config.reference import MARKER, PAGE, tables


def test_the_page_is_up_to_date():
    written = PAGE.read_text(encoding="utf-8").partition(MARKER)[2]
    assert written == f"\n{tables()}", "run python -m tests.config.reference"


BLOCKS = [ProfilerConfig, SummaryToggles, WindowSchedule, TriggerConfig, SlowStep] + [
    block
    for block in vars(training).values()
    if dataclasses.is_dataclass(block) and block.__module__ == training.__name__
]


def test_every_key_is_on_the_page():
    page = PAGE.read_text(encoding="utf-8")
    missing = [
        f"{block.__name__}.{item.name}"
        for block in BLOCKS
        for item in dataclasses.fields(block)
        if not re.search(rf"^\| `([A-Za-z_]+\.)*{item.name}[.`]", page, re.MULTILINE)
    ]
    assert missing == []


def test_every_default_is_within_its_own_bounds():
    outside = []
    for block in BLOCKS:
        for item in dataclasses.fields(block):
            value, bounds = item.default, item.metadata
            if isinstance(value, (int, float)) and not isinstance(value, bool) and bounds:
                is_inside = (
                    (bounds["minimum"] is None or value >= bounds["minimum"])
                    and (bounds["above"] is None or value > bounds["above"])
                    and (bounds["maximum"] is None or value <= bounds["maximum"])
                )
                if not is_inside:
                    outside.append(f"{block.__name__}.{item.name}: {value}: {dict(bounds)}")
    assert outside == ["WindowSchedule.record: 0: {'minimum': 1, 'above': None, 'maximum': None}"]
