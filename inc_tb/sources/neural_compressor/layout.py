"""Who reads whom, as far as a workspace tells: from the scales of a config, from a model, or from the order of ops."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inc_tb.frameworks.describe import linked
from inc_tb.frameworks.ops import Op, Quantization
from inc_tb.records import GraphNode
from inc_tb.sources.neural_compressor.trials import number_of, op_configs, part_of, precision_of, text_of

_LIMITS = {"uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767)}
_SCHEMES = {"sym": "symmetric", "asym": "asymmetric"}
_SUFFIXES = (
    "_QuantizeInput",
    "_QuantizeLinear",
    "_DequantizeLinear",
    "_DequantizeOutput",
    "_quantized",
    "_dequantized",
)


@dataclass
class Node:
    name: str
    type: str
    reads: list[str]
    """Tensors, weights among them."""
    writes: str
    grid: Quantization | None = None
    """Of what it writes."""
    module: str = ""


@dataclass
class Layout:
    """The ops of one config, from the input of the model to its output."""

    nodes: list[Node]
    is_guess: bool = False
    """Whether they are taken as a chain, because nothing says who reads whom."""
    writers: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.writers = {node.writes: node.name for node in self.nodes if node.writes}
        self._by_name = {node.name: node for node in self.nodes}

    def node(self, name: str) -> Node | None:
        return self._by_name.get(name)

    def sources(self, node: Node) -> list[str]:
        return list(dict.fromkeys(self.writers[tensor] for tensor in node.reads if tensor in self.writers))

    def joined(self, start: str, end: str) -> list[str] | None:
        """Ops that make the tensor `end` of the tensor `start` and of nothing else; None where that is not so."""
        found: list[str] = []
        while end != start:
            node = self._by_name.get(self.writers.get(end, ""))
            if node is None or len(self.sources(node)) != 1 or node.name in found:
                return None
            found.append(node.name)
            end = next(tensor for tensor in node.reads if tensor in self.writers)
        return found[::-1]

    def followers(self, name: str, types: Sequence[str]) -> list[str]:
        """The ops of these types behind one, each read by the next."""
        found: list[str] = []
        for kind in types:
            before = [name, *found][-1]
            found += [node.name for node in self.nodes if node.type == kind and before in self.sources(node)][:1]
        return found


def base_name(tensor: str) -> str:
    """As it is called in fp32."""
    for suffix in _SUFFIXES:
        tensor = tensor.removesuffix(suffix)
    return tensor


def scales_in(q_config: Mapping[Any, Any]) -> bool:
    """Whether it names the tensors of each op, as those of ONNX do."""
    return any("scale_info" in config for _, _, config in op_configs(q_config))


def lacking(graph: Sequence[GraphNode], ops: Iterable[str]) -> list[str]:
    """The ops that a model does not have."""
    wanted = list(dict.fromkeys(ops))
    there = {node.name for node in _from_graph(graph, set(wanted))}
    return [op for op in wanted if op not in there]


def layout_of(
    tune_cfg: Mapping[Any, Any],
    q_config: Mapping[Any, Any],
    graph: Sequence[GraphNode],
    framework: str,
    ranges: Mapping[str, tuple[float, float]],
) -> Layout:
    """`graph` is that of the model, if there is one, and `ranges` what the calibration saw of each op's output."""
    if scales_in(q_config):
        found = Layout(list(_from_scales(q_config)))
    elif graph:
        found = Layout(list(_from_graph(graph, {name for name, _, _ in op_configs(tune_cfg)} | set(ranges))))
    else:
        found = Layout(_from_order(tune_cfg, framework), is_guess=True)
    settings = {name: config for cfg in (tune_cfg, q_config) for name, _, config in op_configs(cfg)}
    modules = {node.name: node.module for node in _from_graph(graph, {node.name for node in found.nodes})}
    for node in found.nodes:
        node.module = modules.get(node.name, "")
        if node.grid is None:
            node.grid = _grid(settings.get(node.name, {}), ranges.get(node.name))
    return found


def as_ops(layout: Layout, tune_cfg: Mapping[Any, Any], framework: str) -> list[Op]:
    settings = {name: config for name, _, config in op_configs(tune_cfg)}
    return linked(
        Op(
            node.name, node.type, index, unit=node.name, tensor=node.writes if not layout.is_guess else "",
            inputs=layout.sources(node), weight=_weight(settings.get(node.name, {}), node.type, framework),
            activation=node.grid if _is_quantized(settings.get(node.name)) else None, module=node.module,
        )
        for index, node in enumerate(layout.nodes)
    )  # fmt: skip


def config_columns(ops: Iterable[Op], tune_cfg: Mapping[Any, Any]) -> dict[str, list[str]]:
    """What the config says about each op, also where the workspace has no scale."""
    settings = {name: config for name, _, config in op_configs(tune_cfg)}
    rows = [settings.get(op.name, {}) for op in ops]
    quantized = [row if _is_quantized(row) else {} for row in rows]
    activations, weights = ([part_of(row, side) for row in quantized] for side in ("activation", "weight"))
    return {
        "act_dtype": [text_of(row.get("dtype")) for row in activations],
        "act_scheme": [
            "dynamic" if row.get("quant_mode") == "dynamic" else _SCHEMES.get(text_of(row.get("scheme")), "")
            for row in activations
        ],
        "weight_dtype": [text_of(row.get("dtype")) for row in weights],
        "weight_granularity": [text_of(row.get("granularity")).replace("_", " ") for row in weights],
    }


def _from_scales(q_config: Mapping[Any, Any]) -> Iterable[Node]:
    """ONNX: with each op the zero point and scale of every tensor that it reads and, last, of what it writes."""
    for name, kind, config in op_configs(q_config):
        scales = part_of(config, "scale_info")
        tensors = [str(tensor) for tensor in scales]
        if not tensors:
            yield Node(name, kind, [], "")
            continue
        stored = scales[tensors[-1]]
        zero_point, scale = stored if isinstance(stored, list | tuple) and len(stored) == 2 else (None, None)
        dtype = text_of(part_of(config, "activation").get("dtype"))
        yield Node(name, kind, tensors[:-1], tensors[-1], grid_of(dtype, number_of(scale), number_of(zero_point)))


def _from_graph(graph: Sequence[GraphNode], known: set[str]) -> Iterable[Node]:
    """Neural Compressor takes a Gemm apart before it quantizes."""
    written = {node.name: node.tensor or node.name for node in graph}
    for node in graph:
        reads = [written[name] for name in node.inputs]
        if node.type == "Gemm" and f"{node.name}_MatMul" in known:
            between = f"{written[node.name]}_MatMul"
            yield Node(f"{node.name}_MatMul", "MatMul", reads, between, module=node.module)
            yield Node(f"{node.name}_Add", "Add", [between], written[node.name], module=node.module)
        else:
            yield Node(node.name, node.type, reads, written[node.name], module=node.module)


def _from_order(tune_cfg: Mapping[Any, Any], framework: str) -> list[Node]:
    """TensorFlow's configs begin at the output."""
    types = {name: kind for name, kind, _ in op_configs(tune_cfg)}
    names = list(types)[::-1] if framework == "tensorflow" else list(types)
    chain = zip([None, *names[:-1]], names, strict=True) if names else ()
    return [Node(name, types[name], [before] if before is not None else [], name) for before, name in chain]


def _grid(config: Mapping[str, Any], seen: tuple[float, float] | None) -> Quantization | None:
    """From the scale of the config (torch), or from the range that the calibration has seen (TensorFlow)."""
    activation = part_of(config, "activation")
    dtype, scale = text_of(activation.get("dtype")), number_of(activation.get("scale"))
    if scale is not None:
        return grid_of(dtype, scale, number_of(activation.get("zero_point")))
    if seen is None or dtype not in ("int8", "uint8") or (activation.get("scheme") == "asym" and seen[0] < 0):
        return None
    low, high = seen
    if low >= 0:
        return grid_of("uint8", high / 255, 0)
    return grid_of("int8", max(-low, high) / 127, 0)


def grid_of(dtype: str, scale: float | None, zero_point: float | None) -> Quantization | None:
    """One scale for a tensor of this type, if it is one."""
    if dtype not in _LIMITS or scale is None or not 0 < scale < math.inf or zero_point is None:
        return None
    return Quantization(dtype, np.array([scale], np.float32), np.array([int(zero_point)]), *_LIMITS[dtype])


def _weight(config: Mapping[str, Any], kind: str, framework: str) -> Quantization | None:
    weight = part_of(config, "weight")
    dtype = text_of(weight.get("dtype"))
    if not _is_quantized(config) or dtype not in _LIMITS:
        return None
    low, high = _LIMITS[dtype]
    axis = None if weight.get("granularity") != "per_channel" else weight_axis(kind, framework)
    return Quantization(dtype, None, None, max(low, -127), high, axis)


def weight_axis(kind: str, framework: str) -> int:
    """Where the channels that an op writes are in its weights."""
    is_transposed = any(word in kind for word in ("ConvTranspose", "Conv2DBackpropInput", "Conv3DBackpropInput"))
    if framework == "tensorflow":
        return 2 if "depthwise" in kind.lower() else -2 if is_transposed else -1
    return 1 if is_transposed or (kind in ("MatMul", "Gemm") and framework == "onnx") else 0


def activation_axis(kind: str, framework: str, axes: int) -> int:
    """Where the channels are in what an op writes: of images and of what slides over a sequence behind the samples."""
    slides = any(word in kind.lower() for word in ("conv", "pool", "batchnorm", "instancenorm"))
    return 1 if framework != "tensorflow" and (axes > 3 or slides) else -1


def _is_quantized(config: Mapping[str, Any] | None) -> bool:
    return bool(config) and precision_of(config or {}).removeprefix("u").startswith("int")
