from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import ppprof
from ppprof.trace import read
from tests.fixtures import gpu_job, gpu_traces
from tests.fixtures.same_traces import assert_same, without_memories
from tests.fixtures.tiers import one_in
from tests.fixtures.timeline import write

FIXTURES = Path(__file__).parent.parent / "fixtures"
KINETO = FIXTURES / "kineto"


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "a.pb", *gpu_traces.training())


@pytest.fixture
def convert(cli):
    return partial(cli, "convert")


@pytest.mark.parametrize(
    ("through", "suffix"), one_in(3, itertools.product([".json", ".json.gz", ".pb"], repeat=2))
)
def test_from_any_format_to_any(source, through, suffix, tmp_path, convert):
    between, target = tmp_path / f"between{through}", tmp_path / f"out{suffix}"
    convert(source, between)
    said = convert(between, target)
    has_all = through == suffix == ".pb"
    assert_same(read(target), read(source) if has_all else without_memories(read(source)))
    assert (gzip.decompress(target.read_bytes())[:1] == b"{") if suffix == ".json.gz" else True
    assert said.out == ""
    assert said.err.splitlines()[-1] == f"{target}: 262 events, {target.stat().st_size} bytes"


def test_a_broken_file_is_mended(source, tmp_path, convert):
    whole, cut, mended = (tmp_path / f"{name}.json" for name in ("whole", "cut", "mended"))
    convert(source, whole)
    text = whole.read_text(encoding="utf-8")
    cut.write_text(text[: text.index('"ProfileStep#7') + 40], encoding="utf-8")
    with pytest.raises(json.JSONDecodeError):
        json.loads(cut.read_text(encoding="utf-8"))
    err = convert(cut, mended).err
    content = json.loads(mended.read_text(encoding="utf-8"))
    steps = [e["name"] for e in content["traceEvents"] if e.get("cat") == "ProfileStep"]
    assert [step.partition("[")[0] for step in steps] == ["ProfileStep#5", "ProfileStep#6"]
    assert f"{cut}: partly read: the file is truncated" in err


@pytest.mark.parametrize("suffix", [".json", ".pb"])
@pytest.mark.parametrize(
    ("name", "num_untold"), [("cpu_ddp_rank1.json.gz", 0), ("gpu_ddp.json", 2)]
)
def test_what_torch_wrote_becomes_paddles(name, num_untold, suffix, tmp_path, convert):
    target = tmp_path / f"out{suffix}"
    said = convert(KINETO / name, target).err
    found, exact = read(target), read(KINETO / name)
    # Two kernels of NCCL have their group; Paddle has no place for that.
    on_device = exact.events["device"].is_not_null()
    messages = exact.events.with_columns(
        exact.events[column].set(on_device, None) for column in ("group", "dtype", "peers")
    )
    num_gradients = exact.events["forward"].count()
    assert num_gradients > 0
    num_attributes = exact.events["attributes"].count()
    if suffix == ".pb":  # nor has a pb a place for what a gradient is the gradient of
        nothing = pl.lit(None, pl.Categorical())
        messages = messages.with_columns(forward=pl.lit(None, pl.Int32), attributes=nothing)
    assert_frame_equal(found.events, messages, categorical_as_str=True)
    assert exact.events.filter(on_device)["group"].count() == num_untold
    omitted = f"{num_untold} event annotations"
    assert (omitted in said) == (num_untold > 0)
    assert (f"{num_gradients} links from gradients to forward events" in said) == (suffix == ".pb")
    is_lost = suffix == ".pb" and num_attributes > 0
    assert (f"{num_attributes} operators' attributes" in said) == is_lost


def test_device_events_without_a_launch_are_reported(tmp_path):
    from ppprof.trace import formats

    trace = read(write(tmp_path / "a.pb", *gpu_traces.training()))
    is_launch = trace.events["category"] == "CudaRuntime"
    kept = trace.events.filter(~is_launch).with_columns(
        parent=trace.events.filter(~is_launch)["parent"].set(
            trace.events.filter(~is_launch)["device"].is_not_null(), None
        )
    )
    skipped = formats.write(dataclasses.replace(trace, events=kept), tmp_path / "out.pb")
    assert skipped == {"device events without a launch": trace.events["device"].count()}


def test_what_is_there_is_not_overwritten(source, tmp_path, convert):
    target = tmp_path / "out.json"
    target.write_text("mine")
    err = convert(source, target, code=2).err
    assert target.read_text() == "mine"
    assert err == f"{target}: exists; --force replaces it\n"
    convert(source, target, "--force")
    assert read(target).events.height == 262


def test_a_file_is_not_written_over_itself(source, convert):
    assert "IN and OUT are one file" in convert(source, source, "--force", code=2).err


def test_an_unknown_format_is_refused_before_anything_is_read(tmp_path, convert):
    assert convert(tmp_path / "missing.pb", tmp_path / "out.txt", code=2).err == (
        f"{tmp_path}/out.txt: expected a name that ends in one of .json, .json.gz, .pb\n"
    )


def test_a_missing_file_is_reported(tmp_path, convert):
    err = convert(tmp_path / "missing.pb", tmp_path / "out.pb", code=3).err
    assert err == f"{tmp_path}/missing.pb: No such file or directory\n"


def test_a_missing_directory_is_reported(source, tmp_path, convert):
    target = tmp_path / "missing" / "out.pb"
    assert convert(source, target, code=2).err == f"{target}: No such file or directory\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pb"]


def test_a_rank_of_endless_digits_is_no_rank(tmp_path, convert):
    trace = json.loads((KINETO / "gpu_ddp.json").read_bytes())
    odd, out = tmp_path / "odd.json", tmp_path / "out.json"
    odd.write_text(
        json.dumps(trace | {"distributedInfo": {"rank": "9" * 5000, "world_size": "9" * 5000}})
    )
    convert(odd, out, "--to", "kineto")
    information = json.loads(out.read_bytes())["distributedInfo"]
    assert (information["rank"], information["world_size"]) == (0, 1)


@pytest.fixture
def job(tmp_path):
    return gpu_job.write_job(tmp_path / "job")


def names_in(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*.json*"))


@pytest.mark.parametrize(("options", "suffix"), [([], ""), (["--gzip"], ".gz")])
def test_a_run_becomes_a_directory_of_kinetos_files(job, options, suffix, tmp_path, convert):
    out = tmp_path / "a" / "out"
    said = convert(job, out, "--to", "kineto", *options)
    paths = [out / f"rank{rank}.pt.trace.json{suffix}" for rank in (0, 1)]
    assert names_in(out) == [path.name for path in paths]
    for rank, path in enumerate(paths):
        trace = read(path)
        assert (trace.extra_info["rank"], trace.extra_info["world_size"]) == (str(rank), "2")
        assert trace.events["step"].drop_nulls().unique().sort().to_list() == [5, 6]
    assert said.out == ""
    size = sum(path.stat().st_size for path in paths)
    assert said.err.splitlines()[-1] == f"{out}: ranks 0-1, 100 events, {size} bytes"
    assert f"{paths[1]}: the format cannot hold 2 values of memsets" in said.err


def test_ranks_and_steps_are_selected(job, tmp_path, convert):
    convert(job, tmp_path / "o", "--to", "kineto", "--rank", "1", "--steps", "6")
    assert names_in(tmp_path / "o") == ["rank1.pt.trace.json"]
    trace = read(tmp_path / "o" / "rank1.pt.trace.json")
    assert trace.events["step"].drop_nulls().unique().to_list() == [6]
    assert trace.events.height == 25


def test_one_rank_can_be_one_file(job, tmp_path, convert):
    convert(job, tmp_path / "a.json.gz", "--to", "kineto", "--rank", "1")
    assert read(tmp_path / "a.json.gz").extra_info["rank"] == "1"
    assert convert(job, tmp_path / "b.json", "--to", "kineto", code=2).err.splitlines()[-1] == (
        f"{tmp_path}/b.json: one file cannot hold ranks 0-1, window 0; name a directory"
    )
    assert not (tmp_path / "b.json").exists()
    convert(KINETO / "cpu_ddp_rank1.json.gz", tmp_path / "c.json", "--to", "kineto")
    assert read(tmp_path / "c.json").extra_info["rank"] == "1"


def test_each_window_has_a_directory_of_its_own(job, tmp_path, convert):
    (first,) = job.glob("rank_00000*")
    (job / first.name.replace("_000.", "_001.")).write_bytes(first.read_bytes())
    convert(job, tmp_path / "o", "--to", "kineto")
    assert names_in(tmp_path / "o") == [
        "window_0/rank0.pt.trace.json",
        "window_0/rank1.pt.trace.json",
        "window_1/rank0.pt.trace.json",
    ]
    convert(job, tmp_path / "p", "--to", "kineto", "--window", "1")
    assert names_in(tmp_path / "p") == ["rank0.pt.trace.json"]


def test_files_of_kineto_are_not_overwritten(job, tmp_path, convert):
    out = tmp_path / "out"
    out.mkdir()
    for name in ("rank1.pt.trace.json", "rank2.pt.trace.json"):
        (out / name).write_text("mine")
    err = convert(job, out, "--to", "kineto", code=2).err
    assert err == f"{out}/rank1.pt.trace.json: exists; --force replaces it\n"
    assert names_in(out) == ["rank1.pt.trace.json", "rank2.pt.trace.json"]
    err = convert(job, out, "--to", "kineto", "--force").err
    assert read(out / "rank1.pt.trace.json").events.height == 50
    assert (out / "rank2.pt.trace.json").read_text() == "mine"
    assert err.splitlines()[0] == (
        f"{out}: also has rank2.pt.trace.json; HTA takes all traces in a directory for ranks of "
        "one job"
    )


def test_an_out_that_is_no_directory_is_reported(job, tmp_path, convert):
    (tmp_path / "out").write_text("mine")
    err = convert(job, tmp_path / "out", "--to", "kineto", code=2).err
    assert err == f"{tmp_path}/out: File exists\n"
    err = convert(job, tmp_path / "no" / "a.json", "--to", "kineto", "--rank", "0", code=2).err
    assert err == f"{tmp_path}/no/a.json: {tmp_path}/no is not a directory\n"


def test_an_unreadable_rank_is_left_out(job, tmp_path, convert):
    (broken,) = job.glob("rank_00000*")
    broken.write_bytes(b"\x00" * 64)
    err = convert(job, tmp_path / "o", "--to", "kineto").err
    assert names_in(tmp_path / "o") == ["rank1.pt.trace.json"]
    assert f"{broken}: begins with zeros" in err
    for path in job.iterdir():
        path.write_bytes(b"\x00" * 64)
    convert(job, tmp_path / "p", "--to", "kineto", code=3)


def test_several_processes_write_what_one_does(job, tmp_path, convert):
    (broken,) = job.glob("rank_00000*")
    whole = broken.read_bytes()
    for workers in ("1", "2"):
        broken.write_bytes(whole)
        out = tmp_path / workers
        convert(job, out, "--to", "kineto", "--workers", workers)
        broken.write_bytes(b"\x00" * 64)
        part = tmp_path / f"part_{workers}"
        err = convert(job, part, "--to", "kineto", "--workers", workers).err
        assert err.count(f"{broken}: begins with zeros") == 1
    assert names_in(tmp_path / "1") == names_in(tmp_path / "2")
    for name in names_in(tmp_path / "1"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
    assert names_in(tmp_path / "part_1") == names_in(tmp_path / "part_2") == ["rank1.pt.trace.json"]
    broken.write_bytes(whole)
    with ThreadPoolExecutor(2) as pool:
        tasks = []
        executor = SimpleNamespace(submit=lambda *task: tasks.append(task) or pool.submit(*task))
        files = ppprof.write_kineto(ppprof.open(job), tmp_path / "3", executor=executor)
    assert (len(tasks), files.ranks) == (2, [0, 1])
    unwritable = tmp_path / "file"
    unwritable.write_text("mine")
    err = convert(job, unwritable, "--to", "kineto", "--workers", "2", code=2).err
    assert err.splitlines()[-1] == f"{unwritable}: File exists"


TORCHS = {
    "ph": "X",
    "cat": "cpu_op",
    "name": "aten::mm",
    "pid": 1,
    "tid": 1,
    "ts": 1,
    "dur": 5,
    "args": {},
}


@pytest.mark.parametrize("to", ["paddle", "kineto"])
@pytest.mark.parametrize(
    ("events", "message"),
    [
        (
            [{**TORCHS, "pid": None}, {**TORCHS, "ts": "y"}],
            "no event of it can be used: skipped 2 host events without time, process or thread",
        ),
        ([], "the file has no events"),
        ([{"ph": "M", "name": "process_name", "pid": 1, "args": {}}], "the file has no events"),
    ],
)
def test_a_file_without_a_usable_event_is_an_error(to, events, message, tmp_path, convert):
    source, target = tmp_path / "a.json", tmp_path / "out.json"
    devices = [{"id": 0, "name": "NVIDIA A100"}]
    source.write_text(
        json.dumps({"schemaVersion": 1, "deviceProperties": devices, "traceEvents": events})
    )
    said = convert(source, target, "--to", to, code=3).err
    assert said.splitlines()[-1].startswith(f"{source}: {message}")
    assert "device events" not in said
    assert not target.exists()


def test_a_rank_without_events_is_left_out(job, tmp_path, convert):
    (empty,) = job.glob("rank_00000*")
    empty.write_text('{"schemaVersion": 1, "traceEvents": []}')
    err = convert(job, tmp_path / "o", "--to", "kineto").err
    assert names_in(tmp_path / "o") == ["rank1.pt.trace.json"]
    assert f"{empty}: the file has no events" in err


def test_steps_that_do_not_exist_are_reported(job, tmp_path, convert):
    err = convert(job, tmp_path / "o", "--to", "kineto", "--steps", "9", code=2).err
    assert err == f"{job}: no step of 9:10; it has steps 5-6\n"
    assert not (tmp_path / "o").exists()


def test_options_of_other_formats_are_rejected(source, tmp_path, capsys, convert):
    with pytest.raises(SystemExit) as end:
        convert(source, tmp_path / "o", "--to", "chakra")
    assert end.value.code == 2
    assert "invalid choice: 'chakra'" in capsys.readouterr().err
    err = convert(
        source, tmp_path / "o.json", "--rank", "0", "--gzip", "--workers", "2", code=2
    ).err
    assert err.splitlines() == [
        "--rank: has no effect without --to kineto",
        "--gzip: has no effect without --to kineto",
        "--workers: has no effect without --to kineto",
    ]
    assert convert(source, tmp_path / "o.json", "--to", "kineto", "--gzip", code=2).err == (
        "--gzip: has no effect on a file: the name OUT says whether it is compressed\n"
    )


def test_times_are_on_the_clock_of_rank_0(tmp_path, convert):
    from ppprof.rundir.clocks import read_clocks

    run = FIXTURES / "runs" / "eight_ranks"
    convert(run, tmp_path, "--to", "kineto", "--rank", "0,5")
    clocks = read_clocks(run)
    for rank in (0, 5):
        (recorded,) = run.glob(f"rank_0000{rank}*")
        starts = read(recorded).events["start_ns"].to_numpy()
        if rank in clocks:
            starts = clocks[rank].to_reference(starts)
        written = read(tmp_path / f"rank{rank}.pt.trace.json").events
        assert written["start_ns"].min() == starts.min()
    assert 5 in clocks
