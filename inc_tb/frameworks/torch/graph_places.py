"""Where in a graph of FX or torch.export the calls of a model end: the nodes of one leaf module are one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import fx, nn

from inc_tb.frameworks.torch.kinds import (
    WEIGHTED,
    Kind,
    function_kind,
    has_relu,
    is_leaf,
    is_passing,
    is_passing_module,
    module_kind,
)
from inc_tb.frameworks.torch.steps import Names


class Place(NamedTuple):
    """A node at which the model stops."""

    kind: str
    module: nn.Module | None
    path: str
    with_relu: bool
    computes: fx.Node
    """The node itself, or the one before it of which it is another view."""
    is_leaf: bool = False
    """The end of a module's call, not a function's."""

    @property
    def weight_node(self) -> fx.Node | None:
        """Where a function gets its weights from."""
        node = self.computes
        if node.op != "call_function":
            return None
        kind = function_kind(node.target).name
        at = 0 if kind == "embedding" and isinstance(node.target, torch._ops.OpOverload) else WEIGHTED.get(kind)
        if at is None or len(node.args) <= at:
            return None
        found = node.args[at]
        return found if isinstance(found, fx.Node) else None


class Places:
    """The graph says which module a node came from, and how often that was called (path@1)."""

    def __init__(self, model: fx.GraphModule, leaves: set[str] | None = None) -> None:
        """`leaves` are the ops of another model, which are ops here, too, whatever is inside."""
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self._nodes = list(model.graph.nodes)
        self._stacks = {node: _stack(node) for node in self._nodes}
        self.leaves = set(leaves) if leaves else self._find_leaves()
        self.at: dict[fx.Node, Place] = self._find_places()

    def names(self, nodes: Sequence[fx.Node]) -> dict[fx.Node, str]:
        """As they would be called in a model without a graph."""
        names = Names()
        places = ((node, self.at[node]) for node in nodes)
        return {node: names.of_module(p.path) if p.is_leaf else names.of_function(p.path, p.kind) for node, p in places}

    def leaf(self, node: fx.Node) -> str:
        """The leaf module that a node belongs to, perhaps with the number of its call (@1)."""
        if node.op == "call_module":
            return str(node.target)
        for path, _ in reversed(self._stacks[node]):
            if path.partition("@")[0] in self.leaves:
                return path
        return ""

    def _find_leaves(self) -> set[str]:
        """Modules that no other module is below of, as far as nodes tell, and which are not the whole model."""
        paths = {path for stack in self._stacks.values() for path, _ in stack if path}
        outer = {".".join(path.split(".")[:i]) for path in paths for i in range(1, path.count(".") + 1)}
        inside = {stack[i][0] for stack in self._stacks.values() for i in range(len(stack) - 1)}
        return {path.partition("@")[0] for path in paths if path not in outer | inside}

    def _find_places(self) -> dict[fx.Node, Place]:
        found: dict[fx.Node, Place] = {}
        ends = self._find_ends()
        for node in self._nodes:
            kind = self._kind(node)
            if node in ends:
                path = self.leaf(node).partition("@")[0]
                module = self.modules.get(path) if node.op == "call_module" else None
                label = module_kind(module) if module is not None else self._class_of(node) or ends[node].name
                relu = module is not None and has_relu(module)
                found[node] = Place(label, module, path, relu, ends[node], is_leaf=True)
            elif kind is not None and not self.leaf(node):
                path = self._stacks[node][-1][0].partition("@")[0] if self._stacks[node] else ""
                found[node] = Place(kind.name, None, path, kind.with_relu, node)
        return found

    def _find_ends(self) -> dict[fx.Node, fx.Node]:
        """For each call of a leaf module the node that others read, and the last one before it that computes."""
        found: dict[fx.Node, fx.Node] = {}
        last: dict[str, fx.Node] = {}
        ends: dict[str, fx.Node] = {}
        for node in self._nodes:
            leaf, kind = self.leaf(node), self._kind(node)
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
            if user.op == "output" or (self.leaf(user) != leaf and self._stacks[user]):
                return True
            if not self._stacks[user] and self._is_read_outside(user, leaf):
                return True
        return False

    def _class_of(self, node: fx.Node) -> str:
        leaf = self.leaf(node)
        found = next((kind for path, kind in self._stacks[node] if path == leaf), "")
        return found.rpartition(".")[2]

    def _kind(self, node: fx.Node) -> Kind | None:
        """None for nodes that compute nothing."""
        if node.op == "call_module":
            module = self.modules.get(str(node.target))
            if module is None or str(node.target).endswith("_guards_fn") or is_passing_module(module):
                return None
            return function_kind(module_kind(module)) if is_leaf(module) else None
        if node.op not in ("call_function", "call_method"):
            return None
        kind = function_kind(node.target)
        is_helper = kind.name.startswith(("choose_qparams", "sym_", "assert")) or kind.name == "getattr"
        return None if is_passing(kind.name) or is_helper else kind


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
