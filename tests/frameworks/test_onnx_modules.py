"""Models that torch exported: the modules of the user's own code beside the names that the exporter made up."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import inc_tb
from inc_tb.advise.configs import find_recipe, recipes_for
from inc_tb.frameworks.models import read_inputs
from inc_tb.frameworks.templates import write


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.fc(x))


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory: pytest.TempPathFactory) -> inc_tb.Diagnosis:
    folder = tmp_path_factory.mktemp("exported")
    model = nn.Sequential(Block(), Block(), nn.Linear(6, 3)).eval()
    exported, int8 = folder / "exported.onnx", folder / "int8.onnx"
    with warnings.catch_warnings():  # torch's exporter uses what torch itself calls deprecated
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (torch.zeros(2, 6),), exported, dynamo=True, external_data=False, verbose=False)
    tool, batch = inc_tb.OnnxRuntimeQuantizer(), _batch(exported)
    fp32 = tool.prepare(exported, folder)
    tool.quantize(fp32, int8, [batch], tool.settings, [])
    return inc_tb.diagnose(fp32, int8, batch)


def _batch(path: Path) -> dict[str, np.ndarray]:
    (given,) = read_inputs(path)
    return {given.name: np.random.default_rng(0).normal(size=(2, 6)).astype(np.float32)}


def test_every_op_says_which_module_it_came_from(diagnosis: inc_tb.Diagnosis) -> None:
    found = dict(zip(diagnosis.ops["name"].tolist(), diagnosis.ops["module"].tolist(), strict=True))
    by_type = {
        kind: [module for name, module in found.items() if dict(_types(diagnosis))[name] == kind]
        for kind in ("Gemm", "Relu", "Add")
    }
    assert by_type == {"Gemm": ["0.fc", "1.fc", "2"], "Relu": ["0", "1"], "Add": ["0", "1"]}
    assert not any(name.startswith("0.") for name in found), "names stay those of the file, which its tools know"
    assert {node.name: node.module for node in diagnosis.graph} == found


def _types(diagnosis: inc_tb.Diagnosis) -> list[tuple[str, str]]:
    return list(zip(diagnosis.ops["name"].tolist(), diagnosis.ops["type"].tolist(), strict=True))


def test_configs_for_torch_name_the_modules(diagnosis: inc_tb.Diagnosis) -> None:
    name = next(name for name, kind in _types(diagnosis) if kind == "Gemm")
    modules = {node.name: node.module for node in diagnosis.graph}
    recipe = find_recipe(recipes_for("onnx", diagnosis.ops), "torch")
    assert '.set_module_name("0.fc", None)' in write(recipe, [name], {}, (), modules)
