"""MXNet's own quantization for oneDNN behind the Quantizer protocol."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from inc_tb.adapters.mxnet.graph import LOSSES, Graph, made_symbol
from inc_tb.adapters.mxnet.library import mx
from inc_tb.adapters.mxnet.model import fed
from inc_tb.adapters.mxnet.runtime import Executor, fused, shapes_of
from inc_tb.adapters.mxnet.source import SYMBOL, Source, first_line, open_source, write_files
from inc_tb.capture import Batch, describe
from inc_tb.errors import IncTbError, ModelError, UsageError
from inc_tb.records import Suggestion

_CHOICES: Mapping[str, Sequence[str]] = {
    "calibration": ("naive", "entropy"),
    "quantize_mode": ("full", "smart"),
    "granularity": ("tensor-wise", "channel-wise"),
    "quantized_dtype": ("auto", "int8", "uint8"),
}
_BACKEND = "MKLDNN_QUANTIZE"


class MxnetQuantizer:
    """`quantize_net`, whose calibration is done once for all trials. Models are folders; `evaluate` gets a SymbolBlock.

    Weights of convolutions have a scale for each channel in any case; `granularity` is for fully connected layers.
    """

    suffix = ""

    def __init__(
        self,
        *,
        calibration: Literal["naive", "entropy"] = "naive",
        quantize_mode: Literal["full", "smart"] = "full",
        granularity: Literal["tensor-wise", "channel-wise"] = "tensor-wise",
        quantized_dtype: Literal["auto", "int8", "uint8"] = "auto",
    ) -> None:
        self.settings: dict[str, Any] = {
            "calibration": calibration, "quantize_mode": quantize_mode, "granularity": granularity,
            "quantized_dtype": quantized_dtype,
        }  # fmt: skip
        for name, choices in _CHOICES.items():
            if self.settings[name] not in choices:
                raise UsageError(f"{name}={self.settings[name]!r} was given; expected one of {list(choices)}.")
        self._symbols: dict[str, str] = {}
        self._name = ""
        self._inputs: list[str] = []
        self._ranges: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}

    def prepare(self, model: Any, folder: Path) -> Path:
        """As a folder with both files; losses that want labels become what they give without."""
        source = _without_labels(open_source(model))
        graph = Graph(source)
        if graph.is_quantized:
            raise ModelError(f"{describe(model)}: is quantized already; expected the fp32 model.")
        joined = Graph(fused(source, _BACKEND))
        self._symbols = {part.name: node.symbol for node in joined.steps for part in node.parts}
        self._name, self._inputs, self._ranges = source.name, graph.inputs, {}
        target = folder / "prepared"
        write_files(source, target)
        return target

    def shown(self, model: Path) -> Any:
        """What `evaluate` gets."""
        source = _without_labels(open_source(model))
        return as_block(source, Graph(source).inputs)

    def quantize(
        self, model: Path, target: Path, calibration: Iterable[Batch], settings: Mapping[str, Any], keep: Sequence[str]
    ) -> None:
        source = fused(open_source(model)._replace(name=self._name), _BACKEND)
        try:
            write_files(self._quantized(source, calibration, settings, keep), target)
        except IncTbError:
            raise
        except Exception as error:  # MXNet and its calibration raise many unrelated classes
            raise ModelError(f"{self._name}: MXNet cannot quantize it so: {first_line(error)}.") from error

    def _quantized(
        self, source: Source, calibration: Iterable[Batch], settings: Mapping[str, Any], keep: Sequence[str]
    ) -> Source:
        tool, dtype = mx.contrib.quantization, settings["quantized_dtype"]
        symbol, args, aux, collector = tool.quantize_graph(
            sym=source.symbol, arg_params=source.args, aux_params=source.aux, ctx=mx.cpu(),
            excluded_sym_names=self._excluded(keep), calib_mode=settings["calibration"], quantized_dtype=dtype,
            quantize_mode=settings["quantize_mode"], quantize_granularity=settings["granularity"], logger=None,
        )  # fmt: skip
        known = self._ranges.setdefault((settings["calibration"], dtype), {})
        missing = [name for name in collector.include_layer if name not in known]
        if missing:
            known |= _calibrated(source, calibration, collector, missing, settings)
        symbol, args, aux = tool.calib_graph(
            qsym=symbol, arg_params=source.args, aux_params=source.aux, collector=SimpleNamespace(min_max_dict=known),
            calib_mode="customize", quantized_dtype=dtype, logger=None,
        )  # fmt: skip
        return fused(Source(source.name, symbol, args, aux), _BACKEND)

    def _excluded(self, keep: Sequence[str]) -> list[str]:
        """What quantize_net calls the ops, joined by oneDNN as they are."""
        return list(dict.fromkeys(self._symbols.get(name, name) for name in keep))

    def recipe(self, settings: Mapping[str, Any], keep: Sequence[str]) -> str:
        excluded = "".join(f"        {json.dumps(name)},\n" for name in self._excluded(keep))
        names = sorted(self._inputs)
        arrays = ", ".join(f"{json.dumps(name)}: samples[{json.dumps(name)}]" for name in names)
        return (
            "import mxnet as mx\nfrom mxnet.contrib.quantization import quantize_net_v2\n\n"
            f'network = mx.gluon.SymbolBlock.imports(\n    model_input + "/model{SYMBOL}", {json.dumps(names)}, '
            'model_input + "/model-0000.params"\n)\n'
            "# Your samples, by input. NDArrayIter sorts inputs by name: so do the networks here.\n"
            f"calib_data = mx.io.NDArrayIter({{{arrays}}}, batch_size=1)\n"
            f'quantized = quantize_net_v2(\n    network, quantized_dtype="{settings["quantized_dtype"]}", '
            f'quantize_mode="{settings["quantize_mode"]}",\n    quantize_granularity="{settings["granularity"]}",\n'
            f'    calib_data=calib_data, calib_mode="{settings["calibration"]}",\n'
            f"    exclude_layers=[\n{excluded}    ],\n)"
        )

    def variants(self) -> Sequence[Mapping[str, Any]]:
        base = self.settings
        found = [
            {**base, name: value} for name, value in
            (("calibration", "entropy"), ("calibration", "naive"), ("granularity", "channel-wise"))
        ]  # fmt: skip
        return [settings for settings in found if settings != base]

    def cures(
        self, settings: Mapping[str, Any], suggestions: Sequence[Suggestion], tensors: Mapping[str, str]
    ) -> Mapping[str, Mapping[str, Any]]:
        """Neither costs anything at run time."""
        wanted = {
            "ranges by entropy": {"calibration": "entropy"},
            "a scale for each row of fully connected layers": {"granularity": "channel-wise"},
        }
        return {what: {**settings, **c} for what, c in wanted.items() if {**settings, **c} != settings}


def as_block(source: Source, inputs: Sequence[str]) -> Any:
    """A network to call, as SymbolBlock.imports gives it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that types are not known yet
        block = mx.gluon.SymbolBlock(source.symbol, [mx.sym.var(name) for name in inputs])
    for name, parameter in block.collect_params().items():
        array = source.args.get(name, source.aux.get(name))
        parameter._load_init(array, mx.cpu(), cast_dtype=True, dtype_source="saved")
    return block


def _calibrated(
    source: Source, calibration: Iterable[Batch], collector: Any, names: list[str], settings: Mapping[str, Any]
) -> dict[str, tuple[float, float]]:
    """The ranges of these values."""
    collector.include_layer = names
    graph, executor, shapes = Graph(source), None, None
    for batch in calibration:
        feeds = fed(graph, batch)
        if executor is None or shapes != shapes_of(feeds):
            executor, shapes = Executor(source, feeds), shapes_of(feeds)
            executor.watch(collector.collect)
        executor.feed(feeds)
        executor.run()
    if settings["calibration"] == "naive":
        ranges = collector.min_max_dict
    else:
        ranges = mx.contrib.quantization._get_optimal_thresholds(collector.hist_dict, settings["quantized_dtype"])
    # Arrays of one number, some of them.
    return {name: (np.asarray(low).item(), np.asarray(high).item()) for name, (low, high) in ranges.items()}


def _without_labels(source: Source) -> Source:
    """A loss gets its data as the label, which does not matter for the result; only SVMOutput wants another shape."""
    document = json.loads(source.symbol.tojson())
    for node in (node for node in document["nodes"] if node["op"] in LOSSES):
        data = node["inputs"][0]
        if node["op"] == "SVMOutput":
            node |= {"op": "_copy", "inputs": [data], "attrs": {}}
        else:
            node["inputs"] = [data, data]
    return source._replace(symbol=made_symbol(document))
