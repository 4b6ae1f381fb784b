"""The gate to the files of a run directory: regular files only, never waiting, no link followed."""

from __future__ import annotations

import os
import re
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ppprof import rundir
from ppprof.rundir.liveness import LivenessRegistry
from ppprof.rundir.run_file import RunFile, make_folder, matches
from ppprof.rundir.triggers import write_completion
from ppprof.topology import Topology

OUTSIDE = b"not of the run"


def names(run: Path, folder: str, pattern: str = ".*") -> list[str]:
    """Return the names in a folder that match."""
    return [match[0] for match in matches(run, folder, re.compile(pattern))]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory beside a folder ``outside`` with one file."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_bytes(OUTSIDE)
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def plant(run: Path, kind: str) -> RunFile:
    """Plant something else where ``folder/file`` is expected."""
    outside, path = run.parent / "outside", run / "folder/file"
    if kind == "link to a folder":
        path.parent.symlink_to(outside)
        return RunFile(run, "folder/file")
    path.parent.mkdir()
    if kind == "link":
        path.symlink_to(outside / "file")
    elif kind == "link to nothing":
        path.symlink_to(outside / "new")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.relpath(path))  # at most 107 bytes
    return RunFile(run, "folder/file")


KINDS = [
    *("link to a folder", "link", "link to nothing", "device", "pipe", "directory", "socket"),
]
USES: dict[str, Callable[[RunFile], object]] = {
    "open": lambda file: file.open(),
    "read": lambda file: file.read(100),
    "read_end": lambda file: file.read_end(100),
    "read_json": lambda file: file.read_json(100),
    "append": lambda file: file.append(b"more"),
    "create": lambda file: file.create(b"new"),
    "write_new": lambda file: file.write_new(b"new"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use", USES)
def test_only_a_regular_file_is_opened(run: Path, kind: str, use: str) -> None:
    file = plant(run, kind)
    before = sorted(map(str, run.parent.rglob("*")))
    with pytest.raises(OSError, match=r"file|link|not a folder|Is a directory") as caught:
        USES[use](file)
    assert str(run / "folder/file") in str(caught.value)
    assert not file.exists() or kind == "link to a folder"
    assert sorted(map(str, run.parent.rglob("*"))) == before
    assert (run.parent / "outside/file").read_bytes() == OUTSIDE


@pytest.mark.parametrize("kind", ["link", "link to nothing", "device", "pipe", "socket"])
def test_writing_replaces_what_is_no_file(run: Path, kind: str) -> None:
    file = plant(run, kind)
    file.write(b"whole")
    assert file.read(100) == b"whole"
    assert not file.path.is_symlink()
    assert names(run, "folder") == ["file"]
    assert (run.parent / "outside/file").read_bytes() == OUTSIDE


def test_a_file_that_cannot_be_written_whole_is_not_written(run: Path) -> None:
    file = RunFile(run, "folder/file")
    file.write(b"old")

    def half() -> None:
        with file.writing() as hidden:
            hidden.append(b"half")
            assert file.read(100) == b"old"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    assert (names(run, "folder"), file.read(100)) == (["file"], b"old")


def test_bytes_are_bounded(run: Path) -> None:
    file = RunFile(run, "file")
    file.append(b"one ")
    file.append(b"two")
    assert file.read(7) == b"one two"
    assert file.read_end(7) == (b"one two", True)
    assert file.read_end(3) == (b"two", False)
    with pytest.raises(OSError, match=r"larger than the 5\.72\S* MiB"):
        file.read(6)
    file.write(b"[" * 100_000)
    with pytest.raises(ValueError, match=r"nested too deeply|Expecting"):
        file.read_json(200_000)


def test_a_name_stays_in_the_run(run: Path) -> None:
    for name in ("../outside/file", "/etc/passwd", "a//b", "a/./b", "", "a/"):
        with pytest.raises(ValueError, match="not the path of a file in the run directory"):
            RunFile(run, name)


def test_the_path_of_the_run_may_have_links(run: Path) -> None:
    link = run.parent / "link"
    link.symlink_to(run)
    RunFile(link, "folder/file").write(b"here")
    assert (run / "folder/file").read_bytes() == b"here"
    assert names(link, "folder") == ["file"]


def test_a_folder_that_is_a_link_is_neither_listed_nor_used(run: Path) -> None:
    (run / "folder").symlink_to(run.parent / "outside")
    assert names(run, "folder") == []
    with pytest.raises(OSError, match="folder: a symbolic link"):
        make_folder(run, "folder/inner")
    assert names(run, "missing") == []


def test_ranks_named_by_planted_files_are_named_and_nothing_fails(run: Path) -> None:
    """A stray file, a huge process id, the remains of a larger job, and pipes."""
    (run / "alive").mkdir()
    (run / "failed").mkdir()
    node = os.uname().nodename
    registry = LivenessRegistry(run, Topology.of(dp=2), 0)
    own = names(run, "alive")[0].rpartition(".")[2]
    for name in (f"00001.{10**30}.{own}", f"00099.{2**31 - 1}.{own}", f"00001.{2**63}.{node}"):
        (run / "alive" / name).touch()
    assert registry.mark_failed(ValueError("x")) == (
        f"rank 99 (not a rank of this job, pid {2**31 - 1}) is gone: killed, or it crashed"
    )
    for path in (run / "alive").iterdir():
        path.unlink()
    (run / "failed/00099.txt").write_text("RuntimeError: boom\n")
    os.mkfifo(run / "failed/00001.txt")
    (run / "failed/00000.txt").symlink_to("/dev/zero")
    assert registry.mark_failed(ValueError("x")) == (
        "rank 0 (dp0_pp0_sharding0_mp0) failed: , rank 1 (dp1_pp0_sharding0_mp0) failed: , "
        "rank 99 (not a rank of this job) failed: RuntimeError: boom"
    )


def test_many_threads_write_one_file(run: Path) -> None:
    file = RunFile(run, "folder/file")
    threads = [
        threading.Thread(target=lambda: [file.write(b"x" * 5000) for _ in range(20)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (names(run, "folder"), file.read(5000)) == (["file"], b"x" * 5000)


def test_a_save_that_was_cut_is_found(run: Path) -> None:
    name = rundir.TraceName.parse("rank_00003_dp1_time_20261120T201530_000.pb")
    assert name is not None
    with RunFile(run, name.raw).writing() as hidden:
        assert rundir.cut_captures(run) == [(name, hidden)]
        assert rundir.raw_files(run) == []
        hidden.path.rename(run / "raw/other")
        hidden.create()
    assert rundir.cut_captures(run) == []


def test_nothing_is_appended_through_a_hard_link(run: Path) -> None:
    outside = run.parent / "outside/file"
    (run / "folder").mkdir()
    os.link(outside, run / "folder/file")
    with pytest.raises(OSError, match="a hard link: the file has another name"):
        RunFile(run, "folder/file").append(b"more")
    assert outside.read_bytes() == OUTSIDE


@pytest.mark.parametrize("kind", ["link to a folder", "link to nothing", "file", "pipe"])
def test_a_run_goes_beside_what_is_no_run(run: Path, kind: str) -> None:
    rundir.claim(run)
    planted = run / "run_002"
    if kind == "link to a folder":
        planted.symlink_to(run.parent / "outside")
    elif kind == "link to nothing":
        planted.symlink_to("nowhere")
    elif kind == "file":
        planted.touch()
    else:
        os.mkfifo(planted)
    assert rundir.claim(run) == run / "run_003"
    assert sorted(path.name for path in (run.parent / "outside").iterdir()) == ["file"]


def test_other_names_do_not_count(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppprof.rundir.run_file._MOST_NAMES", 3)
    for number in range(20):
        RunFile(run, f"folder/stray_{number}").create()
    for name in ("2", "10", "1"):
        RunFile(run, f"folder/{name}").create()
    assert names(run, "folder", "[0-9]+") == ["1", "10", "2"]
    assert len(names(run, "folder")) == 3
    assert names(run, "", "f.*") == ["folder"]


def test_a_folder_is_removed_with_its_files_and_nothing_else(run: Path) -> None:
    outside = run.parent / "outside"
    (run / "link").symlink_to(outside)
    (run / "folder").mkdir()
    (run / "folder/a").touch()
    (run / "folder/b").symlink_to(outside / "file")
    RunFile(run, "folder").remove_folder()
    assert not (run / "folder").exists()
    (run / "raw").symlink_to(outside)
    (outside / "calls").mkdir()
    for name in ("link", "raw/calls", "missing"):
        with pytest.raises(OSError, match=name):
            RunFile(run, name).remove_folder()
    (run / "nested/inner").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        RunFile(run, "nested").remove_folder()
    assert sorted(path.name for path in outside.iterdir()) == ["calls", "file"]
    assert (outside / "file").read_bytes() == OUTSIDE


@pytest.fixture
def shared() -> Iterator[Path]:
    """A log directory that all users may write; pytest's own folders are one user's alone."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def test_a_run_goes_beside_a_folder_of_another_user(shared: Path) -> None:
    (shared / "steps").mkdir()
    (shared / "run_002").mkdir(mode=0)
    child = os.fork()
    if not child:
        with suppress(PermissionError):  # not root, who may read everything
            os.seteuid(65534)
        is_beside = False
        try:
            is_beside = rundir.claim(shared) == shared / "run_003"
        finally:
            os._exit(0 if is_beside else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_nothing_is_noted_through_a_link_for_a_waiting_request(run: Path) -> None:
    (run / "trigger").symlink_to(run.parent / "outside")
    write_completion(run, 0, 0, [run / "a.json"], None)
    assert [path.name for path in (run.parent / "outside").iterdir()] == ["file"]


def test_of_many_planted_failures_few_are_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(1, 100):
        RunFile(run, f"failed/{rank:05d}.txt").create(b"x" * 10_000)
    registry = LivenessRegistry(run, Topology.of(dp=2), 0)
    read: list[RunFile] = []
    whole = RunFile.read
    monkeypatch.setattr(
        RunFile, "read", lambda file, most: (read.append(file), whole(file, most))[1]
    )
    text = registry.mark_failed(ValueError("x"))
    assert len(read) < 10
    assert len(text) < 5000
    assert text.endswith("more ranks")
