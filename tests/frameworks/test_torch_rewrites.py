"""Outlier channels go without a single op in fp32, and the model computes what it did."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from inc_tb.errors import ModelError
from inc_tb.frameworks.torch.quantizer import TorchQuantizer
from inc_tb.frameworks.torch.rewrites import apply_rewrites, find_rewrites
from inc_tb.records import Rewrite
from tests.outliers import INJECTED, Data, Images, Tokens, injected, lost, samples


def error_of(model: nn.Module, data: Data) -> float:
    """Of the whole model in int8, relative to how much its results vary."""
    tool = TorchQuantizer(approach="static", per_channel=False)
    quantized = tool.quantize(tool.prepare(model, Path()), Path(), [data], tool.settings, [])
    with torch.no_grad():
        own, theirs = (found(torch.from_numpy(data["x"])).numpy() for found in (model, quantized))
    return lost(own, theirs)


@pytest.mark.parametrize(("kind", "made", "read"), INJECTED, ids=[made for _, made, _ in INJECTED])
def test_an_outlier_channel_is_cured_without_an_op_in_fp32(
    kind: type[nn.Module], made: str, read: tuple[str, ...]
) -> None:
    for seed, factor in enumerate((60.0, 400.0)):
        model, data = injected(kind, made, read, seed, factor), samples(kind, seed)
        rewrites = find_rewrites(model, [data])
        assert made in [rewrite.ops[0] for rewrite in rewrites]
        rewritten = apply_rewrites(model, rewrites)
        with torch.no_grad():
            own, theirs = (found(torch.from_numpy(data["x"])) for found in (model, rewritten))
        assert float((own - theirs).abs().max()) <= 1e-5 * float(own.abs().max())
        healthy = error_of(injected(kind, made, read, seed, 1.0), data)
        before, after = error_of(model, data), error_of(rewritten, data)
        assert before - after >= 0.9 * (before - healthy) > 0


def test_the_record_alone_redoes_it_and_the_quantizer_takes_it() -> None:
    model, data = injected(Images, "norm", ("depthwise",), 0, 100.0), samples(Images, 0)
    rewrites = find_rewrites(model, [data])
    first = rewrites[0]
    assert (first.kind, first.ops, first.tensor) == ("equalize", ["norm", "depthwise"], "norm")
    assert "channel 1 of the results of norm reaches" in rewrites[0].because
    assert "scaled in norm, and back in depthwise" in rewrites[0].because
    assert all(np.log2(value) % 1 == 0 for value in rewrites[0].values)
    tool = TorchQuantizer(approach="static", per_channel=False)
    told = {**tool.settings, "rewrites": msgspec.to_builtins(rewrites)}
    prepared = tool.prepare(model, Path())
    by_setting = tool.quantize(prepared, Path(), [data], told, [])
    by_hand = tool.quantize(apply_rewrites(prepared, rewrites), Path(), [data], tool.settings, [])
    x = torch.from_numpy(data["x"])
    assert torch.equal(by_setting(x), by_hand(x))


def test_nothing_is_scaled_where_it_would_be_seen() -> None:
    """What an Add or the user reads, what two calls share, and what is no worse than others."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            made = self.a(x)
            again = self.b(self.b(made) + x)
            return self.c(torch.tanh(again)), made

    torch.manual_seed(0)
    model = Shared().eval()
    with torch.no_grad():
        for layer in (model.a, model.b):
            layer.weight[3] *= 300
    data = {"x": np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)}
    assert find_rewrites(model, [data]) == []
    torch.manual_seed(0)
    assert find_rewrites(Tokens().eval(), [samples(Tokens, 0)]) == []


def test_a_record_of_another_model_is_refused_in_one_line() -> None:
    rewrite = Rewrite("equalize", ["norm", "depthwise"], "", "norm", [1.0, 2.0])
    with pytest.raises(ModelError, match="no norm, depthwise of 2 channels to change so"):
        apply_rewrites(Images(), [rewrite])
