"""What is written out in several operators: in a training that really runs, and in traces of a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import ppprof
from ppprof.analysis.efficiency.written_out import _Call, _of_run, written_out
from ppprof.analysis.profile.profile import Profile
from ppprof.trace import read_window
from ppprof.trace.formats import read
from tests.fixtures.findings import US, op, thread
from tests.fixtures.run_directories import run
from tests.fixtures.timeline import Shapes, Span, kernel, launch, write


def kinds(profile: Profile) -> dict[str, int]:
    """Return what one step writes out, with how often."""
    table = written_out(profile).table
    one_step = table.filter(step=table["step"].max()) if table.height else table
    return dict(one_step["kind"].value_counts().iter_rows())


paddle: Any = None


def layer_norm_of_squares(x: Any) -> Any:
    mean = x.mean(-1, keepdim=True)
    variance = paddle.square(x - mean).mean(-1, keepdim=True)
    return (x - mean) / paddle.sqrt(variance + 1e-5) * x[0, 0] + x[0, 1]


def layer_norm_of_var(x: Any) -> Any:
    mean, variance = x.mean(-1, keepdim=True), paddle.var(x, -1, keepdim=True)
    return x[0, 0] * (x - mean) * paddle.rsqrt(variance + 1e-5)


def layer_norm_of_std(x: Any) -> Any:
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)


def batch_norm_of_moments(x: Any) -> Any:
    mean, square = x.mean([0, 1]), (x * x).mean([0, 1])
    return (x - mean) * paddle.rsqrt(square - mean * mean + 1e-5)


def gelu_of_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + paddle.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def gelu_of_erf(x: Any) -> Any:
    return x * 0.5 * (1.0 + paddle.erf(x / math.sqrt(2.0)))


def softmax_of_exp(x: Any) -> Any:
    weights = paddle.exp(x - x.max(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True)


def cross_entropy_of_entry(x: Any) -> Any:
    labels = paddle.zeros([8, 32, 1], "int64")
    return -paddle.take_along_axis(paddle.nn.functional.log_softmax(x, -1), labels, -1).mean()


def cross_entropy_of_one_hot(x: Any) -> Any:
    chosen = paddle.nn.functional.one_hot(paddle.zeros([8, 32], "int64"), 64)
    return -(chosen * paddle.nn.functional.log_softmax(x, -1)).sum(-1).mean()


def _labels(dims: list[int]) -> Any:
    return paddle.zeros(dims, "int64")


def cross_entropy_of_softmax_and_one_hot(x: Any) -> Any:
    probabilities = paddle.nn.functional.softmax(x, axis=-1)
    target = paddle.nn.functional.one_hot(_labels([8, 32]), 64)
    return -(target * paddle.log(probabilities + 1e-9)).sum(axis=-1).mean()


def cross_entropy_of_one_hot_and_clip(x: Any) -> Any:
    target = paddle.nn.functional.one_hot(_labels([8, 32]), 64)
    logs = paddle.log(paddle.clip(paddle.nn.functional.softmax(x), 1e-9, 1.0))
    return (-logs * target).sum() / 256


def cross_entropy_of_exp_and_one_hot(x: Any) -> Any:
    exp = paddle.exp(x - x.detach().max(-1, keepdim=True))
    logs = paddle.log(exp / exp.sum(-1, keepdim=True))
    return -(logs * paddle.nn.functional.one_hot(_labels([8, 32]), 64)).sum(-1).mean()


def cross_entropy_of_log_of_sum(x: Any) -> Any:
    logs = x - paddle.log(paddle.exp(x).sum(-1, keepdim=True))
    return -paddle.take_along_axis(logs, _labels([8, 32, 1]), -1).mean()


def cross_entropy_of_log_and_entry(x: Any) -> Any:
    logs = paddle.log(paddle.nn.functional.softmax(x) + 1e-9)
    return paddle.nn.functional.nll_loss(logs.reshape([-1, 64]), _labels([256]))


def cross_entropy_of_chosen_probability(x: Any) -> Any:
    probabilities = paddle.nn.functional.softmax(x)
    chosen = paddle.take_along_axis(probabilities, _labels([8, 32, 1]), -1)
    return -paddle.log(chosen + 1e-9).mean()


def cross_entropy_of_sum_of_products(x: Any) -> Any:
    target = paddle.nn.functional.one_hot(_labels([8, 32]), 64)
    return -paddle.log((target * paddle.nn.functional.softmax(x)).sum(-1)).mean()


def cross_entropy_of_chosen_and_clip(x: Any) -> Any:
    probabilities = paddle.nn.functional.softmax(x)
    chosen = paddle.take_along_axis(probabilities, _labels([8, 32, 1]), -1).squeeze(-1)
    return -paddle.log(paddle.clip(chosen, min=1e-9)).mean()


def cross_entropy_of_scale_with_bias(x: Any) -> Any:
    logs = paddle.log(paddle.scale(paddle.nn.functional.softmax(x), 1.0, 1e-9))
    return -paddle.take_along_axis(logs, _labels([8, 32, 1]), -1).mean()


def pow_of_differences(x: Any) -> Any:
    return ((x - 1) ** 2).mean()


def log_softmax_for_smoothed_labels(x: Any) -> Any:
    logs, labels = paddle.nn.functional.log_softmax(x, -1), paddle.zeros([8, 32, 1], "int64")
    return -paddle.take_along_axis(logs, labels, -1).mean() - logs.mean()


def log_softmax_for_divergence(x: Any) -> Any:
    return (paddle.nn.functional.log_softmax(x, -1) * x).sum()


def norm_of_rows(x: Any) -> Any:
    return paddle.nn.functional.normalize(x, axis=-1)


def max_of_time(x: Any) -> Any:
    return x.max(axis=1)


def distance_of_product(x: Any) -> Any:
    differences = x.unsqueeze(2) - x.unsqueeze(1)
    return (differences * differences).sum(-1)


def distance_of_powers(x: Any) -> Any:
    return paddle.exp(-(((x[0][:, None] - x[1][None]) ** 2).mean(axis=2)))


def distance_of_norm(x: Any) -> Any:
    return paddle.norm(x[0].unsqueeze(-2) - x.unsqueeze(-3), axis=-1)


def distance_of_rows_of_another(x: Any) -> Any:
    return (x.unsqueeze(2) - x[0, :8]).square().sum(-1)


WRITTEN: list[Callable[[Any], Any]] = [
    *(layer_norm_of_squares, layer_norm_of_var, layer_norm_of_std, batch_norm_of_moments),
    *(gelu_of_tanh, gelu_of_erf, softmax_of_exp),
    *(cross_entropy_of_entry, cross_entropy_of_one_hot, cross_entropy_of_softmax_and_one_hot),
    *(cross_entropy_of_one_hot_and_clip, cross_entropy_of_exp_and_one_hot),
    *(cross_entropy_of_log_of_sum, cross_entropy_of_log_and_entry),
    *(cross_entropy_of_chosen_probability, cross_entropy_of_sum_of_products),
    *(cross_entropy_of_chosen_and_clip, cross_entropy_of_scale_with_bias),
    *(pow_of_differences, norm_of_rows, max_of_time),
    *(log_softmax_for_divergence, log_softmax_for_smoothed_labels),
    *(distance_of_product, distance_of_powers, distance_of_norm, distance_of_rows_of_another),
]
"""Functions whose names begin with what they write out."""


def operators_of_paddle(x: Any) -> Any:
    functional = paddle.nn.functional
    y = functional.layer_norm(x, [64]) + functional.gelu(x) + functional.softmax(x, -1)
    return functional.cross_entropy(y, paddle.zeros([8, 32], "int64"))


def gate(x: Any) -> Any:
    return paddle.tanh(x) * paddle.nn.functional.sigmoid(x) + x


def cosine(x: Any) -> Any:
    return (x / paddle.sqrt((x * x).sum(-1, keepdim=True)) * x).sum()


def clipped(x: Any) -> Any:
    return x * (1.0 / paddle.clip(paddle.sqrt(paddle.square(x).sum()), 1.0))


def few_elements(x: Any) -> Any:
    return layer_norm_of_squares(x[:, :4])


def norm_of_channels_first(x: Any) -> Any:
    mean = x.mean(1, keepdim=True)
    return (x - mean) * paddle.rsqrt(paddle.square(x - mean).mean(1, keepdim=True) + 1e-5)


def advantages(x: Any) -> Any:
    return (x - x.mean()) * paddle.rsqrt(paddle.square(x - x.mean()).mean() + 1e-5)


def lstm_cell(x: Any) -> Any:
    gates = [paddle.nn.functional.sigmoid(x) for _ in range(3)]
    state = gates[0] * x + gates[1] * paddle.tanh(x)
    return gates[2] * paddle.tanh(state)


def other_powers(x: Any) -> Any:
    return ((x + 1) ** 1.5).mean()


def largest_without_gradient(x: Any) -> Any:
    return x * paddle.nn.functional.sigmoid(x.detach().max(axis=1, keepdim=True))


def root_of_mean_squares(x: Any) -> Any:
    return paddle.sqrt(paddle.square(x - 1).mean())


def soft_targets(x: Any) -> Any:
    target = paddle.nn.functional.softmax(x.detach() + 1)
    return -(target * paddle.log(paddle.nn.functional.softmax(x) + 1e-9)).sum(-1).mean()


def smoothed_labels(x: Any) -> Any:
    target = paddle.nn.functional.one_hot(_labels([8, 32]), 64) * 0.9 + 0.1 / 64
    return -(target * paddle.log(paddle.nn.functional.softmax(x) + 1e-9)).sum(-1).mean()


def focal_loss(x: Any) -> Any:
    probabilities = paddle.nn.functional.softmax(x)
    target = paddle.nn.functional.one_hot(_labels([8, 32]), 64)
    weights = paddle.square(1 - probabilities)
    return -(target * paddle.log(probabilities + 1e-9) * weights).sum(-1).mean()


def mixture(x: Any) -> Any:
    one, other = paddle.nn.functional.softmax(x), paddle.nn.functional.softmax(x * 2)
    target = paddle.nn.functional.one_hot(_labels([8, 32]), 64)
    return -(target * paddle.log(one + other)).sum(-1).mean()


def entropy_beside_an_entry(x: Any) -> Any:
    probabilities = paddle.nn.functional.softmax(x)
    logs = paddle.log(probabilities + 1e-9)
    chosen = paddle.take_along_axis(logs, _labels([8, 32, 1]), -1)
    return -chosen.mean() - (probabilities * logs).sum(-1).mean()


def dice_loss(x: Any) -> Any:
    probabilities = paddle.nn.functional.softmax(x)
    target = paddle.nn.functional.one_hot(_labels([8, 32]), 64)
    return -paddle.log((probabilities * target).sum() / 256)


def _chosen(x: Any, num_answers: int = 1) -> Any:
    probabilities = paddle.nn.functional.softmax(x)
    return paddle.take_along_axis(probabilities, _labels([8, 32, num_answers]), -1)


def pointer_generator(x: Any) -> Any:
    gate, copied = paddle.nn.functional.sigmoid(x[:, :, :1]), paddle.rand([8, 32, 1])
    return -paddle.log((1 - gate) * _chosen(x) + gate * copied).mean()


def several_answers(x: Any) -> Any:
    return -paddle.log(_chosen(x, num_answers=3).sum(-1) + 1e-9).mean()


def one_of_two_models(x: Any) -> Any:
    return -paddle.log(paddle.maximum(_chosen(x), paddle.rand([8, 32, 1]))).mean()


def with_uniform_noise(x: Any) -> Any:
    return -paddle.log((1 - 0.1) * _chosen(x) + 0.1 / 64).mean()


def unlikelihood(x: Any) -> Any:
    logs = paddle.log(1 - paddle.nn.functional.softmax(x))
    return -paddle.take_along_axis(logs, _labels([8, 32, 1]), -1).mean()


def unlikelihood_of_chosen(x: Any) -> Any:
    return -paddle.log(paddle.clip(1 - _chosen(x), min=1e-9)).mean()


def unlikelihood_of_products(x: Any) -> Any:
    target = paddle.nn.functional.one_hot(_labels([8, 32]), 64)
    return -(paddle.log(1 - paddle.nn.functional.softmax(x)) * target).sum(-1).mean()


def log_of_something_else(x: Any) -> Any:
    probabilities = paddle.nn.functional.softmax(x)
    other = paddle.log(x[:, :, :1] + 1)
    chosen = paddle.take_along_axis(probabilities, _labels([8, 32, 1]), -1)
    return (other - chosen).mean()


def softmax_with_one_more(x: Any) -> Any:
    logs = x - paddle.log(1 + paddle.exp(x).sum(-1, keepdim=True))
    return -paddle.take_along_axis(logs, _labels([8, 32, 1]), -1).mean()


def forces(x: Any) -> Any:
    """The differences themselves are needed, too."""
    differences = x.unsqueeze(2) - x.unsqueeze(1)
    return differences / (differences.square().sum(-1, keepdim=True) + 1)


def squared_error(x: Any) -> Any:
    return (x - x.mean(1, keepdim=True)).square().sum(-1)


def spread_over_rows(x: Any) -> Any:
    return (x.unsqueeze(2) - x.unsqueeze(1)).square().sum(1)


def manhattan(x: Any) -> Any:
    return (x.unsqueeze(2) - x.unsqueeze(1)).abs().sum(-1)


OTHERS: list[Callable[[Any], Any]] = [
    *(forces, squared_error, spread_over_rows, manhattan),
    *(operators_of_paddle, gate, cosine, clipped, few_elements, root_of_mean_squares),
    *(largest_without_gradient, norm_of_channels_first, advantages, lstm_cell, other_powers),
    *(soft_targets, smoothed_labels, focal_loss, mixture, entropy_beside_an_entry, dice_loss),
    *(pointer_generator, several_answers, one_of_two_models, with_uniform_noise, unlikelihood),
    *(unlikelihood_of_chosen, unlikelihood_of_products, softmax_with_one_more),
    log_of_something_else,
]


@pytest.mark.paddle
@pytest.mark.parametrize("function", [*WRITTEN, *OTHERS], ids=lambda each: each.__name__)
def test_what_a_training_writes_out(function: Callable[[Any], Any], tmp_path: Path) -> None:
    """On [8,32,64]; with the gradients of all of its operators."""
    global paddle
    paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
    config = {"enable": True, "scheduler": [1, 3], "record_shapes": True}
    with ppprof.attach({**config, "profiler_log": str(tmp_path / "log")}) as prof:
        for _ in range(3):
            x = paddle.rand([8, 32, 64])
            x.stop_gradient = False
            function(paddle.nn.functional.relu(x)).sum().backward()
            prof.step()
    (file,) = (tmp_path / "log").glob("*.paddle_trace.json")
    profile = Profile(read(file))
    expected = function.__name__.partition("_of_")[0].partition("_for_")[0]
    assert kinds(profile) == ({expected: 1} if function in WRITTEN else {})
    if function in WRITTEN:
        table = written_out(profile).table
        names = profile.tree.hosts["name"].cast(str).to_list()
        parts = [names[row] for row in written_out(profile).rows]
        assert all(name.endswith(" dygraph") for name in parts)
        if expected == "max":  # whose gradient alone counts
            assert (table["time_ns"] > 0).all()
            return
        own_ns = profile.tree.hosts["cpu_ns"].gather(list(written_out(profile).rows)).sum()
        assert table["time_ns"].sum() > own_ns  # with gradients
        assert (table["saved_ns"] < table["time_ns"]).all()


def calls(*named: tuple[str, list[list[int]]], dtype: str = "bfloat16") -> Callable[[int], Any]:
    """Operators of 50 each, with a kernel of 60."""

    def make(at: int) -> Iterable[Span]:
        for number, (name, shapes) in enumerate(named):
            inputs = Shapes(
                {f"X{place}": [shape] for place, shape in enumerate(shapes)},
                {f"X{place}": [dtype] for place in range(len(shapes))},
            )
            begin = number * 60
            work = kernel("k", at + begin * US, at + (begin + 60) * US)
            start = at + begin * US
            yield op(at, begin, begin + 50, f"{name} dygraph", inputs, launch(start, start, work))

    return make


def of_device(tmp_path: Path, make: Callable[[int], Any]) -> Profile:
    return Profile(read_window(write(tmp_path / "window.pb", thread(make))))


QUERIES, SCORES, ROWS = [4, 16, 256, 64], [4, 16, 256, 256], [64, 1024]
ATTENTION = (
    ("matmul", [QUERIES, QUERIES]),
    ("scale", [SCORES]),
    ("triu", [[256, 256]]),
    ("add", [SCORES, [256, 256]]),
    ("softmax", [SCORES]),
    ("dropout", [SCORES]),
    ("matmul", [SCORES, QUERIES]),
)


@pytest.mark.parametrize(
    ("named", "dtype", "expected"),
    [
        (ATTENTION, "bfloat16", {"attention": 1}),
        (ATTENTION * 2, "float16", {"attention": 2}),
        (ATTENTION, "float32", {}),  # flash attention computes in 16 bits
        (ATTENTION[:-1], "bfloat16", {}),
        ((*ATTENTION[:-1], ("matmul", [ROWS, ROWS])), "bfloat16", {}),  # of something else
        # Positions of each head, which are trained.
        ((ATTENTION[0], ("add", [SCORES, [1, 16, 256, 256]]), *ATTENTION[4:]), "bfloat16", {}),
    ],
)
def test_attention_on_a_device(
    named: tuple[tuple[str, list[list[int]]], ...],
    dtype: str,
    expected: dict[str, int],
    tmp_path: Path,
) -> None:
    profile = of_device(tmp_path, calls(*named, dtype=dtype))
    assert kinds(profile) == expected
    table = written_out(profile).table
    if expected:
        # All but the products, and the mask, which has no rows of scores.
        assert set(table["saved_ns"]) == {4 * 60 * US}
        assert set(table["name"]) == {"attention [4,16,256,256]"}


LAST = '{"X1":-1}'


def called(*named: tuple[str, str, int, int]) -> list[_Call]:
    """Operators by name, symbol, size and number of large inputs; means and variances are over the last axis of two."""
    return [
        _Call(row, name, symbol, size, num, LAST if symbol in ("M", "V") else None, 2)
        for row, (name, symbol, size, num) in enumerate(named)
    ]


N = 1 << 16
RMS = (("square", "P", N, 1), ("mean", "M", N, 1), ("scale", "K", 64, 1), ("rsqrt", "r", 64, 1))
SCALED = (("multiply", "*", N, 1), ("multiply", "*", N, 1))


@pytest.mark.parametrize(
    ("named", "kind", "kept"),
    [
        # Passes: 2 of square, 1 of mean, 2 of each multiply, whose other input is small; one operator makes 3.
        ((*RMS, *SCALED), "rms_norm", 3 / 7),
        (
            (*RMS, ("multiply", "*", N, 2)),
            None,
            None,
        ),  # of a root of mean squares, and something else
        (
            (("mean", "M", N, 1), ("var", "V", N, 1), ("subtract", "-", N, 1), RMS[-1], *SCALED),
            "layer_norm",
            3 / 8,
        ),
        (
            (("mean", "M", N, 1), ("subtract", "-", N, 1), ("std", "V", N, 1), SCALED[0]),
            "layer_norm",
            3 / 6,
        ),
        ((("mean", "M", N, 1), ("subtract", "-", N, 1), ("var", "V", N, 1), SCALED[0]), None, None),
    ],
)
def test_norms_on_a_device(
    named: tuple[tuple[str, str, int, int], ...], kind: str | None, kept: float | None
) -> None:
    found = [(each.kind, each.kept_ratio) for each in _of_run(called(*named), on_device=True)]
    assert found == ([] if kind is None else [(kind, pytest.approx(kept))])


def test_operators_that_are_slow_on_a_cpu_are_not_on_a_device(tmp_path: Path) -> None:
    made = calls(("pow", [ROWS]), ("relu", [ROWS]), ("log_softmax", [ROWS]))
    assert kinds(of_device(tmp_path, made)) == {}


def test_what_is_written_out_is_in_no_other_chain(tmp_path: Path) -> None:
    """A kernel could scale and add at once."""
    rules = []
    for name, named in (("attention", ATTENTION), ("other", ATTENTION[:-1])):
        path = run(tmp_path / name, [thread(calls(*named))])
        rules.append({each.rule for each in ppprof.advise(ppprof.open(path))})
    assert "written-out" in rules[0] - rules[1]
    assert "fusible" in rules[1] - rules[0]
