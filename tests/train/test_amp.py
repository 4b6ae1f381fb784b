"""Mixed precision around a scaler, which a CPU build makes of no use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")

from ppprof.config import load_config
from ppprof.train.engine import Amp
from tests.jobs.launching import CONFIG

pytestmark = pytest.mark.paddle


@pytest.fixture
def amp() -> Amp:
    return Amp(load_config(CONFIG))


def test_a_resumed_run_has_the_scale_of_the_one_before(amp: Amp) -> None:
    loaded: list[dict[str, Any]] = []
    state = {"scale": np.array([512.0], np.float32), "incr_count": 3}
    amp.scaler = SimpleNamespace(state_dict=lambda: state, load_state_dict=loaded.append)
    assert amp.state() == {"scale": 512.0, "incr_count": 3}
    amp.load(amp.state())
    amp.load({})
    assert loaded == [{"scale": np.array([512.0], np.float32), "incr_count": 3}]


def test_without_a_scaler_there_is_nothing_to_keep(amp: Amp) -> None:
    assert amp.state() == {}
    amp.load({"scale": 512.0})
    assert amp.scale("the loss") == "the loss"  # type: ignore[arg-type]
