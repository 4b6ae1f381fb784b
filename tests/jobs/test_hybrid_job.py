"""``make profile-hybrid``: eight real ranks, and a capture that knows where each was made."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import polars as pl
import pytest

import ppprof
from ppprof.analysis.efficiency.operator_work import work_of_operators
from ppprof.config import load_config
from ppprof.topology import Topology
from ppprof.train.model import rank_flops
from tests.jobs.launching import (
    CONFIGS,
)

CONFIG = CONFIGS / "pretrain_gpt_tiny_cpu_dp2_mp2_pp2.yaml"
GRID = Topology.of(dp=2, pp=2, mp=2)
STEPS = range(1, 5)
MICRO_BATCHES = 4
# 1F1B: f and b are forward and backward, then the micro-batch and the phase.
SCHEDULE = {
    0: "f0 warm-up, f1 steady, b0 steady, f2 steady, b1 steady, f3 steady, b2 steady, b3 cool-down",
    1: "f0 steady, b0 steady, f1 steady, b1 steady, f2 steady, b2 steady, f3 steady, b3 steady",
}
pytestmark = [pytest.mark.paddle, pytest.mark.jobs]


@pytest.fixture(scope="module")
def recorded(hybrid_job: tuple[Path, str]) -> ppprof.Run:
    """The run as it is read again."""
    return ppprof.open(hybrid_job[0])


@pytest.fixture(scope="module")
def events(recorded: ppprof.Run) -> pl.DataFrame:
    """The events of all ranks, names as text."""
    text = pl.col("name", "category", "axis", "dtype", "phase").cast(pl.String)
    return recorded.events().with_columns(text)


def test_names_and_manifest_have_the_coordinates(hybrid_job: tuple[Path, str]) -> None:
    folder, _ = hybrid_job
    stems = {path.name.split("_time_")[0] for path in folder.glob("*.paddle_trace.json")}
    assert stems == {f"rank_{rank:05d}_{GRID.label(rank)}" for rank in range(8)}
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["axes"] == {"order": ["dp", "pp", "sharding", "sep", "mp"],
                                "degrees": [2, 2, 1, 1, 2]}  # fmt: skip
    assert [rank["coordinate"] for rank in manifest["ranks"]] == [
        {"dp": dp, "pp": pp, "sharding": 0, "sep": 0, "mp": mp}
        for dp, pp, mp in itertools.product(range(2), range(2), range(2))
    ]
    assert manifest["groups"] == {
        "dp": [[0, 4], [1, 5], [2, 6], [3, 7]],
        "pp": [[0, 2], [1, 3], [4, 6], [5, 7]],
        "mp": [[0, 1], [2, 3], [4, 5], [6, 7]],
    }


def test_every_collective_has_its_bytes_and_peers(events: pl.DataFrame) -> None:
    found = events.filter(pl.col("category") == "Communication")
    assert (
        found.select("axis", "group", "bytes", "dtype", "peers").null_count().sum_horizontal()[0]
        == 0
    )
    for rank in range(8):
        lines = {axis: next(g for g in GRID.groups(axis) if rank in g) for axis in GRID.order}
        for axis, names, peers in (
            ("mp", {"all_reduce", "broadcast"}, lines["mp"]),
            ("dp", {"all_reduce"}, lines["dp"]),
            ("pp", {"send", "recv", "isend", "irecv"}, [r for r in lines["pp"] if r != rank]),
        ):
            rows = found.filter((pl.col("rank") == rank) & (pl.col("axis") == axis))
            assert set(rows["name"]) >= names, (rank, axis)
            groups = rows.filter(pl.col("name").is_in(list(names)))["peers"].unique().to_list()
            assert ",".join(map(str, peers)) in groups, (rank, axis)
    # What one stage sends forward is the hidden states of a micro-batch: 2 x 64 x 128 floats.
    sent = found.filter((pl.col("name") == "send") & (pl.col("rank") == 0))
    assert sent["bytes"].unique().to_list() == [2 * 64 * 128 * 4]
    assert sent.height == MICRO_BATCHES * len(STEPS)


def test_a_stage_records_its_schedule(events: pl.DataFrame) -> None:
    passes = events.filter(pl.col("micro_batch").is_not_null()).sort("start_ns")
    for rank, step in itertools.product(range(8), STEPS):
        stage = GRID.coordinate(rank)["pp"]
        rows = passes.filter((pl.col("rank") == rank) & (pl.col("step") == step))
        schedule = [
            f"{row['name'][0]}{row['micro_batch']} {row['phase']}" for row in rows.to_dicts()
        ]
        assert ", ".join(schedule) == SCHEDULE[stage]
        assert rows["stage"].unique().to_list() == [stage]
        assert rows["depth"].unique().to_list() == [1]


def test_phases_are_counted_by_the_micro_batch(recorded: ppprof.Run) -> None:
    for rank in range(8):
        table = recorded.summary("model", rank=rank)
        calls = dict(table.select("name", "calls").iter_rows())
        assert (calls["Forward"], calls["Backward"], calls["Optimization"]) == (16, 16, 4)
        assert table.filter(pl.col("name") == "Others")["cpu_total_ns"].item() > 0
        parts = table.filter(pl.col("name") != "ProfileStep")["cpu_ratio"].sum()
        assert parts == pytest.approx(1)


def test_ranks_communicate_compute_and_do_both_at_once(
    hybrid_job: tuple[Path, str], recorded: ppprof.Run
) -> None:
    assert "Distribution Summary" in hybrid_job[1]
    overlap = 0
    for rank in range(8):
        table = recorded.summary("dist", rank=rank)
        times = dict(table.select("name", "time_ns").iter_rows())
        assert 0 < times["Communication"] < times["ProfileStep"]
        assert 0 < times["Computation"] < times["ProfileStep"]
        overlap += times["Overlap"]
    assert overlap > 0  # what is sent to the next stage, beside the next forward


def test_steps_have_tokens_micro_batches_and_flops(hybrid_job: tuple[Path, str]) -> None:
    model = load_config(CONFIG).Model
    flops = []
    for rank in range(8):
        lines = (hybrid_job[0] / f"steps/rank_{rank:05d}.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        assert {(r["num_tokens"], r["num_micro_batches"]) for r in records} == {(512, 4)}
        flops.append({record["num_flops"] for record in records}.pop())
    of_replica = rank_flops(model, 512, 64, num_blocks=model.num_layers, has_logits=True)
    assert sum(flops[:4]) == sum(flops[4:]) == of_replica
    assert flops[0] < flops[2]  # logits are on the last stage


def test_each_ranks_products_are_its_share_of_the_models_flops(
    hybrid_job: tuple[Path, str], recorded: ppprof.Run, events: pl.DataFrame
) -> None:
    """Tensor parallelism halves them, and each stage has its own layers."""
    for rank in range(8):
        of_rank = events.filter(rank=rank)
        work = work_of_operators(of_rank)
        products = of_rank[work["row"].to_list()].select("step", "name", flops=work["flops"])
        products = products.filter(pl.col("name").str.contains("^(matmul|Global_Matmul)"))
        assert products["flops"].null_count() == 0
        lines = (hybrid_job[0] / f"steps/rank_{rank:05d}.jsonl").read_text().splitlines()
        (expected,) = {json.loads(line)["num_flops"] for line in lines}
        of_steps = products.group_by("step").agg(pl.col("flops").sum())["flops"]
        assert len(of_steps) == len(STEPS)
        assert of_steps.to_list() == pytest.approx(len(STEPS) * [expected], rel=0.01)


def test_every_rank_has_a_step_breakdown(recorded: ppprof.Run, events: pl.DataFrame) -> None:
    """The bubble is what its spans say, but for operators and other communication in between."""
    cluster = recorded.cluster()
    table = cluster.steps
    assert table.select("rank", "step").rows() == list(itertools.product(range(8), STEPS))
    parts = ["computation_ns", "data_loading_ns", "bubble_ns", "rest_ns"]
    exposed = [f"exposed_{axis}_ns" for axis in ("mp", "dp", "pp", "pp+mp")]
    exposed.append("exposed_dp+pp+mp_ns")  # the loss, where it is logged
    assert table.select(*parts, *exposed).sum_horizontal().equals(table["step_ns"])
    assert table.select(pl.col(*parts, "exposed_mp_ns", "exposed_dp_ns").min()).row(0) > (0,) * 6
    # A stage's own trace has its whole wait; both traces separate the transfer from it.
    assert (table["bubble_ns"] < cluster.steps_per_trace["bubble_ns"]).all()
    assert table["bubble_ns"].sum() > 0.5 * cluster.steps_per_trace["bubble_ns"].sum()
    for row in cluster.steps_per_trace.rows(named=True):
        of_step = events.filter(rank=row["rank"], step=row["step"])
        passes = of_step.filter(pl.col("micro_batch").is_not_null())
        # The last wait for a send may begin behind the send, which another thread does.
        sent = of_step.filter(pl.col("name").str.contains(r"^i?(send|recv)(\.wait)?$"))
        first = min(passes["start_ns"].min(), sent["start_ns"].min())
        last = (passes["start_ns"] + passes["dur_ns"]).max()
        end = max(last, (sent["start_ns"] + sent["dur_ns"]).max())
        meeting = of_step.filter(
            (pl.col("name") == "all_reduce")
            & pl.col("axis").str.contains("pp")
            & (pl.col("start_ns") >= last)
        ).sort("start_ns")
        at_most = end - first - passes["dur_ns"].sum() + meeting["dur_ns"][0]
        assert 0.5 * at_most < row["bubble_ns"] <= at_most
