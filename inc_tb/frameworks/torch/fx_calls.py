"""How torch's FX quantization is told which calls of a model stay in fp32.

Modules have paths. A function is known by the module it is called in and by how many calls of it came before, counted
behind the fusion of modules, in which some calls vanish. Methods are known by their names alone: `x.relu()` is kept
everywhere or nowhere.
"""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from inc_tb.frameworks.templates import quoted
from inc_tb.frameworks.torch.followers import is_follower
from inc_tb.frameworks.torch.kinds import function_kind, is_passing, is_passing_module, module_kind
from inc_tb.frameworks.torch.steps import Names

_SIZES = {"size", "getattr", "dim", "numel", "len", "ndimension"}


class FxCall(NamedTuple):
    """A call as FX sees it."""

    statement: tuple[str, tuple[Any, ...]]
    """The method of a qconfig mapping that keeps it in fp32, and what that is given."""
    sources: frozenset[str]
    """Ops that make what it reads."""
    is_follower: bool
    whole: str = ""
    """The module of which it is a call."""
    is_passing: bool = False
    """It only rearranges values, and is no op."""

    def tell(self, mapping: Any) -> None:
        method, given = self.statement
        getattr(mapping, method)(*given, None)

    @property
    def text(self) -> str:
        """As code; "" where none can name the function."""
        method, given = self.statement
        codes = [_code(each) for each in given]
        if not all(codes):
            return ""
        text = f"{method}({', '.join(codes)}, None)"
        if method == "set_object_type":
            text += f"  # every .{given[0]}() of the model, as FX does not tell them apart"
        return text


def fx_calls(model: nn.Module) -> dict[str, FxCall]:
    """By the names of ops; nothing where FX cannot look through the model."""
    # What stands in the way of FX may raise anything; its quantization will say why.
    try:
        own: dict[int, Any] = {id(value): value for value in (*model.parameters(), *model.buffers())}
        traced = fx.symbolic_trace(copy.deepcopy(model, own).eval())
        modules = dict(traced.named_modules())
        left = _left_by_fusion(traced)  # in which modules change
    except Exception:  # noqa: BLE001
        return {}
    names, found, orders = Names(), dict[str, FxCall](), _orders(traced.graph, left)
    made_by: dict[fx.Node, frozenset[str]] = {}
    for node in _with_tensors(traced.graph):
        sources = frozenset(name for argument in node.all_input_nodes for name in made_by.get(argument, ()))
        made_by[node] = sources
        if node.op == "call_module":
            path, kind = str(node.target), module_kind(modules[str(node.target)])
            name, statement, module = names.of_module(path), ("set_module_name", (path,)), path
            is_passed = is_passing_module(modules[path])
        elif node.op in ("call_function", "call_method"):
            kind, path, module = function_kind(node.target).name, _path(node), ""
            name, statement = names.of_function(path, kind), _statement(node, path, orders.get(node, 0))
            is_passed = is_passing(kind)
            if node.op == "call_function" and node not in orders:  # part of a module
                statement = next((found[source].statement for source in sources), statement)
        else:
            continue
        made_by[node] = sources if is_passed else frozenset([name])
        follows = is_passed or is_follower(kind) or "BatchNorm" in kind
        found[name] = FxCall(statement, sources, follows, module, is_passed)
    return found


def _orders(graph: fx.Graph, left: set[str]) -> dict[fx.Node, int]:
    """How many calls of the same function in the same module come before each."""
    counts, found = Counter[tuple[str, Any]](), dict[fx.Node, int]()
    for node in graph.nodes:
        if node.op == "call_function" and node.name in left:
            found[node] = counts[_path(node), node.target]
            counts[_path(node), node.target] += 1
    return found


def _with_tensors(graph: fx.Graph) -> Iterator[fx.Node]:
    """Without nodes that find sizes, or calculate with them: they are no ops, and nothing is read through them."""
    sizes: set[fx.Node] = set()
    for node in graph.nodes:
        inputs, kind = node.all_input_nodes, function_kind(node.target).name
        is_number = getattr(node.target, "__module__", "") == "_operator"
        if (kind in _SIZES and node.op != "call_module") or (is_number and inputs and sizes.issuperset(inputs)):
            sizes.add(node)
        else:
            yield node


def statements(calls: Mapping[str, FxCall]) -> dict[str, str]:
    """What keeps each op in fp32, as code, with what rearranges its result before another op reads it."""
    found = {name: [call.text] for name, call in calls.items() if not call.is_passing}
    for call in calls.values():
        for source in call.sources if call.is_passing else ():
            found[source].append(call.text)
    return {name: "\n".join(dict.fromkeys(filter(None, texts))) for name, texts in found.items()}


def is_made_by_fx(model: nn.Module) -> bool:
    """Rather than exported, with nothing but operators in its graph."""
    if not isinstance(model, fx.GraphModule):
        return False
    return not any(isinstance(node.target, torch._ops.OpOverload) for node in model.graph.nodes)


def _left_by_fusion(traced: fx.GraphModule) -> set[str]:
    """The nodes that FX still has when it counts the calls of functions."""
    from torch.ao.quantization.fx.fuse import fuse

    return {node.name for node in fuse(traced, is_qat=False).graph.nodes}


def _path(node: fx.Node) -> str:
    """The module that it is called in."""
    return next((entry[0] for entry in reversed((node.meta.get("nn_module_stack") or {}).values())), "")


def _statement(node: fx.Node, path: str, order: int) -> tuple[str, tuple[Any, ...]]:
    if node.op == "call_method":
        return "set_object_type", (node.target,)
    return "set_module_name_object_type_order", (path, node.target, order)


def _code(value: Any) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, int):
        return str(value)
    name = str(getattr(value, "__name__", value))
    homes: tuple[tuple[str, Any], ...] = (
        ("operator", operator), ("torch.nn.functional", nn.functional), ("torch", torch),
    )  # fmt: skip
    return next((f"{home}.{name}" for home, place in homes if getattr(place, name, None) is value), "")
