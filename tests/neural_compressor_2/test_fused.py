"""Norms and GELUs that Neural Compressor joins before it quantizes; the reference is the file that it was given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import inc_tb
from tests.frameworks import onnx_zoo as zoo
from tests.frameworks.fused_zoo import encoder


def tuned(reference: Path, feeds: dict[str, Any], quant_format: str) -> onnx.ModelProto:
    from neural_compressor import quantization
    from neural_compressor.config import PostTrainingQuantConfig, TuningCriterion

    class Loader:
        batch_size = 4

        def __iter__(self) -> Iterator[Any]:
            return iter([(feeds["x"], np.zeros(len(feeds["x"])))])

    # It does so by itself for networks that read words.
    recipes = {"graph_optimization_level": "ENABLE_EXTENDED"}
    more = {"quant_format": quant_format, "reduce_range": True, "quant_level": 1, "recipes": recipes}
    config = PostTrainingQuantConfig(tuning_criterion=TuningCriterion(max_trials=1), **more)
    made = quantization.fit(str(reference), config, calib_dataloader=Loader(), eval_func=lambda _: 1.0).model
    assert sum(node.op_type in ("LayerNormalization", "SkipLayerNormalization") for node in made.graph.node) == 4
    return made


@pytest.mark.parametrize("quant_format", ["default", "QDQ"])
def test_joined_norms_are_compared_with_what_they_were(quant_format: str, tmp_path: Path) -> None:
    net = encoder()
    reference, feeds = net.save(tmp_path), zoo.data(net)
    found = inc_tb.diagnose(reference, tuned(reference, feeds, quant_format), [feeds])
    assert found.suggestions == []
    rows = {row["name"]: row for row in found.ops.rows()}
    for block in ("a", "b"):
        for at in ("1", "3"):
            end = f"{block}/{at}/norm/shift"
            inside = [name for name in rows if name.startswith(f"{block}/{at}/") and name != end]
            assert len(inside) == 8
            assert {rows[name]["reason"] for name in inside} == {
                f"part of {end} in the quantized model; compared there"
            }
            assert rows[end]["w_mse"] == 0, "the scale is compared with the scale, and not with the bias"
            assert rows[end]["arrived_sqnr_db"] is not None


def test_large_channels_before_a_norm_are_blamed_on_what_makes_them(tmp_path: Path) -> None:
    """Two channels of a layer's last product are much larger than the others; the norm behind it is a float op."""
    net = encoder()
    for tensor in net.initializers:
        if tensor.name in ("a/down.w", "a/down.b"):
            values = onnx.numpy_helper.to_array(tensor).copy()
            values[..., :2] *= 150
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    reference, feeds = net.save(tmp_path), zoo.data(net)
    found = inc_tb.diagnose(reference, tuned(reference, feeds, "default"), [feeds])
    assert {s.rule for s in found.suggestions} == {"outlier_channels"}
    assert found.suggestions[0].ops[0] in ("a/down", "a/down/bias", "a/skip2")
    assert found.suggestions[0].evidence["edge"] in ("a/down", "a/down/bias", "a/skip2")
