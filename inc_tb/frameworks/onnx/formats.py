"""Configs of the tools that quantize ONNX models, and of those that ONNX models come from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from inc_tb.frameworks.formats import (
    INC_ALIASES,
    INC_LABEL,
    INC_NOTE,
    INC_START,
    PLAIN,
    Format,
    Settings,
    always,
    inc_conf,
    with_activations,
)
from inc_tb.frameworks.onnx import cure_formats
from inc_tb.frameworks.templates import quoted
from inc_tb.frameworks.torch.formats import FX, INC_TORCH, PT2E
from inc_tb.records import Recipe

TYPES = {"int8": "QInt8", "uint8": "QUInt8", "int16": "QInt16", "uint16": "QUInt16"}
"""As onnxruntime's QuantType calls them."""
CALIBRATORS = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
"""As its CalibrationMethod calls them."""


def long_type(activation: str) -> str:
    """What 16 bits are called beside activations of this type."""
    return TYPES["uint16" if activation.startswith("u") else "int16"]


def nodes_to_exclude(settings: Settings) -> Recipe:
    # quantize_dynamic makes a MatMul and an Add of each Gemm before it looks the names up.
    renamed = ' + [name + "_MatMul" for name in nodes_to_exclude]' if settings.dynamic else ""
    imports, call = _quantize(settings, {"nodes_to_exclude": f"nodes_to_exclude{renamed}", **_arguments(settings)})
    return Recipe(
        "onnxruntime", "ONNX Runtime: nodes_to_exclude",
        f"{imports}nodes_to_exclude = [\n", "    {name}", ",\n", f",\n]\n{call}",
        "Keeps the ops in fp32, with the types and the granularity of this model. Your other settings (calibrator, "
        "format) are yours to add.",
    )  # fmt: skip


def _int16(settings: Settings) -> Recipe | None:
    if settings.dynamic:
        return None
    item = '    {tensor}: [{"quant_type": QuantType.QUInt16}]'
    first = {"quant_format": "QuantFormat.QDQ", "extra_options": _extra_options(settings, overrides="overrides")}
    imports, call = _quantize(settings, first | {k: v for k, v in _arguments(settings).items() if k not in first}, item)
    return Recipe(
        "onnxruntime-int16", "ONNX Runtime: tensor overrides (16 bit)",
        f"{imports}overrides = {{\n", item, ",\n", f",\n}}\n{call}",
        "Keeps the ops quantized and gives what they write 16 bits. Cures causes in the activations, not those in the "
        "weights, which stay int8. On a CPU, ops that touch a 16-bit tensor compute in float.",
    )  # fmt: skip


def _per_channel(settings: Settings) -> Recipe | None:
    return None if settings.dynamic else _to_per_channel(settings, "the weights of every op")


def _per_channel_dynamic(settings: Settings) -> Recipe | None:
    """quantize_dynamic gives the weights of a convolution one scale, whatever it is told."""
    return _to_per_channel(settings, "the weights of every MatMul and Gemm") if settings.dynamic else None


def _to_per_channel(settings: Settings, weights: str) -> Recipe | None:
    if settings.per_channel:
        return None
    imports, call = _quantize(settings, _arguments(settings._replace(per_channel=True)))
    return Recipe(
        "onnxruntime-per-channel", "ONNX Runtime: a scale per channel", f"{imports}{call}", "", "", "",
        f"Keeps no op in fp32: {weights} get a scale for each channel. Cures causes in the weights, not those in the "
        "activations.",
    )  # fmt: skip


def _quantize(settings: Settings, arguments: Mapping[str, str], item: str = "") -> tuple[str, str]:
    """What a text imports that has such items, and its call of ONNX Runtime's tool."""
    function = "quantize_dynamic" if settings.dynamic else "quantize_static"
    data = "" if settings.dynamic else " calibration_data_reader,"
    lines = _lines(arguments, 4)
    used = [name for name in ("CalibrationMethod", "QuantFormat", "QuantType") if f"{name}." in item + lines]
    numbers = "import numpy as np\n" if "np.float32" in lines else ""
    imports = f"{numbers}from onnxruntime.quantization import {', '.join([*used, function])}\n\n"
    return imports, f"{function}(\n    model_input, model_output,{data}\n{lines})"


def _arguments(settings: Settings) -> dict[str, str]:
    """How the model is quantized, and where it is known also how its tool was told to calibrate."""
    told, found = settings.told, _types(settings, activation="int8", weight="int8")
    if told.get("reduce_range"):
        found["reduce_range"] = "True"
    if told.get("op_types"):
        found["op_types_to_quantize"] = f"[{', '.join(map(quoted, told['op_types']))}]"
    if not told or settings.dynamic:
        return found
    found["quant_format"] = f"QuantFormat.{told['format']}"
    found["calibrate_method"] = f"CalibrationMethod.{CALIBRATORS[told['calibrator']]}"
    options = _extra_options(settings, _overrides(settings))
    return found | ({"extra_options": options} if options else {})


def _overrides(settings: Settings) -> str:
    """What single tensors have of their own; nothing where none has."""
    found = {
        name: f'"rmin": np.float32({low}), "rmax": np.float32({high})'
        for name, (low, high) in settings.told["ranges"].items()
    }
    long = f'"quant_type": QuantType.{long_type(settings.activation)}'
    found |= dict.fromkeys(settings.told["int16_tensors"], long)
    lines = "".join(f"        {quoted(name)}: [{{{own}}}],\n" for name, own in found.items())
    return f"{{\n{lines}    }}" if found else ""


def _extra_options(settings: Settings, overrides: str) -> str:
    options = ['"ActivationSymmetric": True'] if settings.told.get("symmetric") else []
    options += [f'"TensorQuantOverrides": {overrides}'] if overrides else []
    return f"{{{', '.join(options)}}}" if options else ""


def _types(settings: Settings, activation: str, weight: str) -> dict[str, str]:
    """What shows, as onnxruntime calls it; types that the tool takes unless told otherwise are left out."""
    found = {"per_channel": "True"} if settings.per_channel else {}
    usual = {"activation_type": (settings.activation, activation), "weight_type": (settings.weight, weight)}
    for argument, (dtype, default) in usual.items():
        if settings.dynamic and argument == "activation_type":
            continue  # chosen at run time
        if dtype in TYPES and dtype != default:
            found[argument] = f"QuantType.{TYPES[dtype]}"
    return found


def _lines(arguments: Mapping[str, str], indent: int) -> str:
    return "".join(f"{' ' * indent}{name}={value},\n" for name, value in arguments.items())


def _weight_only(settings: Settings) -> Recipe | None:
    if not settings.is_weight_only:
        return None
    bits = re.sub(r"\D", "", settings.weight)
    return Recipe(
        "onnxruntime-nbits", "ONNX Runtime: MatMulNBitsQuantizer",
        "from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer\n\nnodes_to_exclude = [\n",
        "    {name}", ",\n",
        f",\n]\nquantizer = MatMulNBitsQuantizer(\n    model_input, bits={bits}, block_size=block_size, "
        f"is_symmetric={not settings.weight.startswith('u')},\n    nodes_to_exclude=nodes_to_exclude,\n)\n"
        "quantizer.process()\nquantizer.model.save_model_to_file(model_output)",
        "Keeps the weights of these ops as they are; block_size is yours.",
    )  # fmt: skip


def _inc(settings: Settings) -> Recipe:
    """Neural Compressor looks names up after onnxruntime has optimized the model and a Gemm was taken apart.

    A key that is the plain name of such an op would match nothing, without a word.
    """
    return Recipe(
        "inc", INC_LABEL, f"{INC_START}names = [\n", "    {pattern}", ",\n",
        ",\n]\n# What becomes of a Gemm, and of a MatMul with an Add behind it, before the names are looked up.\n"
        'renamed = "(/MatMulAddFusion)?(_MatMul|_Add)?"\n'
        f"op_name_dict = {{name + renamed: fp32 for name in names}}\n{inc_conf(settings)}",
        INC_NOTE,
    )  # fmt: skip


def _inc_onnx(settings: Settings) -> Recipe | None:
    """Not for dynamic models: version 1.0 fails at their convolutions."""
    if settings.dynamic:
        return None
    arguments = _types(settings, activation="uint8", weight="int8")
    types = "QuantType, " if {"activation_type", "weight_type"} & set(arguments) else ""
    return Recipe(
        "inc-onnx", "Neural Compressor 3.x for ONNX: nodes_to_exclude",
        f"from onnx_neural_compressor.quantization import {types}config, quantize\n\nnames = [\n",
        "    {name}", ",\n",
        ",\n]\n# A MatMul with an Add behind it is renamed before the names are looked up.\n"
        'nodes_to_exclude = names + [name + "/MatMulAddFusion" for name in names]\n'
        "quantize(\n    model_input, model_output,\n    config.StaticQuantConfig(\n"
        f"        calibration_data_reader, nodes_to_exclude=nodes_to_exclude,\n{_lines(arguments, 8)}    ),\n)",
        "Keeps the ops in fp32. For the package onnx-neural-compressor, whose set_local cannot say fp32 for static "
        "quantization; its version 1.0 also needs prettytable and scipy, which it does not install.",
    )  # fmt: skip


_NNCF = Recipe(
    "nncf", "NNCF: ignored scope",
    "import nncf\n\nnames = [\n", "    {pattern}", ",\n",
    ',\n]\nignored_scope = nncf.IgnoredScope(patterns=[name + "$" for name in names])\n'
    "quantized_model = nncf.quantize(model, calibration_dataset, ignored_scope=ignored_scope)",
    "Keeps the ops in fp32. The names are regular expressions, of which NNCF looks at the beginning only: hence the $.",
)  # fmt: skip
_TFLITE = Recipe(
    "tflite", "TFLite: denylist",
    "import tensorflow as tf\n\ndebug_options = tf.lite.experimental.QuantizationDebugOptions(\n"
    "    denylisted_nodes=[\n",
    "        {name}", ",\n",
    ",\n    ]\n)",
    "Keeps the ops in float. For tf.lite.experimental.QuantizationDebugger, whose get_nondebug_quantized_model() gives "
    "the model. Works where the TFLite model has the same names as this one; its converter calls joined ops "
    "Relu;conv1.",
)  # fmt: skip

FORMATS = (
    Format("onnxruntime-nbits", _weight_only, ("nbits", "matmulnbits")),
    Format("onnxruntime", with_activations(nodes_to_exclude), ("ort", "nodes-to-exclude")),
    Format("onnxruntime-int16", with_activations(_int16), ("ort-int16", "int16", "tensorquantoverrides"), rounds=True),
    Format(
        "onnxruntime-per-channel",
        with_activations(_per_channel),
        ("per-channel", "ort-per-channel"),
        {"weights_per_tensor": "conv|gemm|matmul"},
        rounds=True,
    ),
    Format(
        "onnxruntime-per-channel",
        _per_channel_dynamic,
        ("per-channel", "ort-per-channel"),
        {"weights_per_tensor": "gemm|matmul"},
        rounds=True,
    ),
    Format("inc", with_activations(_inc), INC_ALIASES),
    Format("inc-onnx", with_activations(_inc_onnx), ("onnx-neural-compressor",)),
    replace(INC_TORCH, elsewhere=True),
    Format("nncf", with_activations(always(_NNCF)), ("ignoredscope", "ignored-scope")),
    replace(FX, elsewhere=True),
    replace(PT2E, elsewhere=True),
    *cure_formats.FORMATS,
    Format("tflite", with_activations(always(_TFLITE)), ("denylist", "denylisted-nodes"), elsewhere=True),
    PLAIN,
)
