"""Tuning with MXNet's own quantization: the criterion is met, and the quantizer does what quantize_net does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inc_tb
from inc_tb.errors import MismatchError
from inc_tb.frameworks.models import open_results
from inc_tb.frameworks.mxnet.graph import Graph
from inc_tb.frameworks.mxnet.library import mx
from inc_tb.tuning.loop import rebuild
from tests.mxnet import zoo

CALIBRATION = [{"data": rows} for rows in np.array_split(zoo.images(16), 2)]
IMAGES = zoo.images(256, 9)


def agreement(network: Any) -> Any:
    """How often a candidate decides as the network does in fp32, which is right by definition."""
    labels = zoo.results(network, IMAGES).argmax(axis=1)

    def evaluate(candidate: Any) -> float:
        return float((zoo.results(candidate, IMAGES).argmax(axis=1) == labels).mean())

    return evaluate


def centered(network: Any) -> Any:
    """With scores that are spread over the classes."""
    dense = network[-1]
    dense.bias.set_data(dense.bias.data() - mx.nd.array(zoo.results(network, IMAGES).mean(axis=0)))
    return network


@pytest.mark.parametrize("strategy", ["basic", "mse", "probe"])
def test_every_strategy_meets_the_criterion(strategy: str, tmp_path: Path) -> None:
    network = centered(zoo.with_outliers(zoo.made("residual")))
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
    from inc_tb.frameworks.mxnet.adapter import MxnetAdapter

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
    mine, theirs = (json.loads(Graph(m).network.symbol.tojson())["nodes"] for m in (tmp_path / "int8", wanted))
    assert [(n["name"], n.get("attrs", {})) for n in mine if n["op"] != "null"] == [
        (n["name"], n.get("attrs", {})) for n in theirs if n["op"] != "null"
    ]
    found = open_results(tmp_path / "int8")({"data": IMAGES})[0]
    np.testing.assert_array_equal(found, zoo.results(wanted, IMAGES))


def test_a_tuning_goes_on_where_it_was(tmp_path: Path) -> None:
    network = centered(zoo.with_outliers(zoo.made("residual")))

    def tune(trials: int, resume: bool) -> Any:
        return inc_tb.tune(
            network, CALIBRATION, agreement(network), tolerance=0.0, max_trials=trials, strategy="basic",
            logdir=tmp_path, objectives=(), resume=resume,
        )  # fmt: skip

    first, second = tune(2, False), tune(3, True)
    assert [t.accuracy for t in second.trials[:2]] == [t.accuracy for t in first.trials]
    assert (second.quantizations, second.evaluations) == (1, 1)


def test_a_trial_is_made_once_more(tmp_path: Path) -> None:
    network = zoo.made("concat")
    found = inc_tb.tune(network, CALIBRATION, agreement(network), tolerance=1, logdir=tmp_path / "log", objectives=())
    target = rebuild(network, CALIBRATION, found.trials[0], tmp_path / "again")
    same = [open_results(place)({"data": IMAGES})[0] for place in (target, found.model)]
    np.testing.assert_array_equal(*same)


@pytest.mark.parametrize("dtype", [np.float64, np.uint8])
def test_data_of_other_types_will_do(dtype: Any, tmp_path: Path) -> None:
    data = (255 * zoo.images(16)).astype(dtype)
    tool = inc_tb.MxnetQuantizer()
    prepared = tool.prepare(zoo.made("concat"), tmp_path)
    for name, given in (("given", data), ("float32", data.astype(np.float32))):
        tool.prepare(prepared, tmp_path / name)  # which forgets the ranges
        tool.quantize(prepared, tmp_path / name / "int8", [{"data": given}], tool.settings, ())
    symbols = [(tmp_path / name / "int8" / "model-symbol.json").read_text() for name in ("given", "float32")]
    assert symbols[0] == symbols[1]
    found = inc_tb.tune(zoo.made("concat"), [{"data": data}], lambda _: 1.0, logdir=tmp_path / "log", objectives=())
    assert found.met


def test_errors_name_the_users_model(tmp_path: Path) -> None:
    wrong = [{"data": zoo.images(4)[..., :3]}]
    with pytest.raises(MismatchError, match=r"^the given HybridSequential: MXNet cannot run this batch"):
        inc_tb.tune(zoo.made("dense"), wrong, lambda _: 1.0, logdir=tmp_path, objectives=())


@pytest.mark.filterwarnings("ignore:Data provided by label_shapes:UserWarning")
@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("SoftmaxOutput", {}), ("SoftmaxOutput", {"multi_output": True}), ("SoftmaxOutput", {"preserve_shape": True}),
        ("LinearRegressionOutput", {}), ("SVMOutput", {}),
    ],
)  # fmt: skip
def test_a_loss_gives_the_same_without_its_label(kind: str, settings: Any, rank: int, tmp_path: Path) -> None:
    module, tool = zoo.loss_module(kind, rank, **settings), inc_tb.MxnetQuantizer()
    module.forward(mx.io.DataBatch([mx.nd.array(zoo.images(4))], None), is_train=False)
    wanted, prepared = module.get_outputs()[0].asnumpy(), tool.prepare(module, tmp_path)
    np.testing.assert_allclose(zoo.results(tool.shown(prepared), zoo.images(4)), wanted, atol=1e-6)
    tool.quantize(prepared, tmp_path / "int8", CALIBRATION, tool.settings, ())
    assert zoo.results(tool.shown(tmp_path / "int8"), zoo.images(7)).shape == (7, *wanted.shape[1:])


def test_a_module_is_tuned_without_its_label(tmp_path: Path) -> None:
    flat = mx.sym.Flatten(mx.sym.var("data"), name="flat")
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(flat, num_hidden=10, name="fc"), name="softmax")
    module = mx.mod.Module(symbol, context=mx.cpu())
    module.bind([("data", (4, *zoo.SHAPE))], [("softmax_label", (4,))], for_training=False)
    module.init_params(mx.init.Xavier())
    found = inc_tb.tune(module, CALIBRATION, lambda m: 1 + float(zoo.results(m, IMAGES).min()), logdir=tmp_path)
    assert found.met
    diagnosis = inc_tb.diagnose(module, found.model, CALIBRATION)
    assert list(diagnosis.ops["name"]) == ["flat", "fc", "softmax"]


def test_variants_and_cures_change_what_costs_nothing() -> None:
    tool = inc_tb.MxnetQuantizer()
    assert [v["calibration"] for v in tool.variants()] == ["entropy", "naive"]
    assert all(v != tool.settings and set(v) == set(tool.settings) for v in tool.variants())
    cures = tool.cures(tool.settings, [], {})
    assert [c["calibration"] for c in cures.values()] == ["entropy", "naive"]
    best = inc_tb.MxnetQuantizer(calibration="entropy", granularity="channel-wise")
    assert not best.cures(best.settings, [], {})
