"""Every config for MXNet, pasted and run by its tool: the named ops stay in fp32, the others do not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inc_tb
from inc_tb.advise.configs import configs
from inc_tb.frameworks.mxnet.graph import Graph
from inc_tb.frameworks.mxnet.library import mx
from tests.mxnet import zoo

KEPT = ["net_conv1_fwd", "net_relu1_fwd", "net_pool0_fwd"]
SYMBOLS = {"sg_mkldnn_conv_bn_act_1", "net_pool0_fwd"}
CALIBRATION = [{"data": zoo.images(8, seed)} for seed in (0, 1)]


def text_of(tool: str, calibration: str = "naive") -> str:
    found = inc_tb.diagnose(*zoo.pair("depthwise", calibration), CALIBRATION)
    return configs(found.framework, found.ops, found.graph, KEPT)[tool]


def run(text: str, **names: Any) -> dict[str, Any]:
    exec(text, names)
    return names


def fp32_symbols(model: Any) -> set[str]:
    return {s.symbol for s in Graph(model).steps if s.parts and not s.is_quantized}


def test_quantize_net_keeps_them() -> None:
    made = run(text_of("mxnet"), network=zoo.made("depthwise"), calib_data=zoo.loader())["quantized"]
    assert fp32_symbols(made) == SYMBOLS


@pytest.mark.filterwarnings("ignore:.*You created Module with:UserWarning")
@pytest.mark.filterwarnings("ignore:Data provided by label_shapes:UserWarning")
def test_quantize_model_keeps_them() -> None:
    network = zoo.made("depthwise")
    parameters = {n: p.data() for n, p in network.collect_params().items()}
    symbol = zoo.symbol_of(network)
    data = mx.io.NDArrayIter(zoo.images(16), batch_size=8)
    names = run(
        text_of("mxnet-model"), sym=symbol, calib_data=data,
        arg_params={n: parameters[n] for n in symbol.list_arguments() if n in parameters},
        aux_params={n: parameters[n] for n in symbol.list_auxiliary_states()},
    )  # fmt: skip
    kept = fp32_symbols((names["qsym"], names["qarg_params"], names["aux_params"]))
    # Its quantize_mode is smart, which spares what stands between two that are kept, or at the end.
    assert kept == {*SYMBOLS, "net_flatten0_flatten0"}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("neural_compressor") is None, reason="needs Neural Compressor 2.x")
@pytest.mark.filterwarnings("ignore")
def test_neural_compressor_keeps_them() -> None:
    from neural_compressor import quantization

    conf = run(text_of("inc"))["conf"]
    loader = zoo.loader()
    loader.batch_size = 8
    made = quantization.fit(zoo.made("depthwise"), conf, calib_dataloader=loader)
    # Pooling has no range of its own, so it is no op that could be kept.
    assert fp32_symbols(made.model) == {"sg_mkldnn_conv_bn_act_1"}


def test_ranges_at_run_time_stay_so() -> None:
    shapes = [mx.io.DataDesc("data", (8, *zoo.SHAPE))]
    network = zoo.made("depthwise")
    made = run(text_of("mxnet", "none"), network=network, data_shapes=shapes)["quantized"]
    symbol, parameters = zoo.symbol_of(network), {n: p.data() for n, p in network.collect_params().items()}
    names = run(
        text_of("mxnet-model", "none"), sym=symbol,
        arg_params={n: parameters[n] for n in symbol.list_arguments() if n in parameters},
        aux_params={n: parameters[n] for n in symbol.list_auxiliary_states()},
    )  # fmt: skip
    for model in (made, (names["qsym"], names["qarg_params"], names["aux_params"])):
        assert {*SYMBOLS} <= fp32_symbols(model)
        assert any(step.is_quantized for step in Graph(model).steps)
        assert not [step for step in Graph(model).steps if "min_calib_range" in step.attrs]


def image_module() -> Any:
    symbol = mx.sym.FullyConnected(mx.sym.Flatten(mx.sym.var("image")), num_hidden=10, name="fc")
    module = mx.mod.Module(symbol, data_names=["image"], label_names=None)
    module.bind([("image", (4, *zoo.SHAPE))], for_training=False)
    module.init_params(mx.init.Xavier())
    return module


@pytest.mark.parametrize(
    ("make", "samples"),
    [
        (image_module, {"image": zoo.images(16)}),
        (lambda: zoo.two_inputs()[0], {"data0": zoo.tokens(16), "data1": zoo.images(16)}),
    ],
)
def test_a_recipe_has_the_names_of_the_inputs(make: Any, samples: Any, tmp_path: Path) -> None:
    found = inc_tb.tune(make(), samples, lambda _: 1.0, logdir=tmp_path, objectives=())
    given = [mx.nd.array(samples[name]) for name in sorted(samples)]
    made = run(found.recipe, samples=samples)["quantized"]
    wanted = inc_tb.MxnetQuantizer().shown(found.model)(*given).asnumpy()
    np.testing.assert_array_equal(made(*given).asnumpy(), wanted)


def test_the_quantizers_own_recipe_makes_the_same_model(tmp_path: Path) -> None:
    tool = inc_tb.MxnetQuantizer()
    prepared = tool.prepare(zoo.made("depthwise"), tmp_path)
    samples = {"data": zoo.images(16)}
    tool.quantize(prepared, tmp_path / "int8", [samples], tool.settings, KEPT)
    made = run(tool.recipe(tool.settings, KEPT), model_input=str(prepared), samples=samples)["quantized"]
    assert fp32_symbols(made) == fp32_symbols(tmp_path / "int8") == SYMBOLS
    images = zoo.images(8, 4)
    np.testing.assert_array_equal(zoo.results(made, images), zoo.results(tool.shown(tmp_path / "int8"), images))
