"""Every table of one trace, against the raw objects: parts add up, no share is above the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ppprof
from ppprof.choices import ALL_VIEWS
from tests.fixtures.torch_traces import Event, TorchTrace, write_events

KINDS = {
    "gemm": "kernel",
    "relu": "kernel",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "kernel",
    "Memcpy HtoD (Pageable -> Device)": "gpu_memcpy",
    "Memset (Device)": "gpu_memset",
}
NODE = "autograd::engine::evaluate_function: MmBackward0"
ENGINE = 101
"""The thread on which the autograd engine runs nodes."""


@st.composite
def trainings(draw: st.DrawFn) -> TorchTrace:
    """Steps of operators, on two streams that run in order, perhaps far behind the host."""
    trace = TorchTrace()
    free = {7: 0, 20: 0}
    now = 0
    for step in range(draw(st.integers(1, 5))):
        begin, now = now, now + draw(st.integers(1, 200))
        if draw(st.booleans()):
            name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
            trace.span("user_annotation", name, now, 300)
            now += 320
        for _ in range(draw(st.integers(1, 6))):
            length = draw(st.integers(20, 400))
            name, is_node = draw(st.sampled_from(sorted(KINDS))), draw(st.booleans())
            operator = trace.op(NODE if is_node else "aten::op", now, length)
            stream = draw(st.sampled_from(sorted(free)))
            start = max(now + 12, free[stream]) + draw(st.integers(0, 50))
            kernel = trace.launch(now + 2, name, start, draw(st.integers(1, 900)), stream)
            kernel["cat"] = KINDS[name]
            if is_node and draw(st.booleans()):
                trace.events[-2]["tid"] = operator["tid"] = ENGINE
            free[stream] = start + kernel["dur"]
            now += length + draw(st.integers(1, 60))
        if draw(st.booleans()):
            now = max(now, *free.values())  # the host waits
        trace.step(step, begin, now - begin + 1)
        now += 1
    return trace


def of_device(events: list[Event], *cats: str) -> list[Event]:
    return [event for event in events if event.get("cat") in cats]


def covered_us(events: list[Event]) -> int:
    """Microseconds in which at least one event runs, counted one by one."""
    return len({us for each in events for us in range(each["ts"], each["ts"] + each["dur"])})


@given(trace=trainings())
def test_every_table_of_a_trace(trace, tmp_path_factory):
    raw = trace.events
    run = ppprof.open(write_events(tmp_path_factory.mktemp("every") / "a.json", raw))
    tables = {view: run.summary(view) for view in ALL_VIEWS}
    every = of_device(raw, "kernel", "gpu_memcpy", "gpu_memset")
    own = of_device(raw, "kernel")
    kernel_ns = 1000 * sum(event["dur"] for event in own)  # Paddle's phases do not add copies
    steps = [event for event in raw if event["name"].startswith("ProfilerStep#")]
    step_us = sum(event["dur"] for event in steps)

    for view, table in tables.items():
        for name in table.columns:
            if name.endswith(("_ns", "ratio", "utilization", "_bytes", "calls", "count")):
                values = table[name].drop_nulls()
                assert values.is_empty() or values.min() >= 0, (view, name)

    (busy,) = tables["device"].filter(device="GPU0")["utilization"]
    assert 0 <= busy <= 1

    overview = {row["event_type"]: row for row in tables["overview"].rows(named=True)}
    for kind, cat in (("Kernel", "kernel"), ("Memcpy", "gpu_memcpy"), ("Memset", "gpu_memset")):
        if of_kind := of_device(raw, cat):
            counted = len(of_kind), 1000 * covered_us(of_kind)
            assert (overview[kind]["calls"], overview[kind]["time_ns"]) == counted
            assert overview[kind]["ratio"] <= 1 + 1e-9
    assert overview["ProfileStep"]["time_ns"] == 1000 * step_us

    model = {row["name"]: row for row in tables["model"].rows(named=True)}
    for side in ("cpu", "gpu") if "ProfileStep" in model else ():
        parts = [row[f"{side}_total_ns"] for name, row in model.items() if name != "ProfileStep"]
        assert sum(parts) == model["ProfileStep"][f"{side}_total_ns"]
        assert all(0 <= (row[f"{side}_ratio"] or 0) <= 1 + 1e-9 for row in model.values())
    if "ProfileStep" in model:
        assert model["ProfileStep"]["gpu_total_ns"] == kernel_ns

    kernels = tables["kernel"]
    assert kernels["calls"].sum() == len(own)
    assert kernels["gpu_total_ns"].sum() == kernel_ns
    if own:
        assert kernels["gpu_ratio"].sum() == pytest.approx(1)
    assert tables["copies"]["calls"].sum() == len(every) - len(own)
    assert (tables["copies"]["step_ratio"].fill_null(0) <= 1).all()

    operators = tables["op"].filter(kind="operator")
    assert operators["cpu_ratio"].sum() == pytest.approx(1)
    assert operators["gpu_total_ns"].sum() == 1000 * sum(event["dur"] for event in every)

    parts = run.breakdown()
    names = [name for name in parts.columns if name.startswith("exposed_")]
    dist = {row["name"]: row["time_ns"] for row in tables["dist"].rows(named=True)}
    exposed = dist.get("Exposed Communication", 0) or 0
    assert exposed == sum(parts[name].sum() for name in names)
    if dist:
        assert dist["Communication"] >= dist["Overlap"]
    names += ["computation_ns", "data_loading_ns", "bubble_ns"]
    names += ["host_bound_ns", "queued_ns", "rest_ns"]
    assert parts.select(names).sum_horizontal().equals(parts["step_ns"].alias(names[0]))

    findings = ppprof.advise(run)
    costs = [
        each.share for each in findings if each.share is not None and each.rule != "slow-steps"
    ]
    assert sum(costs) <= 1 + 1e-9
    assert all(0 <= each.share <= 1 for each in findings.largest)


def per_step(events: list[Event]) -> dict[str, tuple[float, float]]:
    """Name -> kernels and their nanoseconds, for each step; counted on the raw objects."""
    num_steps = sum(event["name"].startswith("ProfilerStep#") for event in events)
    times: dict[str, list[int]] = {}
    for event in of_device(events, "kernel"):
        times.setdefault(event["name"], []).append(event["dur"])
    return {
        name: (len(each) / num_steps, 1000 * sum(each) / num_steps) for name, each in times.items()
    }


@given(both=st.tuples(trainings(), trainings()))
def test_every_table_of_a_comparison(both, tmp_path_factory):
    folder = tmp_path_factory.mktemp("both")
    runs = [
        ppprof.open(write_events(folder / f"{number}.json", trace.events))
        for number, trace in enumerate(both)
    ]
    forth, back = ppprof.diff(*runs), ppprof.diff(*reversed(runs))
    raw = [per_step(trace.events) for trace in both]

    kernels = {row["name"]: row for row in forth.kernels.rows(named=True)}
    assert kernels.keys() == {*raw[0], *raw[1]}
    for name, row in kernels.items():
        for side, counted in zip(("baseline", "experiment"), raw):
            shown = row[f"{side}_calls"], row[f"{side}_gpu_total_ns"]
            assert shown == pytest.approx(counted.get(name, (0, 0))), (name, side)

    metrics = {row["metric"]: row for row in forth.overview.rows(named=True)}
    parts = ["computation", "exposed_communication", "data_loading", "bubble", "rest"]
    parts += [name for name in ("host_bound", "queued") if name in metrics]
    for side, run in zip(("baseline", "experiment"), runs):
        whole = metrics["step_time"][side]
        assert whole == pytest.approx(run.breakdown()["step_ns"].mean())
        assert sum(metrics[name][side] for name in parts) == pytest.approx(whole)
        assert 0 <= (metrics["gpu_utilization"][side] or 0) <= 1

    for view in ("overview", "operators", "kernels", "runtime_calls", "collectives", "ranks"):
        one, other = getattr(forth, view), getattr(back, view)
        deltas = [name for name in one.columns if name.startswith("delta") and "ratio" not in name]
        for name in deltas:
            values = one[name].drop_nulls().sort().to_list()
            assert values == pytest.approx((-other[name].drop_nulls()).sort().to_list()), (
                view,
                name,
            )

    same = ppprof.diff(runs[0], runs[0])
    assert same.change.ratio in (0, None)
    for view in ("overview", "operators", "kernels", "runtime_calls", "collectives", "ranks"):
        table = getattr(same, view)
        deltas = [name for name in table.columns if name.startswith("delta")]
        assert all((table[name].drop_nulls() == 0).all() for name in deltas), view
        assert "is_clear" not in table.columns or not table["is_clear"].any()
