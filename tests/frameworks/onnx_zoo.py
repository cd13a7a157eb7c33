"""Small ONNX models, and what quantizes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from tests.frameworks.contracts import tiny

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]


class Net:
    """A graph under construction. An op named `conv1` writes the tensor `conv1_out`."""

    def __init__(self, seed: int = 0, opset: int = 17, ir: int = 8) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset, self.ir = opset, ir
        self.weight_dtype: type[np.floating[Any]] = np.float32
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, *shape: int | str | None, dtype: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, tensor: str, dtype: int = TensorProto.FLOAT) -> None:
        self.outputs.append(helper.make_tensor_value_info(tensor, dtype, None))

    def constant(self, name: str, value: Any, dtype: Any = None) -> str:
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, name: str, *shape: int, gain: float = 1.4) -> str:
        fan_in = max(1, int(np.prod(shape)) // shape[0])
        return self.constant(name, self.rng.normal(size=shape) * gain / np.sqrt(fan_in), self.weight_dtype)

    def op(self, kind: str, name: str, *inputs: str, outputs: Sequence[str] = (), domain: str = "", **more: Any) -> str:
        outputs = outputs or [f"{name}_out"]
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=name, domain=domain, **more))
        return outputs[0]

    def conv(self, name: str, x: str, cin: int, cout: int, kernel: int = 3, bias: bool = True, **more: Any) -> str:
        inputs = [x, self.weight(f"{name}.w", cout, cin // more.get("group", 1), kernel, kernel)]
        inputs += [self.weight(f"{name}.b", cout, gain=0.1)] if bias else []
        return self.op("Conv", name, *inputs, pads=[kernel // 2] * 4, **more)

    def gemm(self, name: str, x: str, size_in: int, size_out: int, trans_b: int = 1) -> str:
        shape = (size_out, size_in) if trans_b else (size_in, size_out)
        w, b = self.weight(f"{name}.w", *shape), self.weight(f"{name}.b", size_out, gain=0.1)
        return self.op("Gemm", name, x, w, b, transB=trans_b)

    def linear(self, name: str, x: str, size_in: int, size_out: int) -> str:
        """MatMul and Add, as transformers have it."""
        w = self.constant(f"{name}.w", self.rng.normal(size=(size_in, size_out)) / np.sqrt(size_in), np.float32)
        return self.op("Add", f"{name}/bias", self.op("MatMul", name, x, w), self.weight(f"{name}.b", size_out, gain=1))

    def batch_norm(self, name: str, x: str, channels: int) -> str:
        r = self.rng
        parts = {"s": r.uniform(0.5, 2, channels), "b": r.normal(size=channels), "m": r.normal(size=channels) * 0.1}
        parts["v"] = r.uniform(0.5, 2, channels)
        return self.op(
            "BatchNormalization", name, x, *(self.constant(f"{name}.{k}", v, np.float32) for k, v in parts.items())
        )

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "net", self.inputs, self.outputs, self.initializers)
        domains = {node.domain for node in self.nodes} - {""}
        opsets = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(d, 1) for d in sorted(domains))]
        return helper.make_model(graph, opset_imports=opsets, ir_version=self.ir)

    def save(self, folder: Path, name: str = "fp32.onnx") -> Path:
        return save(self.model(), folder / name)


def save(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path


def cnn(opset: int = 17) -> Net:
    net = Net(1, opset)
    x = net.input("x", "n", 3, 8, 8)
    x = net.op("Relu", "relu1", net.conv("conv1", x, 3, 8))
    x = net.op("MaxPool", "pool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Relu", "relu2", net.conv("conv2", x, 8, 16))
    x = net.op("GlobalAveragePool", "gap", x)
    x = net.op("Flatten", "flat", x)
    net.output(net.gemm("fc", x, 16, 10))
    return net


def depthwise() -> Net:
    net = Net(2)
    x = net.input("x", "n", 4, 8, 8)
    low, high = net.constant("zero", 0, np.float32), net.constant("six", 6, np.float32)
    for i in range(2):
        x = net.op("Clip", f"dw{i}/relu6", net.conv(f"dw{i}", x, 4, 4, group=4), low, high)
        x = net.op("Clip", f"pw{i}/relu6", net.conv(f"pw{i}", x, 4, 4, kernel=1), low, high)
    net.output(net.conv("head", x, 4, 6, kernel=1))
    return net


def residual() -> Net:
    net = Net(3)
    x = net.input("x", "n", 4, 6, 6)
    x = net.op("Relu", "stem/relu", net.conv("stem", x, 4, 8))
    y = net.op("Relu", "a/relu", net.conv("a", x, 8, 8))
    y = net.conv("b", y, 8, 8)
    x = net.op("Relu", "join/relu", net.op("Add", "join", x, y))
    net.output(net.op("GlobalAveragePool", "gap", x))
    return net


def attention(length: int | str = 6) -> Net:
    """One transformer block; q, k and v read the same tensor and have weights of the same shape."""
    net = Net(4, 20)
    x = net.input("x", "n", length, 16)

    def norm(name: str, value: str) -> str:
        ones = net.constant(f"{name}.s", net.rng.uniform(0.5, 1.5, 16), np.float32)
        return net.op("LayerNormalization", name, value, ones, net.weight(f"{name}.b", 16), axis=-1)

    h = norm("ln1", x)
    q, k, v = (net.linear(name, h, 16, 16) for name in "qkv")
    scores = net.op("MatMul", "scores", q, net.op("Transpose", "kt", k, perm=[0, 2, 1]))
    scores = net.op("Div", "scale", scores, net.constant("root", 4, np.float32))
    context = net.op("MatMul", "context", net.op("Softmax", "softmax", scores, axis=-1), v)
    x = net.op("Add", "skip1", x, net.linear("proj", context, 16, 16))
    h = net.op("Gelu", "gelu", net.linear("up", norm("ln2", x), 16, 32))
    net.output(net.op("Add", "skip2", x, net.linear("down", h, 32, 16)))
    return net


def mlp(trans_b: int = 1, seed: int = 5) -> Net:
    net = Net(seed)
    x = net.op("Relu", "relu1", net.gemm("fc1", net.input("x", "n", 12), 12, 24, trans_b))
    x = net.op("Tanh", "tanh", net.gemm("fc2", x, 24, 24, trans_b))
    net.output(net.gemm("fc3", x, 24, 5, trans_b))
    return net


def branches() -> Net:
    """Concat, Sigmoid, Add, pooling: ops that QOperator models have integer kernels for."""
    net = Net(6)
    x = net.input("x", "n", 4, 6, 6)
    a = net.op("Relu", "a/relu", net.conv("a", x, 4, 6))
    b = net.op("Sigmoid", "gate", net.conv("b", x, 4, 6))
    x = net.op("Add", "join", a, b)
    x = net.op("Concat", "both", x, a, axis=1)
    x = net.op("GlobalAveragePool", "gap", x)
    net.output(net.conv("head", x, 12, 5, kernel=1))
    return net


def tokens() -> Net:
    """Token numbers and a mask in, two float outputs and one of integers out; any length."""
    net = Net(8)
    ids = net.input("ids", "n", "length", dtype=TensorProto.INT64)
    mask = net.input("mask", "n", "length")
    table = net.constant("table", net.rng.normal(size=(20, 16)), np.float32)
    x = net.linear("fc1", net.op("Gather", "embedding", table, ids), 16, 16)
    x = net.op("Mul", "masked", x, net.op("Unsqueeze", "wide", mask, net.constant("last", [-1], np.int64)))
    net.output(net.linear("fc2", x, 16, 4))
    net.output(net.op("ReduceMean", "mean", x, axes=[1], keepdims=0))
    net.output(net.op("ArgMax", "best", x, axis=-1), TensorProto.INT64)
    return net


def half_mlp() -> Net:
    """In half precision; opset 21, the first whose QuantizeLinear takes it."""
    net = Net(5, 21, 10)
    net.weight_dtype = np.float16
    x = net.op("Relu", "relu1", net.gemm("fc1", net.input("x", "n", 12, dtype=TensorProto.FLOAT16), 12, 24))
    net.output(net.gemm("fc2", x, 24, 5), TensorProto.FLOAT16)
    return net


def with_batch_norm() -> Net:
    net = Net(7)
    x = net.input("x", "n", 3, 8, 8)
    x = net.op("Relu", "relu1", net.batch_norm("bn1", net.conv("conv1", x, 3, 8, bias=False), 8))
    net.output(net.batch_norm("bn2", net.conv("conv2", x, 8, 6), 6))
    return net


def tiny_net() -> Net:
    net = Net()

    def product(name: str, x: str) -> str:
        return net.op("MatMul", name, x, net.constant(f"{name}.w", tiny.WEIGHTS[name].T, np.float32))

    x = net.op("Relu", "relu", product("first", net.input("x", "n", 4)))
    net.output(net.op("Softmax", "softmax", product("second", x), axis=-1))
    net.output(product("side", x))
    return net


def random_net(seed: int) -> Net:
    """Ops of all kinds on tensors of one shape, wired at random; whatever nobody reads is an output."""
    net = Net(100 + seed)
    choose = net.rng.choice
    tensors = [net.input("x", "n", 4, 6, 6)]
    for i in range(12):
        kind = str(
            choose(["conv", "depthwise", "Relu", "Sigmoid", "Tanh", "Add", "Mul", "bias", "idle", "norm", "swap"])
        )
        x, other = str(choose(tensors[-4:])), str(choose(tensors))
        name = f"{kind}{i}"
        if kind in ("conv", "depthwise"):
            y = net.conv(name, x, 4, 4, kernel=int(choose([1, 3])), group=4 if kind == "depthwise" else 1)
        elif kind in ("Add", "Mul"):
            y = net.op(kind, name, x, other)
        elif kind == "bias":
            y = net.op("Add", name, x, net.weight(f"{name}.b", 1, 4, 1, 1))
        elif kind == "idle":
            y = net.op("Mul", name, x, net.constant(f"{name}.c", [1], np.float32))
        elif kind == "norm":
            y = net.batch_norm(name, x, 4)
        elif kind == "swap":
            axis = net.constant(f"{name}.axis", [1], np.int64)
            bounds = [[net.constant(f"{name}.{a}{b}", [v], np.int64) for b, v in enumerate((a, a + 2))] for a in (0, 2)]
            halves = [net.op("Slice", f"{name}/{j}", x, *pair, axis) for j, pair in enumerate(bounds)]
            y = net.op("Concat", name, *reversed(halves), axis=1)
        else:
            y = net.op(kind, name, x)
        tensors.append(y)
    tensors.append(net.conv("last", tensors[-1], 4, 4))
    read = {name for node in net.nodes for name in node.input}
    for tensor in tensors[1:]:
        if tensor not in read:
            net.output(tensor)
    return net


def data(net: Net | onnx.ModelProto, samples: int = 16, seed: int = 9, **dims: int) -> dict[str, Array]:
    """Normally distributed arrays for the inputs of a model."""
    rng = np.random.default_rng(seed)
    inputs = net.inputs if isinstance(net, Net) else net.graph.input
    found = {}
    for info in inputs:
        tensor = info.type.tensor_type
        shape = [d.dim_value or dims.get(d.dim_param, samples) for d in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        values = rng.normal(size=shape) if np.dtype(dtype).kind == "f" else rng.integers(0, 8, shape)
        found[info.name] = values.astype(dtype)
    return found


class Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, *batches: Feeds) -> None:
        self._left: Iterator[Feeds] = iter(batches)

    def get_next(self) -> Any:
        return next(self._left, None)


def static(
    path: Path, feeds: Feeds, *, form: str = "QDQ", act: str = "QInt8", weight: str = "QInt8", **more: Any
) -> Path:
    """The model, quantized with ranges from `feeds`; to 7 bits where sums of 8 saturate on some processors."""
    target = path.with_name(f"{path.stem}-{form}-{act}-{weight}-{more.get('per_channel', False)}.onnx")
    is_signed = weight == "QInt8" or more.get("per_channel", False)
    quantize_static(
        path, target, Reader(feeds), quant_format=QuantFormat[form], activation_type=QuantType[act],
        weight_type=QuantType[weight], **{"reduce_range": is_signed, **more},
    )  # fmt: skip
    return target


def dynamic(path: Path, **more: Any) -> Path:
    target = path.with_name(f"{path.stem}-dynamic.onnx")
    quantize_dynamic(path, target, **{"reduce_range": True, **more})
    return target


def optimized(path: Path, level: str = "ORT_ENABLE_EXTENDED") -> Path:
    """The file that ONNX Runtime saves after its optimizations."""
    target = path.with_name(f"{path.stem}-{level}.onnx")
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 3
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return target


def fetch(path: Path, tensors: Sequence[str], feeds: Feeds) -> dict[str, Array]:
    """Tensors inside a model, whatever they are, as the file computes them without any optimization."""
    proto = onnx.load(path)
    del proto.graph.output[:]
    proto.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(tensors))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(dict.fromkeys(tensors), session.run(None, dict(feeds)), strict=True))


def initializers(path: Path) -> dict[str, Array]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
