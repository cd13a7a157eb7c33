"""The configs for PyTorch, pasted and run: what is named stays in fp32, and nothing else does."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import inc_tb
from inc_tb.advise.configs import fitted
from inc_tb.frameworks.formats import Settings
from inc_tb.frameworks.templates import write

KEPT, OTHERS = "body.0", ("body.2", "head")
STATIC = Settings(per_channel=False, activation="uint8", weight="int8")
DYNAMIC = STATIC._replace(dynamic=True)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def run(tool: str, settings: Settings, keep: list[str], **names: Any) -> dict[str, Any]:
    recipe = next(f.recipe for f in fitted("torch", settings) if f.recipe.tool == tool)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(write(recipe, keep, {}), names)
    return names


def quantized_ops(model: nn.Module, quantized: Any) -> set[str]:
    found = inc_tb.diagnose(model, quantized, torch.randn(8, 64)).ops
    return {name for name, dtype in zip(found["name"], found["weight_dtype"], strict=True) if dtype}


def test_quantize_dynamic() -> None:
    model = Net().eval()
    made = run("torch-dynamic", DYNAMIC, [KEPT], model=model)["quantized"]
    assert quantized_ops(model, made) == set(OTHERS)


def test_a_scale_per_channel() -> None:
    model = Net().eval()
    made = run("torch-per-channel", DYNAMIC, [KEPT], model=model)["quantized"]
    found = inc_tb.diagnose(model, made, torch.randn(8, 64)).ops
    assert {g for g in found["weight_granularity"] if g} == {"per channel"}
    mapping = run("torch-per-channel", STATIC, [KEPT])["qconfig_mapping"]
    assert "PerChannel" in str(mapping.global_qconfig.weight())


def test_torchao() -> None:
    from torchao.quantization import Int8WeightOnlyConfig

    model, made = Net().eval(), Net().eval()
    made.load_state_dict(model.state_dict())
    run("torchao", DYNAMIC, [KEPT], model=made, config=Int8WeightOnlyConfig())
    assert quantized_ops(model, made) == set(OTHERS)


def test_fx() -> None:
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    model, x = Net().eval(), torch.randn(8, 64)
    mapping = run("torch", STATIC, [KEPT])["qconfig_mapping"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare_fx(model, mapping, (x,))
        prepared(x)
        made = convert_fx(prepared)
    assert quantized_ops(model, made) == set(OTHERS)


@pytest.mark.parametrize("settings", [STATIC, DYNAMIC], ids=["static", "dynamic"])
def test_pt2e(settings: Settings) -> None:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    model, x = Net().eval(), torch.randn(8, 64)
    quantizer = run("torch-pt2e", settings, [KEPT])["quantizer"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare_pt2e(torch.export.export(model, (x,)).module(), quantizer)
        prepared(x)
        made = convert_pt2e(prepared)
    assert quantized_ops(model, made) == set(OTHERS)


def test_neural_compressor() -> None:
    config = run("inc-torch", DYNAMIC, [KEPT])["quant_config"]
    assert KEPT in str(config.to_dict())
