"""The callback in Keras' fit with the TensorFlow backend; tests/integrations/test_keras.py runs this."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import inc_tb
from inc_tb.frameworks.tensorflow.quiet import quiet
from inc_tb.integrations.keras import DiagnosisCallback
from inc_tb.store.eventfile import event_files, read_events
from tests.integrations.tiny import assert_same, noise, runs, steps

pytestmark = [
    pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]
layers = keras.layers


def model() -> keras.Model:
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    made = keras.Sequential(
        [
            keras.Input((8, 8, 1), name="image"), layers.Conv2D(4, 3, activation="relu", name="conv"),
            layers.BatchNormalization(name="norm"), layers.Flatten(name="flat"), layers.Dropout(0.2, name="drop"),
            layers.Dense(16, activation="relu", name="hidden"), layers.Dense(3, name="scores"),
        ]
    )  # fmt: skip
    return compiled(made)


def simple() -> keras.Model:
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    parts = [keras.Input((8, 8, 1), name="image"), layers.Flatten(name="flat"), layers.Dense(3, name="scores")]
    return compiled(keras.Sequential(parts))


def compiled(made: keras.Model, run_eagerly: bool = True) -> keras.Model:
    """By default without a graph for training, which takes longer to build than these trainings take."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss, run_eagerly=run_eagerly, jit_compile=False)
    return made


def aware() -> keras.Model:
    """Of which the values between its layers are rounded in training."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 1), name="image")
    x = layers.Conv2D(4, 3, activation="relu", name="conv")(image)
    x = layers.Lambda(lambda t: tf.quantization.fake_quant_with_min_max_args(t, 0, 4), name="rounded")(x)
    return compiled(keras.Model(image, layers.Dense(3, name="scores")(layers.Flatten(name="flat")(x))))


def images(count: int, seed: int = 1) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 8, 8, 1)).astype(np.float32), np.arange(count) % 3


def fit(trained: keras.Model, *callbacks: Any, epochs: int = 2, **options: Any) -> Any:
    x, y = images(24)
    return trained.fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=list(callbacks), **options)


def int8(given: keras.Model) -> None:
    given.quantize("int8")


def lite(given: keras.Model) -> bytes:
    with warnings.catch_warnings(), quiet():
        converter = tf.lite.TFLiteConverter.from_keras_model(given)
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([row[None]] for row in images(8)[0])
        return bytes(converter.convert())


class Direct(keras.callbacks.Callback):
    """What inc_tb.diagnose itself says at the end of each epoch."""

    def __init__(self, diagnosed: Callable[[keras.Model], inc_tb.Diagnosis], start: int = 0) -> None:
        super().__init__()
        self.diagnosed, self.start = diagnosed, start
        self.found: dict[int, inc_tb.Diagnosis] = {}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch >= self.start:
            self.found[epoch] = self.diagnosed(self.model)


def of_int8(trained: keras.Model, data: Any) -> inc_tb.Diagnosis:
    quantized = keras.models.clone_model(trained)
    quantized.set_weights(trained.get_weights())
    quantized.quantize("int8")
    return inc_tb.diagnose(trained, quantized, data)


def test_int8_is_tried_every_few_epochs_and_at_evaluations(tmp_path: Path) -> None:
    x, _ = images(6, seed=2)
    expected = Direct(lambda trained: of_int8(trained, {"image": x[:5]}), start=1)
    callback = DiagnosisCallback(every=2, quantize=int8, data=x, samples=5, log_dir=tmp_path)
    fit(model(), callback, expected, epochs=4, validation_data=images(8, seed=3), validation_freq=3)
    found = inc_tb.load(tmp_path / "quantization").diagnoses
    assert sorted(found) == [1, 2, 3]
    for epoch, diagnosis in found.items():
        assert_same(diagnosis, expected.found[epoch])
    last = found[3]
    assert {node.module.rpartition("/")[2] for node in last.graph} >= {"conv", "norm", "hidden", "scores"}
    matmuls = {n: d for n, d in zip(last.ops["name"], last.ops["weight_dtype"], strict=True) if "MatMul" in n}
    assert set(matmuls.values()) == {"int8"}
    assert min(noise(last)[name] for name in matmuls) > 30
    assert last.framework == "tensorflow"
    assert last.reference == "a keras.src.models.sequential.Sequential"


@pytest.mark.parametrize("kind", ["bytes", "path", "text"])
def test_a_tflite_model_as_bytes_or_as_a_path(kind: str, tmp_path: Path) -> None:
    x, _ = images(6, seed=2)

    def quantize(given: keras.Model) -> Any:
        content = lite(given)
        if kind == "bytes":
            return content
        (tmp_path / "int8.tflite").write_bytes(content)
        return tmp_path / "int8.tflite" if kind == "path" else str(tmp_path / "int8.tflite")

    expected = Direct(lambda trained: inc_tb.diagnose(trained, lite(trained), {"image": x[:4]}))
    trained = model() if kind == "bytes" else simple()
    epochs = 2 if kind == "bytes" else 1
    fit(trained, DiagnosisCallback(every=1, quantize=quantize, data=x, log_dir=tmp_path), expected, epochs=epochs)
    found = inc_tb.load(tmp_path / "quantization").diagnoses
    assert sorted(found) == list(range(epochs))
    for epoch, diagnosis in found.items():
        assert_same(diagnosis, expected.found[epoch])
    assert "int8" in set(found[0].ops["weight_dtype"])


def test_a_model_with_fake_quantization_is_compared_with_itself(tmp_path: Path) -> None:
    x, _ = images(4)
    expected = Direct(lambda trained: inc_tb.diagnose(None, trained, {"image": x}))
    fit(aware(), DiagnosisCallback(every=1, data=x, log_dir=tmp_path), expected)
    found = inc_tb.load(tmp_path / "quantization").diagnoses
    assert sorted(found) == [0, 1]
    for epoch, diagnosis in found.items():
        assert_same(diagnosis, expected.found[epoch])
    assert found[1].reference == "the same without fake quantization"
    heard = {name: value for name, value in noise(found[1]).items() if np.isfinite(value)}
    assert heard, noise(found[1])


def test_a_reference_may_be_given(tmp_path: Path) -> None:
    reference, trained, x = aware(), aware(), images(4)[0]
    fit(trained, DiagnosisCallback(every=2, reference=reference, data=x, log_dir=tmp_path))
    found = inc_tb.load(tmp_path / "quantization").diagnoses
    assert list(found) == [1]
    assert_same(found[1], inc_tb.diagnose(reference, trained, {"image": x}))


def state(trained: keras.Model) -> list[Any]:
    seeds = [layer.seed_generator.state.numpy() for layer in trained.layers if hasattr(layer, "seed_generator")]
    drawn = [tf.random.uniform([3]).numpy(), np.random.rand(3), np.array(random.random())]
    drawn.append(np.asarray(keras.random.uniform([3])))
    variables = [v.numpy() for v in trained.optimizer.variables]
    return [*trained.get_weights(), *variables, *seeds, *drawn]


@pytest.mark.parametrize("kind", ["int8", "lite", "aware"])
def test_training_is_the_same_with_the_callback(kind: str, tmp_path: Path) -> None:
    ends: list[list[Any]] = []
    quantize = {"int8": int8, "lite": lite, "aware": None}[kind]
    for is_watched in (False, True):
        trained = compiled(aware() if kind == "aware" else model(), run_eagerly=kind != "int8")
        watching = [DiagnosisCallback(every=1, quantize=quantize, data=images(6)[0], log_dir=tmp_path)]
        history = fit(trained, *(watching if is_watched else []), epochs=3, validation_data=images(8, seed=3))
        ends.append([*state(trained), np.array(list(history.history.values()))])
    assert steps(tmp_path / "quantization") == [0, 1, 2]
    assert len(ends[0]) == len(ends[1])
    for one, other in zip(*ends, strict=True):
        np.testing.assert_array_equal(one, other)


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    found = {}
    for path in event_files(folder):
        for event in read_events(path):
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found[value.tag, event.step] = value.simple_value
                elif value.HasField("tensor") and value.tensor.dtype == 1 and not value.tensor.tensor_shape.dim:
                    found[value.tag, event.step] = tf.make_ndarray(value.tensor).item()
    return found


@pytest.mark.parametrize("update_freq", ["epoch", 100])
def test_keras_own_tensorboard_callback(update_freq: Any, tmp_path: Path) -> None:
    """Diagnoses join its run, in its one file, at its steps; what it writes is still there."""
    trained, board = (
        simple(),
        keras.callbacks.TensorBoard(str(tmp_path / "logs"), write_graph=False, update_freq=update_freq),
    )
    x, _ = images(6, seed=2)
    expected = Direct(lambda trained: of_int8(trained, {"image": x[:4]}))
    history = fit(
        trained, board, DiagnosisCallback(every=1, quantize=int8, data=x, writer=board), expected,
        validation_data=images(8, seed=3),
    )  # fmt: skip
    assert {"train", "validation"} <= set(runs(tmp_path / "logs"))
    train = tmp_path / "logs" / "train"
    assert len(event_files(train)) == 1
    found = inc_tb.load(train).diagnoses
    assert sorted(found) == [0, 1]
    for epoch, diagnosis in found.items():
        assert_same(diagnosis, expected.found[epoch])
    told = scalars(train)
    for epoch, loss in enumerate(history.history["loss"] if update_freq == "epoch" else []):  # else Keras has none
        assert told["epoch_loss", epoch] == pytest.approx(loss, rel=1e-6)
    assert {("output/sqnr_db", 0), ("output/sqnr_db", 1)} <= set(told)


def test_the_users_writer(tmp_path: Path) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path / "mine"))
    trained = simple()
    callback = DiagnosisCallback(every=1, quantize=int8, data=images(4)[0], writer=writer)
    with writer.as_default():
        tf.summary.scalar("mine", 7.0, step=0)
    fit(trained, callback)
    trained.evaluate(*images(8), verbose=0, callbacks=[callback])
    with writer.as_default():
        tf.summary.scalar("mine", 8.0, step=5)
    writer.close()
    assert "mine" in runs(tmp_path)
    assert len(event_files(tmp_path / "mine")) == 1
    assert steps(tmp_path / "mine") == [0, 1]
    told = scalars(tmp_path / "mine")
    assert (told["mine", 0], told["mine", 5]) == (7.0, 8.0)


def test_each_training_has_a_run_of_its_own(tmp_path: Path) -> None:
    callback = DiagnosisCallback(every=1, quantize=int8, data=images(4)[0], log_dir=tmp_path)
    trained = simple()
    fit(trained, callback, epochs=1)
    fit(trained, callback, epochs=2, initial_epoch=1)
    assert {"quantization", "quantization-2"} <= set(runs(tmp_path))
    assert steps(tmp_path / "quantization-2") == [1]


def test_batches_of_fit_are_data(tmp_path: Path) -> None:
    x, y = images(12)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(3)
    given = {"pairs": [(x[:2], y[:2]), (x[2:], y[2:])], "dataset": dataset, "tensor": tf.constant(x)}
    fit(simple(), once := Direct(lambda trained: of_int8(trained, {"image": x[:4]})), epochs=1)
    expected = noise(once.found[0])["sequential_1/scores_1/MatMul"]
    for name, data in given.items():
        fit(simple(), DiagnosisCallback(every=1, quantize=int8, data=data, log_dir=tmp_path / name), epochs=1)
        found = inc_tb.load(tmp_path / name / "quantization").diagnosis
        assert found.samples == 4
        assert noise(found)["sequential_1/scores_1/MatMul"] == pytest.approx(expected, abs=1e-3)


def test_several_inputs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"zoo": rng.normal(size=(8, 4)).astype(np.float32), "ant": rng.normal(size=(8, 3)).astype(np.float32)}
    y = np.zeros((8, 2))
    for kind in ("dict", "list"):
        keras.utils.clear_session()
        zoo, ant = keras.Input((4,), name="zoo"), keras.Input((3,), name="ant")
        inputs = {"zoo": zoo, "ant": ant} if kind == "dict" else [zoo, ant]
        trained = keras.Model(inputs, layers.Dense(2, name="out")(layers.Concatenate()([zoo, ant])))
        trained.compile(optimizer="sgd", loss="mse", run_eagerly=True)
        x: Any = arrays if kind == "dict" else list(arrays.values())
        callback = DiagnosisCallback(every=1, quantize=int8, data=[(x, y)], log_dir=tmp_path / kind)
        trained.fit(x, y, epochs=1, verbose=0, callbacks=[callback])
        found = noise(inc_tb.load(tmp_path / kind / "quantization").diagnosis)
        assert next(value for name, value in found.items() if "MatMul" in name) > 30


class Own(keras.Model):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.flat, self.scores = layers.Flatten(), layers.Dense(3, name="scores")

    def call(self, image: Any) -> Any:
        return self.scores(self.flat(image))


def test_a_model_of_the_users_own_class(tmp_path: Path) -> None:
    x, _ = images(4)
    keras.utils.set_random_seed(0)
    fit(compiled(Own()), DiagnosisCallback(every=1, quantize=int8, data=x, log_dir=tmp_path))
    found = noise(inc_tb.load(tmp_path / "quantization").diagnosis)
    assert next(value for name, value in found.items() if "MatMul" in name) > 30


class Odd(Own):
    def __init__(self) -> None:
        super().__init__()


def test_a_model_that_cannot_be_copied(tmp_path: Path) -> None:
    callback = DiagnosisCallback(every=1, quantize=int8, data=images(4)[0], log_dir=tmp_path)
    with pytest.raises(inc_tb.IncTbError, match=r"the model cannot be copied: TypeError: .* need a get_config") as told:
        fit(compiled(Odd()), callback)
    assert "\n" not in str(told.value)
    assert list(tmp_path.iterdir()) == []


def test_a_layer_that_is_a_function_of_python(tmp_path: Path) -> None:
    """Keras' own clone_model refuses it."""
    x, _ = images(4)
    fit(aware(), DiagnosisCallback(every=1, quantize=int8, data=x, log_dir=tmp_path), epochs=1)
    found = noise(inc_tb.load(tmp_path / "quantization").diagnosis)
    assert next(value for name, value in found.items() if "MatMul" in name) > 30


def test_an_error_is_a_warning_and_training_goes_on(tmp_path: Path) -> None:
    calls = []

    def sometimes(given: keras.Model) -> None:
        calls.append(1)
        if len(calls) > 1:
            raise ValueError("first line\nsecond line")
        given.quantize("int8")

    wrong = np.zeros((2, 5, 5, 3), np.float32)
    for name, callback in {
        "data": DiagnosisCallback(every=1, quantize=int8, data=wrong, log_dir=tmp_path / "data"),
        "quantize": DiagnosisCallback(every=1, quantize=sometimes, data=images(4)[0], log_dir=tmp_path / "quantize"),
        "lite": DiagnosisCallback(
            every=1, quantize=lambda m: lite(m) if calls.append(1) is None and len(calls) < 6 else b"TFL3" * 9,
            data=images(4)[0], log_dir=tmp_path / "lite",
        ),
    }.items():  # fmt: skip
        if name == "lite":
            calls[:] = [1] * 4
        with pytest.warns(RuntimeWarning, match="no quantization diagnosis, training goes on: ") as told:
            assert len(fit(simple(), callback, epochs=3).epoch) == 3
        lines = [str(w.message) for w in told if "no quantization diagnosis" in str(w.message)]
        assert len(lines) == 1, (name, lines)
        assert "\n" not in lines[0]
        assert not (tmp_path / name).exists()


def test_what_cannot_work_is_said_when_training_begins(tmp_path: Path) -> None:
    def broken(given: Any) -> None:
        given.quantize("int3")

    x = images(4)[0]
    with pytest.raises(inc_tb.IncTbError, match=r"quantize=.* failed: ValueError: "):
        fit(simple(), DiagnosisCallback(every=1, quantize=broken, data=x, log_dir=tmp_path))
    with pytest.raises(
        inc_tb.IncTbError, match="has no fake quantization to leave out; expected a reference beside it"
    ):
        fit(simple(), DiagnosisCallback(every=1, data=x, log_dir=tmp_path))
    with pytest.raises(inc_tb.IncTbError, match="writer=3 was given"):
        DiagnosisCallback(every=1, quantize=int8, data=x, writer=3)
    with pytest.raises(inc_tb.IncTbError, match="no such file; expected a model"):
        fit(simple(), DiagnosisCallback(every=1, quantize=lambda m: "nothing.tflite", data=x, log_dir=tmp_path))
    with pytest.raises(inc_tb.IncTbError, match=r"cannot read a model of 0 kB in memory"):
        fit(simple(), DiagnosisCallback(every=1, quantize=lambda m: b"nothing", data=x, log_dir=tmp_path))
    assert list(tmp_path.iterdir()) == []
