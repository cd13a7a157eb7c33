"""An ONNX file as steps and tensors.

Quantize and dequantize nodes, integer kernels and their scaling are taken out of the picture: an fp32 model and its
QDQ, QOperator or dynamically quantized twin have nearly the same steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from inc_tb.frameworks import graph
from inc_tb.frameworks.onnx.model import (
    DEQUANTIZE,
    QUANTIZE,
    Model,
    all_inputs,
    attribute,
    free_name,
    subgraphs,
    with_shapes,
)  # fmt: skip
from inc_tb.frameworks.onnx.nbits import nbits_quantization, unpack_nbits
from inc_tb.frameworks.onnx.steps import (
    REQUANTIZE,
    Step,
    Tensor,
    base_type,
    flipped_axis,
    nth_input,
    same_parameters,
    wants_channels_last,
)
from inc_tb.frameworks.ops import Array, Quantization
from inc_tb.frameworks.rounding import dequantize
from inc_tb.records import GraphNode

PASS_THROUGH = {"Identity", "Dropout"}
"""Operations that hand their first input on unchanged when the model is used."""
MATMUL = {"MatMul", "Gemm"}
_UNARY = ((0, 1, 2),), (3, 4)
_BINARY = ((0, 1, 2), (3, 4, 5)), (6, 7)
INTEGER_OPS: dict[str, tuple[tuple[tuple[int, int, int], ...], tuple[int, int] | None]] = {
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
    "QEmbedLayerNormalization": (((0, -1, -1), (1, -1, -1), *((i, i + 6, i + 11) for i in range(2, 7))), None),
    "QAttention": (((0, 3, 6), (1, 4, 7)), None),
    "MatMulInteger": (((0, -1, 2), (1, -1, 3)), None),
    "ConvInteger": (((0, -1, 2), (1, -1, 3)), None),
    "DynamicQuantizeLSTM": (((0, -1, -1), (1, 8, 9), (2, 10, 11)), None),
}
_INTEGER_KERNELS = ("QLinear", "QGemm", "QAttention", "QEmbed")
_BIAS_AT = {
    "QLinearConv": 8, "QGemm": 6, "DynamicQuantizeMatMul": 4, "MatMulIntegerToFloat": 6, "MatMulNBits": 5,
    "MatMulInteger": None, "ConvInteger": None, "QLinearMatMul": None,
}  # fmt: skip
_SETTINGS = {REQUANTIZE, "Resize", "Upsample", "Slice", "Pad", "Tile", "Expand", "Reshape", "OneHot", "TopK", "Range"}
"""Operations whose constants say what to do; they are no weights."""
_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE, onnx.TensorProto.BFLOAT16}
_NOT_FLOAT = {"Shape", "Size", "NonZero", "ArgMax", "ArgMin", "Equal", "Greater", "Less", "And", "Or", "Not", "IsNaN"}


class Graph(graph.Graph[Step, Tensor]):
    def __init__(self, model: Model) -> None:
        super().__init__(model.name)
        self.model = model
        self._dynamic: set[str] = set()
        self._integers: set[str] = set()
        self._channels_last: set[str] = set()
        self._auxiliary: set[str] = set()
        self.scaled_by: dict[str, Step] = {}
        """Tensors between the integers that a step computes and its result, and the scales that are multiplied in."""
        self._swallowed: set[int] = set()
        self._position = {id(node): i for i, node in enumerate(model.nodes)}
        self._names: set[str] = set()
        for name in [i.name for i in model.inputs]:
            self.add_tensor(Tensor(name, name))
            self.input_roots[name] = name
        for position, node in enumerate(model.nodes):
            if position not in self._swallowed:
                self._read(node)
        self.outputs = [self.root.get(name, name) for name in model.outputs]
        self.shapes: dict[str, list[int | None]] = {}
        """Of tensors, as far as can be told without running; None for a length that varies."""
        self.types = self._find_types()
        """Roots of tensors of real numbers, with their element type, as far as can be told without running."""

    def _tensor(self, name: str) -> Tensor:
        return self.tensors[self.root[name]]

    @property
    def free_inputs(self) -> list[str]:
        """Inputs of which the file does not even say how many dimensions they have."""
        return [i.name for i in self.model.inputs if not i.type.tensor_type.HasField("shape")]

    def weight(self, step: Step) -> Array:
        """The main weight, dequantized."""
        if step.node.op_type == "MatMulNBits":
            return unpack_nbits(self.model, step.node)
        values = self.model.constant(step.weight)
        if step.weight_quantization is not None and values.dtype.kind in "iu":
            return dequantize(values, step.weight_quantization)
        return values

    def weight_size(self, step: Step) -> int:
        if step.node.op_type == "MatMulNBits":
            return int(attribute(step.node, "K", 0) * attribute(step.node, "N", 0))
        return self.model.size(step.weight) if step.weight else 0

    def bias(self, step: Step) -> Array | None:
        """The constant that a convolution or matrix product adds, dequantized."""
        at = _BIAS_AT.get(step.node.op_type, 2)
        name = nth_input(step.node, at) if at is not None else ""
        if name not in self.model.constants:
            return None
        values = self.model.constant(name).ravel()
        if values.dtype.kind == "f":
            return values
        scales = [nth_input(step.node, i) for i in (1, 4)]
        if step.node.op_type not in ("QLinearConv", "QGemm") or not all(i in self.model.constants for i in scales):
            return None
        return np.asarray(values * self.model.constant(scales[0]) * self.model.constant(scales[1]), np.float32)

    def _read(self, node: onnx.NodeProto) -> None:
        if all(out in self.model.constants for out in node.output):
            return
        first = node.input[0] if node.input else ""
        if node.op_type in (QUANTIZE, DEQUANTIZE) and first in self.root and not self._is_requantized(node):
            self._join(node, first)
        elif node.op_type == "DynamicQuantizeLinear" and first in self.root:
            self.root[node.output[0]] = self.root[first]
            self._dynamic.add(node.output[0])
            self._auxiliary.update(node.output[1:])
        elif (node.op_type in PASS_THROUGH or self._is_float_cast(node)) and first in self.root:
            self._hand_on(node)
        elif node.op_type == "Transpose" and first in self.root and self._moves_channels(node):
            self._hand_on(node)
            self._channels_last ^= {node.output[0]}
        elif node.input and all(i in self._auxiliary or i in self.model.constants for i in all_inputs(node)):
            self._auxiliary.update(node.output)
        else:
            self._add_step(node)

    def _hand_on(self, node: onnx.NodeProto) -> None:
        """The output is the same as the input."""
        first, out = node.input[0], node.output[0]
        self.root[out] = self.root[first]
        for kind in (self._channels_last, self._integers):
            if first in kind:
                kind.add(out)

    def _moves_channels(self, node: onnx.NodeProto) -> bool:
        """A transpose that only serves operations that want the channels at the end, or undoes it."""
        consumers = self.model.consumers[node.output[0]]
        return node.input[0] in self._channels_last or (bool(consumers) and all(map(wants_channels_last, consumers)))

    def _join(self, node: onnx.NodeProto, source: str) -> None:
        value = self._tensor(source)
        if node.op_type == DEQUANTIZE:
            self._read_as_integer(source, *node.input[1:3])
        self.root[node.output[0]] = value.root
        if source in self._channels_last:
            self._channels_last.add(node.output[0])
        if value.quantization is None:
            value.quantization = self.model.quantization(node)
            value.scale, value.zero_point = node.input[1], nth_input(node, 2)
        if node.op_type == QUANTIZE:
            self._integers.add(node.output[0])
            value.template = value.template or node
        elif value.read == value.root:
            value.read = node.output[0]

    def _is_requantized(self, node: onnx.NodeProto) -> bool:
        before = self._tensor(node.input[0]).quantization
        if node.op_type != QUANTIZE or before is None:
            return False
        return not same_parameters(self.model.quantization(node), before)

    def _is_float_cast(self, node: onnx.NodeProto) -> bool:
        return node.op_type == "Cast" and attribute(node, "to", 0) in _FLOATS and node.input[0] in self.root

    def _add_step(self, node: onnx.NodeProto) -> None:
        integer_inputs, output_at = INTEGER_OPS.get(node.op_type, ((), None))
        if node.op_type == "QLinearConcat":
            integer_inputs = tuple((i, i + 1, i + 2) for i in range(2, len(node.input), 3))
            output_at = (0, 1)
        positions = [p for p, _, _ in integer_inputs] or list(range(len(node.input)))
        inputs = [node.input[p] for p in positions if p < len(node.input) and node.input[p]]
        own = set(node.input)
        inputs += [name for name in all_inputs(node) if name not in own]
        step = Step(
            len(self.steps), free_name(node, self._names), node.op_type, base_type(node.op_type),
            [self.root[i] for i in inputs if i in self.root], [i for i in inputs if i in self.model.constants],
            list(node.output), is_integer=node.op_type.startswith(_INTEGER_KERNELS), node=node,
        )  # fmt: skip
        self._names.add(step.name)
        for position, scale, zero_point in integer_inputs:
            if scale >= 0 and nth_input(node, position) in self.root:
                self._read_as_integer(node.input[position], nth_input(node, scale), nth_input(node, zero_point))
        channels_last = wants_channels_last(node) or any(i in self._channels_last for i in inputs)
        step.is_dynamic = any(i in self._dynamic for i in inputs) or node.op_type.startswith("DynamicQuantize")
        self._find_weight(step, integer_inputs)
        if node.op_type in ("MatMulInteger", "ConvInteger"):
            step.outputs = [self._after_scaling(step)]
        for out in filter(None, step.outputs):
            self.add_tensor(Tensor(out, out, channels_last=channels_last))
            if channels_last:
                self._channels_last.add(out)
            self._quantize_output(node, out, output_at, bool(integer_inputs))
        self.add(step)

    def _quantize_output(self, node: onnx.NodeProto, out: str, at: tuple[int, int] | None, is_integer_op: bool) -> None:
        if node.op_type == QUANTIZE:
            self._mark_integer(out, node.input[1], nth_input(node, 2))
            self.tensors[out].template = node
        elif at is not None and at[0] < len(node.input):
            self._mark_integer(out, node.input[at[0]], nth_input(node, at[1]))
        elif not is_integer_op and nth_input(node, 0) in self._integers:
            # Reshape, MaxPool and the like work on the integers as they are.
            before = self._tensor(node.input[0])
            self._mark_integer(out, before.scale, before.zero_point)
            self.tensors[out].template = before.template

    def _read_as_integer(self, tensor: str, scale: str, zero_point: str = "") -> None:
        """Integers that no quantizer made, as the rows of a quantized table: their reader knows the scale."""
        value = self._tensor(tensor)
        step = self.producer.get(value.root)
        if tensor in self._integers or tensor in self._dynamic or value.quantization is not None or step is None:
            return
        self._mark_integer(value.root, scale, zero_point)
        if step.weight and step.weight_quantization is None:
            step.weight_quantization = value.quantization

    def _mark_integer(self, out: str, scale: str, zero_point: str) -> None:
        value = self.tensors[out]
        self._integers.add(out)
        value.is_integer, value.scale, value.zero_point = True, scale, zero_point
        dtype = self.model.elem_type(zero_point) if zero_point else "uint8"
        value.quantization = self.model.parameters(scale, zero_point, dtype)

    def _find_weight(self, step: Step, integer_inputs: tuple[tuple[int, int, int], ...]) -> None:
        has_weights = step.type not in _SETTINGS and not subgraphs(step.node)
        sizes = {name: self.model.size(name) for name in step.constants if has_weights and self._is_numeric(name)}
        step.has_bias = step.type in (*MATMUL, "Conv", "ConvTranspose") and self._has_bias(step.node)
        if not sizes or max(sizes.values()) < 2:
            return
        step.weight = max(sizes, key=lambda name: sizes[name])
        step.weight_position = list(step.node.input).index(step.weight)
        for position, scale, zero_point in integer_inputs:
            if position == step.weight_position and scale >= 0:
                step.weight_quantization = self._raw_quantization(step, scale, zero_point)
        if step.node.op_type == "MatMulNBits":
            step.weight_quantization = nbits_quantization(step.node)
        elif not integer_inputs:
            step.weight_quantization = self._dequantized_by(step.weight)

    def _has_bias(self, node: onnx.NodeProto) -> bool:
        at = _BIAS_AT.get(node.op_type, 2)
        return at is not None and bool(nth_input(node, at))

    def _raw_quantization(self, step: Step, scale: int, zero_point: int) -> Quantization:
        node = step.node
        axis = 0 if step.type == "Conv" or (step.type == "Gemm" and attribute(node, "transB", 0)) else -1
        return self.model.parameters(
            node.input[scale], nth_input(node, zero_point), self.model.elem_type(step.weight), axis
        )

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
        return flipped_axis(found) if flip else found

    def _after_scaling(self, step: Step) -> str:
        """MatMulInteger -> Cast -> Mul(scales) is one operation; its result is the output of the Mul.

        Neural Compressor adds the bias before, rounded to the scale of the sums.
        """
        tensor: str = step.node.output[0]
        while len(self.model.consumers[tensor]) == 1:
            node = self.model.consumers[tensor][0]
            others = [i for i in node.input if i != tensor]
            is_sum = tensor == step.node.output[0] and node.op_type == "Add"
            is_bias = is_sum and all(map(self._is_made_of_scales, others))
            is_scale = all(i in self._auxiliary or i in self.model.constants or self._will_be_scale(i) for i in others)
            if node.op_type != "Cast" and not is_bias and not (node.op_type == "Mul" and is_scale):
                break
            self._swallowed.add(self._position[id(node)])
            self.scaled_by.update(dict.fromkeys([*node.output, *(i for i in others if i in self.model.producer)], step))
            tensor = node.output[0]
            if node.op_type == "Mul":
                self._apply_scales(step, others[0])
                break
        return tensor

    def _is_made_of_scales(self, tensor: str) -> bool:
        """And of constants, in any number of steps."""
        if tensor in self._auxiliary or tensor in self.model.constants:
            return True
        node = self.model.producer.get(tensor)
        return node is not None and all(map(self._is_made_of_scales, node.input))

    def _will_be_scale(self, tensor: str) -> bool:
        node = self.model.producer.get(tensor)
        return node is not None and all(i in self._auxiliary or i in self.model.constants for i in node.input)

    def _apply_scales(self, step: Step, product: str) -> None:
        """Takes (input scale) * (weight scale) apart, which works where the file still multiplies them."""
        node = self.model.producer.get(product)
        if node is None or node.op_type != "Mul" or node.input[1] not in self.model.constants or not step.weight:
            return
        self._read_as_integer(step.node.input[0], node.input[0], nth_input(step.node, 2))
        axis = 0 if step.type == "Conv" else -1
        dtype = self.model.elem_type(step.weight)
        step.weight_quantization = self.model.parameters(node.input[1], nth_input(step.node, 3), dtype, axis)

    def _is_numeric(self, name: str) -> bool:
        return self.model.elem_type(name) not in ("int64", "bool", "string")

    def _find_types(self) -> dict[str, int]:
        inferred = with_shapes(self.without_weights())
        described = [*inferred.graph.value_info, *inferred.graph.output, *inferred.graph.input]
        known = {v.name: v.type.tensor_type.elem_type for v in described}
        for value in described:
            if value.type.tensor_type.HasField("shape"):
                dims = value.type.tensor_type.shape.dim
                self.shapes[value.name] = [d.dim_value if d.HasField("dim_value") else None for d in dims]
        found = {i.name: known[i.name] for i in self.model.inputs if known.get(i.name) in _FLOATS}
        for step in self.steps:
            for out in step.outputs:
                if not out:
                    continue
                kind = known.get(out) or self._likely_type(step, found)
                value = self.tensors[out]
                if value.is_integer:
                    is_half = value.scale in self.model.constants and self.model.elem_type(value.scale) == "float16"
                    found[out] = onnx.TensorProto.FLOAT16 if is_half else onnx.TensorProto.FLOAT
                elif kind in _FLOATS:
                    found[out] = kind
        return found

    def _likely_type(self, step: Step, found: dict[str, int]) -> int:
        """For operations that ONNX does not know: the type of what they read."""
        if step.type in _NOT_FLOAT:
            return onnx.TensorProto.UNDEFINED
        if not step.reads:
            return onnx.TensorProto.FLOAT
        return next((found[v] for v in step.reads if v in found), onnx.TensorProto.UNDEFINED)

    def without_weights(self) -> onnx.ModelProto:
        """Enough for type and shape inference, without copying gigabytes."""
        light = onnx.ModelProto(ir_version=max(self.model.proto.ir_version, 4))
        light.opset_import.extend(self.model.proto.opset_import)
        light.graph.name = "types"
        light.graph.node.extend(self.model.nodes)
        light.graph.input.extend(self.model.graph.input)
        light.graph.output.extend(self.model.graph.output)
        declared = {i.name for i in self.model.graph.input}
        for name, tensor in self.model.initializers.items():
            if tensor.data_type == onnx.TensorProto.INT64 and len(tensor.dims) < 2 and not tensor.external_data:
                light.graph.initializer.append(tensor)
            elif name not in declared:
                light.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
        return light


def read_graph(source: Any) -> list[GraphNode]:
    """The ops of one model, each with the ops whose results it reads."""
    return Graph(Model(source)).graph_nodes(with_tensors=True)
