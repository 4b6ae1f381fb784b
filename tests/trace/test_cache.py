"""Parsed events are cached beside a trace, and are used only for the same content of the file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

from ppprof.trace import Trace, cache_files, formats, read, write_paddle_json
from tests.fixtures import gpu_traces
from tests.fixtures.timeline import write


@pytest.fixture(autouse=True)
def worth_it(monkeypatch):
    monkeypatch.setattr(cache_files, "SMALLEST_BYTES", 1 << 16)


@pytest.fixture
def path(tmp_path):
    return written(tmp_path, num_steps=8)


def written(directory: Path, num_steps: int) -> Path:
    trace = read(write(directory / "a.pb", *gpu_traces.training(num_steps)))
    target = directory / "rank_00000_time_0_000.paddle_trace.json"
    write_paddle_json(trace, target)
    (directory / "a.pb").unlink()
    return target


@pytest.fixture
def num_parsed(monkeypatch):
    """How often a file was parsed, as a list that grows."""
    parsed = []

    def counted(path, **options):
        parsed.append(path)
        return read_json(path, **options)

    read_json = formats.read_json
    monkeypatch.setattr(formats, "read_json", counted)
    return parsed


def assert_same(one: Trace, other: Trace) -> None:
    for table in ("events", "memory", "kernels", "memsets"):
        assert_frame_equal(getattr(one, table), getattr(other, table))
    for name in ("version", "span", "extra_info", "devices", "skipped"):
        assert getattr(one, name) == getattr(other, name), name


def kept_in(directory: Path) -> list[Path]:
    return sorted(directory.glob(".*"))


def test_the_second_read_parses_nothing(path, num_parsed):
    first, second = read(path), read(path)
    assert len(num_parsed) == 1
    assert_same(first, second)


def test_skipped_and_devices_are_cached(path):
    text = path.read_bytes()
    path.write_bytes(text[: len(text) * 9 // 10])
    first = read(path)
    assert first.skipped
    assert first.devices
    assert_same(first, read(path))


def test_the_cache_can_be_switched_off(path, num_parsed):
    read(path, cache=False)
    assert kept_in(path.parent) == []
    read(path)
    read(path, cache=False)
    assert len(num_parsed) == 3


def test_a_small_file_is_not_cached(path, monkeypatch):
    monkeypatch.setattr(cache_files, "SMALLEST_BYTES", path.stat().st_size + 1)
    read(path)
    assert kept_in(path.parent) == []


def test_a_file_that_changed_is_parsed_again(path, num_parsed):
    old = read(path)
    written(path.parent, num_steps=9)
    new = read(path)
    assert len(num_parsed) == 2
    assert new.events.height > old.events.height
    assert_same(new, read(path))
    assert len(num_parsed) == 2
    assert len(kept_in(path.parent)) == 1


def test_a_change_within_one_tick_and_of_the_same_size_is_detected(path, num_parsed):
    read(path)
    times = path.stat()
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"MainThread"', b'"mainThread"'))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "mainThread" in read(path).extra_info.values()
    assert len(num_parsed) == 2


def test_the_cache_of_other_code_is_ignored(path, num_parsed, monkeypatch):
    read(path)
    monkeypatch.setattr(cache_files, "_code", lambda: 1)
    read(path)
    assert len(num_parsed) == 2


def test_code_in_subfolders_counts_too(tmp_path, monkeypatch):
    reader = tmp_path / "paddle" / "reader.py"
    reader.parent.mkdir()
    reader.write_text("a = 1\n")
    monkeypatch.setattr(cache_files, "__file__", str(tmp_path / "trace" / "cache_files.py"))
    before = cache_files._code()
    reader.write_text("a = 12\n")
    assert cache_files._code() != before


def test_a_damaged_cache_is_replaced(path, num_parsed):
    whole = read(path)
    (kept,) = kept_in(path.parent)
    data = bytearray(kept.read_bytes())
    for damaged in (
        data[: len(data) // 2],
        b"",
        data[: len(data) // 3] + b"\x00" * 64 + data[len(data) // 3 + 64 :],
    ):
        kept.write_bytes(damaged)
        num_before = len(num_parsed)
        assert_same(read(path), whole)
        assert len(num_parsed) == num_before + 1
        read(path)
        assert len(num_parsed) == num_before + 1


def test_an_unwritable_directory_is_not_an_error(path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    assert read(path).events.height
    assert kept_in(path.parent) == []


def test_a_file_that_changes_while_it_is_read_is_not_cached(path, monkeypatch):
    def growing(path, **options):
        trace = read_json(path, **options)
        with path.open("ab") as file:
            file.write(b" ")
        return trace

    read_json = formats.read_json
    monkeypatch.setattr(formats, "read_json", growing)
    read(path)
    assert kept_in(path.parent) == []


def test_processes_that_write_the_cache_at_once(path):
    code = (
        "import sys; from ppprof.trace import cache_files, read; cache_files.SMALLEST_BYTES = 1 << 16;"
        "print(read(sys.argv[1]).events.height)"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(4)
    ]
    ends = [process.communicate(timeout=60) for process in running]
    assert {end for end, _ in ends} == {f"{read(path).events.height}\n".encode()}
    assert all(error == b"" for _, error in ends)
    assert len(kept_in(path.parent)) == 1


def test_visualdl_does_not_open_the_cache_as_a_trace(path):
    read(path)
    (kept,) = kept_in(path.parent)
    assert "paddle_trace" not in kept.name
