"""Tables are kept beside a trace, and a second ``ppprof summary`` prints them without reading it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ppprof.analysis.summaries.views import schema_of
from ppprof.choices.rows import SummaryOptions
from ppprof.choices.views import ALL_VIEWS, VIEWS
from ppprof.cli import main
from ppprof.report.text.summary import TableOptions, render_tables
from ppprof.run import kept_tables
from ppprof.run.kept_tables import KeptTables
from ppprof.run.row_types import row_types
from ppprof.rundir import JobFacts
from ppprof.rundir.recordings import single_file
from ppprof.rundir.summaries import document, dumps
from ppprof.trace import cache_files, read, write_paddle_json
from tests.fixtures import gpu_traces
from tests.fixtures.timeline import write

Printed = tuple[int, str, str]
_TYPES = {int: pl.Int64, float: pl.Float64, str: pl.String}


@pytest.fixture(autouse=True)
def worth_it(monkeypatch):
    monkeypatch.setattr(cache_files, "SMALLEST_BYTES", 1 << 12)


@pytest.fixture
def path(tmp_path):
    target = tmp_path / "a.json"
    write_paddle_json(read(write(tmp_path / "a.pb", *gpu_traces.training(3))), target)
    (tmp_path / "a.pb").unlink()
    return target


@pytest.fixture
def summary(path, capsys) -> Callable[..., Printed]:
    """Runs ``ppprof summary`` on the trace: exit code, stdout, stderr."""

    def run(*options: str) -> Printed:
        capsys.readouterr()
        return main(["summary", str(path), *options]), *capsys.readouterr()

    return run


@pytest.fixture
def forbid_reading(monkeypatch) -> None:
    """Makes every further read of events fail."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("events were read")

    monkeypatch.setattr("ppprof.run.traces.read", refuse)


def kept_file(path: Path) -> Path:
    return cache_files.cache_path(path, ".tables")


def contents(path: Path) -> dict[str, Any]:
    return json.loads(kept_file(path).read_bytes()[kept_tables._PREFIX.size :])


def forge(path: Path, value: object) -> None:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    prefix = kept_tables._PREFIX.pack(kept_tables._MAGIC, zlib.crc32(body))
    kept_file(path).write_bytes(prefix + body)


OPTIONS = [
    "",
    "--views all",
    "--views kernel --width 80",
    "--views all --format json",
    "--views op --format csv",
    "--views mem --format csv",
    "--views all --format md",
    "--style paddle --time-unit us --row-limit 1 --no-op-detail",
    "--rank 0 --window 0",
]


@pytest.mark.parametrize("options", OPTIONS)
def test_what_is_kept_prints_the_same(summary, options, request):
    expected = summary("--no-cache", *options.split())
    assert expected[0] == 0
    summary()
    request.getfixturevalue("forbid_reading")
    assert summary(*options.split()) == expected


@pytest.mark.parametrize(
    "options",
    ["--steps 5:6", "--sorted-by cpu_max", "--thread-sep --views udf,op", "--views shape,layer"],
)
def test_other_tables_are_computed_once(summary, options, request):
    summary()
    expected = summary("--no-cache", *options.split())
    assert summary(*options.split()) == expected
    request.getfixturevalue("forbid_reading")
    assert summary(*options.split()) == expected
    assert summary()[0] == 0


def test_warnings_are_kept_too(path, summary, request):
    text = path.read_bytes()
    path.write_bytes(text[: len(text) * 9 // 10])
    expected = summary("--no-cache")
    assert "skipped" in expected[2] or "truncated" in expected[2]
    summary()
    request.getfixturevalue("forbid_reading")
    assert summary() == expected


def test_without_cache_nothing_is_kept_or_used(path, summary):
    summary("--no-cache")
    assert not kept_file(path).exists()
    summary()
    expected = summary("--no-cache")
    value = contents(path)
    value["entries"][0]["tables"]["kernel"] = []
    forge(path, value)
    assert summary("--no-cache", "--views", "kernel")[1] != summary("--views", "kernel")[1]
    assert summary("--no-cache") == expected


def test_a_changed_trace_is_read_again(path, summary):
    summary()
    text = path.read_text().replace("matmul", "matnul")
    path.write_text(text)
    assert "matnul" in summary()[1]


def test_the_facts_of_the_job_count(path, summary):
    """A manifest that states another peak changes the efficiency."""
    summary("--views", "efficiency")
    recording = single_file(path)
    assert KeptTables(recording, JobFacts(), None, SummaryOptions()).load(["efficiency"])
    stated = JobFacts(peak_flops=1e12)
    assert KeptTables(recording, stated, None, SummaryOptions()).load(["efficiency"]) is None


def test_a_second_command_imports_neither_numpy_nor_polars(path, summary):
    summary()
    code = (
        "import sys; from ppprof.trace import cache_files; from ppprof.cli import main\n"
        "cache_files.SMALLEST_BYTES = 1 << 12\n"
        "assert main(['summary', sys.argv[1], '--width', '100']) == 0\n"
        "print(sorted({'numpy', 'polars', 'yaml', 'paddle'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.endswith("\n[]\n")


def test_only_the_latest_choices_are_kept(path, summary):
    for number in range(kept_tables._MOST_ENTRIES + 2):
        summary("--steps", f"5:{number + 6}")
    entries = contents(path)["entries"]
    assert [entry["choice"][4] for entry in entries] == [
        f"5:{number + 8}" for number in range(kept_tables._MOST_ENTRIES)
    ]


def test_long_tables_are_not_kept(path, summary, monkeypatch):
    monkeypatch.setattr(kept_tables, "MOST_BYTES", 1000)
    assert summary()[0] == 0
    assert not kept_file(path).exists()


def test_an_unwritable_directory_is_not_an_error(path, summary, monkeypatch):
    expected = summary("--no-cache")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    assert summary() == expected
    assert list(path.parent.iterdir()) == [path]


ODD = (None, "x", -1, 1 << 70, 0.5, [], {}, True, 1e400)


def _places() -> list[tuple[Any, ...]]:
    return [
        *((key,) for key in ("of", "entries")),
        *(("entries", 0, key) for key in ("choice", "facts", "tables")),
        *(("entries", 0, "facts", key) for key in ("steps", "sorted_by", "skipped", "notes")),
        *(("entries", 0, "tables", view) for view in VIEWS),
        *(
            ("entries", 0, "tables", view, 0, column)
            for view in ("device", "overview", "model", "op", "kernel", "mem")
            for column in range(len(row_types(view, thread_sep=False)))
        ),
    ]


def test_forged_values_are_rejected_or_can_be_printed(path, summary):
    """A forged trace could have the same values."""
    summary()
    sound = contents(path)
    kept = KeptTables(single_file(path), JobFacts(), None, SummaryOptions())
    assert kept.load(VIEWS)
    num_rejected = 0
    for place in _places():
        for odd in ODD:
            value = json.loads(json.dumps(sound))
            inner: Any = value
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = odd
            forge(path, value)
            forged = kept.load(VIEWS)
            if forged is None:
                num_rejected += 1
            else:
                assert render_tables(forged.rows, TableOptions())
                assert dumps(document(forged.rows, steps=forged.facts.steps))
    assert num_rejected > 5 * len(_places())


def test_forged_times_of_zero_can_be_printed(path, summary):
    summary("--views", "efficiency")
    value = contents(path)
    time = list(row_types("efficiency", thread_sep=False)).index("time_ns")
    for row in value["entries"][0]["tables"]["efficiency"]:
        row[time] = 0
    forge(path, value)
    code, out, _ = summary("--views", "efficiency")
    assert (code, "Work is unknown of 0.00% of" in out) == (0, True)


def test_a_forged_file_is_replaced(path, summary):
    expected = summary()
    value = contents(path)
    value["entries"][0]["tables"]["overview"][0][0] = "side"
    forge(path, value)
    assert summary() == expected
    assert contents(path)["entries"][0]["tables"]["overview"][0][0] == "cpu"


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"[" * 100_000, b'{"of":"\xff"}', b'{"of":{},"entries":[],"more":1}'],
)
def test_a_file_of_another_kind_is_replaced(path, summary, content):
    expected = summary()
    forge(path, content)
    assert summary() == expected
    assert contents(path)["entries"]


@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "holes", "damaged", "cut"])
def test_a_special_or_damaged_file_is_ignored(path, summary, kind):
    expected = summary()
    kept = kept_file(path)
    whole = kept.read_bytes()
    if kind in ("damaged", "cut"):
        half = len(whole) // 2
        kept.write_bytes(whole[:half] + (b"" if kind == "cut" else b"9" + whole[half + 1 :]))
    elif kind == "holes":
        os.truncate(kept, 1 << 40)
    else:
        kept.unlink()
        if kind == "link":
            kept.symlink_to("/dev/zero")
        elif kind == "pipe":
            os.mkfifo(kept)
        else:
            kept.mkdir()
    assert summary() == expected


def test_details_without_their_operator_are_rejected(path, summary):
    expected = summary()
    value = contents(path)
    rows = value["entries"][0]["tables"]["op"]
    assert any(row[1] != "operator" for row in rows)
    value["entries"][0]["tables"]["op"] = [row for row in rows if row[1] != "operator"]
    forge(path, value)
    assert summary() == expected


@pytest.mark.parametrize("thread_sep", [False, True])
@pytest.mark.parametrize("view", ALL_VIEWS)
def test_the_types_are_those_of_the_tables(view, thread_sep):
    def dtype(kind: Any) -> object:
        while kind not in _TYPES:
            kind = type(kind.__args__[0]) if isinstance(kind.__args__[0], str) else kind.__args__[0]
        return _TYPES[kind]

    types = row_types(view, thread_sep=thread_sep)
    schema = schema_of(view, thread_sep=thread_sep)
    assert {name: dtype(kind) for name, kind in types.items()} == {
        name: pl.String if kind == pl.Categorical else kind for name, kind in schema.items()
    }
    assert list(types) == list(schema)
