"""Configs of the tools that quantize TensorFlow models."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from inc_tb.frameworks.formats import INC_BY_NAME, PLAIN, Format, Settings, always
from inc_tb.records import Recipe

_TF = "import tensorflow as tf\n\n"


def denylist(settings: Settings) -> Recipe:
    """Told how the converter is made, its names are those that TFLite has for the ops."""
    told = settings.told
    start = f"import contextlib\n\n{_TF}{_converter(settings)}names = [\n" if told else f"import re\n\n{_TF}keep = [\n"
    options = "debugger.options = tf.lite.experimental.QuantizationDebugOptions(denylisted_nodes=names)\n"
    careful = (
        "with contextlib.suppress(ValueError):  # where no op is left to be quantized, there is nothing to debug\n"
        f"    {options}"
    )
    return Recipe(
        "tflite", "TFLite: denylist", start, "    {name}", ",\n",
        ",\n]\ndebugger = tf.lite.experimental.QuantizationDebugger(\n"
        "    converter=converter, debug_dataset=representative_dataset\n)\n"
        f"{careful if told else _NAMES_OF_KEPT + options}"
        "content = debugger.get_nondebug_quantized_model()",
        "Keeps the ops in float. The converter is yours, with its optimizations and representative_dataset set.",
    )  # fmt: skip


def int16(settings: Settings) -> Recipe:
    return Recipe(
        "tflite-int16", "TFLite: 16-bit activations",
        f"{_TF}{_converter(settings)}converter.target_spec.supported_ops = [\n"
        "    tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8\n]\n"
        "content = converter.convert()",
        "", "", "",
        "Keeps no op in float: all activations get 16 bits. Cures causes in the activations, not those in the weights, "
        "which stay int8.",
    )  # fmt: skip


def saved_model(settings: Settings) -> Recipe:
    per_channel = f"    enable_per_channel_quantization={settings.per_channel},\n" if settings.told else ""
    return Recipe(
        "saved-model", "TensorFlow: quantize_saved_model, by unit",
        "import tensorflow as tf\n"
        "from tensorflow.compiler.mlir.quantization.tensorflow import quantization_options_pb2 as quantization\n\n"
        "tool = tf.quantization.experimental\nmethods = tool.QuantizationMethod.PresetMethod\n"
        "options = tool.QuantizationOptions(\n"
        "    quantization_method=tool.QuantizationMethod(preset_method=methods.METHOD_STATIC_RANGE_INT8),\n"
        '    op_set=quantization.XLA, signature_keys=["serving_default"], tags=["serve"],\n'
        f"{per_channel})\nfor name in [\n",
        "    {name}", ",\n",
        ",\n]:\n    spec = options.unit_wise_quantization_specs.add()\n    spec.unit.add(node_name=name)\n"
        "    spec.quantization_method.preset_method = methods.METHOD_NO_QUANTIZE\n"
        "tool.quantize_saved_model(saved_model, target, options, representative_dataset=representative_dataset)",
        "Keeps the ops in float. Of the tool's op sets only XLA heeds this.",
    )  # fmt: skip


def _converter(settings: Settings) -> str:
    """The user's own, unless the inputs and results of the frozen graph are told that it is made of."""
    if not settings.told:
        return ""
    inputs, results = (json.dumps(settings.told[ends]) for ends in ("inputs", "results"))
    return (
        'graph_def = tf.compat.v1.GraphDef.FromString(open(model_input, "rb").read())\n'
        'wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph_def, name=""), [])\n'
        f"inputs, results = {inputs}, {results}\n"
        "converter = tf.lite.TFLiteConverter.from_concrete_functions([wrapped.prune(inputs, results)])\n"
        "converter.optimizations = [tf.lite.Optimize.DEFAULT]\n"
        "converter.representative_dataset = representative_dataset\n"
        + ("" if settings.per_channel else "converter._experimental_disable_per_channel = True\n")
    )


_NAMES_OF_KEPT = (
    "# TFLite calls an op by all that it is made of, a;b;c, with digits behind names that it has twice.\n"
    'kept = re.compile("|".join(re.escape(name) + r"\\d*" for name in keep))\n'
    "details = tf.lite.Interpreter(model_content=debugger.calibrated_model).get_tensor_details()\n"
    'names = [d["name"] for d in details if any(map(kept.fullmatch, d["name"].split(";")))]\n'
)
_PER_CHANNEL = Recipe(
    "tflite-per-channel", "TFLite: a scale per channel",
    "converter._experimental_disable_per_channel = False\ncontent = converter.convert()", "", "", "",
    "Keeps no op in float: the weights of every convolution get a scale for each channel. Cures causes in the weights, "
    "not those in the activations.",
)  # fmt: skip
_INC_TENSORFLOW = Recipe(
    "inc-tensorflow", "Neural Compressor 3.x for TensorFlow: set_local",
    "from neural_compressor.tensorflow.quantization import StaticQuantConfig\n\n"
    'fp32 = StaticQuantConfig(weight_dtype="fp32", act_dtype="fp32")\n'
    "quant_config = (\n    StaticQuantConfig()\n",
    '    .set_local({pattern} "$", fp32)', "\n", "\n)",
    "Keeps the ops in fp32. The names are regular expressions, of which Neural Compressor looks at the beginning only.",
)  # fmt: skip


def _static(tool: str, make: Callable[[Settings], Recipe], *aliases: str) -> Format:
    """TensorFlow's tools keep no op of a dynamic model in float."""
    return Format(tool, lambda settings: None if settings.dynamic else make(settings), aliases)


def _per_channel(settings: Settings) -> Recipe | None:
    return None if settings.per_channel else _PER_CHANNEL


FORMATS = (
    _static("tflite", denylist, "denylist", "denylisted-nodes"),
    replace(_static("tflite-int16", int16, "16x8", "int16x8"), rounds=True),
    Format(
        "tflite-per-channel",
        _per_channel,
        ("per-channel",),
        {"weights_per_tensor": "conv|matmul|fully_connected|einsum"},
        rounds=True,
    ),
    _static("saved-model", saved_model, "quantize-saved-model"),
    INC_BY_NAME,
    _static("inc-tensorflow", always(_INC_TENSORFLOW)),
    PLAIN,
)
