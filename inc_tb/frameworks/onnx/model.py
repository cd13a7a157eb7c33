"""An ONNX file as a graph that can be asked: constants, quantization parameters, sessions."""

from __future__ import annotations

import hashlib
import shutil
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]
from onnx import external_data_helper, helper, numpy_helper

from inc_tb.errors import ModelError
from inc_tb.frameworks.onnx.failures import cannot_open
from inc_tb.frameworks.ops import Array, Batch, Quantization
from inc_tb.frameworks.rounding import dequantize

_EXPECTED = "Expected an .onnx file with at least one node; check the path, or export the model again."
QUANTIZE = "QuantizeLinear"
DEQUANTIZE = "DequantizeLinear"
OPTIMIZED = "optimized.onnx"
_EXTERNAL = b"location"
"""In every file whose weights are in others."""
_RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
RANGES = {
    "int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535),
    "int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3), "int32": (-(2**31), 2**31 - 1),
    "float8e4m3fn": (-448, 448), "float8e4m3fnuz": (-240, 240), "float8e5m2": (-57344, 57344),
    "float8e5m2fnuz": (-57344, 57344), "float4e2m1": (-6, 6),
}  # fmt: skip


class Model:
    """The main graph of a model. Weights of models with external data stay on disk until asked for."""

    def __init__(self, source: Any) -> None:
        self.name = fspath(source) if isinstance(source, str | PathLike) else "the given ModelProto"
        self.folder = Path(source).absolute().parent if isinstance(source, str | PathLike) else None
        self.proto = self._load(source)
        self.graph = self.proto.graph
        self.nodes = _in_order(self.graph.node)
        self.initializers = {t.name: t for t in self.graph.initializer}
        self.inputs = [i for i in self.graph.input if i.name not in self.initializers]
        self.outputs = [o.name for o in self.graph.output]
        self.producer = {out: node for node in self.nodes for out in node.output if out}
        self.consumers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in self.nodes:
            for name in all_inputs(node):
                self.consumers[name].append(node)
        self.constants = self._find_constants()

    def _load(self, source: Any) -> onnx.ModelProto:
        if not isinstance(source, str | PathLike):
            proto = onnx.ModelProto()
            proto.CopyFrom(source)
        else:
            try:
                proto = onnx.load(source, load_external_data=False)
            except (DecodeError, OSError, ValueError) as error:
                raise ModelError(f"{self.name}: not an ONNX model ({error}). {_EXPECTED}") from error
        if not proto.graph.node or not proto.opset_import:
            raise ModelError(f"{self.name}: not an ONNX model, it has no graph. {_EXPECTED}")
        return proto

    def _find_constants(self) -> set[str]:
        known = set(self.initializers) | {""}
        for node in self.nodes:
            fixed = node.op_type == "Constant" or (node.input and all(name in known for name in all_inputs(node)))
            if fixed and node.op_type not in _RANDOM:
                known.update(node.output)
        return known - {""}

    def constant(self, name: str) -> Array:
        """The value of a tensor that does not depend on the input; quantized weights come dequantized."""
        if name in self.initializers:
            return self._tensor(self.initializers[name])
        node = self.producer[name]
        if node.op_type == DEQUANTIZE and node.input[0] in self.initializers:
            return dequantize(self.constant(node.input[0]), self.quantization(node))
        stored = constant_tensor(node)
        return self._tensor(stored) if stored is not None else self._computed(name)

    def _computed(self, name: str) -> Array:
        """What nodes make of other constants, in this file's opset."""
        wanted, nodes, used = {name}, [], set()
        for node in reversed(self.nodes):
            if wanted.intersection(node.output):
                nodes.append(node)
                used.update(all_inputs(node))
                wanted |= used
        proto = onnx.ModelProto(ir_version=self.proto.ir_version)
        proto.opset_import.extend(self.proto.opset_import)
        proto.functions.extend(self.proto.functions)
        proto.graph.name = "constant"
        proto.graph.node.extend(reversed(nodes))
        proto.graph.initializer.extend(self.initializers[i] for i in sorted(used & set(self.initializers)))
        proto.graph.output.append(helper.make_empty_tensor_value_info(name))
        return np.asarray(self.session(proto).run(None, {})[0])

    def _tensor(self, tensor: onnx.TensorProto) -> Array:
        if external_data_helper.uses_external_data(tensor):
            if self.folder is None:
                raise ModelError(
                    f"{self.name}: the weight {tensor.name} is in an external file that cannot be located. "
                    "Give the model by its path."
                )
            tensor = onnx.TensorProto.FromString(tensor.SerializeToString())
            try:
                external_data_helper.load_external_data_for_tensor(tensor, str(self.folder))
            except (OSError, ValueError, onnx.checker.ValidationError) as error:
                raise ModelError(
                    f"{self.name}: the external data of {tensor.name} cannot be read ({error}). "
                    "Keep the data file beside the model."
                ) from error
        return _plain(numpy_helper.to_array(tensor))

    def size(self, name: str) -> int:
        """How many numbers a constant holds."""
        if name in self.initializers:
            return int(np.prod(self.initializers[name].dims))
        node = self.producer[name]
        if node.op_type in (QUANTIZE, DEQUANTIZE, "Transpose", "Identity", "Cast"):
            return self.size(node.input[0])
        stored = constant_tensor(node)
        return int(np.prod(stored.dims) if stored is not None else self.constant(name).size)

    def elem_type(self, name: str) -> str:
        """The ONNX name of a constant's type, as int8."""
        if name in self.initializers:
            return type_name(self.initializers[name].data_type)
        node = self.producer[name]
        if node.op_type == QUANTIZE and len(node.input) > 2:
            return self.elem_type(node.input[2])
        if node.op_type == DEQUANTIZE:
            return self.elem_type(node.input[1])
        stored = constant_tensor(node)
        return type_name(stored.data_type) if stored is not None else str(self.constant(name).dtype)

    def quantization(self, node: onnx.NodeProto) -> Quantization:
        """The parameters of a QuantizeLinear or DequantizeLinear."""
        zero_point = node.input[2] if len(node.input) > 2 else ""
        if zero_point:
            dtype = self.elem_type(zero_point)
        elif node.op_type == DEQUANTIZE and node.input[0] in self.constants:
            dtype = self.elem_type(node.input[0])
        else:
            asked = attribute(node, "output_dtype", 0) if node.op_type == QUANTIZE else 0
            dtype = type_name(asked or onnx.TensorProto.UINT8)
        return self.parameters(
            node.input[1], zero_point, dtype, attribute(node, "axis", 1), attribute(node, "block_size", 0)
        )

    def parameters(self, scale: str, zero_point: str, dtype: str, axis: int = 1, block: int = 0) -> Quantization:
        low, high = RANGES.get(dtype, (-128, 127))
        if scale not in self.constants:
            return Quantization(dtype, None, None, low, high)
        scales = self.constant(scale).astype(np.float32)
        zeros = self.constant(zero_point).astype(np.int64) if zero_point else np.zeros(scales.shape, np.int64)
        if not block:
            scales, zeros = scales.ravel(), zeros.ravel()
            zeros = np.broadcast_to(zeros, scales.shape) if zeros.size == 1 else zeros
        per_tensor = scales.size == 1
        return Quantization(dtype, scales, zeros, low, high, None if per_tensor else axis, 0 if per_tensor else block)

    def weight_bytes(self) -> int:
        """What the weights take in memory, whether they are in the file or beside it."""
        beside = (e.value for t in self.graph.initializer for e in t.external_data if e.key == "length")
        own = self.proto.ByteSize() if self.folder is None else Path(self.name).stat().st_size
        return int(own) + sum(map(int, beside))

    def session(
        self, proto: onnx.ModelProto, threads: int = 0, *, optimized: bool = False, arena: bool = True,
        profile: Path | None = None,
    ) -> ort.InferenceSession:  # fmt: skip
        """Unless `optimized`, nothing is fused: every tensor exists and has the value that the file says.

        An arena keeps what a run has needed for the next one; without, it is given back.
        In the folder `profile` are then the optimized graph, and a trace of the runs once the profiling has ended.
        """
        options = ort.SessionOptions()
        level = ort.GraphOptimizationLevel
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        options.enable_cpu_mem_arena = arena
        if optimized:  # as it ships, but without threads that wait for the next run while another model is running
            options.add_session_config_entry("session.force_spinning_stop", "1")
        else:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            # Shapes that are asked for come first, and do not hold on to their tensors.
            options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile / "trace")
            options.optimized_model_filepath = str(profile / OPTIMIZED)
            # A file of more than 2 GB could not be written.
            options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights")
        if self.folder is not None:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(self.folder))
        try:
            data = _with_unique_names(proto).SerializeToString()
            return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except EncodeError as error:
            raise ModelError(
                f"{self.name}: over 2 GB in one file, which ONNX Runtime cannot open. Save it with external data."
            ) from error
        except Exception as error:  # onnxruntime raises many unrelated classes
            raise cannot_open(self.name, error) from error

    def with_outputs(self, names: Sequence[str], nodes: Iterable[onnx.NodeProto] = ()) -> onnx.ModelProto:
        """The model with other outputs, and nodes appended that compute them."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        proto.graph.node.extend(nodes)
        del proto.graph.output[:]
        proto.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
        return proto


def open_results(source: Any) -> Callable[[Batch], list[Array]]:
    model = Model(source)
    session = model.session(model.proto, optimized=True)
    return lambda batch: list(session.run(None, dict(batch)))


def digest_model(source: Any) -> str:
    """Also of the weights that are in files beside it."""
    if not isinstance(source, str | PathLike):
        return hashlib.sha256(source.SerializeToString()).hexdigest()
    data = Path(source).read_bytes()
    found = hashlib.sha256(data)
    for path in _weight_files(data, Path(source).parent) if _EXTERNAL in data else ():
        with path.open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


def _weight_files(data: bytes, folder: Path) -> list[Path]:
    try:
        tensors = onnx.ModelProto.FromString(data).graph.initializer
    except DecodeError:  # it will be told when the model is opened
        return []
    places = (entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location")
    return [path for place in sorted(set(places)) if (path := folder / place).is_file()]


def measure_size(source: Any) -> float:
    """Kilobytes of the file."""
    return (Path(source).stat().st_size if isinstance(source, str | PathLike) else source.ByteSize()) / 1000


def save_model(source: Any, target: Path) -> None:
    if isinstance(source, str | PathLike):
        shutil.copyfile(source, target)
    else:
        onnx.save(source, target)


def whole(source: Any) -> onnx.ModelProto:
    """A copy with all of its weights."""
    if isinstance(source, str | PathLike):
        return onnx.load(source)
    copied = onnx.ModelProto()
    copied.CopyFrom(source)
    return copied


def with_shapes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The types and shapes that ONNX can tell; it gives up on models that are not valid, which running them reveals."""
    try:
        return onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return proto


def name_nodes(proto: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    """Gives every node of the main graph a name of its own, by which tools and traces can tell it."""
    found: dict[str, onnx.NodeProto] = {}
    for node in proto.graph.node:
        node.name = free_name(node, found)
        found[node.name] = node
    return found


def free_name(node: onnx.NodeProto, taken: Collection[str]) -> str:
    """Its name or that of what it writes, with a number where others have that already."""
    base: str = node.name or next((out for out in node.output if out), node.op_type)
    name, count = base, 1
    while name in taken:
        count += 1
        name = f"{base}#{count}"
    return name


def _with_unique_names(proto: onnx.ModelProto) -> onnx.ModelProto:
    """ONNX Runtime refuses files in which two nodes have the same name; no name at all is fine."""
    seen: set[str] = set()
    for node in proto.graph.node:
        if node.name in seen:
            node.name = ""
        seen.add(node.name)
    return proto


def _in_order(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Every node behind those that it reads from, otherwise as in the file; some converters append nodes at the end."""
    producer = {out: i for i, node in enumerate(nodes) for out in node.output if out}
    order: dict[int, None] = {}
    seen: set[int] = set()
    for start in range(len(nodes)):
        stack = [start]
        while stack:
            at = stack.pop()
            if at in seen:
                order.setdefault(at)
                continue
            seen.add(at)
            before = {producer[name] for name in all_inputs(nodes[at]) if name in producer}
            stack += [at, *sorted((i for i in before if i not in order), reverse=True)]
    return [nodes[i] for i in order]


def all_inputs(node: onnx.NodeProto) -> list[str]:
    """What a node reads, including what its subgraphs read from outside."""
    names = [name for name in node.input if name]
    for graph in subgraphs(node):
        inner = {out for n in graph.node for out in n.output} | {t.name for t in graph.initializer}
        inner |= {i.name for i in graph.input}
        used = [name for n in graph.node for name in all_inputs(n)] + [o.name for o in graph.output]
        names.extend(name for name in used if name not in inner)
    return names


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    found = [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return found + [g for a in node.attribute if a.type == onnx.AttributeProto.GRAPHS for g in a.graphs]


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    for found in node.attribute:
        if found.name == name:
            return helper.get_attribute_value(found)
    return default


def constant_tensor(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """What a Constant node with a whole tensor holds."""
    if node.op_type != "Constant":
        return None
    return next((found.t for found in node.attribute if found.name == "value"), None)


def type_name(data_type: int) -> str:
    return str(onnx.TensorProto.DataType.Name(data_type)).lower()


def _plain(array: Array) -> Array:
    """Types that numpy does not know (bfloat16, int4, float8) as the next larger one that it does."""
    if array.dtype.kind in "fiub" and array.dtype.itemsize and array.dtype.name in np.sctypeDict:
        return array
    wide: type[np.generic] = np.float32 if "float" in array.dtype.name else np.int32
    return array.astype(wide)
