from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from inc_tb.demo import load_digits


def prepare() -> None:
    """A network that int8 breaks; its own answers are the truth."""
    images = np.ascontiguousarray(np.moveaxis(load_digits()[0], 1, 3))
    model = _network()
    labels = np.asarray(model(images)).argmax(1)
    np.savez("samples.npz", image=images[:64], label=labels[:64])
    np.savez("held_out.npz", image=images[64:264], label=labels[64:264])
    model.save("model.keras")
    model.export("saved_model", verbose=False)
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([image[None]] for image in images[:16])
    Path("int8.tflite").write_bytes(converter.convert())


def _network() -> keras.Model:
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1), name="image"),
            layers.Conv2D(8, 3, padding="same", activation="relu", name="conv1"),
            layers.Conv2D(8, 3, 2, padding="same", activation="relu", name="conv2"),
            layers.Flatten(),
            layers.Dense(10, name="scores"),
        ]
    )
    (kernel1, bias1), (kernel2, bias2) = (model.get_layer(name).get_weights() for name in ("conv1", "conv2"))
    kernel1[..., :2] *= 300
    kernel2[:, :, :2] /= 300
    model.get_layer("conv1").set_weights([kernel1, bias1])
    model.get_layer("conv2").set_weights([kernel2, bias2])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return model
