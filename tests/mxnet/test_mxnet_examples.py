"""The example with MXNet runs as its text says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import inc_tb
from tests.test_examples import run

ROOT = Path(__file__).parents[2]


METHODS = [
    "fp32 no optimization", "fp32 fused", "int8 full naive", "int8 full entropy", "int8 smart naive",
    "int8 smart entropy", "int8 basic", "int8 mse", "int8 probe",
]  # fmt: skip
NUMBERS = ("top1", "top5", "top1_loss_percent", "top5_loss_percent", "cost_s", "validation_ms", "speed_up")
HEADER = "method                top-1   top-5  top-1  top-5   cost s  valid. ms  speed-up\n"
TOLERANCE = 0.015


def table(printed: str) -> dict[str, dict[str, float]]:
    """Its rows; what one number says of another is true."""
    head = printed.index(HEADER)
    lines = printed[head + len(HEADER) :].split("\n\n")[0].splitlines()
    assert max(map(len, lines)) <= 80
    rows = {line[:20].strip(): dict(zip(NUMBERS, map(float, line[20:].split()), strict=True)) for line in lines}
    assert list(rows) == METHODS
    fp32 = rows["fp32 no optimization"]
    for row in rows.values():
        for name in ("top1", "top5"):
            loss = 100 * (fp32[name] - row[name]) / fp32[name]
            assert row[f"{name}_loss_percent"] == pytest.approx(loss, abs=0.02)  # of four digits
    assert fp32["top1"] > 0.97
    assert rows["fp32 fused"]["top1"] == fp32["top1"]
    assert rows["int8 full naive"]["top1"] < fp32["top1"] - 0.2
    assert rows["int8 full naive"]["top1"] < rows["int8 full entropy"]["top1"] < fp32["top1"] - 0.03
    for strategy in ("basic", "mse", "probe"):
        assert f"\n{strategy}: " in printed
        assert rows[f"int8 {strategy}"]["top1_loss_percent"] <= 100 * TOLERANCE
    return rows


def test_the_page_has_a_table_as_the_example_prints_it() -> None:
    table((ROOT / "docs" / "mxnet.md").read_text())


@pytest.mark.slow
def test_mxnet_resnet(tmp_path: Path) -> None:
    printed = run("mxnet_resnet.py", tmp_path)
    rows = table(printed)
    trials = {name: int(n) for name, n in re.findall(r"^(basic|mse|probe): (\d+) trials, met", printed, re.M)}
    assert set(trials) == {"basic", "mse", "probe"}
    assert trials["probe"] == min(trials.values())
    for strategy, count in trials.items():
        first, last = (inc_tb.load(tmp_path / strategy / f"trial-{i:03d}").trial for i in (1, count))
        assert first.accuracy < first.target
        assert first.baseline == pytest.approx(rows["fp32 no optimization"]["top1"], abs=1e-4)
        assert last.accuracy == pytest.approx(rows[f"int8 {strategy}"]["top1"], abs=1e-4), "of the same images"
        assert any("net_block0" in op for op in inc_tb.load(tmp_path / strategy / "trial-001").suggestions[0].ops)
    for name, row in rows.items():
        logged = inc_tb.load(tmp_path / "table" / name.replace(" ", "-")).trial
        assert logged is not None
        assert logged.accuracy == pytest.approx(row["top1"], abs=1e-4)
        assert set(logged.objectives) == set(NUMBERS) - {"top1"}
        assert logged.objectives["top5_loss_percent"] == pytest.approx(row["top5_loss_percent"], abs=0.01)
    assert 'exclude_layers = [\n    "sg_mkldnn_conv' in printed
