"""Tuning with MXNet's own quantization: the criterion is met, and the quantizer does what quantize_net does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inc_tb
from inc_tb.adapters.mxnet.graph import Graph
from inc_tb.adapters.mxnet.library import mx
from inc_tb.capture import open_results
from inc_tb.errors import ModelError, UsageError
from inc_tb.tune import rebuild
from tests.mxnet import zoo

CALIBRATION = [{"data": rows} for rows in np.array_split(zoo.images(16), 2)]
IMAGES = zoo.images(256, 9)


def agreement(network: Any) -> Any:
    """How often a candidate decides as the network does in fp32, which is right by definition."""
    labels = zoo.results(network, IMAGES).argmax(axis=1)

    def evaluate(candidate: Any) -> float:
        return float((zoo.results(candidate, IMAGES).argmax(axis=1) == labels).mean())

    return evaluate


def centred(network: Any) -> Any:
    """With scores that are spread over the classes."""
    dense = network[-1]
    dense.bias.set_data(dense.bias.data() - mx.nd.array(zoo.results(network, IMAGES).mean(axis=0)))
    return network


@pytest.mark.parametrize("strategy", ["basic", "mse", "probe"])
def test_every_strategy_meets_the_criterion(strategy: str, tmp_path: Path) -> None:
    network = centred(zoo.with_outliers(zoo.made("residual")))
    found = inc_tb.tune(
        network, CALIBRATION, agreement(network), tolerance=0.1, strategy=strategy, logdir=tmp_path, objectives=["size"]
    )
    first = inc_tb.load(tmp_path / "trial-001").trial
    assert first.accuracy < 0.6
    assert found.met
    assert found.best.accuracy >= 0.9
    assert agreement(network)(inc_tb.MxnetQuantizer().shown(found.quantized)) == found.best.accuracy
    kept = {op.module for op in _ops(network, found.model) if op.name in found.best.fallback}
    assert kept == {node.name for node in Graph(found.model).steps if node.name in kept}, "they are not quantized"
    if strategy == "probe":
        assert len(found.trials) < 10
        assert inc_tb.load(tmp_path / "trial-001").diagnosis.suggestions


def _ops(network: Any, quantized: Any) -> Any:
    from inc_tb.adapters.mxnet.adapter import MxnetAdapter

    adapter = MxnetAdapter(network, quantized)
    adapter.trace(CALIBRATION[0])
    return adapter.ops()


@pytest.mark.parametrize("calibration", ["naive", "entropy"])
@pytest.mark.parametrize("mode", ["full", "smart"])
@pytest.mark.parametrize("granularity", ["tensor-wise", "channel-wise"])
def test_models_are_those_of_quantize_net(calibration: str, mode: str, granularity: str, tmp_path: Path) -> None:
    network, excluded = zoo.made("depthwise"), ["sg_mkldnn_conv_bn_act_1"]
    tool = inc_tb.MxnetQuantizer(calibration=calibration, quantize_mode=mode, granularity=granularity)
    prepared = tool.prepare(network, tmp_path)
    tool.quantize(prepared, tmp_path / "first", CALIBRATION, tool.settings, ())  # ranges are known from here on
    tool.quantize(prepared, tmp_path / "int8", CALIBRATION, tool.settings, ["net_conv1_fwd", "net_relu1_fwd"])
    wanted = zoo.quantized(
        network, calibration, quantize_mode=mode, quantize_granularity=granularity, exclude_layers=excluded
    )
    mine, theirs = (json.loads(Graph(m).source.symbol.tojson())["nodes"] for m in (tmp_path / "int8", wanted))
    assert [(n["name"], n.get("attrs", {})) for n in mine if n["op"] != "null"] == [
        (n["name"], n.get("attrs", {})) for n in theirs if n["op"] != "null"
    ]
    found = open_results(tmp_path / "int8")({"data": IMAGES})[0]
    np.testing.assert_array_equal(found, zoo.results(wanted, IMAGES))


def test_a_tuning_goes_on_where_it_was(tmp_path: Path) -> None:
    network = centred(zoo.with_outliers(zoo.made("residual")))
    told: list[str] = []

    def tune(trials: int, resume: bool) -> Any:
        return inc_tb.tune(
            network, CALIBRATION, agreement(network), tolerance=0.0, max_trials=trials, strategy="basic",
            logdir=tmp_path, objectives=(), resume=resume, progress=lambda trial, _: told.append(trial.name),
        )  # fmt: skip

    first, second = tune(2, False), tune(3, True)
    assert [t.accuracy for t in second.trials[:2]] == [t.accuracy for t in first.trials]
    assert second.quantizations == 1 or second.evaluations == 1


def test_a_trial_is_made_once_more(tmp_path: Path) -> None:
    network = zoo.made("concat")
    found = inc_tb.tune(network, CALIBRATION, agreement(network), tolerance=1, logdir=tmp_path / "log", objectives=())
    target = rebuild(network, CALIBRATION, found.trials[0], tmp_path / "again")
    same = [open_results(place)({"data": IMAGES})[0] for place in (target, found.model)]
    np.testing.assert_array_equal(*same)


def test_a_module_is_tuned_without_its_label(tmp_path: Path) -> None:
    symbol = mx.sym.SoftmaxOutput(
        mx.sym.FullyConnected(mx.sym.Flatten(mx.sym.var("data")), num_hidden=10, name="fc"), name="softmax"
    )
    module = mx.mod.Module(symbol, context=mx.cpu())
    module.bind([("data", (4, *zoo.SHAPE))], [("softmax_label", (4,))], for_training=False)
    module.init_params(mx.init.Xavier())
    found = inc_tb.tune(module, CALIBRATION, lambda m: 1 + float(zoo.results(m, IMAGES).min()), logdir=tmp_path)
    assert found.met
    diagnosis = inc_tb.diagnose(module, found.model, CALIBRATION)
    assert list(diagnosis.ops["name"]) == ["flatten0", "fc", "softmax"]


def test_settings_are_checked() -> None:
    with pytest.raises(UsageError, match=r"calibration='minmax' was given; expected one of \['naive', 'entropy'\]"):
        inc_tb.MxnetQuantizer(calibration="minmax")


def test_a_quantized_model_is_not_quantized_again(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is quantized already; expected the fp32 model"):
        inc_tb.MxnetQuantizer().prepare(zoo.pair("dense")[1], tmp_path)


def test_variants_and_cures_change_what_costs_nothing() -> None:
    tool = inc_tb.MxnetQuantizer()
    assert [v["calibration"] for v in tool.variants()] == ["entropy", "naive"]
    assert all(v != tool.settings and set(v) == set(tool.settings) for v in tool.variants())
    cures = tool.cures(tool.settings, [], {})
    assert [c["calibration"] for c in cures.values()] == ["entropy", "naive"]
    best = inc_tb.MxnetQuantizer(calibration="entropy", granularity="channel-wise")
    assert not best.cures(best.settings, [], {})
