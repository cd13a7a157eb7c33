"""Outlier channels and mask constants go without a single op in fp32, and the model computes what it did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from torch import nn

from inc_tb import OnnxRuntimeQuantizer
from inc_tb.errors import ModelError
from inc_tb.frameworks.models import open_results
from inc_tb.frameworks.onnx.rewrites import apply_rewrites, find_rewrites
from inc_tb.records import Rewrite
from tests.frameworks import onnx_zoo as zoo
from tests.outliers import ONNX_INJECTED, Data, Tokens, as_onnx, injected, lost, samples


def written(text: str, **weights: Any) -> onnx.ModelProto:
    """A model of opset 17 from its text, and from the constants that it names; lists are whole numbers."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    for name, values in weights.items():
        kind = np.int64 if isinstance(values, list) else np.float32
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(values, kind), name))
    return model


def result(model: onnx.ModelProto, data: Data) -> np.ndarray[Any, Any]:
    return open_results(model)(data)[0]


def quantized(model: onnx.ModelProto, data: Data, folder: Path) -> onnx.ModelProto:
    tool = OnnxRuntimeQuantizer()
    tool.quantize(tool.prepare(model, folder), folder / "int8.onnx", [data], tool.settings, [])
    return onnx.load(folder / "int8.onnx")


def constant(model: onnx.ModelProto, name: str) -> list[Any]:
    (found,) = (numpy_helper.to_array(t).tolist() for t in model.graph.initializer if t.name == name)
    return found


def normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(("kind", "made", "read"), ONNX_INJECTED, ids=[made for _, made, _ in ONNX_INJECTED])
def test_an_outlier_channel_is_cured_without_an_op_in_fp32(
    kind: type[nn.Module], made: str, read: tuple[str, ...], tmp_path: Path
) -> None:
    healthy, spoilt = (as_onnx(injected(kind, made, read, 1, factor)) for factor in (1.0, 400.0))
    data, held_out = samples(kind, 1), samples(kind, 2)
    rewrites = find_rewrites(spoilt, [data])
    cured = apply_rewrites(spoilt, rewrites)
    own = result(spoilt, held_out)
    assert np.array_equal(result(cured, held_out), own)  # powers of two change no digit
    errors = [lost(own, result(quantized(m, data, tmp_path), held_out)) for m in (healthy, spoilt, cured)]
    assert errors[1] - errors[2] >= 0.9 * (errors[1] - errors[0]) > 0


def test_channels_are_followed_through_joins_cuts_and_flattened_images() -> None:
    """Channel 1 of two is 64 times as large: behind the Concat it is channel 2, in features 4 and 5."""
    model = written(
        """net (float[N,1,1,2] x) => (float[N,3] y) {
            one = Conv (x, w1)
            many = Concat <axis = 1> (x, one, x)
            four = Relu (many)
            three = Slice (four, start, end, axes)
            flat = Flatten (three)
            y = Gemm <transB = 1> (flat, w2)
        }""",
        w1=np.reshape([1, 64], (2, 1, 1, 1)), w2=np.array([[1, 2, 3, 4, 1 / 16, 1 / 32]] * 3),
        start=[0], end=[3], axes=[1],
    )  # fmt: skip
    data = {"x": np.abs(normal(8, 1, 1, 2))}
    (rewrite,) = find_rewrites(model, [data])
    assert (rewrite.kind, rewrite.ops, rewrite.tensor) == ("equalize", ["one", "y"], "one")
    first, second = rewrite.values[:2]
    assert second / first == 64.0
    assert rewrite.values[2:] == [1, 1, first, first, second, second]
    assert "channel 1 of the results of one reaches" in rewrite.because
    changed = apply_rewrites(model, [rewrite])
    assert constant(changed, "w1") == [[[[1 / first]]], [[[64 / second]]]]
    assert constant(changed, "w2")[0] == [1, 2, 3 * first, 4 * first, second / 16, second / 32]
    assert np.array_equal(result(changed, data), result(model, data))


def test_a_join_of_several_parts_that_are_scaled() -> None:
    """As where an image is pooled in several sizes: channel 1 of two is channel 1 and 4 of five."""
    model = written(
        """net (float[N,2,4,4] x) => (float[N,2,4,4] y) {
            a = Conv (x, w1)
            r = Relu (a)
            p = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r)
            first = Slice (x, start, end, axes)
            j = Concat <axis = 1> (r, first, p)
            y = Conv (j, w2)
        }""",
        w1=np.reshape([1, 0, 0, 128], (2, 2, 1, 1)), start=[0], end=[1], axes=[1],
        w2=np.reshape([1, 1 / 128, 1, 1, 1 / 128] * 2, (2, 5, 1, 1)),
    )  # fmt: skip
    data = {"x": np.abs(normal(8, 2, 4, 4))}
    (rewrite,) = find_rewrites(model, [data])
    first, second = rewrite.values[:2]
    assert rewrite.ops == ["a", "y"]
    assert 32 <= second / first <= 128
    assert rewrite.values[2:] == [first, second, 1, first, second]
    assert np.array_equal(result(apply_rewrites(model, [rewrite]), data), result(model, data))


def test_a_norm_that_is_written_out_and_one_with_shared_weights() -> None:
    """Weights that two norms share are changed for the one alone that can be scaled."""
    model = written(
        """net (float[N,4] x) => (float[N,4] y, float[N,4] z) {
            mean = ReduceMean <axes = [1]> (x)
            centered = Sub (x, mean)
            square = Mul (centered, centered)
            variance = ReduceMean <axes = [1]> (square)
            deviation = Sqrt (variance)
            normed = Div (centered, deviation)
            scaled = Mul (normed, gamma)
            moved = Add (scaled, beta)
            z = LayerNormalization (x, gamma, beta)
            y = MatMul (moved, w)
        }""",
        gamma=np.array([1, 256, 1, 1]), beta=np.array([0, 128, 1, 2]), w=np.diag([1, 1 / 256, 1, 1]),
    )  # fmt: skip
    data = {"x": normal(32, 4)}
    (rewrite,) = find_rewrites(model, [data])
    assert (rewrite.kind, rewrite.ops) == ("smooth", ["scaled", "moved", "y"])
    changed = apply_rewrites(model, [rewrite])
    assert constant(changed, "gamma") == [1, 256, 1, 1]
    own, factor = constant(changed, "gamma/scaled"), rewrite.values[1]
    assert factor > 8
    assert own[1] == 256 / factor
    assert constant(changed, "beta/moved")[1] == 128 / factor
    assert all(np.array_equal(a, b) for a, b in zip(*(open_results(m)(data) for m in (model, changed)), strict=True))


ATTENTION = """net (float[N,4,8] x, float[N,1,4] seen) => (float[N,4,8] y) {
    unseen = Sub (one, seen)
    mask = Mul (unseen, lowest)
    turned = Transpose <perm = [0, 2, 1]> (x)
    products = MatMul (x, turned)
    scores = Add (products, mask)
    shares = Softmax <axis = -1> (scores)
    y = MatMul (shares, x)
}"""


def test_a_mask_that_leaves_scores_no_room_is_clamped_to_what_softmax_cannot_tell(tmp_path: Path) -> None:
    model = written(ATTENTION, one=1.0, lowest=float(np.finfo(np.float32).min))
    data = {"x": normal(64, 4, 8), "seen": np.float32([[[1, 1, 1, 0]]] * 64)}
    (rewrite,) = find_rewrites(model, [data])
    assert (rewrite.kind, rewrite.ops, rewrite.tensor) == ("clamp", ["mask"], "lowest")
    assert rewrite.values in ([32.0], [64.0])  # scores of normal numbers are 0 to 30 apart; beyond 24 nothing is left
    assert "a softmax cannot tell it from" in rewrite.because
    clamped = apply_rewrites(model, [rewrite])
    assert constant(clamped, "lowest") == -rewrite.values[0]
    own = result(model, data)
    np.testing.assert_allclose(result(clamped, data), own, rtol=0, atol=1e-5 * np.abs(own).max())
    before, after = (lost(own, result(quantized(m, data, tmp_path), data)) for m in (model, clamped))
    assert before > 20 * after


def test_a_mask_is_left_alone_where_something_else_reads_it() -> None:
    text = ATTENTION.replace("=> (float[N,4,8] y)", "=> (float[N,4,8] y, float[N,4,4] scores)")
    data = {"x": normal(4, 4, 8), "seen": np.float32([[[1, 1, 1, 0]]] * 4)}
    assert find_rewrites(written(text, one=1.0, lowest=-1e30), [data]) == []


@pytest.mark.parametrize(
    "between",
    [
        "b = Clip (a, low, high)", "b = Sigmoid (a)", "b = Add (a, x)", "b = Mul (a, a)", "b = Softmax (a)",
        "b = Gelu <domain = \"com.microsoft\"> (a)".replace("Gelu <domain = \"com.microsoft\">", "com.microsoft.Gelu"),
    ],
)  # fmt: skip
def test_nothing_is_scaled_where_it_would_be_seen(between: str) -> None:
    model = written(
        f"net (float[N,4] x) => (float[N,4] y) {{ a = MatMul (x, w)  {between}  y = MatMul (b, v) }}",
        w=np.diag([1, 500, 1, 1]), v=np.diag([1, 1 / 500, 1, 1]), low=0.0, high=6.0,
    )  # fmt: skip
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    assert find_rewrites(model, [{"x": normal(16, 4)}]) == []


def test_a_healthy_network_stays_as_it_is() -> None:
    assert find_rewrites(as_onnx(injected(Tokens, "value", ("out",), 0, 1.0)), [samples(Tokens, 0)]) == []


def test_a_record_of_another_model_is_refused_in_one_line() -> None:
    spoilt = as_onnx(injected(Tokens, "up", ("down",), 0, 300.0))
    (rewrite,) = find_rewrites(spoilt, [samples(Tokens, 0)])
    others = [as_onnx(injected(Tokens, "up", ("down",), 0, factor)) for factor in (1.0, 200.0)]
    for other in (*others, apply_rewrites(spoilt, [rewrite])):
        with pytest.raises(ModelError, match=r"with the same weights to change so \(equalize\); expected the model"):
            apply_rewrites(other, [rewrite])
    with pytest.raises(ModelError, match="has no nowhere, there to change so"):
        apply_rewrites(spoilt, [Rewrite("equalize", ["nowhere", "there"], "", "", [1.0, 2.0])])


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_rewritten_in_random_networks_the_results_stay(seed: int) -> None:
    """Some slices of their weights are far larger than the others, which is part of what they compute."""
    net, random = zoo.random_net(3 * seed), np.random.default_rng(seed)
    model = net.model()
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor).copy()
        if values.dtype.kind == "f" and values.ndim:
            axis = int(random.integers(values.ndim))
            np.moveaxis(values, axis, 0)[int(random.integers(values.shape[axis]))] *= 100
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    feeds, more = zoo.data(net), zoo.data(net, seed=10)
    changed = apply_rewrites(model, find_rewrites(model, [feeds]))
    for own, theirs in zip(open_results(model)(more), open_results(changed)(more), strict=True):
        np.testing.assert_allclose(theirs, own, rtol=0, atol=1e-5 * float(np.abs(own).max()))
