"""Which nodes of the quantized network compute which nodes of the reference.

quantize_net keeps the names: of a node that it quantizes behind `quantized_`, of those that oneDNN joins inside of the
joined node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from inc_tb.errors import MismatchError
from inc_tb.frameworks.mxnet.graph import CONVERSIONS, QUANTIZE, REQUANTIZE, Entry, Graph, Node


@dataclass(frozen=True)
class Match:
    node: Node
    """Of the quantized network."""
    steps: list[Node]
    """Of the reference, in order; the last gives what `node` gives."""

    @cached_property
    def main(self) -> Node:
        """The one to name it by: that with the weights, if there is one."""
        return next((step for step in self.steps if step.weighted is not None), self.steps[0])

    @property
    def end(self) -> Node:
        return self.steps[-1]


class Matching:
    def __init__(self, reference: Graph, quantized: Graph) -> None:
        self.reference, self.quantized = reference, quantized
        self.input_names = self._match_inputs()
        """Of the reference -> of the quantized network."""
        self.matches = self._match_nodes()
        """In the order of the quantized network."""
        self.owner = {step.index: match for match in self.matches for step in match.steps}
        self.points = self._find_points()
        """What is the same in both, without conversions."""

    def _match_inputs(self) -> dict[str, str]:
        mine, theirs = self.reference.inputs, self.quantized.inputs
        if set(mine) == set(theirs):
            return {name: name for name in mine}
        if len(mine) != len(theirs):
            raise MismatchError(
                f"{self.reference.name} has the inputs {mine}, {self.quantized.name} has {theirs}; expected the same. "
                "Give the fp32 model, and what it became by quantization."
            )
        return dict(zip(mine, theirs, strict=True))

    def _match_nodes(self) -> list[Match]:
        mine = {part.name: step for step in self.reference.steps for part in step.parts}
        theirs = [part.name for node in self.quantized.steps for part in node.parts]
        renamed = _renamed(list(mine), theirs)
        found = []
        for node in self.quantized.steps:
            indices = [mine[renamed[p.name]].index for p in node.parts if renamed.get(p.name) in mine]
            chosen = [self.reference.nodes[index] for index in dict.fromkeys(indices)]
            # A node of the reference may be joined itself: it must end where this one ends.
            if chosen and chosen[-1].parts[-1].name == renamed.get(node.parts[-1].name):
                found.append(Match(node, chosen))
        if not found:
            raise MismatchError(
                f"{self.quantized.name} has no op in common with {self.reference.name}; expected the same names. "
                "Give the fp32 model, and what it became by quantization."
            )
        return found

    def _find_points(self) -> dict[Entry, Entry]:
        variables = self.reference.variables, self.quantized.variables
        found = {Entry(variables[0][a]): Entry(variables[1][b]) for a, b in self.input_names.items()}
        for match in self.matches:
            for at in range(match.end.outputs):
                mine, theirs = Entry(match.end.index, at), Entry(match.node.index, at)
                is_used = at == 0 or self.reference.readers[mine] or mine in self.reference.heads
                if is_used and (at == 0 or not match.node.is_integer):
                    found[mine] = theirs
        return found

    def root(self, entry: Entry) -> Entry:
        """What an entry of the quantized network is another form of."""
        node = self.quantized.nodes[entry.node]
        return self.root(node.inputs[0]) if node.type in CONVERSIONS else entry

    def forms(self, root: Entry) -> list[Entry]:
        """What to ask for to have a value of the quantized network: itself, or whole numbers and their range."""
        node = self.quantized.nodes[root.node]
        if not node.is_integer or root.at:
            return [root]
        readers = self.quantized.readers[root]
        final = readers[0] if len(readers) == 1 and readers[0].type == REQUANTIZE else node
        return [Entry(final.index, at) for at in range(3)]

    def quantizer_of(self, root: Entry) -> Node | None:
        """Of a value that is not whole numbers, the node that makes it so for its readers."""
        return next((n for n in self.quantized.readers[root] if n.type in QUANTIZE), None)

    def is_static(self, entry: Entry) -> bool:
        """Whether the range of these whole numbers is known before the network runs."""
        node = self.quantized.nodes[entry.node]
        if "min_calib_range" in node.attrs:
            return True
        if node.type in QUANTIZE or node.type == REQUANTIZE:
            return False
        return all(self.is_static(e) for e in self.quantized.values(node) if self.quantized.nodes[e.node].is_integer)


def _renamed(mine: Sequence[str], theirs: Sequence[str]) -> Mapping[str, str]:
    """Names of the quantized network -> of the reference: gluon gives each instance of a network a number."""
    if set(mine) & set(theirs):
        return {name: name for name in theirs}
    ours, others = _common_start(mine), _common_start(theirs)
    return {name: ours + name[len(others) :] for name in theirs}


def _common_start(names: Sequence[str]) -> str:
    """Up to an underscore."""
    first, last = min(names), max(names)
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[: first.rfind("_", 0, length) + 1]
