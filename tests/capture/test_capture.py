"""Captures of a real training on Paddle's CPU build."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ppprof
from ppprof import rundir
from ppprof.errors import UsageError
from ppprof.rundir import triggers

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [pytest.mark.paddle, pytest.mark.usefixtures("unfinished")]

from tests.jobs import toy  # noqa: E402


@pytest.fixture
def block(tmp_path: Path) -> dict[str, Any]:
    """A ``Profiler`` block."""
    return {"enable": True, "scheduler": [2, 4], "profiler_log": str(tmp_path / "log")}


def raw(run: Path) -> list[Path]:
    return [path for _, path in rundir.raw_files(run)]


def test_work_after_the_last_step_is_in_no_table(tmp_path: Path, block: dict[str, Any]) -> None:
    step = toy.training()
    with ppprof.attach({**block, "scheduler": None}) as prof:
        begin_ns = time.perf_counter_ns()
        for _ in range(5):
            step()
            prof.step()
        wall_ns = time.perf_counter_ns() - begin_ns
        step()  # such as an evaluation
        time.sleep(0.3)
    (path,) = raw(tmp_path / "log")
    recorded = toy.recorded(path)
    kind, name = max((key for key in recorded if key[0] == "Operator"), key=recorded.__getitem__)
    assert recorded[kind, name] % 6 == 0
    run = ppprof.open(path)
    operators = run.summary("op").filter(name=name, kind="operator")
    assert operators["calls"].to_list() == [recorded[kind, name] // 6 * 5]
    steps = run.summary("model").row(0, named=True)
    assert (steps["name"], steps["calls"]) == ("ProfileStep", 5)
    assert steps["cpu_total_ns"] < wall_ns + 100e6
    spans = run.events().filter(name="incomplete step")
    assert spans["dur_ns"].item() > 300e6


def test_a_clock_that_is_set_in_a_window_leaves_a_marker(
    tmp_path: Path, block: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only Python's clock is set here, so the marker gives the size, and no time has to change."""
    step = toy.training()
    clock, ahead_ns = time.time_ns, 0
    monkeypatch.setattr(time, "time_ns", lambda: clock() + ahead_ns)
    with ppprof.attach({**block, "scheduler": [0, 4]}) as prof:
        for number in range(5):
            step()
            if number == 2:
                ahead_ns = 60_000_000_000
            prof.step()
    (path,) = raw(tmp_path / "log")
    (marker,) = (name for _, name in toy.recorded(path) if name.startswith(rundir.CLOCK_MARKER))
    size = int(marker[len(rundir.CLOCK_MARKER) :].removesuffix(" ns"))
    assert size == pytest.approx(60_000_000_000, abs=1_000_000)
    assert ppprof.open(path).summary("model")["cpu_max_ns"][0] < 10_000_000_000


@pytest.mark.all
def test_a_clock_that_is_set_forward_a_day_changes_no_step(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler")
    library = tmp_path / "shifted_clock.so"
    source = Path(toy.__file__).parent / "shifted_clock.c"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    program = f"""
import sys
from pathlib import Path
import ppprof
from ppprof.capture import postprocess
postprocess._COMMAND = (sys.executable, "-m", "tests.capture.fake_helper", "")
from tests.jobs import toy
step = toy.training()
block = {{"enable": True, "scheduler": [1, 5], "profiler_log": {str(tmp_path / "log")!r}}}
with ppprof.attach(block) as prof:
    for number in range(6):
        step()
        if number == 3:
            Path({str(tmp_path / "now")!r}).touch()
        step()
        prof.step()
"""
    shift = {"CLOCK_OFFSET_NS": "0", "CLOCK_DRIFT_PPB": "0", "CLOCK_JUMP_NS": "86400000000000"}
    environment = {**os.environ, **shift, "CLOCK_JUMP_FILE": str(tmp_path / "now")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (path,) = raw(tmp_path / "log")
    run = ppprof.open(path)
    steps = run.events().filter(category="ProfileStep")
    assert steps["dur_ns"].len() == 4
    assert 0 < steps["dur_ns"].to_numpy().min() <= steps["dur_ns"].to_numpy().max() < 5e9
    times = (tmp_path / "log/steps/rank_00000.jsonl").read_text().splitlines()
    for span_ns, line in zip(steps["dur_ns"], times[1:5]):
        step = json.loads(line)
        assert span_ns == pytest.approx(step["batch_cost_ns"] - step["stall_ns"], rel=0.5, abs=5e7)


def test_off_is_nothing_at_all() -> None:
    program = """
import sys, ppprof
for off in (None, {"enable": False}):
    with ppprof.attach(off) as prof:
        with prof.paused():
            prof.step(num_samples=1, num_tokens=2, num_micro_batches=1, num_flops=3)
        assert not prof.should_stop
print([name for name in ("paddle", "polars") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_a_window_holds_what_paddle_itself_records(tmp_path: Path, block: dict[str, Any]) -> None:
    step = toy.training()
    step()
    theirs = tmp_path / "theirs.pb"
    profiler = paddle.profiler.Profiler(
        scheduler=(2, 4),
        on_trace_ready=lambda p: p.export(str(theirs), "pb"),
        record_shapes=True,
        profile_memory=True,
    )
    with toy.own_memory_only(), profiler:
        for _ in range(6):
            step()
            profiler.step()
    del profiler
    block["python_stacks"] = False  # a busy machine may let a sample free a tensor, on its thread
    with toy.own_memory_only(), ppprof.attach(block) as prof:
        for _ in range(6):
            step()
            prof.step()
    (ours,) = raw(tmp_path / "log")

    expected = toy.recorded(theirs)
    assert {kind for kind, _ in expected} >= {"ProfileStep", "Forward", "Operator", "memory"}
    assert toy.recorded(ours) == expected


def test_every_window_of_a_schedule_is_saved(tmp_path: Path, block: dict[str, Any]) -> None:
    block["scheduler"] = {"closed": 1, "ready": 1, "record": 2, "repeat": 2, "skip_first": 1}
    step = toy.training()
    with ppprof.attach(block) as prof:
        for _ in range(12):
            step()
            prof.step()
    windows = rundir.raw_files(tmp_path / "log")

    steps = [
        sorted(name for kind, name in toy.recorded(path) if kind == "ProfileStep")
        for _, path in windows
    ]
    assert [name.window for name, _ in windows] == [0, 1]
    assert steps == [["ProfileStep#3", "ProfileStep#4"], ["ProfileStep#7", "ProfileStep#8"]]


def test_a_run_that_ends_inside_a_window_keeps_it(tmp_path: Path, block: dict[str, Any]) -> None:
    step = toy.training()
    with ppprof.attach({**block, "scheduler": [2, 90]}) as prof:
        for _ in range(4):
            step()
            prof.step()
    (path,) = raw(tmp_path / "log")
    assert ("ProfileStep", "ProfileStep#3") in toy.recorded(path)


def test_an_exception_keeps_the_window_and_goes_on(tmp_path: Path, block: dict[str, Any]) -> None:
    step = toy.training()

    def train() -> None:
        with ppprof.attach(block) as prof:
            for number in range(4):
                step()
                if number == 2:
                    raise KeyError("tokens")
                prof.step()

    with pytest.raises(KeyError, match="tokens"):
        train()
    (path,) = raw(tmp_path / "log")
    assert ("Optimization", "Optimization Step") in toy.recorded(path)
    assert not paddle.profiler.utils.in_profiler_mode()


class Direct(paddle.optimizer.Optimizer):  # type: ignore[misc]
    """Plain gradient descent: Paddle records no event for a direct subclass of its base class."""

    def _create_accumulators(self, block: Any, parameters: Any) -> None:
        pass

    def _append_optimize_op(self, block: Any, param_and_grad: Any) -> None:
        parameter, gradient = param_and_grad
        parameter.set_value(parameter - 0.1 * gradient)


class Inherited(paddle.optimizer.SGD):  # type: ignore[misc]
    """An optimizer whose step is in an event of Paddle's, also if it does more."""

    def step(self) -> None:
        super().step()


@pytest.mark.parametrize("kind", [Direct, Inherited, paddle.optimizer.SGD])
def test_each_step_of_an_optimizer_is_one_event(
    kind: Any, tmp_path: Path, block: dict[str, Any]
) -> None:
    net = paddle.nn.Linear(4, 4)
    optimizer = kind(0.1, parameters=net.parameters())
    with ppprof.attach(block) as prof:
        for _ in range(5):
            net(paddle.ones([2, 4])).mean().backward()
            optimizer.step()
            optimizer.clear_grad()
            prof.step()
    (path,) = raw(tmp_path / "log")
    assert toy.recorded(path)["Optimization", "Optimization Step"] == 2  # one in each of two steps


def test_a_window_that_opens_as_the_run_ends_is_not_kept(
    tmp_path: Path, block: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    step = toy.training()
    with ppprof.attach(block) as prof:
        for _ in range(2):
            step()
            prof.step()
    assert raw(tmp_path / "log") == []
    assert "no window was recorded: the schedule is steps 2 to 3, and 2" in capsys.readouterr().err


def test_wrappers_of_a_window_are_removed_after_it(block: dict[str, Any]) -> None:
    from paddle.base import core
    from paddle.io.dataloader import dataloader_iter

    def state() -> list[object]:
        functions = [paddle.distributed.all_reduce, paddle.distributed.stream.all_reduce]
        return [*functions, core.task.wait, dataloader_iter.in_profiler_mode]

    before, step = state(), toy.training()
    with ppprof.attach(block) as prof:
        seen = []
        for _ in range(6):
            step()
            seen.append(paddle.distributed.all_reduce is before[0])
            prof.step()
    assert seen == [True, True, False, False, True, True]
    assert state() == before
    assert not paddle.profiler.utils.in_profiler_mode()


def test_a_full_run_leaves_a_manifest_and_step_times(tmp_path: Path, block: dict[str, Any]) -> None:
    step = toy.training()
    with ppprof.attach(block, config={"Global": {"seed": 1}}, device_peak_flops=1e12) as prof:
        for _ in range(6):
            step()
            prof.step(num_samples=4, num_tokens=64)
    run = tmp_path / "log"
    manifest = rundir.read_manifest(run)

    assert manifest["world_size"] == 1
    assert manifest["axes"]["order"] == ["dp", "pp", "sharding", "sep", "mp"]
    assert manifest["ranks"][0]["coordinate"]["dp"] == 0
    assert manifest["versions"]["paddle"] == paddle.__version__
    assert manifest["config"] == {"Global": {"seed": 1}}
    assert manifest["device_peak_flops"] == 1e12
    assert manifest["profiler"]["scheduler"] == [2, 4]
    lines = [json.loads(line) for line in (run / rundir.steps_path(0)).read_text().splitlines()]
    assert [line["window"] for line in lines] == [None, None, 0, 0, None, None]
    assert all(line["host_peak_bytes"] > 50 << 20 for line in lines)


def test_the_peak_of_tensors_on_the_host_is_logged(tmp_path: Path, block: dict[str, Any]) -> None:
    with ppprof.attach({**block, "timer_only": True}) as prof:
        prof.step()
        size = paddle.base.core.host_memory_stat_peak_value("Allocated", 0)
        held = paddle.zeros([size // 4 + 1])
        prof.step()
    first, second = ppprof.open(tmp_path / "log").step_times["host_peak_allocated_bytes"]
    assert first <= size < 4 * held.size <= second


def test_a_cpu_has_no_known_peak(tmp_path: Path, block: dict[str, Any]) -> None:
    paddle.set_device("cpu")
    with ppprof.attach({**block, "timer_only": True}) as prof:
        prof.step(num_flops=1)
    assert rundir.read_manifest(tmp_path / "log")["device_peak_flops"] is None


@pytest.mark.parametrize("peak", [0, -1e12, float("nan"), float("inf"), "312e12", True])
def test_a_peak_that_is_invalid(block: dict[str, Any], peak: Any) -> None:
    expected = re.escape(f"device_peak_flops: {peak!r}: expected FLOP/s, a number above 0 such as")
    with pytest.raises(UsageError, match=expected):
        ppprof.attach(block, device_peak_flops=peak)


def test_a_device_that_cannot_be_asked_does_not_end_the_training(
    block: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise RuntimeError("no driver")

    module = sys.modules["ppprof.capture.attach"]
    monkeypatch.setattr(module, "_device_peak_flops", broken)
    with ppprof.attach(block) as prof:
        prof.step()
    assert "cannot attach: no driver; nothing is recorded" in capsys.readouterr().err


def test_the_last_lines_say_how_to_look(
    tmp_path: Path, block: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    step = toy.training()
    with ppprof.attach(block) as prof:
        for _ in range(4):
            step()
            prof.step()
    run = tmp_path / "log"
    (name,) = [name for name, _ in rundir.raw_files(run)]
    assert capsys.readouterr().out.splitlines()[-4:] == [
        f"VisualDL (its Trace page needs the internet): visualdl --logdir {run}",
        f"chrome://tracing or https://ui.perfetto.dev: {run / name.trace('json')}",
        f"all ranks, as a page: ppprof report {run}",
        f"what to change: ppprof advise {run}",
    ]


def test_a_second_run_goes_beside_the_first(
    tmp_path: Path, block: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        with ppprof.attach({**block, "timer_only": True}) as prof:
            prof.step()
    log = tmp_path / "log"
    assert rundir.newest(log) == log / "run_002"
    assert (
        f"{log} holds an earlier run; this run is written to {log}/run_002"
        in capsys.readouterr().err
    )


def test_a_failure_to_attach_is_a_warning(
    tmp_path: Path,
    block: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PADDLE_TRAINER_ID", "first")
    with ppprof.attach({**block, "stop_training": True}) as prof:
        stops = []
        for _ in range(5):
            prof.step()
            stops.append(prof.should_stop)
    assert stops == [False] * 3 + [True] * 2  # as the other ranks will
    assert capsys.readouterr().err == (
        "ppprof: cannot attach: invalid literal for int() with base 10: 'first'; "
        "nothing is recorded, the training goes on\n"
    )
    assert not (tmp_path / "log").exists()


def test_attaching_twice_at_once_logs_and_does_nothing(
    tmp_path: Path, block: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with ppprof.attach({**block, "timer_only": True}):
        ppprof.attach(block).step()
    assert "attach() was called while an earlier session is open" in capsys.readouterr().err
    assert not (tmp_path / "log" / "run_002").exists()


def test_a_window_may_open_while_another_thread_reads_data(block: dict[str, Any]) -> None:
    reading, go_on = threading.Event(), threading.Event()

    class Slow(paddle.io.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 1

        def __getitem__(self, at: int) -> float:
            reading.set()
            go_on.wait(30)
            return 1.0

    batches: list[object] = []
    loader = paddle.io.DataLoader(Slow(), batch_size=1, num_workers=0)
    thread = threading.Thread(target=lambda: batches.extend(loader))
    with ppprof.attach(block) as prof:
        prof.step()
        thread.start()
        reading.wait(30)
        prof.step()
        go_on.set()
        thread.join(30)
        prof.step()
    assert len(batches) == 1


@pytest.mark.skipif(
    paddle.__version__.startswith("2."), reason="needs Paddle 3, whose gradients have shapes"
)
def test_layers_have_flops_and_times_forward_and_backward(
    tmp_path: Path, block: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    step = toy.training()
    with ppprof.attach({**block, "with_flops": True}) as prof:
        for _ in range(4):
            step()
            prof.step()
    (path,) = raw(tmp_path / "log")
    layers = ppprof.open(path).summary("layer")
    (net,) = layers.filter(name="Sequential", depth=0).rows(named=True)
    # batch 4, length 16, width 16, 2 heads, 50 words: query, key, value, output; two products of
    # attention; two of the feed-forward net; the words
    products = 2 * 4 * 16 * (4 * 16 * 16 + 2 * 16 * 16 + 2 * 16 * 32 + 16 * 50)
    assert products < net["flops"] < 1.2 * products
    assert 2 * products < net["backward_flops"] < 2.4 * products
    assert net["forward_ns"] > 0
    assert net["backward_ns"] > 0
    assert net["steps"] == 2
    assert "with_flops" not in capsys.readouterr().err


@pytest.fixture
def in_the_way(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "log"
    path.write_text("a file")
    yield path
    assert path.read_text() == "a file"


def test_a_directory_that_cannot_be_made_ends_the_recording_only(
    in_the_way: Path, block: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    step = toy.training()
    with ppprof.attach({**block, "stop_training": True}) as prof:
        stops = []
        for _ in range(5):
            step()
            prof.step()
            stops.append(prof.should_stop)
    assert stops == [False] * 3 + [True] * 2
    assert "File exists" in capsys.readouterr().err


def test_a_path_that_is_not_utf8_is_reported_at_once(
    tmp_path: Path,
    block: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    monkeypatch.chdir(folder)
    with ppprof.attach({**block, "profiler_log": "log"}) as prof:
        for _ in range(6):
            prof.step()
    err = capsys.readouterr().err
    assert "the path is not UTF-8, as Paddle needs it" in err
    assert err.count("ppprof: ") == 1
    assert list(folder.iterdir()) == []


def test_a_directory_that_goes_away_ends_the_recording_only(
    tmp_path: Path, block: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    step = toy.training()
    with ppprof.attach(block) as prof:
        for number in range(6):
            step()
            if number == 2:
                (tmp_path / "log").rename(tmp_path / "elsewhere")
            prof.step()
    err = capsys.readouterr().err
    assert "recording failed" in err
    assert "step times are no longer written" in err


@pytest.mark.skipif(os.geteuid() == 0, reason="needs a user that permissions apply to")
def test_a_read_only_directory_ends_the_recording_only(
    tmp_path: Path, block: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o500)
    with ppprof.attach(block) as prof:
        prof.step()
    tmp_path.chmod(0o700)
    assert "Permission denied" in capsys.readouterr().err


@pytest.mark.all
def test_a_session_that_is_never_closed_closes_itself(tmp_path: Path) -> None:
    program = f"""
import ppprof
from ppprof.capture import postprocess
import sys
postprocess._COMMAND = (sys.executable, "-m", "tests.capture.fake_helper", "")
from tests.jobs import toy
step = toy.training()
prof = ppprof.attach({{"enable": True, "profiler_log": {str(tmp_path / "log")!r}}})
step(); prof.step()
raise SystemExit(7)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
    (path,) = raw(tmp_path / "log")
    assert ("ProfileStep", "ProfileStep#0") in toy.recorded(path)


@pytest.mark.all
def test_shapes_and_memory_cost_no_memory_outside_a_window(tmp_path: Path) -> None:
    def growth_mib(mode: str) -> float:
        command = [sys.executable, "-m", "tests.jobs.resident", str(tmp_path / mode), mode]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return float(done.stdout)

    assert growth_mib("window") < 4
    assert growth_mib("trigger") < 4
    assert growth_mib("always") > 10


def test_a_trigger_opens_windows_in_one_process(
    tmp_path: Path, block: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    step = toy.training()
    run = tmp_path / "log"
    with ppprof.attach({**block, "trigger": {"steps": 2}}) as prof:
        for number in range(30):
            step()
            time.sleep(0.03)
            prof.step()
            if number in (5, 17):
                triggers.request_path(run).touch()
    steps = [
        [int(name[12:]) for kind, name in toy.recorded(path) if kind == "ProfileStep"]
        for path in raw(run)
    ]
    assert [len(numbers) for numbers in steps] == [2, 2, 2]
    assert sorted(steps[0]) == [2, 3]  # the scheduler's
    lines = [json.loads(line) for line in (run / rundir.steps_path(0)).read_text().splitlines()]
    for window, numbers in enumerate(steps):
        assert [line["step"] for line in lines if line["window"] == window] == sorted(numbers)
    assert capsys.readouterr().err.count("asked for by request") == 2


def test_an_exception_keeps_a_triggered_window(tmp_path: Path, block: dict[str, Any]) -> None:
    step = toy.training()
    trigger = {"slow_step": {"times": 3}, "steps": 500}

    def train() -> None:
        with ppprof.attach({**block, "scheduler": None, "trigger": trigger}) as prof:
            for number in range(60):
                step()
                time.sleep(0.2 if number == 25 else 0.01)
                prof.step()
            raise KeyError("tokens")

    with pytest.raises(KeyError, match="tokens"):
        train()
    (path,) = raw(tmp_path / "log")
    assert ("ProfileStep", "ProfileStep#50") in toy.recorded(path)
    assert not paddle.profiler.utils.in_profiler_mode()


@pytest.mark.all
def test_sigterm_keeps_a_triggered_window(tmp_path: Path) -> None:
    program = f"""
import os, signal, sys, time
import ppprof
from ppprof.capture import postprocess
postprocess._COMMAND = (sys.executable, "-m", "tests.capture.fake_helper", "")
from tests.jobs import toy
step = toy.training()
trigger = {{"slow_step": {{"times": 3}}, "steps": 500}}
block = {{"enable": True, "profiler_log": {str(tmp_path / "log")!r}, "trigger": trigger}}
prof = ppprof.attach(block)
for number in range(60):
    step()
    time.sleep(0.2 if number == 25 else 0.01)
    prof.step()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(30)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -15, done.stderr
    (path,) = raw(tmp_path / "log")
    assert ("ProfileStep", "ProfileStep#50") in toy.recorded(path)


_BOUNDED = """
import json, sys
from pathlib import Path
import ppprof
from ppprof import rundir
from ppprof.capture import postprocess
from tests.jobs import toy
postprocess._COMMAND = (sys.executable, "-m", "tests.capture.fake_helper", "")
step = toy.training(layers=4)
schedule = {"closed": 5, "ready": 1, "record": 200, "repeat": 2}
block = {"enable": True, "scheduler": schedule, "max_trace_mb": 3, "formats": ["pb"]}
for log in sys.argv[1:]:
    with ppprof.attach({**block, "profiler_log": log}) as prof:
        for _ in range(410):
            step()
            prof.step()
"""


@pytest.mark.jobs
def test_a_window_ends_where_the_disk_space_given_to_it_does(tmp_path: Path) -> None:
    """In a process of its own: the first window is estimated by the memory that it takes, and Paddle
    reuses the memory of earlier recordings."""
    logs = [tmp_path / "first", tmp_path / "again"]
    command = [sys.executable, "-c", _BOUNDED, *map(str, logs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ended = re.findall(
        r"rank 0: window 0 ends after (\d+) steps? on this rank: Profiler.max_trace_mb 3",
        done.stderr,
    )
    assert len(ended) == 2
    for log, num_steps in zip(logs, ended):
        assert 0 < rundir.trace_bytes(log, 0) <= 2 * 3e6
        steps = [name for kind, name in toy.recorded(raw(log)[0]) if kind == "ProfileStep"]
        assert len(steps) == int(num_steps) < 200


def test_a_training_may_change_its_directory(
    tmp_path: Path, block: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    step = toy.training()
    monkeypatch.chdir(tmp_path)
    with ppprof.attach({**block, "profiler_log": "log"}) as prof:
        step()
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        for _ in range(5):
            step()
            prof.step()
    assert len(raw(tmp_path / "log")) == 1
    assert len((tmp_path / "log/steps/rank_00000.jsonl").read_text().splitlines()) == 5
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert "visualdl --logdir log\n" in capfd.readouterr().out  # as it was given


def test_a_session_that_ends_before_its_window_puts_the_tracers_away(
    tmp_path: Path, block: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Paddle's own profiler does; a GPU's tracer would go on collecting."""
    from ppprof.capture.recording import recorder

    calls: list[str] = []

    class Tracers:
        def __getattr__(self, name: str) -> Any:
            return lambda: calls.append(name)

    monkeypatch.setattr(recorder.core._Profiler, "create", lambda *options: Tracers())
    schedule = {"closed": 1, "ready": 1, "record": 2, "repeat": 1}
    with ppprof.attach({**block, "scheduler": schedule}) as prof:
        prof.step()
    assert calls == ["prepare", "start", "stop"]
    assert raw(tmp_path / "log") == []
