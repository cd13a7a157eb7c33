"""The callback in Keras' fit with the torch backend; tests/integrations/test_keras.py runs this."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch
from torch.utils.tensorboard import SummaryWriter

import inc_tb
from inc_tb.integrations.keras import DiagnosisCallback
from inc_tb.integrations.keras_torch import as_modules
from tests.integrations.tiny import FILTERS, assert_same, noise, runs, steps

pytestmark = [
    *(pytest.mark.filterwarnings(f) for f in FILTERS),
    pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method:UserWarning"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]
layers = keras.layers


def model() -> keras.Model:
    keras.utils.set_random_seed(0)
    made = keras.Sequential(
        [
            keras.Input((8, 8, 1)), layers.Conv2D(4, 3, activation="relu", name="conv"), layers.BatchNormalization(),
            layers.Flatten(), layers.Dropout(0.2), layers.Dense(16, activation="relu", name="hidden"),
            layers.Dense(3, name="scores"),
        ]
    )  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss)
    return made


def images(count: int, seed: int = 1) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 8, 8, 1)).astype(np.float32), np.arange(count) % 3


def fit(trained: keras.Model, *callbacks: Any, epochs: int = 4, **options: Any) -> Any:
    x, y = images(24)
    return trained.fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=list(callbacks), **options)


def int8(given: keras.Model) -> None:
    given.quantize("int8")


def direct(trained: keras.Model, data: Any) -> inc_tb.Diagnosis:
    quantized = keras.models.clone_model(trained)
    quantized.set_weights(trained.get_weights())
    quantized.quantize("int8")
    with as_modules(trained) as reference, as_modules(quantized) as other:
        return inc_tb.diagnose(reference, other, data)


class Direct(keras.callbacks.Callback):
    def __init__(self, data: Any) -> None:
        super().__init__()
        self.data = data
        self.found: dict[int, inc_tb.Diagnosis] = {}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.found[epoch] = direct(self.model, self.data)


def state(trained: keras.Model) -> list[Any]:
    return [*trained.get_weights(), *(v.numpy() for v in trained.optimizer.variables), torch.get_rng_state().numpy()]


def test_int8_is_tried_every_few_epochs_and_at_evaluations(tmp_path: Path) -> None:
    x, _ = images(6, seed=2)
    expected = Direct({"input_0": x[:5]})
    callback = DiagnosisCallback(every=2, quantize=int8, data=x, samples=5, log_dir=tmp_path)
    fit(model(), callback, expected, validation_data=images(8, seed=3), validation_freq=3)
    found = inc_tb.load(tmp_path / "quantization").diagnoses
    assert sorted(found) == [1, 2, 3]
    for epoch, diagnosis in found.items():
        assert_same(diagnosis, expected.found[epoch])
    last = found[3]
    assert list(last.ops["name"]) == ["conv", "batch_normalization", "flatten", "dropout", "hidden", "scores"]
    assert list(last.ops["weight_dtype"]) == ["", "", "", "", "int8", "int8"]
    assert noise(last)["hidden"] > 30
    assert last.reference == "a keras.src.models.sequential.Sequential"


def test_training_is_the_same_with_the_callback(tmp_path: Path) -> None:
    ends = []
    for make in (list, lambda: [DiagnosisCallback(every=1, quantize=int8, data=images(6)[0], log_dir=tmp_path)]):
        trained = model()
        fit(trained, *make(), validation_data=images(8, seed=3))
        ends.append(state(trained))
        assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in trained._flatten_layers())
        assert not any("weight" in layer.__dict__ for layer in trained._flatten_layers())
    assert steps(tmp_path / "quantization") == [0, 1, 2, 3]
    assert len(ends[0]) == len(ends[1])
    assert all(np.array_equal(a, b) for a, b in zip(*ends, strict=True))


def test_a_reference_may_be_given(tmp_path: Path) -> None:
    reference, x = model(), images(4)[0]
    trained = model()
    fit(trained, DiagnosisCallback(every=4, reference=reference, data=x, log_dir=tmp_path))
    found = inc_tb.load(tmp_path / "quantization").diagnoses
    assert list(found) == [3]
    with as_modules(reference) as one, as_modules(trained) as other:
        assert_same(found[3], inc_tb.diagnose(one, other, {"input_0": x}))


def test_batches_of_fit_are_data(tmp_path: Path) -> None:
    x, y = images(12)
    trained = model()
    given = {"pairs": ([(x[:2], y[:2]), (x[2:], y[2:])], [2, 4]), "loader": (loader(x, y), [4])}
    for name, (data, ends) in given.items():
        callback = DiagnosisCallback(every=1, quantize=int8, data=data, log_dir=tmp_path / name)
        fit(trained, callback, epochs=1)
        found = inc_tb.load(tmp_path / name / "quantization").diagnosis
        assert_same(found, direct(trained, [{"input_0": rows} for rows in np.split(x[:4], ends)[: len(ends)]]))


def loader(x: Any, y: Any) -> Any:
    return torch.utils.data.DataLoader([(torch.from_numpy(a), int(b)) for a, b in zip(x, y, strict=True)], batch_size=3)


def test_each_training_has_a_run_of_its_own(tmp_path: Path) -> None:
    callback = DiagnosisCallback(every=2, quantize=int8, data=images(4)[0], log_dir=tmp_path)
    trained = model()
    fit(trained, callback, epochs=2)
    fit(trained, callback, epochs=4, initial_epoch=2)
    assert runs(tmp_path) == ["quantization", "quantization-2"]
    assert steps(tmp_path / "quantization-2") == [3]


def test_the_users_writer(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path / "mine")) as writer:
        trained = model()
        callback = DiagnosisCallback(every=1, quantize=int8, data=images(4)[0], writer=writer)
        fit(trained, callback, epochs=2)
        trained.evaluate(*images(8), verbose=0, callbacks=[callback])
    assert runs(tmp_path) == ["mine"]
    assert steps(tmp_path / "mine") == [0, 1]


def test_names_of_a_transformer(tmp_path: Path) -> None:
    tokens, extra = keras.Input((6,), dtype="int32", name="tokens"), keras.Input((6, 16), name="extra")
    x = layers.Embedding(50, 16, name="words")(tokens) + extra
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8, name="attention")(x, x))
    block = keras.Sequential(
        [keras.Input((6, 16)), layers.Dense(32, name="up"), layers.Dense(16, name="down")], name="mlp"
    )
    scores = layers.Dense(3, name="scores")(layers.GlobalAveragePooling1D()(block(x)))
    trained = keras.Model({"tokens": tokens, "extra": extra}, scores)
    trained.compile(optimizer="sgd", loss="mse")
    rng = np.random.default_rng(0)
    data = {"tokens": rng.integers(0, 50, (8, 6)), "extra": rng.normal(size=(8, 6, 16)).astype(np.float32)}
    callback = DiagnosisCallback(every=1, quantize=int8, data=data, log_dir=tmp_path)
    trained.fit(data, np.zeros((8, 3)), epochs=1, verbose=0, callbacks=[callback])
    found = noise(inc_tb.load(tmp_path / "quantization").diagnosis)
    assert {"words", "attention.query", "attention.attention_output", "mlp.up", "mlp.down", "scores"} < set(found)
    assert all(found[name] > 30 for name in ("words", "attention.query", "mlp.up", "scores"))


def test_inputs_in_a_list(tmp_path: Path) -> None:
    one, two = keras.Input((4,)), keras.Input((3,))
    trained = keras.Model([one, two], layers.Dense(2, name="out")(layers.Concatenate()([one, two])))
    trained.compile(optimizer="sgd", loss="mse")
    x = [np.ones((8, 4), np.float32), np.ones((8, 3), np.float32)]
    y = np.zeros((8, 2))
    callback = DiagnosisCallback(every=1, quantize=int8, data=[(x, y)], log_dir=tmp_path)
    trained.fit(x, y, epochs=1, verbose=0, callbacks=[callback])
    assert noise(inc_tb.load(tmp_path / "quantization").diagnosis)["out"] > 30


def test_an_error_is_a_warning_and_training_goes_on(tmp_path: Path) -> None:
    wrong = np.zeros((2, 5, 5, 3), np.float32)
    trained = model()
    callback = DiagnosisCallback(every=1, quantize=int8, data=wrong, log_dir=tmp_path)
    with pytest.warns(RuntimeWarning, match="no quantization diagnosis, training goes on: ") as told:
        assert len(fit(trained, callback).epoch) == 4
    assert sum("no quantization diagnosis" in str(warning.message) for warning in told) == 1
    assert not any("weight" in layer.__dict__ for layer in trained._flatten_layers())


def test_what_cannot_work_is_said_when_training_begins(tmp_path: Path) -> None:
    def broken(given: Any) -> None:
        given.quantize("int3")

    with pytest.raises(inc_tb.IncTbError, match=r"quantize=.* failed: ValueError: "):
        fit(model(), DiagnosisCallback(every=1, quantize=broken, data=images(4)[0], log_dir=tmp_path))
    with pytest.raises(inc_tb.IncTbError, match="nothing to compare with was given; expected quantize="):
        DiagnosisCallback(every=1, data=images(4)[0])
    with pytest.raises(inc_tb.IncTbError, match="writer=3 was given"):
        DiagnosisCallback(every=1, quantize=int8, data=images(4)[0], writer=3)
    assert list(tmp_path.iterdir()) == []
