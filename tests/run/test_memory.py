"""Who holds the memory of a window, against the recording read by hand, and what would give some back."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import ppprof
from ppprof.analysis.predict.peak_memory import memory_of as memory_of_layout
from ppprof.analysis.predict.training_spec import TrainingSpec
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.summaries.held_memory import HELD, HeldMemory, held_at_peak
from ppprof.errors import InputError, UsageError
from ppprof.run.memory import memory_of, remedies
from ppprof.rundir import claim
from ppprof.rundir.out_of_memory import (
    HeldContainer,
    HeldTensor,
    OutOfMemory,
    write_out_of_memory,
)
from ppprof.topology import Topology
from tests.conftest import Cli
from tests.fixtures.findings import US, op, thread
from tests.fixtures.run_directories import make_run, trace_name
from tests.fixtures.run_directories import run as run_of_traces
from tests.fixtures.timeline import Memory, Shapes, Span, Thread, reserve, span, write
from tests.jobs.launching import ROOT

MANIFEST = '{"schema_version": 2}'
RUNS = ROOT / "tests/fixtures/runs"

FAILURE = OutOfMemory(
    rank=0,
    step=7,
    error="MemoryError: (ResourceExhausted) Out of memory",
    requested_bytes=500,
    place="train.py:41 step",
    module="blocks.0 (Block)",
    device="gpu:0",
    allocated_bytes=10_000,
    reserved_bytes=10_600,
    total_bytes=12_000,
    bytes_by_kind={
        **{"parameter": 1_000, "gradient": 1_000, "optimizer state": 4_000},
        **{"buffer": 10, "local variable": 90},
    },
    largest=(HeldTensor("parameter", "Net.weight", (10, 25), "float32", 1_000),),
)


def alive_at_peak(path: Path) -> tuple[int, dict[int, int]]:
    """Return the peak of a recording, and the allocations that are alive at it, event by event."""
    with gzip.open(path, "rt") as file:
        events = [each for each in json.load(file)["traceEvents"] if each["name"] == "[memory]"]
    alive: dict[int, int] = {}
    peak, at_peak = -1, dict[int, int]()
    for event in sorted(events, key=lambda event: float(event["ts"])):
        args = event["args"]
        if event["cat"] == "Allocate":
            alive[int(args["addr"])] = args["increase_bytes"]
        elif event["cat"] == "Free":
            alive.pop(int(args["addr"]), None)
        if args["current_allocated"] > peak:
            peak, at_peak = args["current_allocated"], dict(alive)
    return peak, at_peak


def held(rows: list[dict[str, Any]]) -> HeldMemory:
    """Return the memory of a window with these rows."""
    full = [{**dict.fromkeys(HELD), "num": 1, "phase": "Forward", **row} for row in rows]
    return HeldMemory("Place(gpu:0)", 3, 10_000, 0, pl.DataFrame(full, HELD))


def test_what_is_alive_at_the_peak_adds_up_to_the_allocators_figure() -> None:
    run = ppprof.open(RUNS / "small_net")
    (recording,) = run.recordings
    memory = held_at_peak(Profile(run.reader.trace(recording)[1]))
    assert memory is not None
    peak, alive = alive_at_peak(recording.files[0])
    assert memory.allocated_bytes == peak
    assert memory.table["bytes"].sum() == sum(alive.values())
    assert memory.table["num"].sum() == len(alive)
    assert memory.before_bytes == peak - sum(alive.values())


def test_activations_have_their_module_and_operator() -> None:
    run = ppprof.open(RUNS / "small_net")
    memory = held_at_peak(Profile(run.reader.trace(run.recordings[0])[1]))
    assert memory is not None
    rows = {tuple(row[:3]): row[4:] for row in memory.table.iter_rows()}
    assert rows["Forward", "Net/Block[2]", "gelu"] == (1, 64 * 128 * 4)
    assert rows["Forward", "Net/Embedding", "embedding"] == (1, 64 * 32 * 4)


def test_rows_of_one_line_are_added_up() -> None:
    rows: list[dict[str, Any]] = [
        {"module": "Net/Block", "line": "train.py:58, evaluate()", "bytes": 100},
        {"module": "Net/Head", "line": "train.py:9, main()", "bytes": 120},
        {"module": "Net/Block[1]", "line": "train.py:58, evaluate()", "num": 3, "bytes": 90},
        {"bytes": 999},
    ]
    assert held(rows).lines.rows() == [
        ("train.py:58, evaluate()", 4, 190),
        ("train.py:9, main()", 1, 120),
    ]


def test_the_command_adds_up_lines_ahead_of_modules(tmp_path: Path, cli: Cli) -> None:
    """Two operators in line 9 and one in each of six other lines allocate so many KiB."""
    sizes = [(9, 300), (9, 300), (1, 400), (2, 50), (3, 40), (4, 30), (5, 20), (6, 10)]

    def make(begin: int) -> Iterator[Span]:
        for number, (line, size) in enumerate(sizes):
            shape = Shapes({}, callstack=f'File "train.py", line {line}, in main')
            kept = Memory("Allocate", begin + number * US, size << 10, addr=number << 20)
            yield op(begin, number, number + 1, f"op{number} dygraph", shape, kept)

    path = run_of_traces(tmp_path / "log", [thread(make, num=1)])
    out, _ = cli("memory", path)
    lines = out[out.index("By line:") : out.index("By module and operator:")].split("\n")[1:-2]
    assert [line.split(maxsplit=2)[2] for line in lines[:-1]] == [
        *("2 x train.py:9, main()", "1 x train.py:1, main()", "1 x train.py:2, main()"),
        *("1 x train.py:3, main()", "1 x train.py:4, main()"),
    ]
    assert lines[0].startswith("    600 KiB")
    assert lines[-1] == "     30 KiB  elsewhere"
    window = json.loads(cli("memory", path, "--format", "json").out)["window"]
    assert [each["bytes"] >> 10 for each in window["lines"]] == [600, 400, 50, 40, 30, 20, 10]


def test_sharding_gives_what_the_other_ranks_take() -> None:
    found = remedies(FAILURE, None, Topology.of(dp=4))
    assert [(each.name.partition(",")[0], each.bytes) for each in found] == [
        ("sharding stage 3", 4_500),  # three quarters of 6,000
        ("sharding stage 2", 3_750),
        ("sharding stage 1", 3_000),
        ("less fragmentation (FLAGS_use_virtual_memory_auto_growth)", 600),
    ]
    assert [each.bytes for each in remedies(FAILURE, None, Topology.of(dp=2, sharding=2))] == [600]
    assert [each.bytes for each in remedies(FAILURE, None, None)] == [600]


GPT = TrainingSpec(
    **{"dp": 2, "mp": 2, "pp": 2, "sharding": 1, "sharding_stage": 1, "virtual": 1},
    **{
        "micro_batch_size": 2,
        "micro_batches": 4,
        "layers": 4,
        "hidden": 64,
        "inner": 256,
        "heads": 4,
    },
    **{"vocabulary": 50_000, "positions": 1024, "length": 1024, "recompute": "", "word_bytes": 4},
    **{"sequence_parallel": False, "fused_qkv": True, "flash_attention": False, "clips": True},
    **{"hidden_dropout": True, "attention_dropout": True},
)
JOB = Topology.of(dp=2, pp=2, mp=2)


def test_without_measured_tensors_the_memory_model_says_what_changes_give() -> None:
    """Rank 0 is of stage 0, which has no product with the vocabulary; rank 3 of stage 1, whose peak that is."""
    sharding = "sharding_degree 2 in place of dp_degree 2"
    others = {
        "recompute of all blocks, Model.use_recompute=True": {"recompute": "full"},
        f"sharding stage 1, {sharding}": {"dp": 1, "sharding": 2},
        "half the micro-batch size, Global.micro_batch_size=1": {
            **{"micro_batch_size": 1, "micro_batches": 8}
        },
        "sequence parallel, Model.sequence_parallel=True": {"sequence_parallel": True},
    }
    for rank, stage in ((0, 0), (3, 1)):
        now = memory_of_layout(GPT, stage).total_bytes
        expected = {
            name: now - memory_of_layout(replace(GPT, **change), stage).total_bytes
            for name, change in others.items()
        }
        if stage:  # logits and softmax in float32
            expected["the loss in 4 parts of the tokens"] = (
                3 * (2 * 4 * 1024 * 2 * 50_000 // 2) // 4
            )
        found = {each.name: each.bytes for each in remedies(None, None, JOB, GPT, rank)}
        assert found == {name: num for name, num in expected.items() if num > 0}
        assert len(found) >= 4


def test_measured_tensors_count_more_than_the_memory_model() -> None:
    blocks = [{"module": f"Net/Block{number}", "bytes": 100} for number in ("", "[1]")]
    found = {each.name: each for each in remedies(FAILURE, held(blocks), JOB, GPT, rank=2)}
    assert found["recompute of Block"].bytes == 100
    assert found["half the micro-batch size, Global.micro_batch_size=1"].bytes == 100
    assert not any(name.startswith("recompute of all") for name in found)
    # Fleet's pipeline takes the first stage only, here for half of 4,000 bytes.
    assert [each.bytes for name, each in found.items() if "sharding" in name] == [2_000]
    assert "model" in found["sequence parallel, Model.sequence_parallel=True"].why


def test_what_cannot_be_changed_or_is_so_already_is_no_remedy() -> None:
    blocks = held([{"module": f"Net/Block{number}", "bytes": 100} for number in ("", "[1]")])
    spec = replace(GPT, micro_batch_size=1, recompute="full", sequence_parallel=True)
    names = {each.name.partition(",")[0] for each in remedies(FAILURE, blocks, JOB, spec, rank=2)}
    assert names <= {"sharding stage 1", "the loss in 4 parts of the tokens"} | {
        "less fragmentation (FLAGS_use_virtual_memory_auto_growth)"
    }
    (name,) = (
        each.name
        for each in remedies(None, None, JOB, replace(spec, recompute="core_attn"))
        if "recompute" in each.name
    )
    assert name == "recompute of whole blocks, Model.recompute_granularity=full"
    wide = replace(GPT, dp=8, pp=1, hidden=4096, inner=16_384)
    names = {each.name[:16] for each in remedies(None, None, Topology.of(dp=8, mp=2), wide)}
    assert {"sharding stage 1", "sharding stage 2"} <= names


@pytest.mark.parametrize(
    ("size", "says"), [(1, []), (3, []), (4, ["Global.micro_batch_size=2"]), ("?", ["above 1"])]
)
def test_a_micro_batch_of_one_sample_cannot_be_halved(size: Any, says: list[str], tmp_path: Path):
    """Also where the rest of the config is not that of a model that is known."""
    run = tmp_path / "log"
    shutil.copytree(RUNS / "small_net", run)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["config"] = {"Global": {"micro_batch_size": size}}
    (run / "manifest.json").write_text(json.dumps(manifest))
    names = [each.name for each in memory_of(ppprof.open(run)).remedies]
    halves = [name for name in names if name.startswith("half the micro-batch size")]
    assert len(halves) == len(says)
    assert all(text in name for text, name in zip(says, halves))


def test_the_window_of_another_rank_says_nothing_of_activations(tmp_path: Path) -> None:
    """Rank 0 has a window, and the memory of rank 5 ran out."""
    run = tmp_path / "log"
    shutil.copytree(RUNS / "small_net", run)
    alone = memory_of(ppprof.open(run))
    assert any("micro-batch" in each.name for each in alone.remedies)
    write_out_of_memory(run, replace(FAILURE, rank=5))
    memory = memory_of(ppprof.open(run))
    assert (memory.failed, memory.window and memory.window.rank) == (5, 0)
    assert not any("micro-batch" in each.name for each in memory.remedies)


def test_the_configuration_of_a_recorded_run_is_known(cli: Cli) -> None:
    out, _ = cli("memory", RUNS / "eight_ranks")
    assert "recompute of all blocks, Model.use_recompute=True: by the memory model" in out


def test_recompute_gives_all_but_one_of_the_modules() -> None:
    rows: list[dict[str, Any]] = [
        *({"module": f"Net/Block{number}", "bytes": 100} for number in ("", "[1]", "[2]")),
        {"module": "Net/Block[1]/Linear", "bytes": 30},
        {"module": "Net/Head", "bytes": 1_000},
        {"module": None, "phase": "Backward", "bytes": 9_999},
    ]
    found = {each.name: each.bytes for each in remedies(None, held(rows), None)}
    half = "half the micro-batch size, if it is above 1"
    assert found == {half: 665, "recompute of Block": 330 - 130}


def test_a_module_that_repeats_in_a_block_is_part_of_the_block() -> None:
    """Two blocks of two layers: the second layer of the first block is no block of its own."""
    sizes = {"Net/Block/Linear": 100, "Net/Block/Linear[1]": 200, "Net/Block[1]/Linear[1]": 250}
    found = remedies(None, held([{"module": m, "bytes": num} for m, num in sizes.items()]), None)
    assert [(each.name, each.bytes, each.why[:9]) for each in found] == [
        ("half the micro-batch size, if it is above 1", 275, "activatio"),
        ("recompute of Block", 250, "2 of it h"),
    ]


def test_the_command_says_who_held_it_and_what_is_not_known(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "manifest.json").write_text(MANIFEST)
    write_out_of_memory(tmp_path, FAILURE)
    out, _ = cli("memory", tmp_path)
    assert "rank 0 (gpu:0) ran out in step 7, in blocks.0 (Block), at train.py:41 step:" in out
    assert "40.0%  optimizer state" in out
    assert "39.0%  activations and others" in out
    assert "Activations are not known without a window" in out
    (document,) = json.loads(cli("memory", tmp_path, "--format", "json").out)["failures"]
    assert document["bytes_by_kind"] == dict(FAILURE.bytes_by_kind)


def test_the_command_names_the_containers_that_held_it(tmp_path: Path, cli: Cli) -> None:
    containers = (
        HeldContainer("LazyLogger.pending (list)", 9, 3_000, has_graphs=False),
        HeldContainer("losses, train.py (list)", 9, 36, has_graphs=True),
        HeldContainer("few, train.py (list)", 5, 20, has_graphs=False),
    )
    (tmp_path / "manifest.json").write_text(MANIFEST)
    write_out_of_memory(tmp_path, replace(FAILURE, containers=containers))
    out, _ = cli("memory", tmp_path)
    assert re.search(r"\b2.93 KiB +30.0%  in LazyLogger.pending \(list\)\n", out)
    assert re.search(
        r"\b36 B +0.4%  in losses, train.py \(list\); their graphs may keep more\n", out
    )
    assert "few" not in out
    (document,) = json.loads(cli("memory", tmp_path, "--format", "json").out)["failures"]
    assert [each["bytes"] for each in document["containers"]] == [3_000, 36, 20]


@pytest.mark.parametrize(
    "change", [{"name": 5}, {"bytes": -1}, {"has_graphs": None}, {"x": 1}], ids=str
)
def test_a_container_of_another_form_is_named(
    tmp_path: Path, cli: Cli, change: dict[str, Any]
) -> None:
    (tmp_path / "manifest.json").write_text(MANIFEST)
    containers = (HeldContainer("losses, train.py (list)", 9, 36, has_graphs=True),)
    write_out_of_memory(tmp_path, replace(FAILURE, containers=containers))
    file = tmp_path / "memory" / "00000.json"
    values = json.loads(file.read_text())
    values["containers"][0].update(change)
    file.write_text(json.dumps(values))
    assert f"{file}: damaged" in cli("memory", tmp_path, code=3).err


def test_after_a_restart_the_run_whose_memory_ran_out_can_be_asked_about(
    tmp_path: Path, cli: Cli
) -> None:
    log = tmp_path / "log"
    (claim(log) / "manifest.json").write_text(MANIFEST)
    write_out_of_memory(log, FAILURE)
    (log / "failed").mkdir()
    (log / "failed/00000.txt").write_text(FAILURE.error)
    later = claim(log)
    (later / "manifest.json").write_text(MANIFEST)
    write_out_of_memory(later, replace(FAILURE, step=900))
    out, err = cli("memory", log)
    assert "ran out in step 900" in out
    assert f": ppprof memory {log}/run_001" in err
    out, err = cli("memory", log / "run_001")
    assert "ran out in step 7" in out
    assert "ppprof memory" not in err


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"rank": -1}', "null", '{"rank": 1e99}'])
def test_a_damaged_file_is_named(tmp_path: Path, cli: Cli, text: str) -> None:
    (tmp_path / "manifest.json").write_text(MANIFEST)
    (tmp_path / "memory").mkdir()
    file = tmp_path / "memory" / "00000.json"
    file.write_text(text)
    _, err = cli("memory", tmp_path, code=3)
    assert f"{file}: damaged, or of another version of ppprof" in err
    assert "nothing is known about its memory" in err


@pytest.mark.parametrize(
    "tensor",
    [{"shape": 5}, {"shape": None}, {"shape": [[1]]}, {"kind": 5}, {"dtype": None}, {"name": []}],
    ids=str,
)
def test_a_tensor_of_another_form_is_named(
    tmp_path: Path, cli: Cli, tensor: dict[str, Any]
) -> None:
    (tmp_path / "manifest.json").write_text(MANIFEST)
    write_out_of_memory(tmp_path, FAILURE)
    file = tmp_path / "memory" / "00000.json"
    values = json.loads(file.read_text())
    values["largest"][0].update(tensor)
    file.write_text(json.dumps(values))
    assert f"{file}: damaged" in cli("memory", tmp_path, code=3).err


def test_a_file_of_another_rank_is_named(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "manifest.json").write_text(MANIFEST)
    write_out_of_memory(tmp_path, FAILURE)
    (tmp_path / "memory/00000.json").rename(tmp_path / "memory/00004.json")
    assert "00004.json: damaged" in cli("memory", tmp_path, code=3).err


def test_the_rank_that_is_asked_for_is_shown(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "manifest.json").write_text(MANIFEST)
    write_out_of_memory(tmp_path, FAILURE)
    write_out_of_memory(tmp_path, replace(FAILURE, rank=3, reserved_bytes=10_700))
    memory = memory_of(ppprof.open(tmp_path), rank=3)
    assert (memory.failed, [each.bytes for each in memory.remedies]) == (3, [700])
    out, _ = cli("memory", tmp_path, "--rank", "3")
    assert out.startswith("The memory of rank 3 (gpu:0) ran out")
    assert re.search(r"\b1,000 B +10.0%  gradient", out)
    assert "no trace in it" in cli("memory", tmp_path, "--rank", "2", code=3).err
    assert "no trace in it" in cli("memory", tmp_path, "--window", "0", code=3).err


@pytest.mark.parametrize(
    ("known", "shown"),
    [
        ({"host_peak_bytes": 1 << 20}, "of rank 0 so far, resident memory of its process, after"),
        (
            {"device_peak_bytes": 1 << 20, "device_peak_reserved_bytes": 1 << 20},
            "of rank 0 so far, after",  # of a device whose size is unknown
        ),
    ],
)
def test_step_times_alone_say_the_peak(
    known: dict[str, int], shown: str, tmp_path: Path, cli: Cli
) -> None:
    """The first step does not know it."""
    lines = [{"step": 0, "batch_cost_ns": 9}, {"step": 1, "batch_cost_ns": 9, **known}]
    out, _ = cli("memory", run_of_traces(tmp_path / "log", [], step_lines=[lines]))
    assert shown in out
    assert out.count("1 MiB") == 1


def test_the_peak_is_that_of_the_rank_that_is_asked_for(tmp_path: Path, cli: Cli) -> None:
    """Though the memory of another one ran out."""
    lines = [[{"step": 1, "batch_cost_ns": 9, "host_peak_bytes": gib << 30}] for gib in (1, 3)]
    path = run_of_traces(tmp_path / "log", [], topology=Topology.of(dp=2), step_lines=lines)
    write_out_of_memory(path, FAILURE)
    out, _ = cli("memory", path, "--rank", "1")
    assert out.startswith("Peak of rank 1 so far, resident memory")
    assert "3 GiB" in out


def test_of_unreadable_windows_an_earlier_one_says_the_peak(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_run(tmp_path / "log", {0: 2})
    peak = memory_of(ppprof.open(path)).window
    assert peak is not None
    assert peak.window == 1
    (path / trace_name(0, 1).raw).write_bytes(b"cut")
    opened = ppprof.open(path)
    earlier = memory_of(opened).window
    assert earlier is not None
    assert (earlier.window, earlier.held.allocated_bytes) == (0, peak.held.allocated_bytes)
    assert str(trace_name(0, 1).raw) in caplog.text
    with pytest.raises(InputError, match="not a trace"):
        memory_of(opened, 0, 1)


def test_of_windows_without_allocations_an_earlier_one_says_the_peak(tmp_path: Path) -> None:
    path = make_run(tmp_path / "log", {0: 2})
    last = path / trace_name(0, 1).raw
    write(last, Thread(1, "main", (span("ProfileStep", "ProfileStep#10", 0, 1_000_000),)))
    peak = memory_of(ppprof.open(path)).window
    assert peak is not None
    assert peak.window == 0
    with pytest.raises(InputError, match="nothing is known about its memory"):
        memory_of(ppprof.open(path), 0, 1)


def test_a_trace_of_reserved_memory_alone(tmp_path: Path, cli: Cli) -> None:
    """Memory is taken from the device, and no tensor is allocated."""
    spans = (span("ProfileStep", "ProfileStep#0", 0, 1_000_000, reserve(1, 1 << 30)),)
    path = run_of_traces(tmp_path / "log", [Thread(1, "main", spans)])
    assert "nothing is known about its memory" in cli("memory", path, code=3).err


def test_ranks_and_runs_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no rank 9"):
        memory_of(ppprof.open(RUNS / "small_net"), rank=9)
    (tmp_path / "manifest.json").write_text(MANIFEST)
    empty = ppprof.open(tmp_path)
    with pytest.raises(InputError, match="nothing is known about its memory"):
        memory_of(empty)
