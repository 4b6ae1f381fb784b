"""``tools/docs.py``: the generated tables of the docs are up to date and complete."""

from __future__ import annotations

import dataclasses
import re
import sys

import pytest

from ppprof.analysis.advice import RULES
from ppprof.cli import COMMANDS
from ppprof.config import (
    ProfilerConfig,
    SlowStep,
    SummaryToggles,
    TriggerConfig,
    WindowSchedule,
    training,
)
from tools import doc_sessions, docs

PAGE = (docs.DOCS / "config.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", docs.UPDATES)
def test_generated_tables_are_up_to_date(name):
    if name.startswith("commands") and not (3, 10) <= sys.version_info < (3, 13):
        pytest.skip("argparse of Python 3.10 to 3.12 printed the options in this page")
    page = (docs.DOCS / name).read_text(encoding="utf-8")
    assert page == docs.UPDATES[name](page), "run python -m tools.docs"


def test_the_page_of_commands_has_every_option_of_every_command():
    page = (docs.DOCS / "commands.md").read_text(encoding="utf-8")
    shared, *sections = page.split("\n## ")[1:]
    assert [section.partition("\n")[0] for section in sections] == list(COMMANDS)
    for command, section in zip(COMMANDS, sections):
        printed = doc_sessions.output(f"ppprof {command} --help").partition("Examples:")[0]
        options = re.findall(r"^  (?:-\w, )?(--[\w-]+)", printed, re.MULTILINE)
        assert options
        assert [
            option
            for option in options
            if not re.search(rf"^  (-\w\b.*, )?{option}\b", section + shared, re.MULTILINE)
        ] == []


def test_the_advice_page_says_for_each_rule_what_it_reports():
    page = (docs.DOCS / "advice.md").read_text(encoding="utf-8")
    rules = [rule.name for rule in RULES]
    assert re.findall(r"^\| `([\w-]+)` \| ", page, re.MULTILINE) == rules
    assert re.findall(r"^- `([\w-]+)`: ", page, re.MULTILINE) == rules


def test_every_text_of_the_config_tables_has_its_chinese_and_no_other_is_left():
    texts = set()
    docs.config_tables(lambda text: texts.add(text) or text)
    chinese = docs.chinese_texts()
    assert sorted(texts - chinese.keys()) == [], "translate these in tools/docs.zh.yaml"
    assert sorted(chinese.keys() - texts) == [], "delete these from tools/docs.zh.yaml"


def test_a_text_without_chinese_is_named():
    with pytest.raises(LookupError, match=r"docs\.zh\.yaml has no Chinese for 'A new key\.'"):
        docs.to_chinese("A new key.")


BLOCKS = [ProfilerConfig, SummaryToggles, WindowSchedule, TriggerConfig, SlowStep] + [
    block
    for block in vars(training).values()
    if dataclasses.is_dataclass(block) and block.__module__ == training.__name__
]


def test_every_key_that_ppprof_itself_reads_is_on_the_page():
    missing = [
        f"{block.__name__}.{item.name}"
        for block in [*BLOCKS[:5], training.GlobalConfig]
        for item in dataclasses.fields(block)
        if not re.search(rf"^\| `([A-Za-z_]+\.)*{item.name}[.`]", PAGE, re.MULTILINE)
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
