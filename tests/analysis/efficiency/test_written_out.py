"""What is written out in several operators: in a training that really runs, and in traces of a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import ppprof
from ppprof.analysis.efficiency.written_out import written_out
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


def cross_entropy_of_probability(x: Any) -> Any:
    chosen = paddle.nn.functional.softmax(x, -1).take_along_axis(
        paddle.zeros([8, 32, 1], "int64"), -1
    )
    return -paddle.log(chosen + 1e-9).mean()


def pow_of_differences(x: Any) -> Any:
    return ((x - 1) ** 2).mean()


def log_softmax_for_divergence(x: Any) -> Any:
    return (paddle.nn.functional.log_softmax(x, -1) * x).sum()


WRITTEN: list[Callable[[Any], Any]] = [
    *(layer_norm_of_squares, layer_norm_of_var, layer_norm_of_std, batch_norm_of_moments),
    *(gelu_of_tanh, gelu_of_erf, softmax_of_exp),
    *(cross_entropy_of_entry, cross_entropy_of_one_hot, cross_entropy_of_probability),
    *(pow_of_differences, log_softmax_for_divergence),
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


def root_of_mean_squares(x: Any) -> Any:
    return paddle.sqrt(paddle.square(x - 1).mean())


OTHERS: list[Callable[[Any], Any]] = [
    *(operators_of_paddle, gate, cosine, clipped, few_elements, root_of_mean_squares),
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
        own_ns = profile.tree.hosts["cpu_ns"].gather(list(written_out(profile).rows)).sum()
        assert table["time_ns"].sum() > own_ns  # with gradients
        assert (table["saved_ns"] < table["time_ns"]).all()


HALF = ["bfloat16"]


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


RMS = (("square", [ROWS]), ("mean", [ROWS]), ("scale", [[64, 1]]), ("rsqrt", [[64, 1]]))


def test_an_rms_norm_on_a_device(tmp_path: Path) -> None:
    """Passes: 2 of square, 1 of mean, and twice 3 of multiply, of which the second reads a weight: 2; one makes 3 of 7."""
    made = calls(*RMS, ("multiply", [ROWS, [64, 1]]), ("multiply", [ROWS, [1024]]))
    table = written_out(of_device(tmp_path, made)).table
    assert set(table["kind"]) == {"rms_norm"}
    assert set(table["time_ns"]) == {6 * 60 * US}
    assert set(table["saved_ns"]) == {round(6 * 60 * US * 4 / 7)}


def test_operators_that_are_slow_on_a_cpu_are_not_on_a_device(tmp_path: Path) -> None:
    made = calls(("pow", [ROWS]), ("relu", [ROWS]), ("log_softmax", [ROWS]))
    assert kinds(of_device(tmp_path, made)) == {}


def test_what_is_written_out_is_in_no_other_chain(tmp_path: Path) -> None:
    """Of two multiplications and an addition behind them, which a kernel could do at once."""
    made = calls(*RMS, ("multiply", [ROWS, [64, 1]]), ("multiply", [ROWS, [1024]]))
    found = ppprof.advise(ppprof.open(run(tmp_path / "log", [thread(made)])))
    rules = {each.rule for each in found}
    assert "written-out" in rules
    assert "fusible" not in rules
