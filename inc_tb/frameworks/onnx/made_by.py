"""How ONNX Runtime was told to quantize a model, as far as the model shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inc_tb.frameworks.formats import Settings
from inc_tb.frameworks.onnx.model import Model
from inc_tb.frameworks.onnx.sites import QUANTIZABLE

_WEIGHTS = ("int8", "uint8")
_ACTIVATIONS = ("int8", "uint8", "int16", "uint16")
_PASSING = {"Gather", "Where", "ArgMax"}
"""Of whose own quantization the table shows nothing where they read no numbers that are rounded."""


def read_settings(quantized: Any, table: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of OnnxRuntimeQuantizer; the reference is quantized with the ops that it has."""
    seen = Settings.seen_in(
        *(table[name] for name in ("act_dtype", "weight_dtype", "weight_granularity", "act_scheme"))
    )
    types = {node.op_type for node in Model(quantized).nodes}
    found: dict[str, Any] = {"preprocess": False, "per_channel": seen.per_channel}
    if seen.dynamic or (seen.is_weight_only and any(name.endswith("Integer") for name in types)):
        found["approach"] = "dynamic"
    elif any(name.startswith("QLinear") for name in types):
        found["format"] = "QOperator"
    if seen.weight in _WEIGHTS:
        found["weight_type"] = seen.weight
    if seen.activation in _ACTIVATIONS and not seen.dynamic:
        found["activation_type"] = seen.activation
    schemes = {str(scheme) for scheme in table["act_scheme"] if scheme}
    found["symmetric"] = schemes == {"symmetric"}
    spared = _spared_types(table)
    if spared and "approach" not in found:
        found["op_types"] = sorted(QUANTIZABLE - spared)
    return found


def _spared_types(table: Mapping[str, Any]) -> set[str]:
    """Types that the tool can quantize, of which it has quantized none here."""
    rounded: dict[str, bool] = {}
    rows = zip(table["type"], table["act_dtype"], table["weight_dtype"], strict=True)
    for kind, activation, weight in rows:
        rounded[str(kind)] = rounded.get(str(kind), False) or bool(activation) or bool(weight)
    return {kind for kind, is_rounded in rounded.items() if kind in QUANTIZABLE - _PASSING and not is_rounded}
