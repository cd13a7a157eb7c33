"""TensorFlow's own quantization tools behind the Quantizer protocol."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from inc_tb.errors import IncTbError, ModelError, UsageError
from inc_tb.frameworks.choices import Choices, check_choices
from inc_tb.frameworks.formats import Settings
from inc_tb.frameworks.ops import Batch
from inc_tb.frameworks.registry import describe
from inc_tb.frameworks.templates import write
from inc_tb.frameworks.tensorflow.formats import denylist, int16, saved_model
from inc_tb.frameworks.tensorflow.forms import Frozen, Lite, first_line, source_of
from inc_tb.frameworks.tensorflow.frozen import FrozenGraph
from inc_tb.frameworks.tensorflow.library import tf
from inc_tb.frameworks.tensorflow.lite import LiteGraph
from inc_tb.frameworks.tensorflow.match import Matching
from inc_tb.frameworks.tensorflow.quiet import quiet
from inc_tb.frameworks.tensorflow.source import open_source
from inc_tb.records import Suggestion

_CHOICES: Choices = {
    "approach": ("tflite", "saved-model"),
    "activation_type": ("int8", "int16"),
    "per_channel": (True, False),
}


class TensorFlowQuantizer:
    """TFLite's converter, or `quantize_saved_model` (for XLA, the only one of its op sets that can keep ops in fp32).

    With TFLite, models are .tflite files; with the other, SavedModel folders, which `evaluate` gets loaded.
    """

    def __init__(
        self,
        *,
        approach: Literal["tflite", "saved-model"] = "tflite",
        activation_type: Literal["int8", "int16"] = "int8",
        per_channel: bool = True,
    ) -> None:
        self.settings: dict[str, Any] = {
            "approach": approach, "activation_type": activation_type, "per_channel": per_channel,
        }  # fmt: skip
        check_choices(self.settings, _CHOICES)
        if approach == "saved-model" and activation_type != "int8":
            raise UsageError(f"activation_type={activation_type!r} needs approach='tflite'; {approach!r} was given.")
        self._labels: dict[str, str] = {}
        self._debuggers: dict[bool, Any] = {}
        self._references: list[Any] = []
        self._ends: tuple[list[str], list[str]] = [], []
        self._float = Path()
        self._saved = Path()

    @property
    def suffix(self) -> str:
        """Of the models that it writes."""
        return ".tflite" if self.settings["approach"] == "tflite" else ""

    def prepare(self, model: Any, folder: Path) -> Path:
        """As a frozen graph, whose inputs and results are called as the user calls them."""
        source = open_source(model)
        if isinstance(source, Lite):
            raise ModelError(
                f"{source.name}: a TFLite file cannot be quantized again; expected the graph that it was made of. Give "
                "the SavedModel, the Keras model or the frozen graph."
            )
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / "prepared.pb"
        plain = _plain(source)
        target.write_bytes(plain.graph_def.SerializeToString(deterministic=True))
        graph = FrozenGraph(plain)
        if any(value.quantization is not None for value in graph.tensors.values()):
            raise ModelError(f"{describe(model)}: is quantized already; expected the fp32 model.")
        self._debuggers = {}
        self._references = [target, Path(model) if isinstance(model, str | PathLike) else None]
        self._ends = [t for _, t in plain.inputs], [t for _, t in plain.outputs]
        if self.settings["approach"] == "tflite":
            self._float = folder / "float.tflite"
            self._float.write_bytes(self._converted(_converter(plain)))
            lite = LiteGraph(Lite(str(self._float), self._float.read_bytes()))
            self._labels = _labels(graph, lite)
            with quiet(), contextlib.suppress(ValueError, RuntimeError):  # it says once that it has a delegate
                tf.lite.Interpreter(model_content=lite.source.content).allocate_tensors()
        else:
            self._saved = folder / "saved_model"
            _save(plain, self._saved)
        return target

    def shown(self, model: Path) -> Any:
        """What `evaluate` gets: a TFLite file also for fp32, or the SavedModel, loaded."""
        is_reference = model in self._references
        if self.settings["approach"] == "tflite":
            return self._float if is_reference else model
        with quiet():
            return tf.saved_model.load(str(self._saved if is_reference else model))

    def quantize(
        self, model: Path, target: Path, calibration: Iterable[Batch], settings: Mapping[str, Any], keep: Sequence[str]
    ) -> None:
        source = open_source(model)
        assert isinstance(source, Frozen)
        try:
            if settings["approach"] == "saved-model":
                with quiet():
                    _quantize_saved(self._saved, target, calibration, settings, keep)
            else:
                target.write_bytes(self._lite(source, calibration, settings, keep))
        except IncTbError:
            raise
        except Exception as error:  # TensorFlow raises many unrelated classes
            raise ModelError(f"{model}: TensorFlow cannot quantize it so: {first_line(error)}.") from error

    def _lite(
        self, source: Frozen, calibration: Iterable[Batch], settings: Mapping[str, Any], keep: Sequence[str]
    ) -> bytes:
        if settings["activation_type"] == "int16":
            if keep:
                raise ModelError("TFLite keeps no op in fp32 where activations have 16 bits; expected int8 for that.")
            converter = _converter(source, calibration, settings)
            ops = tf.lite.OpsSet
            converter.target_spec.supported_ops = [ops.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8]
            return self._converted(converter)
        is_per_channel = settings["per_channel"]
        with quiet():
            if is_per_channel not in self._debuggers:  # it calibrates, once for all trials
                data = _Representative(source, calibration)
                self._debuggers[is_per_channel] = tf.lite.experimental.QuantizationDebugger(
                    converter=_converter(source, calibration, settings), debug_dataset=data
                )
            debugger = self._debuggers[is_per_channel]
            # Where everything is kept there is nothing to debug, which it complains about after it has the options.
            with contextlib.suppress(ValueError):
                debugger.options = tf.lite.experimental.QuantizationDebugOptions(denylisted_nodes=self._denied(keep))
            return bytes(debugger.get_nondebug_quantized_model())

    def _converted(self, converter: Any) -> bytes:
        try:
            with quiet():
                return bytes(converter.convert())
        except Exception as error:  # TensorFlow raises many unrelated classes
            raise ModelError(f"TFLite cannot convert the model: {first_line(error)}.") from error

    def _denied(self, keep: Sequence[str]) -> list[str]:
        """The ops as TFLite calls them; those that are no op of their own there have no name."""
        return list(dict.fromkeys(self._labels[name] for name in keep if name in self._labels))

    def recipe(self, settings: Mapping[str, Any], keep: Sequence[str]) -> str:
        told = {**settings, "inputs": self._ends[0], "results": self._ends[1]}
        known = Settings(settings["per_channel"], settings["activation_type"], "int8", told=told)
        if settings["approach"] == "saved-model":
            return write(saved_model(known), keep)
        if settings["activation_type"] == "int16":
            return write(int16(known), [])
        return write(denylist(known), self._denied(keep))

    def variants(self) -> Sequence[Mapping[str, Any]]:
        """Not with 16 bits, where no op can be kept in fp32: a search that goes on from there gets nowhere."""
        base = {**self.settings, "activation_type": "int8"}
        found = [base, {**base, "per_channel": not base["per_channel"]}]
        return [settings for settings in found if settings != self.settings]

    def cures(
        self, settings: Mapping[str, Any], suggestions: Sequence[Suggestion], tensors: Mapping[str, str]
    ) -> Mapping[str, Mapping[str, Any]]:
        """Not 16 bits, from where a search cannot go on; see `variants`."""
        if settings["per_channel"]:
            return {}
        return {"a scale for each channel of the weights": {**settings, "per_channel": True}}  # costs nothing


class _Representative:
    """One sample at a time, in the order of the inputs."""

    def __init__(self, source: Frozen, calibration: Iterable[Batch]) -> None:
        self._names = [name for name, _ in source.inputs]
        self._calibration = calibration

    def __call__(self) -> Iterator[list[Any]]:
        for batch in self._calibration:
            arrays = [np.asarray(batch[name]) for name in self._names]
            rows = {len(a) for a in arrays if a.ndim}
            if len(rows) != 1:
                yield arrays
                continue
            for row in range(max(rows)):
                yield [a[row : row + 1] if a.ndim else a for a in arrays]


def _plain(source: Frozen) -> Frozen:
    """With results of their own names, and nothing that they do not need."""
    graph_def = tf.compat.v1.GraphDef()
    graph_def.CopyFrom(source.graph_def)
    taken = {node.name for node in graph_def.node}
    renamed = {}
    for name, tensor in source.inputs:
        public = re.sub(r"[^A-Za-z0-9_.\-/]", "_", name)
        if tensor != f"{public}:0" and public not in taken:
            renamed[tensor.partition(":")[0]] = public
    for node in graph_def.node:
        node.name = renamed.get(node.name, node.name)
        node.input[:] = [renamed.get(i.removesuffix(":0"), i) for i in node.input]
    inputs = [renamed.get(tensor.partition(":")[0], tensor.partition(":")[0]) for _, tensor in source.inputs]
    outputs = [name for name, _ in source.outputs]
    if not _are_last(graph_def, source.outputs):
        outputs = [_add_result(graph_def, *named, _dtype(source, named[1])) for named in source.outputs]
    with quiet():
        pruned = tf.compat.v1.graph_util.extract_sub_graph(graph_def, [*outputs, *inputs])
    nodes = {node.name: node for node in pruned.node}
    order = [*inputs, *(name for name in nodes if name not in inputs)]
    ordered = tf.compat.v1.GraphDef(node=[nodes[name] for name in order], library=graph_def.library)
    ordered.versions.CopyFrom(graph_def.versions)
    return Frozen(source.name, ordered, [(n, f"{n}:0") for n in inputs], [(n, f"{n}:0") for n in outputs])


def _are_last(graph_def: Any, outputs: Sequence[tuple[str, str]]) -> bool:
    """Whether the file alone tells what the results are: the nodes that nobody reads, in their order."""
    read = {source_of(i)[0] for node in graph_def.node for i in node.input}
    place = {f"{node.name}:0": i for i, node in enumerate(graph_def.node) if node.name not in read}
    places = [place.get(tensor, -1) if tensor == f"{name}:0" else -1 for name, tensor in outputs]
    return -1 not in places and places == sorted(places)


def _add_result(graph_def: Any, public: str, tensor: str, dtype: int) -> str:
    name = re.sub(r"[^A-Za-z0-9_.\-/]", "_", public)
    while any(node.name == name for node in graph_def.node):
        name += "_"
    result = graph_def.node.add(name=name, op="Identity", input=[tensor])
    result.attr["T"].type = dtype
    return name


def _dtype(source: Frozen, tensor: str) -> int:
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(source.graph_def, name="")
        return int(graph.get_tensor_by_name(tensor).dtype.as_datatype_enum)


def _function(source: Frozen) -> Any:
    wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(source.graph_def, name=""), [])
    return wrapped.prune([tensor for _, tensor in source.inputs], [tensor for _, tensor in source.outputs])


def _converter(
    source: Frozen, calibration: Iterable[Batch] | None = None, settings: Mapping[str, Any] | None = None
) -> Any:
    with quiet():
        converter = tf.lite.TFLiteConverter.from_concrete_functions([_function(source)])
    if calibration is not None and settings is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = _Representative(source, calibration)
        converter._experimental_disable_per_channel = not settings["per_channel"]
    return converter


def _labels(graph: FrozenGraph, lite: LiteGraph) -> dict[str, str]:
    """What TFLite calls each op, or the op that it is part of."""
    matching = Matching(graph, lite)
    found = {m.step.name: lite.label(m.twin.outputs[0]) for m in matching.matches.values()}
    names = {step.index: step.name for step in graph.steps}
    return found | {names[i]: found[m.step.name] for i, m in matching.folded_into.items()}


def _save(source: Frozen, target: Path) -> None:
    """With the ops right in the signature's function, where the tool looks for their names."""
    names, module = [name for name, _ in source.inputs], tf.Module()
    graph = FrozenGraph(source)

    def call(*arguments: Any) -> dict[str, Any]:
        given = dict(zip(names, arguments, strict=True))
        made = tf.import_graph_def(source.graph_def, given, [tensor for _, tensor in source.outputs], name="")
        return {name: tensor for (name, _), tensor in zip(source.outputs, made, strict=True)}

    specs = [tf.TensorSpec(i.shape if i.is_known else None, i.dtype, name=i.name) for i in graph.inputs]
    with quiet():
        module.call = tf.function(call, input_signature=specs)
        tf.saved_model.save(module, str(target), signatures=module.call)


def _quantize_saved(
    source: Path, target: Path, calibration: Iterable[Batch], settings: Mapping[str, Any], keep: Sequence[str]
) -> None:
    tool = tf.quantization.experimental
    methods = tool.QuantizationMethod.PresetMethod
    options = tool.QuantizationOptions(
        quantization_method=tool.QuantizationMethod(preset_method=methods.METHOD_STATIC_RANGE_INT8),
        op_set=tool.QuantizationOptions.DESCRIPTOR.fields_by_name["op_set"].enum_type.values_by_name["XLA"].number,
        signature_keys=["serving_default"], tags=["serve"], enable_per_channel_quantization=settings["per_channel"],
    )  # fmt: skip
    for name in keep:
        spec = options.unit_wise_quantization_specs.add()
        spec.unit.add(node_name=name)
        spec.quantization_method.preset_method = methods.METHOD_NO_QUANTIZE
    data = [{n: tf.constant(a) for n, a in batch.items()} for batch in calibration]
    tool.quantize_saved_model(
        str(source), str(target), options, representative_dataset=data, overwrite_output_directory=True
    )
