"""The same net trained by Paddle and by PyTorch: operators and modules compare."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

import ppprof
from ppprof.analysis.diff.diff import Diff
from ppprof.analysis.profile.module_tree import UNKNOWN
from ppprof.run.run import Run
from tests.fixtures import small_net
from tests.jobs.launching import ROOT

TORCH = ROOT / "tests/fixtures/kineto/cpu_small_net.json.gz"
LINEARS = 2 * small_net.BLOCKS + 1


@pytest.fixture
def diff(planted_run: Callable[[str], Run]) -> Diff:
    """PyTorch is the experiment."""
    return ppprof.diff(planted_run("small_net"), ppprof.open(TORCH))


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
    tree = diff.modules.filter((pl.col("depth") > 0) & (pl.col("name") != UNKNOWN))
    inside = ["LayerNorm", "Linear", "Linear"]
    net = ["Net", "Embedding", *["Block", *inside] * small_net.BLOCKS, "Linear"]
    both = tree.filter(status="both")
    names = both["name"].to_list()
    at = names.index("Net")
    assert names[at : at + len(net)] == net
    rest = both[at + len(net) :]
    assert rest.filter(depth=1)["name"].to_list() == ["Backward", "Optimization"]
    # With shapes, Paddle's gradients have their modules as torch's have; an Embedding has none here.
    gradients = rest.filter(pl.col("depth") > 1)["name"].to_list()
    assert not gradients or set(gradients) >= {"Net", "Block", "LayerNorm", "Linear"}


def test_they_have_most_in_common_and_it_is_said_what_they_are(diff: Diff) -> None:
    assert diff.comparability.shares["operators"] > 0.7
    assert "framework: paddle -> torch" in diff.comparability.differences
