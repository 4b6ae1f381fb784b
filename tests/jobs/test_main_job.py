"""The main job, as the README starts it: two real ranks, real tables, traces that open."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import ppprof
from ppprof.analysis.efficiency.operator_work import work_of_operators
from ppprof.rundir.clocks import read_clocks
from ppprof.trace import read
from tests.jobs.launching import CONFIGS, train

CONFIG = CONFIGS / "pretrain_gpt_tiny_cpu_dp2.yaml"
WORKERS = ["rank_00000_dp0_pp0_sharding0_mp0", "rank_00001_dp1_pp0_sharding0_mp0"]
pytestmark = pytest.mark.paddle


def strictly(path: Path) -> Any:
    """JSON without duplicate keys, NaN or infinities, in UTF-8 without a byte order mark."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in pairs}) == len(pairs)
        return dict(pairs)

    def never(constant: str) -> None:
        raise AssertionError(constant)

    text = path.read_bytes().decode("utf-8")
    return json.loads(text, object_pairs_hook=once, parse_constant=never)


def test_rank_0_prints_the_tables_of_each_window(two_rank_job: tuple[Path, str]) -> None:
    _, output = two_rank_job
    titles = re.findall(r"^rank (\d+) \(dp\d pp0 sharding0 mp0\), window (\d), (.+)$", output, re.M)
    assert titles == [("0", "0", "steps 2 to 4"), ("0", "1", "steps 6 to 8")]
    for title in ("Device", "Overview", "Model", "Distribution", "Operator", "Memory"):
        assert len(re.findall(rf"^-+{title} Summary[- ]", output, re.M)) == 2, title
    assert "Time unit: us" in output
    assert "Time unit: ms" not in output
    assert "Perf Summary" in output


def test_it_says_how_to_look(two_rank_job: tuple[Path, str]) -> None:
    _, output = two_rank_job
    assert re.search(r"visualdl --logdir \S*profiler_log", output)
    closing = re.search(
        r"^rank 0, window 1: .*\b[\d.]+ ms\b.*\n(?:.+\n)*?"  # a table, if nothing is above minor
        r"all ranks, as a page: ppprof report \S+\n"
        r"what to change: ppprof advise \S+$",
        output,
        re.M,
    )
    assert closing
    assert re.search(r"chrome://tracing.*ui\.perfetto\.dev.*\.paddle_trace\.json", output)


def test_the_run_directory_holds_both_ranks(two_rank_job: tuple[Path, str]) -> None:
    run, _ = two_rank_job
    stems = sorted(path.name.split("_time_")[0] for path in run.glob("*.paddle_trace.json"))
    assert stems == sorted(WORKERS * 2)
    assert len(list(run.glob("*.paddle_trace.json.gz"))) == len(list(run.glob("raw/*.pb"))) == 4
    manifest = strictly(run / "manifest.json")
    assert manifest["world_size"] == 2
    assert [rank["coordinate"]["dp"] for rank in manifest["ranks"]] == [0, 1]
    assert manifest["profiler"]["detailed"] is True
    assert manifest["config"]["Model"]["hidden_size"] == 64
    for rank in (0, 1):
        steps = (run / f"steps/rank_0000{rank}.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in steps]
        assert [record["step"] for record in records] == list(range(20))
        assert {r["step"] for r in records if r["window"] is not None} == {2, 3, 4, 6, 7, 8}
        assert all(record["num_tokens"] == 8 * 64 for record in records)
        for window in (0, 1):
            summary = strictly(run / f"summary/rank_0000{rank}_w{window}.json")
            assert (summary["rank"], summary["window"]) == (rank, window)
            assert {row["name"] for row in summary["tables"]["model"]} >= {"Forward", "Backward"}


def test_clocks_are_compared_at_attach_and_after_each_window(
    two_rank_job: tuple[Path, str],
) -> None:
    run, output = two_rank_job
    said = re.findall(
        r"^clocks: 1 rank within 0\.0\d+ s of rank 0's, drift .*, known to \d+ us", output, re.M
    )
    assert len(said) == 1
    reference, other = read_clocks(run).values()
    assert len(reference.readings) == len(other.readings) == 3
    for reading in other.readings:  # of one and the same clock
        assert abs(reading.offset_ns) <= reading.error_ns < 200_000


def test_matrix_products_are_the_models_flops(two_rank_job: tuple[Path, str]) -> None:
    """Those of forward passes are a third, gradients are the rest."""
    run, _ = two_rank_job
    trace = read(next(run.glob("rank_00000_*_000.paddle_trace.json")))
    work = work_of_operators(trace.events)
    steps = trace.events["step"].gather(work["row"])
    names = trace.events["name"].cast(pl.String).gather(work["row"])
    lines = (run / "steps/rank_00000.jsonl").read_text().splitlines()
    num_flops = {record["step"]: record["num_flops"] for record in map(json.loads, lines)}
    for share, name in ((1 / 3, "matmul dygraph"), (2 / 3, "Global_MatmulGradNode")):
        products = work.with_columns(step=steps).filter(names == name)
        of_steps = products.group_by("step").agg(pl.col("flops").sum()).sort("step")
        assert of_steps["step"].to_list() == [2, 3, 4]
        for step, flops in of_steps.rows():
            assert flops == pytest.approx(share * num_flops[step], rel=0.01)


def test_almost_all_operators_of_forward_passes_have_shapes(
    two_rank_job: tuple[Path, str],
) -> None:
    run, _ = two_rank_job
    events = read(next(run.glob("rank_00000_*_000.paddle_trace.json"))).events
    name = pl.col("name").cast(pl.String)
    operators = events.filter((pl.col("category") == "Operator") & name.str.ends_with(" dygraph"))
    no_inputs = name.str.contains("^(full|gaussian|uniform|randint|assign_value|arange)")
    operators = operators.filter(~no_inputs)
    missing = operators.filter(pl.col("shapes").is_null())["name"].value_counts()
    assert operators["shapes"].count() >= 0.995 * len(operators) > 100, missing.rows()


def test_gradients_have_the_shapes_of_their_operators(two_rank_job: tuple[Path, str]) -> None:
    run, _ = two_rank_job
    events = read(next(run.glob("rank_00000_*_000.paddle_trace.json"))).events
    gradients = events.filter(pl.col("name").cast(pl.String).str.starts_with("Global_"))
    gradients = gradients.filter(pl.col("name") != "Global_GradNodeAccumulation")
    missing = gradients.filter(pl.col("shapes").is_null())["name"].value_counts()
    assert gradients["shapes"].count() >= 0.99 * len(gradients) > 100, missing.rows()
    assert gradients["forward"].count() == gradients["shapes"].count()


def test_traces_are_strict_json_and_windows_are_spans(two_rank_job: tuple[Path, str]) -> None:
    run, _ = two_rank_job
    spans = {}
    for path in sorted(run.glob("*.paddle_trace.json")):
        trace = strictly(path)
        spans.setdefault(path.name.split("_time_")[0], []).append(trace["span_indx"])
        collectives = [e for e in trace["traceEvents"] if e.get("cat") == "Communication"]
        assert collectives
        for event in collectives:
            assert event["args"]["peers"] == "0,1"
            assert (event["args"]["axis"], event["args"]["dtype"]) == ("dp", "float32")
            assert event["args"]["bytes"] > 0
    assert {len(set(indices)) for indices in spans.values()} == {2}


def test_both_ranks_stand_in_one_operator_table(two_rank_job: tuple[Path, str]) -> None:
    run = ppprof.open(two_rank_job[0])
    together = run.summary("op", window=0, by="name").filter(name="matmul dygraph")
    apart = [
        run.summary("op", rank, 0).row(by_predicate=pl.col("name") == "matmul dygraph", named=True)
        for rank in (0, 1)
    ]
    times = [row["cpu_total_ns"] for row in apart]
    assert together.select("calls", "min_ns", "max_ns", "max_rank").rows() == [
        (sum(row["calls"] for row in apart), min(times), max(times), times.index(max(times)))
    ]


@pytest.mark.all
@pytest.mark.visualdl
def test_visualdl_shows_both_ranks(two_rank_job: tuple[Path, str]) -> None:
    from tests.oracles import visualdl_server

    run, _ = two_rank_job
    with visualdl_server.serve(run) as server:
        shown = visualdl_server.check_run(server, run, WORKERS)
        assert [shown.spans(worker) for worker in WORKERS] == [["0", "1"]] * 2


@pytest.mark.all
def test_a_second_run_leaves_the_first_alone(tmp_path: Path) -> None:
    short = [
        "Profiler.enable=True",
        "Engine.max_steps=3",
        "Profiler.scheduler=[1, 2]",
        "Engine.eval_freq=-1",
    ]
    train(tmp_path, *short, config=CONFIG, processes=2, code=0)
    first = sorted(path.name for path in (tmp_path / "profiler_log").glob("*.json"))
    done = train(tmp_path, *short, config=CONFIG, processes=2, code=0)
    again = tmp_path / "profiler_log/run_002"
    assert sorted(path.name for path in (tmp_path / "profiler_log").glob("*.json")) == first
    assert len(list(again.glob("*.paddle_trace.json"))) == 2
    assert str(again.relative_to(tmp_path)) in done.stdout + done.stderr
