"""Which op of a TensorFlow model is which of its converted form, on networks of many architectures.

TFLite's converter folds, fuses, reorders and takes apart the same way whether it quantizes or not, and a float file
computes what the reference does: every pair of points that is compared must be equal, and a wrong one is not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inc_tb.errors import MismatchError
from inc_tb.frameworks.ops import Op, Pair
from inc_tb.frameworks.tensorflow.adapter import TensorFlowAdapter
from inc_tb.frameworks.tensorflow.kinds import WEIGHTED
from inc_tb.frameworks.tensorflow.library import tf
from inc_tb.frameworks.tensorflow.lite import LiteGraph
from inc_tb.frameworks.tensorflow.quiet import quiet
from inc_tb.frameworks.tensorflow.source import open_source
from tests.frameworks import tensorflow_nets as nets
from tests.frameworks.tensorflow_nets import NETS, Array, Feeds

EQUAL = 1e-4
"""Of the largest value: both compute in float32, in another order."""
HEALTHY_DB = 30.0
KNOWN_NOTES = re.compile(
    r"part of \S+.* in the quantized model; compared there"
    r"|it only changes the shape, which the quantized model does without"
    r"|it changes nothing, and the quantized model does without"
    r"|its inputs have no counterpart in the quantized model \(fused there into another operation\)"
    r"|the quantized model computes it in another layout \(fused there with what follows\)"
    r"|the quantized model has no \w+ at this place \(fused or removed there\)"
)
REMOVED = {
    "keepdims": {"Max"},  # of a single pixel
    "lstm": {"TensorListStack", "Transpose"},
    "gru": {"TensorListStack"},
    "unrolled_lstm": {"Sigmoid", "Mul", "AddV2"},  # of the state before the first step, which is zero
}
"""What TFLite's converter leaves nothing of, by network."""
DICTS = {"two_inputs_dict"}
"""TensorFlow 2.21 cannot convert Keras models with these inputs directly."""
DIRECT = sorted(set(NETS) - DICTS)
INT8 = [
    "activations", "conv1d", "dilated", "grouped", "layer_norm", "mobilenet_v2", "resnet", "separable", "shapes",
    "shared_layer", "transformer", "twins", "unet", "unrolled_lstm",
]  # fmt: skip
"""Without loops: TensorFlow 2.21 dies while it calibrates them."""


@cache
def model_of(name: str) -> Any:
    return nets.built(name)


@cache
def graph_of(name: str) -> Any:
    """The Keras model, traced and frozen."""
    return open_source(model_of(name))


@cache
def lite_of(name: str, kind: str = "float") -> bytes:
    model = model_of(name)
    return nets.to_lite(model, kind, nets.feeds(model) if kind.startswith("int8") else None)


def checked(reference: Any, quantized: Any, data: Feeds, *, removed: Sequence[str] | set[str] | None = None) -> Any:
    """The adapter, after the checks that hold for each pair of models that compute the same; `removed` are the kinds of
    ops of which nothing may be left, or None for any.
    """
    adapter = TensorFlowAdapter(reference, quantized)
    check_ops(adapter, removed)
    pairs = list(adapter.run(data))
    check_equal(pairs)
    compared = {op.name for op in adapter.ops() if op.compared_at == op.name}
    for role in ("output", "isolated"):
        assert {p.op for p in pairs if p.role == role} == compared
    return adapter


def check_ops(adapter: TensorFlowAdapter, removed: Sequence[str] | set[str] | None = None) -> None:
    """Each op is compared, part of one that is, or says why not; convolutions and products are compared."""
    ops = {op.name: op for op in adapter.ops()}
    for op in ops.values():
        assert op.compared_at or op.note, op.name
        assert not op.note or KNOWN_NOTES.fullmatch(op.note), (op.name, op.note)
        if op.compared_at:
            assert ops[op.compared_at].compared_at == op.compared_at, op.name
        elif removed is not None and not op.note.endswith("does without"):
            assert op.type in removed, (op.name, op.note)
    for step in adapter.matching.reference.steps:
        if step.type in WEIGHTED and step.weight:
            assert ops[step.name].compared_at == step.name, (step.name, ops[step.name].note)


def check_equal(pairs: Sequence[Pair]) -> None:
    assert pairs
    for pair in pairs:
        largest = np.abs(pair.reference).max(initial=1e-6)
        furthest = np.abs(pair.reference - pair.quantized).max(initial=0.0)
        assert furthest <= EQUAL * largest, (pair.op, pair.role, furthest / largest)


def check_weights(adapter: TensorFlowAdapter, least_db: float = HEALTHY_DB) -> None:
    """Channel by channel, so that rows in another order do not pass."""
    bearing = {m.step.name for m in adapter.matching.matches.values() if m.step.type in WEIGHTED and m.step.weight}
    pairs = {pair.op: pair for pair in adapter.weights()}
    assert bearing <= set(pairs)
    for pair in pairs.values():
        axes = tuple(range(pair.reference.ndim - 1))
        signal = np.square(pair.reference, dtype=np.float64).sum(axes)
        noise = np.square(pair.reference - pair.quantized, dtype=np.float64).sum(axes)
        assert (10 * np.log10(signal / np.maximum(noise, 1e-30)) > least_db).all(), pair.op


def as_lite_data(lite: bytes, model: Any, data: Feeds) -> dict[str, Array]:
    """The data of a Keras model by the names of the inputs in its TFLite file."""
    names = [i.name for i in LiteGraph(open_source(lite)).inputs]
    assert len(names) == len(data)
    return {n: data[n] for n in names} if set(names) == set(data) else dict(zip(names, data.values(), strict=True))


def op_by_end(adapter: TensorFlowAdapter, end: str) -> Op:
    (found,) = [op for op in adapter.ops() if op.name.endswith(end)]
    return found


# Keras models and their TFLite files


@pytest.mark.parametrize("name", DIRECT)
def test_a_float_file_is_equal_at_every_point(name: str) -> None:
    model = model_of(name)
    checked(graph_of(name), lite_of(name), nets.feeds(model), removed=REMOVED.get(name, ()))


@pytest.mark.parametrize("name", DIRECT)
def test_no_names_are_needed(name: str) -> None:
    model = model_of(name)
    checked(graph_of(name), nets.without_names(lite_of(name)), nets.feeds(model))


@pytest.mark.parametrize("name", INT8)
def test_int8_has_the_points_and_weights_of_float(name: str) -> None:
    """Whatever is quantized, the same ops are compared at the same places."""
    plain, whole = (TensorFlowAdapter(graph_of(name), lite_of(name, kind)) for kind in ("float", "int8"))
    assert [(op.name, op.compared_at, op.tensor) for op in whole.ops()] == [
        (op.name, op.compared_at, op.tensor) for op in plain.ops()
    ]
    check_weights(whole)


@pytest.mark.parametrize("name", INT8)
def test_a_float_file_as_the_reference(name: str) -> None:
    adapter = TensorFlowAdapter(lite_of(name), lite_of(name, "int8"))
    check_ops(adapter)
    check_weights(adapter)


@pytest.mark.parametrize("name", ["unet", "conv1d", "vision_transformer", "lstm"])
@pytest.mark.parametrize("kind", ["dynamic", "float16"])
def test_weight_only_files(name: str, kind: str) -> None:
    adapter = TensorFlowAdapter(graph_of(name), lite_of(name, kind))
    check_ops(adapter, REMOVED.get(name, ()))
    check_weights(adapter)


@pytest.mark.parametrize("name", ["two_inputs_list", "two_outputs", "shapes"])
def test_whole_numbers_at_both_ends(name: str) -> None:
    adapter = TensorFlowAdapter(graph_of(name), lite_of(name, "int8_io"))
    check_ops(adapter, REMOVED.get(name, ()))
    check_weights(adapter)


@pytest.mark.parametrize("name", DIRECT)
def test_a_float_file_and_itself(name: str) -> None:
    lite, model = lite_of(name), model_of(name)
    adapter = checked(lite, nets.without_names(lite), as_lite_data(lite, model, nets.feeds(model)))
    assert all(op.compared_at == op.name for op in adapter.ops())


@pytest.mark.parametrize("name", sorted(NETS))
def test_a_graph_and_itself(name: str) -> None:
    model = model_of(name)
    adapter = checked(graph_of(name), graph_of(name), nets.feeds(model), removed=())
    assert all(op.compared_at == op.name for op in adapter.ops())


# names


def test_ops_have_the_names_of_the_graph() -> None:
    model = model_of("resnet")
    given = {node.name for node in open_source(model).graph_def.node}
    names = [op.name for op in TensorFlowAdapter(model, lite_of("resnet")).ops()]
    assert set(names) <= given
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ["resnet", "inception", "mobilenet_v2", "unet_upsampling", "lstm"])
def test_ops_name_their_layer(name: str) -> None:
    """Keras numbers the scopes of its layers as it does the layers, but differently."""
    model = model_of(name)
    weights = {layer.name: layer.get_weights() for layer in model.layers}
    adapter = TensorFlowAdapter(graph_of(name), lite_of(name))
    steps = {step.name: step for step in adapter.matching.reference.steps}
    for op in adapter.ops():
        assert op.module in weights, op.name
        if steps[op.name].weight:
            stored = adapter.matching.reference.constant(steps[op.name].weight)
            assert np.array_equal(stored.ravel(), weights[op.module][0].ravel()), (op.name, op.module)
    assert [m for m in dict.fromkeys(op.module for op in adapter.ops()) if weights[m]]


def test_layers_of_nested_and_shared_models() -> None:
    nested = TensorFlowAdapter(graph_of("nested"), lite_of("nested"))
    modules = {op.module for op in nested.ops()}
    assert modules >= {"one/conv", "one/bn", "one/re_lu", "two/conv", "two/re_lu_1", "head/conv", "head/dense"}
    shared = TensorFlowAdapter(graph_of("shared_layer"), lite_of("shared_layer"))
    convolutions = [op.module for op in shared.ops() if op.type == "Conv2D"]
    assert sorted(convolutions) == ["again", "again", "tower", "tower"]


# what is folded


def test_batch_norm_and_activation_move_the_comparison_behind_them() -> None:
    adapter = TensorFlowAdapter(graph_of("mobilenet_v2"), lite_of("mobilenet_v2"))
    ops = {op.name: op for op in adapter.ops()}
    first = next(op for op in ops.values() if op.type == "Conv2D")
    parts = [op for op in ops.values() if op.compared_at == first.name]
    assert [op.type for op in parts] == ["Conv2D", "Mul", "AddV2", "Relu6"]
    assert first.tensor == parts[-1].name
    assert all(op.note.startswith(f"part of {first.name} in") for op in parts[1:])
    assert {op.unit for op in parts} == {first.unit}
    match = adapter.matching.matches[first.index]
    assert [s.name for s in match.affine] == [op.name for op in parts[1:3]]
    found = adapter.matching.weights(match)
    assert found is not None
    np.testing.assert_allclose(found.reference, found.quantized, rtol=1e-5, atol=1e-6)


def test_what_is_read_twice_is_not_folded() -> None:
    """The result before the activation is a result of the model."""
    adapter = TensorFlowAdapter(graph_of("two_outputs"), lite_of("two_outputs"))
    relu = next(op for op in adapter.ops() if op.type == "Relu" and "re_lu" in op.name)
    assert relu.compared_at == relu.name


def test_a_bias_behind_a_change_of_shape_is_part_of_the_convolution() -> None:
    adapter = TensorFlowAdapter(graph_of("conv1d"), lite_of("conv1d"))
    first = next(op for op in adapter.ops() if op.type == "Conv2D")
    parts = [op.type for op in adapter.ops() if op.compared_at == first.name]
    assert parts == ["Conv2D", "Squeeze", "BiasAdd", "Relu"]


def test_equal_branches_that_are_computed_once() -> None:
    adapter = TensorFlowAdapter(graph_of("twins"), lite_of("twins"))
    convolutions = [op for op in adapter.ops() if op.type == "Conv2D"]
    assert [op.compared_at for op in convolutions] == [op.name for op in convolutions]
    a, b = (adapter.matching.matches[op.index] for op in convolutions if op.module in ("a1", "b1"))
    assert a.twin is b.twin


# other models


@pytest.mark.parametrize("kind", ["float", "int8"])
@pytest.mark.parametrize(("name", "other"), [("resnet", "unet"), ("inception", "resnet"), ("gru", "transformer")])
def test_another_network(name: str, other: str, kind: str) -> None:
    lite = lite_of(other, kind)
    with pytest.raises(MismatchError) as caught:
        TensorFlowAdapter(graph_of(name), lite)
    check_one_line(str(caught.value))


@pytest.mark.parametrize("name", ["resnet", "mlp", "transformer", "depth_multiplier", "unet"])
@pytest.mark.parametrize("way", ["lite", "bare lite", "graph"])
def test_the_same_network_with_other_weights(name: str, way: str) -> None:
    lite = lite_of(name)
    other = nets.built(name, seed=7)
    quantized = open_source(other) if way == "graph" else lite if way == "lite" else nets.without_names(lite)
    with pytest.raises(MismatchError, match="is not a quantized version of") as caught:
        TensorFlowAdapter(graph_of(name) if way == "graph" else other, quantized)
    check_one_line(str(caught.value))


def test_another_number_of_inputs() -> None:
    with pytest.raises(MismatchError, match="has the inputs") as caught:
        TensorFlowAdapter(graph_of("two_inputs_list"), lite_of("resnet"))
    check_one_line(str(caught.value))


def check_one_line(message: str) -> None:
    assert "\n" not in message
    assert len(message) < 400
    assert "Check that" in message


# graphs without Keras


def image() -> dict[str, Array]:
    return {"input": np.random.default_rng(1).normal(size=(2, 8, 8, 3)).astype(np.float32)}


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("bare", [False, True])
def test_frozen_graphs_of_tensorflow_1(data_format: str, bare: bool) -> None:
    graph = nets.tf1_graph(data_format)
    lite = nets.lite_of_graph(graph, ["input"], ["probabilities"])
    adapter = checked(graph, nets.without_names(lite) if bare else lite, image(), removed=())
    ops = {op.name: op for op in adapter.ops()}
    assert ops["block/norm"].compared_at == ops["block/relu"].compared_at == "block/depthwise"
    assert ops["block/norm2"].compared_at == "block/project"
    assert ops["logits/add"].compared_at == "logits/matmul"
    assert ops["after/norm"].compared_at == "after/norm", "behind a sum, there are no weights to take it in"
    check_weights(adapter, 100.0)


@pytest.mark.parametrize("bare", [False, True])
def test_graphs_that_tensorflow_has_fused(bare: bool) -> None:
    """As quantized model and as reference."""
    graph = nets.tf1_graph()
    fused = nets.fused_graph(graph, ["input"], ["probabilities"])
    kinds = {node.op for node in fused.node}
    assert {"_FusedConv2D", "_FusedMatMul"} <= kinds
    adapter = checked(graph, nets.renamed_graph(fused) if bare else fused, image(), removed=())
    assert op_by_end(adapter, "logits/add").compared_at == "logits/matmul"
    lite = nets.lite_of_graph(graph, ["input"], ["probabilities"])
    checked(fused, nets.without_names(lite) if bare else lite, image(), removed=())


@pytest.mark.parametrize("name", ["activations", "inception", "mobilenet_v3", "resnet", "shapes", "transformer"])
def test_a_graph_and_itself_without_names(name: str) -> None:
    source = graph_of(name)
    renamed = nets.renamed_graph(source.graph_def)
    adapter = checked(source, renamed, nets.feeds(model_of(name)))
    assert all(op.compared_at == op.name for op in adapter.ops())


def test_a_saved_model_with_several_functions(tmp_path: Path) -> None:
    module = nets.Several()
    signatures = {"serving_default": module.classify, "embed": module.embed}
    with quiet():
        tf.saved_model.save(module, str(tmp_path), signatures)
        loaded = tf.saved_model.load(str(tmp_path))
    data = {"x": np.random.default_rng(1).normal(size=(3, 8)).astype(np.float32)}
    lite = nets.converted(tf.lite.TFLiteConverter.from_saved_model(str(tmp_path), ["serving_default"]))
    adapter = checked(tmp_path, lite, data, removed=())
    assert [op.type for op in adapter.ops() if op.compared_at == op.name] == ["MatMul", "MatMul", "MatMul", "Softmax"]
    other = nets.converted(tf.lite.TFLiteConverter.from_saved_model(str(tmp_path), ["embed"]))
    checked(loaded.signatures["embed"], other, data, removed=())
    with pytest.raises(MismatchError):
        TensorFlowAdapter(tmp_path, other)


def test_concrete_functions() -> None:
    module = nets.Several()
    concrete = module.classify.get_concrete_function()
    data = {"x": np.random.default_rng(1).normal(size=(3, 8)).astype(np.float32)}
    lite = nets.converted(tf.lite.TFLiteConverter.from_concrete_functions([concrete]))
    checked(concrete, lite, data, removed=())
    checked(concrete, nets.without_names(lite), data, removed=())


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("name", ["two_inputs_dict", "shared_layer", "two_outputs_dict", "nested"])
def test_saved_models_of_keras(name: str, bare: bool, tmp_path: Path) -> None:
    model = model_of(name)
    with quiet():
        model.export(tmp_path, verbose=False)
    lite = nets.converted(tf.lite.TFLiteConverter.from_saved_model(str(tmp_path)))
    checked(graph_of(name), nets.without_names(lite) if bare else lite, nets.feeds(model), removed=())


@pytest.mark.slow
@pytest.mark.parametrize("bare", [False, True])
def test_a_large_graph(bare: bool) -> None:
    model = nets.randomized(nets.keras.applications.MobileNetV2(weights=None, input_shape=(96, 96, 3)))
    lite = nets.to_lite(model, "dynamic")
    adapter = TensorFlowAdapter(open_source(model), nets.without_names(lite) if bare else lite)
    check_ops(adapter, ())
    check_weights(adapter)
