"""The oracle is Paddle: what we add around it changes nothing that it prints."""

from __future__ import annotations

import pytest

from tests.fixtures import gpu_traces
from tests.fixtures.timeline import span, write

pytestmark = pytest.mark.paddle
pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")

from tests.oracles import paddle_tables  # noqa: E402


@pytest.mark.parametrize("name", gpu_traces.SOUND)
def test_an_adopted_tree_gives_the_tables_of_paddles_loader(name, tmp_path):
    path = write(tmp_path / "a.pb", *gpu_traces.SOUND[name]())
    loaded, adopted = paddle_tables.load(path), paddle_tables.adopt(path)
    for sorted_by in paddle_tables.SORTED_BY:
        for thread_sep in (False, True):
            settings = {"sorted_by": sorted_by, "thread_sep": thread_sep}
            assert adopted.text(**settings) == loaded.text(**settings)


def test_newer_event_types_are_printed_but_cannot_be_loaded(tmp_path):
    (thread,) = gpu_traces.one_step()
    newer = span("DygraphKernelLaunch", "relu kernel launch", 200, 250)
    path = write(tmp_path / "a.pb", type(thread)(thread.id, thread.name, (*thread.inside, newer)))
    with pytest.raises(ValueError, match="cannot load"):
        paddle_tables.load(path)
    assert "DygraphKernelLaunch" in paddle_tables.adopt(path).text(["overview"])


def test_paddle_ignores_the_row_limit(tmp_path):
    tables = paddle_tables.load(write(tmp_path / "a.pb", *gpu_traces.training()))
    assert tables.text(row_limit=1) == tables.text(row_limit=1000)


def test_paddle_divides_by_the_length_of_steps_that_are_not_there(tmp_path):
    tables = paddle_tables.load(write(tmp_path / "a.pb", *gpu_traces.no_step()))
    for view, error in {
        "device": ZeroDivisionError,
        "overview": ZeroDivisionError,
        "udf": KeyError,
    }.items():
        with pytest.raises(error):
            tables.text([view])
