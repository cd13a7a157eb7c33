"""Configs of the tools that quantize PyTorch models."""

from __future__ import annotations

from inc_tb.frameworks.formats import INC_BY_NAME, PLAIN, Format, Settings, with_activations
from inc_tb.records import Recipe

_MODULES = (
    "Keeps the modules in fp32, each with everything inside. An op that is no module itself, such as an addition, "
    "gives the module around it. Names of ONNX ops are read as torch's export writes them."
)

_UNNAMED = "\n# In no module of its own, so that this config cannot name it: {name}"
"""Below a config: an op that it cannot keep in fp32."""
RECURRENT = ("LSTM", "GRU", "LSTMCell", "GRUCell", "RNNCell")
"""Modules beside Linear that quantize_dynamic knows."""
OBSERVERS = {"histogram": "HistogramObserver", "minmax": "MinMaxObserver"}
_CALIBRATED = "for batch in calibration_batches:\n    prepared(*batch)\n"
_PREPARED = (
    f"\nprepared = prepare_fx(model, qconfig_mapping, example_inputs)\n{_CALIBRATED}quantized = convert_fx(prepared)"
)
_EXPORTED = (
    "\nany_size = tuple({0: torch.export.Dim.AUTO} for _ in example_inputs)  # of more than one sample\n"
    "exported = torch.export.export(model, example_inputs, dynamic_shapes=any_size, strict=False)\n"
    f"prepared = prepare_pt2e(exported.module(), quantizer)\n{_CALIBRATED}quantized = convert_pt2e(prepared)"
)


def _inc_torch(settings: Settings) -> Recipe:
    config = "DynamicQuantConfig" if settings.dynamic else "StaticQuantConfig"
    return Recipe(
        "inc-torch", "Neural Compressor 3.x for PyTorch: set_local",
        f"from neural_compressor.torch.quantization import {config}\n\n"
        f'fp32 = {config}(w_dtype="fp32", act_dtype="fp32")\nquant_config = (\n    {config}()\n',
        "    .set_local({module}, fp32)", "\n", "\n)",
        _MODULES, unnamed=_UNNAMED,
    )  # fmt: skip


def pt2e(settings: Settings) -> Recipe:
    """Told to keep the `whole_model`, it does: all that it can do for an op in no module, as it knows modules only."""
    told = settings.told
    arguments = ["is_dynamic=True"] if settings.dynamic else []
    arguments += [f"reduce_range={told['reduce_range']}"] if told else []
    start = "import torch\nfrom torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e\n"
    whole = '    .set_module_name_qconfig("", None)  # all of it, for what is in no module\n'
    return Recipe(
        "torch-pt2e", "PyTorch PT2E: quantizer of torchao",
        f"{start if told else ''}from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86\n\n"
        "quantizer = (\n    x86.X86InductorQuantizer()\n"
        f"    .set_global(x86.get_default_x86_inductor_quantization_config({', '.join(arguments)}))\n"
        f"{whole if told.get('whole_model') else ''}",
        "    .set_module_name_qconfig({module}, None)", "\n", f"\n){_EXPORTED if told else ''}",
        f"For prepare_pt2e. {_MODULES}", unnamed=_UNNAMED,
    )  # fmt: skip


def quantize_dynamic(settings: Settings) -> Recipe:
    """Of linear layers, and where it was told to also of recurrent ones, which know no scales per channel."""
    qconfig = "per_channel_dynamic_qconfig" if settings.per_channel else "default_dynamic_qconfig"
    kinds, chosen, imported, qconfigs = "is torch.nn.Linear", qconfig, {qconfig}, ""
    if settings.told:
        kinds, chosen, imported = "in qconfigs", "qconfigs[type(module)]", {qconfig, "default_dynamic_qconfig"}
        recurrent = ", ".join(f"torch.nn.{kind}" for kind in RECURRENT)
        qconfigs = f"\nqconfigs = dict.fromkeys([{recurrent}], default_dynamic_qconfig)"
        qconfigs += f"\nqconfigs[torch.nn.Linear] = {qconfig}"
    return Recipe(
        "torch-dynamic", "PyTorch: quantize_dynamic",
        f"import torch\nfrom torch.ao.quantization import {', '.join(sorted(imported))}, quantize_dynamic\n\n"
        "keep = [\n",
        "    {module}", ",\n",
        f"\n]{qconfigs}\nchosen = {{\n    name: {chosen}\n    for name, module in model.named_modules()\n"
        f"    if type(module) {kinds} and name not in keep\n}}\nquantized = quantize_dynamic(model, chosen)",
        "Keeps the modules in fp32. Other kinds of modules that you quantize are yours to add.", unnamed=_UNNAMED,
    )  # fmt: skip


def qconfig_mapping(settings: Settings) -> Recipe:
    told, mapping = settings.told, "get_default_qconfig_mapping()"
    start = "import operator\n\nimport torch\nfrom torch.ao.quantization import get_default_qconfig_mapping\n\n"
    if told:
        start, mapping = _own_qconfig(settings), "qconfig_mapping.set_global(qconfig)"
    return Recipe(
        "torch", "PyTorch FX: qconfig mapping",
        f"{start}qconfig_mapping = (\n    {mapping}\n",
        "    .set_module_name({module}, None)", "\n", f"\n){_PREPARED if told else ''}",
        f"{_MODULES} Functions are told by their place, methods by their name: all calls of it.",
        "    .{statement}", _UNNAMED,
    )  # fmt: skip


def _own_qconfig(settings: Settings) -> str:
    observer = OBSERVERS[settings.told["calibrator"]]
    weights = "default_per_channel_weight_observer" if settings.per_channel else "default_weight_observer"
    return (
        "import operator\n\nimport torch\n"
        f"from torch.ao.quantization import {observer}, QConfig, {weights}, get_default_qconfig_mapping\n"
        "from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx\n\n"
        f"qconfig = QConfig({observer}.with_args(reduce_range={settings.told['reduce_range']}), {weights})\n"
        "qconfig_mapping = get_default_qconfig_mapping()\n"
        "for kind, own in list(qconfig_mapping.object_type_qconfigs.items()):\n"
        "    if own == qconfig_mapping.global_qconfig:  # others have a grid of their own\n"
        "        qconfig_mapping.set_object_type(kind, qconfig)\n"
    )


def _per_channel(settings: Settings) -> Recipe | None:
    if settings.per_channel:
        return None
    text = (
        "import torch\nfrom torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic\n\n"
        "quantized = quantize_dynamic(model, {torch.nn.Linear: per_channel_dynamic_qconfig})"
        if settings.dynamic
        else "from torch.ao.quantization import get_default_qconfig_mapping\n\n"
        'qconfig_mapping = get_default_qconfig_mapping("x86")'
    )
    return Recipe(
        "torch-per-channel", "PyTorch: a scale per channel", text, "", "", "",
        "Keeps no module in fp32: the weights of every module get a scale for each channel. Cures causes in the "
        "weights, not those in the activations.",
    )  # fmt: skip


def quantize_(settings: Settings) -> Recipe:
    """Of torchao; its config is the user's own unless the tool was told one."""
    name = "Int8DynamicActivationInt8WeightConfig" if settings.dynamic else "Int8WeightOnlyConfig"
    imported, config = (f"{name}, quantize_", f"{name}()") if settings.told else ("quantize_", "config")
    return Recipe(
        "torchao", "torchao: quantize_ with a filter",
        f"import torch\nfrom torchao.quantization import {imported}\n\nkeep = [\n", "    {module}", ",\n",
        f"\n]\nquantize_(\n    model, {config},\n"
        "    filter_fn=lambda module, name: isinstance(module, torch.nn.Linear) and name not in keep,\n)",
        f"Keeps the modules as they are{'' if settings.told else '; config is yours'}.", unnamed=_UNNAMED,
    )  # fmt: skip


INC_TORCH = Format("inc-torch", with_activations(_inc_torch), ("set-local",))
FX = Format("torch", with_activations(qconfig_mapping), ("fx", "torch-fx", "qconfig-mapping"))
PT2E = Format("torch-pt2e", with_activations(pt2e), ("pt2e",))
_DYNAMIC = "torch-dynamic"
FORMATS = (
    Format(_DYNAMIC, lambda s: quantize_dynamic(s) if s.dynamic else None, ("quantize-dynamic",)),
    FX,
    PT2E,
    Format("torchao", quantize_),
    Format(
        "torch-per-channel",
        with_activations(_per_channel),
        ("per-channel",),
        {"weights_per_tensor": "conv|linear"},
        rounds=True,
    ),
    INC_TORCH,
    INC_BY_NAME,
    PLAIN,
    # Of a static model last: the others fit it better.
    Format(_DYNAMIC, with_activations(lambda s: None if s.dynamic else quantize_dynamic(s)), ("quantize-dynamic",)),
)
