"""What a model computes, whatever way it is quantized.

Quantize and dequantize nodes, integer kernels and their scaling are taken out of the picture:
a `Value` is one tensor of the computation (`x`, its quantized form and its dequantized form are the
same value), a `Step` is one operation on values. An fp32 model and its QDQ, QOperator or
dynamically quantized twin then have nearly the same steps.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

from inc_tb.adapters.onnx.model import DEQUANTIZE, QUANTIZE, RANGES, Model, all_inputs, attribute, dequantize
from inc_tb.capture import Array
from inc_tb.records import Quantization

PASS_THROUGH = {"Identity", "Dropout"}
"""Operations that hand their first input on unchanged when the model is used."""
MATMUL = {"MatMul", "Gemm"}

_UNARY = ((0, 1, 2),), (3, 4)
_BINARY = ((0, 1, 2), (3, 4, 5)), (6, 7)
_INTEGER_OPS: dict[str, tuple[tuple[tuple[int, int, int], ...], tuple[int, int] | None]] = {
    # op type: positions of (tensor, scale, zero point) of each input, and of the output's (scale, zero point)
    "QLinearConv": _BINARY,
    "QLinearMatMul": _BINARY,
    "QLinearAdd": _BINARY,
    "QLinearMul": _BINARY,
    "QGemm": (((0, 1, 2), (3, 4, 5)), (7, 8)),
    "QLinearWhere": (((1, 2, 3), (4, 5, 6)), (7, 8)),
    "QLinearSigmoid": _UNARY,
    "QLinearLeakyRelu": _UNARY,
    "QLinearAveragePool": _UNARY,
    "QLinearGlobalAveragePool": _UNARY,
    "QLinearSoftmax": _UNARY,
    "QLinearReduceMean": _UNARY,
    "DynamicQuantizeMatMul": (((0, -1, -1), (1, 2, 3)), None),
    "MatMulIntegerToFloat": (((0, 2, 4), (1, 3, 5)), None),
    "MatMulInteger": (((0, -1, 2), (1, -1, 3)), None),
    "ConvInteger": (((0, -1, 2), (1, -1, 3)), None),
    "DynamicQuantizeLSTM": (((0, -1, -1), (1, 8, 9), (2, 10, 11)), None),
}
_BASE_TYPES = {
    "QGemm": "Gemm", "QAttention": "Attention", "QEmbedLayerNormalization": "EmbedLayerNormalization",
    "MatMulNBits": "MatMul", "MatMulIntegerToFloat": "MatMul", "DynamicQuantizeMatMul": "MatMul",
    "DynamicQuantizeLSTM": "LSTM", "MatMulInteger": "MatMul", "ConvInteger": "Conv", "FusedConv": "Conv",
    "FusedGemm": "Gemm", "FusedMatMul": "MatMul", "TransposeMatMul": "MatMul",
}  # fmt: skip
_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16}
_NOT_FLOAT = {"Shape", "Size", "NonZero", "ArgMax", "ArgMin", "Equal", "Greater", "Less", "And", "Or", "Not", "IsNaN"}


@dataclass
class Value:
    """One tensor of the computation; `root` is its name in the file, `read` where its final value is."""

    root: str
    read: str
    integer: bool = False
    """The root holds the integers; there may be no dequantized tensor in the file."""
    quantization: Quantization | None = None
    scale: str = ""
    zero_point: str = ""
    template: onnx.NodeProto | None = None
    """A QuantizeLinear of this value, whose attributes another one would need."""

    def as_consumed(self, source: str) -> tuple[str, list[onnx.NodeProto]]:
        """Nodes that turn `source`, which stands in for the root, into what consumers of this value see."""
        if not self.scale:
            return source, []
        target = f"{source}/inc_tb_float"
        parameters = [self.scale, self.zero_point] if self.zero_point else [self.scale]
        copied = {a.name: helper.get_attribute_value(a) for a in (self.template.attribute if self.template else ())}
        domain = self.template.domain if self.template else ""
        nodes = []
        if not self.integer:
            middle = f"{source}/inc_tb_integer"
            nodes.append(helper.make_node(QUANTIZE, [source, *parameters], [middle], domain=domain, **copied))
            source = middle
        copied = {name: copied[name] for name in ("axis", "block_size") if name in copied}
        nodes.append(helper.make_node(DEQUANTIZE, [source, *parameters], [target], domain=domain, **copied))
        return target, nodes


@dataclass
class Step:
    index: int
    node: onnx.NodeProto
    name: str
    type: str
    values: list[str]
    """Roots of the values it reads, constants left out."""
    constants: list[str]
    outputs: list[str]
    dynamic: bool = False
    weight: str = ""
    """The largest constant among the inputs."""
    weight_quantization: Quantization | None = None
    weight_position: int = 1
    has_bias: bool = False


class Graph:
    """The steps of a model in order, and the values between them."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.values: dict[str, Value] = {}
        self.root: dict[str, str] = {}
        self.steps: list[Step] = []
        self.producer: dict[str, Step] = {}
        self.consumers: dict[str, list[Step]] = defaultdict(list)
        self._dynamic: set[str] = set()
        self._integers: set[str] = set()
        self._auxiliary: set[str] = set()
        self._swallowed: set[int] = set()
        self._names: set[str] = set()
        for name in [i.name for i in model.inputs]:
            self._new_value(name)
        for position, node in enumerate(model.nodes):
            if position not in self._swallowed:
                self._read(node)
        self.floats = self._find_floats()

    def value_of(self, tensor: str) -> Value:
        return self.values[self.root[tensor]]

    def weight(self, step: Step) -> Array:
        """The main weight, dequantized."""
        if step.node.op_type == "MatMulNBits":
            return _unpack_nbits(self.model, step.node)
        values = self.model.constant(step.weight)
        if step.weight_quantization is not None and self._is_raw(step):
            return dequantize(values, step.weight_quantization)
        return values

    def _is_raw(self, step: Step) -> bool:
        return step.node.op_type in _INTEGER_OPS

    def _new_value(self, root: str, **more: object) -> None:
        self.root[root] = root
        self.values[root] = Value(root, root, **more)  # type: ignore[arg-type]

    def _read(self, node: onnx.NodeProto) -> None:
        if all(out in self.model.constants for out in node.output):
            return
        first = node.input[0] if node.input else ""
        if node.op_type in (QUANTIZE, DEQUANTIZE) and first in self.root:
            self._join(node, first)
        elif node.op_type == "DynamicQuantizeLinear" and first in self.root:
            self.root[node.output[0]] = self.root[first]
            self._dynamic.add(node.output[0])
            self._auxiliary.update(node.output[1:])
        elif (node.op_type in PASS_THROUGH or self._is_float_cast(node)) and first in self.root:
            self.root[node.output[0]] = self.root[first]
        elif node.input and all(i in self._auxiliary or i in self.model.constants for i in all_inputs(node)):
            self._auxiliary.update(node.output)
        else:
            self._add_step(node)

    def _join(self, node: onnx.NodeProto, source: str) -> None:
        value = self.value_of(source)
        self.root[node.output[0]] = value.root
        if value.quantization is None:
            value.quantization = self.model.quantization(node)
            value.scale, value.zero_point = node.input[1], node.input[2] if len(node.input) > 2 else ""
        if node.op_type == QUANTIZE:
            self._integers.add(node.output[0])
            value.template = value.template or node
        elif value.read == value.root:
            value.read = node.output[0]

    def _is_float_cast(self, node: onnx.NodeProto) -> bool:
        return node.op_type == "Cast" and attribute(node, "to", 0) in _FLOATS and node.input[0] in self.root

    def _add_step(self, node: onnx.NodeProto) -> None:
        integer_inputs, output_at = _INTEGER_OPS.get(node.op_type, ((), None))
        if node.op_type == "QLinearConcat":
            integer_inputs = tuple((i, i + 1, i + 2) for i in range(2, len(node.input), 3))
            output_at = (0, 1)
        positions = [p for p, _, _ in integer_inputs] or list(range(len(node.input)))
        inputs = [node.input[p] for p in positions if p < len(node.input) and node.input[p]]
        inputs += [name for name in all_inputs(node) if name not in node.input]
        step = Step(
            len(self.steps), node, self._unique_name(node), base_type(node.op_type),
            [self.root[i] for i in inputs if i in self.root], [i for i in inputs if i in self.model.constants],
            list(node.output),
        )  # fmt: skip
        step.dynamic = any(i in self._dynamic for i in inputs) or node.op_type.startswith("DynamicQuantize")
        self._find_weight(step, integer_inputs)
        if node.op_type in ("MatMulInteger", "ConvInteger"):
            step.outputs = [self._after_scaling(step)]
        for out in step.outputs:
            if not out:
                continue
            self._new_value(out)
            self.producer[out] = step
            if output_at is not None and output_at[0] < len(node.input):
                self._mark_integer(out, *(node.input[p] if p < len(node.input) else "" for p in output_at))
            elif not integer_inputs and node.input and node.input[0] in self._integers:
                # Reshape, MaxPool and the like work on the integers as they are.
                before = self.value_of(node.input[0])
                self._mark_integer(out, before.scale, before.zero_point)
        for root in dict.fromkeys(step.values):
            self.consumers[root].append(step)
        self.steps.append(step)

    def _mark_integer(self, out: str, scale: str, zero_point: str) -> None:
        value = self.values[out]
        self._integers.add(out)
        value.integer, value.scale, value.zero_point = True, scale, zero_point
        dtype = self.model.elem_type(zero_point) if zero_point else "uint8"
        value.quantization = self.model.parameters(scale, zero_point, dtype)

    def _find_weight(self, step: Step, integer_inputs: tuple[tuple[int, int, int], ...]) -> None:
        sizes = {name: self._size(name) for name in step.constants if self._is_numeric(name)}
        if not sizes or max(sizes.values()) < 2:
            step.has_bias = len(step.node.input) > 2
            return
        step.weight = max(sizes, key=lambda name: sizes[name])
        step.weight_position = list(step.node.input).index(step.weight)
        bias_at = {"QLinearConv": 8, "QGemm": 6, "DynamicQuantizeMatMul": 4, "MatMulIntegerToFloat": 6}
        bias = bias_at.get(step.node.op_type, 2)
        step.has_bias = step.type in (*MATMUL, "Conv", "ConvTranspose") and (
            len(step.node.input) > bias and bool(step.node.input[bias]) and not self._is_unscaled(step)
        )
        for position, scale, zero_point in integer_inputs:
            if position == step.weight_position and scale >= 0:
                step.weight_quantization = self._raw_quantization(step, scale, zero_point)
        if step.node.op_type == "MatMulNBits":
            step.weight_quantization = _nbits_quantization(step.node)
        if not integer_inputs:
            step.weight_quantization = self._dequantized_by(step.weight)

    def _is_unscaled(self, step: Step) -> bool:
        return step.node.op_type in ("MatMulInteger", "ConvInteger")

    def _raw_quantization(self, step: Step, scale: int, zero_point: int) -> Quantization:
        node = step.node
        zero = node.input[zero_point] if zero_point < len(node.input) else ""
        axis = 0 if step.type == "Conv" or (step.type == "Gemm" and attribute(node, "transB", 0)) else -1
        return self.model.parameters(node.input[scale], zero, self.model.elem_type(step.weight), axis)

    def _dequantized_by(self, tensor: str) -> Quantization | None:
        """The quantization of a constant that went through DequantizeLinear, and perhaps a transpose after it."""
        node = self.model.producer.get(tensor)
        flip = False
        while node is not None and node.op_type in ("Transpose", "Identity", "Cast", "Reshape"):
            flip ^= node.op_type == "Transpose"
            node = self.model.producer.get(node.input[0])
        if node is None or node.op_type != DEQUANTIZE:
            return None
        found = self.model.quantization(node)
        if flip and found.axis is not None and not found.block:
            found = Quantization(
                found.dtype, found.scale, found.zero_point, found.low, found.high, 1 - found.axis % 2, found.block
            )
        return found

    def _after_scaling(self, step: Step) -> str:
        """MatMulInteger -> Cast -> Mul(scales) is one operation; its result is the output of the Mul."""
        tensor = step.node.output[0]
        scales: Array | None = None
        while len(self.model.consumers[tensor]) == 1:
            node = self.model.consumers[tensor][0]
            others = [i for i in node.input if i != tensor]
            is_scale = all(i in self._auxiliary or i in self.model.constants or self._will_be_scale(i) for i in others)
            if node.op_type != "Cast" and not (node.op_type == "Mul" and is_scale):
                break
            self._swallowed.add(next(i for i, n in enumerate(self.model.nodes) if n is node))
            tensor = node.output[0]
            if node.op_type == "Mul":
                scales = self._constant_factor(others[0])
                break
        zero = step.node.input[3] if len(step.node.input) > 3 else ""
        if step.weight and scales is not None:
            dtype = self.model.elem_type(step.weight)
            low, high = RANGES[dtype]
            zeros = self.model.constant(zero).astype(np.int64).ravel() if zero else np.zeros(1, np.int64)
            axis = None if scales.size == 1 else (0 if step.type == "Conv" else -1)
            flat = scales.astype(np.float32).ravel()
            step.weight_quantization = Quantization(
                dtype, flat, np.broadcast_to(zeros, flat.shape).copy(), low, high, axis
            )
        return tensor

    def _will_be_scale(self, tensor: str) -> bool:
        node = self.model.producer.get(tensor)
        return node is not None and all(i in self._auxiliary or i in self.model.constants for i in node.input)

    def _constant_factor(self, tensor: str) -> Array | None:
        """Of (input scale) * (weight scale), the weight's."""
        if tensor in self.model.constants:
            return self.model.constant(tensor)
        node = self.model.producer.get(tensor)
        fixed = [i for i in node.input if i in self.model.constants] if node is not None else []
        return self.model.constant(fixed[0]) if len(fixed) == 1 else None

    def _size(self, name: str) -> int:
        if name in self.model.initializers:
            return int(np.prod(self.model.initializers[name].dims))
        node = self.model.producer[name]
        if node.op_type in (QUANTIZE, DEQUANTIZE, "Transpose", "Identity", "Cast"):
            return self._size(node.input[0])
        return int(self.model.constant(name).size)

    def _is_numeric(self, name: str) -> bool:
        return self.model.elem_type(name) not in ("int64", "bool", "string")

    def _unique_name(self, node: onnx.NodeProto) -> str:
        name = base = node.name or next((out for out in node.output if out), node.op_type)
        count = 1
        while name in self._names:
            count += 1
            name = f"{base}#{count}"
        self._names.add(name)
        return name

    def _find_floats(self) -> set[str]:
        """Roots of values that hold real numbers, as far as can be told without running the model."""
        inferred = onnx.shape_inference.infer_shapes(self._without_weights())
        described = [*inferred.graph.value_info, *inferred.graph.output, *inferred.graph.input]
        known = {v.name: v.type.tensor_type.elem_type for v in described}
        floats: set[str] = {i.name for i in self.model.inputs if known.get(i.name) in _FLOATS}
        for step in self.steps:
            for out in step.outputs:
                if not out or out not in self.values:
                    continue
                if known.get(out):
                    is_float = known[out] in _FLOATS or self.values[out].integer
                else:
                    is_float = step.type not in _NOT_FLOAT and (
                        not step.values or any(v in floats for v in step.values)
                    )
                if is_float:
                    floats.add(out)
        return floats

    def _without_weights(self) -> onnx.ModelProto:
        """Enough for type inference, without copying gigabytes."""
        light = onnx.ModelProto(ir_version=max(self.model.proto.ir_version, 4))
        light.opset_import.extend(self.model.proto.opset_import)
        light.graph.name = "types"
        light.graph.node.extend(self.model.nodes)
        light.graph.input.extend(self.model.graph.input)
        light.graph.output.extend(self.model.graph.output)
        declared = {i.name for i in self.model.graph.input}
        for name, tensor in self.model.initializers.items():
            if name not in declared:
                light.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
        return light


def base_type(op_type: str) -> str:
    if op_type in _BASE_TYPES:
        return _BASE_TYPES[op_type]
    return op_type.removeprefix("QLinear")


def _nbits_quantization(node: onnx.NodeProto) -> Quantization:
    bits = attribute(node, "bits", 4)
    return Quantization(f"uint{bits}", None, None, 0, 2**bits - 1, axis=1, block=attribute(node, "block_size", 32))


def _unpack_nbits(model: Model, node: onnx.NodeProto) -> Array:
    """Blockwise weights [N, blocks, bytes] as float [K, N], the layout of MatMul's second input."""
    bits, block = attribute(node, "bits", 4), attribute(node, "block_size", 32)
    size_k, size_n = attribute(node, "K", 0), attribute(node, "N", 0)
    packed = model.constant(node.input[1]).astype(np.uint8).reshape(size_n, -1)
    scales = model.constant(node.input[2]).astype(np.float32).reshape(size_n, -1)
    blocks = scales.shape[1]
    values = _unpack(packed, bits)[:, : blocks * block].reshape(size_n, blocks, block)
    zeros: Array = np.full((size_n, blocks), 2 ** (bits - 1), np.float32)
    if len(node.input) > 3 and node.input[3]:
        given = model.constant(node.input[3])
        is_packed = given.dtype == np.uint8
        rows = given.reshape(size_n, -1)
        zeros = (_unpack(rows, bits)[:, :blocks] if is_packed else rows).astype(np.float32)
    floats = (values.astype(np.float32) - zeros[:, :, None]) * scales[:, :, None]
    return np.ascontiguousarray(floats.reshape(size_n, -1)[:, :size_k].T)


def _unpack(packed: Array, bits: int) -> Array:
    """Rows of bytes, lowest bits first."""
    parts = [(packed >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(packed.shape[0], -1)
