"""int8 convolutions one behind the other: `quantize_saved_model` stores their scales for XLA as products only."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

import inc_tb
from inc_tb.frameworks.models import open_switches
from inc_tb.search.simulation import Simulation

LAYERS = keras.layers


@pytest.fixture(scope="module", params=[True, False], ids=["per channel", "per tensor"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 3), name="image")
    x = LAYERS.Conv2D(8, 3, activation="relu", name="first")(image)
    x = LAYERS.Conv2D(8, 3, padding="same", activation="relu6", name="second")(x)
    x = LAYERS.Flatten(name="flat")(LAYERS.Conv2D(8, 3, name="third")(x))
    model = keras.Model(image, LAYERS.Dense(4, name="scores")(x))
    folder = tmp_path_factory.mktemp("chained")
    tool = inc_tb.TensorFlowQuantizer(approach="saved-model", per_channel=request.param)
    prepared = tool.prepare(model, folder)
    tool.quantize(prepared, folder / "int8", [{"image": images()}], tool.settings, [])
    return prepared, folder / "int8"


def images() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(64, 8, 8, 3)).astype(np.float32)


def test_values_and_weights_are_real_numbers(models: tuple[Path, Path]) -> None:
    found = inc_tb.diagnose(*models, {"image": images()})
    rows = [i for i, value in enumerate(found.ops["w_sqnr_db"]) if np.isfinite(value)]
    assert len(rows) == 4
    for row in rows:
        assert found.ops["w_sqnr_db"][row] > 40
        assert found.ops["a_sqnr_db"][row] > 30
        assert found.ops["added_sqnr_db"][row] > 35
        assert found.ops["a_q_max"][row] == pytest.approx(found.ops["a_max"][row], rel=0.02)


def test_simulation_is_the_model(models: tuple[Path, Path]) -> None:
    simulation = Simulation(open_switches(*models), [{"image": images()}], samples=32)
    compared = simulation.compare()
    assert compared["real"].error > 1e-5
    assert compared["simulated"].error == pytest.approx(compared["real"].error, rel=0.02)


def test_classes_of_images_are_at_the_end(tmp_path: Path) -> None:
    """A network that says for every pixel which of three classes it is; the top-1 of each pixel is compared."""
    image = keras.Input((4, 4, 1), name="image")
    model = keras.Model(image, LAYERS.Conv2D(3, 1, activation="softmax", name="classes")(image))
    tool = inc_tb.TensorFlowQuantizer()
    prepared = tool.prepare(model, tmp_path)
    pixels = np.random.default_rng(1).normal(size=(16, 4, 4, 1)).astype(np.float32)
    tool.quantize(prepared, tmp_path / "int8.tflite", [{"image": pixels}], tool.settings, [])
    simulation = Simulation(open_switches(prepared, tmp_path / "int8.tflite"), [{"image": pixels}], samples=16)
    compared = simulation.compare()["real"]
    whole, quantized = (np.concatenate([r[0] for r in results]) for results in (simulation.results, real(simulation)))
    assert compared.agreement == np.mean(whole.argmax(-1) == quantized.argmax(-1))
    assert compared.divergence is not None


def real(simulation: Simulation) -> list[list[np.ndarray]]:
    return [simulation.model.run_real(batch) for batch in simulation.batches]
