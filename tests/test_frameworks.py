"""The same net trained by Paddle, here and now, and by PyTorch: operators and modules compare."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import ppprof
from ppprof.analysis.diff import Diff
from tests.fixtures import small_net

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = pytest.mark.paddle

TORCH = Path(__file__).parent / "fixtures/kineto/cpu_small_net.json.gz"
LINEARS = 2 * small_net.BLOCKS + 1


@pytest.fixture(scope="module")
def diff(tmp_path_factory: pytest.TempPathFactory) -> Diff:
    """PyTorch is the experiment."""
    from paddle import nn
    from paddle.nn import functional as F

    log = tmp_path_factory.mktemp("paddle") / "log"
    net = small_net.make(nn, nn.Layer, nn.LayerList, F.gelu)
    optimizer = paddle.optimizer.AdamW(parameters=net.parameters())
    tokens = paddle.randint(0, small_net.WORDS, (4, 16))
    block = {"enable": True, "scheduler": [3, 6], "profiler_log": str(log), "formats": ["pb"]}
    with ppprof.attach(block) as prof:
        for _ in range(7):
            logits = net(tokens).reshape([-1, small_net.WORDS])
            loss = F.cross_entropy(logits, tokens.reshape([-1]))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            prof.step(num_samples=4)
    return ppprof.diff(ppprof.open(log), ppprof.open(TORCH))


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        ("matmul", LINEARS),
        ("matmul grad", LINEARS),
        ("layer_norm", small_net.BLOCKS),
        ("layer_norm grad", small_net.BLOCKS),
        ("gelu", small_net.BLOCKS),
        ("gelu grad", small_net.BLOCKS),
        ("embedding", 1),
        ("embedding grad", 1),
        ("cross_entropy", 1),
        ("accumulation grad", 4 * small_net.BLOCKS + 2 * small_net.BLOCKS + 3),
    ],
)
def test_what_the_model_says_is_called_as_often_in_either(
    diff: Diff, name: str, calls: int
) -> None:
    """A linear has a weight and a bias, and so has a norm; the embedding has a weight."""
    (row,) = diff.operators.filter(name=name).rows(named=True)
    assert (row["status"], row["baseline_calls"], row["experiment_calls"]) == ("both", calls, calls)


def test_the_trees_of_modules_are_one(diff: Diff) -> None:
    tree = diff.modules.filter(pl.col("depth") > 0)
    inside = ["LayerNorm", "Linear", "Linear"]
    net = ["Net", "Embedding", *["Block", *inside] * small_net.BLOCKS, "Linear"]
    both = tree.filter(status="both")["name"].to_list()
    at = both.index("Net")
    assert both[at : at + len(net)] == net
    assert both[at + len(net) :] == ["Backward", "Optimization"]


def test_they_have_most_in_common_and_it_is_said_what_they_are(diff: Diff) -> None:
    assert diff.comparability.shares["operators"] > 0.7
    assert "framework: paddle -> torch" in diff.comparability.differences
