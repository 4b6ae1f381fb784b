"""Which rank a trace is of, where ppprof did not write it."""

from __future__ import annotations

import gzip
import json
import logging
import os
from pathlib import Path

import pytest

import ppprof
from ppprof.errors import InputError
from ppprof.rundir.recordings import resolve
from tests.conftest import Cli

KINETO = Path(__file__).parent.parent / "fixtures/kineto/gpu_ddp.json"


def torch_trace(path: Path, rank: int | None) -> Path:
    """A trace of torch's, with ``distributedInfo.rank`` (without it for None)."""
    document = json.loads(KINETO.read_text())
    if rank is None:
        del document["distributedInfo"]
    else:
        document["distributedInfo"]["rank"] = rank
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def ranks(folder: Path) -> dict[str, int]:
    return {recording.name: recording.rank for recording in resolve(folder).recordings}


def test_the_file_itself_says_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The names say the reverse."""
    for rank in range(8):
        suffix = ".gz" if rank % 2 else ""
        torch_trace(tmp_path / f"rank{7 - rank}.{rank}.pt.trace.json{suffix}", rank)
    with caplog.at_level(logging.INFO, "ppprof"):
        assert ranks(tmp_path) == {f"rank{7 - rank}": rank for rank in range(8)}
    assert caplog.messages == [f"{tmp_path}: ranks 0-7, from distributedInfo.rank in the files"]
    steps = ppprof.open(tmp_path).breakdown()
    assert steps["rank"].unique().sort().to_list() == [*range(8)]


def test_without_it_the_names_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("rank_10", "rank_9", "a_Rank3"):
        torch_trace(tmp_path / f"{name}.1.pt.trace.json", None)
    with caplog.at_level(logging.INFO, "ppprof"):
        assert ranks(tmp_path) == {"a_Rank3": 3, "rank_9": 9, "rank_10": 10}
    assert caplog.messages == [f"{tmp_path}: ranks 3, 9-10, from the rank in their names"]


@pytest.mark.parametrize(
    ("in_files", "names"),
    [
        ([0, 0], ("b", "a")),  # two traces of one rank: of two runs, perhaps
        ([0, None], ("b", "a")),  # one of them does not say
        ([None, None], ("rank1_b", "rank1_a")),
    ],
)
def test_what_contradicts_itself_is_numbered_by_order(
    tmp_path: Path,
    in_files: list[int | None],
    names: tuple[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, rank in zip(names, in_files):
        torch_trace(tmp_path / f"{name}.1.pt.trace.json", rank)
    with caplog.at_level(logging.INFO, "ppprof"):
        assert ranks(tmp_path) == {names[1]: 0, names[0]: 1}
    assert caplog.messages[0].startswith(
        f"{tmp_path}: traces 0-1, in the order of their names: nothing in them says that they are"
    )
    assert caplog.records[0].levelname == "WARNING"


def in_folders(root: Path, *folders: str, world_size: int = 4) -> None:
    """Two ranks in each folder; those of the second folder follow, unless it is an iteration."""
    for number, folder in enumerate(folders):
        (root / folder).mkdir(parents=True)
        for rank in range(2):
            first = 0 if "iteration" in folder else 2 * number
            path = torch_trace(root / folder / f"worker{rank}_trace.json", first + rank)
            document = json.loads(path.read_text())
            document["distributedInfo"]["world_size"] = world_size
            path.write_text(json.dumps(document))


def places(*paths: Path) -> list[tuple[int, int, str]]:
    return [
        (recording.rank, recording.window, recording.files[0].parent.name)
        for recording in resolve(*paths).recordings
    ]


@pytest.mark.parametrize("below", ["", "logs"])
def test_folders_of_nodes_are_one_job(tmp_path: Path, below: str) -> None:
    in_folders(tmp_path, f"node0/{below}", f"node1/{below}")
    names = [below or "node0"] * 2 + [below or "node1"] * 2
    expected = [(rank, 0, name) for rank, name in enumerate(names)]
    assert places(tmp_path) == expected
    assert places(tmp_path / "node0" / below, tmp_path / "node1" / below) == expected
    assert ppprof.open(tmp_path).breakdown()["rank"].unique().sort().to_list() == [0, 1, 2, 3]


def test_folders_of_iterations_are_windows(tmp_path: Path) -> None:
    in_folders(tmp_path, "iteration_100", "iteration_20", world_size=2)
    folders = ["iteration_20", "iteration_100"]
    expected = [(rank, window, folders[window]) for rank in (0, 1) for window in (0, 1)]
    assert places(tmp_path) == expected
    assert places(*(tmp_path / folder for folder in folders)) == expected


def test_folders_of_different_runs_are_refused(tmp_path: Path) -> None:
    in_folders(tmp_path / "a", "run_1", "run_2")
    for path in (tmp_path / "a").glob("*/*.json"):
        torch_trace(path, 0 if "worker0" in path.name else 1)
    with pytest.raises(InputError, match="different runs, or nodes of one whose traces do not"):
        resolve(tmp_path / "a")
    in_folders(tmp_path / "b", "node0", world_size=4)
    in_folders(tmp_path / "c", "node0", world_size=8)
    with pytest.raises(InputError, match="traces of different jobs, of 4 and 8 ranks"):
        resolve(*sorted(tmp_path.glob("[bc]/node0/*.json")))


@pytest.mark.parametrize("name", ["8nodes_iter{}", "worker0_step{}", "iteration_{}"])
def test_folders_that_differ_in_another_number_than_the_nodes_are_windows(
    tmp_path: Path, name: str
) -> None:
    folders = [name.format(number) for number in (10, 20)]
    for folder in folders:
        (tmp_path / folder).mkdir()
        for rank in range(2):
            torch_trace(tmp_path / folder / f"rank{rank}.1.pt.trace.json", None)
    expected = [(rank, window, folders[window]) for rank in (0, 1) for window in (0, 1)]
    assert places(tmp_path) == expected


@pytest.mark.parametrize("folder", ["node", "host-", "worker_"])
def test_local_ranks_of_two_nodes_are_no_windows(tmp_path: Path, folder: str) -> None:
    for node in range(2):
        (tmp_path / f"{folder}{node}").mkdir()
        for rank in range(2):
            torch_trace(tmp_path / f"{folder}{node}" / f"rank{rank}.1.pt.trace.json", None)
    with pytest.raises(InputError, match="different runs, or nodes of one whose traces do not"):
        resolve(tmp_path)


def test_a_file_that_cannot_be_read_has_no_say(tmp_path: Path) -> None:
    torch_trace(tmp_path / "b.1.pt.trace.json", 0)
    (tmp_path / "a.1.pt.trace.json.gz").write_bytes(b"\x1f\x8b broken")
    os.mkfifo(tmp_path / "c.1.pt.trace.json")
    assert ranks(tmp_path) == {"a": 0, "b": 1, "c": 2}


def test_one_trace_alone_is_rank_0(tmp_path: Path) -> None:
    path = torch_trace(tmp_path / "rank7.1.pt.trace.json", 7)
    assert [recording.rank for recording in resolve(path).recordings] == [0]
    assert ranks(tmp_path) == {"rank7": 7}


def test_files_are_the_ranks_of_one_run(tmp_path: Path) -> None:
    files = [torch_trace(tmp_path / f"{name}.json", rank) for rank, name in enumerate("dcba")]
    location = resolve(*files)
    assert [recording.name for recording in location.recordings] == [
        "d.json",
        "c.json",
        "b.json",
        "a.json",
    ]
    steps = ppprof.open(*files).breakdown()
    assert steps["rank"].unique().sort().to_list() == [0, 1, 2, 3]


def test_files_of_one_rank_are_no_run(tmp_path: Path) -> None:
    name = "rank_00003_dp3_pp0_sharding0_mp0_time_20261120T201530_000.paddle_trace.json"
    files = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        files.append(torch_trace(tmp_path / folder / name, None))
    with pytest.raises(InputError, match="both are of rank 3, window 0; expected files of diff"):
        resolve(*files)


def test_a_directory_may_hold_traces_under_any_name(tmp_path: Path) -> None:
    torch_trace(tmp_path / "worker b.json", 0)
    torch_trace(tmp_path / "worker a.json.gz", 1)
    (tmp_path / "settings.json").write_text("{}")
    (tmp_path / "notes.txt").write_text('"traceEvents"')
    assert ranks(tmp_path) == {"worker b.json": 0, "worker a.json.gz": 1}


def test_a_directory_may_hold_a_list_of_events(tmp_path: Path) -> None:
    """Ascend's profilers write one, beside lists of other things."""
    events = [{"ph": "X", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]
    (tmp_path / "trace_view.json").write_text(json.dumps(events, indent=1))
    (tmp_path / "communication.json").write_text(json.dumps([{"group": "hcom"}]))
    assert ranks(tmp_path) == {"trace_view.json": 0}


@pytest.mark.parametrize("command", [["ranks"], ["advise"], ["report", "-o", "page.html"]])
def test_commands_take_several_files(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli,
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [torch_trace(tmp_path / f"{rank}.json", rank) for rank in (1, 0)]
    assert "ranks 0-1, from distributedInfo.rank in the files" in cli(*command, *files).err


def test_traces_that_nothing_says_to_be_of_one_job_are_not_called_ranks(
    cli: Cli, tmp_path: Path
) -> None:
    """In the title of tables, in the line on a timeline and on the page."""
    for name in ("beta", "alpha"):
        torch_trace(tmp_path / f"{name}.json", None)
    paths = [tmp_path / "alpha.json", tmp_path / "beta.json"]
    shown = [cli("ranks", *paths), cli("summary", "--by", "rank", tmp_path)]
    shown += [cli("merge", *paths, "-o", tmp_path / "out.json")]
    for each in shown:
        assert "traces 0-1" in each.out + each.err
        assert "ranks 0-1" not in each.out + each.err
    page = tmp_path / "page.html"
    cli("report", *paths, "-o", page)
    header = page.read_text("utf-8").partition('<section id="findings"')[0]
    assert "traces 0-1" in header
    assert "ranks 0-1" not in header
