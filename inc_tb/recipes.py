"""A set of ops that should stay in fp32, as the configuration of the tools that can do it.

To add one: write a function from names (and patterns that cover them) to text, and append it to RECIPES.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

FP32 = {"activation": {"dtype": ["fp32"]}, "weight": {"dtype": ["fp32"]}}


def inc(ops: Sequence[str], patterns: Sequence[str]) -> str:
    """Neural Compressor 2.x, whose keys are regular expressions."""
    keys = patterns or [re.escape(name) for name in ops]
    entries = ",\n".join(f"    {key!r}: {json.dumps(FP32)}" for key in keys)
    return f"op_name_dict = {{\n{entries},\n}}\nconf = PostTrainingQuantConfig(op_name_dict=op_name_dict)"


def onnxruntime(ops: Sequence[str], _: Sequence[str]) -> str:
    return f"quantize_static(..., nodes_to_exclude={json.dumps(list(ops), indent=4)})"


def nncf(ops: Sequence[str], patterns: Sequence[str]) -> str:
    names = f"patterns={list(patterns)!r}" if patterns else f"names={list(ops)!r}"
    return f"nncf.quantize(..., ignored_scope=nncf.IgnoredScope({names}))"


def plain_json(ops: Sequence[str], _: Sequence[str]) -> str:
    return json.dumps({"fp32": list(ops)})


Recipe = Callable[[Sequence[str], Sequence[str]], str]
RECIPES: Mapping[str, Mapping[str, Recipe]] = {
    "onnx": {"onnxruntime": onnxruntime, "inc": inc, "nncf": nncf, "json": plain_json},
}


def recipes(framework: str, ops: Sequence[str], patterns: Sequence[str] = ()) -> dict[str, str]:
    """Tool -> text that can be pasted there, for the tools that quantize models of this framework."""
    return {tool: make(ops, patterns) for tool, make in RECIPES[framework].items()}
