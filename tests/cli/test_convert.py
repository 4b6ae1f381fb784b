from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from ppprof.cli import main
from ppprof.trace import Trace, read
from tests.fixtures import gpu_traces
from tests.fixtures.tiers import one_in
from tests.fixtures.timeline import write

KINETO = Path(__file__).parent.parent / "fixtures" / "kineto"


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "a.pb", *gpu_traces.training())


def convert(*arguments: object) -> int:
    return main(["convert", *map(str, arguments)])


def assert_same(one: Trace, other: Trace) -> None:
    for field in dataclasses.fields(Trace):
        values = getattr(one, field.name), getattr(other, field.name)
        if isinstance(values[0], pl.DataFrame):
            assert_frame_equal(*values, categorical_as_str=True)
        elif field.name != "ignored":  # each format has other objects that no table needs
            assert values[0] == values[1], field.name


@pytest.mark.parametrize(
    ("through", "suffix"), one_in(3, itertools.product([".json", ".json.gz", ".pb"], repeat=2))
)
def test_from_any_format_to_any(source, through, suffix, tmp_path, capsys):
    between, target = tmp_path / f"between{through}", tmp_path / f"out{suffix}"
    assert convert(source, between) == 0
    assert convert(between, target) == 0
    assert_same(read(target), read(source))
    assert (gzip.decompress(target.read_bytes())[:1] == b"{") if suffix == ".json.gz" else True
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1] == f"{target}: 262 events, {target.stat().st_size} bytes"


def test_a_broken_file_is_mended(source, tmp_path, capsys):
    whole, cut, mended = (tmp_path / f"{name}.json" for name in ("whole", "cut", "mended"))
    convert(source, whole)
    text = whole.read_text(encoding="utf-8")
    cut.write_text(text[: text.index('"ProfileStep#7') + 40], encoding="utf-8")
    with pytest.raises(json.JSONDecodeError):
        json.loads(cut.read_text(encoding="utf-8"))
    capsys.readouterr()
    assert convert(cut, mended) == 0
    content = json.loads(mended.read_text(encoding="utf-8"))
    steps = [e["name"] for e in content["traceEvents"] if e.get("cat") == "ProfileStep"]
    assert [step.partition("[")[0] for step in steps] == ["ProfileStep#5", "ProfileStep#6"]
    assert f"{cut}: partly read: the file is truncated" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".json", ".pb"])
@pytest.mark.parametrize(
    ("name", "num_untold"), [("cpu_ddp_rank1.json.gz", 0), ("gpu_ddp.json", 2)]
)
def test_what_torch_wrote_becomes_paddles(name, num_untold, suffix, tmp_path, capsys):
    target = tmp_path / f"out{suffix}"
    assert convert(KINETO / name, target) == 0
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
        messages = messages.with_columns(forward=pl.lit(None, pl.Int64), attributes=nothing)
    assert_frame_equal(found.events, messages, categorical_as_str=True)
    assert exact.events.filter(on_device)["group"].count() == num_untold
    said = capsys.readouterr().err
    omitted = f"{num_untold} event annotations"
    assert (omitted in said) == (num_untold > 0)
    assert (f"{num_gradients} links from gradients to forward events" in said) == (suffix == ".pb")
    is_lost = suffix == ".pb" and num_attributes > 0
    assert (f"{num_attributes} operators' attributes" in said) == is_lost


def test_device_events_without_a_launch_are_reported(tmp_path, capsys):
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


def test_what_is_there_is_not_overwritten(source, tmp_path, capsys):
    target = tmp_path / "out.json"
    target.write_text("mine")
    assert convert(source, target) == 2
    assert target.read_text() == "mine"
    assert capsys.readouterr().err == f"{target}: exists; --force replaces it\n"
    assert convert(source, target, "--force") == 0
    assert read(target).events.height == 262


def test_a_file_is_not_written_over_itself(source, capsys):
    assert convert(source, source, "--force") == 2
    assert "IN and OUT are one file" in capsys.readouterr().err


def test_an_unknown_format_is_refused_before_anything_is_read(tmp_path, capsys):
    assert convert(tmp_path / "missing.pb", tmp_path / "out.txt") == 2
    assert capsys.readouterr().err == (
        f"{tmp_path}/out.txt: expected a name that ends in one of .json, .json.gz, .pb\n"
    )


def test_a_missing_file_is_reported(tmp_path, capsys):
    assert convert(tmp_path / "missing.pb", tmp_path / "out.pb") == 3
    assert capsys.readouterr().err == f"{tmp_path}/missing.pb: No such file or directory\n"


def test_a_missing_directory_is_reported(source, tmp_path, capsys):
    target = tmp_path / "missing" / "out.pb"
    assert convert(source, target) == 2
    assert capsys.readouterr().err == f"{target}: No such file or directory\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pb"]
