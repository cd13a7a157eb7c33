"""TensorFlow networks with a known culprit, and what tests of simulation, probe and tuning share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from inc_tb.frameworks.tensorflow.library import tf
from inc_tb.frameworks.tensorflow.quiet import quiet
from tests.frameworks import tensorflow_zoo as zoo

with quiet():
    import keras
    from keras import layers

Array = zoo.Array
HARD = zoo.DATA / "hard_tf.pb"
HARD_CULPRITS = ("v0/cg/conv0/Conv2D", "v0/cg/conv1/Conv2D")
HARD_PAD = "v0/cg/conv1/pad"
_FACTOR = 200.0


class Case(NamedTuple):
    model: Any
    culprits: tuple[str, ...]
    """Any one of them may be the most sensitive, all of them in fp32 repair the model."""
    data: dict[str, Array]

    @property
    def images(self) -> Array:
        (found,) = self.data.values()
        return found


KINDS: dict[str, Callable[[], Case]] = {}


def kind(build: Callable[[], Case]) -> Callable[[], Case]:
    KINDS[build.__name__.replace("_", " ")] = build
    return build


@cache
def made(name: str) -> Case:
    keras.utils.clear_session()
    with quiet():
        return KINDS[name]()


def images(count: int = 64, channels: int = 1) -> Array:
    """Handwritten digits; with more channels also shifted ones."""
    digits = zoo.digits(count)
    return np.concatenate([np.roll(digits, i, axis=1) for i in range(channels)], axis=-1)


def labels() -> Array:
    from sklearn.datasets import load_digits

    return np.asarray(load_digits().target)


def _randomized(model: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        shape, name = tuple(variable.shape), variable.path.rpartition("/")[2]
        if len(shape) > 1:
            value = rng.normal(size=shape) * 1.4 / np.sqrt(np.prod(shape[:-1]))
        elif name in ("gamma", "moving_variance"):
            value = rng.uniform(0.7, 1.4, shape)
        else:
            value = rng.normal(size=shape) * 0.1
        variable.assign(value)
    return model


def _two_convolutions(between: Sequence[Any], activation: str | None = "relu", seed: int = 0) -> Any:
    x = given = keras.Input((8, 8, 1), name="img")
    x = layers.Conv2D(8, 3, padding="same", activation=activation, name="first")(x)
    for layer in between:
        x = layer(x)
    x = layers.Conv2D(8, 3, padding="same", activation="relu", name="second")(x)
    x = layers.Conv2D(8, 3, strides=2, activation="relu", name="third")(x)
    x = layers.Dense(16, activation="relu", name="fourth")(layers.Flatten(name="flat")(x))
    return _randomized(keras.Model(given, layers.Dense(10, name="last")(x), name="net"), seed)


def _scale(model: Any, layer: str, factor: float, *, outputs: bool) -> None:
    """One channel of what a convolution writes, or of what it reads."""
    kernel, *bias = model.get_layer(layer).get_weights()
    if outputs:
        kernel[..., 0] *= factor
        for b in bias:
            b[0] *= factor
    else:
        kernel[:, :, 0] *= factor
    model.get_layer(layer).set_weights([kernel, *bias])


def _with_outlier_channel(model: Any) -> Case:
    _scale(model, "first", _FACTOR, outputs=True)
    _scale(model, "second", 1 / _FACTOR, outputs=False)
    return Case(model, ("net_1/first_1/convolution", "net_1/second_1/convolution"), {"img": images()})


@kind
def outlier_channel() -> Case:
    return _with_outlier_channel(_two_convolutions([]))


@kind
def outlier_channel_and_pad() -> Case:
    return _with_outlier_channel(_two_convolutions([layers.ZeroPadding2D(1, name="pad")]))


@kind
def outlier_channel_and_pool() -> Case:
    return _with_outlier_channel(_two_convolutions([layers.MaxPooling2D(2, name="pool")]))


@kind
def outlier_channel_and_batch_norm() -> Case:
    between = [layers.BatchNormalization(name="norm"), layers.ReLU(name="relu")]
    model = _two_convolutions(between, None)
    gamma, beta, mean, variance = model.get_layer("norm").get_weights()
    gamma[0] *= _FACTOR
    beta[0] *= _FACTOR
    model.get_layer("norm").set_weights([gamma, beta, mean, variance])
    _scale(model, "second", 1 / _FACTOR, outputs=False)
    return Case(model, ("net_1/first_1/convolution", "net_1/second_1/convolution"), {"img": images()})


@kind
def outlier_channel_and_relu6() -> Case:
    """All but one channel are so small that six is far beyond them."""
    model = _two_convolutions([layers.ReLU(6.0, name="relu6")], None)
    kernel, bias = model.get_layer("first").get_weights()
    kernel[..., 1:] /= _FACTOR
    bias[1:] /= _FACTOR
    model.get_layer("first").set_weights([kernel, bias])
    kernel, bias = model.get_layer("second").get_weights()
    kernel[:, :, 1:] *= _FACTOR
    model.get_layer("second").set_weights([kernel, bias])
    return Case(model, ("net_1/first_1/convolution", "net_1/second_1/convolution"), {"img": images()})


@kind
def huge_weights() -> Case:
    """A few in the first convolution, where the digits are always black."""
    model = _two_convolutions([])
    kernel, bias = model.get_layer("first").get_weights()
    kernel = np.concatenate([kernel, np.zeros_like(kernel)], axis=2)
    kernel[0, 0, 1, :2] = 300.0
    x = given = keras.Input((8, 8, 2), name="img")
    for layer in model.layers[1:]:
        if layer.name == "first":
            layer = layers.Conv2D(8, 3, padding="same", activation="relu", name="first")
            x = layer(x)
            layer.set_weights([kernel, bias])
        else:
            x = layer(x)
    data = np.concatenate([images(), np.zeros_like(images())], axis=-1)
    return Case(keras.Model(given, x, name="net"), ("net_1/first_1/convolution",), {"img": data})


@kind
def residual() -> Case:
    """What is added has one channel far beyond the others, which nobody reads with any weight."""
    x = given = keras.Input((8, 8, 1), name="img")
    x = layers.Conv2D(8, 3, padding="same", activation="relu", name="first")(x)
    y = layers.Conv2D(8, 3, padding="same", name="branch")(x)
    y = layers.Add(name="sum")([x, y])
    y = layers.Conv2D(8, 3, strides=2, activation="relu", name="second")(y)
    y = layers.Dense(10, name="last")(layers.Flatten(name="flat")(y))
    model = _randomized(keras.Model(given, y, name="net"), 0)
    _scale(model, "branch", _FACTOR, outputs=True)
    _scale(model, "second", 1 / _FACTOR, outputs=False)
    names = ("branch_1/convolution", "sum_1/Add", "second_1/convolution")
    return Case(model, tuple(f"net_1/{name}" for name in names), {"img": images()})


@kind
def wide_input() -> Case:
    return _with_wide_input("relu")


@kind
def wide_input_and_elu() -> Case:
    """`quantize_saved_model` leaves the activations between the convolutions in float."""
    return _with_wide_input("elu")


def _with_wide_input(activation: str) -> Case:
    """One channel of the images counts in thousands."""
    x = given = keras.Input((8, 8, 2), name="img")
    x = layers.Conv2D(8, 3, padding="same", activation=activation, name="first")(x)
    x = layers.Conv2D(8, 3, strides=2, activation=activation, name="second")(x)
    x = layers.Dense(10, name="last")(layers.Flatten(name="flat")(x))
    model = _randomized(keras.Model(given, x, name="net"), 0)
    _scale(model, "first", 1 / 2000, outputs=False)
    data = images(channels=2) * np.array([2000, 1], np.float32)
    return Case(model, ("net_1/first_1/convolution",), {"img": data})


def forms(case: Case, folder: Path) -> Mapping[str, Any]:
    """The model as users may have it."""
    saved = zoo.export(case.model, folder / "saved_model")
    with quiet():
        case.model.save(folder / "model.keras")
    frozen = folder / "frozen.pb"
    frozen.write_bytes(zoo.frozen(saved).SerializeToString())
    return {"object": case.model, ".keras": folder / "model.keras", "SavedModel": saved, "frozen graph": frozen}


def outputs(content: bytes, samples: Array, *, plain: bool = False) -> Array:
    """Of a TFLite model; `plain` without XNNPACK, whose kernels round a little otherwise."""
    kinds = tf.lite.experimental.OpResolverType
    resolver = kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES if plain else kinds.AUTO
    with quiet():
        interpreter = tf.lite.Interpreter(model_content=content, experimental_op_resolver_type=resolver)
        place = interpreter.get_input_details()[0]["index"]
        interpreter.resize_tensor_input(place, samples.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(place, samples)
        interpreter.invoke()
    return np.asarray(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))


def accuracy(path: str) -> float:
    """Of a TFLite file on digits that it was not calibrated with."""
    samples, wanted = zoo.digits(1797)[1000:], labels()[1000:]
    return float((outputs(Path(path).read_bytes(), samples).argmax(1) == wanted).mean())


def weights_by_op(content: bytes) -> dict[str, str]:
    """Op of a TFLite model by what its result is called -> the type of its weights."""
    with quiet():
        interpreter = tf.lite.Interpreter(model_content=content)
    tensors = {t["index"]: t for t in interpreter.get_tensor_details()}
    weighted = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
    ops = [op for op in interpreter._get_ops_details() if op["op_name"] in weighted]
    return {tensors[op["outputs"][0]]["name"]: tensors[op["inputs"][1]]["dtype"].__name__ for op in ops}
