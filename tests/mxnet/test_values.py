"""What the adapter says about values, against what MXNet itself shows and against sums done by hand."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import inc_tb
from inc_tb.frameworks.mxnet.adapter import MxnetAdapter
from inc_tb.frameworks.mxnet.library import mx
from inc_tb.frameworks.ops import Pair
from tests.mxnet import zoo

DATA = {"data": zoo.images(4, 3)}


def pairs_of(adapter: MxnetAdapter, role: str) -> dict[str, Pair]:
    return {p.op: p for p in adapter.run(DATA) if p.role == role}


def monitored(network: Any) -> dict[str, zoo.Array]:
    """Everything that the nodes give, as MXNet's monitor tells it."""
    symbol = zoo.symbol_of(network)
    parameters = {n: p.data() for n, p in network.collect_params().items()}
    arguments = {n: parameters.get(n, mx.nd.array(DATA["data"])) for n in symbol.list_arguments()}
    states = {n: parameters[n] for n in symbol.list_auxiliary_states()}
    executor = symbol.bind(mx.cpu(), arguments, aux_states=states, grad_req="null")
    found = {}

    def collect(name: Any, handle: Any) -> None:
        array = mx.nd.NDArray(ctypes.cast(handle, mx.base.NDArrayHandle), writable=False)
        found[mx.base.py_str(name)] = array.copyto(mx.cpu()).asnumpy()

    executor.set_monitor_callback(collect)
    executor.forward(is_train=False)[0].wait_to_read()
    return found


def real(found: Mapping[str, zoo.Array], name: str) -> zoo.Array:
    """Whole numbers as what they stand for: MXNet's ranges end half a step beyond 127 and 255."""
    data = found[f"{name}_output"]
    if data.dtype == np.float32:
        return data
    ends = [found[n] for n in found if n.startswith(name) and n.endswith(("_min", "_max", "min_output", "max_output"))]
    assert len(ends) == 2
    widest = max(abs(float(end[0])) for end in ends)
    return data * (widest / np.float32(255.5 if data.dtype == np.uint8 else 127.5))


@pytest.mark.parametrize("name", ["residual", "residual-1", "depthwise", "dense", "concat"])
def test_quantized_values_are_what_the_monitor_sees(name: str) -> None:
    reference, quantized = zoo.pair(name)
    adapter = MxnetAdapter(reference, quantized)
    pairs, found = pairs_of(adapter, "output"), monitored(quantized)
    symbols = {op.name: op.module for op in adapter.ops()}
    checked = 0
    for op, pair in pairs.items():
        symbol = f"quantized_{symbols[op]}"
        if f"{symbol}_output" in found:
            np.testing.assert_allclose(pair.quantized, real(found, symbol).reshape(pair.quantized.shape), rtol=1e-6)
            checked += 1
    assert checked >= 3


@pytest.mark.parametrize("name", ["residual", "depthwise", "concat"])
def test_reference_values_are_those_of_get_internals(name: str) -> None:
    reference, quantized = zoo.pair(name)
    adapter = MxnetAdapter(reference, quantized)
    internals = zoo.symbol_of(reference).get_internals()
    parameters = {n: p.data() for n, p in reference.collect_params().items()}
    for pair in pairs_of(adapter, "output").values():
        part = internals[pair.tensor]
        arguments = {n: parameters.get(n, mx.nd.array(DATA["data"])) for n in part.list_arguments()}
        states = {n: parameters[n] for n in part.list_auxiliary_states()}
        wanted = part.bind(mx.cpu(), arguments, aux_states=states, grad_req="null").forward(is_train=False)[0].asnumpy()
        np.testing.assert_allclose(pair.reference, wanted, rtol=1e-4, atol=1e-5)


def test_an_isolated_layer_by_hand() -> None:
    """The last one gives real numbers: whole numbers times whole numbers, with the steps of both."""
    reference, quantized = zoo.pair("dense")
    adapter = MxnetAdapter(reference, quantized)
    before, last = pairs_of(adapter, "output")["net_dense1_fwd"], pairs_of(adapter, "isolated")["net_dense2_fwd"]
    grid = next(op.activation for op in adapter.ops() if op.name == "net_dense1_fwd")
    assert grid is not None
    assert grid.dtype == "uint8"
    read = np.clip(np.rint(before.reference / grid.scale), 0, 255) * grid.scale
    weights, bias = (quantized_parameter(reference, f"net_dense2_{n}") for n in ("weight", "bias"))
    np.testing.assert_allclose(last.quantized, read @ weights.T + bias, atol=2e-4)
    assert np.abs(last.quantized - last.reference).max() > 1e-3, "something is rounded"


def quantized_parameter(network: Any, name: str) -> zoo.Array:
    """MXNet rounds them to steps of 1/127 of the largest, and has its kernel read steps of 1/127.5."""
    array = network.collect_params()[name].data().asnumpy()
    widest = np.abs(array).max()
    return np.rint(array / widest * 127) * widest / 127.5


@pytest.mark.parametrize("name", ["residual-1", "depthwise", "concat"])
def test_the_first_op_adds_all_that_its_output_has(name: str) -> None:
    adapter = MxnetAdapter(*zoo.pair(name))
    (given,) = (p for p in adapter.run(DATA) if p.role == "input")
    outputs, alone = pairs_of(adapter, "output"), pairs_of(adapter, "isolated")
    np.testing.assert_array_equal(outputs[given.op].quantized, alone[given.op].quantized)
    later = [op for op in outputs if not np.array_equal(outputs[op].quantized, alone[op].quantized)]
    assert later, "errors arrive at the others"


def test_the_input_is_rounded_as_the_calibration_says() -> None:
    adapter = MxnetAdapter(*zoo.pair("depthwise"))
    (given,) = (p for p in adapter.run(DATA) if p.role == "input")
    step = zoo.images(16).max() / 255.5  # what was calibrated with, all above zero
    np.testing.assert_allclose(given.quantized, np.minimum(np.rint(given.reference / step), 255) * step, atol=1e-6)


@pytest.mark.parametrize("is_dense", [True, False])
@pytest.mark.parametrize("granularity", ["tensor-wise", "channel-wise"])
def test_weights_are_those_that_the_kernel_uses(is_dense: bool, granularity: str) -> None:
    """A one at each place in turn brings them to light."""
    size = 6
    network = zoo.nn.HybridSequential(prefix="one_")
    with network.name_scope():
        network.add(zoo.nn.Dense(4) if is_dense else zoo.nn.Conv2D(4, 1))
    network.initialize()
    network.hybridize()
    ones = np.eye(size, dtype=np.float32).reshape(size, size, *(() if is_dense else (1, 1)))
    network(mx.nd.array(ones))
    weights = np.random.default_rng(2).normal(size=(4, size)).astype(np.float32) * [[1], [1], [10], [0.1]]
    network[0].weight.set_data(mx.nd.array(weights.reshape(network[0].weight.shape)))
    data = mx.gluon.data.ArrayDataset(mx.nd.array(ones), mx.nd.zeros(size))
    quantized = mx.contrib.quantization.quantize_net_v2(
        network, calib_data=mx.gluon.data.DataLoader(data, batch_size=size), calib_mode="naive",
        quantize_granularity=granularity,
    )  # fmt: skip
    adapter = MxnetAdapter(network, quantized)
    adapter.trace({"data": ones})
    (pair,) = adapter.weights()
    # One is 255 of 255.5 steps.
    found = zoo.results(quantized, ones).reshape(size, 4).T * 255.5 / 255
    (op,) = adapter.ops()
    step = 0.0 if op.activation is None else float(op.activation.scale.max())
    np.testing.assert_allclose(pair.quantized.reshape(4, size), found, atol=step / 2 + 1e-5)
    assert op.weight.granularity == ("per channel" if not is_dense or granularity == "channel-wise" else "per tensor")
    np.testing.assert_array_equal(pair.reference.reshape(4, size), weights.astype(np.float32))


def test_a_batch_norm_is_part_of_the_weights() -> None:
    reference, quantized = zoo.pair("depthwise")
    adapter = MxnetAdapter(reference, quantized)
    adapter.trace(DATA)
    pair = next(p for p in adapter.weights() if p.op == "net_conv0_fwd")
    of = {n: reference.collect_params()[f"net_{n}"].data().asnumpy() for n in (
        "conv0_weight", "batchnorm0_gamma", "batchnorm0_running_var")}  # fmt: skip
    factor = of["batchnorm0_gamma"] / np.sqrt(of["batchnorm0_running_var"] + 1e-5)
    np.testing.assert_allclose(pair.reference, of["conv0_weight"] * factor[:, None, None, None], rtol=1e-5)
    steps = np.abs(pair.reference).reshape(8, -1).max(axis=1) / 127.5
    assert (np.abs(pair.quantized - pair.reference).reshape(8, -1).max(axis=1) <= steps / 2 * 1.001).all()


def test_a_sum_without_a_sign_is_told() -> None:
    """MXNet 1.9.1 adds to uint8 in place: what is below zero after the sum is lost."""
    adapter = MxnetAdapter(*zoo.pair("residual"))
    pair = pairs_of(adapter, "isolated")["net_block0_conv1_fwd"]
    assert pair.tensor == "net_block0__plus0_output"
    assert pair.reference.min() < -0.1
    assert pair.quantized.min() == 0
    op = next(op for op in adapter.ops() if op.name == "net_block0_conv1_fwd")
    assert (op.activation.dtype, op.activation.low) == ("int8", 0)
    assert [note for note in adapter.notes if "sg_mkldnn_conv_add_2 loses everything below 0" in note]
    first = inc_tb.diagnose(*zoo.pair("residual"), [DATA]).suggestions[0]
    assert (first.rule, first.ops) == ("lost_sign", ["net_block0_conv1_fwd", "net_block0__plus0"])
    assert '"sg_mkldnn_conv_add_2"' in first.recipes["mxnet"]


def test_a_sum_has_its_sign_whatever_arrives() -> None:
    """That of the second block adds int8 to int8; what it gets has lost its sign in the first."""
    network = zoo.with_small_branch(zoo.made("residual"))
    adapter = MxnetAdapter(network, zoo.quantized(network))
    assert pairs_of(adapter, "output")["net_block1_conv1_fwd"].quantized.min() == 0
    assert pairs_of(adapter, "isolated")["net_block1_conv1_fwd"].quantized.min() < -1
    grids = {op.name: op.activation for op in adapter.ops()}
    assert (grids["net_block0_conv1_fwd"].low, grids["net_block1_conv1_fwd"].low) == (0, -128)
    assert [note.split()[0] for note in adapter.notes] == ["sg_mkldnn_conv_add_2"]


def test_a_sum_with_what_is_rounded_for_it_alone_has_no_sign_either() -> None:
    reference, quantized = zoo.pair("residual", excluded=("sg_mkldnn_conv_bn_act_0",))
    adapter = MxnetAdapter(reference, quantized)
    assert pairs_of(adapter, "isolated")["net_block0_conv1_fwd"].quantized.min() == 0
    assert [note.split()[0] for note in adapter.notes] == ["sg_mkldnn_conv_add_2"]


@pytest.mark.parametrize(("name", "layer"), [("dense", 1), ("concat", 1)])
def test_ranges_that_the_file_has_lost_are_told(name: str, layer: int) -> None:
    """MXNet writes them with six decimals, -0.000000 where they have a sign."""
    network = zoo.made(name)
    weight, bias = network[layer].weight, network[layer].bias
    weight.set_data(weight.data() * 1e-9)
    bias.set_data(bias.data() * 0)
    quantized = zoo.quantized(network)
    adapter = MxnetAdapter(network, quantized)
    adapter.trace(DATA)
    op = next(op for op in adapter.ops() if op.name == f"net_{'dense' if name == 'dense' else 'conv'}0_fwd")
    assert [note for note in adapter.notes if f"{op.module} is 0 in the file" in note]
    assert op.activation.scale.tolist() == [0]
    found = inc_tb.diagnose(network, quantized, [DATA]).suggestions
    assert found
    assert not [s for s in found if "min-max" in s.because]
