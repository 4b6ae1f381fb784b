"""Logged messages in Chinese."""

from __future__ import annotations

import re
from copy import deepcopy

import pytest

from ppprof.errors import InputError
from ppprof.messages import _TEXTS, Message, translated
from ppprof.units import TRUNCATED, format_skipped
from tests.fixtures import gpu_traces
from tests.fixtures.timeline import write


@pytest.mark.parametrize(
    ("message", "chinese"),
    [
        (
            format_skipped("a: b.json", {TRUNCATED: 1, "events that are not valid JSON": 2}),
            "a: b.json：只读取了一部分：文件被截断; 跳过 2 events that are not valid JSON",
        ),
        (
            Message("unrecorded", path="a.json", device="gpu:0"),
            "a.json：在 gpu:0 上记录，但没有设备事件：其时间是主机的，主机只发起工作；"
            "设备的时间未知，任何表都不显示",
        ),
        (
            Message("incomplete", path="a.json", time="3 ms"),
            "a.json：最后 3 ms 没有以 step() 结束：不计入任何表和平均值",
        ),
        (
            Message("newest", given="logs", path="logs/run_002"),
            "logs：最新的运行是 logs/run_002",
        ),
        ("something else happened", "something else happened"),
    ],
)
def test_messages_are_translated(message, chinese):
    assert translated(message, "zh") == chinese
    assert translated(message, "en") == message


def test_each_message_has_one_text_in_each_language():
    for key, texts in _TEXTS.items():
        english, chinese = (sorted(re.findall(r"\{(\w+)[:}]", text)) for text in texts)
        assert english == chinese, key
        message = Message(key, **{name: f"<{name}>" for name in english})
        assert "{" not in message
        assert translated(message, "zh") != translated(message, "en") == message


def test_a_message_keeps_its_key_in_an_error_and_in_another_process():
    message = Message("no_step", path="a.json")
    for text in (str(InputError(message)), deepcopy(message)):
        assert text == "a.json: no step in it; left out"
        assert translated(text, "zh") == "a.json：其中没有步，已略去"


def test_a_chinese_command_logs_in_chinese(tmp_path, cli):
    trace = write(tmp_path / "a.pb", *gpu_traces.training())
    whole, cut, page = (tmp_path / name for name in ("whole.json", "cut.json", "page.html"))
    cli("convert", trace, whole)
    text = whole.read_text(encoding="utf-8")
    cut.write_text(text[: text.index('"ProfileStep#7') + 40], encoding="utf-8")
    said = cli("report", cut, "-o", page, "--language", "zh").err
    assert f"{cut}：只读取了一部分：文件被截断" in said
    assert said.splitlines()[-1] == f"{page}：请用浏览器打开"
    assert f"{cut}：只读取了一部分：文件被截断" in page.read_text("utf-8")
    assert f"{cut}：只读取了一部分：文件被截断" in cli("advise", cut, "--language", "zh").err
    assert f"{cut}: partly read: the file is truncated" in cli("advise", cut).err
