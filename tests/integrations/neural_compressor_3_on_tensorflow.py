"""A tuning of the hard model under log(), and its first suggestion; for test_neural_compressor_3.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from neural_compressor.tensorflow.quantization import StaticQuantConfig, TuningConfig, autotune, quantize_model
from sklearn.datasets import load_digits

import inc_tb
from tests.digits import digits

HARD = str(Path(__file__).parents[1] / "frameworks" / "data" / "hard_tf.pb")
IMAGES = np.moveaxis(digits(1797), 1, -1)
evaluated: list[float] = []


class Loader:
    batch_size = 50

    def __iter__(self) -> Iterator[Any]:
        return iter((rows, np.zeros(len(rows))) for rows in np.array_split(IMAGES[:200], 4))


def accuracy(model: Any) -> float:
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(model.graph_def, name="")
        with tf.compat.v1.Session(graph=graph) as session:
            logits = session.run("logits:0", {"input:0": IMAGES})
    return float((logits.argmax(1) == load_digits().target).mean())


def evaluate(model: Any) -> float:
    evaluated.append(accuracy(model))
    return evaluated[-1]


fp32 = StaticQuantConfig(weight_dtype="fp32", act_dtype="fp32")
kept = StaticQuantConfig().set_local("v0/cg/conv0/Conv2D", fp32).set_local("v0/cg/conv1/Conv2D", fp32)
with inc_tb.integrations.neural_compressor.log(sys.argv[1]) as logged:
    autotune(HARD, TuningConfig([StaticQuantConfig(), kept]), eval_fn=evaluate, calib_dataloader=Loader())
names: dict[str, Any] = {}
exec(inc_tb.load(logged.runs[0]).suggestions[0].recipes["inc-tensorflow"], names)
made = quantize_model(HARD, names["quant_config"], Loader())
floats = [node.name for node in made.graph_def.node if node.op in ("Conv2D", "DepthwiseConv2dNative", "MatMul")]
told = json.dumps({"evaluated": evaluated, "suggested": accuracy(made), "fp32": floats})
sys.stdout.write(f"RESULT {told}\n")
