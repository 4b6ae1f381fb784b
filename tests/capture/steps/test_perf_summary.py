"""The Perf Summary, against the one that ``paddle.profiler`` prints for the same durations."""

from __future__ import annotations

import pytest

from ppprof.capture.steps.perf_summary import PerfSummary

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = pytest.mark.paddle

MS = 1_000_000
# The first ten warm up; of the rest, the first is neither least nor most (Paddle loses those).
BATCH_MS = [50, 9, 9, 9, 9, 9, 9, 9, 9, 9, 5, 4, 7, 6, 5, 8, 3, 5]
READER_MS = [20, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 1, 3, 2, 2, 1, 1, 2]


def paddle_text(
    capsys: pytest.CaptureFixture[str], readers: list[int], num_samples: int | None
) -> str:
    """What Paddle prints, without its tenth step, which it sums but does not count."""
    from paddle.profiler import timer

    benchmark = timer.Benchmark()
    hook, event = timer.TimerHook(), timer.Event()
    benchmark.current_event = event
    fresh = timer.Event()
    for step, batch in enumerate(BATCH_MS):
        if readers:
            event.record_reader(readers[step] / 1e3)
        event.record_batch(batch / 1e3, num_samples)
        if event.total_iters == event.skip_iter:
            event.batch_records, event.speed_records = fresh.batch_records, fresh.speed_records
            event.total_samples = 0
    hook._print_summary(benchmark)
    return capsys.readouterr().out.rstrip("\n")


@pytest.mark.parametrize("readers", [READER_MS, []])
@pytest.mark.parametrize("num_samples", [None, 8])
def test_it_is_what_paddle_prints(
    capsys: pytest.CaptureFixture[str], readers: list[int], num_samples: int | None
) -> None:
    summary = PerfSummary()
    for step, batch in enumerate(BATCH_MS):
        summary.add(batch * MS, readers[step] * MS if readers else None, num_samples)

    assert summary.text() == paddle_text(capsys, readers, num_samples)


def rows(summary: PerfSummary) -> dict[str, list[float]]:
    """Average, max and min of each row."""
    cells = [line.split("|")[1:5] for line in summary.text().splitlines() if line[0] == "|"][1:]
    return {name.strip(): [float(cell) for cell in numbers] for name, *numbers in cells}


def test_tokens_flops_and_mfu_follow_what_paddle_prints() -> None:
    """Two steps count, of 0.5 s and 2 s, on a device of 100 TFLOP/s."""
    plain, summary = PerfSummary(), PerfSummary(device_peak_flops=100e12)
    for batch in [*[9] * 10, 500, 2000]:
        plain.add(batch * MS, 1 * MS, 8)
        summary.add(batch * MS, 1 * MS, 8, num_tokens=1000, num_flops=25 * 10**12)
    assert summary.text().startswith(plain.text())
    added = {name: cells for name, cells in rows(summary).items() if name not in rows(plain)}
    assert added == {
        "tokens/s": [800.0, 2000.0, 500.0],
        "TFLOP/s": [20.0, 50.0, 12.5],
        "MFU": [0.2, 0.5, 0.125],
    }
    assert summary.text().endswith("|\nMFU of a peak of 100 TFLOP/s")


def test_rows_of_unknown_quantities_are_missing() -> None:
    no_peak, one_step_silent = PerfSummary(), PerfSummary(device_peak_flops=1e12)
    for step in range(12):
        no_peak.add(MS, num_flops=10**9)
        one_step_silent.add(MS, num_tokens=8 if step else None, num_flops=10**9)
    assert list(rows(no_peak)) == ["batch_cost", "ips", "TFLOP/s"]
    assert list(rows(one_step_silent)) == ["batch_cost", "ips", "TFLOP/s", "MFU"]


def test_min_is_right_where_paddle_prints_inf() -> None:
    summary = PerfSummary()
    for batch in [1] * 10 + [4, 5, 6]:
        summary.add(batch * MS)
    batch_cost, ips = (line.split("|")[2:5] for line in summary.text().splitlines()[-2:])
    assert [float(cell) for cell in batch_cost] == [0.005, 0.006, 0.004]
    assert [float(cell) for cell in ips] == [200.0, 250.0, 166.66667]


def test_a_stall_of_the_profiler_is_in_no_number() -> None:
    clean, stalled = PerfSummary(), PerfSummary()
    for step, batch in enumerate(BATCH_MS):
        clean.add(batch * MS, 1 * MS, 8, num_tokens=64, num_flops=10**9)
        stalled.add(batch * MS, 1 * MS, 8, num_tokens=64, num_flops=10**9)
        if step == 12:
            stalled.add(900 * MS, 1 * MS, 8, excluded=True, num_tokens=64, num_flops=10**9)
    assert stalled.text() == clean.text()
    assert (stalled.num_steps, stalled.num_left_out) == (clean.num_steps + 1, 1)


def test_steps_that_are_added_together_count_like_single_ones() -> None:
    together, single = PerfSummary(1e12), PerfSummary(1e12)
    for step in range(600):
        values = ((step % 7 + 1) * MS, MS if step % 3 else None, step % 5, step % 11 == 0)
        for summary in (together, single):
            summary.add(*values, num_tokens=9 if step != 500 else None, num_flops=step * 10**6)
        assert single.has_table == (step >= 10)  # reading takes in what is new
    assert together.text() == single.text()
    assert (together.num_steps, together.num_left_out) == (600, single.num_left_out)


def test_too_few_steps_are_said_to_be_too_few() -> None:
    summary = PerfSummary()
    for _ in range(10):
        summary.add(MS)
    summary.add(MS, excluded=True)
    assert not summary.has_table
    assert summary.text() == (
        "Perf Summary: nothing to average in 11 steps, "
        "of which the first 10 warm up and 1 contain a profiler stall"
    )
