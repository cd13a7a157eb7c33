"""What functions and modules are called, however they are called, and which of them only pass values on."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.ao.nn import quantized as nnq
from torch.ao.quantization.fake_quantize import FakeQuantizeBase
from torch.ao.quantization.observer import ObserverBase

from inc_tb.frameworks.torch.grids import is_fake_quantizer

_ALIASES = {
    "iadd": "add", "radd": "add", "isub": "sub", "rsub": "sub", "subtract": "sub", "imul": "mul", "rmul": "mul",
    "multiply": "mul", "truediv": "div", "itruediv": "div", "rtruediv": "div", "true_divide": "div", "divide": "div",
    "concat": "cat", "concatenate": "cat", "bmm": "matmul", "mm": "matmul", "rmatmul": "matmul", "baddbmm": "matmul",
    "native_layer_norm": "layer_norm", "native_group_norm": "group_norm", "linear_dynamic": "linear",
    "_scaled_dot_product_flash_attention_for_cpu": "scaled_dot_product_attention", "convolution": "conv2d",
    "rpow": "pow", "ipow": "pow",
}  # fmt: skip
_PASSING = {
    "view", "reshape", "flatten", "unflatten", "ravel", "transpose", "permute", "t", "T", "mT", "H", "squeeze",
    "unsqueeze", "expand", "expand_as", "contiguous", "clone", "detach", "to", "type", "float", "half", "bfloat16",
    "double", "cpu", "getitem", "narrow", "select", "slice", "split", "split_with_sizes", "chunk", "unbind", "movedim",
    "swapaxes", "swapdims", "repeat", "repeat_interleave", "dropout", "alpha_dropout", "feature_dropout", "identity",
    "alias", "view_as", "reshape_as", "type_as", "requires_grad", "lift_fresh_copy", "to_copy", "data", "tensor_split",
    "lift", "dequantize", "quantize_per_tensor", "quantize_per_channel", "dequantize_per_tensor", "pin_memory",
    "dequantize_per_channel", "quantize_affine", "dequantize_affine", "quantize_per_tensor_dynamic", "native_dropout",
}  # fmt: skip
QUANTIZE = {"quantize_per_tensor", "quantize_per_channel", "quantize_affine", "quantize_per_tensor_dynamic"}
CUTTING = {"getitem", "narrow", "select", "slice", "split", "split_with_sizes", "chunk", "unbind", "tensor_split"}
"""They give on a part only."""
DEQUANTIZE = {"dequantize", "dequantize_per_tensor", "dequantize_per_channel", "dequantize_affine"}
_PASSING_MODULES = (
    nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.Flatten, nn.Unflatten,
    torch.ao.quantization.QuantStub, torch.ao.quantization.DeQuantStub, nnq.Quantize, nnq.DeQuantize,
    FakeQuantizeBase, ObserverBase,
)  # fmt: skip
_CONTAINERS = (
    nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder,
    nn.TransformerEncoderLayer, nn.TransformerDecoderLayer,
)  # fmt: skip
_NEVER_CALLED = (nnq.FloatFunctional, nnq.FXFloatFunctional, nnq.QFunctional)
"""Their methods are, which call functions."""
FOLDABLE = {
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "ReLU", "ReLU6", "relu", "relu6", "Hardtanh", "hardtanh", "batch_norm",
    "LeakyReLU", "leaky_relu", "Tanh", "tanh", "Sigmoid", "sigmoid", "Hardswish", "hardswish", "add", "clamp",
}  # fmt: skip
"""What tools make part of the op before it."""
WEIGHTED = {"conv1d": 1, "conv2d": 1, "conv3d": 1, "conv_transpose1d": 1, "conv_transpose2d": 1, "linear": 1}
"""Functions whose weights are an argument, and which."""
CHANNELS_FIRST = {
    "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "BatchNorm1d", "BatchNorm2d",
    "BatchNorm3d", "GroupNorm", "InstanceNorm2d", "MaxPool2d", "AvgPool2d", "AdaptiveAvgPool2d", "AdaptiveMaxPool2d",
    "conv1d", "conv2d", "conv3d", "conv_transpose2d", "batch_norm", "group_norm", "max_pool2d", "avg_pool2d",
    "adaptive_avg_pool2d", "adaptive_max_pool2d", "instance_norm", "interpolate", "pixel_shuffle",
}  # fmt: skip
CHANNELS_LAST = {
    "Linear", "LayerNorm", "RMSNorm", "Embedding", "Conv1D", "linear", "layer_norm", "rms_norm", "embedding", "matmul",
    "scaled_dot_product_attention", "softmax", "MultiheadAttention", "LSTM", "GRU", "RNN",
}  # fmt: skip


class Kind(NamedTuple):
    name: str
    with_relu: bool = False
    """It does the activation behind it, too."""


def function_kind(function: Any) -> Kind:
    """Of a function, method, operator of torch.ops, or the name of a method."""
    namespace = ""
    if isinstance(function, str):
        name = function
    elif isinstance(function, torch._ops.OpOverload):
        namespace, _, name = function._schema.name.partition("::")
    elif getattr(function, "__name__", "") == "__get__":  # a property, such as x.T
        name = getattr(getattr(function, "__self__", None), "__name__", "")
    else:
        name = getattr(function, "__name__", type(function).__name__)
        namespace = str(getattr(function, "__module__", "") or "").rpartition(".")[2]
    with_relu = namespace == "quantized" and name.endswith("_relu") and name != "leaky_relu"
    name = name.removesuffix("_relu") if with_relu else name
    bare = name.strip("_")
    return Kind(_ALIASES.get(name, _ALIASES.get(bare, bare)), with_relu)


def is_passing(kind: str) -> bool:
    """Whether a function gives on the values that it gets, perhaps rearranged or rounded."""
    return kind in _PASSING


def is_passing_module(module: nn.Module) -> bool:
    return isinstance(module, _PASSING_MODULES) or is_fake_quantizer(module)


def is_leaf(module: nn.Module) -> bool:
    """Whether a module is an op: one of torch's layers, or without any modules inside."""
    if type(module) in _CONTAINERS or isinstance(module, _NEVER_CALLED):
        return False
    home = type(module).__module__
    if home.startswith(
        ("torch.nn.modules.", "torch.ao.nn.", "torch.nn.quantized", "torch.nn.qat", "torch.nn.intrinsic")
    ):
        return True
    return not any(_counts(name, child) for name, child in module.named_children())


def _counts(name: str, child: nn.Module) -> bool:
    return name not in ("_packed_params", "parametrizations") and not is_passing_module(child)


SPREAD = "FSDPModule"


def module_kind(module: nn.Module) -> str:
    """By its class; that of a module whose parameters are spread by FSDP comes behind FSDP's own."""
    names = [kind.__name__ for kind in type(module).__mro__]
    return names[names.index(SPREAD) + 1] if SPREAD in names else names[0]


def has_relu(module: nn.Module) -> bool:
    return "ReLU" in type(module).__name__ and type(module).__name__ not in ("ReLU", "ReLU6", "LeakyReLU", "PReLU")
