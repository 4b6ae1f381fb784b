"""Kineto's JSON: what is written for each kind of event, and what reading it returns."""

from __future__ import annotations

import dataclasses
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from polars.testing import assert_frame_equal

from ppprof.trace import read, write_kineto_file
from ppprof.trace.schema import FRAMES, conform
from tests.fixtures import gpu_job, gpu_traces
from tests.fixtures.random_traces import traces
from tests.fixtures.same_traces import assert_same
from tests.fixtures.timeline import (
    EPOCH_NS,
    PROCESS_ID,
    Thread,
    alloc,
    reserve,
    span,
    write,
)

KINETO = Path(__file__).parents[2] / "fixtures/kineto"
BASE_NS = (
    1_790_857_026_000_000_000  # as in cpu_ddp_rank1.json.gz, which torch wrote in that quarter
)


def strict(path: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def written(tmp_path: Path, *threads: Thread, rank: int = 0) -> list[dict[str, Any]]:
    """Write threads as Kineto's JSON; return its events without metadata."""
    path = tmp_path / "out.json"
    write_kineto_file(read(write(tmp_path / "a.pb", *threads)), path, rank, 2)
    return [event for event in strict(path)["traceEvents"] if event["ph"] in "Xsfi"][:-1]


def of_kind(events: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [event for event in events if event["cat"] in kinds]


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
@pytest.mark.parametrize("name", ["cpu_ddp_rank1.json.gz", "gpu_ddp.json", "cpu_small_net.json.gz"])
def test_what_torch_wrote_is_the_same_after_writing_and_reading(name, suffix, tmp_path) -> None:
    trace, target = read(KINETO / name), tmp_path / f"out{suffix}"
    place = {"rank": "0", "world_size": "1", **trace.extra_info}
    omitted = write_kineto_file(trace, target, int(place["rank"]), int(place["world_size"]))
    assert omitted == trace.unheld("gpu_user_annotation", num_frames=trace.frames.height)
    assert (target.read_bytes()[:2] == b"\x1f\x8b") == (suffix == ".json.gz")
    assert_same(read(target), dataclasses.replace(trace, extra_info=place), but=("notes",))


def test_inputs_modules_and_links_are_written_as_torch_wrote_them(tmp_path) -> None:
    source, target = KINETO / "cpu_ddp_rank1.json.gz", tmp_path / "out.json"
    write_kineto_file(read(source), target, 1, 2)
    theirs = json.loads(gzip.decompress(source.read_bytes()))
    ours = strict(target)
    assert ours["baseTimeNanoseconds"] == theirs["baseTimeNanoseconds"]
    keys = ("rank", "world_size", "backend")
    for key in keys:
        assert ours["distributedInfo"][key] == theirs["distributedInfo"][key]
    by_place = {
        (event["name"], event["tid"], event["ts"]): event
        for event in theirs["traceEvents"]
        if event["ph"] == "X" and event["cat"] in ("cpu_op", "python_function")
    }
    num_shapes = 0
    for event in ours["traceEvents"]:
        if "Input Dims" not in event.get("args", {}):
            continue
        expected = by_place[(event["name"], event["tid"], event["ts"])]["args"]
        for number, dims in enumerate(event["args"]["Input Dims"]):
            assert dims == expected["Input Dims"][number]
            kind = event["args"]["Input type"][number]
            assert kind in ("", "Scalar") or kind == expected["Input type"][number]
            num_shapes += dims != []
        for value, recorded in zip(event["args"]["Concrete Inputs"], expected["Concrete Inputs"]):
            assert value == recorded or float(value) == float(recorded)
    assert num_shapes > 300


def test_hosts_launches_and_devices(tmp_path) -> None:
    events = written(tmp_path, gpu_job.thread())
    origin_us = (EPOCH_NS - BASE_NS) / 1000
    assert [
        (event["cat"], event["name"], round(event["ts"] - origin_us), event["dur"])
        for event in of_kind(events, "user_annotation", "python_function", "cpu_op")[:10]
    ] == [
        ("user_annotation", "ProfilerStep#5", 0, 1000),
        ("python_function", "nn.Module: GPT_0", 10, 190),
        ("python_function", "nn.Module: Linear_0", 20, 80),
        ("cpu_op", "matmul dygraph", 30, 60),
        ("python_function", "nn.Module: Linear_1", 110, 80),
        ("cpu_op", "matmul dygraph", 120, 60),
        ("user_annotation", "Gradient Backward", 210, 290),
        ("cpu_op", "Global_MatmulGradNode", 220, 80),
        ("cpu_op", "c10d::all_reduce", 310, 40),
        ("user_annotation", "Optimizer.step#Optimization Step", 510, 190),
    ]
    matmul, other = of_kind(events, "cpu_op")[:2]
    assert matmul["args"] == {
        **{"Ev Idx": 3, "External id": 4},
        "Input Dims": [[4, 8], [8, 16]],
        "Input type": ["float", "float"],
        "Concrete Inputs": ["", ""],
    }
    modules = of_kind(events, "python_function")
    keys = ("Python id", "Python parent id", "Python module id")
    assert [tuple(module["args"].get(key) for key in keys) for module in modules[:3]] == [
        (2, None, 0),
        (3, 2, 0),
        (5, 2, 1),
    ]
    assert modules[3]["name"] == "nn.Module: GPT_0"  # counted anew in each outermost module
    first = of_kind(events, "cuda_runtime")[0]
    gemm = of_kind(events, "kernel")[0]
    correlation = gemm["args"]["correlation"]
    assert first["args"] == {"correlation": correlation, "External id": 4}
    assert (first["pid"], first["tid"]) == (PROCESS_ID, 100)
    assert {key: gemm[key] for key in ("name", "pid", "tid", "dur")} == {
        **{"name": "gemm", "pid": 0, "tid": 7, "dur": 200},
    }
    assert gemm["args"] == {
        **{"device": 0, "stream": 7, "External id": 4, "context": 1},
        "correlation": correlation,
        **{"registers per thread": 40, "shared memory": 3072},
        **{"blocks per SM": 0.75, "warps per SM": 6.25, "grid": [80, 1, 1], "block": [256, 1, 1]},
        "est. achieved occupancy %": 50.0,
    }
    assert other["args"]["External id"] == of_kind(events, "kernel")[1]["args"]["External id"] == 6


def test_copies_have_torchs_names_and_their_bandwidth(tmp_path) -> None:
    events = written(tmp_path, gpu_job.thread())
    copied, zeroed = (of_kind(events, kind)[0] for kind in ("gpu_memcpy", "gpu_memset"))
    assert (copied["name"], zeroed["name"]) == ("Memcpy DtoH", "Memset")
    assert copied["args"]["bytes"] == 1 << 20
    assert copied["args"]["memory bandwidth (GB/s)"] == round((1 << 20) / 50_000, 3)


def test_a_kernel_has_the_args_of_the_collective_around_its_launch(tmp_path) -> None:
    events = written(tmp_path, gpu_job.thread())
    span_args = next(event["args"] for event in events if event["name"] == "c10d::all_reduce")
    (kernel_args, _) = [event["args"] for event in events if event["name"] == gpu_job.NCCL]
    expected = {
        **{"Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024},
        **{"Group size": 2, "dtype": "Float", "Process Group Name": "3"},
        **{"Process Group Description": "dp", "Process Group Ranks": "[0, 1]"},
    }
    for args in (span_args, kernel_args):
        assert {key: args[key] for key in expected} == expected
    assert "Collective name" not in of_kind(events, "kernel")[0]["args"]


def test_arrows_join_launches_with_what_they_launched(tmp_path) -> None:
    events = written(tmp_path, gpu_job.thread())
    arrows = of_kind(events, "ac2g")
    begins, ends = ([event for event in arrows if event["ph"] == ph] for ph in "sf")
    launches = {event["args"]["correlation"]: event for event in of_kind(events, "cuda_runtime")}
    devices = of_kind(events, "kernel", "gpu_memcpy", "gpu_memset")
    assert len(begins) == len(ends) == len(devices) == 14
    assert [(a["id"], a["pid"], a["tid"], a["ts"]) for a in begins] == [
        (number, event["pid"], event["tid"], event["ts"]) for number, event in launches.items()
    ]
    assert [(a["id"], a["pid"], a["tid"], a["ts"], a["bp"]) for a in ends] == [
        (d["args"]["correlation"], d["pid"], d["tid"], d["ts"], "e") for d in devices
    ]


def test_an_annotation_on_the_device_covers_what_it_launched_on_a_stream(tmp_path) -> None:
    events = written(tmp_path, gpu_job.thread())
    origin_us = (EPOCH_NS - BASE_NS) / 1000
    found = of_kind(events, "gpu_user_annotation")
    assert [
        (event["name"], event["tid"], round(event["ts"] - origin_us), event["dur"])
        for event in found[:4]
    ] == [
        ("ProfilerStep#5", 7, 100, 350),
        ("Gradient Backward", 7, 450, 200),
        ("Gradient Backward", 20, 600, 200),
        ("Optimizer.step#Optimization Step", 7, 810, 150),
    ]


def test_memory(tmp_path) -> None:
    changes = (alloc(5, 512), reserve(6, 1 << 20), alloc(7, 8, "Place(cpu)"))
    thread = Thread(1, "main").around(*changes)
    trace = read(write(tmp_path / "a.pb", thread))
    path = tmp_path / "out.json"
    assert write_kineto_file(trace, path, 0, 1) == {"reserved memory events": 1}
    content = strict(path)
    assert content["profile_memory"] == 1
    memory = [event for event in content["traceEvents"] if event["name"] == "[memory]"]
    assert [event["args"] for event in memory] == [
        {
            **{"Bytes": 512, "Total Allocated": 512, "Total Reserved": 0},
            **{"Device Id": 0, "Device Type": 1, "Addr": 0x7F00_0000_0000},
        },
        {
            **{"Bytes": 8, "Total Allocated": 8, "Total Reserved": 0},
            **{"Device Id": -1, "Device Type": 0, "Addr": 0x7F00_0000_0000},
        },
    ]
    assert {(event["ph"], event["cat"], event["s"]) for event in memory} == {
        ("i", "cpu_instant_event", "t")
    }


def test_spans_of_pipelines_transfers_and_waits(tmp_path) -> None:
    names = [
        ("Forward", "DistributedDataParallel.forward"),
        ("Forward", "forward[stage=0 micro_batch=3 phase=warm-up]"),
        ("Backward", "backward[stage=1 chunk=1 micro_batch=3 phase=steady]"),
        ("Communication", "isend[axis=pp group=5 bytes=8 dtype=float32 peers=1]"),
        ("Communication", "recv[axis=pp group=5 bytes=8 dtype=bfloat16 peers=1]"),
        ("Communication", "wait[op=isend axis=pp group=5 bytes=8 dtype=float32 peers=1]"),
        (
            "Communication",
            "batch_isend_irecv[axis=pp group=5 bytes=12 dtype=float32 peers=>1:8,<3:4]",
        ),
    ]
    spans = [span(*name, 10 * number, 10 * number + 5) for number, name in enumerate(names)]
    events = written(tmp_path, Thread(1, "main").around(*spans))
    assert [(event["cat"], event["name"]) for event in events] == [
        ("user_annotation", "DistributedDataParallel.forward"),
        ("user_annotation", "forward"),
        ("user_annotation", "backward"),
        ("cpu_op", "c10d::isend"),
        ("cpu_op", "c10d::recv"),
        ("user_annotation", "isend.wait"),
        ("cpu_op", "c10d::batch_isend_irecv"),
    ]
    args = [event["args"] for event in events[1:]]
    assert (args[0]["stage"], args[0]["micro_batch"], args[0]["phase"]) == (0, 3, "warm-up")
    assert (args[1]["stage"], args[1]["chunk"]) == (1, 1)
    group = {"Process Group Name": "5", "Process Group Ranks": "[0, 1, 3]", "Group size": 3}
    for number, key, scalar, elements in (
        (2, "Dst Rank", "Float", 2),
        (3, "Src Rank", "BFloat16", 4),
    ):
        expected = {key: 1, "dtype": scalar, "In msg nelems": elements, **group}
        assert {name: args[number][name] for name in expected} == expected
    assert "Collective name" not in args[4]
    assert args[5]["Transfers"] == ">1:8,<3:4"
    assert args[5]["In msg nelems"] == 3


def test_distributed_info_is_where_hta_looks_for_it(tmp_path) -> None:
    path = tmp_path / "out.json"
    write_kineto_file(read(write(tmp_path / "a.pb", gpu_job.thread())), path, 3, 8, "node-a")
    content = strict(path)
    assert content["distributedInfo"] == {
        **{"rank": 3, "world_size": 8, "pg_count": 1},
        "pg_config": [{"pg_name": "3", "pg_size": 2, "ranks": [0, 1]}],
    }
    assert content["host_name"] == "node-a"
    assert content["deviceProperties"][0]["numSms"] == 132
    # HTA searches lines for this pattern, with white space (create_rank_to_trace_dict).
    assert '"rank": 3' in path.read_text(encoding="utf-8").splitlines()[0]


def test_links_to_gradients_are_sequence_numbers_and_arrows(tmp_path) -> None:
    trace = read(write(tmp_path / "a.pb", gpu_job.thread()))
    rows = trace.events.with_row_index().filter(pl.col("device").is_null())
    (matmul, *_), (node, *_) = (
        rows.filter(pl.col("name") == name)["index"].to_list()
        for name in ("matmul dygraph", "Global_MatmulGradNode")
    )
    linked = trace.events.with_columns(trace.events["forward"].scatter(node, matmul))
    path = tmp_path / "out.json"
    assert "links from gradients to forward events" not in write_kineto_file(
        dataclasses.replace(trace, events=linked), path, 0, 1
    )
    events = strict(path)["traceEvents"]
    forward, backward = (
        next(event for event in events if event["name"] == name)
        for name in ("matmul dygraph", "Global_MatmulGradNode")
    )
    keys = ("Sequence number", "Fwd thread id")
    assert [forward["args"][key] for key in keys] == [matmul, 0]
    assert [backward["args"][key] for key in keys] == [matmul, 1]
    arrows = [event for event in events if event.get("cat") == "fwdbwd"]
    assert [(arrow["ph"], arrow["id"], arrow["ts"]) for arrow in arrows] == [
        ("s", matmul, forward["ts"]),
        ("f", matmul, backward["ts"]),
    ]
    assert read(path).events["forward"].drop_nulls().to_list() == [matmul]


def test_frames_of_python_are_written(tmp_path) -> None:
    trace = read(write(tmp_path / "a.pb", gpu_job.thread()))
    frame = {
        "name": ["train.py(31): step"],
        "thread": [100],
        "start_ns": [EPOCH_NS],
        "dur_ns": [900_000],
    }
    frames = conform(pl.DataFrame(frame), FRAMES)
    write_kineto_file(dataclasses.replace(trace, frames=frames), tmp_path / "out.json", 0, 1)
    assert_frame_equal(read(tmp_path / "out.json").frames, frames, categorical_as_str=True)


def test_hostile_names_are_strict_json(tmp_path) -> None:
    events = written(tmp_path, *gpu_traces.odd_names())
    names = [event["name"] for event in events]
    assert any('"' in name for name in names)
    assert not any("\n" in name for name in names)
    unknown = read(tmp_path / "a.pb")
    category = pl.when(pl.col("category") == "Kernel").then(pl.lit('hpu"op')).otherwise("category")
    odd = unknown.events.with_columns(
        category=category.cast(pl.Categorical),
        axis=pl.lit('d"p').cast(pl.Categorical),
        peers=pl.lit('0,1"'),
        dtype=pl.lit('flo"at').cast(pl.Categorical),
        shapes=pl.lit('{"X"').cast(pl.Categorical),
    )
    path = tmp_path / "odd.json"
    write_kineto_file(dataclasses.replace(unknown, events=odd), path, 0, 1)
    kinds = {event.get("cat") for event in strict(path)["traceEvents"]}
    assert ('hpu"op' in kinds) == ("Kernel" in unknown.events["category"].cast(pl.String))


def test_nothing_is_a_file_too(tmp_path) -> None:
    assert written(tmp_path, *gpu_traces.nothing()) == []


@given(threads=traces(newer_types=True))
def test_any_trace_is_strict_json_with_all_events(threads) -> None:
    with tempfile.TemporaryDirectory() as directory:
        events = written(Path(directory), *threads)
        trace = read(Path(directory) / "a.pb")
    spans = [
        event for event in events if event["ph"] == "X" and event["cat"] != "gpu_user_annotation"
    ]
    assert len(spans) == trace.events.height
    durations = sorted(round(event["dur"] * 1000) for event in spans)
    assert durations == trace.events["dur_ns"].sort().to_list()
    memory = trace.memory.filter(~pl.col("kind").cast(pl.String).str.starts_with("Reserved"))
    assert sum(event["name"] == "[memory]" for event in events) == memory.height


@given(threads=traces(ties=False))
def test_what_was_read_back_once_does_not_change_again(threads) -> None:
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        written(folder, *threads)
        once = read(folder / "out.json")
        write_kineto_file(once, folder / "again.json", 0, 2)
        again = read(folder / "again.json")
    assert_same(again, once, but=("notes",))
