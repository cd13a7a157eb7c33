"""The adapter against numbers that the test itself fetches from both files and works out with plain numpy.

Which tensor belongs to which is written down here from ONNX Runtime's way of naming: QDQ files keep `t` and add
`t_DequantizeLinear_Output`, QOperator files hold `t_quantized`, dynamically quantized files keep `t`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from onnxruntime.quantization import qdq_loss_debug
from onnxruntime.quantization.shape_inference import quant_pre_process

import inc_tb
from inc_tb.measure.diagnosis import Diagnosis
from tests.frameworks import onnx_zoo as zoo
from tests.frameworks.onnx_zoo import Array, Feeds, Net

RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Weight:
    """A constant of both files; `quantized` is empty where the quantized file keeps it as it is."""

    name: str
    axis: int | None
    quantized: str = ""
    transposed: bool = False
    norm: str = ""
    """The batch normalization that is folded into it."""


@dataclass(frozen=True)
class Case:
    net: Callable[[], Net]
    quantize: Callable[[Path, Feeds], Path]
    form: str
    """How tensors are named in the quantized file: QDQ, QOperator or float."""
    points: Mapping[str, str]
    """Op -> the tensor behind which it is compared: its own output, or that of the activation folded into it."""
    weights: Mapping[str, Weight] = field(default_factory=dict)
    scale_of: Mapping[str, str] = field(default_factory=dict)
    """Tensors that are quantized with the scale of another one."""
    plain: frozenset[str] = frozenset()
    """Tensors that stay floats although the file is quantized."""
    dynamic: frozenset[str] = frozenset()
    """Ops with a dynamically quantized input."""
    axes: Mapping[str, int] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """Tensors of the reference that have another name in the quantized file."""


@dataclass
class Built:
    case: Case
    reference: Path
    quantized: Path
    batches: list[Feeds]
    diagnosis: Diagnosis

    def column(self, name: str) -> dict[str, float]:
        return dict(zip(self.diagnosis.ops["name"], self.diagnosis.ops[name], strict=True))


def own(*ops: str) -> dict[str, str]:
    return {op: f"{op}_out" for op in ops}


def conv_weights(*ops: str) -> dict[str, Weight]:
    return {op: Weight(f"{op}.w", 0, f"{op}.w") for op in ops}


def static(**options: Any) -> Callable[[Path, Feeds], Path]:
    return lambda path, feeds: zoo.static(path, feeds, **options)


CNN_POINTS = {**own("pool", "gap", "flat", "fc"), "conv1": "relu1_out", "conv2": "relu2_out"}
CNN_QDQ = Case(
    zoo.cnn, static(), "QDQ", CNN_POINTS, conv_weights("conv1", "conv2", "fc"),
    {"pool_out": "relu1_out", "flat_out": "gap_out"},
)  # fmt: skip
CNN_QOPERATOR = replace(
    CNN_QDQ, form="QOperator", quantize=static(form="QOperator"),
    names={"relu1_out": "conv1_out", "relu2_out": "conv2_out"},
    scale_of={"pool_out": "conv1_out", "flat_out": "gap_out"},
)  # fmt: skip

DEPTHWISE_POINTS = {**{op: f"{op}/relu6_out" for op in ("dw0", "pw0", "dw1", "pw1")}, "head": "head_out"}
DEPTHWISE = Case(zoo.depthwise, static(per_channel=True), "QDQ", DEPTHWISE_POINTS, conv_weights(*DEPTHWISE_POINTS))

RESIDUAL_POINTS = {**own("b", "gap"), "stem": "stem/relu_out", "a": "a/relu_out", "join": "join/relu_out"}
RESIDUAL = Case(zoo.residual, static(), "QDQ", RESIDUAL_POINTS, conv_weights("stem", "a", "b"))

LINEAR = ("q", "k", "v", "proj", "up", "down")
ATTENTION_OPS = (
    "ln1", "kt", "scores", "scale", "softmax", "context", "skip1", "ln2", "gelu", "skip2",
    *LINEAR, *(f"{op}/bias" for op in LINEAR),
)  # fmt: skip
LINEAR_WEIGHTS = {op: Weight(f"{op}.w", 1, f"{op}.w") for op in LINEAR}
BIAS_WEIGHTS = {f"{op}/bias": Weight(f"{op}.b", None, f"{op}.b") for op in LINEAR}
NORM_WEIGHTS = {op: Weight(f"{op}.s", None, f"{op}.s") for op in ("ln1", "ln2")}
ATTENTION = Case(
    zoo.attention, static(), "QDQ", own(*ATTENTION_OPS), LINEAR_WEIGHTS | BIAS_WEIGHTS | NORM_WEIGHTS,
    scale_of={"kt_out": "k/bias_out"}, axes={"kt": 1},
)  # fmt: skip
# Seven bits, because some processors' int8 kernels overflow with eight and then differ from what the file says.
ATTENTION_QOPERATOR = replace(
    ATTENTION, form="QOperator", quantize=static(form="QOperator", act="QUInt8", per_channel=True, reduce_range=True),
    weights=LINEAR_WEIGHTS | BIAS_WEIGHTS | {op: Weight(f"{op}.s", None) for op in ("ln1", "ln2")},
)  # fmt: skip
ATTENTION_DYNAMIC = Case(
    zoo.attention, lambda path, _: zoo.dynamic(path, per_channel=True), "float", own(*ATTENTION_OPS),
    LINEAR_WEIGHTS | {op: replace(w, quantized="") for op, w in (BIAS_WEIGHTS | NORM_WEIGHTS).items()},
    dynamic=frozenset(LINEAR), axes={"kt": 1},
)  # fmt: skip

BRANCHES_POINTS = {**own("b", "gate", "join", "both", "gap", "head"), "a": "a/relu_out"}
BRANCHES_QOPERATOR = Case(
    zoo.branches, static(form="QOperator", act="QUInt8", weight="QUInt8"), "QOperator", BRANCHES_POINTS,
    conv_weights("a", "b", "head"), names={"a/relu_out": "a_out"},
)  # fmt: skip


def preprocessed(**options: Any) -> Callable[[Path, Feeds], Path]:
    """Batch norms are folded in before quantizing; the reference stays the file with the norms."""

    def quantize(path: Path, feeds: Feeds) -> Path:
        folded = path.with_name("folded.onnx")
        quant_pre_process(path, folded, skip_symbolic_shape=True)
        return zoo.static(folded, feeds, **options)

    return quantize


FOLDED = Case(
    zoo.with_batch_norm, preprocessed(), "QDQ", {"conv1": "relu1_out", "conv2": "bn2_out"},
    {
        "conv1": Weight("conv1.w", 0, "ConvBnFusion_W_conv1.w", norm="bn1"),
        "conv2": Weight("conv2.w", 0, "ConvBnFusion_W_conv2.w", norm="bn2"),
    },
)  # fmt: skip
FOLDED_QOPERATOR = replace(
    FOLDED, quantize=preprocessed(form="QOperator", per_channel=True), form="QOperator", names={"relu1_out": "bn1_out"}
)

UNFOLDED_QOPERATOR = Case(
    zoo.with_batch_norm, static(form="QOperator"), "QOperator", own("conv1", "bn1", "relu1", "conv2", "bn2"),
    conv_weights("conv1", "conv2") | {op: Weight(f"{op}.s", None) for op in ("bn1", "bn2")},
    plain=frozenset({"bn1_out", "bn2_out"}),
)  # fmt: skip

MLP_POINTS = {**own("fc2", "tanh", "fc3"), "fc1": "relu1_out"}
MLP = Case(zoo.mlp, static(), "QDQ", MLP_POINTS, conv_weights("fc1", "fc2", "fc3"))
MLP_WEIGHTS_FIRST = {op: Weight(f"{op}.w", 1, f"{op}.w") for op in ("fc1", "fc2", "fc3")}
MLP_QOPERATOR = replace(MLP, form="QOperator", quantize=static(form="QOperator"), names={"relu1_out": "fc1_out"})
MLP_DYNAMIC = Case(
    zoo.mlp, lambda path, _: zoo.dynamic(path), "float", own("fc1", "relu1", "fc2", "tanh", "fc3"),
    {op: Weight(f"{op}.w", 0, f"{op}.w", transposed=True) for op in ("fc1", "fc2", "fc3")},
    dynamic=frozenset({"fc1", "fc2", "fc3"}),
)  # fmt: skip
RESIDUAL_DYNAMIC = Case(
    zoo.residual, lambda path, _: zoo.dynamic(path, weight_type=zoo.QuantType.QUInt8), "float",
    own("stem", "stem/relu", "a", "a/relu", "b", "join", "join/relu", "gap"), conv_weights("stem", "a", "b"),
    dynamic=frozenset({"stem", "a", "b"}),
)  # fmt: skip

CASES = {
    "cnn-qdq": CNN_QDQ,
    "cnn-qdq-uint8-per-channel": replace(CNN_QDQ, quantize=static(act="QUInt8", per_channel=True)),
    "cnn-qdq-uint8-weights": replace(CNN_QDQ, quantize=static(act="QUInt8", weight="QUInt8")),
    "cnn-qdq-int16": replace(CNN_QDQ, net=lambda: zoo.cnn(21), quantize=static(act="QInt16")),
    "cnn-qdq-uint16": replace(CNN_QDQ, net=lambda: zoo.cnn(21), quantize=static(act="QUInt16", per_channel=True)),
    "cnn-qdq-int16-contrib": replace(CNN_QDQ, quantize=static(act="QInt16")),
    "cnn-qoperator": CNN_QOPERATOR,
    "cnn-qoperator-uint8-per-channel": replace(
        CNN_QOPERATOR, quantize=static(form="QOperator", act="QUInt8", per_channel=True)
    ),
    "depthwise-qdq-per-channel": DEPTHWISE,
    "depthwise-qdq": replace(DEPTHWISE, quantize=static(act="QUInt8")),
    "residual-qdq": RESIDUAL,
    "residual-qoperator": replace(
        RESIDUAL, form="QOperator", quantize=static(form="QOperator", act="QUInt8"),
        names={"stem/relu_out": "stem_out", "a/relu_out": "a_out", "join/relu_out": "join_out"},
    ),
    "residual-dynamic": RESIDUAL_DYNAMIC,
    "attention-qdq": ATTENTION,
    "attention-qdq-per-channel": replace(ATTENTION, quantize=static(per_channel=True)),
    "attention-qoperator": ATTENTION_QOPERATOR,
    "attention-dynamic": ATTENTION_DYNAMIC,
    "branches-qoperator": BRANCHES_QOPERATOR,
    "folded-qdq": FOLDED,
    "folded-qdq-per-channel": replace(FOLDED, quantize=preprocessed(act="QUInt8", per_channel=True)),
    "folded-qoperator": FOLDED_QOPERATOR,
    "unfolded-qoperator": UNFOLDED_QOPERATOR,
    "mlp-qdq": MLP,
    "mlp-qdq-per-channel-transposed": replace(
        MLP, net=lambda: zoo.mlp(0), quantize=static(per_channel=True), weights=MLP_WEIGHTS_FIRST
    ),
    "mlp-qoperator": MLP_QOPERATOR,
    "mlp-dynamic": MLP_DYNAMIC,
}  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Built]:
    """Each case once: both files, two batches that leave the calibrated range here and there, the diagnosis."""
    known: dict[str, Built] = {}

    def build(name: str) -> Built:
        if name not in known:
            case = CASES[name]
            net = case.net()
            reference = net.save(tmp_path_factory.mktemp(name))
            quantized = case.quantize(reference, zoo.data(net, 12))
            batches: list[Feeds] = [zoo.data(net, samples, seed) for samples, seed in ((7, 20), (5, 21))]
            known[name] = Built(case, reference, quantized, batches, inc_tb.diagnose(reference, quantized, batches))
        return known[name]

    return build


@pytest.mark.parametrize("name", CASES)
def test_every_compared_op_is_expected(built: Callable[[str], Built], name: str) -> None:
    it = built(name)
    compared = {op for op, value in it.column("a_mse").items() if np.isfinite(value)}
    assert compared == set(it.case.points)
    reasons = it.column("reason")
    assert all(reasons[op] for op in set(reasons) - compared)


@pytest.mark.parametrize("name", CASES)
def test_outputs(built: Callable[[str], Built], name: str) -> None:
    it = built(name)
    points = it.case.points
    fetched = [zoo.fetch(it.reference, list(points.values()), batch) for batch in it.batches]
    constants = zoo.initializers(it.quantized)
    tensors = {op: stored_as(it, tensor) for op, tensor in points.items()}
    theirs = [zoo.fetch(it.quantized, [t for t, _ in tensors.values()], batch) for batch in it.batches]
    for op, tensor in points.items():
        stored, scale = tensors[op]
        x = np.concatenate([batch[tensor] for batch in fetched])
        y = np.concatenate([batch[stored] for batch in theirs])
        step = limits = None
        if scale:
            step, zero = constants[f"{scale}_scale"], constants[f"{scale}_zero_point"]
            y = dequantized(y, step, zero) if y.dtype.kind in "iu" else y
            limits = tuple(dequantized(np.array(end), step, zero) for end in RANGES[zero.dtype.name])
        is_quantized = bool(scale) or op in it.case.dynamic
        axis = it.case.axes.get(op, 1 if x.ndim == 4 else -1)
        check(it, op, "a", expected(x, y, axis, step, limits, is_quantized))


@pytest.mark.parametrize("name", CASES)
def test_weights(built: Callable[[str], Built], name: str) -> None:
    it = built(name)
    mine, theirs = zoo.initializers(it.reference), zoo.initializers(it.quantized)
    with_weights = {op for op, value in it.column("w_mse").items() if np.isfinite(value)}
    assert with_weights == set(it.case.weights)
    for op, weight in it.case.weights.items():
        x = folded(mine, weight) if weight.norm else mine[weight.name]
        y, step = x, None
        if weight.quantized:
            step = theirs[f"{weight.quantized}_scale"]
            y = theirs[f"{weight.quantized}_quantized"]
            y = y.T if weight.transposed else y
            y = dequantized(y, step, theirs[f"{weight.quantized}_zero_point"], weight.axis)
        check(it, op, "w", expected(x, y, weight.axis, step))


ADDED = {
    "cnn-qdq": ("conv1", "conv2", "fc", "pool"),
    "cnn-qdq-uint8-per-channel": ("conv1", "conv2"),
    "cnn-qdq-int16": ("conv2",),
    "depthwise-qdq-per-channel": ("dw0", "pw1"),
    "residual-qdq": ("b", "join"),
    "attention-qdq": ("q", "v", "scores", "softmax", "ln2", "skip2", "proj/bias"),
    "attention-qoperator": ("q", "context"),
    "branches-qoperator": ("a", "join", "gap", "both"),
    "mlp-qdq": ("fc1", "fc2"),
}


@pytest.mark.parametrize(("name", "op"), [(name, op) for name, ops in ADDED.items() for op in ops])
def test_added_error_is_that_of_the_op_alone(built: Callable[[str], Built], name: str, op: str) -> None:
    """The single op, run on the reference's input: quantized input, quantized weight, quantized output."""
    it = built(name)
    constants = zoo.initializers(it.quantized)
    node = next(n for n in onnx.load(it.reference).graph.node if n.name == op)
    floats = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(it.reference).graph.initializer}
    after = it.case.points[op]
    x, y = [], []
    for batch in it.batches:
        reads = [i for i in node.input if i not in floats]
        truth = {**batch, **zoo.fetch(it.reference, [*(set(reads) - set(batch)), after], batch)}
        given = {i: fake(it, constants, i, truth[i]) for i in reads}
        given |= {i: parameter(it, constants, node, i, floats[i]) for i in node.input if i in floats}
        x.append(truth[after])
        y.append(fake(it, constants, after, alone(node, given)))
    found = it.column("added_sqnr_db")[op]
    np.testing.assert_allclose(found, sqnr(np.concatenate(x), np.concatenate(y)), rtol=TOLERANCE)


@pytest.mark.parametrize("name", ["cnn-qdq", "depthwise-qdq-per-channel", "residual-qdq", "attention-qdq", "mlp-qdq"])
def test_agrees_with_the_loss_debugger_of_onnx_runtime(
    built: Callable[[str], Built], name: str, tmp_path: Path
) -> None:
    it = built(name)
    activations = []
    for i, path in enumerate((it.reference, it.quantized)):
        augmented = tmp_path / f"{i}.onnx"
        qdq_loss_debug.modify_model_output_intermediate_tensors(path, augmented)
        activations.append(qdq_loss_debug.collect_activations(str(augmented), zoo.Reader(*it.batches)))
    matched = qdq_loss_debug.create_activation_matching(activations[1], activations[0])
    errors = qdq_loss_debug.compute_activation_error({k: v for k, v in matched.items() if "float" in v})
    compared = {op: tensor for op, tensor in it.case.points.items() if tensor in errors}
    assert len(compared) > len(it.case.points) // 2
    totals = it.column("a_sqnr_db")
    for op, tensor in compared.items():
        # Their norms are summed up in float32.
        np.testing.assert_allclose(totals[op], errors[tensor]["xmodel_err"], rtol=TOLERANCE, err_msg=op)
    weights = qdq_loss_debug.compute_weight_error(
        qdq_loss_debug.create_weight_matching(str(it.reference), str(it.quantized))
    )
    found = it.column("w_sqnr_db")
    constants = zoo.initializers(it.quantized)
    # Theirs subtracts int8 from int8 and overflows unless the zero point is 0.
    symmetric = {op: w for op, w in it.case.weights.items() if not constants[f"{w.name}_zero_point"].any()}
    assert symmetric
    assert {weight.name for weight in symmetric.values()} <= set(weights)
    for op, weight in symmetric.items():
        np.testing.assert_allclose(found[op], weights[weight.name], rtol=TOLERANCE, err_msg=op)


def stored_as(it: Built, tensor: str) -> tuple[str, str]:
    """Name of the quantized file's tensor, and what its scale is named after; nothing where it has none."""
    here = it.case.names.get(tensor, tensor)
    if it.case.form == "float" or tensor in it.case.plain:
        return here, ""
    scale = it.case.scale_of.get(here, here)
    if it.case.form == "QOperator":
        return f"{here}_quantized", scale
    is_output = here in {o.name for o in onnx.load(it.quantized).graph.output}
    return (here if is_output else f"{here}_DequantizeLinear_Output"), scale


def dequantized(integers: Array, scale: Array, zero: Array, axis: int | None = None) -> Array:
    if scale.size > 1:
        assert axis is not None
        shape = [1] * integers.ndim
        shape[axis] = -1
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    return ((integers.astype(np.int64) - zero.astype(np.int64)).astype(np.float32) * scale).astype(np.float32)


def fake(it: Built, constants: Mapping[str, Array], tensor: str, values: Array) -> Array:
    """A tensor as the quantized model rounds it, if it does."""
    scale_name = stored_as(it, tensor)[1]
    if f"{scale_name}_scale" not in constants:
        return values
    scale, zero = constants[f"{scale_name}_scale"], constants[f"{scale_name}_zero_point"]
    integers = np.clip(np.rint(values / scale) + zero.astype(np.float32), *RANGES[zero.dtype.name])
    return dequantized(integers.astype(np.int64), scale, zero)


def parameter(it: Built, constants: Mapping[str, Array], node: onnx.NodeProto, name: str, value: Array) -> Array:
    """A weight or bias as the quantized model has it."""
    integers = constants.get(f"{name}_quantized")
    if integers is None:
        return value
    if integers.dtype == np.int32:
        # A bias is counted in steps of input times weight; QDQ files write that down, QOperator files imply it.
        x, w = (constants[f"{it.case.scale_of.get(i, i)}_scale"] for i in node.input[:2])
        return dequantized(integers, x * w, np.zeros_like(w, np.int32), 0)
    weight = it.case.weights[node.name]
    return dequantized(integers, constants[f"{name}_scale"], constants[f"{name}_zero_point"], weight.axis)


def alone(node: onnx.NodeProto, given: Mapping[str, Array]) -> Array:
    inputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, v.shape) for name, v in given.items()]
    outputs = [helper.make_empty_tensor_value_info(node.output[0])]
    graph = helper.make_graph([node], "alone", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    result: Array = session.run(None, dict(given))[0]
    return result


def folded(constants: Mapping[str, Array], weight: Weight) -> Array:
    factor = constants[f"{weight.norm}.s"] / np.sqrt(constants[f"{weight.norm}.v"] + np.float32(1e-5))
    return constants[weight.name] * factor.reshape(-1, 1, 1, 1)


def sqnr(x: Array, y: Array) -> float:
    x, y = x.astype(np.float64), y.astype(np.float64)
    noise = ((x - y) ** 2).sum()
    return float(10 * np.log10((x**2).sum() / noise)) if noise > 0 else np.nan


def expected(
    x: Array,
    y: Array,
    axis: int | None,
    step: Array | None = None,
    limits: tuple[Array, ...] | None = None,
    is_quantized: bool = False,
) -> dict[str, float]:
    """Every column from the whole arrays; NaN where there is no answer."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    e = x - y
    found = {"mse": (e**2).mean(), "nmse": (e**2).sum() / (x**2).sum(), "sqnr_db": sqnr(x, y), "max_abs": abs(e).max()}
    for prefix, values in (("", x), ("q_", y)):
        found |= {f"{prefix}min": values.min(), f"{prefix}max": values.max(), f"{prefix}mean": values.mean()}
        found |= {f"{prefix}std": values.std(), f"{prefix}var": values.var()}
    found["range"] = x.max() - x.min()
    found["cosine"] = (x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum())
    scaled = [(v - v.min()) / (v.max() - v.min()) for v in (x, y)]
    found["inc_mse"] = ((scaled[0] - scaled[1]) ** 2).mean()
    found["kurtosis"] = ((x - x.mean()) ** 4).mean() / x.var() ** 2
    found["rmse_lsb"] = found["clipped"] = found["range_used"] = found["flushed"] = np.nan
    if step is not None:
        shape = [1] * x.ndim
        shape[axis if axis is not None else 0] = -1
        found["rmse_lsb"] = np.sqrt(((e / step.astype(np.float64).reshape(shape)) ** 2).mean())
    if limits is not None:
        found["clipped"] = ((x < limits[0]) | (x > limits[1])).mean()
        low, high = (np.asarray(limit, np.float64) for limit in limits)
        if low.size == high.size == 1:
            reached = min(x.max(), high.item()) - max(x.min(), low.item())
            found["range_used"] = max(0.0, reached) / (high.item() - low.item())
    if is_quantized:
        found["flushed"] = (y[x != 0] == 0).mean()
    found |= by_channel(x, y, axis)
    return found


def by_channel(x: Array, y: Array, axis: int | None) -> dict[str, float]:
    if axis is None:
        return dict.fromkeys(("channel_ratio", "worst_channel", "worst_channel_sqnr_db"), np.nan)
    rows = [np.moveaxis(v, axis, 0).reshape(v.shape[axis], -1) for v in (x, y)]
    ranges = abs(rows[0]).max(axis=1)
    alive = ranges[ranges > 0]
    ratios = [sqnr(a, b) if a.any() else np.nan for a, b in zip(*rows, strict=True)]
    found = {"channel_ratio": alive.max() / np.median(alive), "worst_channel": np.nan, "worst_channel_sqnr_db": np.nan}
    if not np.isnan(ratios).all():
        found |= {"worst_channel": float(np.nanargmin(ratios)), "worst_channel_sqnr_db": np.nanmin(ratios)}
    return found


def check(it: Built, op: str, side: str, wanted: Mapping[str, float]) -> None:
    columns = [name for name in it.diagnosis.ops if name.startswith(f"{side}_")]
    assert {name.removeprefix(f"{side}_") for name in columns} <= set(wanted)
    for name in columns:
        found = it.column(name)[op]
        np.testing.assert_allclose(found, wanted[name[2:]], rtol=TOLERANCE, atol=0, err_msg=f"{op} {name}")
