"""Diagnoses in runs that the user writes with tf.summary, and TensorFlow beside other frameworks in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorboard.backend.event_processing.event_accumulator as accumulators

import inc_tb
from inc_tb.frameworks.tensorflow.library import tf
from inc_tb.frameworks.tensorflow.quiet import quiet
from inc_tb.store.eventfile import event_files
from tests.waiting import PATIENCE_S

ROOT = Path(inc_tb.__file__).parents[1]
HARD = ROOT / "tests" / "frameworks" / "data" / "hard_tf.pb"
DATA = {"input": np.random.default_rng(0).random((4, 8, 8, 1), np.float32)}


def lite(rows: int = 8) -> bytes:
    """The network of the tests as TFLite quantizes it."""
    graph_def = tf.compat.v1.GraphDef.FromString(HARD.read_bytes())
    last = graph_def.node[-1].name
    with quiet():
        wrapped = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph_def, name=""), [])
        converter = tf.lite.TFLiteConverter.from_concrete_functions([wrapped.prune("input:0", f"{last}:0")])
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        images = np.random.default_rng(1).random((rows, 8, 8, 1), np.float32)
        converter.representative_dataset = lambda: ([image[None]] for image in images)
        return bytes(converter.convert())


@pytest.fixture(autouse=True)
def real(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process keep TensorBoard, and with it tf.summary, from loading TensorFlow."""
    for part in ("plugins.scalar.summary_v2", "plugins.histogram.summary_v2", "util.lazy_tensor_creator"):
        monkeypatch.setattr(f"tensorboard.{part}.tf", tf)


@pytest.fixture(scope="module")
def found() -> inc_tb.Diagnosis:
    return inc_tb.diagnose(HARD, lite(), DATA)


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """As TensorBoard reads them: newer ones are tensors."""
    read = accumulators.EventAccumulator(str(run), size_guidance={"tensors": 0, "scalars": 0})
    read.Reload()
    told = {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
    for tag in read.Tags()["tensors"]:
        events = [e for e in read.Tensors(tag) if e.tensor_proto.dtype == 1 and not e.tensor_proto.tensor_shape.dim]
        if events:
            told[tag] = [(e.step, float(tf.make_ndarray(e.tensor_proto))) for e in events]
    return told


def test_a_run_that_the_user_writes_to(found: inc_tb.Diagnosis, tmp_path: Path) -> None:
    """One file, at the user's steps, and everything can be read back."""
    writer = tf.summary.create_file_writer(str(tmp_path / "mine"))
    with writer.as_default():
        tf.summary.scalar("loss", 0.5, step=10)
        inc_tb.log_diagnosis(writer, found, 10)
        tf.summary.scalar("loss", 0.25, step=20)
        tf.summary.histogram("weights", [1.0, 2.0, 3.0], step=20)
    inc_tb.log_diagnosis(writer, found, 30)
    with writer.as_default():
        tf.summary.scalar("loss", 0.125, step=30)
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert len(event_files(tmp_path / "mine")) == 1
    told = scalars(tmp_path / "mine")
    assert told["loss"] == [(10, 0.5), (20, 0.25), (30, 0.125)]
    assert [step for step, _ in told["output/sqnr_db"]] == [10, 30]
    run = inc_tb.load(tmp_path / "mine")
    assert sorted(run.diagnoses) == [10, 30]
    for diagnosis in run.diagnoses.values():
        assert list(diagnosis.ops["name"]) == list(found.ops["name"])
        np.testing.assert_allclose(diagnosis.ops["added_sqnr_db"], found.ops["added_sqnr_db"], rtol=1e-6)
        assert [s.because for s in diagnosis.suggestions] == [s.because for s in found.suggestions]


def test_it_is_on_disk_after_a_flush(found: inc_tb.Diagnosis, tmp_path: Path) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path))
    inc_tb.log_diagnosis(writer, found, 3)
    writer.flush()
    assert list(inc_tb.load(tmp_path).diagnoses) == [3]
    writer.close()


def test_the_users_default_step_and_recording_are_left_alone(found: inc_tb.Diagnosis, tmp_path: Path) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path))
    tf.summary.experimental.set_step(7)
    with writer.as_default(), tf.summary.record_if(False):
        inc_tb.log_diagnosis(writer, found, 3)
        tf.summary.scalar("not recorded", 1.0)
    assert tf.summary.experimental.get_step() == 7
    with writer.as_default():
        tf.summary.scalar("recorded", 1.0)
    writer.close()
    tf.summary.experimental.set_step(None)
    assert scalars(tmp_path)["recorded"] == [(7, 1.0)]
    assert "not recorded" not in scalars(tmp_path)
    assert list(inc_tb.load(tmp_path).diagnoses) == [3]


def test_steps_that_are_none(found: inc_tb.Diagnosis, tmp_path: Path) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path))
    for step in (-1, 1.5, "3"):
        with pytest.raises(inc_tb.IncTbError, match=r"step .* was given; expected a whole number from 0 on"):
            inc_tb.log_diagnosis(writer, found, step)  # type: ignore[arg-type]
    inc_tb.log_diagnosis(writer, found, tf.constant(4, tf.int64).numpy())
    writer.close()
    assert list(inc_tb.load(tmp_path).diagnoses) == [4]


def test_histograms_of_tensors(tmp_path: Path) -> None:
    values = tf.linspace(-2.0, 3.0, 60)
    writer = tf.summary.create_file_writer(str(tmp_path))
    inc_tb.log_histogram(writer, "tensor", values, 1)
    inc_tb.log_histogram(writer, "variable", tf.Variable(values), 1)
    inc_tb.log_histogram(writer, "bfloat16", tf.cast(values, tf.bfloat16), 1)
    writer.close()
    read = accumulators.EventAccumulator(str(tmp_path), size_guidance={"tensors": 0})
    read.Reload()
    for tag in ("tensor", "variable", "bfloat16"):
        buckets = tf.make_ndarray(read.Tensors(tag)[0].tensor_proto)
        assert buckets[:, 2].sum() == 60
        assert buckets[0, 0] == pytest.approx(-2)


def test_our_own_writer_has_the_graph(tmp_path: Path) -> None:
    with inc_tb.SummaryWriter(tmp_path / "run") as writer:
        writer.add_graph(HARD)
        writer.add_graph(lite())
    assert event_files(tmp_path / "run")


# --- frameworks beside each other ---


TOGETHER = """
import importlib, json, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
folder, order = sys.argv[1], sys.argv[2].split(",")
for name in order:
    importlib.import_module(name)
import inc_tb
import copy, onnx, torch
import tensorflow as tf
rng = np.random.default_rng(0)
found = {}
d = inc_tb.diagnose(f"{folder}/fp32.pb", f"{folder}/int8.tflite", {"input": rng.random((2, 8, 8, 1), np.float32)})
found["tensorflow"] = d.ops["added_sqnr_db"].tolist()
d = inc_tb.diagnose(f"{folder}/fp32.onnx", f"{folder}/int8.onnx", {"input": rng.random((2, 1, 8, 8), np.float32)})
found["onnx"] = d.ops["added_sqnr_db"].tolist()
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()
int8 = torch.ao.quantization.quantize_dynamic(copy.deepcopy(net), {torch.nn.Linear}, dtype=torch.qint8)
d = inc_tb.diagnose(net, int8, torch.from_numpy(rng.normal(size=(2, 8)).astype(np.float32)))
found["torch"] = d.ops["added_sqnr_db"].tolist()
print(json.dumps({name: [round(v, 1) for v in values if v == v] for name, values in found.items()}))
"""
ALONE = """
import sys
import inc_tb, inc_tb.cli
print([name for name in ("tensorflow", "keras", "torch", "onnxruntime", "onnx") if name in sys.modules])
"""


def run(code: str, *arguments: object) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_inc_tb_alone_loads_no_framework() -> None:
    assert run(ALONE) == "[]"


@pytest.mark.slow
def test_three_frameworks_in_one_process_in_any_order(tmp_path: Path, quantized: Any) -> None:
    """Each has its own protobuf, oneDNN and threads."""
    (tmp_path / "fp32.pb").write_bytes(HARD.read_bytes())
    (tmp_path / "int8.tflite").write_bytes(lite())
    (tmp_path / "fp32.onnx").write_bytes((ROOT / "tests" / "data" / "hard.onnx").read_bytes())
    (tmp_path / "int8.onnx").write_bytes(quantized("hard").read_bytes())
    # Each before and behind each other.
    orders = [["inc_tb", "torch", "onnxruntime", "tensorflow"], ["tensorflow", "onnxruntime", "torch", "inc_tb"]]
    with ThreadPoolExecutor(2) as pool:
        told = [json.loads(line) for line in pool.map(lambda o: run(TOGETHER, tmp_path, ",".join(o)), orders)]
    for others in told:
        for name, values in told[0].items():
            assert len(values) > 1
            np.testing.assert_allclose(others[name], values, atol=0.5, err_msg=name)
