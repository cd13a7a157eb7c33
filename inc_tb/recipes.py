"""A set of ops that should stay out of int8, as the configuration of the tools that can do it.

To add one: append it to the list of its framework in RECIPES. The page makes joint configurations from the same
templates, which are stored with the suggestions (src/recipes.ts); tests/data/recipe_cases.json holds both to the
same texts, and `python -m tests.test_recipes` writes it anew. Names that are not the ops' stand for what the user's
own call has there.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from inc_tb.records import Recipe

_FP32 = '{"activation": {"dtype": ["fp32"]}, "weight": {"dtype": ["fp32"]}}'

ONNXRUNTIME = Recipe(
    "onnxruntime", "ONNX Runtime: nodes_to_exclude",
    "from onnxruntime.quantization import {types}{quantize}\n\nnodes_to_exclude = [\n", "    {name}", ",\n",
    ",\n]\n{quantize}(\n    model_input, model_output,{calibration}\n"
    "    nodes_to_exclude=nodes_to_exclude,\n{settings})",
    "Keeps the ops in fp32 and everything else as it is in this model.",
)  # fmt: skip
ONNXRUNTIME_INT16 = Recipe(
    "onnxruntime-int16", "ONNX Runtime: tensor overrides (16 bit)",
    "from onnxruntime.quantization import QuantFormat, QuantType, quantize_static\n\noverrides = {\n",
    '    {tensor}: [{"quant_type": QuantType.QUInt16}]', ",\n",
    ",\n}\nquantize_static(\n    model_input, model_output, calibration_data_reader,\n"
    '    quant_format=QuantFormat.QDQ,\n    extra_options={"TensorQuantOverrides": overrides},\n{settings})',
    "Keeps the ops quantized and gives what they write 16 bits. Cures causes in the activations, not those in the "
    "weights, which stay int8. On a CPU, ops that touch a 16-bit tensor compute in float.",
)  # fmt: skip
INC = Recipe(
    "inc", "Neural Compressor 2.x: op_name_dict",
    "from neural_compressor.config import PostTrainingQuantConfig\n\nop_name_dict = {\n",
    f"    {{pattern}}: {_FP32}", ",\n",
    ",\n}\nconf = PostTrainingQuantConfig(op_name_dict=op_name_dict)",
    "Keeps the ops in fp32. The keys are regular expressions, which have to match the whole name.",
)  # fmt: skip
NNCF = Recipe(
    "nncf", "NNCF: ignored scope",
    "import nncf\n\nignored_scope = nncf.IgnoredScope(\n    names=[\n", "        {name}", ",\n",
    ",\n    ]\n)\nnncf.quantize(model, calibration_dataset, ignored_scope=ignored_scope)",
    "Keeps the ops in fp32.",
)  # fmt: skip
TORCH = Recipe(
    "torch", "PyTorch: qconfig mapping",
    "from torch.ao.quantization import get_default_qconfig_mapping\n\n"
    "qconfig_mapping = (\n    get_default_qconfig_mapping()\n",
    "    .set_module_name({module}, None)", "\n", "\n)",
    "Keeps the modules in fp32, each with everything inside. Their names are read off the op names, as torch's ONNX "
    "export writes them: an op that is no module itself, such as an addition, gives the module around it.",
)  # fmt: skip
TFLITE = Recipe(
    "tflite", "TFLite: denylist",
    "import tensorflow as tf\n\ndebug_options = tf.lite.experimental.QuantizationDebugOptions(\n"
    "    denylisted_nodes=[\n",
    "        {name}", ",\n",
    ",\n    ]\n)",
    "Keeps the ops in float. For tf.lite.experimental.QuantizationDebugger, whose get_nondebug_quantized_model() gives "
    "the model. Works where the TFLite model has the same names as this one.",
)  # fmt: skip
PLAIN = Recipe("json", "JSON: list of names", '{"fp32": [\n', "    {name}", ",\n", "\n]}", "For tools of your own.")

RECIPES: Mapping[str, Sequence[Recipe]] = {
    "onnx": (ONNXRUNTIME, ONNXRUNTIME_INT16, INC, NNCF, TORCH, TFLITE, PLAIN),
}


_ONNX_TYPES = {"int8": "QInt8", "uint8": "QUInt8", "int16": "QInt16", "uint16": "QUInt16"}


class Settings(NamedTuple):
    """How a model is quantized, as far as it shows; a config that leaves it out would quantize another way."""

    per_channel: bool
    activation: str
    weight: str
    dynamic: bool = False

    @classmethod
    def seen_in(
        cls, activations: Iterable[str], weights: Iterable[str], granularities: Iterable[str], schemes: Iterable[str]
    ) -> Settings:
        """From the types, granularities and schemes of all ops; "" stands for fp32."""

        def usual(dtypes: Iterable[str]) -> str:
            return next((found for found, _ in Counter(d for d in dtypes if d).most_common(1)), "")

        is_dynamic = {scheme for scheme in schemes if scheme} == {"dynamic"}
        return cls("per channel" in set(granularities), usual(activations), usual(weights), is_dynamic)


def fitted(framework: str, settings: Settings) -> list[Recipe]:
    """The recipes of a framework for a model that is quantized so."""
    lines = ["    per_channel=True,\n"] if settings.per_channel else []
    for argument, dtype in (("activation_type", settings.activation), ("weight_type", settings.weight)):
        if settings.dynamic and argument == "activation_type":
            continue  # chosen at run time
        if dtype in _ONNX_TYPES and dtype != "int8":  # which is what onnxruntime takes unless told otherwise
            lines.append(f"    {argument}=QuantType.{_ONNX_TYPES[dtype]},\n")
    words = {
        "{settings}": "".join(lines),
        "{types}": "QuantType, " if any("QuantType" in line for line in lines) else "",
        "{quantize}": "quantize_dynamic" if settings.dynamic else "quantize_static",
        "{calibration}": "" if settings.dynamic else " calibration_data_reader,",
    }

    def filled(text: str) -> str:
        for word, meaning in words.items():
            text = text.replace(word, meaning)
        return text

    chosen = [r for r in RECIPES.get(framework, ()) if not (settings.dynamic and r is ONNXRUNTIME_INT16)]
    return [msgspec.structs.replace(r, before=filled(r.before), after=filled(r.after)) for r in chosen]


def write(recipe: Recipe, ops: Sequence[str], tensors: Mapping[str, str], patterns: Sequence[str] = ()) -> str:
    by_pattern = bool(patterns) and "{pattern}" in recipe.item
    words = [{"pattern": p} for p in patterns] if by_pattern else [_words(name, tensors) for name in ops]
    items = dict.fromkeys(_filled(recipe.item, w) for w in words)
    return recipe.before + recipe.between.join(items) + recipe.after


def _words(name: str, tensors: Mapping[str, str]) -> dict[str, str]:
    path = name.strip("/").split("/")
    pattern = re.sub(r"([\\.^$*+?{}()\[\]|])", r"\\\1", name)
    return {
        "name": name,
        "pattern": pattern,
        "tensor": tensors.get(name) or name,
        "module": ".".join(path[:-1] or path),
    }


def _filled(item: str, words: Mapping[str, str]) -> str:
    """In one go: a name may itself hold the text of a placeholder."""
    return re.sub("|".join(rf"\{{{word}\}}" for word in words), lambda m: _quoted(words[m[0][1:-1]]), item)


def _quoted(text: str) -> str:
    """A string as JSON and Python both read it."""
    return json.dumps(text, ensure_ascii=False)
