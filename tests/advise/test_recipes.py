from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from inc_tb.advise.configs import curing, find_recipe, fitted, recipes_for
from inc_tb.advise.names import check_names, closest
from inc_tb.errors import UsageError
from inc_tb.frameworks.formats import Settings
from inc_tb.frameworks.patterns import exact_patterns, pattern_of
from inc_tb.frameworks.registry import frameworks
from inc_tb.frameworks.templates import write
from inc_tb.records import Recipe
from tests.digits import DATA

CASES = DATA / "recipe_cases.json"
OPS = ["/encoder/layer.0/Add", "/encoder/layer.1/Add"]
# Quotes, backslashes, regular expressions, control characters, other scripts, our own placeholders, and what
# JavaScript's replace() takes for a reference.
ODD = [
    'say "hi"', "back\\slash", "it's", "élan/été/Ünï", "a.b[0](1)*+?^$|{2}", "line\nbreak\r\ttab", "\x01\x7f\u2028",
    "😀", "{name}", "x{tensor}y{pattern}", "$&$1$$", "/", "//double//slash//", " spaces ", "tensorflow/op:0",
]  # fmt: skip
MODEL = [
    *(f"/encoder/layer.{i}/{op}" for i in range(4) for op in ("Add", "fc/MatMul", "ffn/Add_1", "ffn/Add_2")),
    *(f"Conv_{i}" for i in range(9)), *(f"a+b[{i}].(x)" for i in range(3)), "/head/MatMul", "/conv1/Conv", *ODD,
]  # fmt: skip
REPEATED = [
    [name for name in MODEL if name.endswith(("/Add", "fc/MatMul"))],
    ["/encoder/layer.0/Add", "/encoder/layer.2/Add", "/encoder/layer.3/Add", "/head/MatMul"],
    [name for name in MODEL if name.endswith("Add_1")],
    ["Conv_0", "Conv_1", "Conv_7"],
    [name for name in MODEL if name.startswith("a+b")],
    ["conv1", "conv2", "block.0", "block.1"],
    ["a1/Conv", "a1/Relu", "/head/MatMul", "a2/Conv", "a2/Relu"],
]
USUAL = Settings(per_channel=False, activation="int8", weight="int8")
FITTED = fitted("onnx", USUAL)
RECIPES = [f.recipe for f in FITTED]
DYNAMIC = Settings(per_channel=False, activation="uint8", weight="int8", dynamic=True)
TORCH = {f.recipe.tool: f.recipe for f in (*fitted("torch", USUAL), *fitted("torch", DYNAMIC))}
TENSORFLOW = [f.recipe for f in fitted("tensorflow", USUAL)]
MXNET = [f.recipe for f in fitted("mxnet", USUAL)]
ALL = [*RECIPES, *TORCH.values(), *TENSORFLOW, *MXNET]
EVERY_WORD = Recipe("every", "every word", "<", "{name} {pattern} {tensor} {module} {name} {other}", "; ", ">")


def cases() -> dict[str, Any]:
    """What the page must write too: tb_plugin/frontend/test/recipes.test.ts reads the same file."""
    method = 'set_object_type("relu", None)  # {name}\nset_object_type("view", None)'
    layers = {"conv0_fwd": "sg_mkldnn_conv_act_0", "relu0_fwd": "sg_mkldnn_conv_act_0"}
    given: list[tuple[list[str], dict[str, str], dict[str, str], dict[str, str]]] = [
        *((ops, {}, {}, {}) for ops in REPEATED),
        (OPS, {}, {}, {}),
        (["/conv1/Conv", "/conv1/Relu", "/fc/Gemm"], {"/conv1/Conv": "conv out", "/fc/Gemm": "logits"}, {}, {}),
        (["node_conv2d_1", "node_add"], {}, {"node_conv2d_1": "layer1.0.conv1", "node_add": ""}, {}),
        (["front", "/relu", "/relu_1", "/cat"], {}, {"front": "front"}, {"/relu": method, "/relu_1": method}),
        (["/cat"], {}, {}, {}),
        (["conv0_fwd", "relu0_fwd"], {}, layers, {}),
        (ODD, {name: f"{name}_output_0" for name in ODD[::2]}, {}, {}),
    ]
    names = ("ops", "tensors", "modules", "statements")
    return {
        "model": MODEL,
        "given": [dict(zip(names, one, strict=True)) for one in given],
        "recipes": [
            {
                "recipe": msgspec.to_builtins(r),
                "texts": [
                    write(r, ops, tensors, exact_patterns(ops, MODEL), modules, statements)
                    for ops, tensors, modules, statements in given
                ],
            }
            for r in (*ALL, EVERY_WORD)
        ],
    }


def recipes(
    ops: list[str], tensors: dict[str, str] | None = None, patterns: list[str] | None = None, settings: Settings = USUAL
) -> dict[str, str]:
    return {f.recipe.tool: write(f.recipe, ops, tensors or {}, patterns or []) for f in fitted("onnx", settings)}


def run(text: str, **names: Any) -> dict[str, Any]:
    exec(text, names)
    return names


def test_the_page_is_held_to_the_same_texts() -> None:
    assert json.loads(CASES.read_text()) == cases(), "recipes have changed: python -m tests.advise.test_recipes"


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.tool)
def test_every_text_is_python_that_holds_the_names(recipe: Recipe) -> None:
    tree = ast.parse(write(recipe, ODD, {}))
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    if "{pattern}" in recipe.item:
        assert all([s for s in strings if isinstance(s, str) and re.fullmatch(s, name)] for name in ODD)
    elif recipe.item and "{module}" not in recipe.item:
        assert set(ODD) <= strings


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.tool)
def test_a_text_that_keeps_nothing_is_python_too(recipe: Recipe) -> None:
    ast.parse(write(recipe, []))


def test_the_list_of_names_is_json() -> None:
    assert json.loads(write(RECIPES[-1], [])) == {"fp32": []}
    assert json.loads(recipes(ODD)["json"]) == {"fp32": ODD}


def op_name_dict(text: str) -> dict[str, Any]:
    """Without Neural Compressor, which tests/advise/test_recipes_in_tools.py brings."""
    found: dict[str, Any] = run(text.partition("\n\n")[2].partition("conf =")[0])["op_name_dict"]
    return found


def test_each_pattern_matches_its_op_only() -> None:
    keys = op_name_dict(recipes(ODD)["inc"])
    assert [[name for name in ODD if re.fullmatch(key, name)] for key in keys] == [[name] for name in ODD]
    assert all(value == {"activation": {"dtype": ["fp32"]}, "weight": {"dtype": ["fp32"]}} for value in keys.values())


def test_neural_compressor_gets_patterns_which_match_the_names() -> None:
    (key,) = op_name_dict(recipes(OPS, patterns=[r"/encoder/layer\.\d+/Add"])["inc"])
    assert key.startswith(r"/encoder/layer\.\d+/Add")
    assert all(re.fullmatch(key, name) for name in OPS)


@pytest.mark.parametrize("renamed", ["/fc/Gemm", "/fc/Gemm_MatMul", "/fc/Gemm_Add", "/fc/Gemm/MatMulAddFusion_MatMul"])
def test_neural_compressor_gets_patterns_which_match_what_becomes_of_an_op(renamed: str) -> None:
    (key,) = op_name_dict(recipes(["/fc/Gemm"])["inc"])
    assert re.fullmatch(key, renamed)
    assert not re.fullmatch(key, "/fc/Gemm_1")


def test_a_tensor_without_a_name_has_the_name_of_its_op() -> None:
    text = recipes(["a", "b"], {"a": "a_output_0", "b": ""})["onnxruntime-int16"]
    assert '    "a_output_0": [' in text
    assert '    "b": [' in text


def test_ops_of_one_module_name_it_once() -> None:
    text = recipes(["/conv1/Conv", "/conv1/Relu", "/layer.0/fc/Gemm"])["torch"]
    assert re.findall(r"set_module_name\((.*), None\)", text) == ['"conv1"', '"layer.0.fc"']


@pytest.mark.parametrize("tool", ["torch", "torch-pt2e", "inc-torch"])
def test_what_is_in_no_module_does_not_keep_the_whole_model_in_fp32(tool: str) -> None:
    text = recipes(["/Relu", "/conv1/Conv", "/"])[tool]
    assert '("conv1", ' in text
    assert '""' not in text
    told, _, untold = text.partition("\n# In no module of its own, so that this config cannot name it: ")
    assert "Relu" not in told
    assert untold.startswith('"/Relu"\n')  # and it is said
    assert '("Conv_7", ' in recipes(["Conv_7"])[tool]  # older exports: the best there is


def test_ops_of_pytorch_name_their_modules() -> None:
    ops = ["layer.0.fc", "layer.0.fc/2", "layer.1/add_1", "/matmul"]
    for tool in ("torch", "torch-pt2e", "inc-torch", "torch-dynamic", "torchao"):
        text = write(TORCH[tool], ops, {})
        assert [name for name in ("layer.0.fc", "layer.1") if f'"{name}"' in text] == ["layer.0.fc", "layer.1"], tool
        assert "matmul" not in text.partition("\n# In no module")[0]
        assert text.endswith('cannot name it: "/matmul"')
        ast.parse(write(TORCH[tool], ["/matmul"], {}))


def test_what_fits_the_way_of_quantizing_comes_first() -> None:
    assert fitted("torch", USUAL)[0].recipe.tool == "torch"
    assert fitted("torch", DYNAMIC)[0].recipe.tool == "torch-dynamic"
    assert "torch-per-channel" not in {f.recipe.tool for f in fitted("torch", USUAL._replace(per_channel=True))}


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


def test_a_scale_per_channel_keeps_no_op_in_fp32(tmp_path: Path) -> None:
    demo = DemoModel(tmp_path)
    text = recipes(CULPRITS)["onnxruntime-per-channel"]
    model, types = demo.quantize(text)
    scales = {t.name: list(t.dims) for t in model.graph.initializer if t.name.endswith("weight_scale")}
    assert scales["conv1.weight_scale"] == [16]
    assert scales["conv3.weight_scale"] == [64]
    assert "/Relu_output_0" in types  # what the culprits write is still rounded
    per_channel = Settings(per_channel=True, activation="int8", weight="int8")
    assert "onnxruntime-per-channel" not in recipes(CULPRITS, settings=per_channel)


def test_a_dynamic_model_stays_dynamic(tmp_path: Path) -> None:
    """No calibration data, and no 16-bit overrides, which are for fixed ranges."""
    import onnx

    demo = DemoModel(tmp_path)
    settings = Settings.seen_in(["uint8"], ["uint8"], ["per tensor"], ["dynamic", ""])
    texts = recipes(CULPRITS, settings=settings)
    assert not {"onnxruntime-int16", "inc-onnx"} & set(texts)
    assert 'PostTrainingQuantConfig(approach="dynamic", op_name_dict' in texts["inc"]
    assert "DynamicQuantConfig()" in texts["inc-torch"]
    assert "(is_dynamic=True)" in texts["torch-pt2e"]
    target = tmp_path / "dynamic.onnx"
    run(texts["onnxruntime"], model_input=demo.fp32, model_output=target)
    nodes = {node.name: node.op_type for node in onnx.load(target).graph.node}
    assert {name: nodes[name] for name in CULPRITS} == {name: name.strip("/_1").rpartition("/")[2] for name in CULPRITS}
    assert "/conv3/Conv" not in nodes  # it is a ConvInteger now
    assert "weight_type=QuantType.QUInt8" in texts["onnxruntime"]


def test_a_dynamic_model_with_a_fixed_table_stays_dynamic() -> None:
    """What quantize_dynamic makes of embeddings has fixed ranges."""
    schemes = ["dynamic", "", "asymmetric", "dynamic"]
    assert Settings.seen_in(["uint8"], ["int8"], ["per tensor"], schemes).dynamic
    assert not Settings.seen_in(["uint8"], ["int8"], ["per tensor"], [*schemes, "symmetric"]).dynamic


def test_a_scale_per_channel_is_no_cure_for_a_convolution_that_is_quantized_dynamically(tmp_path: Path) -> None:
    """quantize_dynamic gives it one scale whatever it is told, and a Gemm one for each channel."""
    import onnx

    demo = DemoModel(tmp_path)
    found = fitted("onnx", DYNAMIC)
    assert "onnxruntime-per-channel" not in curing(found, "weights_per_tensor", "Conv")
    assert "onnxruntime-per-channel" in curing(found, "weights_per_tensor", "Gemm")
    assert "onnxruntime-per-channel" in curing(FITTED, "weights_per_tensor", "Conv")
    target = tmp_path / "dynamic.onnx"
    run(recipes([], settings=DYNAMIC)["onnxruntime-per-channel"], model_input=demo.fp32, model_output=target)
    scales = {t.name: list(t.dims) for t in onnx.load(target).graph.initializer if t.name.endswith("weight_scale")}
    assert scales["conv3.weight_scale"] == []
    assert len(scales["fc1.weight_scale"]) == 1


def test_a_dynamic_model_keeps_a_gemm_in_fp32_too(tmp_path: Path) -> None:
    """quantize_dynamic calls it something else by the time it looks for names."""
    import onnx

    demo = DemoModel(tmp_path)
    settings = Settings.seen_in(["uint8"], ["int8"], ["per tensor"], ["dynamic", ""])
    target = tmp_path / "dynamic.onnx"
    run(recipes(["/fc1/Gemm"], settings=settings)["onnxruntime"], model_input=demo.fp32, model_output=target)
    weights = {t.name: t.data_type for t in onnx.load(target).graph.initializer}
    assert any(name.startswith("fc1") and kind == onnx.TensorProto.FLOAT for name, kind in weights.items())
    assert "fc1.weight_quantized" not in weights
    assert any(name.startswith("fc2") and kind == onnx.TensorProto.INT8 for name, kind in weights.items())


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
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tflite_leaves_what_is_on_the_denylist_in_float() -> None:
    import tensorflow as tf

    rng = np.random.default_rng(0)
    weights = [tf.constant(rng.normal(size=shape).astype(np.float32)) for shape in ((3, 3, 1, 8), (3, 3, 8, 4))]

    class Network(tf.Module):  # type: ignore[misc]
        @tf.function(input_signature=[tf.TensorSpec([1, 8, 8, 1], tf.float32)])  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            hidden = tf.nn.relu(tf.nn.conv2d(x, weights[0], 1, "SAME", name="conv1"))
            return tf.nn.relu(tf.nn.conv2d(hidden, weights[1], 1, "SAME", name="conv2"))

    def samples() -> Any:
        yield from ([rng.normal(size=(1, 8, 8, 1)).astype(np.float32)] for _ in range(4))

    def types(text: str) -> dict[str, Any]:
        network = Network()
        converter = tf.lite.TFLiteConverter.from_concrete_functions([network.__call__.get_concrete_function()], network)
        converter.optimizations, converter.representative_dataset = [tf.lite.Optimize.DEFAULT], samples
        options = run(text)["debug_options"]
        debugger = tf.lite.experimental.QuantizationDebugger(
            converter=converter, debug_dataset=samples, debug_options=options
        )
        interpreter = tf.lite.Interpreter(model_content=debugger.get_nondebug_quantized_model())
        return {tensor["name"]: tensor["dtype"] for tensor in interpreter.get_tensor_details()}

    first = "Relu;conv1"  # as the converter calls it
    assert types(recipes(["elsewhere"])["tflite"])[first] is np.int8
    kept = types(recipes([first])["tflite"])
    assert kept[first] is np.float32
    assert np.int8 in kept.values()


KNOWN = ["/conv1/Conv", "/Relu", "/conv2/Conv", "/fc2/Gemm", "/encoder/layer.0/attention/query/MatMul", "0", "1"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/conv1/Cnov", ["/conv1/Conv", "/conv2/Conv"]),
        ("/CONV1/conv", ["/conv1/Conv"]),
        ("conv1", ["/conv1/Conv"]),
        ("conv2/Conv", ["/conv2/Conv"]),
        ("/fc2/Gemm_quant", ["/fc2/Gemm"]),
        ("query/MatMul", ["/encoder/layer.0/attention/query/MatMul"]),
        ("something else", []),
        ("", []),
    ],
)
def test_closest_names(given: str, expected: list[str]) -> None:
    assert closest(given, KNOWN) == expected


def test_a_name_that_matches_nothing_is_an_error_that_lists_the_closest() -> None:
    check_names([], KNOWN)
    check_names(["/Relu", "0"], KNOWN)
    with pytest.raises(UsageError, match=r"'/conv1/Cnov' \(closest: /conv1/Conv, /conv2/Conv\); 'zz' \(nothing is"):
        check_names(["/Relu", "/conv1/Cnov", "zz"], KNOWN)
    with pytest.raises(UsageError, match="and 3 more"):
        check_names([f"missing {i}" for i in range(8)], KNOWN)


@pytest.mark.parametrize(
    ("ops", "patterns"),
    [
        (REPEATED[0], [r"/encoder/layer\.\d+/Add", r"/encoder/layer\.\d+/fc/MatMul"]),
        (REPEATED[1], [r"/encoder/layer\.(0|2|3)/Add", "/head/MatMul"]),
        (REPEATED[2], [r"/encoder/layer\.\d+/ffn/Add_1"]),
        (["/encoder/layer.1/Add", "/encoder/layer.3/Add"], [r"/encoder/layer\.1/Add", r"/encoder/layer\.3/Add"]),
        (["Conv_0", "Conv_1", "Conv_7"], ["Conv_0", "Conv_1", "Conv_7"]),  # three of nine
        (["Conv_0", "Conv_1", "Conv_7", "Conv_3", "Conv_8"], ["Conv_(0|1|7|3|8)"]),
        (REPEATED[4], [r"a\+b\[\d+\]\.\(x\)"]),
        (["elsewhere/1", "elsewhere/2"], [r"elsewhere/\d+"]),
        (["conv1", "conv2"], ["conv1", "conv2"]),  # two kinds of layers, not one that repeats
        (["conv1", "conv2", "conv3"], [r"conv\d+"]),
        ([], []),
    ],
)
def test_what_repeats_is_a_pattern_that_takes_in_no_more(ops: list[str], patterns: list[str]) -> None:
    assert exact_patterns(ops, MODEL) == patterns
    assert [name for name in MODEL if any(re.fullmatch(p, name) for p in patterns)] == [n for n in MODEL if n in ops]
    whole = pattern_of(ops, MODEL)
    assert bool(whole) == (len(patterns) < len(ops))
    assert not whole or [name for name in MODEL if re.fullmatch(whole, name)] == [n for n in MODEL if n in ops]


def test_a_name_that_the_model_does_not_have_stands_for_itself() -> None:
    assert exact_patterns(["/encoder/layer.0/Add", "/encoder/layer.9/Add"], MODEL) == [
        r"/encoder/layer\.0/Add", r"/encoder/layer\.9/Add"
    ]  # fmt: skip


def test_tools_have_other_names_too() -> None:
    assert find_recipe(FITTED, "inc").tool == "inc"
    assert find_recipe(FITTED, " OP_NAME_DICT ").tool == "inc"
    assert find_recipe(FITTED, "TensorQuantOverrides").tool == "onnxruntime-int16"
    for framework in frameworks():
        for settings in (USUAL, DYNAMIC):
            there = fitted(framework.name, settings)
            assert all(f.format.tool == f.recipe.tool for f in there)
            names = [name for f in there for name in (f.recipe.tool, *f.format.aliases)]
            assert len(names) == len(set(names)), "a name that means two formats"
    with pytest.raises(UsageError, match=r"format 'caffe' is not .* one of onnxruntime, onnxruntime-int16, .*json"):
        find_recipe(FITTED, "caffe")


def test_a_diagnosed_model_gets_configs_with_its_settings() -> None:
    table = {"act_dtype": ["uint8", ""], "weight_dtype": ["uint8"], "weight_granularity": ["per channel"]}
    texts = {f.recipe.tool: write(f.recipe, ["a"], {}) for f in recipes_for("onnx", table)}
    assert "activation_type=QuantType.QUInt8" in texts["onnxruntime"]
    assert "activation_type" not in texts["inc-onnx"]  # which is what that takes by itself
    assert "weight_type=QuantType.QUInt8" in texts["inc-onnx"]
    assert "per_channel=True" in texts["inc-onnx"]
    assert [f.recipe.tool for f in recipes_for("nothing known", table)] == ["json"]


if __name__ == "__main__":
    CASES.write_text(json.dumps(cases(), indent=1) + "\n")
