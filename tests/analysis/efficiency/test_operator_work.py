"""FLOPs and bytes of operators, against Paddle's own formulas and counts by hand."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.analysis.efficiency.operator_work import Work, work_of, work_of_operators


def work(
    operator: str, *shapes: list[int], dtype: str = "float32", **attributes: Any
) -> Work | None:
    """Return the work of an operator whose arguments are tensors of these shapes."""
    inputs = {f"X{place}": [shape] for place, shape in enumerate(shapes)}
    dtypes = {name: [dtype] for name in inputs}
    return work_of(operator, json.dumps(inputs), json.dumps(dtypes), json.dumps(attributes))


def flops(operator: str, *shapes: list[int], **attributes: Any) -> int | None:
    found = work(operator, *shapes, **attributes)
    return None if found is None else found.flops


@pytest.mark.paddle
@pytest.mark.parametrize(
    ("operator", "theirs", "shapes", "attributes"),
    [
        ("matmul", "matmul", [[4, 16, 8], [8, 32]], {}),
        ("matmul", "matmul", [[2, 3, 16, 8], [2, 3, 16, 8]], {"transpose_y": True}),
        ("matmul", "matmul", [[2, 1, 8, 16], [3, 8, 4]], {"transpose_x": True}),
        ("add", "elementwise_add", [[4, 1, 8], [3, 8]], {}),
        ("multiply", "elementwise_mul", [[4, 8], [4, 8]], {}),
        ("gelu", "gelu", [[4, 16]], {}),
        ("relu", "relu", [[4, 16]], {}),
        ("silu", "silu", [[4, 16]], {}),
        ("softmax", "softmax", [[4, 16]], {}),
        ("layer_norm", "layer_norm", [[4, 16]], {"epsilon": 1e-5}),
        ("transpose", "transpose2", [[4, 16]], {}),
        ("reshape", "reshape2", [[4, 16]], {}),
        ("dropout", "dropout", [[4, 16]], {}),
    ],
)
def test_flops_are_paddles(
    operator: str, theirs: str, shapes: list[list[int]], attributes: dict[str, Any]
) -> None:
    oracle = pytest.importorskip("paddle.utils.flops", reason="needs the paddlepaddle wheel").flops
    named = {name: [list(shape)] for name, shape in zip("XY", shapes)}
    assert flops(operator, *shapes, **attributes) == oracle(theirs, named, attributes)


@pytest.mark.paddle
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [0, 1])
def test_convolutions_are_paddles(stride: int, padding: int) -> None:
    oracle = pytest.importorskip("paddle.utils.flops", reason="needs the paddlepaddle wheel").flops
    image, kernel = [2, 3, 32, 30], [8, 3, 5, 3]
    expected = oracle(
        "conv2d",
        {"Input": [image], "Filter": [kernel], "Bias": []},
        {"strides": stride, "paddings": padding, "dilations": 1, "groups": 1},
    )
    attributes = {"X2": 2 * [stride], "X3": 2 * [padding], "X4": "EXPLICIT", "X5": [1, 1], "X6": 1}
    assert flops("conv2d", image, kernel, **attributes) == expected


def test_counts_by_hand() -> None:
    assert flops("matmul", [128], [128]) == 2 * 128
    assert flops("matmul", [4, 128], [128]) == 2 * 4 * 128
    assert flops("matmul", [0, 128], [128, 4]) == 0
    weight_first = {"X3": False, "X4": True, "X5": "none"}
    assert flops("fused_gemm_epilogue", [2, 3, 8], [5, 8], [5], **weight_first) == 2 * 6 * 8 * 5
    gradient = partial(flops, "Global_FusedGemmEpilogueGradNode", [6, 8], [8, 5], [5])
    assert gradient(gradients=3) == 2 * 2 * 6 * 8 * 5
    assert gradient(gradients=2) == 2 * 2 * 6 * 8 * 5  # one less if a bias is among them
    assert gradient(gradients=1) == 2 * 6 * 8 * 5  # of the input alone: the layer is frozen
    assert gradient(gradients=0) == 0
    # A ring adds up to one other rank's element to each element; gathering adds nothing.
    assert work("all_reduce", [4, 128]) == Work(4 * 128, 2 * 4 * 128 * 4)
    assert work("c_identity", [4, 128]) == Work(0, 2 * 4 * 128 * 4)
    assert work("all_gather", [4, 128]) == Work(0, None)  # the result depends on the ranks
    # 3 FLOPs for each of 8 tokens and 100 words; a lookup moves 8 rows of 16 and reads 8 numbers.
    assert flops("c_softmax_with_cross_entropy", [8, 100], [8, 1]) == 3 * 8 * 100
    assert work("c_embedding", [100, 16], [8]) == Work(0, 2 * 8 * 16 * 4 + 8 * 4)
    # Each of 8 x 14 x 14 results of 2 images sums 3 x 3 products in one channel.
    depthwise = {"X2": [2, 2], "X3": [1, 1], "X4": "EXPLICIT", "X5": [1, 1], "X6": 8}
    assert flops("depthwise_conv2d", [2, 8, 28, 28], [8, 1, 3, 3], **depthwise) == (
        2 * 2 * 8 * 14 * 14 * 9
    )
    last = {"X2": [1, 1], "X3": [0, 0], "X4": "SAME", "X5": [1, 1], "X6": 1, "X7": "NHWC"}
    assert flops("conv2d", [1, 7, 7, 4], [6, 4, 3, 3], **last) == 2 * 7 * 7 * 6 * 4 * 9
    # Two products of 16 x 32 by 64, for each of 2 x 4 heads.
    query, key = [2, 16, 4, 64], [2, 32, 4, 64]
    assert flops("flash_attn", query, key, key) == 2 * 2 * (2 * 4) * 16 * 32 * 64
    # The first of 16 queries sees 17 of 32 keys, or 16.5 as half of a square counts, the last all.
    assert flops("flash_attn", query, key, key, X6=True) == 4 * (2 * 4) * 16 * 24 * 64
    assert flops("embedding", [4, 16], [1000, 64]) == 0
    assert flops("mean", [4, 16]) == 64
    assert flops("adamw_", [64, 8], [64, 8], [1], [64, 8], [64, 8]) == 14 * 64 * 8


def test_bytes_are_those_of_inputs_and_result() -> None:
    product = work("matmul", [4, 128], [128, 64], dtype="bfloat16")
    assert product == Work(2 * 4 * 128 * 64, 2 * (4 * 128 + 128 * 64 + 4 * 64))
    assert work("add", [4, 8], [8]) == Work(32, 4 * (32 + 8 + 32))
    assert work("add", [4, 8], [8], dtype="quaternion") == Work(32, None)
    # Parameter, gradient and two moments are read, all but the gradient written.
    update = work("adamw_", [64], [64], [], [64], [64])
    assert update is not None
    assert update.bytes == 4 * (7 * 64 + 1)


@pytest.mark.parametrize(
    ("operator", "shapes"),
    [
        ("unheard_of", [[4]]),
        ("matmul", [[4, 8]]),
        ("matmul", [[4, 8], [4, 8]]),
        ("matmul", [[], []]),
        ("matmul", [[-1, 8], [8, 4]]),
        ("conv2d", [[4], [4]]),
        ("conv2d", [[1, 3, 8, 8], [4, 2, 3, 3]]),
        ("flash_attn", [[4, 8], [4, 8]]),
        ("relu", [[1 << 62] * 1_000_000]),  # its product would take minutes
    ],
)
def test_unknown_work_is_none(operator: str, shapes: list[list[int]]) -> None:
    assert work(operator, *shapes) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(["X0", "X1", "X", "Y", "q", "k"])
SHAPES = st.dictionaries(
    NAMES, st.lists(st.lists(st.integers(-1, 1 << 62), max_size=5), max_size=2), max_size=3
)


@given(
    st.sampled_from(["matmul", "conv2d", "flash_attn", "add", "adamw_", "embedding", "concat"]),
    SHAPES,
    st.dictionaries(st.sampled_from(["X2", "X3", "X4", "X5", "X6", "X7"]), JSON),
)
def test_any_inputs_have_some_work_or_none(
    operator: str, shapes: dict[str, Any], attributes: dict[str, Any]
) -> None:
    found = work_of(operator, json.dumps(shapes), None, json.dumps(attributes))
    assert found is None or found.flops >= 0


def test_a_table_of_events() -> None:
    names = ["ProfileStep#0", "matmul dygraph", "mystery dygraph", "matmul dygraph"]
    product = '{"X0":[[4,8]],"X1":[[8,2]]}'
    huge = '{"X0":[[4611686018427387904,8]],"X1":[[8,2]]}'
    dtypes = '{"X0":["float32"],"X1":["float32"]}'
    events = pl.DataFrame(
        {
            "name": names,
            "shapes": [None, product, product, huge],
            "dtypes": [None, dtypes, dtypes, dtypes],
            "attributes": [None] * 4,
        },
        schema=dict.fromkeys(("name", "shapes", "dtypes", "attributes"), pl.Categorical()),
    )
    assert work_of_operators(events).rows() == [
        (1, 128, 4 * (32 + 16 + 8)),
        (2, None, None),
        (3, None, None),
    ]
    assert work_of_operators(events[:1]).is_empty()


@pytest.mark.parametrize(
    ("operator", "shapes", "gradients", "expected"),
    [
        # y = x @ w: dx = dy @ w.T and dw = x.T @ dy, each as large as the product
        ("Matmul", [[8, 16], [16, 4]], 2, 2 * 2 * 8 * 16 * 4),
        ("Matmul", [[8, 16], [16, 4]], 1, 2 * 8 * 16 * 4),
        ("Add", [[8, 16], [8, 16]], 2, 2 * 8 * 16),
        ("Relu", [[8, 16]], 1, 8 * 16),
        ("LayerNorm", [[8, 16], [16], [16]], 3, 2 * 8 * 8 * 16),
        ("Reshape", [[8, 16]], 1, 0),
        # 5 products of (batch, heads, length, width): scores again, dv, dp, dq, dk
        ("FlashAttn", 3 * [[2, 64, 4, 16]], 3, 5 * 2 * 2 * 4 * 64 * 64 * 16),
    ],
)
def test_flops_of_gradients(
    operator: str, shapes: list[list[int]], gradients: int, expected: int
) -> None:
    assert flops(f"Global_{operator}GradNode", *shapes, gradients=gradients) == expected


def torch_flops(operator: str, shapes: list[list[int]], **attributes: Any) -> int | None:
    """Return the FLOPs of an operator of torch whose tensors are its first arguments."""
    inputs = {f"X{place}": [shape] for place, shape in enumerate(shapes)}
    found = work_of(f"aten::{operator}", json.dumps(inputs), None, json.dumps(attributes))
    return None if found is None else found.flops


def test_attention_and_convolutions_of_torch() -> None:
    """Traces of ViT and Qwen on an H100: TraceLens reports the same numbers for them."""
    vit = 3 * [[4, 197, 12, 64]]
    assert torch_flops("_flash_attention_forward", vit, X8=False) == 476_884_992
    assert torch_flops("_flash_attention_forward", vit, X8=True) == 476_884_992 // 2
    assert torch_flops("_flash_attention_forward", vit) is None
    backward = [[4, 197, 12, 64], *vit]
    assert torch_flops("_flash_attention_backward", backward, X11=False) == 476_884_992 * 5 // 2
    patches = [[4, 3, 224, 224], [768, 3, 16, 16]]
    settings = {"X2": [0, 0], "X3": [16, 16], "X4": [1, 1], "X5": 1}
    expected = 2 * (4 * 14 * 14 * 768) * (3 * 16 * 16)
    assert torch_flops("cudnn_convolution", patches, **settings) == expected


def test_a_copy_reads_one_tensor_and_writes_the_other() -> None:
    inputs = json.dumps({"X0": [[8, 16]], "X1": [[8, 16]]})
    dtypes = json.dumps({"X0": ["float32"], "X1": ["bfloat16"]})
    assert work_of("aten::copy_", inputs, dtypes, None) == Work(0, 8 * 16 * (4 + 2))


def test_bytes_of_gradients() -> None:
    product = work("Global_MatmulGradNode", [8, 16], [16, 4], gradients=2)
    assert product is not None
    # read dy, x and w; write dx and dw
    assert product.bytes == 4 * (8 * 4 + 2 * (8 * 16 + 16 * 4))
    moved = work("Global_TransposeGradNode", [8, 16], gradients=1)
    assert moved is not None
    assert moved.bytes == 4 * 2 * 8 * 16
    inputs = {"Ids": [[2, 8]], "W": [[50, 16]]}
    embedding = work_of(
        "Global_EmbeddingGradNode",
        json.dumps(inputs),
        json.dumps({"Ids": ["int64"], "W": ["float32"]}),
        json.dumps({"gradients": 1}),
    )
    assert embedding == Work(0, 4 * (2 * 8 * 16 + 50 * 16))


@pytest.mark.parametrize("gradients", [None, -1, "two"])
def test_gradients_of_an_unknown_number_have_no_work(gradients: Any) -> None:
    assert work("Global_ReluGradNode", [8], gradients=gradients) is None


@pytest.mark.parametrize(
    ("operator", "shapes", "dtype", "expected"),
    [
        ("embedding", [[4], [50_000, 1024]], "float32", 4 * 4 + 2 * 4 * 1024 * 4),
        ("gather", [[50_000, 1024], [4]], "float32", 4 * 4 + 2 * 4 * 1024 * 4),
        ("slice", [[1000, 4]], "float32", None),
        ("expand", [[1, 4]], "float32", None),
        ("one_hot", [[4]], "int64", None),
        ("cast", [[1000]], "float32", 6000),
        ("equal", [[1000], [1000]], "float32", 9000),
        ("swiglu", [[4, 8]], "float32", 4 * (32 + 16)),
    ],
)
def test_bytes_are_the_least(
    operator: str, shapes: list[list[int]], dtype: str, expected: int | None
) -> None:
    found = work(operator, *shapes, dtype=dtype)
    assert found is not None
    assert found.bytes == expected


@pytest.mark.parametrize(
    ("operator", "shapes", "attributes"),
    [
        ("matmul", [[4, 7, 8], [5, 8, 2]], {}),
        ("add", [[4, 7], [5, 8]], {}),
        ("conv2d", [[1, 1, 8, 8], [1, 1, 3, 3]], {"X2": 1, "X3": [-9, -9]}),
        ("conv2d", [[1, 1, 8, 8], [1, 1, 3, 3]], {"X2": [1.5, 2.5]}),
        ("relu", [[10**18, 10**18]], {}),
    ],
)
def test_impossible_inputs_have_no_work(
    operator: str, shapes: list[list[int]], attributes: dict[str, Any]
) -> None:
    inputs = {f"X{place}": [shape] for place, shape in enumerate(shapes)}
    dtypes = {name: ["float32"] for name in inputs}
    events = pl.DataFrame(
        {
            "name": [operator],
            "shapes": [json.dumps(inputs)],
            "dtypes": [json.dumps(dtypes)],
            "attributes": [json.dumps(attributes)],
        }
    )
    assert work_of_operators(events)["flops"].to_list() == [None]


def test_a_tensor_without_a_dtype_has_unknown_bytes() -> None:
    inputs = {"X0": [[4, 8]], "X1": [[8, 2]]}
    assert work_of("matmul", json.dumps(inputs), '{"X0":["float32"]}', None) == Work(128, None)


def test_places_of_arguments_differ_by_operator() -> None:
    """As Paddle 3.3's ``F.conv2d``, ``F.conv3d`` and ``F.flash_attention`` call them."""
    image, kernel = [2, 8, 28, 28], [8, 1, 3, 3]
    expected = 2 * 2 * 8 * 28 * 28 * 9
    common = {"X2": [1, 1], "X3": [1, 1], "X4": "EXPLICIT"}
    assert flops("conv2d", image, kernel, **common, X5=[1, 1], X6=8, X7="NCHW") == expected
    assert flops("depthwise_conv2d", image, kernel, **common, X5=8, X6=[1, 1]) == expected
    query = [2, 128, 4, 64]
    whole = 4 * 2 * 4 * 128 * 128 * 64
    assert flops("flash_attn", query, query, query, X6=True) == whole // 2
    assert flops("flash_attn_v3", query, query, query, X6=False, X8=True) == whole // 2
    assert work_of_gradient("flash_attn_v3", query, query, query, X8=True).flops == whole * 5 // 4


def work_of_gradient(operator: str, *shapes: list[int], **attributes: Any) -> Work:
    node = "".join(part.capitalize() for part in operator.split("_"))
    found = work(f"Global_{node}GradNode", *shapes, gradients=1, **attributes)
    assert found is not None
    return found


def test_bytes_are_those_that_are_read_and_written() -> None:
    def num_bytes(operator: str, *shapes: list[int], **attributes: Any) -> int | None:
        found = work(operator, *shapes, **attributes)
        return None if found is None else found.bytes

    # Parameter, learning rate and gradient are read, the parameter is written.
    assert num_bytes("sgd_", [64], [], [64]) == 4 * (3 * 64 + 1)
    assert num_bytes("momentum_", [64], [64], [64], []) == 4 * (5 * 64 + 1)
    mixed = {"X0": ["bfloat16"], "X1": ["bfloat16"], "X2": ["float32"], "X3": ["float32"]}
    shapes = {"X0": [[64]], "X1": [[64]], "X2": [[]], "X3": [[64]]}
    update = work_of("adamw_", json.dumps(shapes), json.dumps(mixed), None)
    assert update is not None
    assert update.bytes == 64 * (2 + 2 + 4) + 4 + 64 * (2 + 4)
    # 2 columns of 8 rows, read and written, and 2 numbers.
    assert num_bytes("gather", [8, 1000], [2], axis=1) == 4 * (2 * 8 * 2 + 2)
    assert num_bytes("aten::index_select", [1000, 8], [], [2], X1=0) == 4 * (2 * 8 * 2 + 1 + 2)
    assert num_bytes("aten::fill_", [64]) == 4 * 64
    # The softmax is read, its gradient written; the loss and the labels have one number a row.
    loss = work_of_gradient("cross_entropy_with_softmax", [4, 1000], [4, 1])
    assert loss.bytes == 4 * (2 * 4 * 1000 + 2 * 4)
