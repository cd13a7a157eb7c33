"""What cannot work is refused in one line that says what was given, what was expected, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import inc_tb
from inc_tb.errors import IncTbError, MismatchError, ModelError
from inc_tb.frameworks.models import read_inputs
from inc_tb.frameworks.mxnet.library import mx
from inc_tb.frameworks.registry import framework_of
from tests.mxnet import zoo

BATCH = {"data": zoo.images(2)}


def refused(reference: Any, quantized: Any, kind: type[IncTbError], text: str, batch: Any = BATCH) -> None:
    with pytest.raises(kind, match=text) as raised:
        inc_tb.diagnose(reference, quantized, [batch])
    assert "\n" not in str(raised.value)


def exported(name: str, folder: Path) -> Path:
    zoo.made(name).export(str(folder / name))
    return folder / f"{name}-symbol.json"


def unready(steps: Callable[[Any], None]) -> Any:
    network = zoo.nn.HybridSequential()
    network.add(zoo.nn.Dense(3))
    steps(network)
    return network


def test_networks_that_are_not_ready() -> None:
    quantized = zoo.pair("dense")[1]
    refused(unready(lambda n: n.initialize()), quantized, ModelError, r"Call hybridize\(\), and run it once")
    refused(unready(lambda n: (n.initialize(), n.hybridize())), quantized, ModelError, "has not run yet")
    refused(zoo.symbol_of(zoo.made("dense")), quantized, ModelError, r"no weights; expected \(symbol, arg_params, aux")
    refused(
        mx.gluon.nn.Sequential(), quantized, ModelError, "expected a gluon HybridBlock, .* Make the network of Hybrid"
    )
    refused(
        mx.mod.Module(zoo.symbol_of(zoo.made("dense")), label_names=None),
        quantized,
        ModelError,
        r"Call bind\(\) and init_params\(\)",
    )


def test_files(tmp_path: Path) -> None:
    good = exported("dense", tmp_path)
    quantized = zoo.pair("dense")[1]
    alone = tmp_path / "alone-symbol.json"
    alone.write_text(good.read_text())
    refused(alone, quantized, ModelError, "alone-symbol.json: there are no weights beside it. Expected a")
    (tmp_path / "alone-0000.params").write_bytes(b"nothing of the kind")
    refused(alone, quantized, ModelError, "alone-0000.params: cannot be read")
    for text in ("", "{}", "no JSON", '{"nodes": 3}'):
        (tmp_path / "broken-symbol.json").write_text(text)
        refused(tmp_path / "broken-symbol.json", quantized, ModelError, "broken-symbol.json: not a network of MXNet")
    refused(
        tmp_path / "dense-0000.params", quantized, ModelError, "weights without their network.*Give the -symbol.json"
    )
    refused(tmp_path / "missing-symbol.json", quantized, ModelError, "no such file; expected a model .*-symbol.json")
    zoo.made("dense").save_parameters(str(tmp_path / "alone-0001.params"))
    refused(alone, quantized, ModelError, "not called arg:… and aux:…, as by save_parameters")
    zoo.quantized(zoo.made("dense")).export(str(tmp_path / "early"))
    early = tmp_path / "early-symbol.json"
    refused(
        good, early, ModelError, "early-0000.params: holds no weights, .* Run it once on a batch, and export it again"
    )
    exported("concat", tmp_path)
    refused(tmp_path, quantized, ModelError, "has 5 -symbol.json files; expected one. Give the path of the file")


def test_weights_that_lack_something(tmp_path: Path) -> None:
    path = exported("depthwise", tmp_path)
    params = tmp_path / "depthwise-0000.params"
    mx.nd.save(str(params), {n: a for n, a in mx.nd.load(str(params)).items() if "batchnorm0_running_mean" not in n})
    text = r"depthwise-symbol.json: its weights lack net_batchnorm0_running_mean \(1 missing in all\); expected all"
    refused(path, zoo.pair("depthwise")[1], ModelError, text)


def test_models_that_do_not_belong_together() -> None:
    dense, concat = zoo.pair("dense"), zoo.pair("concat")
    network = zoo.nn.HybridSequential(prefix="other_")
    network.add(zoo.nn.Dense(3, prefix="else_"))
    network.initialize()
    network.hybridize()
    network(mx.nd.array(zoo.images(2)))
    refused(network, dense[1], MismatchError, "has no op in common with the given HybridSequential")
    refused(dense[0], "model.onnx", ModelError, "no such file")
    two = mx.sym.var("a") + mx.sym.var("b")
    refused(
        (two, {}, {}), concat[1], MismatchError, r"has the inputs \['a', 'b'\], .* has \['data'\]; expected the same"
    )


def test_data() -> None:
    reference, quantized = zoo.pair("dense")
    refused(
        reference,
        quantized,
        MismatchError,
        r"the arrays \['x'\], the model has the inputs \['data'\]",
        {"x": zoo.images(2)},
    )
    refused(reference, quantized, MismatchError, "MXNet cannot run this batch", {"data": zoo.images(2)[..., :3]})
    text = {"data": zoo.np.array([["a"]])}
    refused(reference, quantized, MismatchError, "the array data holds <U1, the model expects float32", text)


def test_a_network_without_inputs() -> None:
    with pytest.raises(ModelError, match="the network has no input"):
        read_inputs((mx.sym.var("w") * 2, {"w": mx.nd.zeros(3)}, {}))


def test_kinds(tmp_path: Path) -> None:
    path = exported("dense", tmp_path)
    assert {framework_of(m).name for m in (path, str(path), tmp_path, tmp_path / "dense")} == {"mxnet"}
    network = zoo.made("dense")
    assert {framework_of(m).name for m in (network, zoo.symbol_of(network), (zoo.symbol_of(network), {}, {}))} == {
        "mxnet"
    }
    (tmp_path / "other.json").write_text("{}")
    for other in ((1, 2), tmp_path / "other.json"):
        with pytest.raises(ModelError, match="cannot read"):
            framework_of(other)


def test_all_forms_of_a_model_are_the_same(tmp_path: Path) -> None:
    network = zoo.made("depthwise")
    network.export(str(tmp_path / "a"))
    symbol, args, aux = mx.model.load_checkpoint(str(tmp_path / "a"), 0)
    module = mx.mod.Module(symbol, label_names=None)
    module.bind([("data", (2, *zoo.SHAPE))], for_training=False)
    module.set_params(args, aux)
    block = mx.gluon.SymbolBlock.imports(str(tmp_path / "a-symbol.json"), ["data"], str(tmp_path / "a-0000.params"))
    quantized = zoo.pair("depthwise")[1]
    tables = [
        inc_tb.diagnose(model, quantized, [BATCH]).ops
        for model in (network, tmp_path / "a-symbol.json", tmp_path / "a", tmp_path, (symbol, args, aux), module, block)
    ]
    for table in tables[1:]:
        assert list(table["name"]) == list(tables[0]["name"])
        zoo.np.testing.assert_array_equal(table["a_mse"], tables[0]["a_mse"])


def test_the_last_epoch_counts(tmp_path: Path) -> None:
    path = exported("dense", tmp_path)
    network = zoo.made("dense")
    network[1].weight.set_data(network[1].weight.data() * 0)
    network.export(str(tmp_path / "dense"), epoch=3)
    from inc_tb.frameworks.mxnet.network import open_network

    assert not open_network(path).args["net_dense0_weight"].asnumpy().any()
