"""Any model of TensorFlow as a frozen graph, or as the bytes of a TFLite file."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from inc_tb.errors import ModelError
from inc_tb.frameworks.registry import describe
from inc_tb.frameworks.tensorflow.concrete import from_function
from inc_tb.frameworks.tensorflow.files import is_checkpoint
from inc_tb.frameworks.tensorflow.forms import Frozen, Lite, first_line, source_of
from inc_tb.frameworks.tensorflow.layers import EXPECTED, from_keras, from_keras_file, is_keras
from inc_tb.frameworks.tensorflow.library import tf
from inc_tb.frameworks.tensorflow.quiet import quiet

_EXPORT = "Restore it into the model, and export that."
_VARIABLES = {"VariableV2", "Variable", "VarHandleOp"}
_NO_RESULTS = {"NoOp", "Assert", "Const", "Placeholder", "HostConst"}


def open_source(model: Any) -> Frozen | Lite:
    if isinstance(model, Frozen | Lite):
        return model
    if isinstance(model, str | PathLike):
        return _open_path(Path(model))
    if isinstance(model, bytes | bytearray):
        return _lite(bytes(model), "the given TFLite model")
    if isinstance(model, tf.compat.v1.GraphDef):
        return _from_graph_def(model, "the given GraphDef")
    if isinstance(model, tf.Graph):
        return _from_graph_def(model.as_graph_def(), "the given Graph")
    if hasattr(model, "structured_input_signature") and hasattr(model, "graph"):
        return from_function(model, describe(model))
    if hasattr(model, "get_concrete_function"):
        return from_function(_only_concrete(model), describe(model))
    if getattr(model, "signatures", None):
        return from_function(_only_signature(model.signatures, describe(model)), describe(model))
    if is_keras(model):
        return from_keras(model)
    raise ModelError(f"{describe(model)} was given. {EXPECTED}")


def _open_path(path: Path) -> Frozen | Lite:
    suffix = path.suffix.lower()
    if path.is_dir():
        if any((path / f"saved_model.{kind}").is_file() for kind in ("pb", "pbtxt")):
            return _from_saved_model(path)
        found = sorted(p.name for p in path.iterdir())
        if any(name.endswith(".index") or name == "checkpoint" for name in found):
            raise ModelError(f"{path}: holds a checkpoint, which has weights but no graph. {EXPECTED} {_EXPORT}")
        raise ModelError(f"{path}: has no saved_model.pb (found: {', '.join(found[:5]) or 'nothing'}). {EXPECTED}")
    if is_checkpoint(path):
        raise ModelError(f"{path}: a checkpoint has weights but no graph. {EXPECTED} {_EXPORT}")
    try:
        if suffix == ".tflite":
            return _lite(path.read_bytes(), str(path))
        if suffix in (".keras", ".h5"):
            return from_keras_file(path)
        if path.name == "saved_model.pb":
            return _from_saved_model(path.parent)
        graph_def = tf.compat.v1.GraphDef()
        graph_def.ParseFromString(path.read_bytes())
    except (DecodeError, OSError) as error:
        raise ModelError(f"{path}: not a model of TensorFlow ({first_line(error)}). {EXPECTED}") from error
    return _from_graph_def(graph_def, str(path))


def _lite(content: bytes, name: str) -> Lite:
    if content[4:8] != b"TFL3":
        raise ModelError(f"{name}: not a TFLite model (no TFL3 mark in its first bytes). {EXPECTED}")
    return Lite(name, content)


def _from_graph_def(graph_def: Any, name: str) -> Frozen:
    if not graph_def.node:
        raise ModelError(f"{name}: has no nodes. {EXPECTED}")
    variables = [node.name for node in graph_def.node if node.op in _VARIABLES]
    if variables:
        raise ModelError(
            f"{name}: not frozen, {variables[0]} is a variable. Give the SavedModel, or freeze the graph with its "
            "checkpoint first (convert_variables_to_constants)."
        )
    read = {source_of(i)[0] for node in graph_def.node for i in node.input}
    inputs = [node.name for node in graph_def.node if node.op == "Placeholder"]
    outputs = [node.name for node in graph_def.node if node.name not in read and node.op not in _NO_RESULTS]
    if not inputs or not outputs:
        raise ModelError(f"{name}: has no inputs (placeholders) or no results. {EXPECTED}")
    return Frozen(name, _silent(graph_def), [(n, f"{n}:0") for n in inputs], [(n, f"{n}:0") for n in outputs])


def _silent(graph_def: Any) -> Any:
    """Neural Compressor's logged graphs print whole tensors at every run."""
    quiet_def = tf.compat.v1.GraphDef()
    quiet_def.CopyFrom(graph_def)
    for node in quiet_def.node:
        if node.op == "Print":
            _hand_on(node)
    return quiet_def


def _hand_on(node: Any) -> None:
    """It becomes a node that gives what it gets first."""
    dtype = node.attr["T"].type if "T" in node.attr else tf.float32.as_datatype_enum
    name, first = node.name, node.input[0]
    node.Clear()
    node.MergeFrom(tf.compat.v1.NodeDef(name=name, op="Identity", input=[first]))
    node.attr["T"].type = dtype


def _from_saved_model(path: Path) -> Frozen:
    try:
        with quiet():
            loaded = tf.saved_model.load(fspath(path))
    except Exception as error:  # TensorFlow raises many unrelated classes
        raise ModelError(f"{path}: TensorFlow cannot load it: {first_line(error)}. {EXPECTED}") from error
    found = from_function(_only_signature(loaded.signatures, str(path)), str(path))
    if not found.layers:
        found.layers = frozenset(str(name) for name in (layer.name for layer in getattr(loaded, "layers", ())))
    return found


def _only_signature(signatures: Any, name: str) -> Any:
    names = list(signatures)
    if not names:
        raise ModelError(
            f"{name}: has no signature; expected serving_default. Save it with signatures=... of tf.saved_model.save."
        )
    chosen = "serving_default" if "serving_default" in names else names[0] if len(names) == 1 else None
    if chosen is None:
        raise ModelError(
            f"{name}: has the signatures {names}; expected serving_default, or one alone. Load it, keep what "
            "tf.saved_model.load(path) returns, and give one of its signatures[name]."
        )
    return signatures[chosen]


def _only_concrete(function: Any) -> Any:
    made = function._list_all_concrete_functions() if hasattr(function, "_list_all_concrete_functions") else []
    if len(made) == 1:
        return made[0]
    if not made and getattr(function, "input_signature", None) is not None:
        return function.get_concrete_function()
    raise ModelError(
        f"{describe(function)} was traced for {len(made)} signatures; expected one. Give "
        "function.get_concrete_function(tf.TensorSpec(...))."
    )


def as_reference(frozen: Frozen | Lite) -> Frozen:
    """The same graph without its fake quantization: what only rounds hands on what it gets."""
    if isinstance(frozen, Lite):
        raise ModelError(f"{frozen.name}: needs a reference beside it; expected the fp32 model. Give it first.")
    graph_def = tf.compat.v1.GraphDef()
    graph_def.CopyFrom(frozen.graph_def)
    rounding = [node for node in graph_def.node if node.op.startswith(("FakeQuantWithMinMax", "QuantizeAndDequantize"))]
    if not rounding:
        raise ModelError(f"{frozen.name}: has no fake quantization to leave out; expected a reference beside it.")
    for node in rounding:
        _hand_on(node)
    return replace(frozen, name=f"{frozen.name} without fake quantization", graph_def=graph_def)
