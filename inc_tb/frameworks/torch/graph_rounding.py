"""How the nodes of a graph round: fake-quantize modules, and pairs of quantize and dequantize nodes.

The decomposed ones of torch.export have grids that are fixed, or that a node chooses while the model runs; those of FX
have a scale and a zero point.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from inc_tb.frameworks.ops import Quantization
from inc_tb.frameworks.torch.grids import (
    Rounder,
    dtype_name,
    fake_quantization,
    grid_of,
    is_fake_quantizer,
    limits_of,
    quantization_of,
    rounding_by,
)
from inc_tb.frameworks.torch.kinds import CUTTING, DEQUANTIZE, QUANTIZE, function_kind, is_passing

_FARTHEST = 20
"""How many nodes may be between weights and what has rounded them."""


class GraphRounding:
    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules

    def behind(self, node: fx.Node) -> tuple[Quantization | None, Rounder | None]:
        """How others read what a node makes: through a quantize node or a fake-quantize module."""
        for user in _users(node):
            fake = self._fake(user)
            if fake is not None:
                grid = fake_quantization(fake)
                return grid, rounding_by(fake, grid) if grid is not None else None
            if user.op == "call_function" and function_kind(user.target).name in QUANTIZE:
                found = self._fixed(user)
                if found is not None:
                    return found
        return None, None

    def at_run_time(self, node: fx.Node) -> Rounder | None:
        """Of a dequantize node behind a quantize node whose grid is found from the value itself."""
        while node.op == "call_function" and function_kind(node.target).name not in QUANTIZE and node.all_input_nodes:
            node = node.all_input_nodes[0]
        chooser = next((n for n in _behind(node) if is_choosing(n)), None)
        if chooser is None or not _is_decomposed(node):
            return None
        choose: Any = chooser.target
        quantize: Any = node.target
        dequantize = _inverse(quantize)
        settings, rest = self._constants(chooser), list(node.args[3:])

        def rounded(value: Tensor) -> Tensor:
            grid = choose(value.float(), *settings)
            return dequantize(quantize(value.float(), *grid, *rest), *grid, *rest).to(value.dtype)

        return rounded

    def of_weight(self, node: fx.Node | None, weight: Tensor) -> Quantization | None:
        """By the nearest node before the weights that rounds, or else by their own account."""
        for _ in range(_FARTHEST):
            if node is None:
                break
            fake = self._fake(node)
            if fake is not None:
                return fake_quantization(fake)
            is_rounding = node.op == "call_function" and function_kind(node.target).name in DEQUANTIZE | QUANTIZE
            if is_rounding and _is_decomposed(node):
                constants = self._constants(node)
                if all(c is not None for c in constants):
                    return _decomposed_grid(node, constants)
            node = next(iter(node.all_input_nodes), None)
        return quantization_of(weight)

    def _fixed(self, node: fx.Node) -> tuple[Quantization, Rounder] | None:
        """Of a quantize node whose grid does not change."""
        constants = self._constants(node)
        if any(c is None for c in constants) or "affine" in str(node.target):
            return None
        if not _is_decomposed(node):  # torch.quantize_per_tensor(x, scale, zero_point, dtype)
            scale, zero_point, dtype = float(constants[0]), int(constants[1]), constants[2]
            grid = grid_of(dtype_name(dtype), scale, zero_point, *limits_of(dtype), None)
            return grid, rounding_by(None, grid)
        quantize: Any = node.target
        dequantize = _inverse(quantize)
        return (
            _decomposed_grid(node, constants),
            lambda value: dequantize(quantize(value.float(), *constants), *constants).to(value.dtype),
        )

    def _fake(self, node: fx.Node) -> nn.Module | None:
        found = self._modules.get(str(node.target)) if node.op == "call_module" else None
        return found if is_fake_quantizer(found) else None

    def _constants(self, node: fx.Node) -> list[Any]:
        """What else it is given than the value: numbers, types or stored tensors; None for what is computed."""
        return [self._constant(argument) for argument in node.args[1:]]

    def _constant(self, argument: Any) -> Any:
        if not isinstance(argument, fx.Node):
            return argument
        if argument.op != "get_attr":
            return None
        return attribute(self._modules[""], str(argument.target))


def is_choosing(node: fx.Node) -> bool:
    """Whether it finds a grid for a value while the model runs."""
    return node.op == "call_function" and function_kind(node.target).name.startswith("choose_qparams")


def attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module


def _is_decomposed(node: fx.Node) -> bool:
    """One of torch.ops.quantized_decomposed."""
    return "quantized_decomposed" in str(node.target)


def _decomposed_grid(node: fx.Node, constants: list[Any]) -> Quantization:
    axis = int(constants[2]) if "per_channel" in str(node.target) else None
    low, high, dtype = constants[-3:]
    return grid_of(dtype_name(dtype), constants[0], constants[1], int(low), int(high), axis)


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
