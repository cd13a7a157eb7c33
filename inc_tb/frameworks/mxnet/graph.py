"""The nodes of a symbol, as its JSON text has them, and symbols made of a changed text.

What oneDNN computes at once is one node, `sg_mkldnn_conv_bn_act_0`, that has the nodes of the user's network inside
(`parts`). A quantized node gives three things: whole numbers, and the ends of the range that they stand for.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from inc_tb.errors import ModelError
from inc_tb.frameworks.mxnet.library import mx
from inc_tb.frameworks.mxnet.network import Network, open_network
from inc_tb.frameworks.ops import Array, Input

VARIABLE = "null"
QUANTIZE = {"_contrib_quantize_v2", "_contrib_quantize"}
DEQUANTIZE = "_contrib_dequantize"
REQUANTIZE = "_contrib_requantize"
CONVERSIONS = {*QUANTIZE, DEQUANTIZE, REQUANTIZE}
_WEIGHTED = {"Convolution", "Deconvolution", "FullyConnected", "Embedding", "_contrib_quantized_embedding"}
_SUM = "elemwise_add"
_PREFIX = "quantized_"
LOSSES = {"SoftmaxOutput", "LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput", "SVMOutput"}


class Entry(NamedTuple):
    """One of the things that a node gives."""

    node: int
    at: int = 0


class Part(NamedTuple):
    """A node of the user's network."""

    name: str
    type: str
    attrs: Mapping[str, str]
    inputs: list[Entry | None]
    """What it reads; None where that is another part of the same node."""


@dataclass
class Node:
    index: int
    name: str
    """As the file has it; of several nodes with one name the others have a number behind: conv0_fwd/2."""
    type: str
    inputs: list[Entry]
    attrs: Mapping[str, str]
    outputs: int
    parts: list[Part] = field(default_factory=list)
    """What it computes, in order; the last gives its result."""

    @property
    def is_quantized(self) -> bool:
        """Computed with whole numbers."""
        return self.type.startswith("_contrib_quantized_") or self.attrs.get("quantized", "").lower() in ("true", "1")

    @property
    def is_integer(self) -> bool:
        """What it gives are whole numbers with their range."""
        return (self.is_quantized or self.type in QUANTIZE or self.type == REQUANTIZE) and self.outputs == 3

    @property
    def weighted(self) -> Part | None:
        """What of it has weights, as the second thing that it reads."""
        return next((part for part in self.parts if part.type in _WEIGHTED), None)

    @property
    def added(self) -> Entry | None:
        """What is added to its own result in place."""
        inputs = (entry for part in self.parts if part.type == _SUM for entry in part.inputs)
        is_sum = self.attrs.get("with_sum", "").lower() == "true"
        return next((entry for entry in inputs if entry is not None), None) if is_sum else None

    @property
    def symbol(self) -> str:
        """As quantize_net calls it, to be left out."""
        return self.name.removeprefix(_PREFIX) if self.is_quantized else self.name


class Graph:
    def __init__(self, model: Any) -> None:
        self.network: Network = open_network(model)
        self.name = self.network.name
        self.document: dict[str, Any] = json.loads(self.network.symbol.tojson())
        self.nodes = self._read_nodes()
        self.heads = [Entry(*head[:2]) for head in self.document["heads"]]
        self.variables = {node.name: node.index for node in self.nodes if node.type == VARIABLE}
        self.readers: dict[Entry, list[Node]] = defaultdict(list)
        for node in self.nodes:
            for entry in dict.fromkeys(node.inputs):
                self.readers[entry].append(node)
        self.labels = [name for name in self._unbound() if self._is_label(name)]
        """Only a loss reads them, which does not matter for the result."""
        self.inputs = [name for name in self._unbound() if name not in self.labels]
        if not self.inputs:
            raise ModelError(f"{self.name}: the network has no input; expected one variable at least without weights.")
        missing = [name for name in self.network.symbol.list_auxiliary_states() if name not in self.network.aux]
        if missing:
            raise ModelError(
                f"{self.name}: its weights lack {missing[0]} ({len(missing)} missing in all); expected all of "
                "them. Give the parameters of this network."
            )
        self._moving = self._find_moving()
        self.steps = [node for node in self.nodes if node.index in self._moving and node.type != VARIABLE]
        """The nodes that compute something of the input."""

    def _read_nodes(self) -> list[Node]:
        rows = self.document["node_row_ptr"]
        seen: Counter[str] = Counter()
        inside: Counter[str] = Counter()
        found = []
        for index, raw in enumerate(self.document["nodes"]):
            name = _numbered(raw["name"], seen)
            inputs = [Entry(*entry[:2]) for entry in raw["inputs"]]
            node = Node(index, name, raw["op"], inputs, raw.get("attrs") or {}, rows[index + 1] - rows[index])
            if node.type not in (VARIABLE, *CONVERSIONS):
                node.parts = _read_parts(node, raw, inside)
            found.append(node)
        return found

    def _unbound(self) -> list[str]:
        known = {*self.network.args, *self.network.aux}
        return [name for name in self.network.symbol.list_arguments() if name not in known]

    def _is_label(self, name: str) -> bool:
        entry = Entry(self.variables[name])
        readers = self.readers[entry]
        return bool(readers) and all(r.type in LOSSES and r.inputs.index(entry) == 1 for r in readers)

    def _find_moving(self) -> set[int]:
        found = {self.variables[name] for name in self.inputs}
        for node in self.nodes:
            if any(entry.node in found for entry in node.inputs):
                found.add(node.index)
        return found

    @property
    def is_quantized(self) -> bool:
        return any(node.is_quantized for node in self.steps)

    def values(self, node: Node) -> list[Entry]:
        """What it reads that depends on the input, without ranges."""
        return [e for e in node.inputs if e.node in self._moving and not (e.at and self.nodes[e.node].is_integer)]

    def array(self, name: str) -> Array:
        """A parameter."""
        found = self.network.args.get(name)
        return np.asarray((found if found is not None else self.network.aux[name]).asnumpy())

    def is_parameter(self, name: str) -> bool:
        return name in self.network.args or name in self.network.aux

    def symbol(self, heads: Sequence[Entry]) -> Any:
        """The same network with other results."""
        return made_symbol({**self.document, "heads": [[e.node, e.at, 0] for e in heads]})

    def described_inputs(self) -> list[Input]:
        """A file does not say what shapes the inputs have: data does."""
        return [Input(name, np.dtype(np.float32), (), is_known=False) for name in self.inputs]


def made_symbol(document: Mapping[str, Any]) -> Any:
    """Of a text in which nodes may be new: the places that it keeps of variables are found anew."""
    variables = [i for i, node in enumerate(document["nodes"]) if node["op"] == VARIABLE]
    kept = {k: v for k, v in document.items() if k != "node_row_ptr"}
    return mx.sym.load_json(json.dumps({**kept, "arg_nodes": variables}))


def _read_parts(node: Node, raw: Mapping[str, Any], seen: Counter[str]) -> list[Part]:
    graphs = raw.get("subgraphs") or []
    if len(graphs) != 1:
        return [Part(_numbered(node.symbol, seen), node.type, node.attrs, list(node.inputs))]
    inner = graphs[0]["nodes"]
    outer = dict(zip((i for i, n in enumerate(inner) if n["op"] == VARIABLE), node.inputs, strict=False))
    return [
        Part(_numbered(n["name"], seen), n["op"], n.get("attrs") or {}, [outer.get(entry[0]) for entry in n["inputs"]])
        for n in inner
        if n["op"] != VARIABLE
    ]


def _numbered(name: str, seen: Counter[str]) -> str:
    """A layer that is called twice gives two nodes of one name."""
    seen[name] += 1
    return name if seen[name] == 1 else f"{name}/{seen[name]}"
