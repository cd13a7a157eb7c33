"""A TFLite file as steps and values."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.tools import flatbuffer_utils

from inc_tb.errors import ModelError
from inc_tb.frameworks.ops import Array, Input, Quantization
from inc_tb.frameworks.rounding import dequantize
from inc_tb.frameworks.tensorflow.forms import Lite, first_line
from inc_tb.frameworks.tensorflow.graph import Graph, Step
from inc_tb.frameworks.tensorflow.grids import grid
from inc_tb.frameworks.tensorflow.kinds import LOOPS, WEIGHTED, lite_type

_TYPES = {
    schema.TensorType.FLOAT32: "float32", schema.TensorType.FLOAT16: "float16", schema.TensorType.INT32: "int32",
    schema.TensorType.UINT8: "uint8", schema.TensorType.INT64: "int64", schema.TensorType.BOOL: "bool",
    schema.TensorType.INT16: "int16", schema.TensorType.INT8: "int8", schema.TensorType.FLOAT64: "float64",
    schema.TensorType.UINT64: "uint64", schema.TensorType.UINT32: "uint32", schema.TensorType.UINT16: "uint16",
    schema.TensorType.INT4: "int4",
}  # fmt: skip
_WHOLE = {"int8", "uint8", "int16"}
_FLOATS = {"float32", "float16", "float64"}
_ACTIVATIONS = {
    schema.ActivationFunctionType.RELU: "Relu", schema.ActivationFunctionType.RELU6: "Relu6",
    schema.ActivationFunctionType.RELU_N1_TO_1: "ReluN1To1", schema.ActivationFunctionType.TANH: "Tanh",
}  # fmt: skip
_BIAS_AT = {"CONV_2D": 2, "DEPTHWISE_CONV_2D": 2, "FULLY_CONNECTED": 2, "TRANSPOSE_CONV": 3, "CONV_3D": 2}
DAMAGED = "The file is damaged, or no TFLite model; convert the model again."


class LiteGraph(Graph):
    """Values are named by the number of their tensor."""

    def __init__(self, source: Lite) -> None:
        super().__init__(source.name)
        self.source = source
        self.constants: set[str] = set()
        self._from_constant: dict[str, str] = {}
        self._names: set[str] = set()
        try:
            self._read_all()
        except (struct.error, LookupError, TypeError, ValueError, AttributeError) as error:  # numbers out of nowhere
            raise ModelError(f"{self.name}: cannot be read ({first_line(error)}). {DAMAGED}") from error

    def _read_all(self) -> None:
        self.model = flatbuffer_utils.read_model_from_bytearray(bytearray(self.source.content))
        self.main = self.model.subgraphs[0]
        self.constants = {
            str(i) for i, t in enumerate(self.main.tensors) if self._data(t) is not None and i not in self.main.inputs
        }
        self._read_inputs()
        for op in self.main.operators:
            self._read(op)
        self.outputs = [self._result(str(i)) for i in self.main.outputs]
        self.result_names = self._signature_names("outputs", [int(i) for i in self.main.outputs])

    def _data(self, tensor: Any) -> Any:
        buffer = self.model.buffers[tensor.buffer]
        return buffer.data if buffer.data is not None and len(buffer.data) else None

    def dtype(self, name: str) -> str:
        return _TYPES.get(self.main.tensors[int(name)].type, "other")

    def shape(self, name: str) -> tuple[int, ...]:
        found = self.main.tensors[int(name)].shape
        return tuple(int(n) for n in found) if found is not None else ()

    def label(self, name: str) -> str:
        return (self.main.tensors[int(name)].name or b"").decode()

    def _read_inputs(self) -> None:
        places = [int(i) for i in self.main.inputs]
        for place, name in zip(places, self._signature_names("inputs", places), strict=True):
            tensor, root = self.main.tensors[place], str(place)
            signature = tensor.shapeSignature if tensor.shapeSignature is not None else tensor.shape
            shape = tuple(None if n < 0 else int(n) for n in (signature if signature is not None else ()))
            kind = self.dtype(root)
            is_whole = kind in _WHOLE and self.quantization(root) is not None
            self.inputs.append(Input(name, np.dtype("float32" if is_whole else kind), shape))
            self.input_roots[name] = root
            self.new_tensor(root, self.quantization(root) if is_whole else None, is_integer=is_whole)

    def _signature_names(self, which: str, places: Sequence[int]) -> list[str]:
        """As the signature calls them, or else as the file does."""
        signatures = self.model.signatureDefs or []
        known = {int(m.tensorIndex): m.name.decode() for s in signatures[:1] for m in getattr(s, which) or ()}
        return [
            known.get(place) or re.sub(r"(^serving_default_)|(:0$)", "", self.label(str(place))) for place in places
        ]

    def _result(self, name: str) -> str:
        if name not in self.root:
            raise ModelError(f"{self.name}: its result {self.label(name)} does not depend on its inputs. {DAMAGED}")
        return self.root[name]

    def quantization(self, name: str) -> Quantization | None:
        told = self.main.tensors[int(name)].quantization
        if told is None or told.scale is None or not len(told.scale) or self.dtype(name) not in (*_WHOLE, "int4"):
            return None
        if self.dtype(name) == "int4":
            scales = np.asarray(told.scale, np.float32)
            zeros = np.zeros(scales.shape, np.int64)
            return Quantization("int4", scales, zeros, -8, 7, int(told.quantizedDimension) if scales.size > 1 else None)
        zero = told.zeroPoint if told.zeroPoint is not None and len(told.zeroPoint) else 0
        return grid(self.dtype(name), told.scale, zero, int(told.quantizedDimension))

    def _read(self, op: Any) -> None:
        kind = flatbuffer_utils.opcode_to_name(self.model, op.opcodeIndex)
        inputs = [str(i) for i in op.inputs if i >= 0]
        outputs = [str(i) for i in op.outputs]
        if inputs and all(i in self.constants for i in inputs):
            self.constants.update(outputs)
            self._from_constant.update(dict.fromkeys(outputs, inputs[0]))
        elif kind == "DEQUANTIZE" and inputs[0] in self.root:
            self.root[outputs[0]] = self.root[inputs[0]]
        elif kind == "QUANTIZE" and inputs[0] in self.root and self.dtype(inputs[0]) in _FLOATS:
            self._quantize(inputs[0], outputs[0])
        elif any(self._is_value(out) for out in outputs):
            self._add_step(op, kind, inputs, outputs)

    def _kept(self, kind: str, outputs: Sequence[str]) -> list[str]:
        """The values; of a loop those that are read, as it does not even fill the others."""
        values = [out for out in outputs if self._is_value(out)]
        if lite_type(kind) not in LOOPS:
            return values
        read = {str(i) for places in (self.main.outputs, *(op.inputs for op in self.main.operators)) for i in places}
        return [out for out in values if out in read] or values[:1]

    def _quantize(self, first: str, out: str) -> None:
        value = self.tensors[self.root[first]]
        self.root[out] = value.root
        if value.quantization is None:
            value.quantization, value.read = self.quantization(out), out

    def _is_value(self, name: str) -> bool:
        return self.dtype(name) in _FLOATS or (self.dtype(name) in _WHOLE and self.quantization(name) is not None)

    def _add_step(self, op: Any, kind: str, inputs: list[str], outputs: list[str]) -> None:
        options = op.builtinOptions
        step = Step(
            len(self.steps), self._name(outputs[0]), kind, lite_type(kind),
            [self.root[i] for i in inputs if i in self.root and self._is_value(i)],
            [i for i in inputs if i in self.constants], self._kept(kind, outputs),
            also=_origins(self.label(outputs[0])),
            settings=_settings(options, bool(inputs) and inputs[0] in self.constants),
            activation=_ACTIVATIONS.get(getattr(options, "fusedActivationFunction", 0), ""),
        )  # fmt: skip
        step.is_integer = any(self.dtype(name) in _WHOLE and self._is_value(name) for name in (*inputs, *outputs))
        given = [str(i) if i >= 0 else "" for i in op.inputs]
        if step.type in (*WEIGHTED, "Gather"):
            places = {"Gather": (0,), "MatMul": (1, 0)}.get(step.type, (1,))
            step.weight = next((given[at] for at in places if given[at] in self.constants), "")
            step.weight_quantization = self._stored_grid(step.weight) if step.weight else None
            at = _BIAS_AT.get(kind, len(given))
            step.bias = given[at] if at < len(given) and given[at] in self.constants else ""
            reads = [i for i in inputs if i in self.root and self._is_value(i)]
            step.is_dynamic = (
                step.weight_quantization is not None
                and step.type != "Gather"
                and step.weight not in self._from_constant
                and all(self.dtype(i) in _FLOATS for i in reads)
            )  # fmt: skip
        for out in step.outputs:
            is_whole = self.dtype(out) in _WHOLE
            self.new_tensor(out, self.quantization(out) if is_whole else None, is_integer=is_whole)
        self.add(step)

    def _name(self, out: str) -> str:
        """That of the op whose result it is; the file calls it by all ops that went into it."""
        base = self.label(out) or f"tensor_{out}"
        name = base if base not in self._names else f"{base}#{out}"
        self._names.add(name)
        return name

    def _stored_grid(self, name: str) -> Quantization | None:
        return self.quantization(self._from_constant.get(name, name))

    def raw(self, name: str) -> Array:
        name = self._from_constant.get(name, name)
        tensor, kind = self.main.tensors[int(name)], self.dtype(name)
        data = np.asarray(self._data(tensor), np.uint8).tobytes()
        if kind == "int4":
            pairs = np.frombuffer(data, np.uint8)
            halves = np.stack([pairs & 15, pairs >> 4], axis=1).ravel()[: prod(self.shape(name))]
            signed = np.where(halves > 7, halves.astype(np.int8) - 16, halves)
            return np.asarray(signed, np.int8).reshape(self.shape(name))
        return np.frombuffer(data, np.dtype(kind)).reshape(self.shape(name))

    def constant(self, name: str) -> Array:
        stored, quantization = self.raw(name), self._stored_grid(name)
        return dequantize(stored, quantization) if quantization is not None else stored.astype(_real(stored.dtype))

    def weight(self, step: Step) -> Array:
        stored = self.constant(step.weight)
        if step.kind == "DEPTHWISE_CONV_2D":
            return np.asarray(stored[0])
        if step.kind == "CONV_2D":
            return np.moveaxis(stored, 0, -1)
        if step.kind == "TRANSPOSE_CONV":
            return stored.transpose(1, 2, 3, 0)
        if step.kind == "FULLY_CONNECTED" or step.settings.get("adjY"):
            return stored.swapaxes(-1, -2)
        return stored

    def weight_shape(self, step: Step) -> tuple[int, ...]:
        return self.shape(self._from_constant.get(step.weight, step.weight)) if step.weight else ()

    def shape_of(self, root: str) -> tuple[int | None, ...] | None:
        signature = self.main.tensors[int(root)].shapeSignature
        if signature is None or not len(signature):
            return self.shape(root)
        return tuple(None if n < 0 else int(n) for n in signature)

    def bias(self, step: Step) -> Array | None:
        if not step.bias:
            return None
        told = self.main.tensors[int(step.bias)].quantization
        stored = self.raw(step.bias)
        if stored.dtype.kind in "iu" and told is not None and told.scale is not None:
            return np.asarray(stored * np.asarray(told.scale, np.float64), np.float32).ravel()
        return stored.astype(_real(stored.dtype)).ravel()


def _real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float32) if dtype.kind == "f" else dtype


def _settings(options: Any, is_constant_first: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"constant_first": is_constant_first, "adjY": bool(getattr(options, "adjY", False))}
    if hasattr(options, "filterHeight"):
        found["window"] = (options.filterHeight, options.filterWidth, options.strideH, options.strideW)
    return found


def _origins(label: str) -> frozenset[str]:
    """Names of ops in the name of a tensor: `a;b;c1`, where the digits only tell equal names apart."""
    found: set[str] = set()
    for part in label.split(";"):
        name = re.sub(r":\d+$", "", part)
        found.add(name)
        while name and name[-1].isdigit():
            name = name[:-1]
            found.add(name)
    return frozenset(found - {""})
