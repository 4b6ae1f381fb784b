"""Samples of Python stacks: whose line gets the time, and what is kept of it."""

from __future__ import annotations

import dataclasses
import dis
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import pytest

from ppprof.capture import session
from ppprof.capture.recording import python_stacks
from ppprof.capture.recording.python_stacks import StackSampler
from ppprof.rundir import TraceName
from ppprof.rundir.python_stacks import PythonStacks, read_python_stacks
from ppprof.rundir.run_file import RunFile

NAME = TraceName(0, "dp0", datetime(2026, 11, 25), 0)
PROGRAM = """\
import json
import time


def hold_the_lock():
    sorted(range(3_000_000), key=float)


def wait():
    time.sleep(0.25)


def work():
    hold_the_lock()
    wait()


def call(function):
    function()
"""
HOLDS, WAITS = 6, 10
"""Lines of PROGRAM."""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """PROGRAM as the module ``program`` of the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    import program  # type: ignore[import-not-found]

    yield program
    del sys.modules["program"]


def recorded(
    run: Path, work: Callable[[], object], rate: float | str | bool = "auto", **options: Any
) -> PythonStacks:
    """Return the stacks of a window in which ``work`` runs."""
    sampler = StackSampler(run, rate, **options)
    sampler.started()
    try:
        work()
    finally:
        sampler.uninstall()  # else its thread samples all later tests of the process
    sampler.saved(NAME, 1)
    return read_python_stacks(RunFile(run, NAME.stacks))


def own_times(stacks: PythonStacks) -> dict[str, int]:
    """Return the nanoseconds of each innermost own line of this thread."""
    times: dict[str, int] = {}
    for thread, _, dur_ns, row, _ in stacks.samples.tolist():
        if thread == threading.get_native_id():
            frames = [stacks.frames[frame] for frame in stacks.stacks[row]]
            own = next((frame.place for frame in frames if frame.is_own), "")
            times[own] = times.get(own, 0) + dur_ns
    return times


def test_time_belongs_to_the_line_that_keeps_the_lock_and_to_the_line_that_waits(
    tmp_path: Path, program: ModuleType
) -> None:
    truth: dict[int, int] = {}

    def work() -> None:
        for line, function in ((HOLDS, program.hold_the_lock), (WAITS, program.wait)):
            begin = time.perf_counter_ns()
            function()
            truth[line] = time.perf_counter_ns() - begin

    stacks = recorded(tmp_path, work)
    times = own_times(stacks)
    for line, expected in truth.items():
        # Two samples at each end, and a machine with other work.
        assert times[f"program.py:{line}"] == pytest.approx(expected, rel=0.25, abs=20_000_000)
    assert sum(times.values()) <= 1.01 * sum(truth.values()) + 20_000_000


def test_a_sample_stands_for_the_time_from_one_instant_at_which_it_was_due_to_the_next(
    tmp_path: Path, program: ModuleType
) -> None:
    samples = recorded(tmp_path, program.hold_the_lock, 200).samples
    samples = samples[samples[:, 0] == threading.get_native_id()]
    due_ns = samples[:, 1] - samples[:, 4]
    differences = np.diff(due_ns) - samples[1:, 2]
    assert np.median(np.abs(differences)) < 1_000_000  # two clocks are read, one behind the other
    assert samples[:, 4].max() > 500_000  # a sample waits for the lock


def test_time_in_which_ppprof_ends_a_step_is_no_line_of_the_training(
    tmp_path: Path, program: ModuleType
) -> None:
    scope = {"__name__": session.__name__, "sleep": time.sleep}
    exec("def step(): sleep(0.1)", scope)  # noqa: S102
    times = own_times(recorded(tmp_path, lambda: program.call(scope["step"])))
    assert times[""] >= 50_000_000 > times.get("program.py:19", 0)


def test_how_long_each_thread_ran_is_what_its_clock_says(
    tmp_path: Path, program: ModuleType
) -> None:
    own, other = [0], [0]

    def hold() -> None:
        program.hold_the_lock()
        other[0] = time.thread_time_ns()
        done.wait()  # a thread that has ended is not known

    def work() -> None:
        begin = time.thread_time_ns()
        thread.start()
        program.wait()
        while not other[0]:
            time.sleep(0.01)
        own[0] = time.thread_time_ns() - begin

    done, thread = threading.Event(), threading.Thread(target=hold)
    stacks = recorded(tmp_path, work)
    native = thread.native_id
    done.set()
    thread.join()
    mine, its = stacks.threads[threading.get_native_id()], stacks.threads[native or 0]
    assert its.ran_ns == pytest.approx(other[0], rel=0.1, abs=5_000_000)
    assert mine.ran_ns == pytest.approx(own[0], rel=0.5, abs=20_000_000)
    assert mine.ran_ns < its.ran_ns < mine.window_ns
    assert mine.window_ns == its.window_ns >= 250_000_000


LOOP = """\
def spin(items):
    for x in items:
        x = 1
        x = 2
"""


def test_the_end_of_a_loop_belongs_to_its_first_line() -> None:
    """Where another thread wants the lock, which Python gives away at the jump back; else to its last one."""
    names: dict[str, Any] = {}
    exec(compile(LOOP, "loop.py", "exec"), names)  # noqa: S102
    jumps = [
        each
        for each in dis.get_instructions(names["spin"])
        if each.opname in python_stacks._BACKWARDS
    ]

    lines = python_stacks._LinesOfCode(names["spin"].__code__)
    assert [lines.line(each.offset, may_wait=True) for each in jumps] == [2]
    assert [lines.line(each.offset, may_wait=False) for each in jumps] == [4]


def test_the_line_of_an_instruction_is_that_of_its_frame() -> None:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        lines = python_stacks._LinesOfCode(frame.f_code)
        assert lines.line(frame.f_lasti, may_wait=False) == frame.f_lineno
        frame = frame.f_back


def test_frames_say_whose_they_are(tmp_path: Path, program: ModuleType) -> None:
    stacks = recorded(tmp_path, program.work, 1000)
    own = {(frame.module, frame.file, frame.function) for frame in stacks.frames if frame.is_own}
    assert ("program", "program.py", "wait") in own
    foreign = {frame.file for frame in stacks.frames if not frame.is_own}
    assert any("_pytest" in file for file in foreign)
    assert not any("_pytest" in file for _, file, _ in own)


def test_lines_around_the_costly_ones_are_kept_unless_source_is_off(
    tmp_path: Path, program: ModuleType
) -> None:
    lines = PROGRAM.split("\n")
    kept = recorded(tmp_path, program.wait, 1000).source["program.py"]
    assert [kept[number] for number in range(8, 12)] == lines[7:11]
    assert set(kept) == set(range(8, 13))
    assert recorded(tmp_path, program.wait, 1000, keeps_source=False).source == {}


def test_source_outside_the_working_directory_is_not_kept(
    tmp_path: Path, program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    stacks = recorded(tmp_path, program.wait, 1000)
    assert stacks.source == {}
    assert str(tmp_path / "program.py") in {frame.file for frame in stacks.frames}


def test_source_that_was_written_since_is_not_kept(tmp_path: Path, program: ModuleType) -> None:
    """The user goes on with the script while it trains."""

    def work() -> None:
        program.wait()
        (tmp_path / "program.py").write_text("x = 1\n" * 20, encoding="utf-8")
        later = time.time() + 5
        os.utime(tmp_path / "program.py", (later, later))

    stacks = recorded(tmp_path, work, 1000)
    assert "program.py" in {frame.file for frame in stacks.frames}
    assert "program.py" not in stacks.source


def test_source_of_an_installed_trainer_is_not_that_of_a_clone_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paddlenlp").mkdir()
    (tmp_path / "paddlenlp/trainer.py").write_text("x = 1\n" * 20, encoding="utf-8")
    names: dict[str, Any] = {"__name__": "paddlenlp.trainer"}
    installed = "/usr/lib/python3/site-packages/paddlenlp/trainer.py"
    exec(compile(PROGRAM, installed, "exec"), names)  # noqa: S102
    stacks = recorded(tmp_path, names["wait"], 1000)
    assert "paddlenlp/trainer.py" in {frame.file for frame in stacks.frames}
    assert "paddlenlp/trainer.py" not in stacks.source


def test_a_link_out_of_the_working_directory_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret.py").write_text(PROGRAM, encoding="utf-8")
    folder = tmp_path / "cwd"
    folder.mkdir()
    (folder / "program.py").symlink_to(tmp_path / "secret.py")
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"__name__": "program"}
    exec(compile(PROGRAM, str(folder / "program.py"), "exec"), names)  # noqa: S102
    stacks = recorded(tmp_path, names["wait"], 1000)
    assert "program.py" in {frame.file for frame in stacks.frames}
    assert stacks.source == {}


def test_half_of_the_ticks_stand_for_all_the_time(
    tmp_path: Path, program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_stacks, "_MOST_SAMPLES", 40)
    stacks = recorded(tmp_path, program.wait, 1000)
    mine = stacks.samples[stacks.samples[:, 0] == threading.get_native_id()]
    assert 5 < len(mine) < 40
    assert mine[:, 2].sum() == pytest.approx(250_000_000, abs=60_000_000)
    assert (np.diff(mine[:, 1]) > 0).all()


def test_another_thread_counts_only_in_own_code(tmp_path: Path, program: ModuleType) -> None:
    done = threading.Event()
    idle = threading.Thread(target=done.wait)
    busy = threading.Thread(target=program.wait)
    idle.start()

    def work() -> None:
        busy.start()
        busy.join()

    stacks = recorded(tmp_path, work, 1000)
    done.set()
    idle.join()
    assert set(stacks.samples[:, 0].tolist()) == {threading.get_native_id(), busy.native_id}


def test_a_recording_in_memory_keeps_its_own_samples(tmp_path: Path, program: ModuleType) -> None:
    sampler = StackSampler(tmp_path, 1000)
    first, second = NAME, TraceName(0, "dp0", datetime(2026, 11, 26), 1)
    for name in (first, second):
        sampler.started()
        (program.wait if name == first else program.hold_the_lock)()
        sampler.uninstall()
        if name == first:
            sampler.kept(name, 1)
    sampler.saved(second, 1)
    sampler.saved(first, 1)
    places = [
        own_times(read_python_stacks(RunFile(tmp_path, name.stacks))) for name in (first, second)
    ]
    assert f"program.py:{WAITS}" in places[0]
    assert f"program.py:{HOLDS}" not in places[0]
    assert f"program.py:{HOLDS}" in places[1]


def test_each_segment_of_a_window_has_its_own_samples(tmp_path: Path, program: ModuleType) -> None:
    sampler = StackSampler(tmp_path, 1000)
    names = [dataclasses.replace(NAME, segment=segment) for segment in (0, 1)]
    before = threading.active_count()
    for name, work in zip(names, (program.wait, program.hold_the_lock)):
        sampler.started()
        for _ in range(3):  # on a busy machine, a late sample may find the next line
            work()
        sampler.saved(name, 1)
    sampler.uninstall()
    deadline = time.monotonic() + 10
    while threading.active_count() > before:
        assert time.monotonic() < deadline, "a thread still samples"
        time.sleep(0.01)
    places = [own_times(read_python_stacks(RunFile(tmp_path, name.stacks))) for name in names]
    assert f"program.py:{WAITS}" in places[0]
    assert f"program.py:{WAITS}" not in places[1]
    assert f"program.py:{HOLDS}" in places[1]


def test_a_window_on_a_full_disk_loses_its_stacks_only(
    tmp_path: Path, program: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "stacks").write_text("no folder", encoding="utf-8")
    sampler = StackSampler(tmp_path, 1000)
    sampler.started()
    sampler.uninstall()
    sampler.saved(NAME, 1)
    assert "window 0 has no Python stacks" in caplog.text


def test_samples_keep_nothing_of_the_training_alive(tmp_path: Path, program: ModuleType) -> None:
    freed_by: list[int] = []

    class Tensor:
        def __del__(self) -> None:
            freed_by.append(threading.get_ident())

    def layer() -> None:
        tensor = Tensor()
        time.sleep(0.002)
        del tensor

    def step() -> None:
        tensor = Tensor()  # freed with the frame, which a sample has read
        layer()
        assert tensor

    def work() -> None:
        for _ in range(50):
            step()
        # A busy machine may take the processor from a thread that holds a frame.
        assert freed_by.count(threading.get_ident()) >= 90

    gc.disable()
    try:
        stacks = recorded(tmp_path, work, 1000)
    finally:
        gc.enable()
    assert len(freed_by) == 100
    assert any(frame.function.endswith("layer") for frame in stacks.frames)


@pytest.mark.parametrize("own", [None, 0.25])
def test_a_window_shortens_the_switch_interval_and_restores_it(
    tmp_path: Path, own: float | None
) -> None:
    before = sys.getswitchinterval()
    sampler = StackSampler(tmp_path, 1000)
    sampler.started()
    assert sys.getswitchinterval() == pytest.approx(0.0002)
    if own is not None:  # the training sets it meanwhile
        sys.setswitchinterval(own)
    sampler.uninstall()
    try:
        assert sys.getswitchinterval() == (own or before)
    finally:
        sys.setswitchinterval(before)


READS = """\
def read(x):
    for _ in range(3):
        x.item()
    float(x), x.numpy()
    if x > 0:
        print(x)
"""


@pytest.mark.paddle
def test_reads_of_tensors_are_counted_by_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reads.py").write_text(READS, encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(READS, str(tmp_path / "reads.py"), "exec"), names)  # noqa: S102
    methods = [vars(paddle.Tensor)[name] for name in python_stacks._READS]
    begin = time.time_ns()
    stacks = recorded(tmp_path, lambda: names["read"](paddle.to_tensor(1.0)))
    assert [vars(paddle.Tensor)[name] for name in python_stacks._READS] == methods
    capsys.readouterr()
    lines = [stacks.frames[stacks.stacks[row][0]].line for row in stacks.reads[:, 3]]
    counts = {line: lines.count(line) for line in set(lines)}
    assert counts.pop(6) >= 1  # print reads once or more often
    assert counts == {3: 3, 4: 2, 5: 1}
    assert (stacks.reads[:, 1] - stacks.reads[:, 2] >= begin).all()
    assert (stacks.reads[:, 0] == threading.get_native_id()).all()


LOADS = """\
import time

def collate(samples):
    time.sleep(0.02)
    return samples[0]
"""


def test_no_frame_outlives_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profiler of the training, say, is gone once its function has returned."""
    taken = threading.Event()

    def slow(frame: FrameType, most: int) -> list[FrameType]:
        taken.set()
        time.sleep(0.02)  # the interpreter's lock is another thread's
        return [frame]

    monkeypatch.setattr(python_stacks, "stack_of", slow)
    sampler = StackSampler(tmp_path, 1000)
    sampler.started()
    assert taken.wait(10)

    class Local:
        pass

    def in_window() -> weakref.ref[Local]:
        local = Local()
        taken.clear()
        taken.wait(10)
        sampler.uninstall()
        return weakref.ref(local)

    assert in_window()() is None


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the same as for the workers below")
def test_a_process_that_is_forked_in_a_window_gets_the_switch_interval_of_the_training(
    tmp_path: Path,
) -> None:
    sampler = StackSampler(tmp_path, 100)
    sampler.started()
    child = os.fork()
    if child == 0:
        os._exit(round(1e4 * sys.getswitchinterval()))
    sampler.uninstall()
    assert os.waitpid(child, 0)[1] == round(1e4 * sys.getswitchinterval()) << 8


@pytest.mark.paddle
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="workers are sampled on Linux only")
def test_workers_of_a_loader_are_sampled_while_a_window_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are forked ahead of the first of two windows, and go on behind it."""
    paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loads.py").write_text(LOADS, encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(LOADS, str(tmp_path / "loads.py"), "exec"), names)  # noqa: S102
    samples = [np.zeros(1, "float32")] * 400
    options = {"num_workers": 2, "collate_fn": names["collate"], "batch_size": 1}
    batches = iter(paddle.io.DataLoader(samples, **options))

    sizes: list[int] = []

    def size() -> int:
        assert python_stacks._WORKERS is not None
        return os.fstat(python_stacks._WORKERS._file.fd).st_size

    def work() -> None:
        for _ in range(100):
            next(batches)
        sizes.append(size())

    for _ in range(2):
        begin_ns = time.time_ns()
        stacks = recorded(tmp_path, work, 1000)
        of_workers = stacks.samples[stacks.samples[:, 0] != threading.get_native_id()]
        assert len(set(of_workers[:, 0].tolist())) == 2
        assert (of_workers[:, 1] >= begin_ns).all()
        assert 0.2 * (time.time_ns() - begin_ns) < of_workers[:, 2].sum() / 2
        assert size() < sizes.pop() / 2  # what a worker appends behind the window
        next(batches)
    lines = [
        next(
            stacks.frames[frame].place
            for frame in stacks.stacks[row]
            if stacks.frames[frame].is_own
        )
        for row in of_workers[:, 3].tolist()
    ]
    assert lines.count("loads.py:4") > 0.8 * len(lines)
    assert len(list(batches)) == 400 - 202


DECODES = """\
def decode(rows):
    total = 0
    for _ in range(2_000):
        for row in rows:
            total = total + row * 3 + (row << 2) + (row << 3) + (row << 5)
    return total
"""


def test_in_a_worker_the_last_statement_of_a_loop_has_its_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread is the only one of the training's, so it waits for none at the loop's head."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "decodes.py").write_text(DECODES, encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(DECODES, str(tmp_path / "decodes.py"), "exec"), names)  # noqa: S102
    found: list[PythonStacks] = []
    sampler = threading.Thread(target=lambda: found.append(python_stacks._sample_worker(0.5)))
    sampler.start()
    while sampler.is_alive():
        names["decode"](range(100))
    (stacks,) = found
    lines = Counter(
        next(stacks.frames[frame].line for frame in stacks.stacks[row])
        for row in stacks.samples[:, 3].tolist()
    )
    assert lines[5] > 0.8 * sum(lines.values())


COLLECTS = """\
import gc

def collect():
    gc.collect(0)
    gc.collect()
    [[] for _ in range(9)], gc.collect()
"""


@pytest.mark.paddle
def test_full_garbage_collections_are_noted_with_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "collects.py").write_text(COLLECTS, encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(COLLECTS, str(tmp_path / "collects.py"), "exec"), names)  # noqa: S102
    before = list(gc.callbacks)
    sampler = StackSampler(tmp_path, "auto")
    sampler.started()
    sampler.started()  # of the window's next segment
    names["collect"]()
    sampler.uninstall()
    assert gc.callbacks == before
    names["collect"]()
    sampler.saved(NAME, 1)
    stacks = read_python_stacks(RunFile(tmp_path, NAME.stacks))
    found = stacks.collections
    assert [stacks.frames[stacks.stacks[row][0]].line for row in found[:, 3]] == [5, 6]
    assert (found[:, 0] == threading.get_native_id()).all()
    assert (found[:, 2] > 0).all()


@pytest.mark.parametrize(
    "evaluate",
    [
        lambda net: net.eval(),
        lambda net: net.train(False),
        lambda net: net.train(mode=False),
    ],
)
def test_evaluations_last_until_the_layer_trains_again(
    tmp_path: Path, evaluate: Callable[[Any], Any]
) -> None:
    """A teacher, which never does, is no evaluation. A loop may switch to evaluation for each batch: one after the other."""
    paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    net, teacher = paddle.nn.Linear(2, 2), paddle.nn.Linear(2, 2)
    methods = vars(paddle.nn.Layer)
    before = methods["eval"], methods["train"]
    sampler = StackSampler(tmp_path, "auto")
    sampler.started()
    net.train()
    begin_ns = time.time_ns()
    for _ in range(2):
        teacher.eval()
        evaluate(net)
        assert not net.training
        time.sleep(0.02)
    net.train()
    assert net.training
    end_ns = time.time_ns()
    sampler.uninstall()
    assert (methods["eval"], methods["train"]) == before
    sampler.saved(NAME, 1)
    rows = read_python_stacks(RunFile(tmp_path, NAME.stacks)).evaluations.tolist()
    assert {(thread, line) for thread, _, _, line, _ in rows} == {(threading.get_native_id(), -1)}
    (first, second), (middle, last) = zip(*((end - dur, end) for _, end, dur, *_ in rows))
    assert begin_ns <= first <= middle - 20_000_000
    assert middle == second <= last - 20_000_000 <= end_ns - 20_000_000


def test_gradients_cleared_one_after_the_other_are_noted_as_one(tmp_path: Path) -> None:
    paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    net = paddle.nn.Sequential(*(paddle.nn.Linear(2, 2) for _ in range(9)))
    optimizer = paddle.optimizer.SGD(parameters=net.parameters())
    sampler = StackSampler(tmp_path, "auto")
    sampler.started()
    spans = []
    for clear in (optimizer.clear_grad, net.clear_gradients):
        net(paddle.ones([1, 2])).sum().backward()
        begin_ns = time.time_ns()
        clear()
        spans.append((begin_ns, time.time_ns()))
        assert not any(parameter.grad.numpy().any() for parameter in net.parameters())
    sampler.uninstall()
    net.clear_gradients()
    sampler.saved(NAME, 1)
    clears = read_python_stacks(RunFile(tmp_path, NAME.stacks)).clears.tolist()
    assert {thread for thread, *_ in clears} == {threading.get_native_id()}
    for begin_ns, end_ns in spans:
        own = [(end - dur, end) for _, end, dur, *_ in clears if begin_ns <= end <= end_ns]
        assert 1 <= len(own) < 9  # a pause of the thread parts them
        assert begin_ns <= own[0][0]


@pytest.mark.parametrize("num", [8, 0])
def test_who_holds_tensors_is_looked_for_if_memory_has_grown(num: int, tmp_path: Path) -> None:
    paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    sampler = StackSampler(tmp_path, "auto")

    def train() -> list[Any]:  # without an assert, in which pytest reads locals()
        sampler.started()
        kept = [paddle.ones([16 << 10]) for _ in range(num)]
        sampler.uninstall()
        sampler.saved(NAME, 1)
        return kept

    kept = train()
    holders = read_python_stacks(RunFile(tmp_path, NAME.stacks)).holders
    addresses = [each.data_ptr() for each in kept]
    assert [sorted(each.addresses) for each in holders if each.name.startswith("kept, ")] == (
        [sorted(addresses)] if num else []
    )
    assert num or not holders


def test_a_sum_with_its_graph_is_looked_for_if_memory_has_grown(tmp_path: Path) -> None:
    paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    sampler = StackSampler(tmp_path, "auto")

    def train() -> None:  # without an assert, in which pytest reads locals()
        layer = paddle.nn.Linear(4, 16 << 10)
        total = layer(paddle.ones([2, 4])).square().mean()
        sampler.install()
        sampler.started()
        for step in range(6):
            total += layer(paddle.ones([2, 4])).square().mean()
            sampler.step(step + 1)
        sampler.uninstall()
        sampler.saved(NAME, 1)

    train()
    holders = read_python_stacks(RunFile(tmp_path, NAME.stacks)).holders
    names = [each.name.partition(",")[0] for each in holders if each.is_chain]
    assert names == ["total"]


def test_paddle_is_not_imported_ahead_of_the_script() -> None:
    """`ppprof run` imports the module first, and watches the script's import of Paddle."""
    module = "ppprof.capture.recording.python_stacks"
    subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; sys.exit('paddle' in sys.modules)"],
        check=True,
    )


COLLECTS_IN_PYTHON = """
import gc, time
from pathlib import Path
from ppprof.capture.recording.python_stacks import StackSampler

class Node:
    def __init__(self):
        self.cycle = self

def descend(depth):
    nodes = [Node() for _ in range(3)]
    return len(nodes) + (descend(depth - 1) if depth else 0)

gc.callbacks.append(lambda phase, info: sum(range(20)))
sampler = StackSampler(Path("run"), True)
sampler.started()
end = time.monotonic() + 5
while time.monotonic() < end:
    descend(40)
sampler.uninstall()
"""


@pytest.mark.paddle
def test_a_collection_while_a_stack_is_read_does_not_crash_python(tmp_path: Path) -> None:
    """CPython 3.11 crashes within a second if frames of a thread are read that runs meanwhile."""
    program = [sys.executable, "-X", "faulthandler", "-c", COLLECTS_IN_PYTHON]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "the training goes on without it" not in done.stderr
