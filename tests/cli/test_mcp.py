"""``ppprof mcp``: a scripted client of the protocol's own SDK asks about planted runs, over stdio."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ppprof.cli.answers import MOST_CHARACTERS
from ppprof.cli.schema import DESCRIBED
from tests.conftest import Cli
from tests.fixtures.findings import TRIGGERS
from tests.fixtures.run_directories import run

mcp = pytest.importorskip("mcp", reason="needs the extra mcp, and Python 3.10")

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests/fixtures/runs"
PLANTS = (
    *("input-bound", "slow-link", "beside-training", "slow-steps", "growing-memory"),
    *("pipeline-bubble", "exposed-communication"),
)


class Assistant:
    """Asks the server, and counts its calls."""

    def __init__(self, client: Any, runs: dict[str, str]) -> None:
        self.client, self.runs, self.num_calls = client, runs, 0

    async def call(self, tool: str, run: str = "", **arguments: Any) -> dict[str, Any]:
        self.num_calls += 1
        if run:
            arguments["run"] = self.runs[run]
        result = await self.client.call_tool(tool, arguments)
        (content,) = result.content
        assert not result.is_error, content.text
        assert len(content.text) <= MOST_CHARACTERS
        return json.loads(content.text)

    async def first(self, run: str) -> dict[str, Any]:
        return (await self.call("findings", run))["findings"][0]

    async def read(self, uri: str) -> str:
        self.num_calls += 1
        (content,) = (await self.client.read_resource(uri)).contents
        return content.text


async def how_many_workers(ask: Assistant) -> Any:
    """My GPU waits: how many workers should load data?"""
    finding = await ask.first("input-bound")
    return finding["rule"], finding["proposal"]["to"], finding["proposal"]["values"]["workers"]


async def which_rank_is_slow(ask: Assistant) -> Any:
    """Which rank is slow, in which module, and is that sure?"""
    where = (await ask.first("slow_rank_of_two"))["where"]
    rows = (await ask.call("ranks", "slow_rank_of_two"))["tables"]["slow_ranks"]
    return where["rank"], where["module"], [row["rank"] for row in rows if row["is_slow"]]


async def which_link_is_slow(ask: Assistant) -> Any:
    """Which ranks have a slow link between them?"""
    finding = await ask.first("slow-link")
    groups = (await ask.call("ranks", "slow-link"))["tables"]["slow_groups"]
    return finding["facts"]["members"], [row["members"] for row in groups if row["is_slow"]]


async def which_line_is_it(ask: Assistant) -> Any:
    """Which of my lines costs time beside the training, and what does it say?"""
    where = (await ask.first("beside-training"))["where"]
    answer = await ask.call(
        "source", "beside-training", file=where["file"], line=where["line"], rows=1
    )
    return where["file"], where["line"], answer["lines"][0]["text"].strip()


async def what_runs_in_the_slow_step(ask: Assistant) -> Any:
    """What runs in the longest step?"""
    time = (await ask.first("slow-steps"))["where"]["time"]
    answer = await ask.call("timeline", "slow-steps", rank=time["rank"], step=time["step"])
    inner = max(answer["events"][1:], key=lambda event: event["self_ns"])
    return inner["name"], inner["self_ns"]


async def which_module_got_slower(ask: Assistant) -> Any:
    """What changed from one run to the other?"""
    runs = {"baseline": ask.runs["nothing"], "experiment": ask.runs["slow_layer"]}
    answer = await ask.call("diff", views="module", **runs)
    modules = answer["tables"]["module"]
    largest = max(modules, key=lambda row: row["delta_self_ns"] or 0)
    return answer["step_time"]["verdict"], largest["name"]


async def what_would_it_win(ask: Assistant) -> Any:
    """What would faster data loading win?"""
    answer = await ask.call("path", "slow_dataset", what_if=["data loading: 0"], by="kind")
    recorded, change = answer["tables"]["what_if"]
    assert recorded["saved_ns"] == 0
    return round(change["saved_ratio"], 1)


async def which_operator_costs_most(ask: Assistant) -> Any:
    """Which operator takes the most time?"""
    rows = (await ask.call("tables", "nothing", view="op"))["tables"]["op"]
    return next(row["name"] for row in rows if row["kind"] == "operator")


async def where_does_memory_grow(ask: Assistant) -> Any:
    """Memory grows: where, and by how much a step?"""
    findings = (await ask.call("findings", "growing-memory"))["findings"]
    (finding,) = (each for each in findings if each["rule"] == "growing-memory")
    where = finding["where"]
    return where["file"], where["line"], finding["facts"]["growth_bytes"]


async def what_does_exposed_mean(ask: Assistant) -> Any:
    """How much of a step is exposed communication, and what does that mean?"""
    text = await ask.read("ppprof://definitions")
    (line,) = (line for line in text.splitlines() if line.startswith("- **Exposed**"))
    rows = (await ask.call("ranks", "exposed-communication"))["tables"]["breakdown"]
    return "no computation hides" in line, [row["exposed_dp_ns"] for row in rows]


async def how_many_micro_batches(ask: Assistant) -> Any:
    """The pipeline idles: how many micro-batches would be better, and what would that win?"""
    finding = await ask.first("pipeline-bubble")
    return finding["proposal"]["values"]["micro_batches"], finding["cost_ns"]


QUESTIONS: dict[Callable[[Assistant], Awaitable[Any]], Any] = {
    how_many_workers: ("input-bound", "config", 2),
    which_rank_is_slow: (1, "DataParallel/GPT/Block", [1]),
    which_link_is_slow: ("1,3", ["1,3"]),
    which_line_is_it: ("train.py", 7, "file.write(json.dumps(weights))"),
    what_runs_in_the_slow_step: ("matmul dygraph", 4_990_000),
    which_module_got_slower: ("slower", "Block"),
    what_would_it_win: 0.9,
    which_operator_costs_most: "Global_MatmulGradNode",
    where_does_memory_grow: ("train.py", 9, 65_536),
    what_does_exposed_mean: (True, [200_000, 200_000]),
    how_many_micro_batches: (8, 70_000),
}
MOST_CALLS = 3


def served(runs: list[str], conversation: Callable[[Any], Awaitable[Any]]) -> Any:
    """Start the server as an assistant does, and return what a conversation with it returns."""
    from mcp.client.stdio import StdioServerParameters, stdio_client

    async def converse() -> Any:
        command = StdioServerParameters(
            command=sys.executable, args=["-m", "ppprof", "mcp", *runs], env=dict(os.environ)
        )
        async with mcp.Client(stdio_client(command)) as client:
            return await conversation(client)

    return asyncio.run(asyncio.wait_for(converse(), 240))


def test_questions_are_answered_in_three_calls(tmp_path: Path) -> None:
    runs = {rule: str(run(tmp_path / rule, **TRIGGERS[rule][0])) for rule in PLANTS}
    committed = ("nothing", "slow_layer", "slow_dataset", "slow_rank_of_two")
    runs |= {name: str(RUNS / name) for name in committed}

    async def conversation(client: Any) -> dict[str, Any]:
        answers = {}
        for question in QUESTIONS:
            assistant = Assistant(client, runs)
            answers[question.__name__] = await question(assistant), assistant.num_calls
        return answers

    answers = served([*runs.values()], conversation)
    expected = {question.__name__: answer for question, answer in QUESTIONS.items()}
    assert {name: answer for name, (answer, _) in answers.items()} == expected
    assert {name: num for name, (_, num) in answers.items() if num > MOST_CALLS} == {}


def test_what_the_server_offers_and_refuses(tmp_path: Path) -> None:
    path = str(run(tmp_path / "log", **TRIGGERS["slow-steps"][0]))
    before = sorted(tmp_path.rglob("*"))

    async def conversation(client: Any) -> None:
        assert client.server_info.name == "ppprof"
        assert "Call findings first" in client.instructions
        assert path in client.instructions
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == [
            *("findings", "ranks", "tables", "path", "diff", "timeline", "source")
        ]
        assert all(tool.annotations.read_only_hint for tool in tools)
        for tool in tools:  # every argument is described
            assert [
                name
                for name in tool.input_schema["properties"]
                if f"{name}: " not in tool.description
            ] == []
        uris = {str(each.uri) for each in (await client.list_resources()).resources}
        assert uris == {
            "ppprof://definitions",
            *(f"ppprof://schema/{name}" for name in DESCRIBED),
        }
        schema = await client.read_resource("ppprof://schema/advise")
        assert json.loads(schema.contents[0].text)["$id"].startswith("urn:ppprof:advise:")
        for tool, arguments, message in (
            ("findings", {"run": str(RUNS / "nothing")}, f"expected one of {path}"),
            ("source", {"file": "/etc/passwd", "line": 1}, "no source of it was recorded"),
            ("timeline", {"step": 99}, "no step 99; there are steps 0-11"),
        ):
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            assert message in result.content[0].text

    served([path], conversation)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_path_without_a_run_ends_the_start(tmp_path: Path, cli: Cli) -> None:
    missing = tmp_path / "missing"
    assert cli("mcp", missing, code=3).err == f"{missing}: No such file or directory\n"


def test_the_server_ends_with_its_assistant() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ppprof", "mcp", RUNS / "nothing"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_the_extra_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    err = cli("mcp", RUNS / "nothing", code=2).err
    assert "pip install 'ppprof[mcp]', in Python 3.10 or newer" in err
