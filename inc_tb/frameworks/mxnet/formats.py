"""Configs of the tools that quantize MXNet networks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inc_tb.frameworks.formats import INC_ALIASES, INC_LABEL, INC_START, PLAIN, Format, Settings, inc_conf
from inc_tb.frameworks.templates import quoted
from inc_tb.records import Recipe

_JOINED = (
    "The names are those of the symbols that oneDNN makes of the ops, sg_mkldnn_conv_bn_act_0 and the like, which stay "
    "the same for the same network."
)


def exclude_layers(settings: Settings) -> Recipe:
    """Told all settings and the `inputs` of a network, it is for the files that the network was written to."""
    data = "data_shapes=data_shapes" if settings.dynamic else "calib_data=calib_data"
    start, network, more = _of_files(settings.told) if settings.told else ("", "", "")
    return Recipe(
        "mxnet", "MXNet: quantize_net, exclude_layers",
        f"{start}from mxnet.contrib.quantization import quantize_net_v2\n\n{network}exclude_layers = [\n",
        "    {module}", ",\n",
        f",\n]\nquantized = quantize_net_v2(\n    network, exclude_layers=exclude_layers, {data},\n"
        f"{more}    calib_mode={_mode(settings)}\n)",
        f"Keeps the ops in fp32. {_JOINED} Your other settings (calibration, quantize_mode) are yours to add.",
    )  # fmt: skip


def _of_files(told: Mapping[str, Any]) -> tuple[str, str, str]:
    """What more to import, the network with its data, and more arguments."""
    names = sorted(told["inputs"])
    arrays = ", ".join(f"{quoted(name)}: samples[{quoted(name)}]" for name in names)
    network = (
        f'network = mx.gluon.SymbolBlock.imports(\n    model_input + "/model-symbol.json", {json.dumps(names)}, '
        'model_input + "/model-0000.params"\n)\n'
        "# Your samples, by input. NDArrayIter sorts inputs by name: so do the networks here.\n"
        f"calib_data = mx.io.NDArrayIter({{{arrays}}}, batch_size=1)\n"
    )
    more = (
        f'    quantized_dtype="{told["quantized_dtype"]}", quantize_mode="{told["quantize_mode"]}",\n'
        f'    quantize_granularity="{told["granularity"]}",\n'
    )
    return "import mxnet as mx\n", network, more


def _excluded_sym_names(settings: Settings) -> Recipe:
    data = "" if settings.dynamic else " calib_data=calib_data,"
    return Recipe(
        "mxnet-model", "MXNet: quantize_model_mkldnn, excluded_sym_names",
        "from mxnet.contrib.quantization import quantize_model_mkldnn\n\nexcluded_sym_names = [\n", "    {module}",
        ",\n",
        ",\n]\nqsym, qarg_params, aux_params = quantize_model_mkldnn(\n"
        f'    sym, arg_params, aux_params, excluded_sym_names=excluded_sym_names, quantized_dtype="auto",{data}\n'
        f"    calib_mode={_mode(settings)}\n)",
        f"For symbols and modules. Keeps the ops in fp32. {_JOINED}",
    )  # fmt: skip


def _mode(settings: Settings) -> str:
    if settings.told:
        return f'"{settings.told["calibration"]}",'
    return '"none",' if settings.dynamic else '"naive",  # or the mode that you calibrate with'


def _inc(settings: Settings) -> Recipe:
    return Recipe(
        "inc", INC_LABEL, f"import re\n\n{INC_START}names = [\n", "    {module}", ",\n",
        f",\n]\nop_name_dict = {{re.escape(name): fp32 for name in names}}\n{inc_conf(settings)}",
        f"Keeps the ops in fp32 that are calibrated; it does not know those that hand values on, as pooling. {_JOINED}",
    )  # fmt: skip


FORMATS = (
    Format("mxnet", exclude_layers, ("quantize-net", "exclude-layers")),
    Format("mxnet-model", _excluded_sym_names, ("excluded-sym-names",)),
    Format("inc", _inc, INC_ALIASES),
    PLAIN,
)
