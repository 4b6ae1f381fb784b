"""Messages that pages quote outside a session are those of ppprof; ``...`` stands for any text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ppprof.analysis.diff.diff import WorkChange
from ppprof.cli import main
from ppprof.report.text import diff

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def assert_quoted(name: str, message: str) -> None:
    """Reject a page, or its Chinese page, without a block that is this message, however wrapped."""
    for path in (DOCS / f"{name}.md", DOCS / f"{name}.zh-CN.md"):
        blocks = _BLOCK.findall(path.read_text(encoding="utf-8"))
        quoted = [" ".join(block.split()) for language, block in blocks if not language]
        patterns = [re.escape(text).replace(r"\.\.\.", ".+") for text in quoted]
        text = " ".join(message.split())
        assert any(re.fullmatch(pattern, text) for pattern in patterns), (path.name, text)


def test_a_truncated_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    event = '{"name": "relu", "ph": "X", "cat": "Operator", "pid": 1, "tid": 1, "ts": 1, "dur": 1}'
    monkeypatch.chdir(tmp_path)
    Path("cut.json").write_text(f'{{"traceEvents": [{event},\n{event},\n{event[:50]}')
    assert main(["summary", "cut.json", "--views", "op"]) == 0
    assert_quoted("tables", capsys.readouterr().err)


def test_the_work_of_two_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    slower, dtypes = ("matmul [4096,1024] [1024,4096]", 0.31), ("bfloat16", "float32")
    change = WorkChange(0.125, (1024, 1152, 46), slower, dtypes)
    monkeypatch.setattr(diff, "work_change", lambda _: change)
    assert_quoted("diff", "\n".join(diff.work_sentences(None)))  # type: ignore[arg-type]


@pytest.mark.paddle
def test_a_device_that_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: list[str]
) -> None:
    paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    from ppprof.capture.recording import targets

    monkeypatch.setattr(paddle.device, "get_device", lambda: "gpu:0")
    monkeypatch.setattr(targets, "_usable", lambda *_: ["cpu", "gpu"])
    monkeypatch.setattr(targets, "_known", {})
    error = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
    monkeypatch.setattr(targets.cupti, "refusal", lambda *, loads: error)
    decided = targets.Targets("auto", tmp_path)
    assert decided.decide() == ["cpu"]
    (message,) = messages
    assert_quoted("devices", f"ppprof: {message}")
