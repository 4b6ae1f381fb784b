"""Logged messages in Chinese: those of the readers, as the code formats them."""

from __future__ import annotations

import re

import pytest

from ppprof.cli import main
from ppprof.report.messages import translated
from ppprof.report.text.advice import read_catalogue
from ppprof.run.problem_log import launch_times_message
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
            f"a.json: {launch_times_message('gpu:0')}",
            "a.json：在 gpu:0 上录制，但没有设备事件：其时间是主机的，主机只发起工作；"
            "设备的时间未知，任何表都不显示",
        ),
        (
            "a.json: the last 3 ms were not ended by step(): no table and no average counts them",
            "a.json：最后 3 ms 没有以 step() 结束：不计入任何表和平均值",
        ),
        ("logs: the newest run is logs/run_002", "logs：最新的运行是 logs/run_002"),
        ("something else happened", "something else happened"),
    ],
)
def test_messages_are_translated(message, chinese):
    assert translated(message, "zh") == chinese
    assert translated(message, "en") == message


def test_each_message_has_one_text_in_each_language():
    english, chinese = (read_catalogue(language)["messages"] for language in ("en", "zh"))
    for key, text in english.items():
        fields = {name: f"<{name}>" for name in re.findall(r"\{(\w+)\}", text)}
        assert translated(text.format_map(fields), "zh") == chinese[key].format_map(fields)


def test_a_chinese_command_logs_in_chinese(tmp_path, capsys):
    trace = write(tmp_path / "a.pb", *gpu_traces.training())
    whole, cut, page = (tmp_path / name for name in ("whole.json", "cut.json", "page.html"))
    assert main(["convert", str(trace), str(whole)]) == 0
    text = whole.read_text(encoding="utf-8")
    cut.write_text(text[: text.index('"ProfileStep#7') + 40], encoding="utf-8")
    capsys.readouterr()
    assert main(["report", str(cut), "-o", str(page), "--language", "zh"]) == 0
    said = capsys.readouterr().err
    assert f"{cut}：只读取了一部分：文件被截断" in said
    assert said.splitlines()[-1] == f"{page}：请用浏览器打开"
    assert f"{cut}：只读取了一部分：文件被截断" in page.read_text("utf-8")
    assert main(["advise", str(cut), "--language", "zh"]) == 0
    assert f"{cut}：只读取了一部分：文件被截断" in capsys.readouterr().err
    assert main(["advise", str(cut)]) == 0
    assert f"{cut}: partly read: the file is truncated" in capsys.readouterr().err
