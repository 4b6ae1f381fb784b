"""What operators are called with, recorded with Paddle, and joined to Paddle's own events."""

from __future__ import annotations

import contextlib
import enum
import gc
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import ppprof
from ppprof import rundir
from ppprof.analysis.efficiency.operator_work import work_of_operators
from ppprof.analysis.profile.module_tree import OCCURRENCE, SEPARATOR, modules
from ppprof.analysis.profile.profile import Profile
from ppprof.rundir import TraceName
from ppprof.trace import read_window

paddle = pytest.importorskip("paddle", reason="needs the paddlepaddle wheel")
pytestmark = [pytest.mark.paddle, pytest.mark.usefixtures("unfinished")]

from paddle import nn  # noqa: E402

from ppprof.capture.recording.operator_calls import OperatorCallRecorder  # noqa: E402
from tests.jobs import toy  # noqa: E402


def operators(log: Path, step: Callable[[], Any], **block: Any) -> pl.DataFrame:
    """Return the operators of a window of two steps: name, shapes and dtypes."""
    profiler = {"enable": True, "scheduler": [1, 3], "profiler_log": str(log), **block}
    with ppprof.attach(profiler) as prof:
        for _ in range(4):
            step()
            prof.step()
    ((_, raw),) = rundir.raw_files(rundir.newest(log))
    events = read_window(raw).events
    return events.select(pl.col("name", "category", "shapes", "dtypes").cast(pl.String)).filter(
        (pl.col("category") == "Operator") & pl.col("name").str.ends_with(" dygraph")
    )


@contextmanager
def recording() -> Iterator[OperatorCallRecorder]:
    """A recorder in a window."""
    recorder = OperatorCallRecorder(Path())
    recorder.install()
    try:
        yield recorder
    finally:
        recorder.uninstall()


def names(recorder: OperatorCallRecorder) -> list[str]:
    recorded = recorder.take()
    return [recorded.signatures[row].name for row in recorded.calls[:, 3] if row >= 0]


def test_operators_that_python_calls_have_shapes(tmp_path: Path) -> None:
    found = operators(tmp_path / "log", toy.training())
    without = found.filter(pl.col("shapes").is_null())["name"].unique().to_list()
    assert without == ["full dygraph"]  # it has no inputs
    products = found.filter(pl.col("name") == "matmul dygraph").group_by("shapes").len()
    expected = {  # batch 4, length 16, width 16, 2 heads, 50 words; per step
        '{"X0":[[4,16,16]],"X1":[[16,16]]}': 4,  # query, key, value, output
        '{"X0":[[4,2,16,8]],"X1":[[4,2,16,8]]}': 1,
        '{"X0":[[4,2,16,16]],"X1":[[4,2,16,8]]}': 1,
        '{"X0":[[4,16,16]],"X1":[[16,32]]}': 1,
        '{"X0":[[4,16,32]],"X1":[[32,16]]}': 1,
        '{"X0":[[4,16,16]],"X1":[[16,50]]}': 1,
    }
    assert dict(products.rows()) == {shapes: 2 * count for shapes, count in expected.items()}


class Twice(nn.Layer):
    """Calls a layer twice, one that is no attribute, and one in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.others = nn.LayerList([nn.Sequential(nn.Linear(4, 4), nn.ReLU())])
        self._hidden = [nn.Tanh()]

    def forward(self, x: Any) -> Any:
        return self.others[0](self._hidden[0](self.first(self.first(x))))


def test_layers_have_the_names_that_lead_to_them(tmp_path: Path) -> None:
    net = Twice()
    profiler = {"enable": True, "scheduler": [1, 3], "profiler_log": str(tmp_path / "log")}
    with ppprof.attach(profiler) as prof:
        for _ in range(4):
            net(paddle.ones([2, 4])).mean().backward()
            net.first(paddle.ones([2, 4]))  # not through the net
            prof.step()
    ((_, raw),) = rundir.raw_files(rundir.newest(tmp_path / "log"))
    events = read_window(raw).events.filter(pl.col("category") == "Forward")
    found = events.select(pl.col("name", "attributes").cast(pl.String)).rows()
    names = [(name, text and json.loads(text)["layer"]) for name, text in found]
    expected = [
        ("Twice", ""),
        ("Linear", "first"),
        ("Linear", "first"),
        ("Tanh", None),
        ("Sequential", "others.0"),
        ("Linear", "others.0.0"),
        ("ReLU", "others.0.1"),
        ("Linear", "first"),
    ]
    assert names == 2 * expected
    assert {name: path for name, path in expected if path}.items() <= {
        (type(layer).__name__, path) for path, layer in net.named_sublayers()
    } | {("Linear", "first")}


def test_a_layer_that_fails_raises_in_the_training(tmp_path: Path) -> None:
    class Fails(nn.Layer):
        def forward(self, x: Any) -> Any:
            raise KeyError("planted")

    call = nn.Layer._dygraph_call_func
    profiler = {"enable": True, "scheduler": [0, 2], "profiler_log": str(tmp_path / "log")}
    with ppprof.attach(profiler), pytest.raises(KeyError, match="planted"):
        Fails()(1)
    assert nn.Layer._dygraph_call_func is call


def test_a_paddle_whose_functions_are_elsewhere_costs_the_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(recorder: OperatorCallRecorder, *args: object) -> None:
        raise AttributeError("no attribute 'eager'")

    monkeypatch.setattr(OperatorCallRecorder, "__init__", missing)
    found = operators(tmp_path / "log", toy.training())
    assert found["shapes"].null_count() == len(found) > 0
    assert "rank 0: cannot record shapes: no attribute 'eager'" in capsys.readouterr().err


def test_shapes_are_off_on_request(tmp_path: Path) -> None:
    found = operators(tmp_path / "log", toy.training(), record_shapes=False)
    assert found["shapes"].null_count() == len(found) > 0
    assert not list((tmp_path / "log/raw").glob("*.ops"))


def test_methods_of_tensors_and_lists_of_tensors(tmp_path: Path) -> None:
    x, y = paddle.ones([4, 8]), paddle.ones([8, 2], "float64")
    image, kernel = paddle.ones([1, 3, 8, 8]), paddle.ones([5, 3, 3, 3])

    def step() -> None:
        _ = x @ y.astype("float32")
        _ = 2.0 * x
        _ = x[1:, :]
        paddle.concat([x, x], axis=0)
        nn.functional.conv2d(image, kernel, stride=2)

    found = operators(tmp_path / "log", step)
    assert {name: json.loads(shapes) for name, _, shapes, _ in found.drop_nulls().rows()} == {
        "cast dygraph": {"X0": [[8, 2]]},
        "matmul dygraph": {"X0": [[4, 8]], "X1": [[8, 2]]},
        "scale dygraph": {"X0": [[4, 8]]},
        "slice dygraph": {"X0": [[4, 8]]},
        "concat dygraph": {"X0": [[4, 8], [4, 8]]},
        "conv2d dygraph": {"X0": [[1, 3, 8, 8]], "X1": [[5, 3, 3, 3]]},
    }


def test_attributes_are_kept() -> None:
    x = paddle.ones([4, 8])
    with recording() as recorder:
        paddle.matmul(x, x, transpose_y=True)
        paddle.concat([x, x], axis=1)
        nn.functional.conv2d(
            paddle.ones([1, 4, 8, 8]), paddle.ones([6, 2, 3, 3]), stride=2, groups=2
        )
    signatures = {signature.name: signature for signature in recorder.take().signatures}
    assert signatures["matmul"].attributes == {"transpose_y": True}
    assert signatures["concat"].attributes["X1"] == 1
    assert [2, 2] in signatures["conv2d"].attributes.values()
    assert 2 in signatures["conv2d"].attributes.values()


def test_operators_and_their_gradients_have_the_line_that_calls_them(tmp_path: Path) -> None:
    x, w = paddle.ones([4, 8]), paddle.create_parameter([8, 8], "float32")

    def step() -> None:
        y = nn.functional.relu(x @ w)
        for _ in range(2):
            y = y * 2.0
        y.mean().backward()

    first = step.__code__.co_firstlineno
    operators(tmp_path / "log", step)
    ((_, raw),) = rundir.raw_files(rundir.newest(tmp_path / "log"))
    events = read_window(raw).events.with_columns(pl.col("name", "line").cast(pl.String))
    path = os.path.relpath(__file__)
    expected = {"matmul": 1, "relu": 1, "scale": 3, "mean": 4}
    for name, after in expected.items():
        found = events.filter(pl.col("name") == f"{name} dygraph")
        assert found["line"].unique().to_list() == [f"{path}:{first + after}"]
        gradients = events.filter(pl.col("name").str.contains(f"(?i)^Global_{name}GradNode"))
        assert len(gradients) == len(found) > 0
        assert gradients["line"].unique().to_list() == [f"{path}:{first + after}"]
    exact = events.filter(pl.col("category").is_in(["Operator", "OperatorInner"]))
    assert not exact["line_is_sampled"].any()


@pytest.mark.filterwarnings("ignore:Tensor do not have 'place' interface")
def test_a_program_of_to_static_has_a_line_and_its_gradients_are_those_of_its_layer(
    tmp_path: Path,
) -> None:
    net = paddle.jit.to_static(Twice(), full_graph=True)

    def step() -> None:
        y = net(paddle.ones([2, 4]))
        y.mean().backward()

    operators(tmp_path / "log", step)
    ((_, raw),) = rundir.raw_files(rundir.newest(tmp_path / "log"))
    trace = read_window(raw)
    events = trace.events.with_columns(pl.col("name", "line").cast(pl.String))
    inside = events.filter(pl.col("name").str.contains(r"^pd_op\."))
    names = set(inside["name"])
    assert {"pd_op.matmul", "pd_op.tanh", "pd_op.matmul_grad", "pd_op.tanh_grad"} <= {
        name.removesuffix("_") for name in names
    }
    line = f"{os.path.relpath(__file__)}:{step.__code__.co_firstlineno + 1}"
    assert inside["line"].unique().to_list() == [line]
    gradients = events.filter(pl.col("name") == "Global_Dy2StGradNode")
    assert gradients["line"].to_list() == [line, line]
    tree = modules(Profile(trace))
    paths = set(
        tree["path"].str.replace_all(f"{OCCURRENCE}0", "").str.split(SEPARATOR).list.join("/")
    )
    assert {"Twice", "Backward/Twice"} <= paths


@pytest.mark.filterwarnings("ignore:When training, we now always track")
def test_flops_of_a_resnet_are_those_that_its_layers_count(tmp_path: Path) -> None:
    """Each convolution and the last layer count as ``paddle.flops`` does, by hooks."""
    net = paddle.vision.models.resnet18(num_classes=10)
    images = paddle.rand([2, 3, 64, 64])
    counts: list[int] = []

    def count(layer: Any, inputs: Any, result: Any) -> None:
        of_each = math.prod(layer.weight.shape[1:] if layer.weight.ndim == 4 else [512])
        counts.append(math.prod(result.shape) * of_each)

    for layer in net.sublayers():
        if isinstance(layer, (nn.Conv2D, nn.Linear)):
            layer.register_forward_post_hook(count)

    def step() -> None:
        counts.clear()
        net(images).mean().backward()

    profiler = {"enable": True, "scheduler": [1, 2], "profiler_log": str(tmp_path / "log")}
    with ppprof.attach(profiler) as prof:
        for _ in range(2):
            step()
            prof.step()
    ((_, raw),) = rundir.raw_files(rundir.newest(tmp_path / "log"))
    events = read_window(raw).events
    work = work_of_operators(events)
    flops: dict[str, int] = {}
    for name, count in zip(events["name"].cast(pl.String).gather(work["row"]), work["flops"]):
        flops[name] = flops.get(name, 0) + (count or 0)
    counted = sum(counts)
    assert len(counts) == 21
    assert flops["conv2d dygraph"] + flops["matmul dygraph"] == 2 * counted
    gradients = flops["Global_Conv2dGradNodeFinal"] + flops["Global_MatmulGradNode"]
    first = 2 * (2 * 32 * 32 * 64) * (3 * 7 * 7)  # the gradient of the images is not computed
    assert gradients == 2 * 2 * counted - first


def test_shapes_of_a_transformer_are_those_that_its_layers_get(tmp_path: Path) -> None:
    """Hooks of Paddle's own layers see the inputs of linear layers and norms."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0)
    encoder = nn.TransformerEncoder(layer, 2)
    seen: dict[str, list[Any]] = {"matmul dygraph": [], "layer_norm dygraph": []}

    def look(layer: Any, inputs: Any, result: Any) -> None:
        tensors = (*inputs, layer.weight)
        kind = "matmul dygraph" if isinstance(layer, nn.Linear) else "layer_norm dygraph"
        seen[kind].append([list(tensor.shape) for tensor in tensors])

    for part in encoder.sublayers():
        if isinstance(part, (nn.Linear, nn.LayerNorm)):
            part.register_forward_post_hook(look)

    def step() -> None:
        for shapes in seen.values():
            shapes.clear()
        encoder(paddle.ones([2, 7, 16])).mean().backward()

    events = operators(tmp_path / "log", step)
    queries, weights = [2, 4, 7, 4], [2, 4, 7, 7]
    attention = 2 * [[queries, queries], [weights, queries]]  # scores, and their sum of values
    seen["matmul dygraph"] += attention
    for name, expected in seen.items():
        texts = events.filter(pl.col("name") == name)["shapes"]
        shapes = [json.loads(text) for text in texts]
        of_two_steps = sorted(2 * expected)
        assert sorted([each["X0"][0], each["X1"][0]] for each in shapes) == of_two_steps
    assert [len(shapes) for shapes in seen.values()] == [2 * (6 + 2), 2 * 2]


class Mode(str):
    """A text that is no plain one."""


class Size(enum.IntEnum):
    FOUR = 4


def test_unusual_arguments_are_kept_as_plain_ones(tmp_path: Path) -> None:
    x = paddle.ones([1, 1, 4, 4])

    def step() -> None:
        nn.functional.pad(x, [1, 1, 1, 1], mode=Mode("reflect"))
        paddle.reshape(x, [Size.FOUR, -1])
        nested: list[Any] = []
        nested += [nested, nested]
        with contextlib.suppress(ValueError, TypeError):
            paddle._C_ops.reshape(x, nested)

    found = operators(tmp_path / "log", step)
    assert set(found.drop_nulls()["name"]) >= {"pad3d dygraph", "reshape dygraph"}


def test_true_is_not_one() -> None:
    x = paddle.ones([4, 4])
    with recording() as recorder:
        paddle._C_ops.concat([x, x], 1)
        paddle._C_ops.matmul(x, x, True, False)
        paddle._C_ops.matmul(x, x, False, True)
    attributes = [signature.attributes for signature in recorder.take().signatures]
    assert {"X1": 1} in attributes
    assert {"X2": True, "X3": False} in attributes
    assert {"X2": False, "X3": True} in attributes
    assert [type(each["X2"]) for each in attributes if "X2" in each] == [bool, bool]


def test_shapes_that_cannot_be_saved_cost_no_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(recorder: OperatorCallRecorder) -> None:
        raise TypeError("Encoding objects of type Mode is unsupported")

    monkeypatch.setattr(OperatorCallRecorder, "take", broken)
    found = operators(tmp_path / "log", toy.training())
    assert found["shapes"].null_count() == len(found) > 0
    assert "window 0 has no shapes" in capsys.readouterr().err


def test_functions_are_restored_everywhere() -> None:
    before = {name: getattr(paddle._C_ops, name) for name in ("matmul", "relu", "linear")}
    method, late = paddle.Tensor.__add__, types.ModuleType("imported_in_a_window")
    sys.modules[late.__name__] = late
    try:
        with recording() as recorder:
            assert paddle._C_ops.matmul is not before["matmul"]
            late.matmul = paddle._C_ops.matmul  # type: ignore[attr-defined]
            wrapper = paddle._C_ops.relu
        assert late.matmul is before["matmul"]  # type: ignore[attr-defined]
    finally:
        del sys.modules[late.__name__]
    assert {name: getattr(paddle._C_ops, name) for name in before} == before
    assert paddle.Tensor.__add__ is method
    recorder.take()
    wrapper(paddle.ones([2]))  # one that other code has kept
    assert len(recorder.take().calls) == 0


def test_a_module_that_waits_for_its_first_use_goes_on_waiting(
    lazy_module: types.ModuleType,
) -> None:
    with recording():
        pass
    assert "rgb_to_hsv" not in object.__getattribute__(lazy_module, "__dict__")


def test_functions_can_be_pickled_in_a_window() -> None:
    functions = [paddle._C_ops.matmul, paddle._C_ops.relu, paddle.nn.functional.relu]
    before = [pickle.dumps(function) for function in functions]
    with recording():
        wrappers = [paddle._C_ops.matmul, paddle._C_ops.relu, paddle.nn.functional.relu]
        assert [pickle.dumps(function) for function in wrappers] == before
    assert [pickle.loads(data) for data in before] == functions  # noqa: S301 (our own)


def test_calls_of_a_window_that_is_dropped_are_not_in_the_next_one() -> None:
    with recording() as recorder:
        nn.functional.relu(paddle.ones([3]))
    recorder.install()
    nn.functional.gelu(paddle.ones([3]))
    recorder.uninstall()
    assert {"relu", "gelu"} & set(names(recorder)) == {"gelu"}


def test_a_window_that_is_dropped_keeps_no_layer() -> None:
    layer = nn.Linear(4, 4)
    layer.register_forward_post_hook(lambda *args: None)  # or Paddle takes a shortcut
    left = weakref.ref(layer)
    with recording() as recorder:
        layer(paddle.ones([2, 4]))
    recorder.dropped(TraceName(0, "dp0", datetime(2026, 11, 20), 0))
    del layer
    gc.collect()
    assert left() is None


def test_each_thread_has_its_own_calls() -> None:
    ids: list[int] = []

    def train() -> None:
        ids.append(threading.get_native_id())
        nn.functional.relu(paddle.ones([3]))

    with recording() as recorder:
        for _ in range(2):
            thread = threading.Thread(target=train)
            thread.start()
            thread.join()
    recorded = recorder.take()
    (relu,) = [row for row, each in enumerate(recorded.signatures) if each.name == "relu"]
    assert recorded.calls[recorded.calls[:, 3] == relu, 0].tolist() == ids


def test_a_forked_worker_records_nothing() -> None:
    with recording() as recorder:
        child = os.fork()
        if not child:
            os._exit(int(recorder._window is not None))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        nn.functional.relu(paddle.ones([3]))
    assert "relu" in names(recorder)


def test_an_operator_that_raises_raises_as_before() -> None:
    def fail() -> None:
        paddle._C_ops.matmul(paddle.ones([2, 3]), paddle.ones([4, 5]), False, False)

    with pytest.raises(ValueError, match=r"matmul|Input") as expected:
        fail()
    with recording() as recorder, pytest.raises(ValueError, match=r"matmul|Input") as caught:
        fail()
    assert str(caught.value).splitlines()[-1] == str(expected.value).splitlines()[-1]
    assert "matmul" not in names(recorder)


TRANSLATING = """
import sys
from types import FrameType

import paddle
import ppprof
from paddle.jit.sot.opcode_translator.executor.executor_cache import OpcodeExecutorCache

translate, files = OpcodeExecutorCache.translate, set()


def noting(cache, frame: FrameType, **options):
    files.add(frame.f_code.co_filename)
    return translate(cache, frame, **options)


OpcodeExecutorCache.translate = noting
compiled = paddle.jit.to_static(paddle.nn.Linear(4, 4), full_graph=False)
with ppprof.attach({"enable": True, "scheduler": [1, 3], "profiler_log": sys.argv[1]}) as prof:
    for _ in range(4):
        compiled(paddle.ones([2, 4])).sum().backward()
        prof.step()
print(sorted(each for each in files if "/ppprof/" in each))
print(len(files))
"""


def test_no_function_of_ours_is_compiled_with_the_training(tmp_path: Path) -> None:
    """What SOT cannot translate would raise in the training."""
    command = [sys.executable, "-c", TRANSLATING, str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    *_, ours, num = done.stdout.splitlines()
    assert (ours, int(num) > 0) == ("[]", True)


def test_a_compiled_function_computes_the_same(tmp_path: Path) -> None:
    net = nn.Linear(4, 4)
    x = paddle.ones([2, 4])
    expected = net(x).numpy()
    compiled = paddle.jit.to_static(net)
    results: list[Any] = []
    operators(tmp_path / "log", lambda: results.append(compiled(x).numpy()))
    assert all((result == expected).all() for result in results)


def test_of_several_results_the_first_has_the_dtype_that_amp_computes_in() -> None:
    with recording() as recorder:
        nn.functional.cross_entropy(paddle.ones([2, 3]), paddle.zeros([2, 1], "int64"))
    recorded = recorder.take()
    functions = [recorded.signatures[row].name for row in recorded.calls[:, 3]]
    dtype = recorded.calls[functions.index("cross_entropy_with_softmax"), 4]
    assert recorded.dtypes[dtype] == "float32"


def test_signatures_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppprof.capture.recording.operator_calls._MOST_SIGNATURES", 3)
    with recording() as recorder:
        for size in range(1, 9):
            nn.functional.relu(paddle.ones([size]))
    recorded = recorder.take()
    assert len(recorded.signatures) == 3
    assert len(recorded.calls) >= 8
    assert -1 in recorded.calls[:, 3]


def test_an_exception_of_a_signal_handler_reaches_the_training() -> None:
    class Interrupting(paddle.Tensor):  # type: ignore[misc]
        @property
        def shape(self) -> list[int]:
            signal.raise_signal(signal.SIGUSR1)
            return [2]

    def preempted(number: int, frame: object) -> None:
        raise TimeoutError("preempted")

    previous = signal.signal(signal.SIGUSR1, preempted)
    try:
        with recording(), pytest.raises(TimeoutError, match=r"^preempted$"):
            paddle._C_ops.relu(Interrupting(paddle.ones([2])))
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_parameters_that_the_training_drops_are_not_kept() -> None:
    """A training may make layers in each step; their memory is the device's."""
    left: list[weakref.ref[Any]] = []
    with recording() as recorder:
        for _ in range(8):
            layer = nn.Linear(4, 4)
            left.append(weakref.ref(layer.weight))
            layer(paddle.ones([2, 4]))
            del layer
            recorder.step(1)
        assert sum(each() is not None for each in left) <= 2
