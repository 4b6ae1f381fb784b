"""The benchmark's traces are sound, of the promised size, and hold what Paddle writes of them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict

import pytest

from benchmarks import gpu_job
from benchmarks.trace_reading import num_events
from tests.fixtures.timeline import Launch, Memory, Span


def walk(node):
    """A span or thread's events, all the way down, without itself."""
    for item in node.inside:
        yield item
        if isinstance(item, (Span, Launch)):
            yield from walk(item)


def shape(node):
    """Everything about a span but its times and addresses."""
    name = getattr(node, "name", "").partition("#")[0]
    return (
        getattr(node, "category", ""),
        name,
        [shape(node) for node in getattr(node, "inside", ())],
    )


@pytest.fixture(scope="module")
def threads():
    return gpu_job.threads(num_steps=3, num_layers=2)


def test_every_event_lies_within_its_span_and_after_the_one_before(threads):
    for thread in threads:
        spans = [item for item in walk(thread) if isinstance(item, Span)]
        for outer in [thread, *spans]:
            times = [
                (item.time, item.time) if isinstance(item, Memory) else (item.start, item.end)
                for item in outer.inside
            ]
            assert all(end <= start for (_, end), (start, _) in zip(times, times[1:]))
            if isinstance(outer, Span) and times:
                assert outer.start <= times[0][0]
                assert times[-1][1] <= outer.end


def test_kernels_start_after_their_launch_and_one_by_one_on_two_streams(threads):
    streams = defaultdict(list)
    for thread in threads:
        for launch in walk(thread):
            for device in getattr(launch, "inside", ()) if isinstance(launch, Launch) else ():
                assert launch.end < device.start < device.end
                streams[device.stream].append((device.start, device.end))
    assert set(streams) == {gpu_job.COMPUTE, gpu_job.COMMUNICATION}
    for times in streams.values():
        assert all(end <= start for (_, end), (start, _) in zip(times, times[1:]))


def test_steps_have_the_same_events_at_times_of_their_own(threads):
    first, *others = threads[0].inside
    for step in others:
        assert shape(step) == shape(first)
        assert step.end - step.start != first.end - first.start


def test_inner_events_are_shorter_than_the_microsecond_of_the_json(threads):
    inner = [span for span in walk(threads[0]) if getattr(span, "category", "") == "OperatorInner"]
    short = [span for span in inner if span.name.endswith(("infer_meta", "prepare_data"))]
    assert short
    assert all(0 < span.end - span.start < 1_000 for span in short)


def test_what_is_freed_was_allocated(threads):
    held = {}
    for event in walk(threads[0]):
        if isinstance(event, Memory) and event.category == "Allocate":
            assert event.addr not in held
            held[event.addr] = event.increase
        elif isinstance(event, Memory) and event.category == "Free":
            assert held.pop(event.addr) == -event.increase


def test_a_size_of_no_whole_steps_is_refused(tmp_path):
    with pytest.raises(ValueError, match="30 MB: expected a multiple of a step's 20"):
        gpu_job.files(tmp_path, 30)


def test_files_that_are_there_are_used(tmp_path):
    there = tmp_path / f"gpu_job_v{gpu_job.VERSION}_40MB.json"
    there.write_text("made before")
    assert gpu_job.files(tmp_path, 40) == (there, there.with_suffix(".pb"))
    assert there.read_text() == "made before"


@pytest.mark.paddle
@pytest.mark.all
def test_paddle_writes_every_event_of_a_step_and_the_promised_megabytes(tmp_path):
    pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    path, pb = gpu_job.files(tmp_path, gpu_job.STEP_MB)
    events = json.loads(path.read_bytes())["traceEvents"]
    assert events.pop() == {}  # Paddle's way to end a list
    written = Counter(event["cat"] for event in events if event["ph"] in "Xi")
    arrows = Counter(event["ph"] for event in events if event["ph"] in "sf")

    made = [event for thread in gpu_job.threads(num_steps=1) for event in walk(thread)]
    launches = sum(isinstance(event, Launch) for event in made)
    assert written == Counter(getattr(event, "category", "CudaRuntime") for event in made)
    assert arrows == {
        "s": launches,
        "f": sum(written[category] for category in ("Kernel", "Memcpy", "Memset")),
    }
    assert num_events(path) == len(events) > 40_000
    assert path.stat().st_size == pytest.approx(gpu_job.STEP_MB * 1e6, rel=0.05)
    assert 0 < pb.stat().st_size < path.stat().st_size / 4
    assert {file.name for file in tmp_path.iterdir()} == {path.name, pb.name}
