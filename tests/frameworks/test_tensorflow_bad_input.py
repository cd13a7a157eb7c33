"""What is wrong is said in one line: what was given, what was expected, what to do. Nothing is half written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import inc_tb
from inc_tb.cli import main
from inc_tb.errors import DataError, IncTbError, MismatchError, ModelError, UsageError
from inc_tb.frameworks import models
from inc_tb.frameworks.tensorflow.library import tf
from inc_tb.frameworks.tensorflow.quiet import quiet
from tests.frameworks import tensorflow_nets as nets
from tests.frameworks.tensorflow_nets import keras, layers
from tests.waiting import PATIENCE_S

DATA = Path(__file__).parent / "data"
HARD = DATA / "hard_tf.pb"
ONNX = Path(inc_tb.__file__).parents[1] / "tests" / "data" / "hard.onnx"
RANDOM = np.random.default_rng(0).bytes(3000)
KINDS = r"Expected a frozen graph \(.pb\), a SavedModel folder, a Keras file \(.keras\), or a TFLite file \(.tflite\)."
v1 = tf.compat.v1


def rows(*shape: int) -> nets.Array:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


IMAGES = {"image": rows(3, 6, 6, 2)}


def check(error: IncTbError, kind: type[IncTbError], *said: str) -> None:
    text = str(error)
    assert isinstance(error, kind), repr(error)
    assert text.strip() == text
    assert "\n" not in text
    assert 20 < len(text) < 700
    assert text.endswith((".", ").")), text
    assert ".." not in text.replace("...", "")
    assert "Traceback" not in text
    for pattern in said:
        assert re.search(pattern, text), f"{pattern!r} is not in: {text}"


def refused(reference: Any, quantized: Any, batches: Any, kind: type[IncTbError], *said: str) -> None:
    """`said` are regular expressions that the one line must match."""
    with pytest.raises(IncTbError) as caught:
        inc_tb.diagnose(reference, quantized, batches)
    check(caught.value, kind, *said)


@pytest.fixture(scope="module")
def model() -> Any:
    keras.utils.clear_session()
    image = keras.Input((6, 6, 2), name="image")
    x = layers.Conv2D(3, 3, activation="relu", name="conv")(image)
    return nets.randomized(keras.Model(image, layers.Dense(4, name="head")(layers.Flatten()(x)), name="small"))


@pytest.fixture(scope="module")
def lite(model: Any) -> bytes:
    return nets.to_lite(model, "int8", IMAGES)


@pytest.fixture(scope="module")
def saved(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    with quiet():
        model.export(str(folder), verbose=False)
    return folder


def test_what_is_right_is_taken(model: Any, lite: bytes) -> None:
    with pytest.raises(pytest.fail.Exception):
        refused(model, lite, IMAGES, IncTbError)


# --- files ---


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    for n in range(5):
        (folder / f"a{n}.txt").write_text("many other files")
    with quiet():
        tf.train.Checkpoint(v=tf.Variable([1.0, 2.0])).save(str(folder / "model"))
    return folder


@pytest.mark.parametrize("name", ["", "checkpoint", "model-1.index", "model-1.data-00000-of-00001", "model-1"])
def test_a_checkpoint(name: str, checkpoint: Path, lite: bytes) -> None:
    path = checkpoint / name
    said = rf"{re.escape(str(path))}: .*checkpoint.* has weights but no graph\. {KINDS} Restore it into the model"
    refused(path, lite, IMAGES, ModelError, said)


def test_weights_of_keras_alone(model: Any, lite: bytes, tmp_path: Path) -> None:
    with quiet():
        model.save_weights(tmp_path / "m.weights.h5")
    refused(tmp_path / "m.weights.h5", lite, IMAGES, ModelError, "weights but no graph")


@pytest.mark.parametrize("use_resource", [False, True])
def test_a_graph_with_variables(use_resource: bool, tmp_path: Path) -> None:
    graphs, paths = [], []
    for name in ("fp32", "int8"):
        with tf.Graph().as_default() as graph:
            x = v1.placeholder(tf.float32, [None, 4], name="x")
            variable = v1.get_variable("w", initializer=rows(4, 3), use_resource=use_resource)
            tf.nn.relu(x @ variable, name=name)
        graphs.append(graph.as_graph_def())
        paths.append(tmp_path / f"{name}.pb")
        paths[-1].write_bytes(graphs[-1].SerializeToString())
    for given in (paths, graphs):
        refused(*given, {"x": rows(2, 4)}, ModelError, "not frozen, w is a variable. Give the SavedModel, or freeze")


def cut_off(model: Any, lite: bytes, suffix: str, folder: Path) -> bytes:
    if suffix == ".pb":
        whole = HARD.read_bytes()
    elif suffix == ".tflite":
        whole = lite
    else:
        with quiet():
            model.save(folder / f"whole{suffix}")
        whole = (folder / f"whole{suffix}").read_bytes()
    return whole[: len(whole) // 2]


@pytest.mark.parametrize("suffix", [".pb", ".tflite", ".keras", ".h5"])
@pytest.mark.parametrize("kind", ["empty", "cut off", "random", "text", "head"])
def test_a_file_that_is_damaged(kind: str, suffix: str, model: Any, lite: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"model{suffix}"
    if kind in ("cut off", "head"):
        part = cut_off(model, lite, suffix, tmp_path)
        path.write_bytes(part if kind == "cut off" else part[:16])
    else:
        path.write_bytes({"empty": b"", "random": RANDOM, "text": b"<html>404: not found</html>\n" * 9}[kind])
    pair = (model, path) if suffix == ".tflite" else (path, lite)
    said = r"(Expected a frozen graph|The file is damaged, or no TFLite model; convert the model again)"
    refused(*pair, IMAGES, ModelError, re.escape(str(path)), said)


def test_bytes_that_are_no_model(model: Any, lite: bytes) -> None:
    refused(model, lite[: len(lite) // 2], IMAGES, ModelError, "the given TFLite model: cannot be read .* damaged")
    refused(model, RANDOM[:4] + b"TFL3" + RANDOM[8:], IMAGES, ModelError, "the given TFLite model: cannot be read")
    refused(model, RANDOM, IMAGES, ModelError, "a model of 3 kB in memory; expected a model of .* TensorFlow")
    refused(model, b"", IMAGES, ModelError, "cannot read .* in memory; expected")


def test_every_length_of_a_file(model: Any, lite: bytes) -> None:
    """Whatever is missing, it is the same error."""
    for end in range(0, len(lite), max(1, len(lite) // 40)):
        with pytest.raises(IncTbError) as caught:
            models.read_graph(lite[:end])
        check(caught.value, ModelError)


def test_bits_that_have_flipped(model: Any, lite: bytes) -> None:
    """It opens, or there is one line; the process goes on in any case."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(lite)
        damaged[int(rng.integers(8, len(lite)))] ^= 1 << int(rng.integers(8))
        try:
            models.read_graph(bytes(damaged))
        except IncTbError as error:
            check(error, IncTbError)


def test_folders(lite: bytes, saved: Path, tmp_path: Path) -> None:
    def folder(name: str, **files: bytes) -> Path:
        (tmp_path / name).mkdir()
        for file, content in files.items():
            (tmp_path / name / file.replace("_pb", ".pb")).write_bytes(content)
        return tmp_path / name

    refused(folder("empty"), lite, IMAGES, ModelError, rf"empty: has no saved_model.pb \(found: nothing\). {KINDS}")
    refused(folder("other", readme=b"x"), lite, IMAGES, ModelError, r"no saved_model.pb \(found: readme\)")
    refused(folder("random", saved_model_pb=RANDOM), lite, IMAGES, ModelError, f"TensorFlow cannot load it: .*{KINDS}")
    refused(folder("zero", saved_model_pb=b""), lite, IMAGES, ModelError, "zero: TensorFlow cannot load it: ")
    half = (saved / "saved_model.pb").read_bytes()
    refused(
        folder("half", saved_model_pb=half[: len(half) // 2]), lite, IMAGES, ModelError, "TensorFlow cannot load it"
    )
    shutil.copytree(saved, tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare" / "variables")
    refused(tmp_path / "bare", lite, IMAGES, ModelError, "bare: TensorFlow cannot load it: .*variables")


def test_a_saved_model_without_or_with_too_many_signatures(lite: bytes, tmp_path: Path) -> None:
    module = tf.Module()
    module.v = tf.Variable(2.0)
    module.a = tf.function(lambda x: {"y": x * module.v}, input_signature=[tf.TensorSpec([None, 3])])
    with quiet():
        tf.saved_model.save(module, str(tmp_path / "none"), signatures={})
        tf.saved_model.save(module, str(tmp_path / "two"), signatures={"first": module.a, "second": module.a})
    refused(
        tmp_path / "none", lite, IMAGES, ModelError, "none: has no signature; expected serving_default. Save it with"
    )
    said = r"two: has the signatures \['first', 'second'\]; expected serving_default, or one alone. Load it, keep"
    refused(tmp_path / "two", lite, IMAGES, ModelError, said)


def test_files_of_other_kinds(lite: bytes, tmp_path: Path) -> None:
    for name in ("model.txt", "model.py", "model.zip", "model"):
        (tmp_path / name).write_text("x = 1\n")
        refused(tmp_path / name, lite, IMAGES, ModelError, f"cannot read .*{name}; expected a model of")
    refused(tmp_path / "nothing.tflite", lite, IMAGES, ModelError, "nothing.tflite: no such file; expected a model")
    refused(tmp_path / "nothing", lite, IMAGES, ModelError, "nothing: no such file; expected a model")


# --- objects ---


class Own(keras.Model):
    def call(self, x: Any) -> Any:
        return x


class TwoArguments(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(2)

    def call(self, x: Any, y: Any) -> Any:
        return self.dense(x) + y


def test_models_of_keras_that_are_not_ready(lite: bytes) -> None:
    said = r"does not know its inputs yet; expected a model that has been built. Call it once with data, or give"
    refused(Own(), lite, IMAGES, ModelError, f"Own {said}")
    refused(keras.Sequential([layers.Dense(2)]), lite, IMAGES, ModelError, f"Sequential {said}")
    two = TwoArguments()
    two(rows(2, 3), rows(2, 2))
    refused(
        two, lite, IMAGES, ModelError, r"TwoArguments: cannot be called \(TypeError: .*\). .*give a concrete function"
    )


def test_objects_that_are_no_model(lite: bytes) -> None:
    given = {"Dense": layers.Dense(2), "ResourceVariable": tf.Variable(1.0), "EagerTensor": tf.zeros(3)}
    for name, thing in {**given, "Module": tf.Module()}.items():
        refused(thing, lite, IMAGES, ModelError, rf"{name} was given\. {KINDS}")
    refused(lite, None, IMAGES, ModelError, "the quantized model is None")


def test_functions_for_no_signature_or_for_several(lite: bytes) -> None:
    function = tf.function(lambda x: x * 2.0)
    said = r"signatures; expected one. Give function.get_concrete_function\(tf.TensorSpec\(...\)\)"
    refused(function, lite, IMAGES, ModelError, f"was traced for 0 {said}")
    function(tf.zeros((2, 3)))
    function(tf.zeros((2, 3, 4)))
    refused(function, lite, IMAGES, ModelError, f"was traced for 2 {said}")


def test_graphs_without_inputs_or_results(lite: bytes) -> None:
    with tf.Graph().as_default() as graph:
        v1.placeholder(tf.float32, [None, 4], name="x")
    refused(graph.as_graph_def(), lite, IMAGES, ModelError, "has no inputs .* or no results")
    with tf.Graph().as_default() as graph:
        tf.nn.relu(tf.constant([1.0]))
    refused(graph.as_graph_def(), lite, IMAGES, ModelError, "has no inputs .* or no results")
    refused(v1.GraphDef(), lite, IMAGES, ModelError, "has no nodes")
    unknown = v1.GraphDef()
    unknown.node.add(name="x", op="Placeholder").attr["dtype"].type = 1
    unknown.node.add(name="y", op="OpOfTheFuture", input=["x"])
    refused(unknown, lite, IMAGES, ModelError, "TensorFlow cannot open it: .*OpOfTheFuture")


# --- pairs ---


def test_a_quantized_model_of_another_network(model: Any, lite: bytes) -> None:
    other = nets.built("mlp")
    said = "expected a quantized version of the same network. Check that the two models belong together"
    refused(model, nets.to_lite(other, "int8", nets.feeds(other)), IMAGES, MismatchError, said)
    image = keras.Input((6, 6, 2), name="image")
    wider = layers.Dense(4)(layers.Flatten()(layers.Conv2D(5, 3)(image)))
    content = nets.to_lite(nets.randomized(keras.Model(image, wider)), "int8", IMAGES)
    refused(model, content, IMAGES, MismatchError, "only 0 of 2 layers with weights .* Check that both models belong")
    refused(
        nets.built("two_inputs_list"), lite, IMAGES, MismatchError, r"has the inputs \['image'\], .*'left', 'right'"
    )


def test_two_numbers_of_samples_at_a_time() -> None:
    def dense(size: int) -> Any:
        return nets.randomized(keras.Sequential([keras.Input((5,), batch_size=size, name="row"), layers.Dense(3)]))

    data = {"row": rows(6, 5)}
    refused(
        dense(2), nets.to_lite(dense(3)), data, MismatchError, "one model takes 2 samples at a time, the other 3; exp"
    )
    said = "the batch has 3 samples, the model takes 2 at a time. Give a multiple of that"
    refused(dense(2), nets.to_lite(dense(2)), {"row": rows(3, 5)}, MismatchError, said)


def test_models_of_two_frameworks(model: Any, lite: bytes) -> None:
    said = "; expected two models of one framework"
    for pair in ((ONNX, lite), (model, onnx.load(ONNX)), (torch.nn.Linear(2, 2), lite), (HARD, torch.nn.Linear(2, 2))):
        refused(*pair, IMAGES, ModelError, f"cannot compare .* and .*{said}")
    with pytest.raises(ModelError, match=f"cannot probe .*hard.onnx and .*{said}"):
        inc_tb.probe(ONNX, lite, IMAGES)


def test_no_reference(model: Any, lite: bytes) -> None:
    refused(
        None, lite, IMAGES, ModelError, "the given TFLite model: needs a reference beside it; expected the fp32 model"
    )
    refused(None, model, IMAGES, ModelError, "has no fake quantization to leave out; expected a reference beside it")


# --- data ---


@pytest.mark.parametrize(
    ("data", "kind", "said"),
    [
        ({"img": rows(3, 6, 6, 2)}, MismatchError, r"arrays \['img'\], the model has the inputs \['image'\]. Name the"),
        ({**IMAGES, "y": rows(3)}, MismatchError, r"arrays \['image', 'y'\], the model has the inputs \['image'\]"),
        ([(rows(3, 6, 6, 2),) * 2], MismatchError, r"a batch has 2 arrays, the model has the inputs \['image'\]"),
        ({"image": rows(3, 72)}, MismatchError, "image has shape 3x72, the model expects anyx6x6x2. Reshape"),
        ({"image": rows(3, 5, 6, 2)}, MismatchError, "image has shape 3x5x6x2, the model expects anyx6x6x2"),
        ({"image": rows(6, 6, 2)}, MismatchError, "shape 6x6x2, .* the first axis counts the samples"),
        ({"image": rows(3, 2, 6, 6)}, MismatchError, "shape 3x2x6x6, .* images have their channels last"),
        (
            {"image": np.full((3, 6, 6, 2), "a")},
            MismatchError,
            "holds <U1, the model expects float32. Convert the data",
        ),
        ({"image": np.zeros((3, 6, 6, 2), complex)}, MismatchError, "holds complex128, the model expects float32"),
        ({"image": np.full((3, 6, 6, 2), None)}, MismatchError, "holds object, the model expects float32"),
        ([], DataError, "the data has no samples; expected at least one batch"),
        ({"image": rows(0, 6, 6, 2)}, DataError, "the data has no samples; expected at least one batch"),
        (None, DataError, "None was given as data; expected batches"),
    ],
)
def test_data_that_does_not_fit(data: Any, kind: type[IncTbError], said: str, model: Any, lite: bytes) -> None:
    refused(model, lite, data, kind, said)
    if data:
        with pytest.raises(IncTbError) as caught:
            inc_tb.probe(model, lite, data)
        check(caught.value, kind, said)


def test_indices_that_are_none(capfd: pytest.CaptureFixture[str]) -> None:
    words = nets.built("transformer")
    content = nets.to_lite(words)
    refused(words, content, {"ids": rows(2, 6)}, MismatchError, "the array ids holds float32, the model expects int32")
    beyond = {"ids": np.full((2, 6), 99, np.int32)}
    said = r"TensorFlow cannot run this batch \('.*GatherV2': indices\[0,0\] = 99 is not in \[0, 12\)\). Check that"
    refused(words, content, beyond, MismatchError, said)


def test_arrays_of_a_rank_that_no_one_knew() -> None:
    with tf.Graph().as_default() as graph:
        tf.nn.relu(v1.placeholder(tf.float32, None, name="x") @ tf.constant(rows(4, 3)))
    given = graph.as_graph_def()
    said = r"cannot run this batch \('matmul': Matrix size-incompatible: .*\)\. Check that the data is what"
    other = v1.GraphDef.FromString(given.SerializeToString())
    refused(given, other, {"x": rows(2, 5)}, MismatchError, said)
    with pytest.raises(MismatchError) as caught:
        models.open_results(given)({"x": rows(2, 5)})
    check(caught.value, MismatchError, said)


# --- probe and tune ---


def test_probing_needs_a_graph(model: Any, lite: bytes) -> None:
    said = "is a TFLite file, whose kernels cannot be simulated; expected the graph that it was made of. Give the"
    with pytest.raises(ModelError) as caught:
        inc_tb.probe(nets.to_lite(model), lite, IMAGES)
    check(caught.value, ModelError, said)


def fake() -> Any:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        tf.quantization.fake_quant_with_min_max_args(x @ tf.constant(rows(4, 3)), -3, 3)
    return graph.as_graph_def()


@pytest.mark.parametrize(
    ("given", "data", "kind", "said"),
    [
        (
            "lite",
            IMAGES,
            ModelError,
            "a TFLite file cannot be quantized again; expected the graph that it was made of. Give",
        ),
        (
            "int8",
            {"input": rows(4, 8, 8, 1)},
            ModelError,
            "inc26_hard_int8.pb: is quantized already; expected the fp32",
        ),
        ("fake", {"x": rows(4, 4)}, ModelError, "GraphDef: is quantized already; expected the fp32 model"),
        ("model", {"z": rows(3, 6, 6, 2)}, MismatchError, r"arrays \['z'\], the model has the inputs \['image'\]"),
        ("model", {"image": rows(3, 2, 6, 6)}, MismatchError, "has shape 3x2x6x6, the model expects anyx6x6x2"),
        ("model", {"image": np.full((3, 6, 6, 2), "a")}, MismatchError, "holds <U1, the model expects float32"),
        ("model", [], DataError, "the calibration data has no samples; expected at least one batch"),
    ],
)
def test_tuning(
    given: str, data: Any, kind: type[IncTbError], said: str, model: Any, lite: bytes, tmp_path: Path
) -> None:
    source = {"model": model, "lite": lite, "int8": DATA / "inc26_hard_int8.pb", "fake": fake()}[given]
    with pytest.raises(IncTbError) as caught:
        inc_tb.tune(source, data, lambda path: 1.0, logdir=tmp_path / "log")
    check(caught.value, kind, said)
    assert not (tmp_path / "log").exists()


def test_quantizers_of_other_frameworks(model: Any, tmp_path: Path) -> None:
    wrong: list[tuple[Any, Any]] = [
        (model, inc_tb.OnnxRuntimeQuantizer()), (model, inc_tb.TorchQuantizer()),
        (ONNX, inc_tb.TensorFlowQuantizer()), (torch.nn.Linear(2, 2), inc_tb.TensorFlowQuantizer()),
    ]  # fmt: skip
    for source, quantizer in wrong:
        with pytest.raises(IncTbError) as caught:
            inc_tb.tune(source, IMAGES, lambda path: 1.0, logdir=tmp_path / "log", quantizer=quantizer)
        check(caught.value, ModelError)
    assert not (tmp_path / "log").exists()
    with pytest.raises(UsageError, match="approach='onnx' was given; expected one of"):
        inc_tb.TensorFlowQuantizer(approach="onnx")
    with pytest.raises(UsageError, match="activation_type='int16' needs approach='tflite'"):
        inc_tb.TensorFlowQuantizer(approach="saved-model", activation_type="int16")


def test_what_the_compiler_says(tmp_path: Path) -> None:
    """It names an op and what is wrong with it, between many brackets."""
    quantizer = inc_tb.TensorFlowQuantizer(approach="saved-model")
    prepared = quantizer.prepare(HARD, tmp_path)
    with pytest.raises(ModelError) as caught:
        quantizer.quantize(prepared, tmp_path / "int8", [{"input": rows(8, 8, 8, 1)}], quantizer.settings, [])
    check(
        caught.value, ModelError, r"cannot quantize it so: .* v0/avgpool: The preceding \w+ and the following \w+ must"
    )
    assert "loc(" not in str(caught.value)


# --- the commands ---


@pytest.fixture
def here(model: Any, lite: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which commands run and leave nothing behind."""
    np.savez(tmp_path / "data.npz", image=IMAGES["image"], input=rows(3, 8, 8, 1))
    np.savez(tmp_path / "channels_first.npz", image=rows(3, 2, 6, 6))
    models.save_model(model, tmp_path / "fp32.pb")
    (tmp_path / "int8.tflite").write_bytes(lite)
    (tmp_path / "other.tflite").write_bytes(lite + b"\0")
    (tmp_path / "random.pb").write_bytes(RANDOM)
    (tmp_path / "random.tflite").write_bytes(RANDOM)
    (tmp_path / "empty").mkdir()
    (tmp_path / "scores.py").write_text("def score(path):\n    return 1.0\n")
    monkeypatch.chdir(tmp_path)
    there = set(tmp_path.rglob("*"))
    yield tmp_path
    assert {path for path in tmp_path.rglob("*") if "__pycache__" not in str(path)} == there


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("diagnose random.pb int8.tflite --data data.npz", r"random.pb: not a model of TensorFlow \("),
        ("diagnose fp32.pb random.tflite --data data.npz", "random.tflite: not a TFLite model"),
        ("diagnose empty int8.tflite --data data.npz", r"empty: has no saved_model.pb \(found: nothing\)"),
        ("diagnose fp32.pb int8.tflite --data channels_first.npz", "has shape 3x2x6x6, the model expects anyx6x6x2"),
        (f"diagnose {ONNX} int8.tflite --data data.npz", "cannot compare .*hard.onnx and int8.tflite; expected two"),
        (f"diagnose {HARD} int8.tflite --data data.npz", "Check that the two models belong together"),
        ("diagnose int8.tflite nothing.tflite --data data.npz", "nothing.tflite: no such file"),
        ("tune int8.tflite --data data.npz --eval scores.py:score", "a TFLite file cannot be quantized again"),
        (f"tune {DATA}/inc26_hard_int8.pb --data data.npz --eval scores.py:score", "is quantized already; expected"),
        ("tune empty --data data.npz --eval scores.py:score", "empty: has no saved_model.pb"),
        ("tune fp32.pb --data channels_first.npz --eval scores.py:score", "has shape 3x2x6x6"),
        (
            "tune fp32.pb --data data.npz --eval scores.py:score --calibrator entropy",
            "--calibrator was given for fp32.pb, which is a model of TensorFlow",
        ),
        (
            "tune fp32.pb --data data.npz --eval scores.py:score --pt2e",
            "--pt2e was given for fp32.pb, .* it is for PyTorch",
        ),
        (
            f"tune {ONNX} --data data.npz --eval scores.py:score --saved-model",
            "--saved-model was given for .*hard.onnx",
        ),
    ],
)
def test_commands(arguments: str, said: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    told = capsys.readouterr()
    assert ended.value.code == 2, told.err
    assert told.out == ""
    assert len(told.err.splitlines()) == 1
    assert told.err.startswith("inc-tb: ")
    assert re.search(said, told.err), told.err


def test_a_reference_that_is_a_tflite_file_can_be_compared_but_not_probed(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: Any
) -> None:
    logdir = tmp_path_factory.mktemp("log")

    with pytest.raises(SystemExit) as ended:
        main(["diagnose", "other.tflite", "int8.tflite", "--data", "data.npz", "--logdir", str(logdir), "--probe", "1"])
    told = capsys.readouterr()
    assert ended.value.code == 2
    assert len(told.err.splitlines()) == 1
    assert "whose kernels cannot be simulated" in told.err


WITHOUT = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
from inc_tb.cli import main
main(sys.argv[2:])
"""


@pytest.mark.slow
def test_without_tensorflow(here: Path) -> None:
    command = [sys.executable, "-c", WITHOUT, "tensorflow", "diagnose", "fp32.pb", "int8.tflite", "--data", "data.npz"]
    env = {**os.environ, "PYTHONPATH": str(Path(inc_tb.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=env)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "inc-tb: reading TensorFlow models needs tensorflow, which is not installed: "
        "pip install 'inc-tb[tensorflow]'.\n"
    )


def test_rounding_to_a_billion_bits(tmp_path: Path) -> None:
    """2 to that power is a number that no memory holds."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, (None, 8), "x")
        tf.quantization.fake_quant_with_min_max_args(x, 0.0, 3.0, name="rounded")
    stored = graph.as_graph_def()
    next(node for node in stored.node if node.name == "rounded").attr["num_bits"].i = 1 << 40
    (tmp_path / "m.pb").write_bytes(stored.SerializeToString())
    with pytest.raises(ModelError, match=r"num_bits=1099511627776; expected 2 to 16"):
        models.open_pair(tmp_path / "m.pb", tmp_path / "m.pb")
