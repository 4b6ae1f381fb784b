"""The strategy that Fleet gets for a config, including settings that need a GPU."""

from __future__ import annotations

import pytest

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")

from ppprof.config import load_config  # noqa: E402
from ppprof.train.grid import _strategy  # noqa: E402
from tests.jobs.launching import CONFIG  # noqa: E402

pytestmark = pytest.mark.paddle


@pytest.mark.parametrize(
    ("device", "sequence_parallel", "in_parts"),
    [("gpu", False, True), ("gpu", True, False), ("cpu", False, False)],
)
def test_stages_exchange_parts_only_of_what_all_mp_ranks_have(
    device: str, sequence_parallel: bool, in_parts: bool
) -> None:
    """Else Fleet would put a tensor together from slices of different tensors."""
    overrides = [
        f"Global.device={device}",
        f"Model.sequence_parallel={sequence_parallel}",
        "Distributed.mp_degree=2",
        "Distributed.pp_degree=2",
    ]
    strategy = _strategy(load_config(CONFIG, overrides, world_size=4))
    assert strategy.pipeline_configs["enable_partial_send_recv"] is in_parts
