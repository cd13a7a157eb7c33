from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from inc_tb.recipes import Settings, fitted, write
from inc_tb.records import Recipe

CASES = Path(__file__).parent / "data" / "recipe_cases.json"
OPS = ["/encoder/layer.0/Add", "/encoder/layer.1/Add"]
# Quotes, backslashes, regular expressions, control characters, other scripts, our own placeholders, and what
# JavaScript's replace() takes for a reference.
ODD = [
    'say "hi"', "back\\slash", "it's", "élan/été/Ünï", "a.b[0](1)*+?^$|{2}", "line\nbreak\r\ttab", "\x01\x7f\u2028",
    "😀", "{name}", "x{tensor}y{pattern}", "$&$1$$", "/", "//double//slash//", " spaces ", "tensorflow/op:0",
]  # fmt: skip
USUAL = Settings(per_channel=False, activation="int8", weight="int8")
RECIPES = fitted("onnx", USUAL)
EVERY_WORD = Recipe("every", "every word", "<", "{name} {pattern} {tensor} {module} {name} {other}", "; ", ">")


def cases() -> list[dict[str, Any]]:
    """What the page must write too: tb_plugin/frontend/test/recipes.test.ts reads the same file."""
    given = [
        (OPS, {}),
        (["/conv1/Conv", "/conv1/Relu", "/fc/Gemm"], {"/conv1/Conv": "conv out", "/fc/Gemm": "logits"}),
        (ODD, {name: f"{name}_output_0" for name in ODD[::2]}),
    ]
    return [
        {"recipe": msgspec.to_builtins(r), "ops": ops, "tensors": tensors, "text": write(r, ops, tensors)}
        for r in (*RECIPES, EVERY_WORD)
        for ops, tensors in given
    ]


def recipes(
    ops: list[str], tensors: dict[str, str] | None = None, patterns: list[str] | None = None, settings: Settings = USUAL
) -> dict[str, str]:
    return {r.tool: write(r, ops, tensors or {}, patterns or []) for r in fitted("onnx", settings)}


def run(text: str, **names: Any) -> dict[str, Any]:
    exec(text, names)
    return names


def test_the_page_is_held_to_the_same_texts() -> None:
    assert json.loads(CASES.read_text()) == cases(), "recipes have changed: python -m tests.test_recipes"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.tool)
def test_every_text_is_python_that_holds_the_names(recipe: Recipe) -> None:
    tree = ast.parse(write(recipe, ODD, {}))
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    if "{pattern}" in recipe.item:
        assert all([s for s in strings if isinstance(s, str) and re.fullmatch(s, name)] for name in ODD)
    elif "{module}" not in recipe.item:
        assert set(ODD) <= strings


def test_the_list_of_names_is_json() -> None:
    assert json.loads(recipes(ODD)["json"]) == {"fp32": ODD}


def test_each_pattern_matches_its_op_only() -> None:
    keys = run(recipes(ODD)["inc"].partition("\n\n")[2].partition("conf =")[0])["op_name_dict"]
    assert [[name for name in ODD if re.fullmatch(key, name)] for key in keys] == [[name] for name in ODD]
    assert all(value == {"activation": {"dtype": ["fp32"]}, "weight": {"dtype": ["fp32"]}} for value in keys.values())


def test_neural_compressor_gets_patterns_which_match_the_names() -> None:
    text = recipes(OPS, patterns=[r"/encoder/layer\.\d+/Add"])["inc"]
    keys = run(text.partition("\n\n")[2].partition("conf =")[0])["op_name_dict"]
    assert list(keys) == [r"/encoder/layer\.\d+/Add"]


def test_a_tensor_without_a_name_has_the_name_of_its_op() -> None:
    text = recipes(["a", "b"], {"a": "a_output_0", "b": ""})["onnxruntime-int16"]
    assert '    "a_output_0": [' in text
    assert '    "b": [' in text


def test_ops_of_one_module_name_it_once() -> None:
    text = recipes(["/conv1/Conv", "/conv1/Relu", "/layer.0/fc/Gemm"])["torch"]
    assert re.findall(r"set_module_name\((.*), None\)", text) == ['"conv1"', '"layer.0.fc"']


class DemoModel:
    """The demo's network, and what quantize_static wants to have by its own names."""

    def __init__(self, folder: Path) -> None:
        import onnx

        from inc_tb.demo import _shipped, add_outlier_channels, load_digits

        self.images = load_digits()[0][:64]
        self.fp32 = add_outlier_channels(onnx.load(_shipped("digits_cnn.onnx")))
        self.tensors = {node.name: node.output[0] for node in self.fp32.graph.node}
        self._fp32, self._int8 = folder / "fp32.onnx", folder / "int8.onnx"
        onnx.save(self.fp32, self._fp32)

    def quantize(self, text: str) -> tuple[Any, dict[str, int]]:
        """The quantized model, and of each tensor that is quantized in it the type."""
        import onnx
        from onnxruntime.quantization import CalibrationDataReader

        class Reader(CalibrationDataReader):
            def __init__(self, images: Any) -> None:
                self.batches = iter({"image": rows} for rows in np.array_split(images, 4))

            def get_next(self) -> Any:
                return next(self.batches, None)

        run(text, model_input=self._fp32, model_output=self._int8, calibration_data_reader=Reader(self.images))
        model = onnx.load(self._int8)
        types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
        quantizers = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
        return model, {node.input[0]: types[node.input[2]] for node in quantizers}

    def logits(self) -> Any:
        import onnxruntime

        session = onnxruntime.InferenceSession(self._int8, providers=["CPUExecutionProvider"])
        return session.run(None, {"image": self.images})[0]


CULPRITS = ["/conv1/Conv", "/Relu", "/conv2/Conv", "/Relu_1"]


def test_onnxruntime_keeps_the_nodes_in_fp32(tmp_path: Path) -> None:
    demo = DemoModel(tmp_path)
    model, _ = demo.quantize(recipes(CULPRITS)["onnxruntime"])
    reads = {node.name: list(node.input) for node in model.graph.node}
    expected = {node.name: list(node.input) for node in demo.fp32.graph.node}
    assert {name: reads[name] for name in CULPRITS} == {name: expected[name] for name in CULPRITS}
    assert reads["/conv3/Conv"] != expected["/conv3/Conv"]  # reads what was quantized


def test_onnxruntime_keeps_the_settings_of_the_model(tmp_path: Path) -> None:
    """Pasted as it is, the config quantizes everything else as it was: per channel, with uint8 activations."""
    from onnx import TensorProto

    demo = DemoModel(tmp_path)
    settings = Settings.seen_in(["uint8", "", "uint8", "int8"], ["int8", ""], ["", "per channel"], ["asymmetric"])
    model, types = demo.quantize(recipes(CULPRITS, settings=settings)["onnxruntime"])
    scales = {t.name: t.dims for t in model.graph.initializer if t.name.endswith("_scale")}
    assert list(scales["conv3.weight_scale"]) == [64]
    assert types["/Relu_4_output_0"] == TensorProto.UINT8


def test_a_dynamic_model_stays_dynamic(tmp_path: Path) -> None:
    """No calibration data, and no 16-bit overrides, which are for fixed ranges."""
    import onnx

    demo = DemoModel(tmp_path)
    settings = Settings.seen_in(["uint8"], ["uint8"], ["per tensor"], ["dynamic", ""])
    texts = recipes(CULPRITS, settings=settings)
    assert "onnxruntime-int16" not in texts
    target = tmp_path / "dynamic.onnx"
    run(texts["onnxruntime"], model_input=demo.fp32, model_output=target)
    nodes = {node.name: node.op_type for node in onnx.load(target).graph.node}
    assert {name: nodes[name] for name in CULPRITS} == {name: name.strip("/_1").rpartition("/")[2] for name in CULPRITS}
    assert "/conv3/Conv" not in nodes  # it is a ConvInteger now
    assert "weight_type=QuantType.QUInt8" in texts["onnxruntime"]


def test_onnxruntime_gives_16_bits_to_these_tensors_only(tmp_path: Path) -> None:
    from onnx import TensorProto

    demo = DemoModel(tmp_path)
    _, types = demo.quantize(recipes(CULPRITS, demo.tensors)["onnxruntime-int16"])
    # A convolution and the ReLU behind it are one: what is between them is not quantized at all.
    long = {name for name, kind in types.items() if kind == TensorProto.UINT16}
    assert long == {"/Relu_output_0", "/Relu_1_output_0"}
    assert {types["image"], types["/Relu_4_output_0"]} == {TensorProto.INT8}
    assert np.isfinite(demo.logits()).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max:UserWarning")
def test_torch_gives_the_modules_no_qconfig() -> None:
    import torch
    from torch.ao.quantization import QConfigMapping, quantize_fx

    model = torch.nn.Sequential()
    model.add_module("conv1", torch.nn.Conv2d(1, 2, 3))
    model.add_module("conv2", torch.nn.Conv2d(2, 2, 3))
    mapping = run(recipes(["/conv1/Conv"])["torch"])["qconfig_mapping"]
    assert isinstance(mapping, QConfigMapping)
    assert dict(mapping.module_name_qconfigs) == {"conv1": None}
    prepared = quantize_fx.prepare_fx(model.eval(), mapping, (torch.zeros(1, 1, 8, 8),))
    assert [prepared.conv1.qconfig is None, prepared.conv2.qconfig is None] == [True, False]


@pytest.mark.slow
def test_tflite_takes_the_denylist() -> None:
    options = run(recipes(OPS)["tflite"])["debug_options"]
    assert options.denylisted_nodes == OPS


if __name__ == "__main__":
    CASES.write_text(json.dumps(cases(), indent=1) + "\n")
