"""Steps of files without ProfilerStep, and steps that repeat or lie in others."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ppprof
from ppprof.errors import InputError, UsageError
from ppprof.run.traces import notes_on
from ppprof.trace import Trace, read
from ppprof.trace.kineto.step_marks import Device, with_marked_steps
from tests.fixtures.torch_traces import BASE_US, Event, TorchTrace, spans, training, write_events

LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
OPTIMIZER = "Optimizer.step#SGD.step"


def loop(num_steps: int, *, num_batches: int = 1, is_exhausted: bool = False) -> TorchTrace:
    """Steps of 10 ms: the loader, six kernels, the optimizer with one kernel."""
    trace = TorchTrace()
    for step in range(num_steps):
        begin = step * 10_000.0
        for batch in range(num_batches):
            trace.span("user_annotation", LOADER, begin + batch * 500, 400)
        for number in range(6):
            at = begin + 2000 + number * 1000
            trace.op("aten::mm", at, 100)
            trace.launch(at + 20, "gemm", at + 40, 800)
        trace.span("user_annotation", OPTIMIZER, begin + 9100, 300)
        trace.op("aten::add_", begin + 9110, 50)
        trace.launch(begin + 9120, "sgd", begin + 9160, 200)
    if is_exhausted:
        trace.span("user_annotation", LOADER, num_steps * 10_000.0, 50)
    return trace


def serving() -> TorchTrace:
    """Spans that name the batch, as in a server; 9.9 ms every 10 ms."""
    trace = TorchTrace()
    for step in range(20):
        begin = step * 10_000.0
        name = f"step[decode bs={32 - step % 3}]" if step % 5 else "step[prefill bs=4 toks=2048]"
        trace.span("user_annotation", name, begin, 9900)
        trace.op("aten::mm", begin + 10, 20)
        trace.launch(begin + 20, "gemm", begin + 40, 8000)
    return trace


def steps_ms(path: Path, **options: str) -> list[float]:
    table = ppprof.open(path, **options).breakdown()
    return [round(step / 1e6, 3) for step in table["step_ns"]]


def notes(trace: Trace) -> str:
    return "\n".join(map(str, notes_on(Path("a.json"), trace)))


def test_thirty_iterations_of_a_loader(tmp_path):
    """The last one ends with the last event: 0.6 ms of it are not recorded."""
    path = write_events(tmp_path / "a.json", loop(30).events)
    assert steps_ms(path) == [10.0] * 29 + [9.4]
    assert "30 steps, each from one enumerate(DataLoader)#" in notes(read(path))


def test_the_call_that_finds_no_more_batches_begins_no_step(tmp_path):
    path = write_events(tmp_path / "a.json", loop(30, is_exhausted=True).events)
    assert steps_ms(path) == [10.0] * 30


@pytest.mark.parametrize("has_device", [True, False])
def test_the_call_that_finds_no_more_batches_begins_no_step_of_inference(tmp_path, has_device):
    trace = TorchTrace()
    for begin in range(0, 100_000, 10_000):
        trace.span("user_annotation", LOADER, begin, 400)
        trace.op("aten::mm", begin + 2000, 100)
        if has_device:
            trace.launch(begin + 2020, "gemm", begin + 2040, 800)
    trace.span("user_annotation", LOADER, 100_000, 50)
    trace.span("cuda_runtime", "cudaDeviceSynchronize", 100_100, 2000, correlation=99)
    assert steps_ms(write_events(tmp_path / "a.json", trace.events)) == [10.0] * 10


def test_a_step_of_several_batches_ends_with_the_optimizer(tmp_path):
    path = write_events(tmp_path / "a.json", loop(30, num_batches=4).events)
    assert steps_ms(path) == [9.4] + [10.0] * 29


def test_two_optimizers_end_one_step(tmp_path):
    """The window is cut within the last step."""
    trace = TorchTrace()
    for step in range(10):
        trace.op("aten::mm", step * 1000 + 10, 100)
        trace.launch(step * 1000 + 20, "gemm", step * 1000 + 40, 80)
        for number, name in enumerate(("Muon", "AdamW")):
            mark = f"Optimizer.step#{name}.step"
            trace.span("user_annotation", mark, step * 1000 + 500 + number * 200, 100)
    path = write_events(tmp_path / "a.json", trace.events)
    assert steps_ms(path) == [0.79] + [1.0] * 9
    assert "10 steps" in notes(read(path))
    write_events(path, trace.events[:-1])
    assert steps_ms(path) == [0.79] + [1.0] * 8


def test_layers_with_numbers_are_parts_of_steps(tmp_path):
    trace = TorchTrace()
    for number in range(120):
        at = number * 100
        trace.span("user_annotation", f"layer_{number % 12}", at, 90)
        trace.op("aten::mm", at + 10, 50)
        trace.launch(at + 20, "gemm", at + 40, 30)
    path = write_events(tmp_path / "a.json", trace.events)
    assert steps_ms(path) == [1.2] * 9 + [1.19]
    assert "10 steps, each from one layer_0" in notes(read(path))


def test_spans_that_differ_in_numbers_only(tmp_path):
    path = write_events(tmp_path / "a.json", serving().events)
    assert steps_ms(path) == [10.0] * 19 + [9.9]


def test_the_search_for_marks_takes_little_memory():
    """A long name among the operators, of which there are millions, must not be copied for each."""
    num_steps, num_operators = 10, 50_000
    starts = [100 * step for step in range(num_steps)]
    num_events = num_operators + num_steps
    name = pl.Series(["gemm" * 40] * num_operators + ["step"] * num_steps, dtype=pl.Categorical)
    category = ["Operator"] * num_operators + ["PythonUserDefined"] * num_steps
    start_ns = pl.Series([*range(num_operators), *starts])
    hosts = pl.DataFrame(
        {
            **{"name": name, "category": pl.Series(category, dtype=pl.Categorical)},
            **{
                key: pl.repeat(7, num_events, eager=True)
                for key in ("index", "key", "thread", "process")
            },
            **{"start_ns": start_ns, "dur_ns": pl.repeat(90, num_events, eager=True)},
            "end_ns": start_ns + 90,
        }
    )
    launches = pl.DataFrame({"start_ns": starts})
    columns = ("process", "thread", "name", "start_ns", "dur_ns", "correlation")
    nothing = pl.DataFrame(schema=dict.fromkeys(columns, pl.Int64))
    device = Device(nothing, nothing)
    tracemalloc.start()
    marked, _ = with_marked_steps(hosts, launches, None, device, name)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert marked.filter(category="ProfileStep")["start_ns"].to_list() == starts
    assert peak < 50 * num_events


def test_a_user_names_the_mark(tmp_path, cli):
    path = write_events(tmp_path / "a.json", serving().events)
    assert steps_ms(path, step_mark=r"^step\[") == [9.9] * 20
    assert len(steps_ms(path, step_mark="prefill")) == 4
    with pytest.raises(InputError, match=r"no span.*aten::mm \(20\)"):
        steps_ms(path, step_mark="train")
    with pytest.raises(UsageError, match="not a regular expression"):
        ppprof.open(path, step_mark="(")
    cli("summary", path, "--step-mark", "(", code=2)
    cli("summary", path, "--step-mark", "train", code=3)
    cli("convert", path, tmp_path / "paddle.json")
    assert steps_ms(tmp_path / "paddle.json", step_mark="decode") == [9.9] * 16


@pytest.mark.parametrize(
    ("mark", "expected"),
    [
        *((mark, [10.0] * 3) for mark in ("ProfilerStep#", "^ProfileStep#")),
        *((mark, [8.0] * 3) for mark in (r"^nn\.Module: GPT_0$", "^GPT$")),
    ],
)
def test_a_mark_has_the_name_in_the_file_or_that_in_our_tables(tmp_path, mark, expected):
    trace = training(num_steps=3, num_kernels=2)
    for step in range(3):
        trace.span("python_function", "nn.Module: GPT_0", step * 10_000 + 10, 8000)
    path = write_events(tmp_path / "a.json", trace.events)
    assert steps_ms(path, step_mark=mark) == expected


def test_a_mark_that_fits_names_of_ours_fits_no_others(tmp_path):
    """A module is ``nn.Module: GPT_0`` in the file, and GPT in our tables."""
    trace = training(num_steps=3, num_kernels=2)
    for step in range(3):
        trace.span("user_annotation", f"load_{step}", step * 10_000 + 10, 9_900)
        trace.span("python_function", "nn.Module: GPT_0", step * 10_000 + 20, 8_000)
        trace.span("python_function", "nn.Module: Head_0", step * 10_000 + 9_950, 20)
    path = write_events(tmp_path / "a.json", trace.events)
    assert steps_ms(path, step_mark=r"_\d+$") == [9.9] * 3


@pytest.mark.parametrize("command", ["summary", "ranks", "merge", "diff", "advise", "report"])
def test_every_command_takes_the_mark(tmp_path, command, cli):
    path = str(write_events(tmp_path / "a.json", serving().events))
    rest = {"merge": ["-o", str(tmp_path / "m.json")], "report": ["-o", str(tmp_path / "r.html")]}
    rest["diff"] = ["--experiment-rank", "0"]
    arguments = [command, path, *rest.get(command, []), "--step-mark", "prefill"]
    assert "4 steps, from spans such as step[prefill" in cli(*arguments).err


def test_derived_steps_are_not_written(tmp_path, cli):
    path = write_events(tmp_path / "a.json", loop(5).events)
    cli("convert", path, tmp_path / "b.json", "--to", "kineto")
    assert not [event for event in spans(tmp_path / "b.json") if "ProfilerStep" in event["name"]]
    assert steps_ms(tmp_path / "b.json") == steps_ms(path)


def test_a_trace_without_marks_has_no_steps(tmp_path):
    events = [event for event in training().events if "ProfilerStep" not in event["name"]]
    trace = read(write_events(tmp_path / "a.json", events))
    assert trace.events["step"].null_count() == trace.events.height
    assert not trace.notes


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 50), st.booleans()), min_size=3, max_size=8
    ),
    st.sampled_from([LOADER, OPTIMIZER, "iteration"]),
)
@settings(max_examples=40)
def test_kernels_of_steps_are_those_of_the_file(tmp_path_factory, steps, mark):
    """Each kernel is of the step whose mark was the last before its launch, counted in the JSON."""
    trace, at = TorchTrace(), 0.0
    for num_kernels, gap, is_nested in steps:
        if mark != OPTIMIZER:
            trace.span("user_annotation", mark, at, 40 if mark == LOADER else 460)
        if is_nested:
            trace.span("user_annotation", mark, at + (410 if mark == OPTIMIZER else 10), 5)
        for number in range(num_kernels):
            trace.op("aten::mm", at + 50 + 100 * number, 60)
            trace.launch(at + 60 + 100 * number, "gemm", at + 70 + 100 * number, 50)
        if mark == OPTIMIZER:
            trace.span("user_annotation", mark, at + 400, 60)
        at += 500 + gap
    path = write_events(tmp_path_factory.mktemp("steps") / "a.json", trace.events)
    events = read(path).events
    kernels = events.filter(category="Kernel")
    if mark == "iteration" and not kernels.height:
        return
    counts = dict(kernels["step"].value_counts().iter_rows())
    expected = {number: count for number, (count, _, _) in enumerate(steps) if count}
    assert counts == expected
    assert kernels.height == sum(event.get("cat") == "kernel" for event in trace.events)


# Steps that were recorded


def test_a_step_inside_another_is_a_span_of_it(tmp_path):
    """::

    ProfilerStep#0  |----------|----------| ProfilerStep#1
                      |----|      |----|    of another profiler
    """
    trace = training(num_steps=2)
    for step in range(2):
        trace.step(step + 7, step * 10_000 + 100, 5000)
    path = write_events(tmp_path / "a.json", trace.events)
    assert steps_ms(path) == [10.0, 10.0]
    kernels = read(path).events.filter(category="Kernel")
    assert kernels["step"].to_list() == [0] * 8 + [1] * 8
    assert "steps within others: 2" in notes(read(path))


def test_steps_with_one_number_are_not_added_up(tmp_path):
    trace = training(num_steps=3)
    for event in trace.events:
        if event["name"] == "ProfilerStep#2":
            event["name"] = "ProfilerStep#0"
    path = write_events(tmp_path / "a.json", trace.events)
    assert steps_ms(path) == [10.0, 10.0, 10.0]
    assert "3 steps are numbered by time" in notes(read(path))


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(1, 30)), min_size=1, max_size=6
    )
)
@settings(max_examples=40)
def test_recorded_steps_count_each_kernel_once(tmp_path_factory, steps):
    """Whatever the steps, the time of all of them is at most that from the first to the last."""
    trace = TorchTrace()
    for number, start, dur in steps:
        trace.step(number, start * 100, dur * 100)
    for number in range(40):
        trace.op("aten::mm", number * 100 + 5, 50)
        trace.launch(number * 100 + 10, "gemm", number * 100 + 20, 70)
    path = write_events(tmp_path_factory.mktemp("steps") / "a.json", trace.events)
    table = ppprof.open(path).breakdown()
    first = min(start for _, start, _ in steps)
    last = max(start + dur for _, start, dur in steps)
    is_disjoint = all(
        one[1] + one[2] <= other[1]
        for one, other in zip(
            sorted(steps, key=lambda s: s[1]), sorted(steps, key=lambda s: s[1])[1:]
        )
    )
    if is_disjoint:
        assert table["step_ns"].sum() == sum(dur for _, _, dur in steps) * 100_000
    assert table["step"].n_unique() == table.height
    assert table["computation_ns"].sum() <= 70_000 * len(
        spans_of_kernels(trace.events, first, last)
    )


def spans_of_kernels(events: list[Event], first: int, last: int) -> list[Event]:
    """The kernels launched between two times, in hundreds of microseconds."""
    launched = {
        event["args"]["correlation"]
        for event in events
        if event.get("cat") == "cuda_runtime" and first <= (event["ts"] - BASE_US) / 100 < last
    }
    kernels = [event for event in events if event.get("cat") == "kernel"]
    return [event for event in kernels if event["args"]["correlation"] in launched]
