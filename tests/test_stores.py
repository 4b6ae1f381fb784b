"""Runs in a store: s3fs, the real client, against a server that speaks S3 (moto)."""

from __future__ import annotations

import subprocess
import sys

import fsspec
import polars as pl
import pytest
from moto.server import ThreadedMotoServer
from polars.testing import assert_frame_equal

import ppprof
from ppprof.config import ProfilerConfig
from ppprof.errors import InputError, TraceError
from ppprof.paths import to_path
from ppprof.rundir import TraceName, claim, write_manifest
from ppprof.topology import Topology
from ppprof.trace import read, write
from tests.fixtures import timeline
from tests.fixtures.pipelines import one_f_one_b
from tests.fixtures.tiers import one_in

GRID = Topology.of(pp=2)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A run of two ranks on this disk: one left a .pb, the other JSON."""
    run = claim(tmp_path_factory.mktemp("here") / "log")
    block = ProfilerConfig.from_mapping({"enable": True}).to_mapping()
    axes = {"order": GRID.order, "degrees": GRID.degrees}
    ranks = [{"rank": rank, "coordinate": GRID.coordinate(rank)} for rank in range(2)]
    write_manifest(run, {"profiler": block, "axes": axes, "ranks": ranks, "run_id": "one"})
    for rank, thread in enumerate(one_f_one_b(2, 4, meets=True, steps=2)):
        raw = run / f"raw/rank_{rank:05}_{GRID.label(rank)}_time_20261120T201530_000.pb"
        timeline.write(raw, thread)
    name = TraceName.parse(raw)
    write(read(raw), run / name.trace("json.gz"))
    raw.unlink()
    return run


@pytest.fixture(scope="module")
def store():
    """Settings of a server that has a bucket, as they are found in the environment."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "someone")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "something")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("bucket")
        yield
    server.stop()


@pytest.fixture(scope="module")
def there(here, store):
    """The same run in the store."""
    fsspec.filesystem("s3").put(f"{here}/", "bucket/runs/log/", recursive=True)
    return "s3://bucket/runs/log"


@pytest.mark.parametrize(
    "command",
    one_in(
        3,
        [
            ["ranks", "--what-if"],
            ["ranks", "--workers", "2"],
            ["summary", "--by", "rank"],
            ["summary", "--views", "all"],
        ],
    ),
    ids=" ".join,
)
def test_a_command_prints_what_it_prints_of_the_disk(here, there, cli, command):
    name, *options = command
    of_disk = cli(name, here, *options).out
    assert cli(name, there, *options).out == of_disk.replace(str(here), str(there))


def test_events_of_all_ranks(here, there):
    run = ppprof.open(there)
    assert run.ranks == [0, 1]
    assert str(run) == there
    assert_frame_equal(run.events(), ppprof.open(here).events())


def test_directories_above_a_run_are_looked_through(there):
    assert str(ppprof.open("s3://bucket/runs")) == there
    assert str(ppprof.open("s3://bucket")) == there


def test_one_file(there, here):
    name = next(path.name for path in here.glob("*.json.gz"))
    assert_frame_equal(
        ppprof.open(f"{there}/{name}").events().drop("rank"),
        ppprof.open(here / name).events().drop("rank"),
    )


def test_a_timeline_is_written_to_the_store(here, there, tmp_path, cli):
    cli("merge", here, "-o", tmp_path / "all.json.gz")
    message = cli("merge", there, "-o", "s3://bucket/out/all.json.gz").err.splitlines()[-1]
    merged = to_path("s3://bucket/out/all.json.gz").read_bytes()
    assert merged == (tmp_path / "all.json.gz").read_bytes()
    assert message.startswith("s3://bucket/out/all.json.gz: ranks 0-1, ")
    assert (
        "exists; --force replaces it"
        in cli("merge", there, "-o", "s3://bucket/out/all.json.gz", code=2).err
    )


def test_tables_and_converted_traces_are_written_to_the_store(here, there, cli):
    cli("summary", there, "--format", "json", "-o", "s3://bucket/out/tables.json")
    of_disk = cli("summary", here, "--format", "json").out
    assert to_path("s3://bucket/out/tables.json").read_text() == of_disk.replace(str(here), there)
    name = next(path.name for path in here.glob("raw/*.pb"))
    cli("convert", f"{there}/raw/{name}", "s3://bucket/out/rank0.json")
    assert_frame_equal(
        read("s3://bucket/out/rank0.json").events.select("name", "dur_ns"),
        read(here / "raw" / name).events.select("name", "dur_ns"),
    )


def test_what_is_not_there(there, cli):
    assert (
        cli("ranks", "s3://bucket/nothing", code=3).err
        == "s3://bucket/nothing: No such file or directory\n"
    )
    with pytest.raises(TraceError, match=r"^s3://bucket/a\.json: No such file or directory$"):
        read("s3://bucket/a.json")


def test_no_bucket(there):
    with pytest.raises(InputError, match=r"^s3://missing/run: "):
        ppprof.open("s3://missing/run")


def test_a_finish_has_to_be_on_a_disk(there, cli):
    assert cli("finish", there, code=2).err == (
        f"{there}: finish writes beside what it reads; copy the run to a disk\n"
    )


def test_no_package_for_a_store(cli):
    """Said by fsspec, which knows what to install."""
    pytest.importorskip("fsspec")
    assert "ossfs" in cli("ranks", "oss://bucket/run", code=3).err


def test_no_such_kind_of_store(cli):
    assert cli("ranks", "nonsense://bucket/run", code=3).err.startswith("nonsense://bucket/run: ")


UNREACHABLE = [
    ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", "Could not connect"),
    ("AWS_ACCESS_KEY_ID", None, "credentials"),
]


@pytest.mark.parametrize(
    ("command", "variable", "value", "said"),
    one_in(
        5,
        [
            (command, *case)
            for command in ("ranks", "summary", "merge -o", "convert")
            for case in UNREACHABLE
        ],
    ),
)
def test_unreachable_stores_and_missing_credentials(
    here, there, monkeypatch, tmp_path, command, variable, value, said
):
    """In a process of its own each: s3fs keeps what it has found out."""
    trace = next(here.glob("raw/*.pb"))
    arguments = {
        "ranks": ["ranks", there],
        "summary": ["summary", there],
        "merge -o": ["merge", here, "-o", "s3://bucket/new.json"],
        "convert": ["convert", trace, "s3://bucket/new.json"],
    }[command]
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    if value is None:
        monkeypatch.delenv(variable)
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    else:
        monkeypatch.setenv(variable, value)
    done = subprocess.run(
        [sys.executable, "-m", "ppprof", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3 if there in arguments else 2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_columns_are_those_of_any_run(there):
    assert ppprof.open(there).breakdown("pp").schema["step_ns"] == pl.Float64
