"""The commands with models of TensorFlow, as people call them: one process each, and only what they say is printed."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inc_tb
from inc_tb.frameworks import models
from inc_tb.frameworks.tensorflow.library import tf
from inc_tb.frameworks.tensorflow.quiet import quiet
from tests.waiting import PATIENCE_S

ROOT = Path(inc_tb.__file__).parents[1]
HARD = ROOT / "tests" / "frameworks" / "data" / "hard_tf.pb"
CULPRITS = ["v0/cg/conv0/Conv2D", "v0/cg/conv1/pad", "v0/cg/conv1/Conv2D"]
CHATTER = re.compile(r"absl::InitializeLog|^[IWEF]0000 |^[IWE]\d{4} |oneDNN|XNNPACK|cpu_feature_guard|Warning:", re.M)
SCORES = '''"""Data and accuracies for the tests."""
import warnings

import numpy as np
import tensorflow as tf

from inc_tb.demo import load_digits

IMAGES, LABELS, HELD_OUT = load_digits()
IMAGES = np.ascontiguousarray(np.transpose(IMAGES, (0, 2, 3, 1)), np.float32)
TESTED, EXPECTED = IMAGES[HELD_OUT][:300], LABELS[HELD_OUT][:300]


def data():
    yield {"input": IMAGES[:48]}


def accuracy(path):
    print("evaluating", path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        interpreter = tf.lite.Interpreter(path)
    place = interpreter.get_input_details()[0]["index"]
    interpreter.resize_tensor_input(place, TESTED.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(place, TESTED)
    interpreter.invoke()
    scores = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    return (scores.argmax(1) == EXPECTED).mean()


def rows():
    return {"x": np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)}


def likeness(model):
    """Of a SavedModel that is loaded already: one less its error."""
    x = rows()["x"]
    (found,) = model.signatures["serving_default"](x=tf.constant(x)).values()
    expected = np.load("expected.npy")
    return float(1 - np.square(found.numpy() - expected).sum() / np.square(expected).sum())
'''


def run(*arguments: object, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Without TensorFlow's own switches for what it prints, as they are not set on the user's machine either."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "KERAS_", "COLUMNS", "ABSL_"))}
    env.update(COLUMNS="120", PYTHONPATH=str(ROOT), PYTHONWARNINGS="default::DeprecationWarning:inc_tb")
    command = [sys.executable, "-m", "inc_tb.cli", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    assert not CHATTER.search(done.stderr), done.stderr
    assert not CHATTER.search(done.stdout), done.stdout
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "tf_scores.py").write_text(SCORES)
    (folder / "fp32.pb").write_bytes(HARD.read_bytes())
    return folder


@pytest.fixture(scope="module")
def tuned(here: Path) -> dict[str, Any]:
    """What `tune --json` prints."""
    done = run(
        "tune", "fp32.pb", "--data", "tf_scores.py:data", "--eval", "tf_scores.py:accuracy", "--no-per-channel",
        "--logdir", "tuned", "--probe-s", 3, "--json", cwd=here,
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == 1
    assert "evaluating " in done.stderr  # what the user's function prints is no part of the JSON
    found: dict[str, Any] = json.loads(done.stdout)
    return found


pytestmark = pytest.mark.slow


def test_tune(tuned: dict[str, Any], here: Path) -> None:
    assert tuned["met"]
    assert tuned["baseline"] > 0.97
    first, *_, best = tuned["trials"]
    assert first["config"] == {"approach": "tflite", "activation_type": "int8", "per_channel": False}
    assert first["accuracy"] < 0.4
    assert best["trial"] == tuned["best"]["trial"]
    assert set(best["fallback"]) <= set(CULPRITS)
    assert best["accuracy"] >= 0.99 * tuned["baseline"]
    assert abs(tuned["comparison"]["simulated"]["error"] - tuned["comparison"]["real"]["error"]) < 0.05
    content = (here / tuned["model"]).read_bytes()
    assert content[4:8] == b"TFL3"
    assert best["objectives"]["size_kb"] == len(content) / 1000
    assert (here / "tuned" / "prepared_model.pb").is_file()
    assert inc_tb.load(here / "tuned" / "trial-001").diagnosis.framework == "tensorflow"


def test_the_recipe_makes_the_best_model_again(
    tuned: dict[str, Any], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code that is printed, as it is."""
    monkeypatch.chdir(here)
    rows = calibration()
    given = {"representative_dataset": lambda: ([row[None]] for row in rows)}
    with quiet():
        exec(tuned["recipe"], given)
    made, best = (models.open_results(m) for m in (bytes(given["content"]), here / tuned["model"]))
    np.testing.assert_array_equal(made({"input": rows})[0], best({"input": rows})[0])


def calibration() -> Any:
    from inc_tb.demo import load_digits

    return np.ascontiguousarray(np.transpose(load_digits()[0], (0, 2, 3, 1)), np.float32)[:48]


def test_resume_and_rebuild(tuned: dict[str, Any], here: Path) -> None:
    rebuild = ("tune", "--rebuild", "trial-001", "--logdir", "tuned", "--output", "int8.tflite")
    assert "the log names code for the data" in run(*rebuild, cwd=here, code=2).stderr
    done = run(*rebuild, "--data", "tf_scores.py:data", cwd=here)
    assert done.stdout == ""
    assert re.fullmatch(r"Wrote int8.tflite: trial-001, accuracy 0\.\d+, kept in fp32: nothing.\n", done.stderr)
    assert (here / "int8.tflite").stat().st_size / 1000 == tuned["trials"][0]["objectives"]["size_kb"]
    done = run(
        "tune", "fp32.pb", "--data", "tf_scores.py:data", "--eval", "tf_scores.py:accuracy", "--no-per-channel",
        "--logdir", "tuned", "--probe-s", 3, "--json", "--resume", cwd=here,
    )  # fmt: skip
    again = json.loads(done.stdout)
    assert [t["trial"] for t in again["trials"]] == [t["trial"] for t in tuned["trials"]]
    assert again["evaluations"] == 0
    diagnosed(here)


def diagnosed(here: Path) -> None:
    """The model that was made again, compared with fp32."""
    done = run(
        "diagnose", "fp32.pb", "int8.tflite", "--data", "tf_scores.py:data", "--logdir", "log", "--probe", 3,
        "--csv", "tables", "--top", 3, cwd=here,
    )  # fmt: skip
    assert done.stderr == ""
    assert "Activations summary: 3 of 24 ops (11 compared), worst first by sensitivity" in done.stdout
    assert re.search(r"v0/cg/conv1/Conv2D +bad ", done.stdout)
    assert "why    outlier channels: 2 of 16 channels are up to " in done.stdout
    assert f": {', '.join(CULPRITS)}" in done.stdout.splitlines()[1]
    assert "QuantizationDebugOptions" in done.stdout
    assert "Logged 24 ops and 48 samples to log/int8." in done.stdout
    for name, count in (("activations_table.csv", 11), ("weights_table.csv", 7)):
        with (here / "tables" / name).open() as file:
            assert len(list(csv.DictReader(file))) == count
    probed = inc_tb.load(here / "log" / "int8").diagnosis
    ratio = dict(zip(probed.ops["name"], probed.ops["sensitivity"], strict=True))
    assert max(ratio, key=lambda name: ratio[name] if ratio[name] == ratio[name] else -1) in CULPRITS
    done = run("diagnose", "fp32.pb", "int8.tflite", "--data", "tf_scores.py:data", "--json", cwd=here)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1
    found = json.loads(done.stdout)
    assert found["framework"] == "tensorflow"
    assert (found["reference"], found["quantized"], found["samples"]) == ("fp32.pb", "int8.tflite", 48)


KEPT: dict[str, Callable[[str], Any]] = {
    "tflite": lambda config: re.findall(r'^ {4}"(.+)",$', config, re.M),
    "saved-model": lambda config: re.findall(r'^ {4}"(.+)",$', config, re.M),
    "inc": lambda config: re.findall(r'^ {4}"(.+)": fp32,$', config, re.M),
    "json": lambda config: json.loads(config)["fp32"],
}


def test_suggest(tuned: dict[str, Any], here: Path) -> None:
    for tool, kept in KEPT.items():
        done = run("suggest", "tuned/trial-001", "--format", tool, cwd=here)
        assert set(kept(done.stdout)) >= set(CULPRITS), done.stdout
        assert done.stderr.startswith("1. outlier channels: 2 of 16 channels are up to ")
        if tool != "json":
            compile(done.stdout, tool, "exec")
    done = run("suggest", "tuned/trial-001", "--json", cwd=here)
    found = json.loads(done.stdout)
    assert found["format"] == "tflite"
    assert set(found["ops"]) >= set(CULPRITS)
    done = run("suggest", "tuned/trial-001", "--format", "onnxruntime", cwd=here, code=2)
    assert done.stdout == ""
    assert re.search("'onnxruntime' is not among those for this run; expected one of tflite, .*, json", done.stderr)


def test_tune_with_quantize_saved_model(here: Path) -> None:
    rng = np.random.default_rng(1)
    weights = rng.normal(size=(8, 8)).astype(np.float32)
    weights[:, 0] *= 100
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 8], name="x")
        hidden = tf.nn.relu(tf.matmul(x, tf.constant(weights), name="first"))
        y = tf.matmul(hidden, tf.constant(rng.normal(size=(8, 4)).astype(np.float32)), name="second")
        with tf.compat.v1.Session() as session:
            given = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
            np.save(here / "expected.npy", session.run(y, {x: given}))
    (here / "dense.pb").write_bytes(graph.as_graph_def().SerializeToString())
    done = run(
        "tune", "dense.pb", "--data", "tf_scores.py:rows", "--eval", "tf_scores.py:likeness", "--saved-model",
        "--logdir", "saved", "--probe-s", 2, "--max-trials", 3, "--tolerance", 0.01, cwd=here,
    )  # fmt: skip
    assert done.stderr == ""
    assert "Settings: approach=saved-model" in done.stdout
    assert "tool.quantize_saved_model(" in done.stdout
    assert (here / "saved" / "best_model" / "saved_model.pb").is_file()
    assert inc_tb.load(here / "saved" / "trial-001").diagnosis.ops.count >= 2


def test_models_of_a_function(here: Path) -> None:
    """Keras models are code as often as they are files."""
    (here / "tf_models.py").write_text(
        "import warnings\n\n"
        "import inc_tb.frameworks.tensorflow.library\n"
        "import keras\n\n\n"
        "def fp32():\n"
        "    keras.utils.set_random_seed(0)\n"
        "    return keras.Sequential([keras.Input((8,), name='x'), keras.layers.Dense(4, name='out')])\n\n\n"
        "def int8():\n"
        "    model = fp32()\n"
        "    with warnings.catch_warnings():\n"
        "        warnings.simplefilter('ignore')\n"
        "        model.quantize('int8')\n"
        "    return model\n"
    )
    done = run(
        "diagnose", "tf_models.py:fp32", "tf_models.py:int8", "--data", "tf_scores.py:rows", "--logdir", "functions",
        cwd=here,
    )  # fmt: skip
    assert done.stderr == ""
    assert "out_1/MatMul" in done.stdout
    assert (here / "functions" / "int8").is_dir()
