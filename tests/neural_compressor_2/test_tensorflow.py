"""Tunings of TensorFlow models under log(), with the real Neural Compressor, and its recipe on the hard model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inc_tb
from inc_tb.integrations.neural_compressor import log
from tests.neural_compressor_2.tuned import IMAGES, Loader, accuracy, config, fit, history

tf = pytest.importorskip("tensorflow")
HARD = Path(__file__).parents[1] / "frameworks" / "data" / "hard_tf.pb"
PICTURES = np.moveaxis(IMAGES, 1, -1)


def run_graph(graph_def: Any) -> Any:
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        with tf.compat.v1.Session(graph=graph) as session:
            return session.run("logits:0", {"input:0": PICTURES})


def evaluate(graph: Any) -> float:
    return accuracy(run_graph(graph.as_graph_def()))


def runs(logdir: Path) -> list[Any]:
    return [inc_tb.load(path) for path in sorted(logdir.glob("trial-*"))]


def test_a_frozen_graph(tmp_path: Path, workspace: Path) -> None:
    with log(tmp_path):
        fit(evaluate, config(trials=4), str(HARD), Loader(PICTURES))
    found = runs(tmp_path)
    assert [run.trial.accuracy for run in found] == list(history(workspace).values())
    assert all(run.diagnosis.samples == 32 for run in found)
    first = found[0]
    assert first.diagnosis.reference == "hard_tf.pb"
    assert first.trial.accuracy < first.trial.target
    assert {"v0/cg/conv0/Conv2D", "v0/cg/conv1/Conv2D"} <= set(first.suggestions[0].ops)


def test_a_graph_in_memory_without_an_evaluation(tmp_path: Path) -> None:
    graph_def = tf.compat.v1.GraphDef.FromString(HARD.read_bytes())
    with log(tmp_path):
        fit(None, config(), graph_def, Loader(PICTURES))
    (run,) = runs(tmp_path)
    assert run.diagnosis.reference == "GraphDef"
    assert run.trial.accuracy is None
    assert "int8" in set(run.ops["weight_dtype"])


def test_op_name_dict_brings_the_accuracy_back(tmp_path: Path) -> None:
    """The first suggestion of the first trial, pasted."""
    with log(tmp_path):
        before = fit(None, config(), str(HARD), Loader(PICTURES))
    (run,) = runs(tmp_path)
    text = run.suggestions[0].recipes["inc"]
    names: dict[str, Any] = {}
    exec(text, names)
    after = fit(None, names["conf"], str(HARD), Loader(PICTURES))
    fp32 = accuracy(run_graph(tf.compat.v1.GraphDef.FromString(HARD.read_bytes())))
    assert accuracy(run_graph(before.graph_def)) < 0.95
    assert accuracy(run_graph(after.graph_def)) > 0.99 * fp32  # what Neural Compressor takes for as good as fp32
    floats = {node.name for node in after.graph_def.node if node.op == "Conv2D"}
    assert floats == {"v0/cg/conv0/Conv2D", "v0/cg/conv1/Conv2D"}
