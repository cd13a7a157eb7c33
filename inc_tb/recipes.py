"""A set of ops that should stay out of int8, as the configuration of the tools that can do it.

To add one: append it to the list of its framework in RECIPES. The page makes joint configurations from the same
templates, which are stored with the suggestions (src/recipes.ts); tests/data/recipe_cases.json holds both to the
same texts, and `python -m tests.test_recipes` writes it anew. tests/test_recipes_in_tools.py runs each in its tool.
Names that are not the ops' stand for what the user's own call has there.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from inc_tb.errors import UsageError
from inc_tb.records import GraphNode, Recipe

ONNXRUNTIME = Recipe(
    "onnxruntime", "ONNX Runtime: nodes_to_exclude",
    "from onnxruntime.quantization import {types}{quantize}\n\nnodes_to_exclude = [\n", "    {name}", ",\n",
    ",\n]\n{quantize}(\n    model_input, model_output,{calibration}\n"
    "    nodes_to_exclude=nodes_to_exclude{renamed},\n{settings})",
    "Keeps the ops in fp32, with the types and the granularity of this model. Your other settings (calibrator, format) "
    "are yours to add.",
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
ONNXRUNTIME_PER_CHANNEL = Recipe(
    "onnxruntime-per-channel", "ONNX Runtime: a scale per channel",
    "from onnxruntime.quantization import {types}{quantize}\n\n"
    "{quantize}(\n    model_input, model_output,{calibration}\n    per_channel=True,\n{settings})",
    "", "", "",
    "Keeps no op in fp32: the weights of every op get a scale for each channel. Cures causes in the weights, not those "
    "in the activations.",
)  # fmt: skip
# Neural Compressor looks names up after onnxruntime has optimized the model and a Gemm was taken apart; a key that is
# the plain name of such an op would match nothing, without a word.
INC = Recipe(
    "inc", "Neural Compressor 2.x: op_name_dict",
    "from neural_compressor.config import PostTrainingQuantConfig\n\n"
    'fp32 = {"activation": {"dtype": ["fp32"]}, "weight": {"dtype": ["fp32"]}}\nnames = [\n',
    "    {pattern}", ",\n",
    ",\n]\n# What becomes of a Gemm, and of a MatMul with an Add behind it, before the names are looked up.\n"
    'renamed = "(/MatMulAddFusion)?(_MatMul|_Add)?"\n'
    "op_name_dict = {name + renamed: fp32 for name in names}\n"
    "conf = PostTrainingQuantConfig({approach}op_name_dict=op_name_dict)",
    "Keeps the ops in fp32. The names are regular expressions, which have to match the whole name.",
)  # fmt: skip
INC_ONNX = Recipe(
    "inc-onnx", "Neural Compressor 3.x for ONNX: nodes_to_exclude",
    "from onnx_neural_compressor.quantization import {inc_types}config, quantize\n\nnames = [\n", "    {name}", ",\n",
    ",\n]\n# A MatMul with an Add behind it is renamed before the names are looked up.\n"
    'nodes_to_exclude = names + [name + "/MatMulAddFusion" for name in names]\n'
    "quantize(\n    model_input, model_output,\n    config.StaticQuantConfig(\n"
    "        calibration_data_reader, nodes_to_exclude=nodes_to_exclude,\n{inc_settings}    ),\n)",
    "Keeps the ops in fp32. For the package onnx-neural-compressor, whose set_local cannot say fp32 for static "
    "quantization; its version 1.0 also needs prettytable and scipy, which it does not install.",
)  # fmt: skip
INC_TORCH = Recipe(
    "inc-torch", "Neural Compressor 3.x for PyTorch: set_local",
    "from neural_compressor.torch.quantization import {Static}QuantConfig\n\n"
    'fp32 = {Static}QuantConfig(w_dtype="fp32", act_dtype="fp32")\n'
    "quant_config = (\n    {Static}QuantConfig()\n",
    "    .set_local({module}, fp32)", "\n", "\n)",
    "Keeps the modules in fp32, each with everything inside. An op that is no module itself, such as an addition, "
    "gives the module around it. Names of ONNX ops are read as torch's export writes them.",
)  # fmt: skip
NNCF = Recipe(
    "nncf", "NNCF: ignored scope",
    "import nncf\n\nignored_scope = nncf.IgnoredScope(\n    names=[\n", "        {name}", ",\n",
    ",\n    ]\n)\nquantized_model = nncf.quantize(model, calibration_dataset, ignored_scope=ignored_scope)",
    "Keeps the ops in fp32.",
)  # fmt: skip
TORCH = Recipe(
    "torch", "PyTorch FX: qconfig mapping",
    "from torch.ao.quantization import get_default_qconfig_mapping\n\n"
    "qconfig_mapping = (\n    get_default_qconfig_mapping()\n",
    "    .set_module_name({module}, None)", "\n", "\n)",
    INC_TORCH.note,
)  # fmt: skip
TORCH_PT2E = Recipe(
    "torch-pt2e", "PyTorch PT2E: quantizer of torchao",
    "from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86\n\n"
    "quantizer = (\n    x86.X86InductorQuantizer()\n"
    "    .set_global(x86.get_default_x86_inductor_quantization_config({is_dynamic}))\n",
    "    .set_module_name_qconfig({module}, None)", "\n", "\n)",
    f"For prepare_pt2e. {INC_TORCH.note}",
)  # fmt: skip
TFLITE = Recipe(
    "tflite", "TFLite: denylist",
    "import tensorflow as tf\n\ndebug_options = tf.lite.experimental.QuantizationDebugOptions(\n"
    "    denylisted_nodes=[\n",
    "        {name}", ",\n",
    ",\n    ]\n)",
    "Keeps the ops in float. For tf.lite.experimental.QuantizationDebugger, whose get_nondebug_quantized_model() gives "
    "the model. Works where the TFLite model has the same names as this one; its converter calls joined ops "
    "Relu;conv1.",
)  # fmt: skip
TORCH_DYNAMIC = Recipe(
    "torch-dynamic", "PyTorch: quantize_dynamic",
    "import torch\nfrom torch.ao.quantization import {qconfig}, quantize_dynamic\n\nkeep = [\n", "    {module}", ",\n",
    "\n]\nchosen = {\n    name: {qconfig}\n    for name, module in model.named_modules()\n"
    "    if type(module) is torch.nn.Linear and name not in keep\n}\nquantized = quantize_dynamic(model, chosen)",
    "Keeps the modules in fp32. Other kinds of modules that you quantize are yours to add.",
)  # fmt: skip
TORCHAO = Recipe(
    "torchao", "torchao: quantize_ with a filter",
    "import torch\nfrom torchao.quantization import quantize_\n\nkeep = [\n", "    {module}", ",\n",
    "\n]\nquantize_(\n    model, config,\n"
    "    filter_fn=lambda module, name: isinstance(module, torch.nn.Linear) and name not in keep,\n)",
    "Keeps the modules as they are; config is yours.",
)  # fmt: skip
TORCH_PER_CHANNEL = Recipe(
    "torch-per-channel", "PyTorch: a scale per channel",
    "{per_channel_import}\n\n{per_channel}", "", "", "",
    "Keeps no module in fp32: the weights of every module get a scale for each channel. Cures causes in the weights, "
    "not those in the activations.",
)  # fmt: skip
TENSORFLOW_LITE = Recipe(
    "tflite", "TFLite: denylist",
    "import re\n\nimport tensorflow as tf\n\nkeep = [\n", "    {name}", ",\n",
    ",\n]\ndebugger = tf.lite.experimental.QuantizationDebugger(\n"
    "    converter=converter, debug_dataset=representative_dataset\n)\n"
    "# TFLite calls an op by all that it is made of, a;b;c, with digits behind names that it has twice.\n"
    'kept = re.compile("|".join(re.escape(name) + r"\\d*" for name in keep))\n'
    "details = tf.lite.Interpreter(model_content=debugger.calibrated_model).get_tensor_details()\n"
    'names = [d["name"] for d in details if any(map(kept.fullmatch, d["name"].split(";")))]\n'
    "debugger.options = tf.lite.experimental.QuantizationDebugOptions(denylisted_nodes=names)\n"
    "content = debugger.get_nondebug_quantized_model()",
    "Keeps the ops in float. The converter is yours, with its optimizations and representative_dataset set.",
)  # fmt: skip
TENSORFLOW_LITE_INT16 = Recipe(
    "tflite-int16", "TFLite: 16-bit activations",
    "import tensorflow as tf\n\nconverter.target_spec.supported_ops = [\n"
    "    tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8\n]\ncontent = converter.convert()",
    "", "", "",
    "Keeps no op in float: all activations get 16 bits. Cures causes in the activations, not those in the weights, "
    "which stay int8.",
)  # fmt: skip
TENSORFLOW_LITE_PER_CHANNEL = Recipe(
    "tflite-per-channel", "TFLite: a scale per channel",
    "converter._experimental_disable_per_channel = False\ncontent = converter.convert()", "", "", "",
    "Keeps no op in float: the weights of every convolution get a scale for each channel. Cures causes in the weights, "
    "not those in the activations.",
)  # fmt: skip
TENSORFLOW_SAVED_MODEL = Recipe(
    "saved-model", "TensorFlow: quantize_saved_model, by unit",
    "import tensorflow as tf\n"
    "from tensorflow.compiler.mlir.quantization.tensorflow import quantization_options_pb2 as quantization\n\n"
    "tool = tf.quantization.experimental\nmethods = tool.QuantizationMethod.PresetMethod\n"
    "options = tool.QuantizationOptions(\n"
    "    quantization_method=tool.QuantizationMethod(preset_method=methods.METHOD_STATIC_RANGE_INT8),\n"
    '    op_set=quantization.XLA, signature_keys=["serving_default"], tags=["serve"],\n)\nfor name in [\n',
    "    {name}", ",\n",
    ",\n]:\n    spec = options.unit_wise_quantization_specs.add()\n    spec.unit.add(node_name=name)\n"
    "    spec.quantization_method.preset_method = methods.METHOD_NO_QUANTIZE\n"
    "tool.quantize_saved_model(saved_model, target, options, representative_dataset=representative_dataset)",
    "Keeps the ops in float. Of the tool's op sets only XLA heeds this.",
)  # fmt: skip
INC_BY_NAME = Recipe(
    "inc", "Neural Compressor 2.x: op_name_dict",
    "from neural_compressor.config import PostTrainingQuantConfig\n\n"
    'fp32 = {"activation": {"dtype": ["fp32"]}, "weight": {"dtype": ["fp32"]}}\nop_name_dict = {\n',
    "    {pattern}: fp32", ",\n",
    ",\n}\nconf = PostTrainingQuantConfig({approach}op_name_dict=op_name_dict)",
    INC.note,
)  # fmt: skip
_JOINED = (
    "The names are those of the symbols that oneDNN makes of the ops, sg_mkldnn_conv_bn_act_0 and the like, which stay "
    "the same for the same network."
)
MXNET = Recipe(
    "mxnet", "MXNet: quantize_net, exclude_layers",
    "from mxnet.contrib.quantization import quantize_net_v2\n\nexclude_layers = [\n", "    {module}", ",\n",
    ",\n]\nquantized = quantize_net_v2(\n    network, exclude_layers=exclude_layers, {net_data},\n"
    "    calib_mode={calib_mode}\n)",
    f"Keeps the ops in fp32. {_JOINED} Your other settings (calibration, quantize_mode) are yours to add.",
)  # fmt: skip
MXNET_MODEL = Recipe(
    "mxnet-model", "MXNet: quantize_model_mkldnn, excluded_sym_names",
    "from mxnet.contrib.quantization import quantize_model_mkldnn\n\nexcluded_sym_names = [\n", "    {module}", ",\n",
    ",\n]\nqsym, qarg_params, aux_params = quantize_model_mkldnn(\n"
    '    sym, arg_params, aux_params, excluded_sym_names=excluded_sym_names, quantized_dtype="auto",{model_data}\n'
    "    calib_mode={calib_mode}\n)",
    f"For symbols and modules. Keeps the ops in fp32. {_JOINED}",
)  # fmt: skip
INC_MXNET = Recipe(
    "inc", "Neural Compressor 2.x: op_name_dict",
    "import re\n\nfrom neural_compressor.config import PostTrainingQuantConfig\n\n"
    'fp32 = {"activation": {"dtype": ["fp32"]}, "weight": {"dtype": ["fp32"]}}\nnames = [\n',
    "    {module}", ",\n",
    ",\n]\nop_name_dict = {re.escape(name): fp32 for name in names}\n"
    "conf = PostTrainingQuantConfig({approach}op_name_dict=op_name_dict)",
    f"Keeps the ops in fp32 that are calibrated; it does not know those that hand values on, as pooling. {_JOINED}",
)  # fmt: skip
INC_TENSORFLOW = Recipe(
    "inc-tensorflow", "Neural Compressor 3.x for TensorFlow: set_local",
    "from neural_compressor.tensorflow.quantization import StaticQuantConfig\n\n"
    'fp32 = StaticQuantConfig(weight_dtype="fp32", act_dtype="fp32")\n'
    "quant_config = (\n    StaticQuantConfig()\n",
    '    .set_local({pattern} "$", fp32)', "\n", "\n)",
    "Keeps the ops in fp32. The names are regular expressions, of which Neural Compressor looks at the beginning only.",
)  # fmt: skip
PLAIN = Recipe("json", "JSON: list of names", '{"fp32": [\n', "    {name}", ",\n", "\n]}", "For tools of your own.")

RECIPES: Mapping[str, Sequence[Recipe]] = {
    "mxnet": (MXNET, MXNET_MODEL, INC_MXNET, PLAIN),
    "onnx": (
        ONNXRUNTIME, ONNXRUNTIME_INT16, ONNXRUNTIME_PER_CHANNEL, INC, INC_ONNX, INC_TORCH, NNCF, TORCH, TORCH_PT2E,
        TFLITE, PLAIN,
    ),
    "tensorflow": (
        TENSORFLOW_LITE, TENSORFLOW_LITE_INT16, TENSORFLOW_LITE_PER_CHANNEL, TENSORFLOW_SAVED_MODEL, INC_BY_NAME,
        INC_TENSORFLOW, PLAIN,
    ),
    "torch": (TORCH_DYNAMIC, TORCH, TORCH_PT2E, TORCHAO, TORCH_PER_CHANNEL, INC_TORCH, INC_BY_NAME, PLAIN),
}  # fmt: skip
_PER_CHANNEL = {
    True: {
        "{per_channel_import}": "import torch\nfrom torch.ao.quantization import per_channel_dynamic_qconfig, "
        "quantize_dynamic",
        "{per_channel}": "quantized = quantize_dynamic(model, {torch.nn.Linear: per_channel_dynamic_qconfig})",
    },
    False: {
        "{per_channel_import}": "from torch.ao.quantization import get_default_qconfig_mapping",
        "{per_channel}": 'qconfig_mapping = get_default_qconfig_mapping("x86")',
    },
}
STATIC_ONLY = (
    ONNXRUNTIME_INT16, INC_ONNX, TENSORFLOW_LITE, TENSORFLOW_LITE_INT16, TENSORFLOW_SAVED_MODEL, INC_TENSORFLOW,
)  # fmt: skip
"""Not for a model whose ranges are found at run time: onnx-neural-compressor 1.0 fails at its convolutions, and
TensorFlow's tools keep no op of such a model in float."""
INC_WITH_ACTIVATIONS = (INC, INC_ONNX, INC_TORCH, INC_BY_NAME)
"""Not for a model of which only the weights are quantized: they would quantize activations as well."""

ALIASES: Mapping[str, str] = {
    "ort": "onnxruntime", "nodes-to-exclude": "onnxruntime",
    "per-channel": "onnxruntime-per-channel", "ort-per-channel": "onnxruntime-per-channel",
    "ort-int16": "onnxruntime-int16", "int16": "onnxruntime-int16", "tensorquantoverrides": "onnxruntime-int16",
    "neural-compressor": "inc", "inc2": "inc", "op-name-dict": "inc",
    "onnx-neural-compressor": "inc-onnx", "set-local": "inc-torch",
    "ignoredscope": "nncf", "ignored-scope": "nncf", "fx": "torch", "torch-fx": "torch", "qconfig-mapping": "torch",
    "pt2e": "torch-pt2e", "quantize-dynamic": "torch-dynamic", "denylist": "tflite", "denylisted-nodes": "tflite",
    "16x8": "tflite-int16", "int16x8": "tflite-int16", "quantize-saved-model": "saved-model",
    "quantize-net": "mxnet", "exclude-layers": "mxnet", "excluded-sym-names": "mxnet-model", "plain": "json",
}  # fmt: skip
"""What else people call a tool, or the setting that it takes -> `Recipe.tool`."""


_ONNX_TYPES = {"int8": "QInt8", "uint8": "QUInt8", "int16": "QInt16", "uint16": "QUInt16"}


class Settings(NamedTuple):
    """How a model is quantized, as far as it shows; a config that leaves it out would quantize another way."""

    per_channel: bool
    activation: str
    weight: str
    dynamic: bool = False

    @property
    def is_weight_only(self) -> bool:
        return bool(self.weight) and not self.activation and not self.dynamic

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
    ours = _arguments(settings, activation="int8", weight="int8")
    theirs = _arguments(settings, activation="uint8", weight="int8")
    words = {
        "{settings}": "".join(f"    {argument},\n" for argument in ours),
        "{types}": _import_for(ours),
        "{inc_settings}": "".join(f"        {argument},\n" for argument in theirs),
        "{inc_types}": _import_for(theirs),
        "{quantize}": "quantize_dynamic" if settings.dynamic else "quantize_static",
        # quantize_dynamic makes a MatMul and an Add of each Gemm before it looks the names up.
        "{renamed}": ' + [name + "_MatMul" for name in nodes_to_exclude]' if settings.dynamic else "",
        "{calibration}": "" if settings.dynamic else " calibration_data_reader,",
        "{approach}": 'approach="dynamic", ' if settings.dynamic else "",
        "{net_data}": "data_shapes=data_shapes" if settings.dynamic else "calib_data=calib_data",
        "{model_data}": "" if settings.dynamic else " calib_data=calib_data,",
        "{calib_mode}": '"none",' if settings.dynamic else '"naive",  # or the mode that you calibrate with',
        "{Static}": "Dynamic" if settings.dynamic else "Static",
        "{is_dynamic}": "is_dynamic=True" if settings.dynamic else "",
        "{qconfig}": "per_channel_dynamic_qconfig" if settings.per_channel else "default_dynamic_qconfig",
        **_PER_CHANNEL[settings.dynamic],
    }

    def filled(text: str) -> str:
        for word, meaning in words.items():
            text = text.replace(word, meaning)
        return text

    useless = [
        *(STATIC_ONLY if settings.dynamic else ()),
        *((ONNXRUNTIME_PER_CHANNEL, TORCH_PER_CHANNEL, TENSORFLOW_LITE_PER_CHANNEL) if settings.per_channel else ()),
        *(INC_WITH_ACTIVATIONS if settings.is_weight_only else ()),
    ]
    chosen = [r for r in RECIPES.get(framework, ()) if r not in useless]
    chosen.sort(key=lambda r: r is TORCH_DYNAMIC and not settings.dynamic)  # behind those that fit better
    return [msgspec.structs.replace(r, before=filled(r.before), after=filled(r.after)) for r in chosen]


def _arguments(settings: Settings, activation: str, weight: str) -> list[str]:
    """As onnxruntime calls them; types that are what the tool takes unless told otherwise are left out."""
    found = ["per_channel=True"] if settings.per_channel else []
    usual = {"activation_type": (settings.activation, activation), "weight_type": (settings.weight, weight)}
    for argument, (dtype, default) in usual.items():
        if settings.dynamic and argument == "activation_type":
            continue  # chosen at run time
        if dtype in _ONNX_TYPES and dtype != default:
            found.append(f"{argument}=QuantType.{_ONNX_TYPES[dtype]}")
    return found


def _import_for(arguments: Iterable[str]) -> str:
    return "QuantType, " if any("QuantType" in argument for argument in arguments) else ""


def recipes_for(framework: str, ops: Mapping[str, Any]) -> list[Recipe]:
    """The recipes for a model that was diagnosed; `ops` are the columns of its table."""
    columns = ("act_dtype", "weight_dtype", "weight_granularity", "act_scheme")
    return fitted(framework, Settings.seen_in(*(ops.get(column, ()) for column in columns)))


def configs(framework: str, table: Mapping[str, Any], graph: Iterable[GraphNode], ops: Sequence[str]) -> dict[str, str]:
    """Tool -> what keeps these ops in fp32 there."""
    nodes = list(graph)
    tensors, modules = {n.name: n.tensor for n in nodes}, {n.name: n.module for n in nodes}
    return {r.tool: write(r, ops, tensors, (), modules) for r in recipes_for(framework, table)}


def find_recipe(recipes: Sequence[Recipe], given: str) -> Recipe:
    """By the name of its tool or an alias, in any case, with - or _."""
    wanted = given.strip().lower().replace("_", "-")
    found = next((r for r in recipes if r.tool in (wanted, ALIASES.get(wanted))), None)
    if found is None:
        raise UsageError(f"format {given!r} is not among those for this run; expected one of {_listed(recipes)}.")
    return found


def _listed(recipes: Iterable[Recipe]) -> str:
    return ", ".join(recipe.tool for recipe in recipes)


def check_names(names: Iterable[str], known: Collection[str]) -> None:
    """Raise UsageError if a name is not one of the model's ops: a tool would silently keep nothing in fp32 for it."""
    there = set(known)
    missing = [name for name in dict.fromkeys(names) if name not in there]
    if missing:
        told = "; ".join(f"{name!r} ({_hint(name, known)})" for name in missing[:5])
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise UsageError(f"no op of this model is called {told}{more}. Give names as the table of ops has them.")


def check_patterns(patterns: Iterable[str], known: Collection[str]) -> None:
    """Raise UsageError unless each regular expression matches the whole name of at least one op of the model."""
    for pattern in dict.fromkeys(patterns):
        try:
            matches = re.compile(pattern).fullmatch
        except re.error as error:
            raise UsageError(f"{pattern!r} is no regular expression ({error}). Give one, or a plain name.") from None
        if not any(matches(name) for name in known):
            plain = re.sub(r"\\(.)", r"\1", pattern.replace(r"\d+", "0"))
            raise UsageError(f"no op of this model matches {pattern!r} ({_hint(plain, known)}).")


def exact_patterns(patterns: Sequence[str], ops: Iterable[str], known: Collection[str]) -> list[str]:
    """The patterns, which are shorter than a list of names, unless they would take in more ops than these."""
    check_patterns(patterns, known)
    matched = {name for name in known if any(re.fullmatch(pattern, name) for pattern in patterns)}
    return list(patterns) if matched == set(ops) else []


def _hint(name: str, known: Collection[str]) -> str:
    close = closest(name, known)
    return f"closest: {', '.join(close)}" if close else "nothing is close to it"


def closest(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Names that someone who wrote `name` may have meant, the likeliest first."""
    wanted = name.strip().lower()
    by_lower: dict[str, list[str]] = {}
    for candidate in known:
        by_lower.setdefault(candidate.lower(), []).append(candidate)
    if wanted in by_lower:
        return by_lower[wanted][:most]
    parts = [n for n in by_lower if _is_part(wanted.strip("/"), n.strip("/"))]
    parts.sort(key=lambda n: abs(len(n) - len(wanted)))
    alike = difflib.get_close_matches(wanted, by_lower, most, cutoff=0.6)
    found = dict.fromkeys([*parts[:most], *alike])
    return [candidate for n in found for candidate in by_lower[n]][:most]


def _is_part(given: str, name: str) -> bool:
    """Someone left out the beginning or the end of a name, or took it from the quantized model, where it is longer."""
    return (len(given) >= 3 and given in name) or (2 * len(name) >= len(given) and bool(name) and name in given)


def write(
    recipe: Recipe,
    ops: Sequence[str],
    tensors: Mapping[str, str],
    patterns: Sequence[str] = (),
    modules: Mapping[str, str] | None = None,
) -> str:
    """`tensors` and `modules` have what each op writes, and the PyTorch module it belongs to, where that is known."""
    by_pattern = bool(patterns) and "{pattern}" in recipe.item
    words = [{"pattern": p} for p in patterns] if by_pattern else [_words(name, tensors, modules or {}) for name in ops]
    if "{module}" in recipe.item:
        words = [w for w in words if w["module"]]  # the whole model is called "", and would be kept in fp32
    items = dict.fromkeys(_filled(recipe.item, w) for w in words)
    return recipe.before + recipe.between.join(items) + recipe.after


def _words(name: str, tensors: Mapping[str, str], modules: Mapping[str, str]) -> dict[str, str]:
    path = name.strip("/").split("/")
    pattern = re.sub(r"([\\.^$*+?{}()\[\]|])", r"\\\1", name)
    return {
        "name": name,
        "pattern": pattern,
        "tensor": tensors.get(name) or name,
        # What torch's export calls /Relu is a function at the top, in no module but the whole model.
        "module": modules.get(name) or ".".join(path[:-1] or ([] if name.startswith("/") else path)),
    }


def _filled(item: str, words: Mapping[str, str]) -> str:
    """In one go: a name may itself hold the text of a placeholder."""
    return re.sub("|".join(rf"\{{{word}\}}" for word in words), lambda m: _quoted(words[m[0][1:-1]]), item)


def _quoted(text: str) -> str:
    """A string as JSON and Python both read it."""
    return json.dumps(text, ensure_ascii=False)
