"""Pages of the tests in this folder, and Chromium."""

from __future__ import annotations

import pytest

from tests.fixtures import gpu_traces
from tests.fixtures.timeline import write
from tests.jobs.planted import COMMITTED
from tests.oracles.chromium import EXECUTABLE, SKIPPED, Opened, browser
from tests.report.runs_and_pages import TORCH, gpu, page_of, pipeline, timer_only

UNRECORDED = gpu_traces.without_device_events(gpu_traces.training(3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def runs(folder):
    return {
        "base": pipeline(folder / "base"),
        "run": pipeline(folder / "run", forward=36_000_000),
        "gpu": gpu(folder / "gpu"),
        "timer": timer_only(folder / "timer"),
        "unrecorded": write(folder / "unrecorded.pb", *UNRECORDED, devices=(0,)),
    }


@pytest.fixture(scope="module")
def pages(folder, runs):
    return {
        "run": page_of(folder, "run", runs["run"], "--baseline", runs["base"]),
        "zh": page_of(folder, "zh", runs["run"], "--baseline", runs["base"], "--language", "zh"),
        "gpu": page_of(folder, "gpu", runs["gpu"]),
        "timer": page_of(folder, "timer", runs["timer"]),
        "unrecorded": page_of(folder, "unrecorded", runs["unrecorded"]),
        "layer": page_of(
            folder, "layer", COMMITTED / "slow_layer", "--baseline", COMMITTED / "nothing"
        ),
        "eight": page_of(folder, "eight", COMMITTED / "eight_ranks"),
        "torch": page_of(folder, "torch", TORCH),
    }


@pytest.fixture(scope="module")
def chromium():
    if EXECUTABLE is None:
        pytest.skip(SKIPPED)
    with browser() as started:
        yield started


@pytest.fixture
def opened(chromium, pages):
    """Open pages; at the end, check that none made a request or logged an error."""
    all_of_them = []

    def open_page(name, **options):
        found = Opened(chromium, pages[name], **options)
        all_of_them.append((found, pages[name].as_uri()))
        return found

    yield open_page
    for page, address in all_of_them:
        assert page.complaints == []
        assert [url for url in page.requests if url != address and url != "data:,"] == []
        page.close()
