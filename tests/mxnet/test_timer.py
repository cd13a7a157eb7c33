"""Times per op: which ops each kernel computes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import inc_tb
from inc_tb.frameworks.models import name_twins, open_timer
from inc_tb.frameworks.mxnet import timer
from inc_tb.frameworks.protocols import Recorded, Timer
from tests.mxnet import zoo

BATCH = {"data": zoo.images(8)}
FUSED = [
    ["net_conv0_fwd", "net_batchnorm0_fwd", "net_relu0_fwd"], ["net_conv1_fwd", "net_batchnorm1_fwd", "net_relu1_fwd"],
    ["net_conv2_fwd"], ["net_pool0_fwd"], ["net_flatten0_flatten0"], ["net_dense0_fwd"],
]  # fmt: skip


def timed(model: Any, batch: Any = BATCH, runs: int = 2) -> tuple[Timer, list[Recorded]]:
    opened = open_timer(model, batch)
    prepared = opened.prepare(batch)
    for _ in range(runs):
        assert opened.run(prepared) > 0
        assert opened.run_profiled(prepared) > 0
    found = opened.close()
    assert len(found) == runs
    return opened, found


def test_kernels_of_fp32_are_the_ops_that_onednn_joins() -> None:
    opened, runs = timed(zoo.pair("depthwise")[0])
    assert not opened.is_quantized
    for run in runs:
        assert [list(e.kernel.ops) for e in run.executions] == FUSED
        assert all(e.duration_us >= 0 for e in run.executions)
        starts = [e.start_us for e in run.executions]
        assert starts == sorted(starts)


def test_kernels_of_int8_are_its_nodes_and_conversions_have_an_op() -> None:
    opened, (run, _) = timed(zoo.pair("depthwise", excluded=("sg_mkldnn_conv_bn_act_1",))[1])
    assert opened.is_quantized
    conversions = {e.kernel.name: list(e.kernel.ops) for e in run.executions if e.kernel.is_conversion}
    assert conversions == {
        "data_quantize": ["quantized_sg_mkldnn_conv_bn_act_0"],
        "sg_mkldnn_conv_bn_act_0_dequantize": ["quantized_sg_mkldnn_conv_bn_act_0"],
        "sg_mkldnn_conv_bn_act_1_output_quantize": ["quantized_sg_mkldnn_conv_2"],
    }
    others = [list(e.kernel.ops) for e in run.executions if not e.kernel.is_conversion]
    assert others[:3] == [
        ["quantized_sg_mkldnn_conv_bn_act_0"], ["sg_mkldnn_conv_bn_act_1"], ["quantized_sg_mkldnn_conv_2"]
    ]  # fmt: skip


def test_twins() -> None:
    twins = name_twins(*zoo.pair("depthwise"), BATCH)
    assert twins["quantized_sg_mkldnn_conv_bn_act_0"] == FUSED[0]
    assert twins["quantized_net_pool0_fwd"] == ["net_pool0_fwd"]
    assert twins["data_quantize"] == ["net_conv0_fwd"]


def test_both_models_side_by_side_are_logged(tmp_path: Path) -> None:
    found = inc_tb.profile(*(zoo.pair("depthwise")[0], [BATCH]), quantized=zoo.pair("depthwise")[1], runs=5)
    rows = {row.op: row for row in found.rows}
    assert rows["net_conv0_fwd"].fp32_us > 0
    assert rows["net_conv0_fwd"].int8_us > 0
    assert rows["net_conv0_fwd"].convert_us >= 0
    assert rows["net_conv0_fwd"].ops == ["net_batchnorm0_fwd", "net_relu0_fwd"]
    with inc_tb.SummaryWriter(tmp_path) as writer:
        writer.add_profile(found)
    assert inc_tb.load(tmp_path).profile.framework == "mxnet"


THREADS = """
import ctypes
import inc_tb
from inc_tb.frameworks.models import open_timer
from tests.mxnet import zoo

network, batch = zoo.made("dense"), {"data": zoo.images(2)}
has = ctypes.CDLL("libgomp.so.1").omp_get_max_threads()
print(has, open_timer(network, batch, has).notes, open_timer(network, batch, has + 1).notes)
"""


@pytest.mark.parametrize("told", ["", "1", "3"])
def test_threads_are_those_that_mxnet_has(told: str) -> None:
    """Without a word it takes half of the processors, or one."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"PYTHONPATH": str(Path(inc_tb.__file__).parents[1])} | ({"OMP_NUM_THREADS": told} if told else {})
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", THREADS], env=environment, capture_output=True, text=True, check=True
    )
    has, rest = done.stdout.split(maxsplit=1)
    assert has == told or not told
    assert rest.startswith(f"[] ['MXNet has {has} thread")
    assert f"Start the process with OMP_NUM_THREADS={int(has) + 1}" in rest


def test_a_run_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """MXNet writes all runs of a process into one file."""
    lengths: list[int] = []

    def read(text: str, shift_us: float) -> Iterator[Any]:
        lengths.append(len(text))
        return events(text, shift_us)

    events = timer._events
    monkeypatch.setattr(timer, "_events", read)
    _, runs = timed(zoo.pair("dense")[0], runs=12)
    assert all(len(run.executions) == 4 for run in runs)
    assert max(lengths[1:]) < 2 * min(lengths[1:])
