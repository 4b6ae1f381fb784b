"""``ppprof predict``: its tables, data and file, and what it rejects."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ppprof.run.memory_tool import estimated_mib
from tests.jobs.planted import COMMITTED

RUN = COMMITTED / "eight_ranks"


def document(cli, *options):
    return json.loads(cli("predict", RUN, *options, "--format", "json").out)["tables"]


def test_a_change_stands_beside_the_recorded_configuration(cli):
    tables = document(cli, "-o", "Distributed.dp_degree=4")
    recorded, changed = tables["steps"]
    assert (recorded["ranks"], changed["ranks"]) == (8, 16)
    assert recorded["error_ratio"] == recorded["step_ns"] / recorded["measured_ns"] - 1
    assert changed["measured_ns"] is None
    assert changed["low_ns"] < recorded["step_ns"] < changed["step_ns"] < changed["high_ns"]
    assert [row["stage"] for row in tables["memory"]] == [0, 1]
    out = cli("predict", RUN, "-o", "Distributed.dp_degree=4").out
    assert f"{changed['step_ns'] / 1e6:.2f}" in out


def with_config(folder, block, **values):
    """Return a copy of the run with other values in a block of its manifest's config."""
    shutil.copytree(RUN, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["config"].setdefault(block, {}).update(values)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_a_blank_dp_degree_is_what_the_ranks_of_the_run_leave(cli, tmp_path):
    run = with_config(tmp_path / "blank", "Distributed", dp_degree=None)
    for options in ((), ("-o", "Distributed.pp_degree=1"), ("--search", "--world-size", "8")):
        given, blank = (
            json.loads(cli("predict", path, *options, "--format", "json").out)["tables"]
            for path in (RUN, run)
        )
        assert blank == given


@pytest.mark.parametrize(
    ("distributed", "message"),
    [
        ({"dp_degree": 4}, "dp 4 x mp 2 x pp 2 x sharding 1 = 16, but 8 processes were launched"),
        ({"dp_degree": 4, "mp_degree": 1}, "but its ranks trained with"),
        ({"dp_degree": 1, "sep_degree": 2}, "but its ranks trained with"),
    ],
)
def test_the_config_of_another_job_is_refused(cli, tmp_path, distributed, message):
    run = with_config(tmp_path / "other", "Distributed", **distributed)
    assert message in cli("predict", run, code=3).err


def test_only_the_selected_steps_count(cli):
    (whole,) = document(cli)["steps"]
    rows = [document(cli, "--steps", step)["steps"][0] for step in (3, 4, 5)]
    measured = [row["measured_ns"] for row in rows]
    assert len(set(measured)) == 3
    assert sum(measured) / 3 == pytest.approx(whole["measured_ns"])
    # One step has no spread.
    assert {(row["low_ns"], row["high_ns"]) for row in rows} == {(0, None)}


def test_a_run_beside_other_programs_is_warned_about(cli, tmp_path):
    run = tmp_path / "log"
    shutil.copytree(RUN, run)
    for path in (run / "steps").iterdir():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line["processor_wait_ns"] = line["batch_cost_ns"] // 8
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert (
        "its ranks waited for a processor for 12% of the recorded steps" in cli("predict", run).err
    )


def test_without_a_change_it_checks_itself(cli):
    (recorded,) = document(cli)["steps"]
    assert recorded["basis"] == "measured"


def test_the_best_are_written_for_paddles_tuner(cli, tmp_path):
    file = tmp_path / "best.csv"
    best = document(cli, "--search", "--world-size", "8", "--to", "paddle-tuner", file)["search"]
    with file.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert 0 < len(rows) == len(best) <= 10
    for row in rows:
        degrees = ("dp_degree", "mp_degree", "pp_degree", "sharding_degree")
        product = 1
        for name in degrees:
            product *= int(row[name])
        assert product == 8
    steps = [row["step_ns"] or row["high_ns"] for row in best]
    assert steps == sorted(steps)
    words = ("--search", "--world-size", "8", "--to", "paddle-tuner", file)
    assert "exists; --force replaces it" in cli("predict", RUN, *words, code=2).err
    cli("predict", RUN, *words, "--force")
    few = document(cli, "--search", "--world-size", "8", "--memory", "5MiB")["search"]
    assert all(row["memory_bytes"] <= 5 << 20 for row in few)


HISTORY = """\
job_id,dp_degree,mp_degree,pp_degree,vpp_degree,micro_batch_size,sharding_degree,sharding_stage,\
use_recompute,recompute_granularity,acc_steps,global_batch_size,time,max_mem_usage,error_info
1,2,2,2,1,2.0,1,1,False,,4,16,VALUE,,
2,4,2,2,1,2,1,1,True,full,2,16,,,Out of memory
3,2,2,3,1,2,1,1,False,,4,16,1,,
"""
"""What Paddle's auto-tuner writes; pandas makes a column with blanks to floats."""


@pytest.mark.parametrize(
    ("metric", "value"), [("batch_cost", 0.5), ("ips", 16 / 0.5), ("step/s", 1 / 0.5)]
)
def test_what_a_tuner_measured_stands_beside_the_prediction(cli, tmp_path, metric, value):
    file = tmp_path / "tuner_history.csv"
    file.write_text(HISTORY.replace("time", metric).replace("VALUE", str(value)))
    recorded = document(cli)["steps"][0]
    as_recorded, failed = document(cli, "--history", file)["history"]
    assert as_recorded["configuration"] == "as recorded"
    assert as_recorded["measured_ns"] == 0.5e9
    assert as_recorded["step_ns"] == recorded["step_ns"]
    assert as_recorded["error_ratio"] == pytest.approx(recorded["step_ns"] / 0.5e9 - 1)
    assert failed["configuration"] == (
        "Distributed.dp_degree=4 Global.local_batch_size=4 Model.use_recompute=True "
        "Model.recompute_granularity=full"
    )
    assert failed["measured_ns"] is failed["error_ratio"] is None
    out, err = cli("predict", RUN, "--history", file)
    error = abs(as_recorded["error_ratio"])
    assert f"Error: {error:.1%} (median), {error:.1%} (most)." in out
    assert "of 1 measured steps" in out
    assert "line 4 of the history: skipped" in err


@pytest.mark.parametrize(
    ("row", "measured"),
    [
        ("1,2,2,2,1,2,1,1", []),
        ("1,0,2,2,1,2,1,1,False,,4,16,1,,", []),
        ("1,inf,2,2,1,2,1,1,False,,4,16,1,,", []),
        ("1,2,2,2,1,2,1,1,False,,4,16,inf,,", [None]),
    ],
)
def test_a_damaged_row_of_a_history_ends_nothing(cli, tmp_path, row, measured):
    file = tmp_path / "history.csv"
    file.write_text(f"{HISTORY.splitlines()[0].replace('time', 'batch_cost')}\n{row}\n")
    rows = document(cli, "--history", file)["history"]
    assert [each["measured_ns"] for each in rows] == measured


def test_recompute_that_the_tuner_left_alone_is_as_recorded(cli, tmp_path):
    run = with_config(
        tmp_path / "run", "Model", use_recompute=True, recompute_granularity="core_attn"
    )
    file = tmp_path / "history.csv"
    head = HISTORY.splitlines()[0].replace("time", "batch_cost")
    file.write_text(f"{head}\n1,2,2,2,1,2,1,1,,,4,16,0.5,,\n")
    document = json.loads(cli("predict", run, "--history", file, "--format", "json").out)
    assert [row["configuration"] for row in document["tables"]["history"]] == ["as recorded"]


def test_a_history_with_an_endless_field_is_refused(cli, tmp_path):
    file = tmp_path / "history.csv"
    file.write_text(HISTORY.replace("False", "x" * 200_000))
    assert "field larger than field limit" in cli("predict", RUN, "--history", file, code=3).err


@pytest.mark.paddle
def test_paddles_tuner_asks_the_memory_model(cli, tmp_path, monkeypatch):
    from paddle.distributed.auto_tuner.prune import prune_by_memory_estimation

    tool = tmp_path / "memory.py"
    options = (
        *("-o", "Distributed.pp_degree=1", "-o", "Model.use_recompute=True"),
        *("-o", "Model.recompute_granularity=core_attn", "--to", "paddle-memory-tool", tool),
    )
    tables = document(cli, *options)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    tuned = {
        **{"dp_degree": 2, "mp_degree": 2, "pp_degree": 1, "vpp_degree": 1, "sharding_degree": 1},
        **{"sharding_stage": 1, "micro_batch_size": 2, "use_recompute": True},
        "recompute_granularity": "core_attn",
    }
    settings = {"memory_estimation_tool": str(tool), "max_mem_usage": 1, "model_cfg": {}}
    assert not prune_by_memory_estimation(settings, tuned)
    assert tuned["estimated_memory_usage"] == int(tables["memory"][0]["total_bytes"] / 2**20)
    large = {
        **settings,
        "model_cfg": {"hidden_size": 4096},
    }  # 16 bytes for each of 4 x 4,096^2 weights in 2 blocks
    assert prune_by_memory_estimation(large, tuned)
    # What is unknown is not pruned: Paddle ends the tuning if the tool fails.
    assert not prune_by_memory_estimation(settings, {**tuned, "sharding_stage": 3})
    assert not prune_by_memory_estimation(settings, {**tuned, "pp_degree": 4})
    done = subprocess.run(
        [sys.executable, tool, "--pp_degree", "4"], capture_output=True, text=True, check=True
    )
    assert "expected degrees that divide 16 samples, 2 blocks" in done.stderr


@pytest.mark.parametrize("granularity", ["full", "core_attn"])
def test_a_tuner_that_leaves_recompute_alone_gets_the_memory_of_the_run(tmp_path, granularity):
    run = with_config(
        tmp_path / "run", "Model", use_recompute=True, recompute_granularity=granularity
    )
    unset = ["--use_recompute", "None", "--recompute_granularity", "None"]
    assert estimated_mib(str(run), unset) == estimated_mib(str(run), [])
    assert estimated_mib(str(run), ["--use_recompute", "True"]) == estimated_mib(str(run), [])
    assert estimated_mib(str(run), ["--use_recompute", "False"]) > estimated_mib(str(run), [])


def test_a_tuner_gets_the_sequence_parallel_memory_of_a_config_that_ran_without_mp(tmp_path):
    parallel = with_config(tmp_path / "mp2", "Model", sequence_parallel=True)
    manifest = json.loads((parallel / "manifest.json").read_text())
    alone = shutil.copytree(parallel, tmp_path / "mp1")
    manifest["config"]["Distributed"].update(dp_degree=4, mp_degree=1)
    manifest["config"]["Global"]["local_batch_size"] //= 2
    axes = dict(zip(manifest["axes"]["order"], manifest["axes"]["degrees"]))
    manifest["axes"]["degrees"] = [*{**axes, "dp": 4, "mp": 1}.values()]
    (alone / "manifest.json").write_text(json.dumps(manifest))
    both = estimated_mib(str(alone), ["--dp_degree", "2", "--mp_degree", "2"])
    assert both == estimated_mib(str(parallel), []) < estimated_mib(str(RUN), [])


def test_the_ranks_that_were_recorded_do_not_limit_a_prediction(cli, tmp_path):
    run = with_config(tmp_path / "run", "Profiler", enable=True, print_ranks=[0, 7])
    assert "dp_degree=1" in cli("predict", run, "-o", "Distributed.dp_degree=1").out


def test_no_program_is_written_that_knows_no_memory(cli, tmp_path):
    run = shutil.copytree(RUN, tmp_path / "run")
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["config"]["Global"]["device"] = "gpu"
    manifest["config"]["Engine"]["mix_precision"] = {"enable": True, "level": "O1"}
    (run / "manifest.json").write_text(json.dumps(manifest))
    tool = tmp_path / "memory.py"
    message = "the memory of mixed precision is known for level O2 only"
    assert message in cli("predict", run, "--to", "paddle-memory-tool", tool, code=3).err
    assert not tool.exists()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["-o", "Distributed.pp_degree=3"], 2, "Model.num_layers: 2: expected a multiple of"),
        (["-o", "Global.micro_batch_size=3"], 2, "expected a divisor of local_batch_size 8"),
        (
            ["-o", "Model.hidden_size=8"],
            2,
            "Model.hidden_size=8: its effect is not known from a run",
        ),
        (["--search", "--world-size", "7"], 3, "no configuration of 7 ranks"),
        (["--search"], 2, "--search: expected --world-size N"),
        (["--to", "paddle-tuner", "x"], 2, "--to paddle-tuner: has no effect without --search"),
        (["--to", "csv", "x"], 2, "--to csv: expected paddle-tuner or paddle-memory-tool"),
        (["--force"], 2, "--force: has no effect without --to"),
        (["--memory", "1GiB"], 2, "--memory: has no effect without --search"),
        ([RUN], 3, "it has the micro_batch_size of"),
        (["--history", __file__], 3, "not a history of Paddle's auto-tuner"),
        (["--history", "absent.csv"], 3, "absent.csv: No such file"),
        (["--history", "x", "--search"], 2, "--history: has no effect with -o and --search"),
    ],
)
def test_what_cannot_be_predicted_is_refused(cli, options, code, message):
    assert message in cli("predict", RUN, *options, code=code).err


@pytest.mark.parametrize(
    ("run", "message"),
    [("small_net", "its manifest has no config"), ("slow_dataset", "one pipeline stage")],
)
def test_other_runs_are_refused(cli, run, message):
    assert message in cli("predict", COMMITTED / run, code=3).err


def test_a_search_that_does_not_try_all_says_so(cli, monkeypatch):
    def errors():
        return cli("predict", RUN, "--search", "--world-size", "8").err

    assert "are not tried" not in errors()
    monkeypatch.setattr("ppprof.run.predict._MOST_CANDIDATES", 9)
    assert "8 ranks have more than 9 configurations" in errors()
