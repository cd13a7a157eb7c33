"""Every way to give a TensorFlow model: it opens, with names that users know, and gives what TensorFlow gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import inc_tb
from inc_tb.advise.diagnose import compare
from inc_tb.errors import ModelError
from inc_tb.frameworks import models
from inc_tb.frameworks.tensorflow.library import tf
from inc_tb.frameworks.tensorflow.quiet import quiet
from tests.frameworks import tensorflow_nets as nets
from tests.frameworks.tensorflow_nets import keras, layers
from tests.waiting import PATIENCE_S

DATA = Path(__file__).parent / "data"

ROOT = Path(inc_tb.__file__).parents[1]
HARD = Path(__file__).parent / "data" / "hard_tf.pb"
Array = nets.Array


class Given(NamedTuple):
    """A model, what it is fed, and what the framework itself makes of that."""

    model: Any
    feeds: Mapping[str, Array]
    results: list[Array]


def rows(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def small(seed: int = 0) -> Any:
    keras.utils.clear_session()
    image = keras.Input((6, 6, 2), name="image")
    x = layers.Conv2D(3, 3, activation="relu", name="conv")(image)
    return nets.randomized(keras.Model(image, layers.Dense(4, name="head")(layers.Flatten()(x)), name="small"), seed)


def of_keras(model: Any, feeds: Mapping[str, Array], call: Any = None) -> Given:
    """With `call` as the model wants its inputs, where that is no mapping."""
    made = tf.nest.flatten(model(call if call is not None else dict(feeds), training=False))
    return Given(model, feeds, [np.asarray(array) for array in made])


IMAGES = {"image": rows(3, 6, 6, 2)}


# --- files ---


def as_graph(folder: Path) -> Given:
    graph_def = tf.compat.v1.GraphDef.FromString(HARD.read_bytes())
    feeds = {"input": rows(2, 8, 8, 1)}
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        tf.import_graph_def(graph_def, name="")
        last = graph.get_operations()[-1].outputs[0]
        return Given(HARD, feeds, [session.run(last, {"input:0": feeds["input"]})])


def as_graph_def(folder: Path) -> Given:
    given = as_graph(folder)
    return given._replace(model=tf.compat.v1.GraphDef.FromString(HARD.read_bytes()))


def as_text_path(folder: Path) -> Given:
    return as_graph(folder)._replace(model=str(HARD))


def saved(folder: Path) -> Given:
    model = small()
    with quiet():
        model.export(str(folder / "export"), verbose=False)
    return of_keras(model, IMAGES, IMAGES["image"])._replace(model=folder / "export")


def saved_by_file(folder: Path) -> Given:
    return saved(folder)._replace(model=folder / "export" / "saved_model.pb")


def saved_by_text(folder: Path) -> Given:
    return saved(folder)._replace(model=f"{folder}/export/")


def saved_and_loaded(folder: Path) -> Given:
    given = saved(folder)
    with quiet():
        return given._replace(model=tf.saved_model.load(str(given.model)))


def saved_signature(folder: Path) -> Given:
    given = saved_and_loaded(folder)
    made = given.model.signatures["serving_default"]
    made.kept = given.model
    return given._replace(model=made)


class TwoWays(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(rows(4, 3))

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
    def forward(self, x: Any) -> dict[str, Any]:
        return {"scores": tf.nn.relu(x @ self.w)}

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="y")])
    def backward(self, y: Any) -> dict[str, Any]:
        return {"inputs": tf.matmul(y, self.w, transpose_b=True)}


def several_signatures(folder: Path) -> Given:
    """Of which one is the usual."""
    module, feeds = TwoWays(), {"x": rows(5, 4)}
    with quiet():
        signatures = {"serving_default": module.forward, "other": module.backward}
        tf.saved_model.save(module, str(folder / "two"), signatures=signatures)
    return Given(folder / "two", feeds, [module.forward(feeds["x"])["scores"].numpy()])


def one_signature_of_several(folder: Path) -> Given:
    module, feeds = TwoWays(), {"y": rows(5, 3)}
    with quiet():
        tf.saved_model.save(module, str(folder / "two"), signatures={"a": module.forward, "b": module.backward})
        loaded = tf.saved_model.load(str(folder / "two"))
    made = loaded.signatures["b"]
    made.kept = loaded
    return Given(made, feeds, [module.backward(feeds["y"])["inputs"].numpy()])


def test_a_signature_outlives_no_model(tmp_path: Path) -> None:
    """TensorFlow itself cannot call it any more."""
    folder = saved(tmp_path).model
    with quiet():
        gone = tf.saved_model.load(str(folder)).signatures["serving_default"]
    with pytest.raises(ModelError, match=r"the variables that it uses are gone; .* Keep what tf.saved_model.load"):
        models.read_inputs(gone)


def only_signature(folder: Path) -> Given:
    """Whatever its name is."""
    module, feeds = TwoWays(), {"y": rows(5, 3)}
    with quiet():
        tf.saved_model.save(module, str(folder / "one"), signatures={"odd": module.backward})
    return Given(folder / "one", feeds, [module.backward(feeds["y"])["inputs"].numpy()])


def saved_by_tensorflow_1(folder: Path) -> Given:
    v1, feeds = tf.compat.v1, {"pixels": rows(3, 4)}
    with tf.Graph().as_default(), v1.Session() as session, quiet():
        x = v1.placeholder(tf.float32, [None, 4], name="in/x")
        w = v1.get_variable("w", initializer=rows(4, 3), use_resource=False)
        b = v1.get_variable("b", initializer=rows(3), use_resource=True)
        y = tf.nn.relu(tf.nn.bias_add(x @ w, b), name="y")
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(folder / "v1"), {"pixels": x}, {"scores": y})
        return Given(folder / "v1", feeds, [session.run(y, {x: feeds["pixels"]})])


def keras_file(folder: Path) -> Given:
    given = of_keras(small(), IMAGES, IMAGES["image"])
    with quiet():
        given.model.save(folder / "m.keras")
    return given._replace(model=folder / "m.keras")


def h5_file(folder: Path) -> Given:
    given = of_keras(small(), IMAGES, IMAGES["image"])
    with quiet():
        given.model.save(folder / "m.h5")
    return given._replace(model=str(folder / "m.h5"))


def lite_bytes(folder: Path) -> Given:
    given = of_keras(small(), IMAGES, IMAGES["image"])
    return given._replace(model=nets.to_lite(given.model))


def lite_file(folder: Path) -> Given:
    given = lite_bytes(folder)
    (folder / "m.tflite").write_bytes(given.model)
    return given._replace(model=folder / "m.tflite")


# --- functions ---


def concrete(folder: Path) -> Given:
    w = tf.Variable(rows(4, 3))
    function = tf.function(lambda x, y: {"b": x @ w, "a": tf.nn.relu(x @ w + y)})
    made = function.get_concrete_function(
        tf.TensorSpec([None, 4], tf.float32, name="x"), tf.TensorSpec([None, 3], tf.float32, name="y")
    )
    made.kept = w
    feeds = {"x": rows(2, 4), "y": rows(2, 3)}
    results = made(tf.constant(feeds["x"]), tf.constant(feeds["y"]))
    return Given(made, feeds, [results["a"].numpy(), results["b"].numpy()])


def function_with_signature(folder: Path) -> Given:
    w = tf.Variable(rows(4, 3))
    made = tf.function(lambda x: x @ w, input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
    made.kept = w
    feeds = {"x": rows(2, 4)}
    return Given(made, feeds, [made(feeds["x"]).numpy()])


def function_called_once(folder: Path) -> Given:
    w = tf.Variable(rows(4, 3))
    made = tf.function(lambda x: x @ w)
    made.kept = w
    feeds = {"x": rows(2, 4)}
    return Given(made, feeds, [made(tf.constant(feeds["x"])).numpy()])


# --- Keras ---


def sequential(folder: Path) -> Given:
    keras.utils.clear_session()
    model = keras.Sequential([keras.Input((5,), name="row"), layers.Dense(4, activation="relu"), layers.Dense(2)])
    feeds = {"row": rows(3, 5)}
    return of_keras(model, feeds, feeds["row"])


def sequential_built_by_a_call(folder: Path) -> Given:
    model, feeds = keras.Sequential([layers.Dense(4, activation="relu"), layers.Dense(2)]), {"row": rows(3, 5)}
    given = of_keras(model, feeds, feeds["row"])
    return given._replace(feeds={model.inputs[0].name: feeds["row"]})


def functional(folder: Path) -> Given:
    return of_keras(small(), IMAGES, IMAGES["image"])


def dict_of_inputs(folder: Path) -> Given:
    model = nets.built("two_inputs_dict")
    return of_keras(model, nets.feeds(model))


def list_of_inputs(folder: Path) -> Given:
    model = nets.built("two_inputs_list")
    feeds = nets.feeds(model)
    return of_keras(model, feeds, [feeds["left"], feeds["right"]])


def nested_inputs(folder: Path) -> Given:
    keras.utils.clear_session()
    a, b, c = (keras.Input((n,), name=name) for n, name in ((4, "a"), (3, "b"), (2, "c")))
    model = keras.Model([[c, a], {"b": b}], layers.Dense(2)(layers.Concatenate()([a, b, c])))
    feeds = {"a": rows(2, 4), "b": rows(2, 3), "c": rows(2, 2)}
    return of_keras(model, feeds, [[feeds["c"], feeds["a"]], {"b": feeds["b"]}])


def list_of_outputs(folder: Path) -> Given:
    model = nets.built("two_outputs")
    feeds = nets.feeds(model)
    return of_keras(model, feeds, next(iter(feeds.values())))


def dict_of_outputs(folder: Path) -> Given:
    model = nets.built("two_outputs_dict")
    feeds = nets.feeds(model)
    return of_keras(model, feeds, next(iter(feeds.values())))


def models_in_models(folder: Path) -> Given:
    model = nets.built("nested")
    feeds = nets.feeds(model)
    return of_keras(model, feeds, next(iter(feeds.values())))


class Own(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = layers.Dense(4, activation="relu", name="first"), layers.Dense(2, name="last")

    def call(self, row: Any) -> Any:
        return self.last(self.first(row))


class OwnTwo(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = layers.Dense(4, name="first"), layers.Dense(2, name="last")

    def call(self, inputs: Any) -> Any:
        return self.last(self.first(inputs["left"]) * inputs["right"])


def subclassed(folder: Path) -> Given:
    keras.utils.clear_session()
    feeds = {"row": rows(3, 5)}
    return of_keras(Own(), feeds, feeds["row"])


def subclassed_with_names(folder: Path) -> Given:
    keras.utils.clear_session()
    return of_keras(OwnTwo(), {"left": rows(3, 5), "right": rows(3, 4)})


class OwnList(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.first = layers.Dense(4, name="first")

    def call(self, pair: Any) -> Any:
        return self.first(pair[0]) * pair[1]


def subclassed_with_a_list(folder: Path) -> Given:
    keras.utils.clear_session()
    feeds = {"pair_0": rows(3, 5), "pair_1": rows(3, 4)}
    return of_keras(OwnList(), feeds, list(feeds.values()))


def subclassed_by_function(folder: Path) -> Given:
    given = subclassed(folder)
    spec = tf.TensorSpec([None, 5], tf.float32, name="row")
    made = tf.function(given.model).get_concrete_function(spec)
    made.kept = given.model
    return given._replace(model=made)


WAYS: dict[str, Callable[[Path], Given]] = {
    make.__name__: make
    for make in (
        as_graph, as_graph_def, as_text_path, saved, saved_by_file, saved_by_text, saved_and_loaded, saved_signature,
        several_signatures, one_signature_of_several, only_signature, saved_by_tensorflow_1, keras_file, h5_file,
        lite_bytes, lite_file, concrete, function_with_signature, function_called_once, sequential,
        sequential_built_by_a_call, functional, dict_of_inputs, list_of_inputs, nested_inputs, list_of_outputs,
        dict_of_outputs, models_in_models, subclassed, subclassed_with_names, subclassed_with_a_list,
        subclassed_by_function,
    )
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_model_opens_and_gives_what_tensorflow_gives(way: str, tmp_path: Path) -> None:
    given = WAYS[way](tmp_path)
    inputs = {i.name: i for i in models.read_inputs(given.model)}
    assert set(inputs) == set(given.feeds)
    for name, array in given.feeds.items():
        assert inputs[name].dtype == array.dtype
        assert inputs[name].shape == (None, *array.shape[1:])
    found = models.open_results(given.model)(given.feeds)
    assert [array.shape for array in found] == [array.shape for array in given.results]
    for mine, theirs in zip(found, given.results, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    diagnosis = compare(given.model, given.model, given.feeds)
    assert diagnosis.ops.count == len(models.read_graph(given.model)) > 0
    assert diagnosis.notes == ["nothing is quantized in the second model; nothing that is compared differs"]
    assert models.measure_size(given.model) > 0
    target = tmp_path / "copy"
    models.save_model(given.model, target)
    assert target.exists()


def test_a_batch_of_fixed_size_is_taken_in_parts() -> None:
    keras.utils.clear_session()
    model = keras.Sequential([keras.Input((5,), batch_size=2, name="row"), layers.Dense(3)])
    array = rows(6, 5)
    expected = np.concatenate([np.asarray(model(array[at : at + 2])) for at in (0, 2, 4)])
    np.testing.assert_allclose(models.open_results(model)({"row": array})[0], expected, rtol=1e-5, atol=1e-6)


def test_the_digest_tells_weights_apart() -> None:
    one, other = small(0), small(1)
    assert models.digest_model(one) == models.digest_model(one) != models.digest_model(other)
    content = nets.to_lite(one)
    assert models.digest_model(content) == models.digest_model(bytearray(content))
    assert models.digest_model(content) != models.digest_model(nets.to_lite(other))


@pytest.mark.parametrize("way", ["saved", "keras_file", "lite_file", "as_graph"])
def test_the_digest_of_a_copy_is_the_same(way: str, tmp_path: Path) -> None:
    given = WAYS[way](tmp_path).model
    target = tmp_path / f"copy{given.suffix}"
    models.save_model(given, target)
    assert models.digest_model(target) == models.digest_model(given)
    assert models.measure_size(target) == models.measure_size(given)


def test_the_size_is_that_of_the_files(tmp_path: Path) -> None:
    folder = saved(tmp_path).model
    expected = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert models.measure_size(folder) == expected / 1000
    assert models.measure_size(HARD) == HARD.stat().st_size / 1000
    content = nets.to_lite(small())
    assert models.measure_size(content) == len(content) / 1000
    parameters = small().count_params() * 4
    assert parameters / 1000 < models.measure_size(small()) < parameters / 1000 + 20


def test_an_object_is_saved_so_that_it_can_be_opened_again(tmp_path: Path) -> None:
    given = functional(tmp_path)
    models.save_model(given.model, tmp_path / "m.pb")
    assert [i.name for i in models.read_inputs(tmp_path / "m.pb")] == ["image"]
    found = models.open_results(tmp_path / "m.pb")(IMAGES)
    np.testing.assert_allclose(found[0], given.results[0], rtol=1e-5, atol=1e-6)


def test_the_graph_has_the_ops_and_what_they_read() -> None:
    nodes = {node.name: node for node in models.read_graph(HARD)}
    assert nodes["v0/cg/conv0/Conv2D"].inputs == []
    assert nodes["v0/add"].type == "AddV2"
    assert len(nodes["v0/add"].inputs) == 2
    assert all(source in nodes for node in nodes.values() for source in node.inputs)
    kinds = [node.type for node in models.read_graph(nets.to_lite(small()))]
    assert kinds[0] == "CONV_2D"
    assert kinds[-1] == "FULLY_CONNECTED"


def test_ops_belong_to_the_layers_of_keras(tmp_path: Path) -> None:
    for way in (functional, keras_file):
        given = way(tmp_path)
        found = inc_tb.diagnose(given.model, nets.to_lite(small(), "int8", IMAGES), IMAGES)
        modules = {node.module for node in found.graph}
        assert {"small/conv", "small/head"} <= modules or {"conv", "head"} <= modules
        assert found.notes == []


def run(code: str, *arguments: object, **env: str) -> Any:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    given = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=given, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


DIGESTS = """
import json, sys
from pathlib import Path
from inc_tb.frameworks.models import digest_model
print(json.dumps([digest_model(Path(path)) for path in sys.argv[1:]]))
"""


@pytest.mark.slow
def test_the_digest_is_the_same_in_another_process(tmp_path: Path) -> None:
    ways = (as_graph, saved, keras_file, lite_file, several_signatures, saved_by_tensorflow_1)
    given = [way(tmp_path).model for way in ways]
    assert run(DIGESTS, *given) == [models.digest_model(model) for model in given]


ON_TORCH = """
import json, sys
import keras
import numpy as np
import torch
import inc_tb
model = keras.Sequential([keras.Input((5,), name="row"), keras.layers.Dense(3)])
told = []
for other in (sys.argv[1], sys.argv[1]):
    try:
        inc_tb.diagnose(model if not told else sys.argv[2], other, np.zeros((2, 5), np.float32))
    except inc_tb.IncTbError as error:
        told.append(str(error))
print(json.dumps(told))
"""


@pytest.mark.slow
def test_a_model_on_another_backend(tmp_path: Path) -> None:
    """The object is none of TensorFlow's; its file could be, but Keras has chosen the backend for this process."""
    given = keras_file(tmp_path)
    (tmp_path / "m.tflite").write_bytes(nets.to_lite(small()))
    told = run(ON_TORCH, tmp_path / "m.tflite", given.model, KERAS_BACKEND="torch")
    assert len(told) == 2
    assert all("\n" not in text for text in told)
    assert "KERAS_BACKEND" in told[1], told


def test_a_model_of_no_known_kind() -> None:
    with pytest.raises(
        ModelError, match=r"cannot read a builtins.int; expected a model of MXNet, ONNX, TensorFlow or PyTorch"
    ):
        models.read_inputs(3)


def test_logged_graph_of_neural_compressor_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    """It prints the tensors that it logs, at every run; as the reference of the int8 graph beside it, it does not."""
    images = np.random.default_rng(0).random((4, 8, 8, 1), np.float32)
    found = inc_tb.diagnose(DATA / "inc26_logged_fp32.pb", DATA / "inc26_hard_mse_tune.pb", {"input": images})
    rows = dict(zip(found.ops["name"], found.ops["act_dtype"], strict=True))
    assert rows["v0/avgpool"] == "uint8"
    assert [name for name, dtype in rows.items() if dtype] == ["v0/cg/conv5/Relu", "v0/avgpool"]
    assert "v0/cg/conv1/Relu__print__" not in rows
    assert capfd.readouterr().err == ""
