"""Commands that read leave the directory of a run, and that of a trace, as it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ppprof.trace import read, write_paddle_json
from tests.fixtures import gpu_traces
from tests.fixtures.timeline import write

RUN = Path(__file__).parents[1] / "fixtures" / "runs" / "slow_rank_of_two"
COMMANDS = (
    *(["summary", "{path}"], ["summary", "{path}", "--rank", "all", "--by", "name"]),
    *(["ranks", "{path}"], ["advise", "{path}"], ["diff", "{path}", "--experiment-rank", "0"]),
    *(["merge", "{path}", "-o", "{out}/merged.json"], ["report", "{path}", "-o", "{out}/a.html"]),
    ["convert", "{path}", "{out}/kineto", "--to", "kineto"],
)


@pytest.fixture
def large_trace(tmp_path) -> Path:
    """A trace of 4 MB: ppprof 0.2 kept its events in a file beside it. Such a file is there."""
    path = tmp_path / "traces" / "a.json"
    path.parent.mkdir()
    write_paddle_json(read(write(tmp_path / "a.pb", *gpu_traces.training(3))), path)
    with path.open("ab") as file:
        file.write(b"\n" * (5 << 20))
    for suffix in (".bin", ".tables"):
        path.with_name(f".ppprof_cache_a.json{suffix}").write_bytes(b"of 0.2")
    return path


@pytest.fixture
def run(tmp_path) -> Path:
    return Path(shutil.copytree(RUN, tmp_path / "run"))


def contents(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Return the time of modification and the bytes of each file and folder."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in [folder, *folder.rglob("*")]
    }


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("kind", ["run", "large_trace"])
def test_a_command_leaves_what_it_reads_as_it_was(kind, command, tmp_path, request, cli):
    path = request.getfixturevalue(kind)
    folder = path if path.is_dir() else path.parent
    (tmp_path / "out").mkdir()
    before = contents(folder)
    cli(*[part.format(path=path, out=tmp_path / "out") for part in command])
    assert contents(folder) == before
