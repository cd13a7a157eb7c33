"""What a quantized module holds as plain tensors and JSON, bit by bit, and back into a module of the same structure.

Quantized tensors and packed weights have forms of their own, which only pickles keep; here they are taken apart into
integers, scales and zero points.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, fx, nn

from inc_tb.errors import MismatchError, ModelError
from inc_tb.records import plural

Weights = dict[str, Tensor]
_TYPES = (torch.qint8, torch.quint8, torch.qint32)
_PER_TENSOR = (torch.per_tensor_affine, torch.per_tensor_symmetric)
_PER_CHANNEL = (torch.per_channel_affine, torch.per_channel_symmetric)
_NUMBERS = ("scale", "zero_point")
"""What quantized modules hold as a plain number."""


class Stored(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """A tensor of the weights, by its name."""

    name: str


class Grid(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """A quantized tensor: three tensors of the weights; without an axis one scale for all."""

    integers: str
    scales: str
    zero_points: str
    axis: int | None = None


class Items(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    items: list[Value]
    is_tuple: bool = False


class Packed(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """What a kernel has packed for itself, by what it says about its state."""

    kind: str
    state: Value


class Constant(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    value: str | int | float | bool | None = None


Value = Stored | Grid | Items | Packed | Constant


class Place(NamedTuple):
    """Where a module holds something."""

    name: str
    module: nn.Module
    table: dict[str, Any]
    key: str
    is_needed: bool
    """Otherwise it may come to be when the module runs."""

    @property
    def value(self) -> Any:
        return self.table[self.key]


def places(model: nn.Module) -> Iterator[Place]:
    """Everything that a model computes with: parameters, buffers, packed weights and tensors among its attributes."""
    for path, module in model.named_modules():
        is_own = type(module).__module__.startswith("torch.ao.")
        tables = (module._parameters, True), (module._buffers, True), (vars(module), False)
        for table, is_needed in tables:
            for key, value in list(table.items()):
                is_number = is_own and key in _NUMBERS and isinstance(value, int | float)
                if isinstance(value, Tensor | torch.ScriptObject) or is_number:
                    needed = is_needed or is_own or isinstance(value, torch.ScriptObject)
                    yield Place(f"{path}.{key}" if path else key, module, table, key, needed)


def are_equal(first: nn.Module, second: nn.Module) -> bool:
    """Whether two models of one class hold the same, bit by bit."""
    held = [{p.name: list(_parts(p.value)) for p in places(model) if p.is_needed} for model in (first, second)]
    return held[0].keys() == held[1].keys() and all(
        len(parts) == len(held[1][name]) and all(map(_is_same, parts, held[1][name])) for name, parts in held[0].items()
    )


def _parts(value: Any) -> Iterator[Tensor]:
    """Those of torchao are made of others."""
    if type(value) in (Tensor, nn.Parameter) or not hasattr(value, "__tensor_flatten__"):
        yield value.detach()
        return
    for name in value.__tensor_flatten__()[0]:
        yield from _parts(getattr(value, name))


def _is_same(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and bool(torch.equal(first, second))


class Taken:
    """What `places` hold, taken apart."""

    def __init__(self, model: nn.Module) -> None:
        self.weights: Weights = {}
        self._seen: dict[int, tuple[Tensor, str]] = {}
        self.values: dict[str, Value] = {place.name: self._of(place.value, place.name) for place in places(model)}

    def _of(self, value: Any, name: str) -> Value:
        if isinstance(value, Tensor):
            return self._grid(value, name) if value.is_quantized else Stored(self._keep(value, name))
        if isinstance(value, tuple | list):
            items = [self._of(item, f"{name}.{place}") for place, item in enumerate(value)]
            return Items(items, isinstance(value, tuple))
        if isinstance(value, torch.ScriptObject):
            state = value._get_method("__getstate__")()
            return Packed(value._type().name(), self._of(state, f"{name}.state"))
        if value is None or isinstance(value, str | int | float | bool):
            return Constant(value)
        raise ModelError(f"{name} is a {type(value).__qualname__}, which cannot be stored as plain data.")

    def _keep(self, tensor: Tensor, name: str) -> str:
        """Once for all that share it."""
        if id(tensor) not in self._seen:
            while name in self.weights:  # a part of another may be called so
                name += "_"
            self._seen[id(tensor)] = tensor, name
            self.weights[name] = tensor.detach()
        return self._seen[id(tensor)][1]

    def _grid(self, tensor: Tensor, name: str) -> Grid:
        tensor, scheme, axis = tensor.detach(), tensor.qscheme(), None
        if tensor.dtype not in _TYPES or scheme not in (*_PER_TENSOR, *_PER_CHANNEL):
            raise ModelError(f"{name} is a tensor of {tensor.dtype}, {scheme}, which cannot be stored as plain data.")
        if scheme in _PER_TENSOR:
            scales, zero_points = (
                torch.tensor(tensor.q_scale(), dtype=torch.float64),
                torch.tensor(tensor.q_zero_point()),
            )
        else:
            scales, zero_points = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
            axis = tensor.q_per_channel_axis()
        parts = {"integers": tensor.int_repr(), "scales": scales, "zero_points": zero_points}
        return Grid(**{part: self._keep(value, f"{name}.{part}") for part, value in parts.items()}, axis=axis)


def put_back(model: nn.Module, values: dict[str, Value], weights: Weights) -> None:
    """Into a model with the same places."""
    there = {place.name: place for place in places(model)}
    needed = {name for name, place in there.items() if place.is_needed}
    odd = sorted(needed - set(values))
    if odd:
        raise MismatchError(f"it has {odd[0]}, which the saved model has not")
    back = _Back(weights)
    for name, value in values.items():
        if name in there:
            back.put(there[name], value)
        elif not _add(model, name, back.made(value, None)):
            raise MismatchError(f"it has no {name}, which the saved model has")


def _add(model: nn.Module, name: str, value: Any) -> bool:
    """A tensor that came to be when the saved model ran."""
    path, _, key = name.rpartition(".")
    module = dict(model.named_modules()).get(path)
    if module is None or key not in vars(module) or not isinstance(value, Tensor):
        return False
    setattr(module, key, value)
    return True


def _are_alike(first: Any, second: Any) -> bool:
    """Whether two packed states differ in nothing but weights: strides, groups and the like are the model's own."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        is_weight = first.is_quantized or first.is_floating_point()
        is_like = first.dtype == second.dtype and first.shape == second.shape
        return bool(is_like and (is_weight or first.equal(second)))
    if isinstance(first, tuple | list) and type(first) is type(second):
        return len(first) == len(second) and all(map(_are_alike, first, second))
    return type(first) is type(second) and (isinstance(first, torch.ScriptObject) or bool(first == second))


class _Back:
    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._parameters: dict[str, nn.Parameter] = {}

    def put(self, place: Place, value: Value) -> None:
        now, found = place.value, self.made(value, place.value)
        is_parameter = place.table is place.module._parameters
        if isinstance(now, Tensor) and isinstance(found, Tensor):
            if place.is_needed and found.shape != now.shape:
                shapes = ["x".join(map(str, t.shape)) or "a single number" for t in (now, found)]
                raise MismatchError(f"its {place.name} is {shapes[0]}, the saved one {shapes[1]}")
            if is_parameter and isinstance(value, Stored):  # those that were shared are again
                found = self._parameters.setdefault(value.name, nn.Parameter(found, requires_grad=False))
        elif type(found) is not type(now) or is_parameter:
            kinds = type(now).__name__, type(found).__name__
            raise MismatchError(f"its {place.name} is a {kinds[0]}, the saved one a {kinds[1]}")
        place.table[place.key] = found

    def made(self, value: Value, like: Any) -> Any:
        """`like` is what stands there now; packed weights are filled in place."""
        if isinstance(value, Stored):
            return self._weight(value.name)
        if isinstance(value, Constant):
            return value.value
        if isinstance(value, Items):
            others = like if isinstance(like, tuple | list) else ()
            items = [self.made(item, other) for item, other in zip_longest(value.items, others[: len(value.items)])]
            return tuple(items) if value.is_tuple else items
        if isinstance(value, Packed):
            return self._packed(value, like)
        return self._grid(value)

    def _packed(self, value: Packed, like: Any) -> Any:
        if not isinstance(like, torch.ScriptObject) or like._type().name() != value.kind:
            raise MismatchError(f"it has no packed weights of the type {value.kind.rpartition('.')[2]} there")
        state = like._get_method("__getstate__")()
        found = self.made(value.state, state)
        if not _are_alike(state, found):
            raise MismatchError("its packed weights are of another shape or kind than the saved ones")
        like._get_method("__setstate__")(found)
        return like

    def _grid(self, value: Grid) -> Tensor:
        integers, scales = self._weight(value.integers), self._weight(value.scales)
        zero_points = self._weight(value.zero_points)
        if value.axis is not None:
            return torch._make_per_channel_quantized_tensor(integers, scales, zero_points, value.axis)
        return torch._make_per_tensor_quantized_tensor(integers, float(scales), int(zero_points))

    def _weight(self, name: str) -> Tensor:
        if name not in self._weights:
            raise ModelError(f"there is no {name} among the saved weights")
        return self._weights[name]


def numbers_of(graph: fx.Graph) -> Tensor:
    """Scale and zero point of every node that has them in its arguments, in the order of the graph."""
    found = [[float(node.args[1]), float(node.args[2])] for node in _with_numbers(graph)]
    return torch.tensor(found, dtype=torch.float64).reshape(-1, 2)


def put_numbers(model: fx.GraphModule, numbers: Tensor) -> None:
    nodes = list(_with_numbers(model.graph))
    if tuple(numbers.shape) != (len(nodes), 2):
        raise MismatchError(f"it rounds in {plural(len(nodes), 'place')}, the saved one in {len(numbers)}")
    for node, (scale, zero_point) in zip(nodes, numbers.tolist(), strict=True):
        node.args = (node.args[0], scale, int(zero_point), *node.args[3:])
    model.recompile()


def _with_numbers(graph: fx.Graph) -> Iterator[fx.Node]:
    """PT2E's, whose scales are written into the code of the graph."""
    for node in graph.nodes:
        is_rounding = node.op == "call_function" and "quantize_per_tensor" in str(node.target)
        if is_rounding and len(node.args) > 2 and all(isinstance(a, int | float) for a in node.args[1:3]):
            yield node


def outline(model: nn.Module) -> list[str]:
    """What a graph computes, without its numbers; nothing for a model without one."""
    if not isinstance(model, fx.GraphModule):
        return []
    rounding = set(_with_numbers(model.graph))
    found = []
    for node in model.graph.nodes:
        arguments = (node.args[0], *node.args[3:]) if node in rounding else node.args
        found.append(f"{node.op} {node.name} {getattr(node.target, '__name__', node.target)} {arguments} {node.kwargs}")
    return found
