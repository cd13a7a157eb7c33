"""Finds the one convolution whose few huge weights cost a TensorFlow model its accuracy.

    python examples/tensorflow_outlier_op.py [LOGDIR]

The story of Neural Compressor's guide for Inception v3, on a small Inception that is trained here on handwritten
digits: weights of its first convolution reach ±20, where all others stay below 1. The channel that has them is dead (it
never gets past its Relu), so fp32 does not care; with one scale for all channels, int8 has nothing left for the
others. Keeping the five ops with the largest MSE in fp32, as the guide tries first, does not help. The diagnosis names
the convolution and the reason; kept in fp32, the accuracy is back.
"""

import os
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

import inc_tb
from inc_tb.demo import load_digits

warnings.filterwarnings("ignore", ".*tf.lite.Interpreter is deprecated|.*Statistics for quantized inputs", UserWarning)
STEPS, BATCH, CALIBRATION, MOST_MSE = 300, 64, 128, 5
HUGE, BIAS, SMALL = 20.0, -200.0, 0.1
FIRST = "v0/cg/conv0/conv2d/Conv2D"


class Inception(tf.Module):
    """Two convolutions, two blocks of parallel ones, an average, and a layer of scores."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[str, tf.Variable] = {}

    def conv(self, x: tf.Tensor, scope: str, size: int, channels: int) -> tf.Tensor:
        with tf.name_scope(scope):
            fan_in = size * size * x.shape[-1]
            kernel = self.variable(f"{scope}/kernel", [size, size, x.shape[-1], channels], (2 / fan_in) ** 0.5)
            bias = self.variable(f"{scope}/bias", [channels], 0.0)
            made = tf.nn.conv2d(x, kernel, 1, "SAME", name="Conv2D")
            return tf.nn.relu(tf.nn.bias_add(made, bias, name="BiasAdd"), name="Relu")

    def variable(self, name: str, shape: list[int], scale: float) -> tf.Variable:
        if name not in self.tensors:
            self.tensors[name] = tf.Variable(tf.random.normal(shape) * scale)
        return self.tensors[name]

    def block(self, x: tf.Tensor, scope: str, channels: int) -> tf.Tensor:
        branches = [
            self.conv(x, f"{scope}/conv0/conv2d", 1, channels),
            self.conv(self.conv(x, f"{scope}/conv1/conv2d", 1, channels), f"{scope}/conv2/conv2d", 3, channels),
            self.conv(tf.nn.avg_pool2d(x, 3, 1, "SAME", name=f"{scope}/pool"), f"{scope}/conv3/conv2d", 1, channels),
        ]
        return tf.concat(branches, -1, name=f"{scope}/concat")

    @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 1], tf.float32, name="image")])
    def __call__(self, image: tf.Tensor) -> tf.Tensor:
        x = self.conv(image, "v0/cg/conv0/conv2d", 3, 16)
        x = tf.nn.max_pool2d(self.conv(x, "v0/cg/conv1/conv2d", 3, 24), 2, 2, "SAME", name="v0/cg/mpool0")
        x = self.block(self.block(x, "v0/cg/incept_a0", 16), "v0/cg/incept_b0", 24)
        weights = self.variable("v0/cg/affine/weights", [x.shape[-1], 10], 0.1)
        return tf.matmul(tf.reduce_mean(x, [1, 2], name="v0/cg/spatial_mean"), weights, name="v0/cg/affine/scores")


def trained(images: np.ndarray, labels: np.ndarray) -> Inception:
    tf.random.set_seed(0)
    model, rng = Inception(), np.random.default_rng(0)
    model(images[:1])
    means = {name: tf.zeros_like(v) for name, v in model.tensors.items()}
    squares = dict(means)
    for step in range(1, STEPS + 1):
        rows = rng.integers(0, len(images), BATCH)
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels[rows], model(images[rows]))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.tensors)
        for name, gradient in gradients.items():  # Adam
            means[name] = 0.9 * means[name] + 0.1 * gradient
            squares[name] = 0.99 * squares[name] + 0.01 * gradient**2
            size = tf.sqrt(squares[name] / (1 - 0.99**step)) + 1e-8
            model.tensors[name].assign_sub(0.003 * means[name] / (1 - 0.9**step) / size)
    return model


def with_huge_weights(model: Inception) -> Inception:
    """With one more channel in the first convolution: never above zero, whatever the image, and read with zeros.

    The other channels get small weights, and their readers large ones, which changes nothing either.
    """
    changed = Inception()
    changed.tensors = dict(model.tensors)
    for name, factor in (
        ("conv0/conv2d/kernel", SMALL),
        ("conv0/conv2d/bias", SMALL),
        ("conv1/conv2d/kernel", 1 / SMALL),
    ):
        changed.tensors[f"v0/cg/{name}"] = model.tensors[f"v0/cg/{name}"] * factor
    huge = np.linspace(-HUGE, HUGE, 9, dtype=np.float32).reshape(3, 3, 1, 1)
    readers = model.tensors["v0/cg/conv1/conv2d/kernel"]
    for name, more, axis in (
        ("conv0/conv2d/kernel", huge, 3), ("conv0/conv2d/bias", np.float32([BIAS]), 0),
        ("conv1/conv2d/kernel", np.zeros_like(readers[:, :, :1]), 2),
    ):  # fmt: skip
        changed.tensors[f"v0/cg/{name}"] = tf.Variable(tf.concat([changed.tensors[f"v0/cg/{name}"], more], axis))
    return changed


def frozen(model: Inception) -> tf.compat.v1.GraphDef:
    """As such models come: one file, variables made constants."""
    return convert_variables_to_constants_v2(model.__call__.get_concrete_function()).graph.as_graph_def()


def quantized(graph: tf.compat.v1.GraphDef, images: np.ndarray, keep: Iterable[str] = ()) -> bytes:
    """By TFLite, with one scale for the weights of an op; the ops in `keep` stay in float."""

    def representative() -> Iterator[list[np.ndarray]]:
        for image in images:
            yield [image[None]]

    result = graph.node[-1].name
    wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph, name=""), [])
    converter = tf.lite.TFLiteConverter.from_concrete_functions([wrapped.prune(["image:0"], [f"{result}:0"])])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = representative
    converter._experimental_disable_per_channel = True
    debugger = tf.lite.experimental.QuantizationDebugger(converter=converter, debug_dataset=representative)
    kept = set(keep)
    details = tf.lite.Interpreter(model_content=debugger.calibrated_model).get_tensor_details()
    names = [d["name"] for d in details if kept & {part.rstrip("0123456789") for part in d["name"].split(";")}]
    debugger.options = tf.lite.experimental.QuantizationDebugOptions(denylisted_nodes=names)
    return debugger.get_nondebug_quantized_model()


def accuracy(content: bytes, images: np.ndarray, labels: np.ndarray) -> float:
    interpreter = tf.lite.Interpreter(model_content=content)
    place = interpreter.get_input_details()[0]["index"]
    interpreter.resize_tensor_input(place, images.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(place, images)
    interpreter.invoke()
    scores = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    return float((scores.argmax(axis=1) == labels).mean())


def main(logdir: Path) -> None:
    digits, labels, held_out = load_digits()
    images = np.ascontiguousarray(digits.transpose(0, 2, 3, 1))
    test, data = (images[held_out], labels[held_out]), images[~held_out][:CALIBRATION]
    model = with_huge_weights(trained(images[~held_out], labels[~held_out]))
    graph = frozen(model)
    baseline = float((model(test[0]).numpy().argmax(axis=1) == test[1]).mean())
    print(f"fp32: accuracy {baseline:.4f}")
    with tempfile.TemporaryDirectory() as folder:
        reference = Path(folder, "inception.pb")
        reference.write_bytes(graph.SerializeToString())

        def trial(name: str, keep: list[str]) -> inc_tb.Diagnosis:
            content = quantized(graph, data, keep)
            diagnosis = inc_tb.probe(reference, content, {"image": data}).diagnosis
            found = accuracy(content, *test)
            print(f"{name}: accuracy {found:.4f}, in fp32: {', '.join(keep) or 'nothing'}")
            with inc_tb.SummaryWriter(logdir / name) as writer:
                writer.add_diagnosis(diagnosis)
                writer.add_trial(inc_tb.Trial(name, found, baseline, keep))
            return diagnosis

        first = trial("trial-001", [])
        order = np.argsort(-np.nan_to_num(np.array(first.ops["a_mse"], float)))
        by_mse = [str(first.ops["name"][row]) for row in order]
        print(f"by MSE, {FIRST} is number {by_mse.index(FIRST) + 1} of {sum(np.isfinite(first.ops['a_mse']))}")
        trial("trial-002", by_mse[:MOST_MSE])
        best = first.suggestions[0]
        print(f"the diagnosis: {best.because}")
        trial("trial-003", best.ops)
    print(f"tensorboard --logdir {logdir}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "nc_workspace"))
