"""``ppprof diff`` as its users see it."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.models import Layer, gpt, training
from tests.fixtures.run_directories import run, step_lines
from tests.fixtures.timeline import write
from tests.fixtures.words import words

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"


@pytest.fixture
def traces(tmp_path):
    """In the second, the second of three blocks takes 2 ms more."""
    slow = gpt()
    slow[2] = Layer("Block", {"matmul dygraph": 6.0, "gelu dygraph": 1.0})
    return [
        write(tmp_path / f"{name}.pb", training(layers, jitter=1000))
        for name, layers in (("base", gpt()), ("slow", slow))
    ]


def cells(out, title):
    """Rows of the table with this title, as words; the first is the head."""
    lines = out.splitlines()
    first = next(index for index, line in enumerate(lines) if line.strip("-") == title)
    table = lines[first + 2 :]
    end = next(start for start, line in enumerate(table) if start > 2 and line.startswith("----"))
    return [line.split() for line in table[1:end] if not line.startswith("---")]


def test_what_changed_is_on_top(traces, cli):
    out, err = cli("diff", *traces)
    assert err == ""
    head = out.splitlines()
    assert head[0].split() == ["baseline", str(traces[0])]
    assert head[3].startswith("Step time: slower: +9.5% (95% interval +9.5% to +9.")
    assert head[3].endswith("6 steps (recorded) against 6 steps (recorded)")
    assert cells(out, "Operators")[1:] == [
        ["matmul", "14.00", "16.00", "+2.00", "+14.28", "0.00", "4", "14.00", "->", "16.00"]
    ]
    modules = cells(out, "Modules")[1:]
    assert [row[0] for row in modules] == ["step", "GPT", "Block"]
    assert modules[2][1:6] == ["5.03", "7.03", "+2.00", "+39.75", "+2.00"]
    assert "Kernels" not in out


def test_steps_recorded_ahead_of_a_window_are_no_steps_of_it(tmp_path, cli):
    """Their times have the window's number, also if the recording was dropped."""
    path = tmp_path / "run"
    shutil.copytree(RUNS / "nothing", path)
    file = path / "steps" / "rank_00000.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    recorded = [line["step"] for line in lines if line["window"] == 0]
    assert min(recorded) > 3
    for line in lines[1:4]:
        line["window"] = 0
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, err = cli("diff", path, RUNS / "nothing", "--window", "0", "--steps", "1:4", code=2)
    assert f"no step of 1:4; it has steps {min(recorded)}-{max(recorded)}" in err


def test_a_run_against_itself(traces, cli):
    out, _ = cli("diff", traces[0], "--experiment-rank", "0")
    assert "Operators: none of 4 changed by more than the noise and 0.1% of a step." in out
    assert "Modules: none of 8 changed by more than the noise and 0.1% of a step." in out
    assert "no difference seen: +0.0%" in out


def test_one_run_under_two_names_is_no_comparison(tmp_path, cli):
    """A log directory stands for its newest run: every limit would pass."""
    log = tmp_path / "log"
    shutil.copytree(RUNS / "nothing", log)
    shutil.copytree(RUNS / "slow_layer", log / "run_002")
    limit = ("--fail-if", "step_time > 5%")
    message = "a log directory is its newest run, and LOG/run_001 its first one"
    for names in ((log, log / "run_002"), (log / "run_002", log / "."), (log, log)):
        done = cli("diff", *names, *limit, code=2)
        assert message in done.err
        assert not done.out
    cli("diff", log, log / "run_002", "--experiment-rank", "0")
    page = tmp_path / "page.html"
    err = cli("report", log / "run_002", "--baseline", log, "-o", page, code=2).err
    assert f"--baseline: {log / 'run_002'}: the run of the page" in err
    assert not page.exists()
    trace = min((log / "run_002").glob("rank_*.json*"))
    cli("report", trace, trace, "--baseline", RUNS / "nothing", "-o", page)


@pytest.mark.parametrize("format", ["table", "json"])
def test_a_failed_check_is_one_if_the_reader_of_the_pipe_has_gone(traces, format):
    """As in ``ppprof diff ... | head -3``."""
    reader, writer = os.pipe()
    os.close(reader)
    limit = ("--fail-if", "step_time > 5%")
    command = [sys.executable, "-m", "ppprof", "diff", *traces, *limit, "--format", format]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_everything_that_changed(traces, cli):
    out, _ = cli("diff", *traces, "--views", "op", "--all", "--sorted-by", "calls")
    assert [row[0] for row in cells(out, "Operators")[1:]] == ["matmul"]
    out, _ = cli("diff", *traces, "--views", "op", "--sorted-by", "cpu_total")
    assert cells(out, "Operators")[0][:4] == ["Name", "CPU", "Total:", "Baseline"]
    _, err = cli("diff", *traces, "--sorted-by", "size", code=2)
    assert "--sorted-by: 'size': expected one of calls, cpu_total, cpu_self" in err


def test_rows_are_chosen(traces, cli):
    out, _ = cli("diff", *traces, "--views", "op", "--filter", "gelu")
    assert "none of 4 that match 'gelu' changed by more than" in out
    out, _ = cli("diff", *traces, "--views", "op", "--min-delta", "3ms")
    assert "none of 4 changed by more than the noise and 3,000,000 ns." in out
    out, _ = cli("diff", *traces, "--views", "op", "--row-limit", "0")
    assert "1 more operator: --row-limit" in out


def test_what_is_left_out_is_counted(tmp_path, cli):
    """matmul takes 2 ms more of 41; embedding 20 us more, less than 0.1% of a step."""
    base, slow = gpt(linear=12.0), gpt(linear=12.0)
    slow[2] = Layer("Block", {"matmul dygraph": 14.0, "gelu dygraph": 1.0})
    slow[0] = Layer("Embedding", {"embedding dygraph": 0.51})
    traces = [
        write(tmp_path / f"{name}.pb", training(layers, jitter=1000))
        for name, layers in (("base", base), ("slow", slow))
    ]
    out, _ = cli("diff", *traces, "--views", "op,module")
    assert out.count("by less than the noise or 0.1% of a step, and is left out.") == 2
    assert "1 more operator changed, by" in out
    assert "1 more module changed, by" in out
    out, _ = cli("diff", *traces, "--views", "op", "--min-delta", "5us")
    assert [row[0] for row in cells(out, "Operators")[1:]] == ["matmul", "embedding"]
    assert "left out" not in out
    out, _ = cli("diff", *traces, "--views", "op", "--min-delta", "1ms", "--all")
    assert "1 more operator changed, by less than 1,000,000 ns, and is left out." in out
    out, _ = cli("diff", *traces, "--views", "op", "--filter", "matmul")
    assert "left out" not in out
    out, _ = cli("diff", *traces, "--views", "op", "--all")
    assert "left out" not in out


def test_data_for_scripts(traces, cli):
    out, _ = cli("diff", *traces, "--format", "json", "--fail-if", "step_time > 50%")
    found = json.loads(out)
    assert found["step_time"]["verdict"] == "slower"
    assert found["step_time"]["low"] < found["step_time"]["ratio"] < found["step_time"]["high"]
    (row,) = found["tables"]["op"]
    assert (row["name"], row["delta_cpu_self_ns"], row["is_clear"]) == ("matmul", 2_000_000, True)
    assert [rule["status"] for rule in found["rules"]] == ["pass"]
    out, _ = cli("diff", *traces, "--format", "csv", "--views", "op")
    (row,) = csv.DictReader(io.StringIO(out))
    assert float(row["delta_cpu_self_ns"]) == 2_000_000


def test_a_comment_for_a_pull_request(traces, cli, tmp_path):
    out, err = cli("diff", *traces, "--format", "md", "--fail-if", "step_time > 5%", code=1)
    head = cli("diff", *traces).out.split("\n\n")[1].split("\n")
    assert head[0].endswith("; 6 steps (recorded) against 6 steps (recorded)")
    assert out.startswith(f"**{head[0]}**\n\n- failed: ")
    assert [line for line in out.split("\n") if line.startswith("- Alike")] == [f"- {head[1]}"]
    assert "- failed: step_time > 5%: +9.5%" in out
    assert "| `matmul` " in out
    assert err.startswith("failed: step_time > 5%: +9.5%, 95% interval")
    target = tmp_path / "comment.md"
    assert cli("diff", *traces, "--format", "md", "-o", target).out == ""
    assert target.read_text().startswith("**Step time")
    _, err = cli("diff", *traces, "--format", "md", "-o", target, code=2)
    assert "--force" in err


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        (["step_time > 5%"], 1),
        (["step_time > 20%"], 0),
        (["op.matmul.cpu > 10%", "op.gelu.cpu > 10%"], 1),
        (["op.gelu.cpu > 10%", "module.GPT > 50%"], 0),
    ],
)
def test_a_gate(traces, cli, rules, code):
    flags = [part for rule in rules for part in ("--fail-if", rule)]
    out, _ = cli("diff", *traces, *flags, code=code)
    assert sum(rule in line for rule in rules for line in out.splitlines()) == len(rules)
    assert ("failed: " in out) == bool(code)


def test_the_guides_four_steps(tmp_path, cli):
    """Baseline ips, a change, ips again: what the guide computes by hand."""
    runs = [
        run(tmp_path / name, [], step_lines=[step_lines(8 / ips * 1e9)])
        for name, ips in (("before", 39.1), ("after", 151.5))
    ]
    out, _ = cli("diff", *runs)
    ips = next(row for row in cells(out, "Overview") if row[0] == "ips")
    assert ips[2:] == ["39.10", "151.50", "+112.39", "+287.43"] or ips[-1].startswith("+287")
    assert "Step time: faster: -74.2%" in out
    assert "Operators" not in out


def test_two_parts_of_one_run(tmp_path, cli):
    path = run(tmp_path / "a", [training(gpt()), training(gpt(linear=6.0))])
    out, _ = cli("diff", path, "--rank", "0", "--experiment-rank", "1", "--views", "op")
    assert cells(out, "Operators")[1][:4] == ["matmul", "14.00", "20.00", "+6.00"]
    _, err = cli("diff", path, code=2)
    assert err.startswith("EXPERIMENT: missing; expected a second run, or the part of BASELINE")


def test_all_that_is_wrong_at_once(traces, cli):
    _, err = cli(
        "diff",
        *traces,
        *words("--steps 3:1 --window a --views gpu --row-limit - --min-delta 3 --filter ("),
        *words("--fail-if slow --workers 0 --time-unit h --format csv --force --all"),
        code=2,
    )
    flags = [line.partition(":")[0] for line in err.splitlines()]
    assert flags == [
        *words("--window --steps --views --row-limit --min-delta --filter --time-unit"),
        *("--fail-if", "--workers", "--row-limit", "--all", "--format csv", "--force"),
    ]


def test_what_cannot_be_read(traces, tmp_path, cli):
    _, err = cli("diff", traces[0], tmp_path / "nothing", code=3)
    assert err == f"{tmp_path / 'nothing'}: No such file or directory\n"
    broken = tmp_path / "broken.json"
    broken.write_text("x")
    assert str(broken) in cli("diff", traces[0], broken, code=3).err


def test_processes_give_the_same(tmp_path, cli):
    path = run(tmp_path / "a", [training(gpt(), jitter=999), training(gpt(linear=6.0))])
    other = run(tmp_path / "b", [training(gpt(4), jitter=999), training(gpt(linear=7.0))])
    assert cli("diff", path, other) == cli("diff", path, other, "--workers", "2")


@pytest.fixture
def several(tmp_path):
    """Three runs that differ by 2%, and three that take 20% longer."""
    means = {"base": (98e6, 100e6, 102e6), "slow": (118e6, 120e6, 122e6)}
    return {
        name: [
            run(tmp_path / f"{name}{number}", (), step_lines=[step_lines(mean)])
            for number, mean in enumerate(of_side)
        ]
        for name, of_side in means.items()
    }


def test_several_runs_of_either_side(several, cli):
    base, slow = several["base"], several["slow"]
    out, err = cli("diff", "--fail-if", "step_time > 5%", *base, "--", *slow, code=1)
    assert "Step time: slower: +20.0% (95% interval +14." in out
    assert "Quiet steps (10% quantile): slower: +20.0%" in out
    last_words = [line.split()[-1] for line in out.splitlines() if line]
    pictures = [word for word in last_words if set(word) == {".", "o"}]
    assert [picture.count("o") for picture in pictures] == [3, 3]
    assert pictures[0].rindex("o") < pictures[1].index("o")
    assert "failed: step_time > 5%: +20.0%" in err
    out, _ = cli("diff", "--fail-if", "step_time > 5%", "--format", "json", *slow, "--", *base)
    document = json.loads(out)
    assert document["change"]["verdict"] == "faster"
    assert [row["side"] for row in document["runs"]] == ["baseline"] * 3 + ["experiment"] * 3
    assert [limit["status"] for limit in document["thresholds"]] == ["pass"]


def test_what_only_each_fifth_step_does_fails_a_limit(tmp_path, cli):
    """An evaluation of twice a step in each fifth step: 40% of the mean, nothing of the median."""
    runs = []
    for number in range(6):
        lines = step_lines(1e8 + 1e5 * number)
        for line in lines:
            line["batch_cost_ns"] += 200_000_000 * (number > 2 and line["step"] % 5 == 0)
        runs.append(run(tmp_path / str(number), (), step_lines=[lines]))
    out, err = cli("diff", "--fail-if", "step_time > 5%", *runs[:3], "--", *runs[3:], code=1)
    assert "Step time: slower: +40." in out
    assert re.search(r"Median step: .*: \+0\.\d%", out)
    assert "failed: step_time > 5%: +40." in err


def test_runs_of_other_lengths_are_compared_by_the_steps_that_all_have(tmp_path, cli):
    """Steps grow with their number: of all steps, the longer runs would be slower. All leave out 10, as of 60."""
    runs = []
    for number, steps in enumerate((15, 16, 60, 60)):
        lines = step_lines(1e8 + 1e5 * number, steps=steps, noise=0)
        for line in lines:
            line["batch_cost_ns"] += 10_000_000 * line["step"]
        runs.append(run(tmp_path / str(number), (), step_lines=[lines]))
    out, _ = cli("diff", *runs[:2], "--", *runs[2:])
    assert re.search(r"Step time: .*: \+0\.1%", out)
    assert "Note: compared are the 5 steps that all runs have; one has 45 other steps.\n" in out
    document = json.loads(cli("diff", "--format", "json", *runs[:2], "--", *runs[2:]).out)
    assert [row["num_steps"] for row in document["runs"]] == [5] * 4
    assert [row["num_left_out"] for row in document["runs"]] == [9, 10, 45, 45]


def test_runs_without_common_steps_are_not_compared(tmp_path, cli):
    runs = []
    for number in range(4):
        lines = step_lines(1e8)
        for line in lines:
            line["window"] = 0 if (line["step"] < 20) == (number < 2) else None
        runs.append(run(tmp_path / str(number), (), step_lines=[lines]))
    err = cli("diff", *runs[:2], "--", *runs[2:], code=3).err
    assert "the runs have 0 steps outside windows in common; expected at least 5" in err


def test_one_run_against_several_is_inconclusive(several, cli):
    line = ("diff", "--fail-if", "step_time > 5%", several["base"][0], "--", *several["slow"])
    out, err = cli(*line)
    assert "1 run is too few: 2 of either side give an interval" in out
    assert "inconclusive: step_time > 5%" in err


def test_a_run_that_is_named_twice_is_one(several, cli):
    base = several["base"]
    _, err = cli("diff", *base[:2], "--", *base[1:], code=2)
    assert "the same run is named twice" in err
    _, err = cli("diff", *base, "--", f"{base[0]}/../{base[0].name}", code=2)
    assert "the same run is named twice" in err
    _, err = cli("diff", base[0], base[0], "--", *several["slow"], code=2)
    assert "the same run is named twice" in err
    shutil.copytree(base[1], base[0] / "run_002")
    _, err = cli("diff", base[0], base[0] / "run_002", "--", *several["slow"], code=2)
    assert "the same run is named twice" in err


def test_a_run_without_steps_outside_windows(several, traces, cli):
    _, err = cli("diff", *several["base"], "--", traces[0], code=3)
    assert f"{traces[0]}: no times of steps outside windows" in err
    assert "record with -o Profiler.timer_only=True" in err


def test_a_run_that_died_early_is_no_run(several, tmp_path, cli):
    died = run(tmp_path / "died", (), step_lines=[step_lines(300e6, steps=3)])
    _, err = cli("diff", *several["base"], "--", *several["slow"][:2], died, code=3)
    assert f"{died}: 2 steps outside windows; expected at least 5 of each run" in err


def test_an_unknown_wait_that_is_left_in_is_said(several, tmp_path, cli):
    known = [{**line, "processor_wait_ns": 0} for line in step_lines(99e6)]
    one, *others = [run(tmp_path / str(number), (), step_lines=[known]) for number in range(3)]
    left_in = (
        "Mean, median, quiet: with the wait for a processor, which is unknown in at least one run."
    )
    assert left_in in cli("diff", *several["base"], "--", one, *others).out
    assert (
        "Mean, median, quiet: without the wait for a processor. "
        in cli("diff", one, "--", *others).out
    )


def test_several_runs_need_dashes_and_step_times(several, cli):
    base, slow = several["base"], several["slow"]
    _, err = cli("diff", *base, code=2)
    assert "3 runs; expected BASELINE EXPERIMENT, or BASELINE... -- EXPERIMENT..." in err
    _, err = cli("diff", "--", *base, code=2)
    assert "no run before --" in err
    _, err = cli("diff", *base, "--", code=2)
    assert "no run after --" in err
    options = ("--rank", "0", "--exact", "--format", "csv", "--fail-if", "ips < -5%")
    _, err = cli("diff", *options, *base, "--", *slow, code=2)
    for part in (
        "--rank: has no effect",
        "--exact: has no effect",
        "--format csv",
        "only step_time in %",
    ):
        assert part in err


def test_dashes_between_two_runs_change_nothing(traces, cli):
    assert cli("diff", traces[0], "--", traces[1]) == cli("diff", *traces)
