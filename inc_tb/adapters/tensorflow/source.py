"""Any model of TensorFlow as a frozen graph, or as the bytes of a TFLite file."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

from inc_tb.adapters.tensorflow.library import tf
from inc_tb.adapters.tensorflow.quiet import quiet
from inc_tb.capture import describe, is_checkpoint
from inc_tb.errors import ModelError

_EXPECTED = "Expected a frozen graph (.pb), a SavedModel folder, a Keras file (.keras), or a TFLite file (.tflite)."
_EXPORT = "Restore it into the model, and export that."
_BY_HAND = (
    "Call it once with data, or give a concrete function: tf.function(model).get_concrete_function(tf.TensorSpec(...))."
)
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_PLACE = re.compile(r'<unknown>:0: error: loc\(.*?"([^"@:]+)(?:@[^"]*)?"\].*?\)+: ')
"""Of the compiler; the first name in it is the op's."""
_LONGEST = 300
_CALL = re.compile(r"^(?:(?:tf\.)?(?:Stateful)?PartitionedCall(?:_\d+)?/)+")
COMPOSITE = re.compile(r"^(?:__inference_)?(?:composite_)?((?:de)?quantize_i8|quantized_\w+?_fn)(?:_\d+)*$")
"""Functions that `quantize_saved_model` makes."""
_VARIABLES = {"VariableV2", "Variable", "VarHandleOp"}
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_NO_RESULTS = {"NoOp", "Assert", "Const", "Placeholder", "HostConst"}


@dataclass
class Frozen:
    """A graph without variables. Inputs and outputs: the name that users know, and the tensor."""

    name: str
    graph_def: Any
    inputs: list[tuple[str, str]]
    outputs: list[tuple[str, str]]
    layers: frozenset[str] = field(default_factory=frozenset)
    """Names of the Keras layers that it was made of."""


@dataclass
class Lite:
    name: str
    content: bytes


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
        return _from_function(model, describe(model))
    if hasattr(model, "get_concrete_function"):
        return _from_function(_only_concrete(model), describe(model))
    if getattr(model, "signatures", None):
        return _from_function(_only_signature(model.signatures, describe(model)), describe(model))
    if is_keras(model):
        return _from_keras(model)
    raise ModelError(f"{describe(model)} was given. {_EXPECTED}")


def is_keras(model: Any) -> bool:
    return any(c.__module__.startswith(("keras", "tf_keras")) and c.__name__ == "Model" for c in type(model).__mro__)


def _open_path(path: Path) -> Frozen | Lite:
    suffix = path.suffix.lower()
    if path.is_dir():
        if any((path / f"saved_model.{kind}").is_file() for kind in ("pb", "pbtxt")):
            return _from_saved_model(path)
        found = sorted(p.name for p in path.iterdir())
        if any(name.endswith(".index") or name == "checkpoint" for name in found):
            raise ModelError(f"{path}: holds a checkpoint, which has weights but no graph. {_EXPECTED} {_EXPORT}")
        raise ModelError(f"{path}: has no saved_model.pb (found: {', '.join(found[:5]) or 'nothing'}). {_EXPECTED}")
    if is_checkpoint(path):
        raise ModelError(f"{path}: a checkpoint has weights but no graph. {_EXPECTED} {_EXPORT}")
    try:
        if suffix == ".tflite":
            return _lite(path.read_bytes(), str(path))
        if suffix in (".keras", ".h5"):
            return _from_keras_file(path)
        if path.name == "saved_model.pb":
            return _from_saved_model(path.parent)
        graph_def = tf.compat.v1.GraphDef()
        graph_def.ParseFromString(path.read_bytes())
    except (DecodeError, OSError) as error:
        raise ModelError(f"{path}: not a model of TensorFlow ({first_line(error)}). {_EXPECTED}") from error
    return _from_graph_def(graph_def, str(path))


def _lite(content: bytes, name: str) -> Lite:
    if content[4:8] != b"TFL3":
        raise ModelError(f"{name}: not a TFLite model (no TFL3 mark in its first bytes). {_EXPECTED}")
    return Lite(name, content)


def _from_graph_def(graph_def: Any, name: str) -> Frozen:
    if not graph_def.node:
        raise ModelError(f"{name}: has no nodes. {_EXPECTED}")
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
        raise ModelError(f"{name}: has no inputs (placeholders) or no results. {_EXPECTED}")
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
        raise ModelError(f"{path}: TensorFlow cannot load it: {first_line(error)}. {_EXPECTED}") from error
    found = _from_function(_only_signature(loaded.signatures, str(path)), str(path))
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


def _from_keras_file(path: Path) -> Frozen:
    try:
        import keras
    except ModuleNotFoundError as error:
        raise ModelError(f"{path}: needs keras, which is not installed: pip install keras.") from error
    if path.suffix.lower() == ".keras" and not is_zipfile(path):
        raise ModelError(f"{path}: no Keras file, or a damaged one: it is no zip archive. {_EXPECTED} Save it again.")
    try:
        with quiet():
            model = keras.models.load_model(path, compile=False)
    except Exception as error:  # Keras raises many unrelated classes
        raise ModelError(f"{path}: Keras cannot load it: {first_line(error)}. {_EXPECTED}") from error
    found = _from_keras(model)
    found.name = str(path)
    return found


def _from_keras(model: Any) -> Frozen:
    name = describe(model)
    backend = _backend(model)
    if backend != "tensorflow":
        raise ModelError(f"{name} runs on the Keras backend {backend}; expected tensorflow (KERAS_BACKEND).")
    names, specs, structure = _keras_inputs(model, name)

    def call(*arguments: Any) -> Any:
        return model(tf.nest.pack_sequence_as(structure, list(arguments)), training=False)

    try:
        with quiet():
            concrete = tf.function(call, autograph=False).get_concrete_function(*specs)
    except Exception as error:  # the user's own layers may raise anything
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise ModelError(f"{name}: cannot be called ({reason}). {_BY_HAND}") from error
    found = _from_function(concrete, name, names=names)
    found.layers = frozenset(_layer_names(model))
    return found


def _backend(model: Any) -> str:
    if any(c.__module__.startswith("tf_keras") for c in type(model).__mro__):
        return "tensorflow"
    import keras

    return str(keras.backend.backend())


def _keras_inputs(model: Any, name: str) -> tuple[list[str], list[Any], Any]:
    """Names and specs of the inputs, and how a call has them."""
    try:
        inputs = list(model.inputs or ())
    except (AttributeError, ValueError):
        inputs = []
    if inputs:
        names = [str(i.name) for i in inputs]
        return names, [tf.TensorSpec(i.shape, i.dtype, _plain(i.name)) for i in inputs], _structure(model)
    shapes = model.get_build_config() if getattr(model, "built", False) and hasattr(model, "get_build_config") else None
    if not shapes or not shapes.get("input_shape"):
        raise ModelError(f"{name} does not know its inputs yet; expected a model that has been built. {_BY_HAND}")
    first = next(iter(inspect.signature(model.call).parameters), "inputs")
    named = _named_shapes(shapes["input_shape"], "", first)
    specs = tf.nest.map_structure(lambda leaf: tf.TensorSpec((None, *leaf.shape[1:]), model.input_dtype), named)
    flat = tf.nest.flatten(named)
    return [leaf.name for leaf in flat], tf.nest.flatten(specs), specs


@dataclass
class _Shape:
    name: str
    shape: Sequence[int | None]


def _named_shapes(shapes: Any, name: str, first: str) -> Any:
    """What a model of the user's own class has seen, in the form in which it takes it."""
    if isinstance(shapes, Mapping):
        return {
            key: _named_shapes(value, f"{name}/{key}" if name else str(key), first) for key, value in shapes.items()
        }
    if all(n is None or isinstance(n, int) for n in shapes):
        return _Shape(name or first, tuple(shapes))
    return [_named_shapes(part, f"{name or first}_{at}", first) for at, part in enumerate(shapes)]


def _structure(model: Any) -> Any:
    structure = getattr(model, "_inputs_struct", None)
    if structure is None:
        inner = getattr(model, "_functional", None)
        structure = getattr(inner, "_inputs_struct", None)
    if structure is None:
        return model.inputs if len(model.inputs) > 1 else model.inputs[0]
    return structure


def _layer_names(model: Any) -> list[str]:
    found = []
    for layer in getattr(model, "layers", ()):
        found.append(str(layer.name))
        found += _layer_names(layer)
    return found


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.\\-]", "_", name)


def _from_function(concrete: Any, name: str, names: Sequence[str] | None = None) -> Frozen:
    library = concrete.graph.as_graph_def().library.function
    if any(COMPOSITE.match(f.signature.name) for f in library):
        return _with_composites(concrete, name)
    try:
        with quiet():
            frozen = convert_variables_to_constants_v2(concrete, lower_control_flow=False)
    except AssertionError as error:
        raise ModelError(
            f"{name}: the variables that it uses are gone; expected the model that owns them to be there. Keep what "
            "tf.saved_model.load returned, or the module, in a variable."
        ) from error
    except Exception as error:  # TensorFlow raises many unrelated classes
        raise ModelError(f"{name}: its variables cannot be made constants: {first_line(error)}.") from error
    graph_def = _inlined(frozen.graph.as_graph_def())
    given = list(names or getattr(concrete, "_arg_keywords", None) or ())
    tensors = [t.name for t in frozen.inputs]
    if len(given) != len(tensors):
        given = [source_of(t)[0] for t in tensors]
    inputs = list(zip(given, tensors, strict=True))
    outputs = list(zip(_result_names(concrete), [t.name for t in frozen.outputs], strict=False))
    return _without_call_names(Frozen(name, graph_def, inputs, outputs))


def _inlined(graph_def: Any) -> Any:
    """With the bodies of the functions that freezing leaves alone, which are those to be compiled: Keras's grouped
    convolutions. What was the call hands on the results.
    """
    bodies = {f.signature.name: f for f in graph_def.library.function if not COMPOSITE.match(f.signature.name)}
    if not any(n.op in _CALLS and n.attr["f"].func.name in bodies for n in graph_def.node):
        return graph_def
    made = tf.compat.v1.GraphDef()
    made.library.CopyFrom(graph_def.library)
    for node in graph_def.node:
        if node.op not in _CALLS or node.attr["f"].func.name not in bodies:
            made.node.add().CopyFrom(node)
            continue
        body = bodies[node.attr["f"].func.name]
        inner, flat = function_def_to_graph_def(body)
        given = {a.name: i for a, i in zip(body.signature.input_arg, node.input, strict=False)}
        for part in inner.node:
            if part.name not in given:
                part.input[:] = [_within(node.name, i, given) for i in part.input]
                part.name = f"{node.name}/{part.name}"
                made.node.add().CopyFrom(part)
        results = [flat[body.ret[result.name]] for result in body.signature.output_arg]
        end = made.node.add(name=node.name, op="IdentityN", input=[_within(node.name, r, given) for r in results])
        end.attr["T"].CopyFrom(node.attr["Tout"])
    return _inlined(made)


def _within(call: str, reference: str, given: Mapping[str, str]) -> str:
    mark, name = ("^", reference[1:]) if reference.startswith("^") else ("", reference)
    source = given.get(source_of(name)[0])
    return f"{mark}{source_of(source)[0] if mark else source}" if source else f"{mark}{call}/{name}"


def _result_names(concrete: Any) -> list[str]:
    structured = concrete.structured_outputs
    if isinstance(structured, dict):
        return [str(key) for key in sorted(structured)]
    return [f"output_{i}" for i in range(len(concrete.outputs))]


def _with_composites(concrete: Any, name: str) -> Frozen:
    """The body of the one function that the graph calls; the quantized ops are calls in it, which stay whole."""
    outer = concrete.graph.as_graph_def()
    functions = {f.signature.name: f for f in outer.library.function}
    calls = [node for node in outer.node if node.op in ("PartitionedCall", "StatefulPartitionedCall")]
    if len(calls) != 1:
        raise ModelError(f"{name}: {len(calls)} calls in its signature; expected one, as quantize_saved_model writes.")
    body = functions[calls[0].attr["f"].func.name]
    graph_def, flat = function_def_to_graph_def(body)
    graph_def.library.CopyFrom(outer.library)
    arguments = [arg.name for arg in body.signature.input_arg]
    known = list(getattr(concrete, "_arg_keywords", None) or ())
    if len(known) != len(arguments):
        known = [a.removeprefix("serving_default_") for a in arguments]
    keys = _result_names(concrete)
    outputs = [flat[body.ret[arg.name]] for arg in body.signature.output_arg]
    inputs = [(key, f"{argument}:0") for key, argument in zip(known, arguments, strict=True)]
    return Frozen(name, graph_def, inputs, list(zip(keys, outputs, strict=False)))


def _without_call_names(frozen: Frozen) -> Frozen:
    """Inlining puts the name of the call before each name in the function, which the user never wrote."""
    short = {node.name: _CALL.sub("", node.name) for node in frozen.graph_def.node}
    times = Counter(short.values())
    renamed = {old: new for old, new in short.items() if old != new and times[new] == 1}
    for node in frozen.graph_def.node:
        node.name = renamed.get(node.name, node.name)
        node.input[:] = [_renamed(i, renamed) for i in node.input]
    frozen.inputs = [(name, _renamed(tensor, renamed)) for name, tensor in frozen.inputs]
    frozen.outputs = [(name, _renamed(tensor, renamed)) for name, tensor in frozen.outputs]
    return frozen


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


def _renamed(reference: str, renamed: dict[str, str]) -> str:
    mark = "^" if reference.startswith("^") else ""
    name, colon, at = reference.removeprefix("^").partition(":")
    return f"{mark}{renamed.get(name, name)}{colon}{at}"


def source_of(reference: str) -> tuple[str, int]:
    """The node and the place of its output that an input of a node names."""
    name, _, at = reference.removeprefix("^").partition(":")
    return name, int(at) if at.isdigit() else 0


def first_line(error: Exception) -> str:
    """What an error of TensorFlow or Keras says, without where in their code it was raised, as a sentence."""
    lines = [line.strip() for line in _ESCAPE.sub("", str(error)).splitlines() if line.strip()]
    nodes = [at for at, line in enumerate(lines[:-1]) if line.startswith("Node: ")]
    if lines and lines[0].startswith("Graph execution error") and nodes:
        lines = [f"{lines[nodes[0]].removeprefix('Node: ')}: {lines[nodes[0] + 1]}"]
    elif len(lines) > 1 and lines[0].startswith("Exception encountered when calling"):
        lines = lines[1:]
    text = _PLACE.sub(r"\1: ", lines[0]) if lines else type(error).__name__
    return text[:_LONGEST].rstrip(".")
