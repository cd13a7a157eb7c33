"""Graph modules of FX and torch.export: the graph says who reads whom, and which module a node came from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from inc_tb.adapters.torch.kinds import (
    CUTTING,
    DEQUANTIZE,
    QUANTIZE,
    WEIGHTED,
    function_kind,
    has_relu,
    is_leaf,
    is_passing,
    is_passing_module,
    module_kind,
)
from inc_tb.adapters.torch.trace import Call, Names, Step, Trace, Visit, call, describe_module, rounding_by
from inc_tb.adapters.torch.values import (
    dtype_name,
    fake_quantization,
    is_fake_quantizer,
    is_real,
    limits_of,
    main_tensor,
    quantization_of,
    rounded_to,
)
from inc_tb.records import GraphNode, Quantization

_VISIT = "_inc_tb_visit"
_EPS_AT = 7
"""Among the arguments of torch.ops.aten.batch_norm."""
_IN_PLACE = {"iadd", "imul", "isub", "itruediv", "ipow", "imatmul", "setitem"}


class _Place(NamedTuple):
    """A node at which the model stops."""

    kind: str
    module: nn.Module | None
    path: str
    with_relu: bool
    computes: fx.Node
    """The node itself, or the one before it of which it is another view."""
    is_leaf: bool = False
    """The end of a module's call, not a function's."""


class _Visitor(nn.Module):  # type: ignore[misc]
    """A node of the instrumented graph, which may run in several threads at once."""

    def __init__(self) -> None:
        super().__init__()
        self.here = threading.local()

    def forward(self, index: int, value: Any, weight: Any) -> Any:
        return self.here.visit(index, value, weight)


class GraphRunner:
    def __init__(self, model: fx.GraphModule, leaves: set[str] | None = None) -> None:
        self.model = model
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._stacks = {node: _stack(node) for node in model.graph.nodes}
        self.leaves = set(leaves) if leaves else self._find_leaves()
        self._places: dict[fx.Node, _Place] = self._find_places()
        self._nodes = list(self._places)
        self._names = self._find_names(self._nodes)
        self._instrumented, self._visitor = self._instrument()
        self.modules = dict(self._instrumented.named_modules(remove_duplicate=False))

    def run(self, inputs: Mapping[str, Tensor], visit: Visit) -> Any:
        def at(index: int, value: Any, weight: Any) -> Any:
            node = self._nodes[index]
            place = self._places[node]
            return visit(Call(self._names.get(node, ""), place.kind, place.module, place.path, (), value))

        return self._run(inputs, at)

    def trace(self, inputs: Mapping[str, Tensor]) -> Trace:
        found = _GraphTracer(self._modules)
        real: list[fx.Node] = []

        def at(index: int, value: Any, weight: Any) -> Any:
            node = self._nodes[index]
            if main_tensor(value) is not None:
                real.append(node)
            found.visit(node, self._places[node], value, weight)
            return value

        self._run(inputs, at)
        self._names = self._find_names(real)  # functions of whole numbers are no ops, and do not count
        found.give_names(self._names)
        found.finish(self.model.graph)
        return found.trace

    def graph(self) -> list[GraphNode]:
        """The ops and what they read, without running anything."""
        names = self._names

        def sources(node: fx.Node, seen: set[fx.Node]) -> Iterator[str]:
            for argument in node.all_input_nodes:
                if argument in names:
                    yield names[argument]
                elif argument not in seen:
                    seen.add(argument)
                    yield from sources(argument, seen)

        return [
            GraphNode(names[node], place.kind, list(dict.fromkeys(sources(node, set()))), "", place.path)
            for node, place in self._places.items()
        ]

    def _run(self, inputs: Mapping[str, Tensor], at: Callable[[int, Any, Any], Any]) -> Any:
        self._visitor.here.visit = at
        return call(self._instrumented, inputs)

    def _find_leaves(self) -> set[str]:
        """Modules that no other module is below of, as far as nodes tell, and which are not the whole model."""
        paths = {path for stack in self._stacks.values() for path, _ in stack if path}
        outer = {".".join(path.split(".")[:i]) for path in paths for i in range(1, path.count(".") + 1)}
        inside = {stack[i][0] for stack in self._stacks.values() for i in range(len(stack) - 1)}
        return {path.partition("@")[0] for path in paths if path not in outer | inside}

    def _find_names(self, nodes: Sequence[fx.Node]) -> dict[fx.Node, str]:
        """As they would be called in a model without a graph."""
        names = Names()
        places = ((node, self._places[node]) for node in nodes)
        return {node: names.of_module(p.path) if p.is_leaf else names.of_function(p.path, p.kind) for node, p in places}

    def _find_places(self) -> dict[fx.Node, _Place]:
        """Where a call ends; the nodes of one leaf module are one call."""
        found: dict[fx.Node, _Place] = {}
        ends = self._find_ends()
        for node in self.model.graph.nodes:
            kind = self._kind(node)
            if node in ends:
                leaf = self._leaf(node)
                path = leaf.partition("@")[0]
                module = self._modules.get(path) if node.op == "call_module" else None
                label = module_kind(module) if module is not None else self._class_of(node) or ends[node].name
                relu = module is not None and has_relu(module)
                found[node] = _Place(label, module, path, relu, ends[node], is_leaf=True)
            elif kind is not None and not self._leaf(node):
                path = self._stacks[node][-1][0].partition("@")[0] if self._stacks[node] else ""
                found[node] = _Place(kind.name, None, path, kind.with_relu, node)
        return found

    def _find_ends(self) -> dict[fx.Node, fx.Node]:
        """For each call of a leaf module the node that others read, and the last one before it that computes."""
        found: dict[fx.Node, fx.Node] = {}
        last: dict[str, fx.Node] = {}
        ends: dict[str, fx.Node] = {}
        for node in self.model.graph.nodes:
            leaf, kind = self._leaf(node), self._kind(node)
            if node.op == "call_module":
                if kind is not None:
                    found[node] = node
                continue
            if leaf and kind is not None:
                last[leaf] = node
            # The first, where a module returns several; attention's own result comes behind its weights.
            is_open = leaf not in ends or self._class_of(node) == "MultiheadAttention"
            if leaf in last and is_open and self._is_read_outside(node, leaf):
                found.pop(ends.get(leaf, node), None)
                ends[leaf] = node
                found[node] = last[leaf]
        return found

    def _is_read_outside(self, node: fx.Node, leaf: str) -> bool:
        """Of a leaf module; nodes that round in between belong to no module."""
        for user in node.users:
            if user.op == "output" or (self._leaf(user) != leaf and self._stacks[user]):
                return True
            if not self._stacks[user] and self._is_read_outside(user, leaf):
                return True
        return False

    def _leaf(self, node: fx.Node) -> str:
        """The leaf module that a node belongs to, perhaps with the number of its call (@1)."""
        if node.op == "call_module":
            return str(node.target)
        for path, _ in reversed(self._stacks[node]):
            if path.partition("@")[0] in self.leaves:
                return path
        return ""

    def _class_of(self, node: fx.Node) -> str:
        leaf = self._leaf(node)
        found = next((kind for path, kind in self._stacks[node] if path == leaf), "")
        return found.rpartition(".")[2]

    def _kind(self, node: fx.Node) -> Any:
        """None for nodes that compute nothing."""
        if node.op == "call_module":
            module = self._modules.get(str(node.target))
            if module is None or str(node.target).endswith("_guards_fn") or is_passing_module(module):
                return None
            return function_kind(module_kind(module)) if is_leaf(module) else None
        if node.op not in ("call_function", "call_method"):
            return None
        kind = function_kind(node.target)
        is_helper = kind.name.startswith(("choose_qparams", "sym_", "assert")) or kind.name == "getattr"
        return None if is_passing(kind.name) or is_helper else kind

    def op_of(self, node: fx.Node) -> str:
        """The op that a node belongs to; "" where it is in none."""
        if node in self._names:
            return self._names[node]
        leaf = self._leaf(node)
        return next((n for end, n in self._names.items() if leaf and self._leaf(end) == leaf), "")

    def kind_of(self, op: str) -> str:
        return next(self._places[node].kind for node, name in self._names.items() if name == op)

    def copied(self) -> tuple[fx.GraphModule, dict[fx.Node, fx.Node]]:
        """A graph of its own with the same modules, and where each node is in it."""
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        output = graph.graph_copy(self.model.graph, copies)
        graph.output(output)
        graph.set_codegen(self.model.graph._codegen)
        made = fx.GraphModule(self.model, graph)
        for name in ("_in_spec", "_out_spec"):
            if hasattr(self.model, name):
                setattr(made, name, getattr(self.model, name))
        made.graph.output_node().meta.update(self.model.graph.output_node().meta)
        return made, copies

    def _instrument(self) -> tuple[fx.GraphModule, _Visitor]:
        made, copies = self.copied()
        visitor = _Visitor()
        made.add_submodule(_VISIT, visitor)
        for index, (node, place) in enumerate(self._places.items()):
            copy = copies[node]
            weight = copies.get(_weight_node(place)) if _weight_node(place) is not None else None
            with made.graph.inserting_after(copy):
                visit = made.graph.call_module(_VISIT, (index, copy, weight))
            copy.replace_all_uses_with(visit, delete_user_cb=lambda user, own=visit: user is not own)
        made.recompile()
        return made, visitor


def _weight_node(place: _Place) -> fx.Node | None:
    node = place.computes
    if node.op != "call_function":
        return None
    kind = function_kind(node.target).name
    at = 0 if kind == "embedding" and isinstance(node.target, torch._ops.OpOverload) else WEIGHTED.get(kind, None)
    if at is None or len(node.args) <= at:
        return None
    found = node.args[at]
    return found if isinstance(found, fx.Node) else None


def _stack(node: fx.Node) -> list[tuple[str, str]]:
    """The modules around a node, outermost first: path and class."""
    found = []
    for key, entry in (node.meta.get("nn_module_stack") or {}).items():
        path, kind = entry[0], entry[1]
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        clean = path.removeprefix("L['self'].").removeprefix("L__self__.")
        again = str(key).rpartition("@")[2] if "@" in str(key) else ""
        place = "" if clean in ("L['self']", "L__self__") else clean.partition("@")[0]
        found.append((f"{place}@{again}" if again else place, name))
    return found


class _GraphTracer:
    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self.trace = Trace()
        self._modules = modules
        self._step_of: dict[fx.Node, int] = {}
        self._inside: dict[fx.Node, int] = {}

    def visit(self, node: fx.Node, place: _Place, value: Any, weight: Any) -> None:
        self._note_mutations(node)
        result = main_tensor(value)
        if result is None or not is_real(result):
            return
        steps = self.trace.steps
        step = Step(len(steps), "", place.kind, place.path, place.module, shape=tuple(result.shape))
        step.with_relu = place.with_relu
        computes = place.computes
        if function_kind(computes.target).name == "batch_norm" and len(computes.args) > _EPS_AT:
            step.eps = float(computes.args[_EPS_AT])
        step.quantization = quantization_of(result)
        self._find_sources(node, place, step)
        is_live = bool(step.sources or step.reads)
        if place.module is not None:
            describe_module(step, place.module)
        if isinstance(weight, Tensor):
            step.weight = weight.detach()
            step.weight_quantization = self._quantization_of_weight(_weight_node(place), weight)
        if not is_live and not place.is_leaf:
            return
        steps.append(step)
        self._step_of[node] = step.index

    def give_names(self, names: Mapping[fx.Node, str]) -> None:
        for node, index in self._step_of.items():
            self.trace.steps[index].name = names[node]

    def _note_mutations(self, node: fx.Node) -> None:
        for changed in _changed_in_place(node, self._modules):
            for origin in self._origins(changed, set())[0]:
                self.trace.steps[origin].is_mutated = True

    def finish(self, graph: fx.Graph) -> None:
        """Now that all steps are known: who rounds what."""
        for node, index in self._step_of.items():
            step = self.trace.steps[index]
            if step.quantization is None:
                step.quantization, step.rounding = self._rounding_behind(node)
        for node in graph.nodes:
            if node.op == "placeholder":
                quantization, rounding = self._rounding_behind(node)
                if quantization is not None and rounding is not None:
                    self.trace.inputs[str(node.target)] = quantization
                    self.trace.rounding[str(node.target)] = rounding
        origins: set[int] = set()
        for node in graph.output_node().all_input_nodes:
            origins.update(self._origins(node, set())[0])
        self.trace.outputs = sorted(origins)

    def _find_sources(self, node: fx.Node, place: _Place, step: Step) -> None:
        sources: set[int] = set()
        reads: set[str] = set()
        seen: set[fx.Node] = set()
        for argument in node.all_input_nodes:
            found, inputs, dynamic = self._origins(argument, seen)
            sources |= found
            reads |= inputs
            if dynamic:
                step.is_dynamic = True
                step.reading = step.reading or self._dynamic(argument)
        step.sources, step.reads = sorted(sources), sorted(reads)

    def _origins(self, node: fx.Node, seen: set[fx.Node]) -> tuple[set[int], set[str], bool]:
        """Steps and inputs that a value comes from, through nodes that are no steps."""
        if node in self._step_of:
            return {self._step_of[node]}, set(), False
        if node.op == "placeholder":
            value = node.meta.get("val")
            return set(), {str(node.target)} if value is None or is_real(value) or True else set(), False
        sources: set[int] = set()
        inputs: set[str] = set()
        dynamic = function_kind(node.target).name.startswith("choose_qparams") if node.op == "call_function" else False
        seen.add(node)
        for argument in node.all_input_nodes:
            if argument not in seen:
                found, named, is_dynamic = self._origins(argument, seen)
                sources |= found
                inputs |= named
                dynamic |= is_dynamic
        return sources, inputs, dynamic

    def _rounding_behind(self, node: fx.Node) -> tuple[Quantization | None, Callable[[Tensor], Tensor] | None]:
        """How others read what a node makes: through a quantize node or a fake-quantize module."""
        for user in _users(node):
            fake = self._modules.get(str(user.target)) if user.op == "call_module" else None
            if fake is not None and is_fake_quantizer(fake):
                grid = fake_quantization(fake)
                return grid, rounding_by(fake, grid) if grid is not None else None
            if user.op == "call_function" and function_kind(user.target).name in QUANTIZE:
                found = self._static(user)
                if found is not None:
                    return found
        return None, None

    def _static(self, node: fx.Node) -> tuple[Quantization, Callable[[Tensor], Tensor]] | None:
        """Of a quantize node whose grid is fixed."""
        constants = [self._constant(argument) for argument in node.args[1:]]
        if any(c is None for c in constants) or "affine" in str(node.target):
            return None
        if "quantized_decomposed" not in str(node.target):  # torch.quantize_per_tensor(x, scale, zero_point, dtype)
            scale, zero_point, dtype = float(constants[0]), int(constants[1]), constants[2]
            low, high = limits_of(dtype)
            grid = rounded_to(dtype_name(dtype), scale, zero_point, low, high, None)
            return grid, rounding_by(None, grid)
        target: Any = node.target
        overload = _inverse(target)
        is_channel = "per_channel" in str(target)
        axis = int(constants[2]) if is_channel else None
        low, high, dtype = constants[-3:]
        quantization = rounded_to(dtype_name(dtype), constants[0], constants[1], int(low), int(high), axis)
        return quantization, lambda v: overload(target(v.float(), *constants), *constants).to(v.dtype)

    def _dynamic(self, node: fx.Node) -> Callable[[Tensor], Tensor] | None:
        """Of a dequantize node behind a quantize node whose grid is found from the value itself."""
        while node.op == "call_function" and function_kind(node.target).name not in QUANTIZE and node.all_input_nodes:
            node = node.all_input_nodes[0]
        chooser = next((n for n in _behind(node) if function_kind(n.target).name.startswith("choose_qparams")), None)
        if chooser is None or "quantized_decomposed" not in str(node.target):
            return None
        choose: Any = chooser.target
        quantize: Any = node.target
        dequantize = _inverse(quantize)
        settings, rest = [self._constant(a) for a in chooser.args[1:]], list(node.args[3:])

        def rounded(value: Tensor) -> Tensor:
            grid = choose(value.float(), *settings)
            return dequantize(quantize(value.float(), *grid, *rest), *grid, *rest).to(value.dtype)

        return rounded

    def _constant(self, argument: Any) -> Any:
        """A number, type or stored tensor; None for what is computed."""
        if not isinstance(argument, fx.Node):
            return argument
        if argument.op != "get_attr":
            return None
        return attribute(self._modules[""], str(argument.target))

    def _quantization_of_weight(self, node: fx.Node | None, weight: Tensor) -> Quantization | None:
        seen = 0
        while node is not None and seen < 20:
            seen += 1
            if node.op == "call_module":
                fake = self._modules.get(str(node.target))
                if fake is not None and is_fake_quantizer(fake):
                    return fake_quantization(fake)
            if node.op == "call_function":
                kind = function_kind(node.target).name
                if kind in DEQUANTIZE | QUANTIZE and "quantized_decomposed" in str(node.target):
                    constants = [self._constant(argument) for argument in node.args[1:]]
                    numbers = [c for c in constants if c is not None]
                    if len(numbers) == len(constants):
                        axis = int(constants[2]) if "per_channel" in str(node.target) else None
                        low, high, dtype = constants[-3:]
                        return rounded_to(dtype_name(dtype), constants[0], constants[1], int(low), int(high), axis)
            node = next(iter(node.all_input_nodes), None)
        return quantization_of(weight)


def _inverse(quantize: Any) -> Any:
    """The dequantize operator that belongs to a quantize operator of torch.ops.quantized_decomposed."""
    name = quantize._schema.name.partition("::")[2].replace("quantize", "dequantize", 1)
    return getattr(getattr(torch.ops.quantized_decomposed, name), quantize._overloadname)


def _behind(node: fx.Node) -> Iterator[fx.Node]:
    """The functions that a quantize node gets its grid from."""
    for argument in node.args[1:3]:
        while isinstance(argument, fx.Node) and argument.op == "call_function":
            yield argument
            argument = next(iter(argument.all_input_nodes), None)


def _changed_in_place(node: fx.Node, modules: Mapping[str, nn.Module]) -> list[fx.Node]:
    """What a node reads and changes."""
    reads = node.all_input_nodes
    if node.op == "call_module":
        return reads[:1] if getattr(modules.get(str(node.target)), "inplace", False) else []
    if isinstance(node.target, torch._ops.OpOverload):
        return reads[:1] if node.target._schema.is_mutable else []
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    is_changing = (name.endswith("_") and not name.endswith("__")) or name in _IN_PLACE or node.kwargs.get("inplace")
    return reads[:1] if is_changing else []


def _users(node: fx.Node) -> Iterator[fx.Node]:
    """Who reads a value, also in another shape; the direct ones first."""
    waiting, seen = list(node.users), set()
    while waiting:
        user = waiting.pop(0)
        if user in seen:
            continue
        seen.add(user)
        yield user
        is_call = user.op in ("call_function", "call_method")
        kind = function_kind(user.target).name if is_call else ""
        if is_call and is_passing(kind) and kind not in QUANTIZE | DEQUANTIZE | CUTTING:
            waiting.extend(user.users)


def attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module


__all__: Sequence[str] = ("GraphRunner", "attribute")
