"""``ppprof run`` around trainings that know nothing of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ppprof
from ppprof import rundir
from tests.fixtures.terminal import in_terminal
from tests.jobs.launching import JOBS, ROOT, command, environment, run
from tests.jobs.remains import arrived

pytestmark = [pytest.mark.paddle, pytest.mark.all]

STEADY = '''
"""A training whose steps take as long as each other."""

import sys, time
import paddle
import paddle.distributed as dist

net = paddle.nn.Linear(8, 8)
if dist.get_world_size() > 1:
    dist.init_parallel_env()
    net = paddle.DataParallel(net)
optimizer = paddle.optimizer.SGD(parameters=net.parameters())
for step in range(int(sys.argv[1])):
    time.sleep(0.05)
    net(paddle.ones([2, 8])).mean().backward()
    optimizer.step()
    optimizer.clear_grad()
{end}
'''
OWN = """
import paddle, ppprof

net = paddle.nn.Linear(8, 8)
optimizer = paddle.optimizer.SGD(parameters=net.parameters())
with ppprof.attach({"enable": True, "scheduler": [2, 4], "profiler_log": "own"}) as prof:
    for step in range(8):
        net(paddle.ones([2, 8])).mean().backward()
        optimizer.step()
        prof.step()
"""
WITH_FLEETS_DEFAULTS = """
import paddle
from paddle.distributed import fleet

strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"mp_degree": 2}
fleet.init(is_collective=True, strategy=strategy)
net = paddle.nn.Linear(8, 8)
optimizer = paddle.optimizer.SGD(parameters=net.parameters())
for step in range(4):
    loss = net(paddle.ones([2, 8])).mean()
    paddle.distributed.all_reduce(loss, group=fleet.get_hybrid_communicate_group().get_model_parallel_group())
    loss.backward()
    optimizer.step()
"""
PPPROF = str(Path(sys.executable).with_name("ppprof"))


def steady(folder: Path, end: str = "") -> str:
    (folder / "steady.py").write_text(STEADY.replace("{end}", end))
    return "steady.py"


def windows_of(log: Path, rank: int) -> list[int | None]:
    """Return the window of each step."""
    lines = (log / rundir.steps_path(rank)).read_text().splitlines()
    return [json.loads(line)["window"] for line in lines]


def recorded_steps(log: Path, rank: int) -> list[int]:
    """Return the steps in the trace of a rank, which has only one."""
    (trace,) = log.glob(f"rank_{rank:05d}_*.paddle_trace.json")
    return sorted(set(map(int, re.findall(r"ProfileStep#([0-9]+)", trace.read_text()))))


@pytest.mark.jobs
def test_all_ranks_record_the_same_steps_and_a_page_is_written(tmp_path: Path) -> None:
    script = steady(tmp_path)
    options = ("--nproc", "2", "--log_dir", "launch", "--report", "page.html")
    run(tmp_path, "-m", "ppprof", "run", *options, script, "60")
    log = tmp_path / "profiler_log"
    first, second = (windows_of(log, rank) for rank in (0, 1))
    assert first == second
    assert len(arrived(log, "*.paddle_trace.json", 2)) == 2
    recorded = recorded_steps(log, 0)
    assert recorded == recorded_steps(log, 1) == list(range(recorded[0], recorded[-1] + 1))
    assert len(recorded) >= 10  # so many that they take a second, if step times settled early
    assert 6 <= recorded[0] <= 20
    assert "<html" in (tmp_path / "page.html").read_text()[:300]


@pytest.mark.jobs
def test_the_axes_are_those_of_fleets_defaults(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WITH_FLEETS_DEFAULTS)
    options = ("--steps", "1:3", "--nproc", "2", "--log_dir", "launch")
    run(tmp_path, "-m", "ppprof", "run", *options, "train.py")
    log = tmp_path / "profiler_log"
    assert rundir.read_manifest(log)["groups"] == {"mp": [[0, 1]]}
    assert len(arrived(log, "rank_0000?_dp0_pp0_sharding0_mp?_*.paddle_trace.json", 2)) == 2
    assert (ppprof.open(log).cluster().steps["communication_mp_ns"] > 0).all()


@pytest.mark.jobs
def test_a_training_that_ends_before_its_window_is_recorded_as_far_as_it_went(
    tmp_path: Path,
) -> None:
    script = steady(tmp_path)
    done = run(tmp_path, "-m", "ppprof", "run", "--nproc", "2", "--log_dir", "launch", script, "6")
    log = tmp_path / "profiler_log"
    assert windows_of(log, 0) == windows_of(log, 1) == [None, 0, 0, 0, 0, 0]
    assert len(arrived(log, "*.paddle_trace.json", 2)) == 2
    assert recorded_steps(log, 0) == recorded_steps(log, 1) == [1, 2, 3, 4, 5]
    calls = dict(ppprof.open(log).summary("model", rank=1).select("name", "calls").iter_rows())
    assert calls["ProfileStep"] == calls["Backward"] == 5
    # If the six steps were alike, the window has moved ahead of step 20.
    early = (
        r"rank 0: the training ended after 6 steps, before window 0, steps [0-9]+ to [0-9]+: steps 1 "
        "to 5 were recorded instead; to choose the steps: ppprof run --steps"
    )
    assert re.search(early, done.stdout), done.stdout
    assert "rank 0, window 0: recorded step " in done.stdout


def test_a_longer_training_keeps_nothing_of_its_first_steps(tmp_path: Path) -> None:
    listing = "; ".join(
        (
            "import glob, json",
            "paths = sorted(glob.glob('profiler_log/**', recursive=True))",
            "open('at_the_end', 'w').write(json.dumps(paths))",
        )
    )
    script = steady(tmp_path)
    source = (tmp_path / script).read_text()
    # As the window of steps 6 or 7 and later is open.
    source = source.replace(
        "    time.sleep(0.05)", f"    time.sleep(0.05)\n    if step == 9: {listing}"
    )
    (tmp_path / script).write_text(source)
    done = run(tmp_path, "-m", "ppprof", "run", script, "60")
    log = tmp_path / "profiler_log"
    paths = json.loads((tmp_path / "at_the_end").read_text())
    assert [path for path in paths if path.endswith((".pb", ".ops", ".json"))] == [
        "profiler_log/manifest.json"
    ]
    windows = windows_of(log, 0)
    recorded = recorded_steps(log, 0)
    assert recorded == list(range(recorded[0], recorded[0] + len(recorded)))
    assert 10 <= len(recorded) <= 20  # steps of 50 ms or more, for a second
    first = [step for step, window in enumerate(windows) if window == 0 and step < recorded[0]]
    assert first == list(range(1, 1 + len(first)))
    assert 4 <= len(first) <= 10
    assert "instead" not in done.stderr
    assert "the training ended" not in done.stderr


@pytest.mark.parametrize(
    "option", [("--steps", "12:14"), ("--timer-only",), ("-o", "scheduler=[12,14]")]
)
def test_steps_that_were_asked_for_are_the_only_ones(
    tmp_path: Path, option: tuple[str, ...]
) -> None:
    run(tmp_path, "-m", "ppprof", "run", *option, steady(tmp_path), "6")
    assert windows_of(tmp_path / "profiler_log", 0) == [None] * 6
    assert not list((tmp_path / "profiler_log").rglob("*.pb"))


@pytest.mark.jobs
def test_a_run_on_a_terminal_prints_a_verdict_the_largest_parts_and_the_next_commands(
    tmp_path: Path,
) -> None:
    words = ["-m", "ppprof", "run", "--steps", "3:5", steady(tmp_path), "12"]
    code, text = in_terminal(tmp_path, 120, command(*words), environment(tmp_path))
    assert code == 0
    lines = text.splitlines()
    (first,) = (
        n for n, line in enumerate(lines) if line.startswith("rank 0, window 0: recorded step ")
    )
    assert lines[first + 1].split()[-3:] == ["forward", "backward", "share"]
    shares = [line.split()[-1] for line in lines[first + 2 :] if line.endswith("%")]
    assert sum(float(share[:-1]) for share in shares) == pytest.approx(100, abs=0.5)
    assert len([line for line in lines[first:] if "step " in line and "ms" in line]) == 1
    assert lines[-3:] == [
        "all tables: ppprof summary profiler_log --views all",
        "all ranks, as a page: ppprof report profiler_log",
        "what to change: ppprof advise profiler_log",
    ]
    assert len(lines) - first <= 12
    assert (
        len(
            json.loads((tmp_path / "profiler_log/summary/rank_00000_w0.json").read_text())["tables"]
        )
        == 9
    )


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_are_printed_on_request_and_end_in_three_lines(tmp_path: Path, columns: int) -> None:
    words = ["-m", "ppprof", "run", "--tables", "--steps", "3:5", steady(tmp_path), "12"]
    code, text = in_terminal(tmp_path, columns, command(*words), environment(tmp_path))
    assert code == 0
    assert "\x1b" not in text
    assert "CPU Total / Avg / Max / Min / Ratio(%)" in text
    for table in ("Device Summary", "Overview Summary", "Model Summary", "Memory Summary"):
        assert table in text
    verdict, report, advise = text.splitlines()[-3:]
    assert verdict.startswith("rank 0, window 0: recorded step ")
    assert report == "all ranks, as a page: ppprof report profiler_log"
    assert advise == "what to change: ppprof advise profiler_log"


def test_under_the_launcher(tmp_path: Path) -> None:
    run(tmp_path, PPPROF, "run", "--steps", "3:5", steady(tmp_path), "8", processes=2)
    for rank in (0, 1):
        windows = windows_of(tmp_path / "profiler_log", rank)
        assert windows == [None, None, None, 0, 0, None, None, None]


def test_a_module_of_a_package(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    steady(package)
    run(tmp_path, PPPROF, "run", "--steps", "3:5", "-m", "package.steady", "8")
    assert windows_of(tmp_path / "profiler_log", 0).count(0) == 2


def test_the_training_computes_what_it_computes_alone(tmp_path: Path) -> None:
    job = str(JOBS / "script_job.py")
    run(tmp_path, "-W", "ignore", job, "alone")
    run(tmp_path, "-W", "ignore", "-m", "ppprof", "run", "--steps", "0:12", job, "recorded")
    assert (tmp_path / "recorded.0").read_text() == (tmp_path / "alone.0").read_text()
    run_directory = ppprof.open(tmp_path / "profiler_log")
    (phases,) = [run_directory.summary("model", rank=0)]
    calls = dict(phases.select("name", "calls").iter_rows())
    assert calls["ProfileStep"] == calls["Backward"] == 12


def test_a_script_that_attaches_keeps_its_own_profiler(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    done = run(tmp_path, "-m", "ppprof", "run", "own.py")
    assert "the script calls ppprof.attach() itself" in done.stderr
    assert windows_of(tmp_path / "own", 0) == [None, None, 0, 0, None, None, None, None]
    assert not (tmp_path / "profiler_log").exists()


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("sys.exit(7)", 7),
        ('raise ValueError("its own")', 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)", -15),
    ],
)
@pytest.mark.parametrize("steps", [("--steps", "1:90"), ()], ids=["steps", "none"])
def test_the_script_ends_as_it_ends_alone(
    tmp_path: Path, steps: tuple[str, ...], end: str, code: int
) -> None:
    program = ("-m", "ppprof", "run", *steps, steady(tmp_path, end), "6")
    done = subprocess.run(
        command(*program),
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert len(ppprof.open(tmp_path / "profiler_log").recordings) == 1
    if code == 1:
        assert "ppprof/" not in done.stderr.partition("Traceback")[2]


SHADOWED = """
import os, sys, threading
from omegaconf import VALUE  # a module beside the script, and one that ppprof imports
import steady

assert VALUE == 7 and sys.argv[1:] == ["a b", "--", "-o"], sys.argv
os.chdir("elsewhere")
threading.Thread(target=steady.train, args=(4,)).start()
"""


def test_the_script_sees_what_python_shows_it(tmp_path: Path) -> None:
    """Modules beside the script, not those of the working directory; threads; another directory."""
    folder = tmp_path / "scripts"
    (tmp_path / "elsewhere").mkdir()
    folder.mkdir()
    (folder / "omegaconf.py").write_text("VALUE = 7")
    (tmp_path / "random.py").write_text("raise ValueError")
    head, net, body = STEADY.replace("{end}", "").partition("net = ")
    lines = f"{net}{body}".replace("sys.argv[1]", "number").splitlines()
    train = "\n".join(f"    {line}" for line in lines if line)
    (folder / "steady.py").write_text(f"{head}\ndef train(number):\n{train}\n")
    (folder / "main.py").write_text(SHADOWED)
    options = ("--steps", "0:4", "--log", "123", "--report", "page.html")
    program = ("scripts/main.py", "a b", "--", "-o")
    run(tmp_path, PPPROF, "run", *options, *program, PYTHONPATH=str(ROOT))
    assert windows_of(tmp_path / "123", 0) == [0, 0, 0, 0]
    assert (tmp_path / "page.html").stat().st_size > 100_000


def test_ranks_that_are_not_initialised_are_reported(tmp_path: Path) -> None:
    script = steady(tmp_path)
    text = (tmp_path / script).read_text().replace("dist.get_world_size() > 1", "False")
    (tmp_path / script).write_text(text)
    done = run(tmp_path, PPPROF, "run", script, "6", PADDLE_TRAINERS_NUM="2", PADDLE_TRAINER_ID="0")
    assert "nothing is recorded: this process is one of 2" in done.stderr


def test_a_config_without_a_block_is_no_config(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text("Model: {name: x}")
    done = run(tmp_path, PPPROF, "run", "-c", "model.yaml", steady(tmp_path), "6", code=2)
    assert "expected a Profiler block, or its keys at the top level" in done.stderr


def test_a_short_training_logs_how_to_choose_the_steps(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "ppprof", "run", steady(tmp_path), "4")
    assert "the training ended after 4 steps" in done.stderr
    assert "ppprof run --steps FIRST:END" in done.stderr
