"""The example with MXNet runs as its text says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import inc_tb
from tests.test_examples import run


@pytest.mark.slow
def test_mxnet_resnet(tmp_path: Path) -> None:
    printed = run("mxnet_resnet.py", tmp_path)
    rows = {
        m[1].strip(): float(m[2]) for m in re.finditer(r"^((?:fp32|int8) .*?) +(\d\.\d{4})  \d\.\d{4} ", printed, re.M)
    }
    assert set(rows) == {
        "fp32 no optimization", "fp32 fused", "int8 full naive", "int8 full entropy", "int8 smart naive",
        "int8 smart entropy", "int8 basic", "int8 mse", "int8 probe",
    }  # fmt: skip
    fp32 = rows["fp32 no optimization"]
    assert fp32 > 0.97
    assert rows["fp32 fused"] == fp32
    assert rows["int8 full naive"] < fp32 - 0.2
    assert rows["int8 full naive"] < rows["int8 full entropy"] < fp32 - 0.03
    trials = {name: int(n) for name, n in re.findall(r"^(basic|mse|probe): (\d+) trials, met", printed, re.M)}
    assert set(trials) == {"basic", "mse", "probe"}
    assert trials["probe"] == min(trials.values())
    for strategy in trials:
        assert rows[f"int8 {strategy}"] > fp32 - 0.02
        first = inc_tb.load(tmp_path / strategy / "trial-001")
        assert first.trial.accuracy < first.trial.target
        assert any("net_block0" in op for op in first.suggestions[0].ops)
    for name, accuracy in rows.items():
        logged = inc_tb.load(tmp_path / "table" / name.replace(" ", "-")).trial
        assert logged is not None
        assert logged.accuracy == pytest.approx(accuracy, abs=1e-4)
        assert set(logged.objectives) == {"top5", "cost_s", "validation_ms", "speed_up", "top1_loss_percent"}
    assert 'exclude_layers = [\n    "sg_mkldnn_conv' in printed
