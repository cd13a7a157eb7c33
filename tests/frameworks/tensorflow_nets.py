"""Small networks of many architectures in Keras and TensorFlow, and the converters of TFLite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorflow.lite.tools import flatbuffer_utils
from tensorflow.python.grappler import tf_optimizer

from inc_tb.frameworks.tensorflow.library import tf
from inc_tb.frameworks.tensorflow.quiet import quiet

with quiet():
    import keras
    from keras import layers

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]
Net = Callable[[], Any]
NETS: dict[str, Net] = {}
"""By name; each gives a Keras model with random weights."""


def net(build: Net) -> Net:
    NETS[build.__name__] = build
    return build


def built(name: str, seed: int = 0) -> Any:
    keras.utils.clear_session()
    model = randomized(NETS[name](), seed)
    if name == "twins":
        model.get_layer("b1").set_weights(model.get_layer("a1").get_weights())
    return model


def randomized(model: Any, seed: int = 0) -> Any:
    """Nothing left at zero or one: a batch norm or a bias that does nothing would hide a wrong match."""
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        shape = tuple(variable.shape)
        if variable.dtype != "float32":
            continue
        if "variance" in variable.path:
            value = rng.uniform(0.5, 2.0, shape)
        elif variable.path.endswith("gamma"):
            value = rng.uniform(0.6, 1.5, shape)
        elif len(shape) > 1:
            fan_in = max(1, int(np.prod(shape)) // shape[-1])
            value = rng.normal(size=shape) * (1.4 / np.sqrt(fan_in))
        else:
            value = rng.normal(size=shape) * 0.3
        variable.assign(value.astype(np.float32))
    return model


def feeds(model: Any, seed: int = 1) -> dict[str, Array]:
    """Two samples, unless the model takes one."""
    rng = np.random.default_rng(seed)
    shapes = {i.name: [i.shape[0] or 2, *(n or 6 for n in i.shape[1:])] for i in model.inputs}
    return {i.name: _samples(rng, shapes[i.name], str(i.dtype)) for i in model.inputs}


def _samples(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Array:
    if dtype.startswith("int"):
        return rng.integers(0, 10, shape).astype(dtype)
    return rng.normal(size=shape).astype(np.float32)


# convolutions


def _conv_bn(x: Any, filters: int, kernel: int = 3, activation: str = "relu", **more: Any) -> Any:
    x = layers.Conv2D(filters, kernel, padding="same", use_bias=False, **more)(x)
    x = layers.BatchNormalization()(x)
    return layers.Activation(activation)(x) if activation else x


@net
def mobilenet_v2() -> Any:
    def block(x: Any, expand: int, filters: int, strides: int) -> Any:
        y = _conv_bn(x, expand, 1, "relu6")
        if strides == 2:
            y = layers.ZeroPadding2D(((0, 1), (0, 1)))(y)
        y = layers.DepthwiseConv2D(3, strides, "valid" if strides == 2 else "same", use_bias=False)(y)
        y = layers.ReLU(6.0)(layers.BatchNormalization()(y))
        y = _conv_bn(y, filters, 1, "")
        return layers.Add()([x, y]) if strides == 1 and x.shape[-1] == filters else y

    inputs = keras.Input((16, 16, 3), name="image")
    x = _conv_bn(inputs, 4, 3, "relu6", strides=2)
    x = block(x, 8, 4, 1)
    x = block(x, 8, 6, 2)
    x = block(x, 12, 6, 1)
    x = layers.GlobalAveragePooling2D()(_conv_bn(x, 10, 1, "relu6"))
    return keras.Model(inputs, layers.Dense(5, activation="softmax", name="head")(x))


@net
def mobilenet_v3() -> Any:
    def hard_sigmoid(x: Any) -> Any:
        return layers.ReLU(6.0)(x + 3.0) * (1.0 / 6.0)

    def hard_swish(x: Any) -> Any:
        return layers.Multiply()([x, hard_sigmoid(x)])

    inputs = keras.Input((12, 12, 3))
    x = hard_swish(_conv_bn(inputs, 6, 3, "", strides=2))
    y = _conv_bn(x, 12, 1, "hard_swish")
    y = hard_swish(layers.BatchNormalization()(layers.DepthwiseConv2D(5, padding="same", use_bias=False)(y)))
    squeeze = layers.GlobalAveragePooling2D(keepdims=True)(y)
    squeeze = layers.Conv2D(4, 1, activation="relu")(squeeze)
    squeeze = hard_sigmoid(layers.Conv2D(12, 1)(squeeze))
    y = layers.Multiply()([y, squeeze])
    x = layers.Add()([x, _conv_bn(y, 6, 1, "")])
    x = layers.Conv2D(8, 1, activation="hard_swish")(layers.GlobalAveragePooling2D(keepdims=True)(x))
    return keras.Model(inputs, layers.Flatten()(layers.Conv2D(5, 1)(x)))


@net
def mobilenet_v3_hard_sigmoid() -> Any:
    inputs = keras.Input((10, 10, 3))
    x = layers.Conv2D(6, 3, activation="hard_sigmoid")(inputs)
    y = layers.GlobalAveragePooling2D()(x)
    y = layers.Reshape((1, 1, 6))(layers.Dense(6, activation="hard_sigmoid")(layers.Dense(3, activation="relu")(y)))
    return keras.Model(inputs, layers.Conv2D(4, 1)(layers.Multiply()([x, y])))


@net
def resnet() -> Any:
    def block(x: Any, filters: int, strides: int) -> Any:
        short = x
        if strides == 2:
            short = layers.BatchNormalization()(layers.Conv2D(filters, 1, strides)(x))
        y = layers.Conv2D(filters, 3, strides, padding="same")(x)
        y = layers.ReLU()(layers.BatchNormalization(epsilon=1e-5)(y))
        y = layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same")(y))
        return layers.ReLU()(layers.Add()([short, y]))

    inputs = keras.Input((16, 16, 3))
    x = layers.ZeroPadding2D(3)(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(4, 7, 2)(x)))
    x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    x = block(block(x, 4, 1), 6, 2)
    return keras.Model(inputs, layers.Dense(5)(layers.GlobalAveragePooling2D()(x)))


@net
def preactivation_resnet() -> Any:
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same", use_bias=False)(inputs)
    for _ in range(2):
        y = layers.ReLU()(layers.BatchNormalization()(x))
        y = layers.Conv2D(4, 3, padding="same", use_bias=False)(y)
        y = layers.ReLU()(layers.BatchNormalization()(y))
        x = x + layers.Conv2D(4, 3, padding="same", use_bias=False)(y)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    return keras.Model(inputs, layers.Dense(3)(layers.Flatten()(layers.AveragePooling2D(4)(x))))


@net
def inception() -> Any:
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(6, 3, padding="same", activation="relu")(inputs)
    for _ in range(2):
        a = layers.Conv2D(4, 1, activation="relu")(x)
        b = layers.Conv2D(4, 3, padding="same", activation="relu")(layers.Conv2D(4, 1, activation="relu")(x))
        c = layers.Conv2D(4, 3, padding="same", activation="relu")(layers.Conv2D(4, 1, activation="relu")(x))
        d = layers.Conv2D(4, 1, activation="relu")(layers.AveragePooling2D(3, 1, "same")(x))
        x = layers.Concatenate()([a, b, c, d])
    return keras.Model(inputs, layers.Dense(5)(layers.GlobalMaxPooling2D()(x)))


@net
def densenet() -> Any:
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same", use_bias=False)(inputs)
    for _ in range(3):
        y = layers.ReLU()(layers.BatchNormalization()(x))
        y = layers.Conv2D(4, 1, use_bias=False)(y)
        y = layers.ReLU()(layers.BatchNormalization()(y))
        x = layers.Concatenate()([x, layers.Conv2D(3, 3, padding="same", use_bias=False)(y)])
    return keras.Model(inputs, layers.Dense(5)(layers.GlobalAveragePooling2D()(layers.BatchNormalization()(x))))


@net
def unet() -> Any:
    inputs = keras.Input((16, 16, 2))
    a = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    b = layers.Conv2D(6, 3, padding="same", activation="relu")(layers.MaxPooling2D()(a))
    c = layers.Conv2D(8, 3, padding="same", activation="relu")(layers.MaxPooling2D()(b))
    x = layers.Concatenate()([b, layers.Conv2DTranspose(6, 2, 2)(c)])
    x = layers.Conv2D(6, 3, padding="same", activation="relu")(x)
    x = layers.Concatenate()([a, layers.Conv2DTranspose(4, 3, 2, padding="same", activation="relu")(x)])
    return keras.Model(inputs, layers.Conv2D(2, 1, activation="sigmoid")(x))


@net
def unet_upsampling() -> Any:
    inputs = keras.Input((16, 16, 2))
    a = _conv_bn(inputs, 4)
    b = _conv_bn(layers.MaxPooling2D()(a), 6)
    c = _conv_bn(layers.MaxPooling2D()(b), 8)
    x = layers.Concatenate()([b, layers.UpSampling2D(interpolation="bilinear")(c)])
    x = _conv_bn(x, 6)
    x = layers.Concatenate()([a, layers.UpSampling2D(interpolation="nearest")(x)])
    x = layers.BatchNormalization()(layers.Conv2DTranspose(4, 3, padding="same", use_bias=False)(x))
    return keras.Model(inputs, layers.Conv2D(2, 1)(layers.ReLU()(x)))


@net
def efficientnet() -> Any:
    inputs = keras.Input((12, 12, 3))
    x = layers.Rescaling(1 / 127.5, -1.0)(inputs)
    x = _conv_bn(x, 4, 3, "swish", strides=2)
    y = _conv_bn(x, 8, 1, "swish")
    y = layers.Activation("swish")(layers.BatchNormalization()(layers.DepthwiseConv2D(3, padding="same")(y)))
    se = layers.Reshape((1, 1, 8))(layers.GlobalAveragePooling2D()(y))
    se = layers.Conv2D(8, 1, activation="sigmoid")(layers.Conv2D(2, 1, activation="swish")(se))
    y = _conv_bn(layers.multiply([y, se]), 4, 1, "")
    x = layers.add([layers.Dropout(0.2)(y), x])
    return keras.Model(inputs, layers.Dense(5)(layers.GlobalAveragePooling2D()(x)))


@net
def separable() -> Any:
    inputs = keras.Input((10, 10, 3))
    x = layers.SeparableConv2D(6, 3, activation="relu")(inputs)
    x = layers.BatchNormalization()(layers.SeparableConv2D(6, 3, padding="same", use_bias=False)(x))
    x = layers.SeparableConv2D(4, 3, depth_multiplier=2)(layers.ReLU()(x))
    return keras.Model(inputs, x)


@net
def depth_multiplier() -> Any:
    inputs = keras.Input((8, 8, 3))
    x = layers.DepthwiseConv2D(3, depth_multiplier=2, activation="relu")(inputs)
    x = layers.BatchNormalization()(layers.DepthwiseConv2D(3, depth_multiplier=2, use_bias=False)(x))
    return keras.Model(inputs, layers.Dense(4)(layers.Flatten()(x)))


@net
def dilated() -> Any:
    inputs = keras.Input((12, 12, 3))
    x = layers.Conv2D(4, 3, dilation_rate=2, padding="same", activation="relu")(inputs)
    x = layers.Conv2D(4, 3, dilation_rate=3, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.DepthwiseConv2D(3, dilation_rate=2, padding="same")(x)
    return keras.Model(inputs, layers.Conv2D(4, 3, dilation_rate=2)(x))


@net
def grouped() -> Any:
    inputs = keras.Input((8, 8, 4))
    x = layers.Conv2D(8, 3, groups=2, activation="relu")(inputs)
    return keras.Model(inputs, layers.Conv2D(4, 1)(x))


@net
def conv1d() -> Any:
    inputs = keras.Input((16, 3))
    x = layers.Conv1D(6, 3, padding="same", activation="relu")(inputs)
    x = layers.MaxPooling1D(2)(x)
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv1D(6, 3, dilation_rate=2, padding="causal")(x)))
    x = layers.SeparableConv1D(4, 3)(x)
    return keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))


@net
def conv3d() -> Any:
    inputs = keras.Input((6, 6, 6, 2))
    x = layers.Conv3D(4, 3, activation="relu")(inputs)
    x = layers.BatchNormalization()(layers.Conv3D(4, 2, use_bias=False)(x))
    return keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling3D()(layers.ReLU()(x))))


@net
def conv1d_transpose() -> Any:
    inputs = keras.Input((8, 3))
    x = layers.Conv1DTranspose(4, 3, 2, padding="same", activation="relu")(inputs)
    return keras.Model(inputs, layers.Conv1D(2, 1)(x))


@net
def activations() -> Any:
    inputs = keras.Input((8, 8, 3))
    x = layers.PReLU(shared_axes=[1, 2])(layers.Conv2D(4, 3)(inputs))
    x = layers.LeakyReLU(0.1)(layers.Conv2D(4, 3, padding="same")(x))
    x = layers.ELU()(layers.Conv2D(4, 3, padding="same")(x))
    x = layers.Activation("gelu")(layers.Conv2D(4, 1)(x))
    x = layers.Activation("selu")(layers.Conv2D(4, 1)(x))
    x = layers.Activation("softplus")(layers.Conv2D(4, 1)(x))
    x = layers.Activation("tanh")(layers.Conv2D(4, 1)(x))
    x = layers.Activation("mish")(layers.Conv2D(4, 1)(x))
    x = layers.ReLU(max_value=1.0)(layers.Conv2D(4, 1)(x))
    x = layers.ReLU(negative_slope=0.2, threshold=0.1)(layers.Conv2D(4, 1)(x))
    return keras.Model(inputs, layers.Dense(3, activation="gelu")(layers.Flatten()(x)))


# the rest


@net
def mlp() -> Any:
    inputs = keras.Input((8,))
    x = layers.Dense(8, activation="relu")(inputs)
    x = layers.BatchNormalization()(layers.Dense(8, use_bias=False)(x))
    x = layers.Dense(8, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(8, use_bias=False)(x))


@net
def layer_norm() -> Any:
    inputs = keras.Input((6, 8))
    x = layers.LayerNormalization()(inputs)
    x = layers.Dense(8, activation="relu")(x)
    x = layers.LayerNormalization(epsilon=1e-6)(inputs + layers.Dense(8)(x))
    x = layers.GroupNormalization(4)(x)
    return keras.Model(inputs, layers.UnitNormalization()(layers.Dense(4)(x)))


@net
def transformer() -> Any:
    ids = keras.Input((6,), dtype="int32", name="ids")
    x = layers.Embedding(12, 8)(ids) + layers.Embedding(6, 8)(keras.ops.arange(6))
    for _ in range(2):
        y = layers.MultiHeadAttention(2, 4)(x, x)
        x = layers.LayerNormalization()(x + y)
        y = layers.Dense(8)(layers.Dense(16, activation="gelu")(x))
        x = layers.LayerNormalization()(x + y)
    return keras.Model(ids, layers.Dense(3)(x[:, 0]))


@net
def vision_transformer() -> Any:
    inputs = keras.Input((8, 8, 3))
    x = layers.Reshape((4, 8))(layers.Conv2D(8, 4, 4)(inputs))
    y = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(2, 4)(y, y)
    y = layers.LayerNormalization()(x)
    x = x + layers.Dense(8)(layers.Dense(12, activation="gelu")(y))
    return keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))


@net
def dense_3d() -> Any:
    inputs = keras.Input((5, 6))
    x = layers.Dense(6, activation="relu")(inputs)
    x = layers.Dense(6, use_bias=False)(x)
    x = layers.Permute((2, 1))(x)
    return keras.Model(inputs, layers.Dense(5, activation="tanh")(x))


@net
def lstm() -> Any:
    inputs = keras.Input((5, 4), batch_size=1)
    x = layers.LSTM(6, return_sequences=True)(inputs)
    return keras.Model(inputs, layers.Dense(3)(layers.LSTM(4)(x)))


@net
def gru() -> Any:
    inputs = keras.Input((5, 4), batch_size=1)
    return keras.Model(inputs, layers.Dense(3)(layers.GRU(6)(layers.Dense(4)(inputs))))


@net
def unrolled_lstm() -> Any:
    inputs = keras.Input((3, 4), batch_size=1)
    return keras.Model(inputs, layers.Dense(3)(layers.LSTM(4, unroll=True)(inputs)))


@net
def two_inputs_list() -> Any:
    a, b = keras.Input((8, 8, 3), name="left"), keras.Input((8, 8, 3), name="right")
    x = layers.Conv2D(4, 3, activation="relu")(a) - layers.Conv2D(4, 3, activation="relu")(b)
    return keras.Model([a, b], layers.Dense(3)(layers.Flatten()(x)))


@net
def two_inputs_dict() -> Any:
    a, b = keras.Input((8, 8, 3), name="zebra"), keras.Input((4,), name="apple")
    x = layers.Concatenate()([layers.Flatten()(layers.Conv2D(2, 3)(a)), layers.Dense(4, activation="relu")(b)])
    return keras.Model({"zebra": a, "apple": b}, layers.Dense(3)(x))


@net
def two_outputs() -> Any:
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, activation="relu")(inputs)
    y = layers.Conv2D(4, 3, padding="same")(x)
    z = layers.Dense(3)(layers.GlobalAveragePooling2D()(layers.ReLU()(y)))
    return keras.Model(inputs, [layers.Flatten()(y), z])


@net
def two_outputs_dict() -> Any:
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(4, 3, activation="relu")(inputs)
    heads = {"zoom": layers.Conv2D(2, 1)(x), "area": layers.Conv2D(2, 1)(x)}
    return keras.Model(inputs, heads)


@net
def shared_layer() -> Any:
    a, b = keras.Input((8, 8, 3), name="left"), keras.Input((8, 8, 3), name="right")
    tower = layers.Conv2D(4, 3, activation="relu", name="tower")
    norm = layers.BatchNormalization(name="norm")
    x = layers.Concatenate()([norm(tower(a)), norm(tower(b))])
    same = layers.Conv2D(8, 3, padding="same", name="again")
    return keras.Model([a, b], layers.Flatten()(same(layers.ReLU()(same(x)))))


@net
def nested() -> Any:
    def tower(name: str) -> Any:
        inputs = keras.Input((8, 8, 3))
        x = layers.Conv2D(4, 3, padding="same", name="conv")(inputs)
        return keras.Model(inputs, layers.ReLU()(layers.BatchNormalization(name="bn")(x)), name=name)

    head = keras.Sequential(
        [keras.Input((8, 8, 8)), layers.Conv2D(2, 1, name="conv"), layers.Flatten(), layers.Dense(3)], name="head"
    )
    inputs = keras.Input((8, 8, 3))
    return keras.Model(inputs, head(layers.Concatenate()([tower("one")(inputs), tower("two")(inputs)])))


@net
def shapes() -> Any:
    inputs = keras.Input((4, 4, 6))
    x = layers.Conv2D(6, 3, padding="same", activation="relu")(inputs)
    a, b = keras.ops.split(x, 2, axis=-1)
    x = layers.Concatenate()([b, a[:, ::-1], a])
    x = layers.Permute((3, 1, 2))(x)
    x = layers.Reshape((9, 16))(x)
    x = layers.Dense(8)(x)
    x = keras.ops.squeeze(keras.ops.expand_dims(x, 1), 1)
    x = x[:, 1:7:2, :]
    return keras.Model(inputs, layers.Dense(3)(layers.Flatten()(x)))


@net
def keepdims() -> Any:
    inputs = keras.Input((8, 8, 3))
    x = layers.Conv2D(6, 3, activation="relu")(inputs)
    x = layers.Conv2D(6, 1, activation="relu")(layers.GlobalAveragePooling2D(keepdims=True)(x))
    x = layers.Conv2D(6, 1)(layers.GlobalMaxPooling2D(keepdims=True)(x))
    return keras.Model(inputs, layers.Reshape((6,))(x))


@net
def rescaling() -> Any:
    inputs = keras.Input((8, 8, 3))
    x = layers.Rescaling(1 / 255.0)(inputs)
    x = layers.Normalization(mean=[0.4, 0.5, 0.6], variance=[0.04, 0.05, 0.06])(x)
    return keras.Model(inputs, layers.Conv2D(4, 3, activation="relu")(x))


@net
def einsum_dense() -> Any:
    inputs = keras.Input((5, 6))
    x = layers.EinsumDense("abc,cde->abde", (None, 2, 4), bias_axes="de", activation="relu")(inputs)
    x = layers.EinsumDense("abde,def->abf", (None, 6), bias_axes="f")(x)
    return keras.Model(inputs, keras.ops.einsum("abc,abd->acd", x, inputs))


@net
def pools() -> Any:
    """Of several windows side by side, as in spatial pyramids: shapes do not tell them apart."""
    inputs = keras.Input((8, 8, 4))
    x = layers.Conv2D(4, 1, activation="relu")(inputs)
    x = layers.Concatenate()([layers.MaxPooling2D(n, 1, "same")(x) for n in (5, 3, 7)] + [x])
    slices = [x[:, :4], x[:, 4:], x[:, 2:6]]
    return keras.Model(inputs, layers.Conv2D(2, 1)(layers.Concatenate()(slices)))


@net
def twins() -> Any:
    """Two branches that begin with the very same weights."""
    inputs = keras.Input((8, 8, 3))
    a = layers.Conv2D(4, 1, activation="relu", name="a1")(inputs)
    b = layers.Conv2D(4, 1, activation="relu", name="b1")(inputs)
    a, b = layers.Conv2D(4, 3, name="a2")(a), layers.Conv2D(4, 3, name="b2", activation="relu")(b)
    return keras.Model(inputs, layers.Concatenate()([a, layers.MaxPooling2D(1)(b)]))


# conversion


def to_lite(model: Any, kind: str = "float", data: Feeds | None = None) -> bytes:
    """As users convert a Keras model: float, float16, dynamic, int8, or int8_io with whole numbers at both ends."""
    return converted(tf.lite.TFLiteConverter.from_keras_model(model), kind, data)


def converted(converter: Any, kind: str = "float", data: Feeds | None = None) -> bytes:
    if kind != "float":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if kind == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if kind in ("int8", "int8_io"):
        assert data is not None
        rows = len(next(iter(data.values())))
        samples = [{name: array[i : i + 1] for name, array in data.items()} for i in range(rows)]
        converter.representative_dataset = lambda: iter(samples)
    if kind == "int8_io":
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    with quiet():
        return bytes(converter.convert())


def without_names(content: bytes) -> bytes:
    """The same file with its tensors called t0, t1, ..., and without signatures, as other converters write it."""
    model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
    for subgraph in model.subgraphs:
        for at, tensor in enumerate(subgraph.tensors):
            tensor.name = f"t{at}".encode()
    model.signatureDefs = None
    return bytes(flatbuffer_utils.convert_object_to_bytearray(model))


# graphs without Keras


def tf1_graph(data_format: str = "NHWC") -> Any:
    """As TensorFlow 1 froze its networks: batch norms as one op, nothing but constants."""
    rng = np.random.default_rng(3)

    def weights(*shape: int) -> Array:
        return (rng.normal(size=shape) * (1.4 / np.sqrt(np.prod(shape[:-1])))).astype(np.float32)

    def norm(x: Any, name: str) -> Any:
        size = x.shape[-1] if data_format == "NHWC" else x.shape[1]
        gain, variance = (rng.uniform(0.6, 1.6, size).astype(np.float32) for _ in range(2))
        return tf.compat.v1.nn.fused_batch_norm(
            x, gain, weights(size), weights(size), variance, 1e-3, data_format, is_training=False, name=name
        )[0]

    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (None, 8, 8, 3), name="input")
        x = tf.nn.conv2d(x, tf.constant(weights(3, 3, 3, 4), name="stem/w"), 2, "SAME", name="stem/conv")
        if data_format == "NCHW":  # of convolutions, the CPU knows only the other layout
            x = tf.transpose(x, (0, 3, 1, 2), name="to_nchw")
        x = tf.nn.bias_add(x, weights(4), data_format, name="stem/bias")
        x = tf.nn.relu6(norm(x, "stem/norm"), name="stem/relu6")
        if data_format == "NCHW":
            x = tf.transpose(x, (0, 2, 3, 1), name="to_nhwc")
            data_format = "NHWC"
        y = tf.nn.depthwise_conv2d(x, weights(3, 3, 4, 1), (1, 1, 1, 1), "SAME", name="block/depthwise")
        y = tf.nn.relu(norm(y, "block/norm"), name="block/relu")
        y = norm(tf.nn.conv2d(y, weights(1, 1, 4, 4), 1, "VALID", name="block/project"), "block/norm2")
        x = tf.nn.relu(norm(tf.add(x, y, name="block/sum"), "after/norm"), name="after/relu")
        x = tf.reduce_mean(x, (1, 2), name="pool")
        x = tf.nn.bias_add(tf.matmul(x, weights(4, 5), name="logits/matmul"), weights(5), name="logits/add")
        tf.nn.softmax(x, name="probabilities")
    return graph.as_graph_def()


def lite_of_graph(graph_def: Any, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph_def, name=""), [])
    function = wrapped.prune([f"{n}:0" for n in inputs], [f"{n}:0" for n in outputs])
    return converted(tf.lite.TFLiteConverter.from_concrete_functions([function]))


def fused_graph(graph_def: Any, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """As TensorFlow rewrites a graph before it runs it on a CPU: _FusedConv2D and _FusedMatMul."""
    with tf.Graph().as_default() as graph, tf.device("/device:CPU:0"):
        tf.import_graph_def(graph_def, name="")
        meta = tf.compat.v1.train.export_meta_graph(graph=graph)
    for key, names in (("inputs", inputs), ("train_op", outputs)):
        nodes = meta.collection_def[key].node_list.value
        nodes.extend(f"{n}:0" if key == "inputs" else n for n in names)
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    config.graph_options.rewrite_options.optimizers.extend(["constfold", "remap"])
    with quiet():
        return tf_optimizer.OptimizeGraph(config, meta)


def renamed_graph(graph_def: Any) -> Any:
    """The same graph with meaningless names, except of its inputs."""
    made = tf.compat.v1.GraphDef()
    made.CopyFrom(graph_def)
    names = {n.name: n.name if n.op == "Placeholder" else f"n{i}" for i, n in enumerate(made.node)}
    for node in made.node:
        node.name = names[node.name]
        for at, read in enumerate(node.input):
            mark, (name, colon, out) = "^" * read.startswith("^"), read.removeprefix("^").partition(":")
            node.input[at] = f"{mark}{names[name]}{colon}{out}"
    return made


class Several(tf.Module):
    """A model with more than one function, of plain TensorFlow and Python."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        shapes = [(8, 8), (8, 8), (8, 4)]
        self.kernels = [tf.Variable((rng.normal(size=s) / 3).astype(np.float32)) for s in shapes]
        self.bias = tf.Variable(rng.normal(size=8).astype(np.float32))

    @tf.function(input_signature=[tf.TensorSpec((None, 8), tf.float32, name="x")])
    def classify(self, x: Any) -> Any:
        for at, kernel in enumerate(self.kernels):  # unrolled while it is traced
            x = tf.matmul(x, kernel)
            x = tf.nn.relu(x + self.bias) if at < 2 else x
        return {"logits": x, "chances": tf.nn.softmax(x)}

    @tf.function(input_signature=[tf.TensorSpec((None, 8), tf.float32, name="x")])
    def embed(self, x: Any) -> Any:
        return {"embedding": tf.linalg.l2_normalize(tf.matmul(x, self.kernels[0]), axis=-1)}
