"""Times per op of TensorFlow graphs and TFLite files: which op each kernel is."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np

import inc_tb
from inc_tb.frameworks.models import name_twins, open_timer
from inc_tb.frameworks.protocols import Recorded, Timer
from inc_tb.frameworks.tensorflow.library import tf
from tests.frameworks import tensorflow_zoo as zoo

BATCH = {"input": zoo.digits(64)}
FUSED = [
    ["v0/cg/conv0/Conv2D", "v0/cg/conv0/BiasAdd", "v0/cg/conv0/Relu"],
    ["v0/cg/conv1/Conv2D", "v0/cg/conv1/pad", "v0/cg/conv1/BiasAdd", "v0/cg/conv1/Relu"],
    ["v0/dw/depthwise", "v0/dw/BiasAdd", "v0/dw/Relu"],
    ["v0/pw/Conv2D", "v0/pw/BiasAdd", "v0/add", "v0/add_relu"],
    ["v0/cg/conv5/Conv2D", "v0/cg/conv5/BiasAdd", "v0/cg/conv5/Relu"],
    ["v0/avgpool"],
    ["v0/flat"],
    ["v0/fc1/MatMul", "v0/fc1/BiasAdd", "v0/fc1/Relu"],
    ["v0/fc2/MatMul", "v0/fc2/BiasAdd"],
]


@cache
def hard_lite(kind: str = "int8", fixed: int | None = None) -> bytes:
    return zoo.lite(zoo.hard(), kind, zoo.digits(32), fixed=fixed)


def timed(model: Any, batch: Any, runs: int = 2, threads: int | None = None) -> tuple[Timer, list[Recorded]]:
    timer = open_timer(model, batch, threads)
    prepared = timer.prepare(batch)
    for _ in range(runs):
        assert timer.run(prepared) > 0
        assert timer.run_profiled(prepared) > 0
    found = timer.close()
    assert len(found) == runs
    return timer, found


def wide_net() -> Any:
    rng = np.random.default_rng(0)
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 40, 40, 32], name="input")
        for i in range(4):
            weights = tf.constant(rng.normal(size=(3, 3, 32, 32)).astype(np.float32) / 17)
            x = tf.nn.relu(tf.nn.conv2d(x, weights, 1, "SAME", name=f"conv{i}"), name=f"relu{i}")
        tf.identity(x, name="logits")
    return graph


def test_kernels_are_the_ops_of_the_file():
    timer, found = timed(zoo.hard(), BATCH)
    executions = found[-1].executions
    assert [list(e.kernel.ops) for e in executions] == FUSED
    assert [e.kernel.type for e in executions][:3] == ["Conv2D", "Conv2D", "DepthwiseConv2dNative"]
    ops = Counter(op for e in executions for op in e.kernel.ops)
    assert set(ops.values()) == {1}
    assert not timer.is_quantized
    assert all(e.duration_us > 0 for e in executions)
    assert any("Conv2D" in str(s.details.get("type", "")) for s in found[-1].slices)


def test_conversions_of_a_graph_go_to_the_op_that_needs_them():
    timer, found = timed(str(zoo.DATA / "inc26_hard_int8.pb"), BATCH)
    conversions = [(e.kernel.type, e.kernel.ops) for e in found[-1].executions if e.kernel.is_conversion]
    assert timer.is_quantized
    assert conversions == [
        ("QuantizeV2", ("v0/cg/conv0/Conv2D_eightbit_requantize",)),
        ("Dequantize", ("v0/cg/conv0/Conv2D_eightbit_requantize",)),
        ("QuantizeV2", ("v0/cg/conv1/Conv2D_eightbit_requantize",)),
        ("Dequantize", ("v0/avgpool_eightbit_quantized",)),
        ("QuantizeV2", ("v0/fc1/MatMul_eightbit_requantize",)),
    ]


def test_fake_quantization_is_a_conversion():
    graph = zoo.rewritten(zoo.hard(), {"v0/avgpool": zoo.fake_quant(-1.0, 1.0)})
    _, found = timed(graph, BATCH)
    conversions = [(e.kernel.type, e.kernel.ops) for e in found[-1].executions if e.kernel.is_conversion]
    assert conversions == [("FakeQuantWithMinMaxVars", ("v0/flat",))]


def test_tflite_ops_alone():
    timer, found = timed(hard_lite(), BATCH, threads=1)
    kernels = [e.kernel for e in found[-1].executions]
    assert timer.is_quantized
    assert [k.type for k in kernels if k.is_conversion] == ["QUANTIZE", "DEQUANTIZE"]
    assert kernels[0].ops == kernels[1].ops[:1]
    assert kernels[-1].ops == kernels[-2].ops
    padded = next(k for k in kernels if "conv1" in k.name)
    assert padded.ops[1] == "v0/cg/conv1/pad"
    assert any("timed alone" in note for note in timer.notes)


def test_a_fixed_batch_size_is_run_as_often_as_it_fits():
    few = {"input": zoo.digits(8)}
    one, found = timed(hard_lite("int8", 4), few, threads=1)
    assert len(one.prepare(few)) == 2
    assert {sum(e.kernel == kernel for e in found[-1].executions) for kernel, *_ in found[-1].executions} == {1}


def test_twins_have_the_names_of_the_reference():
    twins = name_twins(zoo.hard(), hard_lite(), BATCH)
    of_conv1 = next(ops for name, ops in twins.items() if "conv1/Conv2D" in name)
    assert of_conv1 == ["v0/cg/conv1/Conv2D", "v0/cg/conv1/BiasAdd", "v0/cg/conv1/Relu"]
    graph = name_twins(zoo.hard(), str(zoo.DATA / "inc26_hard_int8.pb"), BATCH)
    assert graph["v0/cg/conv0/Conv2D_eightbit_requantize"][0] == "v0/cg/conv0/Conv2D"
    same = name_twins(wide_net(), wide_net(), BATCH)
    assert all(ops == [name] for name, ops in same.items())


def test_profile_of_both_has_the_rows_of_the_reference():
    found = inc_tb.profile(str(zoo.DATA / "hard_tf.pb"), BATCH, quantized=hard_lite(), runs=10)
    names = {row.op for row in found.rows if row.op}
    assert names <= {op for ops in FUSED for op in ops}
    conv = next(row for row in found.rows if row.op == "v0/cg/conv0/Conv2D")
    assert (conv.fp32_us or 0) > 0
    assert (conv.int8_us or 0) > 0
    assert found.traces.keys() == {"fp32.tensorflow.xplane.pb"}


def test_somebody_elses_profiler_does_not_matter(tmp_path):
    timer, _ = timed(zoo.hard(), BATCH)
    with zoo.quiet():
        tf.profiler.experimental.start(str(tmp_path))
        try:
            assert timer.traces == {}
        finally:
            tf.profiler.experimental.stop(save=False)


def test_threads_that_cannot_be_had_are_told():
    timer, _ = timed(zoo.hard(), BATCH, threads=97)
    assert any("TF_NUM_INTRAOP_THREADS=97" in note for note in timer.notes)
