"""How tensors and modules are quantized by their own account, and rounding to such a grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.ao.quantization.fake_quantize import FakeQuantizeBase

from inc_tb.frameworks.ops import Array, Quantization

Rounder = Callable[[Tensor], Tensor]
_LIMITS = {
    "int8": (-128, 127), "uint8": (0, 255), "qint8": (-128, 127), "quint8": (0, 255),
    "qint32": (-(2**31), 2**31 - 1), "int32": (-(2**31), 2**31 - 1),
    "int16": (-(2**15), 2**15 - 1), "uint16": (0, 2**16 - 1),
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in range(1, 8)},
    **{f"uint{bits}": (0, 2**bits - 1) for bits in range(1, 8)},
}  # fmt: skip


def quantization_of(tensor: Tensor) -> Quantization | None:
    """How a tensor is quantized by its own account: torch's quantized types, and torchao's tensors."""
    if tensor.is_quantized:
        name = str(tensor.dtype).removeprefix("torch.").removeprefix("q")
        low, high = _LIMITS[name]
        if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            return grid_of(name, tensor.q_scale(), tensor.q_zero_point(), low, high, None)
        scales, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
        if zeros.dtype.is_floating_point:  # quantized embeddings have zero points that are no whole numbers
            return Quantization(name, None, None, low, high, tensor.q_per_channel_axis())
        return grid_of(name, scales, zeros, low, high, tensor.q_per_channel_axis())
    if type(tensor) in (Tensor, nn.Parameter):
        return None
    inner = getattr(tensor, "original_weight_tensor", tensor)  # LinearActivationQuantizedTensor
    data = getattr(inner, "qdata", None)
    if isinstance(getattr(inner, "scale", None), Tensor) and isinstance(data, Tensor):
        return _of_torchao(inner, data)
    return None


def _of_torchao(tensor: Any, data: Tensor) -> Quantization:
    target = str(getattr(tensor, "target_dtype", data.dtype)).removeprefix("torch.")
    low, high = _LIMITS.get(target, (-128, 127))
    block = list(getattr(tensor, "block_size", []) or [])
    shape = list(tensor.shape)
    zeros = tensor.zero_point if isinstance(getattr(tensor, "zero_point", None), Tensor) else None
    scales = tensor.scale.reshape(-1)
    if scales.numel() == 1:
        return grid_of(target, scales, zeros, low, high, None)
    per_row = bool(shape) and scales.numel() == shape[0] and (not block or block[1:] == shape[1:])
    if per_row:
        return grid_of(target, scales, zeros, low, high, 0)
    return Quantization(target, None, None, low, high, 0, block[-1] if block else shape[-1])


def fake_quantization(module: nn.Module) -> Quantization | None:
    """Of a fake-quantize module, torch's or torchao's; None where it has seen nothing yet."""
    config = getattr(module, "config", None)
    if config is not None and hasattr(config, "dtype"):  # torchao's
        name = str(config.dtype).rpartition(".")[2].lower()
        return Quantization(name, None, None, *_LIMITS.get(name, (-128, 127)), 0, _group(config))
    scale, zeros = getattr(module, "scale", None), getattr(module, "zero_point", None)
    if not isinstance(scale, Tensor) or not scale.numel() or not bool((scale > 0).all()):
        return None
    low, high = getattr(module, "quant_min", None), getattr(module, "quant_max", None)
    name = str(getattr(module, "dtype", "int8")).removeprefix("torch.").removeprefix("q")
    if low is None or high is None:
        low, high = _LIMITS.get(name, (-128, 127))
    axis = getattr(module, "ch_axis", -1)
    return grid_of(name, scale, zeros, int(low), int(high), axis if scale.numel() > 1 and axis >= 0 else None)


def _group(config: Any) -> int:
    """How many weights share a scale; 0 for all of a channel."""
    try:
        return int(config.group_size)
    except (AttributeError, ValueError, TypeError):  # torchao refuses to say it for other granularities
        return 0


def is_fake_quantizer(module: Any) -> bool:
    """Torch's and torchao's, whose classes have no common base."""
    if isinstance(module, FakeQuantizeBase):
        return True
    return isinstance(module, nn.Module) and "FakeQuant" in type(module).__name__ and not hasattr(module, "weight")


def grid_of(name: str, scale: Any, zeros: Any, low: int, high: int, axis: int | None) -> Quantization:
    scales = _numbers(scale).astype(np.float32).ravel()
    zero_points = np.broadcast_to(_numbers(0 if zeros is None else zeros).astype(np.int64).ravel(), scales.shape)
    shape = () if scales.size == 1 else scales.shape
    return Quantization(name, scales.reshape(shape), zero_points.reshape(shape), low, high, axis)


def _numbers(value: Any) -> Array:
    return np.asarray(value.detach().cpu().double().numpy() if isinstance(value, Tensor) else value)


def found_at_run_time(dtype: str) -> Quantization:
    return Quantization(dtype, None, None, *_LIMITS.get(dtype, (0, 255)))


def limits_of(dtype: torch.dtype) -> tuple[int, int]:
    return _LIMITS[dtype_name(dtype)]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.").removeprefix("q")


def fake_quantized(tensor: Tensor, q: Quantization) -> Tensor:
    """Rounded to the grid and back, in float, as torch rounds."""
    if q.scale is None or q.zero_point is None:
        raise ValueError("a grid that is found at run time cannot be applied")
    scale, zeros = (torch.tensor(np.asarray(v), dtype=torch.float32) for v in (q.scale, q.zero_point))
    if q.axis is not None and scale.numel() > 1:
        shape = [1] * tensor.ndim
        shape[q.axis] = -1
        scale, zeros = scale.reshape(shape), zeros.reshape(shape)
    rounded = torch.clamp(torch.round(tensor.float() * (1 / scale)) + zeros, q.low, q.high)
    return ((rounded - zeros) * scale).to(tensor.dtype)


def rounding_by(fake: Any, quantization: Quantization) -> Rounder:
    """What a fake quantizer does, or else a quantization to this grid."""
    if is_fake_quantizer(fake):
        return lambda value: fake(value.float()).to(value.dtype)
    return lambda value: fake_quantized(value, quantization)
