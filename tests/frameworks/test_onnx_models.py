"""Models of every kind that people have: each is compared at every op, or the table says why not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.shape_inference import quant_pre_process

import inc_tb
from inc_tb.advise.diagnose import compare as compared_unchecked
from inc_tb.errors import MismatchError, ModelError
from inc_tb.frameworks.onnx import model as onnx_model
from inc_tb.frameworks.onnx.adapter import OnnxAdapter
from inc_tb.measure.diagnosis import Diagnosis
from tests.frameworks import onnx_zoo as zoo
from tests.frameworks.onnx_zoo import Array, Feeds, Net

DATA = Path(__file__).parent / "data"
HARD = Path(__file__).parents[1] / "data" / "hard.onnx"
HEALTHY_DB = 30.0
Rows = dict[str, dict[str, Any]]


def compare(
    reference: Any, quantized: Any, *batches: Feeds, healthy: float = HEALTHY_DB, notes: int = 0, **options: Any
) -> Rows:
    """The op table by op, after checks that hold for every sound pair of models."""
    diagnosis = inc_tb.diagnose(reference, quantized, batches, **options)
    norms = [note for note in diagnosis.notes if " batch norm" in note]
    rounded = [r for r in diagnosis.ops.rows() if r["type"] == "BatchNormalization" and r["act_dtype"]]
    assert len(norms) <= min(1, len(rounded))
    assert len(diagnosis.notes) - len(norms) == notes, diagnosis.notes
    rows = {row["name"]: row for row in diagnosis.ops.rows()}
    assert len(rows) == diagnosis.ops.count
    for name, row in rows.items():
        assert row["a_mse"] is not None or row["reason"], name
        assert row["added_sqnr_db"] is None or row["added_sqnr_db"] > healthy, (name, row["added_sqnr_db"])
    if isinstance(reference, Path) and isinstance(quantized, Path):
        check_outputs(rows, reference, quantized, batches)
    return rows


def check_outputs(rows: Rows, reference: Path, quantized: Path, batches: Sequence[Feeds]) -> None:
    """The last ops against what both files return when they are simply run."""
    x, y = ([plain_outputs(path, batch) for batch in batches] for path in (reference, quantized))
    graph = onnx.load(reference, load_external_data=False).graph
    last = dict(zip((node.output[0] for node in graph.node), op_names(graph.node), strict=True))
    checked = 0
    for at, info in enumerate(graph.output):
        row = compared_row(rows, last[info.name])
        if row is None:
            continue
        a, b = (np.concatenate([o[at].ravel() for o in outputs]).astype(np.float64) for outputs in (x, y))
        np.testing.assert_allclose(row["a_mse"], ((a - b) ** 2).mean(), rtol=1e-5, atol=1e-30, err_msg=info.name)
        checked += 1
    assert checked, "no output of the model was compared"


def op_names(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """The name of each node, of its output where it has none, and counted where there are several."""
    names: list[str] = []
    plain = [node.name or node.output[0] for node in nodes]
    for at, name in enumerate(plain):
        before = plain[:at].count(name)
        names.append(f"{name}#{before + 1}" if before else name)
    return names


def compared_row(rows: Rows, op: str) -> dict[str, Any] | None:
    """The row of an op, or of the one that it is part of."""
    row = rows.get(op)
    if row is not None and row["reason"].startswith("part of "):
        return compared_row(rows, row["reason"].removeprefix("part of ").split(" in the quantized model")[0])
    return row if row is not None and row["a_mse"] is not None else None


def plain_outputs(path: Path, feeds: Feeds) -> list[Array]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(unnamed(path), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def unnamed(path: Path) -> bytes | Path:
    """ONNX Runtime does not open files in which nodes share a name."""
    proto = onnx.load(path, load_external_data=False)
    names = [node.name for node in proto.graph.node if node.name]
    if len(set(names)) == len(names):
        return path
    for node in proto.graph.node:
        node.name = ""
    return proto.SerializeToString()


def types_in(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}


def compared(rows: Rows) -> set[str]:
    return {name for name, row in rows.items() if row["a_mse"] is not None}


def test_batch_norms_that_were_not_folded_are_pointed_out(tmp_path: Path) -> None:
    net = zoo.random_net(4)
    reference, feeds = net.save(tmp_path), zoo.data(net, 4)
    found = inc_tb.diagnose(reference, zoo.static(reference, feeds), [feeds])
    assert sum("1 batch norm is quantized by itself; fold it" in note for note in found.notes) == 1
    simple = tmp_path / "simple.onnx"
    quant_pre_process(reference, simple, skip_symbolic_shape=True)
    assert not inc_tb.diagnose(reference, zoo.static(simple, feeds), [feeds]).notes


class TestFormats:
    @pytest.mark.parametrize("make", [zoo.cnn, zoo.depthwise, zoo.residual, zoo.attention, zoo.mlp, zoo.branches])
    @pytest.mark.parametrize("form", ["QDQ", "QOperator"])
    def test_static(self, make: Callable[[], Net], form: str, tmp_path: Path) -> None:
        net = make()
        reference, feeds = net.save(tmp_path), zoo.data(net)
        rows = compare(reference, zoo.static(reference, feeds, form=form), feeds)
        folded = {n.name for n in net.nodes if n.op_type in ("Relu", "Clip")}
        assert compared(rows) == {n.name for n in net.nodes} - folded
        for name in folded:
            assert "compared there" in rows[name]["reason"]

    def test_dynamic(self, tmp_path: Path) -> None:
        for make, kind in ((zoo.attention, "MatMulInteger"), (zoo.residual, "ConvInteger")):
            net = make()
            reference, feeds = net.save(tmp_path), zoo.data(net)
            quantized = zoo.dynamic(reference)
            assert kind in types_in(quantized)
            assert compared(compare(reference, quantized, feeds)) == {n.name for n in net.nodes}

    def test_dynamic_and_optimized(self, tmp_path: Path) -> None:
        """Biases, the scaling of the scores and the transpose are inside of other operations there."""
        net = zoo.attention()
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = zoo.optimized(zoo.dynamic(reference))
        assert {"MatMulIntegerToFloat", "DynamicQuantizeMatMul", "FusedMatMul"} <= types_in(quantized)
        rows = compare(reference, quantized, feeds)
        plain = compare(reference, zoo.dynamic(reference), feeds)
        inside = {"scale": "scores", **{f"{op}/bias": op for op in ("q", "k", "v", "proj", "up", "down")}}
        for name, where in inside.items():
            assert rows[name]["reason"] == f"part of {where} in the quantized model; compared there"
            np.testing.assert_allclose(rows[where]["a_mse"], plain[name]["a_mse"], rtol=1e-3)
        assert "no Transpose at this place" in rows["kt"]["reason"]
        assert compared(rows) == {n.name for n in net.nodes} - set(inside) - {"kt"}
        assert compare(reference, forget_names(onnx.load(quantized), tmp_path / "nameless.onnx"), feeds) == rows

    @pytest.mark.parametrize("level", ["ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
    @pytest.mark.parametrize("make", [zoo.cnn, zoo.residual, zoo.branches])
    def test_static_and_optimized(self, make: Callable[[], Net], level: str, tmp_path: Path) -> None:
        """Integer kernels, and with all optimizations the channels at the end."""
        net = make()
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = zoo.static(reference, feeds, act="QUInt8")
        rows = compare(reference, zoo.optimized(quantized, level), feeds)
        for name, row in compare(reference, quantized, feeds).items():
            if row["a_mse"] is not None:
                # Integer kernels round a few values the other way.
                np.testing.assert_allclose(rows[name]["a_sqnr_db"], row["a_sqnr_db"], atol=0.5, err_msg=name)

    def test_lstm(self, tmp_path: Path) -> None:
        net = Net()
        x = net.input("x", 5, "n", 8)
        weights = (net.weight("w", 1, 32, 8), net.weight("r", 1, 32, 8), net.weight("b", 1, 64))
        net.op("LSTM", "lstm", x, *weights, outputs=["y", "last", "cell"], hidden_size=8)
        net.output(net.linear("fc", net.op("Squeeze", "squeeze", "y", net.constant("axis", [1], np.int64)), 8, 4))
        # One sample: with more, ONNX Runtime chooses the ranges for each thread's share of the batch.
        reference, feeds = net.save(tmp_path), zoo.data(net, 1)
        quantized = zoo.dynamic(reference, op_types_to_quantize=["LSTM", "MatMul"])
        assert "DynamicQuantizeLSTM" in types_in(quantized)
        rows = compare(reference, quantized, feeds)
        assert compared(rows) == set(rows)
        assert rows["lstm"]["weight_dtype"] == "int8"
        assert rows["lstm"]["w_sqnr_db"] > HEALTHY_DB
        assert rows["lstm"]["act_scheme"] == "dynamic"

    @pytest.mark.parametrize("symmetric", [True, False])
    @pytest.mark.parametrize("form", ["QOperator", "QDQ"])
    def test_int4_weights(self, form: str, symmetric: bool, tmp_path: Path) -> None:
        net = Net(opset=21, ir=10)
        net.output(
            net.linear("fc2", net.op("Relu", "relu", net.linear("fc1", net.input("x", "n", 40), 40, 48)), 48, 20)
        )
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantizer = MatMulNBitsQuantizer(
            onnx.load(reference), bits=4, block_size=16, is_symmetric=symmetric, quant_format=QuantFormat[form]
        )
        quantizer.process()
        quantized = zoo.save(quantizer.model.model, tmp_path / "int4.onnx")
        assert ("MatMulNBits" in types_in(quantized)) == (form == "QOperator")
        rows = compare(reference, quantized, feeds, healthy=15)
        assert compared(rows) == set(rows)
        for name in ("fc1", "fc2"):
            assert rows[name]["weight_dtype"] in ("int4", "uint4")
            assert rows[name]["weight_granularity"] == "per block"
            # The weights' rounding is all that happens, so both must agree to about the spread of the data.
            assert abs(rows[name]["w_sqnr_db"] - rows[name]["added_sqnr_db"]) < 3

    @pytest.mark.parametrize("act", ["QInt16", "QUInt16"])
    @pytest.mark.parametrize("opset", [17, 21])
    def test_int16(self, act: str, opset: int, tmp_path: Path) -> None:
        net = zoo.residual()
        net.opset, net.ir = opset, 10
        reference, feeds = net.save(tmp_path), zoo.data(net)
        rows = compare(reference, zoo.static(reference, feeds, act=act), feeds)
        assert rows["stem"]["act_dtype"] == act[1:].lower()
        assert rows["join"]["added_sqnr_db"] > 80

    @pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "FLOAT8E5M2"])
    def test_float8(self, kind: str, tmp_path: Path) -> None:
        net = Net(opset=19, ir=9)
        net.output(net.linear("fc2", net.linear("fc1", net.input("x", "n", 12), 12, 16), 16, 4))
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = with_float8(net, getattr(TensorProto, kind), tmp_path / "float8.onnx")
        rows = compare(reference, quantized, feeds, healthy=20)
        assert compared(rows) == set(rows)
        assert rows["fc1"]["weight_dtype"] == rows["fc1/bias"]["act_dtype"] == kind.lower()
        assert rows["fc1"]["w_sqnr_db"] > 20
        assert rows["fc1/bias"]["a_rmse_lsb"] is None, "float8 has no fixed step"

    @pytest.mark.parametrize("form", ["QDQ", "QOperator"])
    def test_mixed_precision(self, form: str, tmp_path: Path) -> None:
        net = zoo.residual()
        reference, feeds = net.save(tmp_path), zoo.data(net)
        rows = compare(reference, zoo.static(reference, feeds, form=form, nodes_to_exclude=["a"]), feeds)
        assert rows["a"]["weight_dtype"] == ""
        assert rows["a"]["w_mse"] == 0
        assert rows["b"]["weight_dtype"] == "int8"
        assert rows["a/relu"]["a_mse"] is not None, "nothing is folded into an op that stays in fp32"

    def test_nothing_quantized_has_no_error(self, tmp_path: Path) -> None:
        net = zoo.attention()
        reference = net.save(tmp_path)
        found = compared_unchecked(reference, reference, [zoo.data(net)])
        assert len(found.notes) == 1
        assert {row["a_mse"] for row in found.ops.rows()} == {0.0}

    @pytest.mark.parametrize(
        "options",
        [{"DedicatedQDQPair": True}, {"AddQDQPairToWeight": True}, {"ActivationSymmetric": True}],
        ids=lambda options: next(iter(options)),
    )
    def test_other_ways_to_place_the_pairs(self, options: dict[str, Any], tmp_path: Path) -> None:
        net = zoo.residual()
        reference, feeds = net.save(tmp_path), zoo.data(net)
        rows = compare(reference, zoo.static(reference, feeds, extra_options=options), feeds)
        assert all(rows[name]["w_sqnr_db"] > HEALTHY_DB for name in ("stem", "a", "b"))

    def test_tensors_that_are_converted_between_types(self, tmp_path: Path) -> None:
        net = zoo.cnn(21)
        reference, feeds = net.save(tmp_path), zoo.data(net)
        wide = {"quant_type": QuantType.QUInt16, "recv_nodes": {"conv2"}}
        overrides = {"pool_out": [{"quant_type": QuantType.QUInt8, "convert": wide}]}
        quantized = zoo.static(reference, feeds, act="QUInt8", extra_options={"TensorQuantOverrides": overrides})
        rows = compare(reference, quantized, feeds)
        assert compared(rows) == {"conv1", "pool", "conv2", "gap", "flat", "fc"}

    def test_a_tensor_that_each_reader_quantizes_for_itself(self, tmp_path: Path) -> None:
        net = zoo.branches()
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = zoo.static(reference, feeds)
        before = compare(reference, quantized, feeds)
        model = onnx.load(quantized)
        coarse = next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "x_scale") * 2
        model.graph.initializer.append(numpy_helper.from_array(coarse, "coarse"))
        nodes = list(model.graph.node)
        at, reader = next((i, node) for i, node in enumerate(nodes) if node.name == "b")
        nodes[at:at] = [
            helper.make_node("QuantizeLinear", ["x", "coarse", "x_zero_point"], ["x_coarse"]),
            helper.make_node("DequantizeLinear", ["x_coarse", "coarse", "x_zero_point"], ["x_for_b"]),
        ]
        reader.input[0] = "x_for_b"
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        rows = compare(reference, zoo.save(model, tmp_path / "coarse.onnx"), feeds)
        assert compared(rows) == compared(before)
        assert rows["a"] == before["a"]
        assert rows["b"]["added_sqnr_db"] < before["b"]["added_sqnr_db"] - 1


def with_float8(net: Net, kind: int, path: Path) -> Path:
    """Weights, and one tensor between two ops, as float8."""
    model = net.model()
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.02), "act.scale"))
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    nodes = []
    for tensor in [t for t in model.graph.initializer if t.name.endswith(".w")]:
        values = numpy_helper.to_array(tensor)
        scale = np.float32(abs(values).max() / 200)
        stored = helper.make_tensor(
            f"{tensor.name}8", kind, values.shape, (values / scale).astype(dtype).tobytes(), True
        )
        parameters = [
            numpy_helper.from_array(scale, f"{tensor.name}.scale"),
            helper.make_tensor("zero", kind, [], b"\0", True),
        ]
        model.graph.initializer.extend([stored, parameters[0], *([] if nodes else parameters[1:])])
        nodes.append(helper.make_node("DequantizeLinear", [stored.name, f"{tensor.name}.scale", "zero"], [tensor.name]))
        model.graph.initializer.remove(tensor)
    for node in model.graph.node:
        nodes.append(node)
        if node.name == "fc1/bias":
            nodes.append(helper.make_node("QuantizeLinear", ["raw", "act.scale", "zero"], ["rounded"]))
            nodes.append(helper.make_node("DequantizeLinear", ["rounded", "act.scale", "zero"], [node.output[0]]))
            node.output[0] = "raw"
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return zoo.save(model, path)


class TestFusions:
    def test_conv_with_relu_or_clip(self, tmp_path: Path) -> None:
        """QDQ models lose the activation, because the output's range does its work."""
        for make, activation in ((zoo.cnn, "Relu"), (zoo.depthwise, "Clip")):
            net = make()
            reference, feeds = net.save(tmp_path), zoo.data(net)
            quantized = zoo.static(reference, feeds)
            assert activation not in types_in(quantized)
            compare(reference, quantized, feeds)

    def test_an_activation_that_stays_although_the_range_does_its_work(self, tmp_path: Path) -> None:
        """What the range of conv1 cuts off is what the Relu would, so conv1 has lost nothing."""
        net = zoo.cnn()
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = zoo.static(reference, feeds, extra_options={"QDQKeepRemovableActivations": True})
        assert "Relu" in types_in(quantized)
        rows = compare(reference, quantized, feeds)
        assert rows["relu1"]["reason"] == "part of conv1 in the quantized model; compared there"

    def test_an_activation_that_became_part_of_the_next(self, tmp_path: Path) -> None:
        """Relu and then a Clip from 0 to 6 is just the Clip; nothing of it is in the convolution."""
        net = Net()
        x = net.op("Relu", "relu", net.conv("conv", net.input("x", "n", 3, 6, 6), 3, 4))
        bounds = net.constant("zero", 0, np.float32), net.constant("six", 6, np.float32)
        net.output(net.op("Clip", "clip", x, *bounds))
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = zoo.optimized(zoo.dynamic(reference))
        assert "Relu" not in types_in(quantized)
        rows = compare(reference, quantized, feeds)
        assert compared(rows) == {"conv", "clip"}
        assert "no Relu at this place" in rows["relu"]["reason"]

    def test_gemm_split_into_matmul_and_add(self) -> None:
        feeds = {"input": np.fromfile(DATA / "digits.float32", np.float32).reshape(16, 1, 8, 8)}
        quantized = DATA / "hard_inc_int8.onnx"
        assert "Gemm" not in types_in(quantized)
        rows = compare(HARD, quantized, feeds)
        assert rows["/fc2/Gemm"]["weight_dtype"] == "int8"
        assert rows["/fc2/Gemm"]["w_sqnr_db"] > HEALTHY_DB
        assert rows["/fc2/Gemm"]["a_sqnr_db"] > 20
        assert {rows[name]["weight_dtype"] for name in ("/conv1/Conv", "/conv2/Conv")} == {""}

    @pytest.mark.parametrize("form", ["QDQ", "QOperator", "dynamic"])
    def test_matmul_and_add_fused_into_gemm(self, form: str, tmp_path: Path) -> None:
        net = Net()
        net.output(net.linear("fc2", net.op("Relu", "relu", net.linear("fc1", net.input("x", "n", 12), 12, 16)), 16, 4))
        reference, feeds = net.save(tmp_path), zoo.data(net)
        fused = tmp_path / "fused.onnx"
        quant_pre_process(reference, fused)
        assert "Gemm" in types_in(fused)
        if form == "dynamic":
            assert compared(compare(reference, zoo.dynamic(fused), feeds)) == {n.name for n in net.nodes}
            return
        rows = compare(reference, zoo.static(fused, feeds, form=form), feeds)
        assert compared(rows) == {"fc1", "fc2"}
        assert all("compared there" in rows[name]["reason"] for name in ("fc1/bias", "relu", "fc2/bias"))

    @pytest.mark.parametrize("nameless", [False, True])
    @pytest.mark.parametrize("kind", ["Mul", "Div"])
    def test_a_factor_folded_into_the_weights(self, kind: str, nameless: bool, tmp_path: Path) -> None:
        net = Net()
        x = net.conv("conv", net.input("x", "n", 3, 6, 6), 3, 4)
        factor = net.constant("factor", net.rng.uniform(0.2, 5, (1, 4, 1, 1)), np.float32)
        net.output(net.conv("head", net.op(kind, "scale", x, factor), 4, 4, kernel=1))
        reference, feeds = net.save(tmp_path), zoo.data(net)
        folded = without_factor(net, kind).save(tmp_path, "folded.onnx")
        quantized = zoo.static(folded, feeds, per_channel=True)
        if nameless:
            forget_names(onnx.load(quantized), quantized)
        rows = compare(reference, quantized, feeds)
        assert rows["scale"]["reason"] == "part of conv in the quantized model; compared there"
        assert rows["conv"]["w_sqnr_db"] > HEALTHY_DB

    @pytest.mark.parametrize("nameless", [False, True])
    def test_a_factor_that_moves_into_the_next_op_is_not_looked_for_in_the_one_before(
        self, nameless: bool, tmp_path: Path
    ) -> None:
        net = Net()
        x = net.input("x", "n", 6, 8)
        q = net.op("Mul", "scale", net.linear("q", x, 8, 8), net.constant("factor", 0.35, np.float32))
        k = net.op("Transpose", "kt", net.linear("k", x, 8, 8), perm=[0, 2, 1])
        net.output(net.op("Softmax", "softmax", net.op("MatMul", "scores", q, k), axis=-1))
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = zoo.optimized(zoo.dynamic(reference))
        assert "FusedMatMul" in types_in(quantized)
        if nameless:
            forget_names(onnx.load(quantized), quantized)
        rows = compare(reference, quantized, feeds)
        assert rows["scale"]["a_mse"] is None
        assert (rows["scores"]["a_mse"] is None) == nameless
        assert rows["q"]["a_mse"] is not None

    def test_an_operation_that_changes_nothing(self, tmp_path: Path) -> None:
        """Optimizers remove it; what follows is found all the same."""
        net = Net()
        x = net.conv("conv", net.input("x", "n", 3, 6, 6), 3, 4)
        gate = net.op("Sigmoid", "sigmoid", net.op("Mul", "idle", x, net.constant("one", [1], np.float32)))
        net.output(net.op("Mul", "swish", x, gate))
        reference, feeds = net.save(tmp_path), zoo.data(net)
        clean = tmp_path / "clean.onnx"
        quant_pre_process(reference, clean)
        assert len(onnx.load(clean).graph.node) == 3
        rows = compare(reference, zoo.static(clean, feeds), feeds)
        assert rows["idle"]["reason"] == "it changes nothing (Mul with 1) and is left out of the quantized model"
        assert compared(rows) == {"conv", "sigmoid", "swish"}


def without_factor(net: Net, kind: str) -> Net:
    values = {t.name: numpy_helper.to_array(t) for t in net.initializers}
    factor = values["factor"].reshape(-1) if kind == "Mul" else 1 / values["factor"].reshape(-1)
    folded = Net()
    folded.inputs, folded.outputs = net.inputs, net.outputs
    for name, value in values.items():
        more = factor.reshape(-1, 1, 1, 1) if name == "conv.w" else factor if name == "conv.b" else 1
        folded.constant(name, value * more, np.float32)
    folded.nodes = [node for node in net.nodes if node.name != "scale"]
    conv = onnx.NodeProto.FromString(folded.nodes[0].SerializeToString())
    conv.output[0] = "scale_out"
    folded.nodes[0] = conv
    return folded


class TestTellingOpsApart:
    @pytest.mark.parametrize("opset", [9, 13])
    def test_slices_of_one_tensor(self, opset: int, tmp_path: Path) -> None:
        """They differ in constants only: in inputs, or before opset 10 in attributes."""
        net = sliced(opset)
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = onnx.load(zoo.static(reference, feeds))
        slices = [node for node in quantized.graph.node if node.op_type == "Slice"]
        rest = [node for node in quantized.graph.node if node.op_type != "Slice"]
        first = next(i for i, node in enumerate(rest) if slices[0].output[0] in node.input)
        del quantized.graph.node[:]
        quantized.graph.node.extend([*rest[:first], *reversed(slices), *rest[first:]])
        rows = compare(reference, forget_names(quantized, tmp_path / "shuffled.onnx"), feeds)
        assert compared(rows) == {n.name for n in net.nodes}

    def test_a_slice_that_moved_elsewhere_is_not_taken_for_its_neighbor(self, tmp_path: Path) -> None:
        """As ONNX Runtime's transpose optimizer does: the middle one now comes before the transpose."""
        reference_net, moved = thirds(early=False), thirds(early=True)
        reference, feeds = reference_net.save(tmp_path), zoo.data(reference_net)
        rows = compare(reference, zoo.static(moved.save(tmp_path, "moved.onnx"), feeds), feeds)
        assert "no Slice at this place" in rows["s1"]["reason"]
        assert {"s0", "s2", "product", "sum"} <= compared(rows)

    def test_weights_tell_two_equal_ways_apart(self, tmp_path: Path) -> None:
        """Both sigmoids are the same, what reads them is not; in the quantized model they come in another order."""
        net, other = Net(), Net()
        for each in (net, other):
            x = each.conv("conv", each.input("x", "n", 3, 6, 6), 3, 4)
            heads = [each.conv(f"head{i}", each.op("Sigmoid", f"gate{i}", x), 4, 4) for i in range(2)]
            each.output(each.op("Sub", "difference", *heads))
        other.nodes[1:5] = [other.nodes[i] for i in (3, 4, 1, 2)]
        reference, feeds = net.save(tmp_path), zoo.data(net)
        for source in (net.save(tmp_path, "same.onnx"), other.save(tmp_path, "other.onnx")):
            quantized = onnx.load(zoo.static(source, feeds))
            rows = compare(reference, forget_names(quantized, tmp_path / "nameless.onnx"), feeds)
            assert compared(rows) == set(rows)

    def test_operations_with_equal_weights(self, tmp_path: Path) -> None:
        """Shared weights leave only the way through the graph, and the names."""
        net = Net()
        x = net.input("x", "n", 8)
        shared = net.weight("shared", 8, 8)
        x = net.op("Tanh", "tanh1", net.op("MatMul", "fc1", x, shared))
        x = net.op("Tanh", "tanh2", net.op("MatMul", "fc2", x, shared))
        net.output(net.op("Add", "sum", x, net.op("MatMul", "fc3", x, shared)))
        reference, feeds = net.save(tmp_path), zoo.data(net)
        assert compared(compare(reference, zoo.static(reference, feeds), feeds)) == {n.name for n in net.nodes}

    @pytest.mark.parametrize("order", [("square", "product"), ("product", "square")])
    def test_a_square_is_not_a_product(self, order: tuple[str, str], tmp_path: Path) -> None:
        net, other = Net(), Net()
        for each in (net, other):
            y = each.conv("conv1", each.input("x", "n", 3, 6, 6), 3, 4)
            x = each.conv("conv2", y, 4, 4)
            made = {name: each.op("Mul", name, x if name == "square" else y, x) for name in order}
            each.output(each.op("Sub", "difference", made["square"], made["product"]))
        reference, feeds = net.save(tmp_path), zoo.data(net)
        other.nodes[2:4] = reversed(other.nodes[2:4])
        quantized = onnx.load(zoo.static(other.save(tmp_path, "other.onnx"), feeds))
        rows = compare(reference, forget_names(quantized, tmp_path / "nameless.onnx"), feeds)
        assert compared(rows) == set(rows)

    def test_what_is_ambiguous_is_not_guessed(self, tmp_path: Path) -> None:
        """Two products share one factor; the other factors were lost on the way, and so were the names."""
        net, other = Net(), Net()
        for each in (net, other):
            x = each.conv("conv", each.input("x", "n", 4, 6, 6), 4, 4)
            parts = [each.op("Mul", f"m{i}", x, falling(each, i, x, each is other)) for i in range(2)]
            each.output(each.op("Sub", "difference", *parts))
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = onnx.load(zoo.static(other.save(tmp_path, "other.onnx"), feeds))
        rows = compare(reference, forget_names(quantized, tmp_path / "nameless.onnx"), feeds)
        assert all("no Mul at this place" in rows[name]["reason"] for name in ("m0", "m1"))
        assert "conv" in compared(rows)

    def test_what_the_quantized_model_computes_only_once(self, tmp_path: Path) -> None:
        net = Net()
        x = net.conv("conv", net.input("x", "n", 3, 6, 6), 3, 4)
        gates = [net.op("Sigmoid", f"gate{i}", x) for i in range(2)]
        heads = [net.conv(f"head{i}", gate, 4, 4) for i, gate in enumerate(gates)]
        net.output(net.op("Add", "sum", *heads))
        reference, feeds = net.save(tmp_path), zoo.data(net)
        once = tmp_path / "once.onnx"
        quant_pre_process(reference, once)
        assert [node.op_type for node in onnx.load(once).graph.node].count("Sigmoid") == 1
        rows = compare(reference, zoo.static(once, feeds), feeds)
        lost = {name for name in ("gate0", "gate1") if rows[name]["a_mse"] is None}
        assert lost == {"gate1"}
        assert rows["gate1"]["reason"] == "it computes the same as gate0; the quantized model does that once"
        assert compared(rows) == {"conv", "gate0", "head0", "head1", "sum"}

    @pytest.mark.parametrize("form", ["QDQ", "dynamic"])
    def test_an_activation_computed_twice(self, form: str, tmp_path: Path) -> None:
        """Once in the quantized model, and with QDQ as a part of the convolution."""
        net = Net()
        x = net.conv("conv", net.input("x", "n", 3, 6, 6), 3, 4)
        heads = [net.conv(f"head{i}", net.op("Relu", f"relu{i}", x), 4, 4) for i in range(2)]
        net.output(net.op("Add", "sum", *heads))
        reference, feeds = net.save(tmp_path), zoo.data(net)
        once = tmp_path / "once.onnx"
        quant_pre_process(reference, once)
        quantized = zoo.dynamic(once) if form == "dynamic" else zoo.static(once, feeds)
        for path in (quantized, forget_names(onnx.load(quantized), tmp_path / "nameless.onnx")):
            rows = compare(reference, path, feeds)
            assert "computes the same as relu0" in rows["relu1"]["reason"]
            assert compared(rows) == {"conv", "head0", "head1", "sum", *(["relu0"] if form == "dynamic" else [])}

    @pytest.mark.parametrize("form", ["QDQ", "QOperator"])
    @pytest.mark.parametrize("kind", ["Add", "Sub"])
    def test_a_constant_that_became_part_of_a_bias(self, kind: str, form: str, tmp_path: Path) -> None:
        net, folded = Net(), Net()
        for each in (net, folded):
            x = each.conv("conv", each.input("x", "n", 3, 6, 6), 3, 4)
            more = np.array([3, -2, 1, 0.5], np.float32)
            if each is net:
                x = each.op(kind, "more", x, each.constant("more.c", more.reshape(4, 1, 1)))
            else:
                bias = numpy_helper.to_array(each.initializers[-1])
                each.initializers[-1] = numpy_helper.from_array(bias + more * (1 if kind == "Add" else -1), "conv.b")
            each.output(each.op("Tanh", "tanh", x))
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = zoo.static(folded.save(tmp_path, "folded.onnx"), feeds, form=form)
        rows = compare(reference, forget_names(onnx.load(quantized), tmp_path / "nameless.onnx"), feeds)
        assert rows["more"]["reason"] == "part of conv in the quantized model; compared there"

    def test_an_activation_of_which_only_its_range_is_left(self, tmp_path: Path) -> None:
        """Another op reads the convolution too, so the Relu is not part of it: it became a change of range."""
        net = Net()
        x = net.conv("conv", net.input("x", "n", 3, 6, 6), 3, 4)
        relu = net.op("Relu", "relu", x)
        net.output(net.op("Add", "sum", net.conv("left", relu, 4, 4), net.conv("right", x, 4, 4)))
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = zoo.optimized(zoo.static(reference, feeds, act="QUInt8"), "ORT_ENABLE_ALL")
        assert "Relu" not in types_in(quantized)
        rows = compare(reference, quantized, feeds)
        assert compared(rows) == set(rows)

    @pytest.mark.parametrize("seed", range(8))
    def test_random_networks_without_names(self, seed: int, tmp_path: Path) -> None:
        """The way through the graph and the weights must lead to the same places as the names do."""
        net = zoo.random_net(seed)
        reference, feeds = net.save(tmp_path), zoo.data(net, 4)
        simple = tmp_path / "simple.onnx"
        quant_pre_process(reference, simple, skip_symbolic_shape=True)
        for path in (reference, simple):
            quantized = zoo.static(path, feeds, per_channel=bool(seed % 2))
            named = compare(reference, quantized, feeds, healthy=15)
            nameless = compare(reference, forget_names(onnx.load(quantized), tmp_path / "new.onnx"), feeds, healthy=15)
            both = compared(named) & compared(nameless)
            assert len(both) > 0.7 * len(compared(named))
            for name in both:
                np.testing.assert_allclose(nameless[name]["a_mse"], named[name]["a_mse"], rtol=1e-6, err_msg=name)

    @pytest.mark.parametrize("name", ["", "same"])
    def test_names_that_say_nothing(self, name: str, tmp_path: Path) -> None:
        net = zoo.attention()
        for node in net.nodes:
            node.name = ""
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = zoo.static(reference, feeds)
        for path in (reference, quantized):
            model = onnx.load(path)
            for node in model.graph.node:
                node.name = name
            zoo.save(model, path)
        rows = compare(reference, quantized, feeds, notes=not name)  # without names nothing can be kept in fp32
        assert compared(rows) == set(rows)
        assert len(rows) == len(net.nodes)

    def test_nodes_in_any_order(self, tmp_path: Path) -> None:
        """The format asks for an order, ONNX Runtime does not, and converters rely on that."""
        net = zoo.residual()
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = zoo.static(reference, feeds)
        wanted = compare(reference, quantized, feeds)
        model = onnx.load(quantized)
        nodes = list(model.graph.node)
        del model.graph.node[:]
        model.graph.node.extend(reversed(nodes))
        assert compare(reference, zoo.save(model, tmp_path / "reversed.onnx"), feeds) == wanted


def falling(net: Net, i: int, x: str, other_way: bool) -> str:
    """exp(-x) and sigmoid(-x), or what is the same."""
    kind = ("Exp", "Sigmoid")[i]
    if not other_way:
        return net.op(kind, f"{kind}_of", net.op("Neg", f"minus{i}", x))
    rising = net.op(kind, f"{kind}_of", x)
    if kind == "Exp":
        return net.op("Reciprocal", "inverse", rising)
    return net.op("Sub", "rest", net.constant("one", 1, np.float32), rising)


def sliced(opset: int) -> Net:
    net = Net(opset=opset, ir=8)
    x = net.linear("fc", net.input("x", "n", 12), 12, 12)
    parts = []
    for i in range(3):
        if opset < 10:
            parts.append(net.op("Slice", f"s{i}", x, starts=[4 * i], ends=[4 * i + 4], axes=[1]))
        else:
            bounds = {"start": [4 * i], "end": [4 * i + 4], "axis": [1]}
            parts.append(
                net.op("Slice", f"s{i}", x, *(net.constant(f"{k}{i}", v, np.int64) for k, v in bounds.items()))
            )
    net.output(net.op("Sub", "difference", net.op("Mul", "product", parts[0], parts[1]), parts[2]))
    return net


def thirds(early: bool) -> Net:
    """Queries, keys and values of one projection, which a transpose and three slices take apart."""
    net = Net()
    x = net.linear("fc", net.input("x", "n", 5, 12), 12, 12)
    x = net.op("Reshape", "split", x, net.constant("shape", [0, 0, 3, 4], np.int64))
    turned = net.op("Transpose", "turn", x, perm=[2, 0, 1, 3])
    parts = []
    for i in range(3):
        moved = early and i == 1
        axis = net.constant(f"axis{i}", [2 if moved else 0], np.int64)
        bounds = [net.constant(f"{k}{i}", [v], np.int64) for k, v in (("start", i), ("end", i + 1))]
        name = "early" if moved else f"s{i}"
        part = net.op("Slice", name, x if moved else turned, *bounds, axis)
        parts.append(net.op("Transpose", "turn_late", part, perm=[2, 0, 1, 3]) if moved else part)
    net.output(net.op("Add", "sum", net.op("Mul", "product", parts[0], parts[1]), parts[2]))
    return net


def forget_names(model: onnx.ModelProto, path: Path) -> Path:
    """Other names for all nodes and all tensors inside."""
    kept = {info.name for info in (*model.graph.input, *model.graph.output)}
    made = [out for node in model.graph.node for out in node.output if out not in kept]
    new = {name: f"t{i:04}" for i, name in enumerate(made)}
    for node in model.graph.node:
        node.name = ""
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]
    del model.graph.value_info[:]
    return zoo.save(model, path)


class TestShapesAndTypes:
    @pytest.mark.parametrize("form", ["QDQ", "QOperator", "dynamic"])
    def test_several_inputs_and_outputs_of_several_types(self, form: str, tmp_path: Path) -> None:
        net = zoo.tokens()
        reference, feeds = net.save(tmp_path), zoo.data(net, 4, length=5)
        quantized = zoo.dynamic(reference) if form == "dynamic" else zoo.static(reference, feeds, form=form)
        rows = compare(reference, quantized, feeds)
        assert compared(rows) == {n.name for n in net.nodes if n.name != "best"}
        assert rows["embedding"]["w_sqnr_db"] > HEALTHY_DB
        assert rows["embedding"]["weight_dtype"] in ("int8", "uint8")
        assert rows["fc1"]["w_sqnr_db"] > HEALTHY_DB

    def test_lengths_that_vary(self, tmp_path: Path) -> None:
        net = zoo.attention("length")
        reference = net.save(tmp_path)
        quantized = zoo.static(reference, zoo.data(net, 16, length=6))
        batches = [zoo.data(net, samples, seed=samples, length=length) for samples, length in ((2, 3), (4, 9), (3, 5))]
        rows = compare(reference, quantized, *batches, healthy=15)
        assert compared(rows) == set(rows)

    def test_a_length_that_only_the_quantized_model_fixes(self, tmp_path: Path) -> None:
        net = zoo.mlp()
        reference = net.save(tmp_path)
        feeds = zoo.data(net, 4)
        model = onnx.load(zoo.static(reference, feeds))
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
        quantized = zoo.save(model, tmp_path / "fixed.onnx")
        assert OnnxAdapter(reference, quantized).inputs()[0].shape == (4, 12)
        compare(reference, quantized, feeds)
        with pytest.raises(MismatchError, match="has shape 3x12, the model expects 4x12"):
            inc_tb.diagnose(reference, quantized, [zoo.data(net, 3)])

    def test_an_input_of_unknown_rank(self, tmp_path: Path) -> None:
        net = zoo.mlp()
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = zoo.static(reference, feeds)
        for path in (reference, quantized):
            model = onnx.load(path)
            model.graph.input[0].type.tensor_type.ClearField("shape")
            zoo.save(model, path)
        compare(reference, quantized, feeds)

    def test_opsets(self, tmp_path: Path) -> None:
        found = {}
        for opset in (11, 13, 17, 21, newest_opset()):
            net = zoo.cnn(opset)
            net.ir = helper.find_min_ir_version_for([helper.make_opsetid("", opset)])
            reference, feeds = net.save(tmp_path, f"{opset}.onnx"), zoo.data(net)
            for form in ("QDQ", "QOperator"):
                quantized = zoo.static(reference, feeds, form=form)
                used = {o.domain: o.version for o in onnx.load(quantized).opset_import}
                assert used[""] == opset
                found[opset, form] = compare(reference, quantized, feeds)
        assert all(rows == found[17, form] for (_, form), rows in found.items())

    def test_constants_that_old_opsets_compute(self, tmp_path: Path) -> None:
        """A weight behind nodes whose settings were attributes then."""
        net = Net(opset=11, ir=6)
        x = net.input("x", "n", 8)
        net.weight("flat", 8, 1, 8)
        w = net.op("Transpose", "turned", net.op("Squeeze", "squeezed", "flat", axes=[1]), perm=[1, 0])
        net.output(net.op("MatMul", "fc", x, w))
        reference, feeds = net.save(tmp_path), zoo.data(net)
        (row,) = compared_unchecked(reference, reference, [feeds]).ops.rows()
        assert (row["name"], row["params"], row["w_mse"]) == ("fc", 64, 0)

    def test_half_precision(self, tmp_path: Path) -> None:
        net = zoo.half_mlp()
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = zoo.static(reference, feeds)
        half = compare(reference, quantized, feeds)
        assert compared(half) == {"fc1", "fc2"}
        assert half["fc1"]["weight_dtype"] == "int8"

    def test_single_against_half_precision(self, tmp_path: Path) -> None:
        from onnxruntime.transformers.float16 import convert_float_to_float16

        net = zoo.attention()
        net.opset, net.ir = 21, 10
        reference, feeds = net.save(tmp_path), zoo.data(net)
        half = zoo.save(convert_float_to_float16(onnx.load(reference), keep_io_types=True), tmp_path / "half.onnx")
        rows = compare(onnx.load(reference), onnx.load(half), feeds, healthy=55, notes=1)
        assert compared(rows) == set(rows)
        # Fetched one by one: ONNX Runtime keeps more digits between half precision ops that nobody looks at.
        tensors = [node.output[0] for node in net.nodes[:-1]]
        mine, theirs = zoo.fetch(reference, tensors, feeds), zoo.fetch(half, tensors, feeds)
        for node, tensor in zip(net.nodes, tensors, strict=False):
            error = mine[tensor].astype(np.float64) - theirs[tensor]
            np.testing.assert_allclose(rows[node.name]["a_mse"], (error**2).mean(), rtol=1e-5, err_msg=node.name)


def newest_opset() -> int:
    """The newest that both onnx and ONNX Runtime know."""
    for opset in range(onnx.defs.onnx_opset_version(), 20, -1):
        net = zoo.mlp()
        net.opset, net.ir = opset, helper.find_min_ir_version_for([helper.make_opsetid("", opset)])
        try:
            ort.InferenceSession(net.model().SerializeToString(), providers=["CPUExecutionProvider"])
        except Exception:  # noqa: BLE001  onnxruntime raises many unrelated classes
            continue
        return opset
    raise AssertionError("ONNX Runtime runs none of the opsets above 20")


class TestSubgraphs:
    @pytest.mark.parametrize("form", ["QDQ", "dynamic"])
    @pytest.mark.parametrize("kind", ["If", "Loop"])
    def test_are_taken_as_one_op(self, kind: str, form: str, tmp_path: Path) -> None:
        net = Net()
        x = net.linear("fc1", net.input("x", "n", 8), 8, 8)
        (add_if if kind == "If" else add_loop)(net, x)
        net.output(net.linear("fc2", "nested_out", 8, 4))
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = zoo.dynamic(reference) if form == "dynamic" else zoo.static(reference, feeds)
        diagnosis = inc_tb.diagnose(reference, quantized, [feeds])
        assert diagnosis.notes == ["not looked into, because they hold graphs of their own: nested"]
        rows = compare(reference, quantized, feeds, notes=1)
        assert {"fc1", "nested", "fc2"} <= compared(rows)
        assert rows["nested"]["params"] == 0

    def test_that_the_quantized_model_does_not_have(self, tmp_path: Path) -> None:
        """A condition that was decided when the model was simplified."""
        net, simple = Net(), Net()
        for each in (net, simple):
            x = each.linear("fc1", each.input("x", "n", 8), 8, 8)
            if each is net:
                add_if(each, x)
            each.output(each.linear("fc2", "nested_out" if each is net else x, 8, 4))
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = zoo.static(simple.save(tmp_path, "simple.onnx"), feeds)
        diagnosis = inc_tb.diagnose(reference, quantized, [feeds])
        rows = {row["name"]: row for row in diagnosis.ops.rows()}
        assert rows["nested"]["reason"] == "If has its own graphs, which are not looked into"
        assert rows["fc1"]["a_mse"] is not None


def add_if(net: Net, x: str) -> None:
    most = net.op("ReduceMax", "most", x, keepdims=0)
    condition = net.op("Greater", "condition", most, net.constant("zero", 0, np.float32))
    branches = {}
    for name, factor in (("then_branch", 2), ("else_branch", 3)):
        constant = numpy_helper.from_array(np.float32(factor).reshape(()), f"{name}_factor")
        output = helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, None)
        node = helper.make_node("Mul", [x, constant.name], [output.name])
        branches[name] = helper.make_graph([node], name, [], [output], [constant])
    net.op("If", "nested", condition, **branches)


def add_loop(net: Net, x: str) -> None:
    """Its body reads a weight of the graph around it."""
    net.weight("inner.w", 8, 8)
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("MatMul", ["state", "inner.w"], ["next"]), helper.make_node("Identity", ["go"], ["go_on"])],
        "body",
        [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("state", TensorProto.FLOAT, None)],
        [value("go_on", TensorProto.BOOL, []), value("next", TensorProto.FLOAT, None)],
    )
    times, go = net.constant("times", 3, np.int64), net.constant("always", True, np.bool_)
    net.op("Loop", "nested", times, go, x, body=body)


class TestStorage:
    def test_external_data(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Weights beside the model are never copied into it: what ONNX Runtime gets stays small."""
        net = Net()
        net.output(
            net.linear("fc2", net.op("Relu", "relu", net.linear("fc1", net.input("x", "n", 64), 64, 256)), 256, 64)
        )
        inline, feeds = net.save(tmp_path), zoo.data(net)
        quantized = zoo.static(inline, feeds)
        wanted = compare(inline, quantized, feeds)
        outside = [outsourced(path, tmp_path / f"{path.stem}-outside") for path in (inline, quantized)]
        sizes = []
        original = ort.InferenceSession

        def watched(data: bytes, *args: Any, **more: Any) -> ort.InferenceSession:
            sizes.append(len(data))
            return original(data, *args, **more)

        monkeypatch.setattr(onnx_model.ort, "InferenceSession", watched)
        diagnosis = inc_tb.diagnose(*outside, [feeds])
        assert {row["name"]: row for row in diagnosis.ops.rows()} == wanted
        assert sizes
        assert max(sizes) < 64 * 256

    def test_external_data_that_is_missing(self, tmp_path: Path) -> None:
        net = zoo.mlp()
        inline, feeds = net.save(tmp_path), zoo.data(net)
        quantized = zoo.static(inline, feeds)
        outside = outsourced(inline, tmp_path / "outside")
        (outside.parent / "weights.bin").unlink()
        with pytest.raises(ModelError, match=r"external data of fc1\.w cannot be read.*Keep the data file beside"):
            inc_tb.diagnose(outside, quantized, [feeds])
        with pytest.raises(ModelError, match=r"weight fc1\.w is in an external file.*Give the model by its path"):
            inc_tb.diagnose(onnx.load(outside, load_external_data=False), quantized, [feeds])

    def test_models_given_as_objects(self, tmp_path: Path) -> None:
        net = zoo.cnn()
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = zoo.static(reference, feeds)
        objects = onnx.load(reference), onnx.load(quantized)
        before = [model.SerializeToString(deterministic=True) for model in objects]
        assert compare(*objects, feeds) == compare(reference, quantized, feeds)
        assert [model.SerializeToString(deterministic=True) for model in objects] == before

    def test_a_small_memory_budget_changes_no_number(self, tmp_path: Path) -> None:
        net = zoo.attention()
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = zoo.static(reference, feeds)
        wanted = compare(reference, quantized, feeds)
        one = feeds["x"][:1].nbytes * 3
        for budget, passes in ((1, range(2, len(wanted))), (one * 32, range(2, 20)), (1 << 30, 1)):
            adapter = OnnxAdapter(reference, quantized, memory_budget=budget)
            list(adapter.run(feeds))
            count = len(adapter._runner._parts)
            assert count in passes if isinstance(passes, range) else count == passes
            assert compare(reference, quantized, feeds, memory_budget=budget) == wanted

    def test_a_larger_batch_is_cut_into_more_passes(self, tmp_path: Path) -> None:
        net = zoo.attention("length")
        reference, feeds = net.save(tmp_path), zoo.data(net, 4, length=6)
        quantized = zoo.static(reference, feeds)
        adapter = OnnxAdapter(reference, quantized, memory_budget=1 << 17)
        adapter.samples_at_once = 4
        counts = []
        for length in (6, 24, 6):
            list(adapter.run(zoo.data(net, 4, length=length)))
            counts.append(len(adapter._runner._parts))
        assert counts[0] < counts[1] == counts[2]
        assert adapter.batch_size() >= 1


def outsourced(path: Path, folder: Path) -> Path:
    folder.mkdir()
    target = folder / path.name
    onnx.save(
        onnx.load(path), target, save_as_external_data=True, location="weights.bin", size_threshold=0,
        convert_attribute=False,
    )  # fmt: skip
    return target


class TestWhatDoesNotFit:
    @pytest.fixture
    def cnn(self, tmp_path: Path) -> tuple[Path, Path, Feeds]:
        net = zoo.cnn()
        reference, feeds = net.save(tmp_path), zoo.data(net, 4)
        return reference, zoo.static(reference, feeds), feeds

    @pytest.mark.parametrize("content", [b"", b"not a model at all", b"\x08\x07", bytes(range(256)) * 8])
    def test_a_file_that_is_no_model(self, content: bytes, cnn: tuple[Path, Path, Feeds], tmp_path: Path) -> None:
        path = tmp_path / "broken.onnx"
        path.write_bytes(content)
        for pair in ((path, cnn[1]), (cnn[0], path)):
            with pytest.raises(ModelError, match=r"broken\.onnx: not an ONNX model.*Expected an \.onnx file.*export"):
                inc_tb.diagnose(*pair, [cnn[2]])

    def test_a_model_that_is_cut_off(self, cnn: tuple[Path, Path, Feeds]) -> None:
        cnn[1].write_bytes(cnn[1].read_bytes()[:-200])
        with pytest.raises(ModelError, match="not an ONNX model"):
            inc_tb.diagnose(*cnn[:2], [cnn[2]])

    def test_a_model_that_onnx_runtime_does_not_open(self, cnn: tuple[Path, Path, Feeds]) -> None:
        model = onnx.load(cnn[1])
        next(n for n in model.graph.node if n.op_type == "MaxPool").domain = "com.example"
        zoo.save(model, cnn[1])
        with pytest.raises(ModelError, match="ONNX Runtime cannot open it"):
            inc_tb.diagnose(*cnn[:2], [cnn[2]])

    def test_wrong_input_names(self, cnn: tuple[Path, Path, Feeds]) -> None:
        with pytest.raises(MismatchError, match=r"has the arrays \['y'\].*inputs \['x'\].*Name the arrays"):
            inc_tb.diagnose(*cnn[:2], [{"y": cnn[2]["x"]}])

    @pytest.mark.parametrize("shape", [(4, 2, 8, 8), (3, 8, 8), (4, 8, 8, 3), ()])
    def test_wrong_shape(self, shape: tuple[int, ...], cnn: tuple[Path, Path, Feeds]) -> None:
        given = "x".join(map(str, shape)) or "a single number"
        with pytest.raises(MismatchError, match=f"x has shape {given}, the model expects anyx3x8x8.*Reshape"):
            inc_tb.diagnose(*cnn[:2], [{"x": np.zeros(shape, np.float32)}])

    def test_wrong_kind_of_number(self, cnn: tuple[Path, Path, Feeds], tmp_path: Path) -> None:
        with pytest.raises(MismatchError, match=r"x holds complex64, the model expects float32.*Convert"):
            inc_tb.diagnose(*cnn[:2], [{"x": cnn[2]["x"].astype(np.complex64)}])
        net = zoo.tokens()
        reference, feeds = net.save(tmp_path), zoo.data(net, 2, length=5)
        with pytest.raises(MismatchError, match=r"ids holds float64, the model expects int64.*Convert"):
            inc_tb.diagnose(reference, zoo.dynamic(reference), [{**feeds, "ids": feeds["ids"] / 2}])

    def test_values_that_the_model_cannot_take(self, tmp_path: Path) -> None:
        net = zoo.tokens()
        reference, feeds = net.save(tmp_path), zoo.data(net, 2, length=5)
        with pytest.raises(MismatchError, match=r"cannot run this batch .*Check that the data"):
            inc_tb.diagnose(reference, zoo.dynamic(reference), [{**feeds, "ids": feeds["ids"] + 1000}])

    def test_an_input_that_is_no_tensor(self, cnn: tuple[Path, Path, Feeds]) -> None:
        model = onnx.load(cnn[0])
        tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
        model.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(tensor))
        zoo.save(model, cnn[0])
        with pytest.raises(ModelError, match=r"input x is not a tensor.*Export the model"):
            inc_tb.diagnose(*cnn[:2], [cnn[2]])

    def test_other_weights(self, cnn: tuple[Path, Path, Feeds], tmp_path: Path) -> None:
        net = zoo.cnn()
        rng = np.random.default_rng(99)
        net.initializers = [
            numpy_helper.from_array(rng.normal(size=t.dims).astype(np.float32), t.name) for t in net.initializers
        ]
        self.assert_strangers(net.save(tmp_path, "other.onnx"), *cnn[1:])

    @pytest.mark.parametrize("make", [zoo.residual, zoo.attention, zoo.mlp, zoo.depthwise])
    def test_other_networks(self, make: Callable[[], Net], cnn: tuple[Path, Path, Feeds], tmp_path: Path) -> None:
        self.assert_strangers(make().save(tmp_path, "other.onnx"), *cnn[1:])

    def test_other_inputs(self, cnn: tuple[Path, Path, Feeds], tmp_path: Path) -> None:
        with pytest.raises(MismatchError, match=r"has the inputs \['x'\].*has \['ids', 'mask'\].*belong together"):
            inc_tb.diagnose(zoo.tokens().save(tmp_path, "other.onnx"), cnn[1], [cnn[2]])

    def assert_strangers(self, other: Path, quantized: Path, feeds: Feeds) -> None:
        with pytest.raises(MismatchError, match=r"is not a quantized version of .*other\.onnx.*belong together"):
            inc_tb.diagnose(other, quantized, [feeds])


class TestReasons:
    def test_an_output_of_another_shape(self, tmp_path: Path) -> None:
        """A result that kept its name but not its shape is found out when the models run."""
        net = zoo.mlp()
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = onnx.load(zoo.static(reference, feeds))
        tanh = next(node for node in quantized.graph.node if node.name == "tanh")
        tanh.op_type = "Softsign"
        tanh.output[0] = "flat"
        quantized.graph.initializer.append(numpy_helper.from_array(np.array([1, -1]), "one_row"))
        quantized.graph.initializer.append(numpy_helper.from_array(np.array([-1, 24]), "rows"))
        at = list(quantized.graph.node).index(tanh) + 1
        nodes = list(quantized.graph.node)
        nodes.insert(at, helper.make_node("Reshape", ["flat", "one_row"], ["tanh_out"]))
        fc3 = next(node for node in nodes if node.name == "fc3")
        nodes.insert(nodes.index(fc3), helper.make_node("Reshape", [fc3.input[0], "rows"], ["wide"]))
        fc3.input[0] = "wide"
        del quantized.graph.node[:]
        quantized.graph.node.extend(nodes)
        diagnosis = inc_tb.diagnose(reference, zoo.save(quantized, tmp_path / "flat.onnx"), [feeds, feeds])
        rows = {row["name"]: row for row in diagnosis.ops.rows()}
        assert rows["tanh"]["a_mse"] is None
        assert rows["tanh"]["reason"] == "its output is (16, 24) in the reference and (1, 384) in the quantized model"
        assert {"fc1", "fc2", "fc3"} <= compared(rows)

    def test_a_layer_that_was_replaced(self, tmp_path: Path) -> None:
        """The rest is the same network, so the table says which layer is not."""
        net, other = Net(), Net()
        for each in (net, other):
            x = each.op("Relu", "relu", each.conv("conv1", each.input("x", "n", 3, 6, 6), 3, 4))
            each.output(each.op("Tanh", "tanh", each.conv("conv2", x, 4, 4, kernel=3 if each is net else 1)))
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = forget_names(onnx.load(zoo.static(other.save(tmp_path, "other.onnx"), feeds)), tmp_path / "q.onnx")
        diagnosis = inc_tb.diagnose(reference, quantized, [feeds])
        rows = {row["name"]: row for row in diagnosis.ops.rows()}
        assert compared(rows) == {"conv1", "tanh"}
        assert "no Conv at this place" in rows["conv2"]["reason"]

    def test_pieces_that_do_not_run_alone_leave_the_rest(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        net = zoo.mlp()
        reference, feeds = net.save(tmp_path), zoo.data(net)
        quantized = zoo.static(reference, feeds)
        wanted = compare(reference, quantized, feeds)
        original = onnx_model.Model.session

        def refuse(self: Any, proto: onnx.ModelProto, threads: int = 0, **more: Any) -> Any:
            if proto.graph.name == "isolated":
                raise ModelError("no such piece")
            return original(self, proto, threads, **more)

        monkeypatch.setattr(onnx_model.Model, "session", refuse)
        rows = compare(reference, quantized, feeds, notes=1)
        assert {name: row["a_mse"] for name, row in rows.items()} == {n: row["a_mse"] for n, row in wanted.items()}
        assert all(row["added_sqnr_db"] is None for row in rows.values())

    def test_fused_beyond_recognition(self, tmp_path: Path) -> None:
        """GELU written out in five ops, one in the quantized model: compared at the last, by its name."""
        net, fused = Net(opset=20), Net(opset=20)
        for each in (net, fused):
            x = each.linear("up", each.input("x", "n", 8), 8, 16)
            if each is net:
                erf = each.op("Erf", "erf", each.op("Div", "div", x, each.constant("root", np.sqrt(2), np.float32)))
                more = each.op("Add", "plus", erf, each.constant("one", 1, np.float32))
                x = each.op("Mul", "half", each.op("Mul", "gate", x, more), each.constant("h", 0.5, np.float32))
            else:
                x = each.op("Gelu", "gelu", x, outputs=["half_out"])
            each.output(each.linear("down", x, 16, 8))
        reference, feeds = net.save(tmp_path), zoo.data(net)
        rows = compare(reference, zoo.static(fused.save(tmp_path, "fused.onnx"), feeds), feeds)
        assert compared(rows) == {"up", "up/bias", "half", "down", "down/bias"}
        assert all(rows[name]["reason"] for name in ("div", "erf", "plus", "gate"))

    def test_diagnosis_lists_every_float_op_once(self, tmp_path: Path) -> None:
        net = zoo.tokens()
        reference, feeds = net.save(tmp_path), zoo.data(net, 2, length=4)
        diagnosis: Diagnosis = inc_tb.diagnose(reference, zoo.dynamic(reference), [feeds])
        assert list(diagnosis.ops["name"]) == [n.name for n in net.nodes if n.name != "best"]
