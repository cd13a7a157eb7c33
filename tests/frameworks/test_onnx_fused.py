"""Norms, activations and attentions that one model has as one op and the other written out.

The numbers are those of both files simply run, with the tensors named here. Nothing has the same name in both: what
belongs together is told by what is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import inc_tb
from inc_tb.frameworks.onnx.calculator import Calculator
from inc_tb.frameworks.onnx.composites import find_composites
from inc_tb.frameworks.onnx.graph import Graph
from inc_tb.frameworks.onnx.model import Model
from inc_tb.frameworks.onnx.switch import OnnxSwitches
from tests.frameworks import onnx_zoo as zoo
from tests.frameworks.fused_zoo import (
    FORMS,
    MICROSOFT,
    WIDTH,
    Form,
    affine,
    bias,
    built,
    encoder,
    gelu,
    layer_norm,
    placed,
    scale,
)
from tests.frameworks.onnx_zoo import Array, Feeds, Net

KNOWN = {"extra_options": {"DefaultTensorType": onnx.TensorProto.FLOAT}}
"""Without it ONNX Runtime's quantizer gives up behind ops that ONNX does not know."""
FLOAT_DB = 90.0
"""Better than what float32 computed in another order leaves, worse than anything that is rounded to 8 bits."""
Rows = dict[str, dict[str, Any]]


def sqnr_db(x: Array, y: Array) -> float:
    error = np.square(x.astype(np.float64) - y).sum()
    return float(10 * np.log10(np.square(x.astype(np.float64)).sum() / error)) if error else np.inf


def rows_of(diagnosis: inc_tb.Diagnosis) -> Rows:
    return {row["name"]: row for row in diagnosis.ops.rows()}


def small(net: Net) -> list[str]:
    return [node.name for node in net.nodes if node.name.startswith(("norm", "act"))]


@dataclass
class Pair:
    """A float network in both ways of writing, the second one with quantized products around the part in question."""

    mine: Net
    reference: Path
    quantized: Path
    feeds: Feeds
    diagnosis: inc_tb.Diagnosis

    @property
    def rows(self) -> Rows:
        return rows_of(self.diagnosis)


def paired(mine: Net, theirs: Net, folder: Path, quantize: Callable[[Path, Feeds], Path]) -> Pair:
    reference, other, feeds = mine.save(folder), theirs.save(folder, "other.onnx"), zoo.data(mine, 4)
    quantized = quantize(other, feeds)
    return Pair(mine, reference, quantized, feeds, inc_tb.diagnose(reference, quantized, [feeds]))


def dynamic(path: Path, _: Feeds) -> Path:
    """Products are rounded, everything else is as it was."""
    return zoo.dynamic(path, **KNOWN)


@pytest.mark.parametrize("is_apart", [True, False], ids=["apart-one", "one-apart"])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_one_row(name: str, is_apart: bool, tmp_path: Path) -> None:
    """The last op of the reference has the numbers, the others say where they went, and floats are not blamed."""
    form = FORMS[name]
    parts = (form.apart, form.one) if is_apart else (form.one, form.apart)
    mine, theirs = (built(form, part) for part in parts)
    pair = paired(mine, theirs, tmp_path, dynamic)
    end = form.last if is_apart else small(mine)[0]
    row = pair.rows[end]
    for other in set(small(mine)) - {end, "norm/shape"}:
        assert pair.rows[other]["reason"] == f"part of {end} in the quantized model; compared there", other
    fp32 = zoo.fetch(pair.reference, [f"{end}_out", before(mine)], pair.feeds)
    root = small(theirs)[0] if is_apart else form.last
    int8 = zoo.fetch(pair.quantized, [f"{root}_out", before(theirs)], pair.feeds)
    (x, arrived), (y, reached) = fp32.values(), int8.values()
    assert row["total_sqnr_db"] == pytest.approx(sqnr_db(x, y), abs=1e-3)
    assert row["arrived_sqnr_db"] == pytest.approx(sqnr_db(arrived, reached), abs=1e-3)
    # The one that approximates GELU adds what it differs by, even where both are floats.
    assert row["added_sqnr_db"] is None or row["added_sqnr_db"] > (60 if "tanh" in name else FLOAT_DB)
    assert pair.diagnosis.suggestions == []
    check_scale(form, row)


def before(net: Net) -> str:
    """The tensor that the part in question reads."""
    return "up/bias_out" if any(node.name == "up/bias" for node in net.nodes) else "up_out"


def check_scale(form: Form, row: Mapping[str, Any]) -> None:
    """The scale is held to the scale, and they are equal."""
    assert row["params"] == (WIDTH if form.scale else 0)
    assert row["w_mse"] == (0 if form.scale else None)
    assert row["w_sqnr_db"] is None
    if form.scale:
        values = numpy_helper.to_array(scale_of())
        assert (row["w_min"], row["w_max"]) == pytest.approx((values.min(), values.max()))


def scale_of() -> onnx.TensorProto:
    net = Net()
    scale(net)
    return net.initializers[0]


@pytest.mark.parametrize("name", ["layer norm", "layer norm as a line", "instance norm"])
def test_a_scale_that_is_rounded(name: str, tmp_path: Path) -> None:
    """ONNX Runtime rounds the scale of a norm; its error is that of the scale in the file."""
    form = FORMS[name]
    pair = paired(built(form, form.apart), built(form, form.one), tmp_path, lambda path, feeds: zoo.static(path, feeds))
    constants = zoo.initializers(pair.quantized)
    own = numpy_helper.to_array(scale_of())
    step, zero = (np.float64(constants[f"gamma_{part}"]) for part in ("scale", "zero_point"))
    rounded = (constants["gamma_quantized"] - zero) * step
    row = pair.rows[form.last]
    assert row["w_sqnr_db"] == pytest.approx(sqnr_db(own, rounded), abs=1e-2)
    assert row["weight_dtype"] == "int8"
    switches = OnnxSwitches(pair.reference, pair.quantized)
    unit = next(unit for unit in switches.units if unit.name == form.last)
    assert set(unit.ops) == set(small(pair.mine))
    simulated = switches.run(pair.feeds, [site.name for site in switches.sites])[1][0]
    fp32, real = zoo.fetch(pair.reference, ["down/bias_out" if not form.is_image else "down_out"], pair.feeds), switches
    (x,) = fp32.values()
    # Some sums fall to the other side of a boundary; the rounding itself is 15 dB louder.
    assert sqnr_db(x, real.run_real(pair.feeds)[0]) + 10 < sqnr_db(simulated, real.run_real(pair.feeds)[0])


def with_skip(net: Net, *, one: bool, has_bias: bool, gives_sum: bool) -> None:
    """A product, its bias, a residual sum and a norm, of which all but the first can be one op."""
    x = net.linear("up", net.input("x", "n", 6, 8), 8, WIDTH)
    y = net.op("MatMul", "mid", x, net.weight("mid.w", WIDTH, WIDTH))
    more = net.weight("mid.b", WIDTH) if has_bias else ""
    if one:
        outputs = ["norm_out", "", "", "sum_out"] if gives_sum else ["norm_out"]
        inputs = [y, x, scale(net), bias(net), *filter(None, [more])]
        h = net.op("SkipLayerNormalization", "norm", *inputs, outputs=outputs, domain=MICROSOFT, epsilon=1e-5)
        total = "sum_out"
    else:
        y = net.op("Add", "act/bias", y, more) if more else y
        total = net.op("Add", "act/sum", y, x)
        h = layer_norm(net, total)
    h = net.linear("down", h, WIDTH, WIDTH)
    net.output(net.op("Add", "last", h, total) if gives_sum else h)


@pytest.mark.parametrize("is_apart", [True, False], ids=["apart-one", "one-apart"])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("gives_sum", [True, False])
def test_norms_with_a_residual_sum(is_apart: bool, has_bias: bool, gives_sum: bool, tmp_path: Path) -> None:
    mine, theirs = Net(5), Net(5)
    for net in (mine, theirs):
        with_skip(net, one=(net is mine) is not is_apart, has_bias=has_bias, gives_sum=gives_sum)
    pair = paired(mine, theirs, tmp_path, dynamic)
    end, root = ("norm/shift", "norm_out") if is_apart else ("norm", "norm/shift_out")
    x, y = zoo.fetch(pair.reference, [f"{end}_out"], pair.feeds), zoo.fetch(pair.quantized, [root], pair.feeds)
    row = pair.rows[end]
    assert row["total_sqnr_db"] == pytest.approx(sqnr_db(*x.values(), *y.values()), abs=1e-3)
    assert row["added_sqnr_db"] is None or row["added_sqnr_db"] > FLOAT_DB
    assert row["arrived_sqnr_db"] is not None
    assert row["w_mse"] == 0
    assert pair.diagnosis.suggestions == []
    if is_apart:
        where = "norm/shift" if not gives_sum else "act/sum"
        assert pair.rows["act/sum"]["reason"] == (
            "" if gives_sum else f"part of {where} in the quantized model; compared there"
        )
    assert pair.rows["down"]["total_sqnr_db"] is not None
    if gives_sum:
        assert pair.rows["last"]["total_sqnr_db"] is not None


@pytest.mark.parametrize("is_apart", [True, False], ids=["apart-one", "one-apart"])
def test_an_activation_with_the_bias_before_it(is_apart: bool, tmp_path: Path) -> None:
    mine, theirs = Net(5), Net(5)
    for net in (mine, theirs):
        x = net.op("MatMul", "up", net.input("x", "n", 6, 8), net.weight("up.w", 8, WIDTH))
        if (net is mine) is is_apart:
            x = gelu(net, net.op("Add", "act/bias", x, bias(net)))
        else:
            x = net.op("BiasGelu", "act", x, bias(net), domain=MICROSOFT)
        net.output(net.linear("down", x, WIDTH, 4))
    pair = paired(mine, theirs, tmp_path, dynamic)
    end = "act/half" if is_apart else "act"
    row = pair.rows[end]
    assert row["added_sqnr_db"] is None or row["added_sqnr_db"] > FLOAT_DB
    assert (row["w_mse"], row["params"]) == (0, WIDTH)
    assert {r["name"] for r in pair.rows.values() if r["a_mse"] is None} == set(small(mine)) - {end}
    assert pair.diagnosis.suggestions == []


HEADS = 2


def split_heads(net: Net, name: str, x: str, *order: int) -> str:
    shape = net.constant(f"{name}.shape", [0, 0, HEADS, WIDTH // HEADS], np.int64)
    return net.op("Transpose", f"{name}/turn", net.op("Reshape", f"{name}/heads", x, shape), perm=list(order))


def attention(net: Net, *, one: bool) -> None:
    """The keys are computed before the queries, as some networks do; the fused op has the queries first."""
    x = net.linear("up", net.input("x", "n", 5, 8), 8, WIDTH)
    rng = np.random.default_rng(8)
    w = {k: rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 4 for k in "kqv"}
    b = {k: rng.normal(size=WIDTH).astype(np.float32) for k in "kqv"}
    if one:
        weights = net.constant("qkv.w", np.concatenate([w[k] for k in "qkv"], axis=1))
        biases = net.constant("qkv.b", np.concatenate([b[k] for k in "qkv"]))
        y = net.op(
            "Attention", "attention", x, weights, biases, domain=MICROSOFT, num_heads=HEADS, outputs=["merged_out"]
        )
    else:
        made = {}
        for k in "kqv":
            product = net.op("MatMul", k, x, net.constant(f"{k}.w", w[k]))
            made[k] = net.op("Add", f"{k}/bias", product, net.constant(f"{k}.b", b[k]))
        q, v = (split_heads(net, k, made[k], 0, 2, 1, 3) for k in "qv")
        scores = net.op("MatMul", "scores", q, split_heads(net, "k", made["k"], 0, 2, 3, 1))
        scaled = net.op("Div", "scaled", scores, net.constant("root", np.sqrt(WIDTH / HEADS), np.float32))
        context = net.op("MatMul", "context", net.op("Softmax", "softmax", scaled, axis=-1), v)
        turned = net.op("Transpose", "back", context, perm=[0, 2, 1, 3])
        y = net.op("Reshape", "merged", turned, net.constant("shape", [0, 0, WIDTH], np.int64))
    net.output(net.linear("down", y, WIDTH, 4))


def test_an_attention_is_one_row(tmp_path: Path) -> None:
    """Its weights are those of three products, side by side in the order of the fused op."""
    mine, theirs = Net(6), Net(6)
    attention(mine, one=False)
    attention(theirs, one=True)
    kinds = ["MatMul", "Attention"]
    pair = paired(mine, theirs, tmp_path, lambda path, _: zoo.dynamic(path, op_types_to_quantize=kinds, **KNOWN))
    assert "QAttention" in {node.op_type for node in onnx.load(pair.quantized).graph.node}
    row = pair.rows["merged"]
    inside = {node.name for node in mine.nodes} - {"up", "up/bias", "merged", "down", "down/bias"}
    assert len(inside) == 17
    for name in inside:
        assert pair.rows[name]["reason"] == "part of merged in the quantized model; compared there", name
    x = zoo.fetch(pair.reference, ["merged_out", "up/bias_out"], pair.feeds)
    y = zoo.fetch(pair.quantized, ["merged_out", "up/bias_out"], pair.feeds)
    assert row["total_sqnr_db"] == pytest.approx(sqnr_db(x["merged_out"], y["merged_out"]), abs=1e-3)
    assert row["arrived_sqnr_db"] == pytest.approx(sqnr_db(x["up/bias_out"], y["up/bias_out"]), abs=1e-3)
    constants = zoo.initializers(pair.quantized)
    whole, rounded = np.concatenate([constants_of(mine)[f"{k}.w"] for k in "qkv"], axis=1), constants["qkv.w_quantized"]
    zero, step = np.float64(constants["qkv.w_zero_point"]), np.float64(constants["qkv.w_scale"])
    assert row["w_sqnr_db"] == pytest.approx(sqnr_db(whole, (rounded - zero) * step), abs=1e-2)
    assert row["params"] == 3 * WIDTH * WIDTH
    assert pair.diagnosis.suggestions == []


def constants_of(net: Net) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in net.initializers}


def quantized_after_fusion(path: Path, feeds: Feeds, plant: str = "") -> Path:
    """What ONNX Runtime makes of it, then quantized; `plant` are the weights that get a value far out."""
    fused = zoo.optimized(path)
    model = onnx.load(fused)
    assert {"SkipLayerNormalization", "BiasGelu"} <= {node.op_type for node in model.graph.node}
    target = zoo.static(fused, feeds, op_types_to_quantize=["MatMul", "Add"], **KNOWN)
    if plant:
        damage(target, plant)
    return target


def damage(path: Path, weight: str) -> None:
    """Weights rounded with a step 40 times too large."""
    model = onnx.load(path)
    found = {tensor.name: tensor for tensor in model.graph.initializer}
    step, whole = found[f"{weight}_scale"], found[f"{weight}_quantized"]
    coarse = np.round(numpy_helper.to_array(whole).astype(np.float32) / 40).astype(np.int8)
    whole.CopyFrom(numpy_helper.from_array(coarse, whole.name))
    step.CopyFrom(numpy_helper.from_array(np.asarray(numpy_helper.to_array(step) * 40, np.float32), step.name))
    onnx.save(model, path)


def test_a_healthy_transformer_that_was_fused_gets_no_suggestion(tmp_path: Path) -> None:
    net = encoder()
    reference, feeds = net.save(tmp_path), zoo.data(net)
    found = inc_tb.diagnose(reference, quantized_after_fusion(reference, feeds), [feeds])
    assert found.suggestions == []
    rows = rows_of(found)
    for block in ("a", "b"):
        for at, last in (("1", "norm/shift"), ("2", "act/half"), ("3", "norm/shift")):
            inside = [name for name in rows if name.startswith(f"{block}/{at}/") and not name.endswith(last)]
            reasons = {rows[name]["reason"] for name in inside}
            assert reasons == {f"part of {block}/{at}/{last} in the quantized model; compared there"}
            assert rows[f"{block}/{at}/{last}"]["arrived_sqnr_db"] is not None
            assert rows[f"{block}/{at}/{last}"]["w_mse"] in (0, None)


@pytest.mark.parametrize("planted", ["a/down", "b/q"])
def test_what_is_broken_is_found_and_not_the_norm_behind_it(planted: str, tmp_path: Path) -> None:
    net = encoder()
    reference, feeds = net.save(tmp_path), zoo.data(net)
    found = inc_tb.diagnose(reference, quantized_after_fusion(reference, feeds, f"{planted}.w"), [feeds])
    assert planted in found.suggestions[0].ops
    assert not any("norm/" in name or "act/" in name for suggestion in found.suggestions for name in suggestion.ops)
    worst = min(
        (row for row in rows_of(found).values() if row["added_sqnr_db"] is not None), key=lambda r: r["added_sqnr_db"]
    )
    assert worst["name"] == planted


def test_a_float_op_that_is_paired_wrongly_is_not_blamed(tmp_path: Path) -> None:
    """The quantized model has another, and float, function under the name of a result; nothing says that it is bad."""
    mine, theirs = Net(5), Net(5)
    for net in (mine, theirs):
        x = net.linear("up", net.input("x", "n", 6, 8), 8, WIDTH)
        if net is mine:
            x = affine(net, net.op("Sin", "act/sin", net.op("Cos", "act/cos", x)))
        else:
            x = net.op("Tan", "act", x, outputs=["norm/shift_out"])
        net.output(net.linear("down", x, WIDTH, 4))
    pair = paired(mine, theirs, tmp_path, dynamic)
    row = pair.rows["norm/shift"]
    assert row["added_sqnr_db"] < 10
    assert (row["verdict"], row["reason"]) == (
        "watch", "differs although nothing in it is rounded: perhaps compared with the wrong place"
    )  # fmt: skip
    assert row["w_sqnr_db"] is None
    assert not any("norm/shift" in suggestion.ops for suggestion in pair.diagnosis.suggestions)


def test_what_is_unknown_before_an_op_is_not_its_own(tmp_path: Path) -> None:
    """A product that the quantized model alone has, rounded badly, reaches an op that is compared."""
    mine, theirs = Net(5), Net(5)
    for net in (mine, theirs):
        x = net.linear("up", net.input("x", "n", 6, 8), 8, WIDTH)
        if net is theirs:
            x = net.op("MatMul", "extra", x, net.constant("extra.w", np.eye(WIDTH) + 0.01, np.float32))
        else:
            x = net.op("Sin", "act/sin", net.op("Cos", "act/cos", x))
        net.output(net.linear("down", x, WIDTH, 4))
    pair = paired(mine, theirs, tmp_path, dynamic)
    row = pair.rows["down"]
    assert row["added_sqnr_db"] < 10
    assert not any("down" in suggestion.ops for suggestion in pair.diagnosis.suggestions)
    assert "what reaches it is rounded and could not be compared" in row["reason"]


def test_a_tensor_is_not_normalized_because_it_is_divided(tmp_path: Path) -> None:
    """A square root of a mean, of something else: no norm, so everything is compared step by step."""
    net = Net(5, opset=17)
    x = net.linear("up", net.input("x", "n", 6, 8), 8, WIDTH)
    y = net.op("Abs", "abs", net.linear("side", x, WIDTH, WIDTH))
    root = net.op("Sqrt", "root", net.op("ReduceMean", "mean", y, axes=[-1]))
    net.output(net.linear("down", net.op("Div", "div", x, root), WIDTH, 4))
    reference, feeds = net.save(tmp_path), zoo.data(net)
    rows = rows_of(inc_tb.diagnose(reference, zoo.dynamic(reference), [feeds]))
    assert all(row["a_mse"] is not None for row in rows.values())


def test_the_work_grows_with_the_number_of_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is tried a fixed number of times, however long the model is, and once of those that are alike."""
    tries: list[int] = []
    plain = Calculator.compute

    def counted(self: Calculator, *given: Any, **more: Any) -> Array | None:
        tries[-1] += 1
        return plain(self, *given, **more)

    monkeypatch.setattr(Calculator, "compute", counted)
    for count in (4, 8):
        net, part = Net(opset=13), Net(opset=13)
        x = net.input("x", "n", 6, WIDTH)
        for at in range(count):
            x = placed(net, str(at), layer_norm, part, x)
        net.output(x)
        tries.append(0)
        found = [c for c in find_composites(Graph(Model(net.model()))) if len(c.entries) == 1]
        assert [len(c.steps(with_bias=True)) for c in found] == [9] * count
    assert 0 < tries[0] < 40
    assert tries[1] == tries[0]  # layers repeat, and what one computes is known by then


def embedded(net: Net, *, one: bool) -> None:
    """Tables of words, positions and segments, their sum, and its norm."""
    ids, segments = (net.input(name, 2, 6, dtype=onnx.TensorProto.INT32) for name in ("ids", "segments"))
    words, places = net.weight("words", 20, WIDTH), net.weight("places", 6, WIDTH)
    parts = net.weight("parts", 8, WIDTH)
    if one:
        tables = (ids, segments, words, places, parts, scale(net), bias(net))
        outputs = ["norm_out", "mask_index"]
        x = net.op("EmbedLayerNormalization", "norm", *tables, outputs=outputs, domain=MICROSOFT, epsilon=1e-5)
    else:
        at = net.constant("at", np.arange(6)[None], np.int64)
        x = net.op(
            "Add", "act/sum", net.op("Gather", "act/word", words, ids), net.op("Gather", "act/part", parts, segments)
        )
        x = layer_norm(net, net.op("Add", "act/sum2", x, net.op("Gather", "act/place", places, at)))
    net.output(net.linear("down", x, WIDTH, 4))


def test_an_embedding_is_one_row(tmp_path: Path) -> None:
    mine, theirs = Net(6), Net(6)
    embedded(mine, one=False)
    embedded(theirs, one=True)
    products = {"op_types_to_quantize": ["MatMul"], **KNOWN}
    pair = paired(mine, theirs, tmp_path, lambda path, _: zoo.dynamic(path, **products))
    row = pair.rows["norm/shift"]
    assert {r["name"] for r in pair.rows.values() if r["a_mse"] is None} == set(small(mine)) - {
        "norm/shift",
        "act/place",
    }
    assert row["added_sqnr_db"] is None or row["added_sqnr_db"] > FLOAT_DB
    assert (row["w_mse"], row["params"]) == (0, 20 * WIDTH)
    assert pair.diagnosis.suggestions == []
