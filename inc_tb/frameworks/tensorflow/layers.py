"""Keras models and files as frozen graphs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

from inc_tb.errors import ModelError
from inc_tb.frameworks.registry import describe
from inc_tb.frameworks.tensorflow.concrete import from_function, plain
from inc_tb.frameworks.tensorflow.forms import Frozen, first_line
from inc_tb.frameworks.tensorflow.library import tf
from inc_tb.frameworks.tensorflow.quiet import quiet

EXPECTED = "Expected a frozen graph (.pb), a SavedModel folder, a Keras file (.keras), or a TFLite file (.tflite)."
_BY_HAND = (
    "Call it once with data, or give a concrete function: tf.function(model).get_concrete_function(tf.TensorSpec(...))."
)


def is_keras(model: Any) -> bool:
    return any(c.__module__.startswith(("keras", "tf_keras")) and c.__name__ == "Model" for c in type(model).__mro__)


def from_keras_file(path: Path) -> Frozen:
    try:
        import keras
    except ModuleNotFoundError as error:
        raise ModelError(f"{path}: needs keras, which is not installed: pip install keras.") from error
    if path.suffix.lower() == ".keras" and not is_zipfile(path):
        raise ModelError(f"{path}: no Keras file, or a damaged one: it is no zip archive. {EXPECTED} Save it again.")
    try:
        with quiet():
            model = keras.models.load_model(path, compile=False)
    except Exception as error:  # Keras raises many unrelated classes
        raise ModelError(f"{path}: Keras cannot load it: {first_line(error)}. {EXPECTED}") from error
    found = from_keras(model)
    found.name = str(path)
    return found


def from_keras(model: Any) -> Frozen:
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
    found = from_function(concrete, name, names=names)
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
        return names, [tf.TensorSpec(i.shape, i.dtype, plain(i.name)) for i in inputs], _structure(model)
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
