"""The fp32 model with a switch at everything that the quantized model rounds.

One input, a mask, turns each of these sites on and off, so one session serves every subset; scales and zero points are
inputs, too, so it also serves every range. Each site is an `If`: a rounded tensor goes through QuantizeLinear and
DequantizeLinear in one branch and is handed on in the other; an op with rounded weights is in both branches, each time
with its own constant weights, which ONNX Runtime prepares once. A `Where` would compute both sides and copy large
weights in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from inc_tb.errors import ModelError
from inc_tb.frameworks.edges import before_softmax
from inc_tb.frameworks.feeds import fitted, split, whole_inputs
from inc_tb.frameworks.memory import default_budget
from inc_tb.frameworks.onnx.adapter import describe_input
from inc_tb.frameworks.onnx.biases import find_shifts
from inc_tb.frameworks.onnx.failures import cannot_run
from inc_tb.frameworks.onnx.graph import PASS_THROUGH, Graph
from inc_tb.frameworks.onnx.match import Matching
from inc_tb.frameworks.onnx.model import Model
from inc_tb.frameworks.onnx.plan import fitting
from inc_tb.frameworks.onnx.ranges import find_ranges
from inc_tb.frameworks.onnx.sites import Sites, rounded_again
from inc_tb.frameworks.onnx.steps import Step
from inc_tb.frameworks.ops import Array, Batch, Input, Range, RangesOffered, Unit
from inc_tb.frameworks.protocols import Outputs, Switchable
from inc_tb.records import Rewrite

MASK, SCALES, ZEROS = "inc_tb_mask", "inc_tb_scales", "inc_tb_zeros"
_SOFTMAX = {"Softmax", "LogSoftmax"}
_PASSING = {*PASS_THROUGH, "Cast", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze"}
_SIXTEEN_BITS = {"int16", "uint16"}
_LARGEST = 2**31 - 1
_AS_THEY_ARE: Mapping[str, Range] = MappingProxyType({})


class OnnxSwitches(Switchable):
    """A pair of ONNX models."""

    framework = "onnx"

    def __init__(self, reference: Any, quantized: Any) -> None:
        self._reference = Graph(Model(reference))
        self._quantized = Graph(Model(quantized))
        self._matching = Matching(self._reference, self._quantized)
        self._found = Sites(self._matching)
        self.inputs: list[Input] = [describe_input(i, self._reference.model) for i in self._reference.model.inputs]
        self.units = [Unit(name, ops) for name, ops in self._found.starters.items()]
        self.sites = self._found.all
        self.notes = self._found.notes
        names = [name for site in self.sites for name in (site.name, site.instead) if name]
        self._place = {name: i for i, name in enumerate(names)}
        self._grids = list(self._found.grids)
        self._results = self._reference.model.outputs
        self._scores = [before_softmax(output, self._maker, _SOFTMAX, _PASSING) for output in self._results]
        self._session: ort.InferenceSession | None = None
        self._real: ort.InferenceSession | None = None
        self._fitting: dict[Any, int] = {}

    def _maker(self, tensor: str) -> tuple[str, str] | None:
        node = self._reference.model.producer.get(tensor)
        return None if node is None or not node.input else (node.op_type, node.input[0])

    def model(self) -> onnx.ModelProto:
        """The switchable model; its input `inc_tb_mask` has one boolean a site."""
        source = self._reference.model
        proto = onnx.ModelProto()
        proto.CopyFrom(source.proto)
        graph = proto.graph
        del graph.node[:], graph.value_info[:], graph.output[:]
        graph.input.append(helper.make_tensor_value_info(MASK, TensorProto.BOOL, [len(self._place)]))
        if self._place:
            graph.node.append(_split(proto, MASK, [_switch(name) for name in self._place]))
        for given, dtype in ((SCALES, TensorProto.FLOAT), (ZEROS, TensorProto.INT32)) if self._grids else ():
            graph.input.append(helper.make_tensor_value_info(given, dtype, [len(self._grids)]))
            graph.node.append(_split(proto, given, [f"{name}/{given}" for name in self._grids]))
        tensors = {site.name for site in self.sites if site.name in self._found.grids}
        inputs = {i.name for i in self.inputs}
        for name in tensors & inputs:
            graph.node.append(self._rounding(name, f"{name}/inc_tb", name))
        moved = {name: f"{name}/inc_tb" for name in tensors & inputs}
        steps = {id(step.node): step for step in self._reference.steps}
        for node in source.nodes:
            copied = onnx.NodeProto()
            copied.CopyFrom(node)
            copied.input[:] = [moved.get(name, name) for name in node.input]
            made = [name for name in node.output if name in tensors]
            copied.output[:] = [f"{name}/inc_tb" if name in made else name for name in node.output]
            step = steps.get(id(node))
            graph.node.extend(self._switched(copied, step) if step is not None else [copied])
            for name in made:
                graph.node.append(self._rounding(f"{name}/inc_tb", name, name))
        if not any(o.domain == "com.microsoft" for o in proto.opset_import):
            proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        wanted = dict.fromkeys([*self._scores, *source.outputs])
        graph.output.extend(helper.make_empty_tensor_value_info(moved.get(name, name)) for name in wanted)
        return proto

    def _rounding(self, source: str, target: str, site: str) -> onnx.NodeProto:
        return self._choice(site, self._round_trip(source, site, site), source, target)

    def _rounded_reading(self, source: str, target: str, tensor: str, step: Step) -> onnx.NodeProto:
        site, grid = f"{tensor} for {step.name}", self._found.reads[step.index][tensor]
        if grid is not None:
            return self._choice(site, self._round_trip(source, target, tensor), source, target)
        parts = [f"{target}/{part}" for part in ("integer", "scale", "zero", "rounded")]
        nodes = [
            helper.make_node("DynamicQuantizeLinear", [source], parts[:3]),
            helper.make_node("DequantizeLinear", parts[:3], parts[3:]),
        ]
        return self._choice(site, nodes, source, target)

    def _round_trip(self, source: str, name: str, tensor: str) -> list[onnx.NodeProto]:
        """To whole numbers and back, as the inputs say of this tensor."""
        dtype = self._found.grids[tensor].dtype
        version = next(o.version for o in self._reference.model.proto.opset_import if o.domain in ("", "ai.onnx"))
        domain = "com.microsoft" if dtype in _SIXTEEN_BITS or version < 10 else ""
        scale, given = f"{tensor}/{SCALES}", f"{tensor}/{ZEROS}"
        zero, integer, rounded = (f"{name}/inc_tb_{part}" for part in ("zero", "integer", "rounded"))
        return [
            helper.make_node("Cast", [given], [zero], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype))),
            helper.make_node("QuantizeLinear", [source, scale, zero], [integer], domain=domain),
            helper.make_node("DequantizeLinear", [integer, scale, zero], [rounded], domain=domain),
        ]

    def _choice(self, site: str, nodes: Sequence[onnx.NodeProto], source: str, target: str) -> onnx.NodeProto:
        """What these nodes make of the source, or the source as it is."""
        same = f"{target}/inc_tb_same"
        branches = {
            "then_branch": _graph(f"{target}/rounded", nodes, list(nodes[-1].output)),
            "else_branch": _graph(f"{target}/same", [helper.make_node("Identity", [source], [same])], [same]),
        }
        return helper.make_node("If", [_switch(site)], [target], **branches)

    def _switched(self, node: onnx.NodeProto, step: Step) -> list[onnx.NodeProto]:
        nodes = []
        for position, tensor in enumerate(step.node.input):
            if tensor in self._found.reads.get(step.index, {}):
                read = f"{tensor} for {step.name}/inc_tb_{position}"
                nodes.append(self._rounded_reading(node.input[position], read, tensor, step))
                node.input[position] = read
        if step.index not in self._found.constants:
            return [*nodes, node]
        site = f"weights of {step.name}"
        forms = {site: self._found.constants[step.index]}
        own = {position: self._reference.model.constant(node.input[position]) for position in forms[site]}
        if f"{site} at run time" in self._place:
            forms[f"{site} at run time"] = {1: rounded_again(self._reference.model.constant(node.input[1]))}
        return [*nodes, _choose_form(node, list(forms.items()), own, list(node.output))]

    def run(self, batch: Batch, on: Collection[str], ranges: Mapping[str, Range] = _AS_THEY_ARE) -> Outputs:
        """Scores and results with these sites rounded, tensors to these ranges, and everything else in fp32."""
        if self._session is None:
            # Not optimized: then all off equals the fp32 file bit for bit, at most twice as slowly as it ships.
            self._session = self._open()
        mask = np.zeros(len(self._place), bool)
        mask[[self._place[name] for name in on]] = True
        grids = [grid.to(*ranges[name]) if name in ranges else grid for name, grid in self._found.grids.items()]
        given = {
            MASK: mask, SCALES: np.array([grid.step for grid in grids], np.float32),
            ZEROS: np.array([grid.zero_point for grid in grids], np.int32),
        }  # fmt: skip
        session = self._session
        names = [o.name for o in session.get_outputs()]
        arrays = self._in_parts(lambda part: self._run(session, {**part, **given}), self._fitted(batch))
        by_name = dict(zip(names, arrays, strict=True))
        # A rounded input of the model has another name behind its switch.
        read = {name: by_name.get(name, by_name.get(f"{name}/inc_tb")) for name in (*self._scores, *self._results)}
        return Outputs([np.asarray(read[name]) for name in self._scores], [np.asarray(read[n]) for n in self._results])

    def ranges(self, batches: Sequence[Batch]) -> RangesOffered:
        sharing: dict[str, list[str]] = {}
        for site in self.sites:
            if site.grid in self._found.grids and site.name in self._found.grids:
                sharing.setdefault(site.grid, []).append(site.name)
        grids = {owner: self._found.grids[owner] for owner in sharing}
        found = find_ranges(self._reference, self._quantized, grids, [self._fitted(batch) for batch in batches])
        return {tuple(sharing[owner]): offered for owner, offered in found.items()}

    def shifts(self, batches: Sequence[Batch]) -> list[Rewrite]:
        return find_shifts(self._reference, self._found.constants, [self._fitted(batch) for batch in batches])

    def _in_parts(self, run: Callable[[Batch], list[Array]], feeds: Batch) -> list[Array]:
        """The outputs for all samples, of which as many run at once as fit the memory."""
        whole = whole_inputs(self.inputs)
        key = tuple((name, array.shape) for name, array in sorted(feeds.items()))
        if key not in self._fitting:
            self._fitting[key] = fitting(self._reference, feeds, whole, default_budget())
        made = [run(part) for part in split(feeds, None, self._fitting[key], whole)]
        return [np.concatenate(a) if len(made) > 1 and a[0].ndim else a[0] for a in zip(*made, strict=True)]

    def _open(self) -> ort.InferenceSession:
        proto = self.model()
        size = proto.ByteSize()
        if size >= _LARGEST:
            raise ModelError(
                f"{self._reference.model.name}: {size / 1e9:.1f} GB with the rounded weights beside its own; expected "
                "under 2 GB. It is too large to be simulated. Use a strategy without simulation, such as basic."
            )
        return self._reference.model.session(proto)

    def run_real(self, batch: Batch) -> list[Array]:
        """The results of the quantized model itself, with the fused kernels that ship."""
        if self._real is None:
            model = self._quantized.model
            self._real = model.session(model.proto, optimized=True)
        session, points = self._real, self._matching.points
        arrays = self._in_parts(
            lambda part: self._run(session, {points[name]: a for name, a in part.items()}), self._fitted(batch)
        )
        theirs = dict(zip((o.name for o in session.get_outputs()), arrays, strict=True))
        mine = self._reference.model.outputs
        return [theirs.get(name, array) for name, array in zip(mine, arrays, strict=False)]

    def _fitted(self, batch: Batch) -> dict[str, Array]:
        return fitted(batch, self.inputs, free=self._reference.free_inputs)

    def _run(self, session: ort.InferenceSession, feeds: Batch) -> list[Array]:
        known = {i.name for i in session.get_inputs()}
        try:
            return list(session.run(None, {name: array for name, array in feeds.items() if name in known}))
        except Exception as error:  # onnxruntime raises many unrelated classes
            raise cannot_run(self._reference.model.name, error) from error


def _split(proto: onnx.ModelProto, source: str, targets: Sequence[str]) -> onnx.NodeProto:
    """One node for all; the lengths were an attribute before opset 13."""
    ones = [1] * len(targets)
    version = next(o.version for o in proto.opset_import if o.domain in ("", "ai.onnx"))
    if version < 13:
        return helper.make_node("Split", [source], targets, axis=0, split=ones)
    lengths = helper.make_tensor(f"{source}/lengths", TensorProto.INT64, [len(ones)], ones)
    proto.graph.initializer.append(lengths)
    return helper.make_node("Split", [source, lengths.name], targets, axis=0)


def _switch(site: str) -> str:
    return f"{site}/inc_tb_switch"


def _choose_form(
    node: onnx.NodeProto,
    forms: Sequence[tuple[str, Mapping[int, Array]]],
    own: Mapping[int, Array],
    outputs: Sequence[str],
) -> onnx.NodeProto:
    """The op with the constants of the first form that is on, or else with its own."""
    (site, constants), *rest = forms
    if rest:
        inner = [f"{out}/{site}" for out in outputs]
        other = _graph(f"{site}/other", [_choose_form(node, rest, own, inner)], inner)
    else:
        other = _branch(node, own, f"{site}/own")
    branches = {"then_branch": _branch(node, constants, f"{site}/rounded"), "else_branch": other}
    return helper.make_node("If", [_switch(site)], outputs, **branches)


def _branch(node: onnx.NodeProto, constants: Mapping[int, Array], name: str) -> onnx.GraphProto:
    """One branch of an `If`: the op with these constants."""
    inner = onnx.NodeProto()
    inner.CopyFrom(node)
    inner.name = name
    graph = onnx.GraphProto()
    for position, values in constants.items():
        inner.input[position] = f"{name}/{position}"
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values), inner.input[position]))
    inner.output[:] = [f"{name}/{out}" if out else "" for out in node.output]
    graph.MergeFrom(_graph(name, [inner], [out for out in inner.output if out]))
    return graph


def _graph(name: str, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> onnx.GraphProto:
    infos = [helper.make_empty_tensor_value_info(out) for out in outputs]
    return helper.make_graph(nodes, name, [], infos)
