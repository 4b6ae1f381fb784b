"""Questions of users: each has its answer at most two clicks from the README.

An answer is recognised by its code, which is the same in both languages: all of it is in one section.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_CLICKS = 2
_LINK = re.compile(r"\]\(([\w./-]+\.md)[#)]")

QUESTIONS = {
    "How do I record a script without changing it?": ["ppprof run --nproc 2"],
    "How do I record a loop of my own, but not its evaluation?": ["ppprof.attach(", "prof.paused("],
    "How do I record PaddleNLP's Trainer?": ["ppprof.integrations.paddlenlp import PpprofCallback"],
    "How do I record a job that is already running?": [
        "ppprof trigger",
        "trigger: True",
        "--steps 4",
    ],
    "Two nodes have disks of their own: what do I give to the commands?": [
        "ppprof ranks node0/profiler_log node1/profiler_log"
    ],
    "Which key limits the disk space of a recording?": ["max_trace_mb", "`on_window_end`"],
    "Which versions of Paddle work?": ["2.6.2", "3.3.1", '"numpy<2"'],
    "What is slow, and what should I change?": ["ppprof advise", "[input-bound]", "num_workers"],
    "Which line of my code costs the time?": ["--views python", "ppprof advise"],
    "Which rank makes the others wait?": ["Slow computation: rank 3", "ppprof ranks"],
    "My job hangs: which rank is it, and where is it?": ["ppprof hang", "--stacks", "py-spy dump"],
    "Memory ran out: who held it?": ["ppprof memory", "optimizer state", "MemoryError"],
    "How do I let CI refuse a slower change?": ["--fail-if 'step_time > 5%'", "| 1 |"],
    "Is it faster, or do equal runs differ as much?": ["ppprof bench", "equal runs differ by"],
    "What would another pp_degree take?": ["ppprof predict", "Distributed.", "Likely"],
    "How do I show a colleague the run, without a network?": [
        "ppprof report",
        "--baseline",
        ".html",
    ],
    "How do I open a run in HTA or TraceLens?": [
        "ppprof convert",
        "--to kineto",
        "rank0.pt.trace.json",
    ],
    "The job was killed: where are its tables?": ["ppprof finish"],
    "How does an assistant read a run?": ["mcpServers", "mcp"],
    "Which ports does it open?": ["UDP", "Profiler.trigger"],
    "It hangs ahead of the first step: what is known?": ["--steps 0:10", "py-spy dump"],
    "The kernel killed a rank, out of memory: who held it?": [
        "SIGKILL",
        "`steps/*.jsonl`",
        "worker",
    ],
    "CUPTI has insufficient privileges: what do I do?": [
        "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES",
        "NVreg_RestrictProfilingToAdminUsers=0",
    ],
    "The job was started without ppprof: what can I still see?": ["py-spy dump --pid PID"],
    "How much disk does a window of 512 ranks take?": ["`json.gz`", "`max_trace_mb`", "`ranks`"],
    "Which files may I delete?": ["`*.paddle_trace.*`", "`run_NNN/`", "`ppprof finish`"],
    "What does a page give away?": ["ppprof report", "`Profiler.source: False`"],
    "What is MFU computed from, and of which devices are peaks known?": ["`num_flops`", "V100"],
}


def links(page: Path) -> list[Path]:
    """The pages that a page leads to, without its page in the other language."""
    targets = [(page.parent / link).resolve() for link in _LINK.findall(page.read_text("utf-8"))]
    is_chinese = ".zh-CN" in page.name
    return [target for target in targets if (".zh-CN" in target.name) == is_chinese]


def clicks(start: Path) -> dict[Path, int]:
    """The number of clicks to each page."""
    distances = {start: 0}
    pages = [start]
    for page in pages:
        for target in links(page):
            if target not in distances and target.parent.name == "docs":
                distances[target] = distances[page] + 1
                pages.append(target)
    return distances


def answers(page: Path, code: list[str]) -> bool:
    """Whether one section of a page has all of the code; the page of every --help explains nothing."""
    if page.name.startswith("commands."):
        return False
    sections = re.split(r"^## ", page.read_text("utf-8"), flags=re.M)
    return any(all(part in section for part in code) for section in sections)


@pytest.mark.parametrize("start", ["README.md", "README.zh-CN.md"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer_is_two_clicks_away(question: str, start: str) -> None:
    distances = clicks(ROOT / start)
    found = {page.name: n for page, n in distances.items() if answers(page, QUESTIONS[question])}
    assert min(found.values(), default=MOST_CLICKS + 1) <= MOST_CLICKS, found


@pytest.mark.parametrize("start", ["README.md", "README.zh-CN.md"])
def test_every_page_is_two_clicks_away(start: str) -> None:
    distances = clicks(ROOT / start)
    pages = {
        page for page in (ROOT / "docs").glob("*.md") if page.name.count(".") == start.count(".")
    }
    assert len(pages) > 20
    far = {page.name for page in pages if distances.get(page, MOST_CLICKS + 1) > MOST_CLICKS}
    assert far == {start.replace("README", "index")}  # which shows the README
