from __future__ import annotations

import ast
import json
import re

from inc_tb.recipes import recipes

OPS = ["/encoder/layer.0/Add", "/encoder/layer.1/Add"]


def test_each_tool_gets_the_names() -> None:
    texts = recipes("onnx", OPS)
    assert set(texts) == {"onnxruntime", "inc", "nncf", "json"}
    assert json.loads(texts["json"]) == {"fp32": OPS}
    for text in texts.values():
        ast.parse(text)  # can be pasted into Python
        assert all(name in text or re.escape(name) in text.replace("\\\\", "\\") for name in OPS)


def test_neural_compressor_gets_patterns_which_match_the_names() -> None:
    module = ast.parse(recipes("onnx", OPS, [r"/encoder/layer\.\d+/Add"])["inc"])
    keys = ast.literal_eval(module.body[0].value)
    assert list(keys.values()) == [{"activation": {"dtype": ["fp32"]}, "weight": {"dtype": ["fp32"]}}]
    assert all(re.match(pattern, name) for name in OPS for pattern in keys)
