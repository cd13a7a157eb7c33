"""Changes of an fp32 ONNX model that leave what it computes as it is, and make it easier to quantize.

An outlier channel is scaled down where it is made and up where it is read; a constant that only has to be larger than
anything else, such as that of a mask, is brought close to the rest. Only biases that make up for rounded weights
(biases.py) change what it computes, by as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import onnx

from inc_tb.errors import ModelError
from inc_tb.frameworks import scaling
from inc_tb.frameworks.onnx.biases import shift
from inc_tb.frameworks.onnx.clamps import clamped, clamped_at, find_clamps
from inc_tb.frameworks.onnx.constants import Constants
from inc_tb.frameworks.onnx.labels import NONE, Labels, Shape
from inc_tb.frameworks.onnx.links import Link, Links, Sizes, channels_read, gathered, shapes_of
from inc_tb.frameworks.onnx.model import Model, name_nodes, whole
from inc_tb.frameworks.onnx.parts import Part, Parts
from inc_tb.frameworks.onnx.sessions import Session
from inc_tb.frameworks.ops import Array, Batch
from inc_tb.frameworks.registry import describe
from inc_tb.frameworks.scaling import Numbers, Read, Weights, digest_of, holding, is_same
from inc_tb.records import Rewrite, listed

_SCALED = ("equalize", "smooth")


def find_rewrites(source: Any, batches: Iterable[Batch]) -> list[Rewrite]:
    """What could be clamped, and what could be scaled, the most promising first."""
    model, given = Model(source), list(batches)
    if not given:
        return []
    try:
        return _found(source, model, given)
    except ModelError:  # more than ONNX Runtime takes in one piece, say: it is then quantized as it is
        return []


def _found(source: Any, model: Model, given: Sequence[Batch]) -> list[Rewrite]:
    name_nodes(model.proto)
    shapes = shapes_of(model, given[0])
    links = list(Links(model, shapes))
    offers = _Offers(model, shapes, links, given)
    rewrites = [*find_clamps(model, given), *scaling.in_turn(links, offers.of, offers.take)]
    own = _results(model, model.proto, given[0])
    return holding(rewrites, lambda tried: is_same(own, _results(model, apply_rewrites(source, tried), given[0])))


def apply_rewrites(source: Any, rewrites: Sequence[Rewrite]) -> onnx.ModelProto:
    """A copy with these changes; every op has a name, and those that had one have kept it."""
    proto = whole(source)
    nodes = name_nodes(proto)
    model = Model(proto)
    name_nodes(model.proto)
    constants, parts = Constants(model), Parts(model)
    for rewrite in rewrites:
        if rewrite.kind != "bias":
            _check(model, parts, nodes, rewrite, describe(source))
    for rewrite in rewrites:
        if rewrite.kind == "bias":
            shift(constants, model, rewrite, describe(source))
        elif rewrite.kind in _SCALED:
            _scale(constants, parts, model, rewrite)
        else:
            for name, at in clamped(model, rewrite):
                constants[name, at] = clamped_at(constants[name, at], rewrite.values[0])
    return constants.written()


class _Offers:
    """The sizes of everything that a link would change, read in one run."""

    def __init__(
        self, model: Model, shapes: Mapping[str, Shape], links: Sequence[Link], batches: Sequence[Batch]
    ) -> None:
        self._model = model
        self._parts = Parts(model)
        self._constants = Constants(model)
        self._nodes = {node.name: node for node in model.nodes}
        self._ranks = {name: len(shape) for name, shape in shapes.items()}
        self._sizes = Sizes(model, [self._place(name, link) for link in links for name in link.read], batches)

    def _place(self, reader: str, link: Link) -> tuple[str, int, int]:
        """What it reads of the link, the axis of its channels, and its rank."""
        node = self._nodes[reader]
        at = next(at for at, name in enumerate(node.input) if name in link.made)
        return node.input[at], channels_read(node, at), self._ranks[node.input[at]]

    def of(self, link: Link) -> tuple[float, Rewrite] | None:
        read = []
        for name, labels in link.read.items():
            values = self._sizes.values(*self._place(name, link), labels, link.channels)
            if values is None:
                return None
            read.append(Read(self._weights(name, self._parts.read(self._nodes[name])[0], labels, link), values))
        producer = link.producer.name
        own = np.arange(link.channels, dtype=np.int32)
        made = self._weights(producer, self._parts.made(link.producer)[0], own, link)
        found = scaling.offered(scaling.Link(producer, tuple(link.read), link.is_norm), made, read)
        return None if found is None else (found[0], self._told(found[1], link))

    def take(self, rewrite: Rewrite) -> None:
        """What is offered from now on is for the model with this change."""
        _scale(self._constants, self._parts, self._model, rewrite)

    def _weights(self, op: str, part: Part, labels: Labels, link: Link) -> Weights:
        sizes = Weights.of(part.rows(self._constants[op, part.at]))
        largest, energy, number = (
            gathered(join, numbers, labels, link.channels)
            for join, numbers in zip((np.maximum, np.add, np.add), sizes, strict=True)
        )
        return Weights(largest, energy, number)

    def _told(self, rewrite: Rewrite, link: Link) -> Rewrite:
        """With all ops that are changed, and all that it takes to change them."""
        behind = {**link.shifted, **link.read}
        order = [node.name for node in self._model.nodes if node.name in behind]
        factors = np.append(np.array(rewrite.values), 1.0)
        assert factors[NONE] == 1.0
        each = [factors[behind[name]] for name in order]
        is_plain = all(_is_spread(factors[:-1], own) for own in each)
        values = factors[:-1] if is_plain else np.concatenate([factors[:-1], *each])
        ops = [link.producer.name, *order]
        return msgspec.structs.replace(
            rewrite, ops=ops, tensor=link.producer.output[0], values=values.tolist(),
            digest=_digest(self._parts, [self._nodes[op] for op in ops]),
        )  # fmt: skip


def _is_spread(factors: Numbers, own: Numbers) -> bool:
    fits = scaling.is_spread(len(factors), len(own))
    return fits and np.array_equal(scaling.spread(factors, len(own)), own)


def _check(model: Model, parts: Parts, nodes: Mapping[str, onnx.NodeProto], rewrite: Rewrite, name: str) -> None:
    found = [nodes[op] for op in rewrite.ops if op in nodes]
    if rewrite.kind == "clamp":
        fits = len(found) == len(rewrite.ops) > 0 and len(clamped(model, rewrite)) == len(found)
        own = digest_of(model.constant(nodes[op].input[at]) for op, at in clamped(model, rewrite)) if fits else ""
    else:
        is_known = rewrite.kind in _SCALED and len(found) == len(rewrite.ops) > 1
        fits = is_known and all(value > 0 for value in rewrite.values) and _factors(parts, found, rewrite) is not None
        own = _digest(parts, found) if fits else ""
    if not fits or (rewrite.digest and rewrite.digest != own):
        with_these = " with the same weights" if fits else ""
        raise ModelError(
            f"{name}: has no {listed(rewrite.ops)}{with_these} to change so ({rewrite.kind}); expected the model that "
            "the change was found for. Give that one."
        )


def _digest(parts: Parts, nodes: Sequence[onnx.NodeProto]) -> str:
    return digest_of(
        parts.value(node, part) for i, node in enumerate(nodes) for part in parts.of(node, is_first=i == 0)
    )


def _factors(parts: Parts, nodes: Sequence[onnx.NodeProto], rewrite: Rewrite) -> list[Numbers] | None:
    """Those of the features of each op; None where they do not fit."""
    lengths = []
    for i, node in enumerate(nodes):
        own = parts.of(node, is_first=i == 0)
        if not own:
            return None
        lengths.append(own[0].length(parts.shape(node, own[0].at)))
    values = np.array(rewrite.values, np.float64)
    if len(values) == lengths[0] and all(scaling.is_spread(len(values), length) for length in lengths):
        return [scaling.spread(values, length) for length in lengths]
    return np.split(values, np.cumsum(lengths)[:-1]) if len(values) == sum(lengths) else None


def _scale(constants: Constants, parts: Parts, model: Model, rewrite: Rewrite) -> None:
    by_name = {node.name: node for node in model.nodes}
    nodes = [by_name[op] for op in rewrite.ops]
    for i, (node, factors) in enumerate(zip(nodes, _factors(parts, nodes, rewrite) or [], strict=True)):
        for part in parts.of(node, is_first=i == 0):
            constants[node.name, part.at] = part.scaled(constants[node.name, part.at], factors)


def _results(model: Model, proto: onnx.ModelProto, batch: Batch) -> list[Array]:
    return Session(model, proto, arena=False).run(batch)
