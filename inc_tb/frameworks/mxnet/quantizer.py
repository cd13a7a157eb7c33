"""MXNet's own quantization for oneDNN behind the Quantizer protocol."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from inc_tb.errors import IncTbError, ModelError
from inc_tb.frameworks.choices import Choices, check_choices
from inc_tb.frameworks.formats import Settings
from inc_tb.frameworks.mxnet.formats import exclude_layers
from inc_tb.frameworks.mxnet.graph import LOSSES, Graph, made_symbol
from inc_tb.frameworks.mxnet.library import mx
from inc_tb.frameworks.mxnet.model import fed
from inc_tb.frameworks.mxnet.network import Network, first_line, open_network, write_files
from inc_tb.frameworks.mxnet.runtime import Executor, fused, shapes_of
from inc_tb.frameworks.ops import Batch
from inc_tb.frameworks.registry import describe
from inc_tb.frameworks.templates import write
from inc_tb.records import Suggestion

_CHOICES: Choices = {
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
        check_choices(self.settings, _CHOICES)
        self._symbols: dict[str, str] = {}
        self._name = ""
        self._inputs: list[str] = []
        self._ranges: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}

    def prepare(self, model: Any, folder: Path) -> Path:
        """As a folder with both files; losses that want labels become what they give without."""
        network = _without_labels(open_network(model))
        graph = Graph(network)
        if graph.is_quantized:
            raise ModelError(f"{describe(model)}: is quantized already; expected the fp32 model.")
        joined = Graph(fused(network, _BACKEND))
        self._symbols = {part.name: node.symbol for node in joined.steps for part in node.parts}
        self._name, self._inputs, self._ranges = network.name, graph.inputs, {}
        target = folder / "prepared"
        write_files(network, target)
        return target

    @property
    def joined(self) -> dict[str, list[str]]:
        """What quantize_net calls several ops that oneDNN joins -> these ops."""
        found: dict[str, list[str]] = {}
        for op, symbol in self._symbols.items():
            found.setdefault(symbol, []).append(op)
        return found

    def shown(self, model: Path) -> Any:
        """What `evaluate` gets."""
        network = _without_labels(open_network(model))
        return as_block(network, Graph(network).inputs)

    def quantize(
        self, model: Path, target: Path, calibration: Iterable[Batch], settings: Mapping[str, Any], keep: Sequence[str]
    ) -> None:
        network = fused(open_network(model)._replace(name=self._name), _BACKEND)
        try:
            write_files(self._quantized(network, calibration, settings, keep), target)
        except IncTbError:
            raise
        except Exception as error:  # MXNet and its calibration raise many unrelated classes
            raise ModelError(f"{self._name}: MXNet cannot quantize it so: {first_line(error)}.") from error

    def _quantized(
        self, network: Network, calibration: Iterable[Batch], settings: Mapping[str, Any], keep: Sequence[str]
    ) -> Network:
        tool, dtype = mx.contrib.quantization, settings["quantized_dtype"]
        symbol, args, aux, collector = tool.quantize_graph(
            sym=network.symbol, arg_params=network.args, aux_params=network.aux, ctx=mx.cpu(),
            excluded_sym_names=self._excluded(keep), calib_mode=settings["calibration"], quantized_dtype=dtype,
            quantize_mode=settings["quantize_mode"], quantize_granularity=settings["granularity"], logger=None,
        )  # fmt: skip
        known = self._ranges.setdefault((settings["calibration"], dtype), {})
        missing = [name for name in collector.include_layer if name not in known]
        if missing:
            known |= _calibrated(network, calibration, collector, missing, settings)
        symbol, args, aux = tool.calib_graph(
            qsym=symbol, arg_params=network.args, aux_params=network.aux, collector=SimpleNamespace(min_max_dict=known),
            calib_mode="customize", quantized_dtype=dtype, logger=None,
        )  # fmt: skip
        return fused(Network(network.name, symbol, args, aux), _BACKEND)

    def _excluded(self, keep: Sequence[str]) -> list[str]:
        """What quantize_net calls the ops, joined by oneDNN as they are."""
        return list(dict.fromkeys(self._symbols.get(name, name) for name in keep))

    def recipe(self, settings: Mapping[str, Any], keep: Sequence[str]) -> str:
        told = {**settings, "inputs": self._inputs}
        known = Settings(settings["granularity"] == "channel-wise", settings["quantized_dtype"], "int8", told=told)
        return write(exclude_layers(known), keep, modules={name: self._symbols.get(name, name) for name in keep})

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


def as_block(network: Network, inputs: Sequence[str]) -> Any:
    """A network to call, as SymbolBlock.imports gives it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that types are not known yet
        block = mx.gluon.SymbolBlock(network.symbol, [mx.sym.var(name) for name in inputs])
    for name, parameter in block.collect_params().items():
        array = network.args.get(name, network.aux.get(name))
        parameter._load_init(array, mx.cpu(), cast_dtype=True, dtype_source="saved")
    return block


def _calibrated(
    network: Network, calibration: Iterable[Batch], collector: Any, names: list[str], settings: Mapping[str, Any]
) -> dict[str, tuple[float, float]]:
    """The ranges of these values."""
    collector.include_layer = names
    graph, executor, shapes = Graph(network), None, None
    for batch in calibration:
        feeds = fed(graph, batch)
        if executor is None or shapes != shapes_of(feeds):
            executor, shapes = Executor(network, feeds), shapes_of(feeds)
            executor.watch(collector.collect)
        executor.feed(feeds)
        executor.run()
    if settings["calibration"] == "naive":
        ranges = collector.min_max_dict
    else:
        ranges = mx.contrib.quantization._get_optimal_thresholds(collector.hist_dict, settings["quantized_dtype"])
    # Arrays of one number, some of them.
    return {name: (np.asarray(low).item(), np.asarray(high).item()) for name, (low, high) in ranges.items()}


def _without_labels(network: Network) -> Network:
    """A loss gets its data as the label, which does not matter for the result; only SVMOutput wants another shape."""
    document = json.loads(network.symbol.tojson())
    for node in (node for node in document["nodes"] if node["op"] in LOSSES):
        data = node["inputs"][0]
        if node["op"] == "SVMOutput":
            node |= {"op": "_copy", "inputs": [data], "attrs": {}}
        else:
            node["inputs"] = [data, data]
    return network._replace(symbol=made_symbol(document))
