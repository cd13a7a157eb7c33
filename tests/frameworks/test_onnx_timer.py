"""ONNX Runtime's profiler: which ops of the file its kernels compute, held to its own optimized graph."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import inc_tb
from inc_tb.errors import IncTbError
from inc_tb.frameworks.onnx.graph import Graph
from inc_tb.frameworks.onnx.model import Model, all_inputs
from inc_tb.frameworks.onnx.timer import OnnxTimer
from inc_tb.frameworks.ops import Array
from inc_tb.frameworks.protocols import Execution, Kernel
from tests.digits import DATA, digits
from tests.frameworks import onnx_zoo as zoo

CONVERSIONS = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
NETS: dict[str, Callable[[], zoo.Net]] = {
    "cnn": zoo.cnn, "depthwise": zoo.depthwise, "residual": zoo.residual, "attention": zoo.attention, "mlp": zoo.mlp,
    "branches": zoo.branches, "tokens": zoo.tokens, "batch norm": zoo.with_batch_norm,
    **{f"random {i}": partial(zoo.random_net, i) for i in range(3)},
}  # fmt: skip
WAYS: dict[str, Callable[[Path, Mapping[str, Array]], Path]] = {
    "fp32": lambda path, feeds: path,
    "QDQ int8": zoo.static,
    "QDQ uint8 per channel": lambda path, feeds: zoo.static(path, feeds, act="QUInt8", per_channel=True),
    "QOperator": lambda path, feeds: zoo.static(path, feeds, form="QOperator", act="QUInt8", weight="QUInt8"),
    "dynamic": lambda path, feeds: zoo.dynamic(path),
}


def _executed(model: Path | onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Execution]:
    """In one run."""
    timer = OnnxTimer(model, feeds, 1)
    prepared = timer.prepare(feeds)
    timer.run(prepared)
    timer.run_profiled(prepared)
    (found,) = timer.close()
    return found.executions


def _kernels(model: Path | onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Kernel]:
    return {execution.kernel.name: execution.kernel for execution in _executed(model, feeds)}


def _check_all_are_there_once(model: Path | onnx.ModelProto, kernels: Mapping[str, Kernel]) -> None:
    computed = [op for kernel in kernels.values() if not kernel.is_conversion for op in kernel.ops]
    assert sorted(computed) == sorted(step.name for step in Graph(Model(model)).steps)
    assert all(kernel.ops for kernel in kernels.values())


def _between(path: Path) -> dict[str, set[str]]:
    """Kernel -> the ops between the tensors that it reads and those that it writes.

    Of those kernels of the optimized graph all of whose tensors still have the names of the file.
    """
    file, optimized = onnx.load(path).graph, onnx.load(zoo.optimized(path, "ORT_ENABLE_ALL")).graph
    writer = {out: node for node in file.node for out in node.output if out}
    given = {*writer, *(i.name for i in file.input)}
    stored = {tensor.name for graph in (file, optimized) for tensor in graph.initializer}
    graph = Graph(Model(path))
    step_at = {out: step.name for step in graph.steps for out in step.node.output if out}
    found: dict[str, set[str]] = {}
    for node in optimized.node:
        reads, writes = {i for i in all_inputs(node) if i not in stored}, [out for out in node.output if out]
        if not reads <= given or not all(out in writer for out in writes):
            continue
        inside: set[str] = set()
        while writes:
            tensor = writes.pop()
            if tensor not in reads | inside | graph.model.constants:
                inside.add(tensor)
                writes += all_inputs(writer[tensor]) if tensor in writer else []
        if not inside <= writer.keys():  # it reads something else instead, which has the same value
            continue
        ops = {step_at[t] for t in inside if t in step_at and writer[t].op_type not in CONVERSIONS}
        if ops:
            found[node.name] = ops
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("net", NETS)
def test_every_op_is_in_the_kernel_that_computes_it(tmp_path: Path, net: str, way: str) -> None:
    made = NETS[net]()
    feeds = zoo.data(made, 2, length=6)
    path = WAYS[way](made.save(tmp_path), feeds)
    kernels = _kernels(path, feeds)
    _check_all_are_there_once(path, kernels)
    for name, ops in _between(path).items():
        assert set(kernels[name].ops) == ops
        assert not kernels[name].is_conversion


@pytest.mark.parametrize(
    "options",
    [
        {}, {"per_channel": True}, {"activation_type": "QUInt8"}, {"quant_format": "QOperator"},
        {"nodes_to_exclude": ["/conv2/Conv", "/fc1/MatMul"]},
    ],
    ids=str,
)  # fmt: skip
def test_a_network_of_the_examples(tmp_path: Path, options: dict[str, object]) -> None:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    given = dict(options)
    if "activation_type" in given:
        given["activation_type"] = QuantType.QUInt8
    if "quant_format" in given:
        given.update(quant_format=QuantFormat.QOperator, activation_type=QuantType.QUInt8, weight_type=QuantType.QUInt8)
    feeds, path = {"input": digits(4)}, tmp_path / "int8.onnx"
    quantize_static(DATA / "hard.onnx", path, zoo.Reader(feeds), **given)
    kernels = _kernels(path, feeds)
    _check_all_are_there_once(path, kernels)
    kept = options.get("nodes_to_exclude", [])
    assert isinstance(kept, list)
    for op in kept:
        (kernel,) = [k for k in kernels.values() if op in k.ops and not k.is_conversion]
        assert kernel.type in ("Conv", "FusedConv", "MatMul", "Gemm", "FusedGemm", "FusedMatMul")


def test_fused_ops_are_named_by_the_one_with_the_weights() -> None:
    kernels = _kernels(DATA / "hard.onnx", {"input": digits(4)}).values()
    fused = {kernel.ops[0]: set(kernel.ops[1:]) for kernel in kernels if len(kernel.ops) > 1}
    assert fused["/conv1/Conv"] == {"/Relu"}
    assert fused["/pw/Conv"] == {"/Add", "/Relu_3"}
    assert fused["/fc1/MatMul"] == {"/fc1/Add", "/Relu_5"}


def test_conversions_are_on_account_of_the_right_op(tmp_path: Path) -> None:
    """Quantized for who reads it, dequantized because of who wrote it, whatever layouts lie between."""
    net = zoo.cnn()
    feeds = zoo.data(net, 2)
    kernels = _kernels(zoo.static(net.save(tmp_path), feeds, act="QUInt8"), feeds)
    found = {name: kernel.ops for name, kernel in kernels.items() if kernel.is_conversion}
    assert found["x_QuantizeLinear"] == ("conv1",)
    assert found["fc_out_DequantizeLinear"] == ("fc",)
    assert all(len(ops) == 1 for ops in found.values())


def test_dynamic_scales_belong_to_the_op_that_they_are_for(tmp_path: Path) -> None:
    net = zoo.mlp()
    path = zoo.dynamic(net.save(tmp_path))
    rows = inc_tb.profile(net.model(), [zoo.data(net)], quantized=path, runs=1, warmup=0).rows
    assert {row.op for row in rows if row.op} <= {node.name for node in net.nodes}


def test_names_of_all_sorts(tmp_path: Path) -> None:
    """None, the same twice, with slashes, colons, quotes, other alphabets and what ONNX Runtime uses itself."""
    net = zoo.Net(3)
    x = net.input("x", "n", 8)
    names = ["", "", "same", "same", "a/b:0", 'quo"te\\d', "Größe 数", "x_token_3", "Transpose", "t_nchwc"]
    for i, name in enumerate(names):
        weight = net.weight(f"w{i}", 8, 8)
        net.nodes.append(helper.make_node("MatMul", [x, weight], [f"t{i}"], name=name))
        x = f"t{i}"
    net.output(x)
    path = net.save(tmp_path)
    executions = _executed(path, zoo.data(net, 2))
    ops = [op for e in executions for op in e.kernel.ops]
    assert len(executions) == len(names)
    assert len(ops) == len(set(ops)) == len(names)
    assert sorted(ops) == sorted(step.name for step in Graph(Model(path)).steps)


def _loops() -> onnx.ModelProto:
    """A Loop of three passes, and an If, each with two nodes inside."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"], "stay"),
            helper.make_node("MatMul", ["v", "w"], ["m"], "inner"),
            helper.make_node("Tanh", ["m"], ["u"], "bend"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("u", TensorProto.FLOAT, None),
        ],
    )
    branches = [
        helper.make_graph(
            [
                helper.make_node("MatMul", ["l", "w"], [f"p{i}"], f"branch{i}"),
                helper.make_node("Tanh", [f"p{i}"], [f"q{i}"]),
            ],
            f"branch{i}", [], [helper.make_tensor_value_info(f"q{i}", TensorProto.FLOAT, None)],
        )
        for i in range(2)
    ]  # fmt: skip
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "before"),
        helper.make_node("Loop", ["count", "", "r"], ["l"], "loop", body=body),
        helper.make_node("ReduceSum", ["l"], ["s"], "sum", keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["c"], "test"),
        helper.make_node("If", ["c"], ["y"], "choice", then_branch=branches[0], else_branch=branches[1]),
    ]
    weight = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    stored = {"w": weight, "count": np.array(3), "zero": np.array(0, np.float32)}
    graph = helper.make_graph(
        nodes, "loops", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_what_runs_inside_of_loops_and_branches_is_not_counted_twice() -> None:
    feeds = {"x": np.ones((256, 64), np.float32)}
    executions = _executed(_loops(), feeds)
    assert [e.kernel.name for e in executions].count("loop") == 1
    assert {op for e in executions for op in e.kernel.ops} <= {"before", "loop", "sum", "test", "choice"}
    ordered = sorted(executions, key=lambda e: e.start_us)
    for first, second in pairwise(ordered):
        assert first.start_us + first.duration_us <= second.start_us + 1  # a tick of the clock


def test_weights_beside_the_file(tmp_path: Path) -> None:
    net = zoo.mlp()
    path = tmp_path / "external.onnx"
    onnx.save(net.model(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    _check_all_are_there_once(path, _kernels(path, zoo.data(net)))


@pytest.mark.parametrize("way", ["fp32", "QDQ int8"])
def test_half_precision(tmp_path: Path, way: str) -> None:
    """Casts that ONNX Runtime puts in are conversions."""
    net = zoo.half_mlp()
    feeds = zoo.data(net)
    path = WAYS[way](net.save(tmp_path), feeds)
    kernels = _kernels(path, feeds)
    _check_all_are_there_once(path, kernels)
    assert all(k.is_conversion for k in kernels.values() if k.type == "Cast")


def _transformer() -> zoo.Net:
    """As exporters write it: LayerNorm and Gelu in small pieces, heads by Reshape and Transpose."""
    net = zoo.Net(5, 17)
    one, half, root = (net.constant(n, v, np.float32) for n, v in (("one", 1), ("half", 0.5), ("root", np.sqrt(2))))
    two, eps = net.constant("two", 2, np.float32), net.constant("eps", 1e-5, np.float32)
    heads, flat = net.constant("heads", [0, 0, 4, 8], np.int64), net.constant("flat", [0, 0, 32], np.int64)
    x = net.input("x", "n", 6, 32)

    def norm(at: str, v: str) -> str:
        middle = net.op("ReduceMean", f"{at}/mean", v, axes=[-1])
        apart = net.op("Sub", f"{at}/sub", v, middle)
        var = net.op("ReduceMean", f"{at}/var", net.op("Pow", f"{at}/pow", apart, two), axes=[-1])
        std = net.op("Sqrt", f"{at}/sqrt", net.op("Add", f"{at}/eps", var, eps))
        scaled = net.op("Mul", f"{at}/mul", net.op("Div", f"{at}/div", apart, std), net.weight(f"{at}.s", 32))
        return net.op("Add", f"{at}/add", scaled, net.weight(f"{at}.b", 32))

    def split(at: str, v: str, perm: list[int]) -> str:
        return net.op("Transpose", f"{at}/turn", net.op("Reshape", f"{at}/split", v, heads), perm=perm)

    q = split("q", net.linear("q", x, 32, 32), [0, 2, 1, 3])
    k = split("k", net.linear("k", x, 32, 32), [0, 2, 3, 1])
    v = split("v", net.linear("v", x, 32, 32), [0, 2, 1, 3])
    weights = net.op("Softmax", "softmax", net.op("Div", "scale", net.op("MatMul", "scores", q, k), root), axis=-1)
    context = net.op("Transpose", "turn back", net.op("MatMul", "context", weights, v), perm=[0, 2, 1, 3])
    attended = net.linear("proj", net.op("Reshape", "join", context, flat), 32, 32)
    x = norm("ln1", net.op("Add", "skip1", attended, x))
    up = net.linear("up", x, 32, 64)
    erf = net.op("Add", "gelu/add", net.op("Erf", "gelu/erf", net.op("Div", "gelu/div", up, root)), one)
    gelu = net.op("Mul", "gelu/half", net.op("Mul", "gelu/mul", up, erf), half)
    net.output(norm("ln2", net.op("Add", "skip2", net.linear("down", gelu, 64, 32), x)))
    return net


@pytest.mark.parametrize("way", ["fp32", "dynamic", "QOperator"])
def test_a_transformer_in_small_pieces(tmp_path: Path, way: str) -> None:
    net = _transformer()
    feeds = zoo.data(net, 2)
    path = WAYS[way](net.save(tmp_path), feeds)
    kernels = _kernels(path, feeds)
    _check_all_are_there_once(path, kernels)
    for name, ops in _between(path).items():
        assert set(kernels[name].ops) == ops
    if way == "fp32":
        (gelu,) = [set(k.ops) for k in kernels.values() if "Gelu" in k.type]
        assert gelu == {"up/bias", "gelu/div", "gelu/erf", "gelu/add", "gelu/mul", "gelu/half"}
        norms = [set(k.ops) for k in kernels.values() if "LayerNorm" in k.type]
        parts = ("mean", "sub", "pow", "var", "eps", "sqrt", "div", "mul", "add")
        for at in ("ln1", "ln2"):
            (found,) = [ops for ops in norms if f"{at}/add" in ops]
            assert {f"{at}/{part}" for part in parts} <= found


def test_a_quantized_transformer_has_the_rows_of_the_reference(tmp_path: Path) -> None:
    net = _transformer()
    path = net.save(tmp_path)
    rows = inc_tb.profile(path, [zoo.data(net, 2)], quantized=zoo.dynamic(path), runs=2, warmup=0).rows
    named = [op for row in rows if row.op for op in (row.op, *row.ops)]
    assert sorted(named) == sorted(node.name for node in net.nodes)
    for op in ("q", "proj", "up", "down"):
        (row,) = [row for row in rows if op in (row.op, *row.ops)]
        assert row.fp32_us is not None
        assert row.int8_us is not None


WRONG: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "shape": (lambda d: [{"input": np.ones((1, 1, 7, 8), np.float32)}], ["input"]),
    "no input": (lambda d: [{"other": digits(1)}], ["input", "other"]),
    "kind": (lambda d: [{"input": digits(1) > 0}], ["bool", "float32"]),
    "no batches": (lambda d: [], ["no samples"]),
    "empty batch": (lambda d: [{"input": digits(0)}], ["no samples"]),
    "no file": (lambda d: d / "none.npz", ["none.npz"]),
    "no data": (lambda d: 5, ["int", "expected batches"]),
}


@pytest.mark.parametrize(("made", "says"), WRONG.values(), ids=WRONG)
def test_wrong_data_is_one_line(tmp_path: Path, made: Callable[[Path], Any], says: list[str]) -> None:
    with pytest.raises(IncTbError) as raised:
        inc_tb.profile(DATA / "hard.onnx", made(tmp_path), runs=1)
    assert "\n" not in str(raised.value)
    for part in says:
        assert part in str(raised.value)


@pytest.mark.parametrize("given", [{"runs": 0}, {"runs": -1}, {"threads": 0}, {"warmup": -1}], ids=str)
def test_wrong_counts_are_one_line(given: dict[str, Any]) -> None:
    with pytest.raises(inc_tb.errors.UsageError) as raised:
        inc_tb.profile(DATA / "hard.onnx", [{"input": digits(1)}], **given)
    (name,) = given
    assert f"{name}={given[name]}" in str(raised.value)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "text.onnx"
    path.write_text("this is no model")
    with pytest.raises(inc_tb.errors.ModelError) as raised:
        inc_tb.profile(path, [{"input": digits(1)}])
    assert "not an ONNX model" in str(raised.value)


def test_a_run_that_fails_leaves_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is the first or, with other shapes inside, a later batch."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    net = zoo.Net()
    net.output(net.op("Add", "add", net.input("x", "n", "m"), net.constant("c", np.ones((1, 3)), np.float32)))
    good, bad = np.ones((2, 3), np.float32), np.ones((2, 4), np.float32)
    with pytest.raises(inc_tb.errors.MismatchError, match="cannot run this batch"):
        inc_tb.profile(net.model(), [{"x": good}, {"x": bad}], runs=4)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_in_a_profiled_run_stays_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace then holds a run more than was counted."""

    def interrupted(self: OnnxTimer, prepared: Any) -> float:
        self._profiled.run(None, prepared)
        raise KeyboardInterrupt

    monkeypatch.setattr(OnnxTimer, "run_profiled", interrupted)
    with pytest.raises(KeyboardInterrupt):
        inc_tb.profile(DATA / "hard.onnx", {"input": digits(1)}, runs=2)
