"""What the tests of all callbacks need: how diagnoses and states of training are compared."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import inc_tb

FILTERS = (
    "ignore:torch.ao.quantization is deprecated:DeprecationWarning",
    "ignore:.*reduce_range:UserWarning",
    "ignore:.*quantized tensor creation functions:UserWarning",
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning",
    "ignore:.*torch.jit.script:DeprecationWarning",
)
"""Of torch itself; for pytest.mark.filterwarnings."""


def assert_same(found: inc_tb.Diagnosis, expected: inc_tb.Diagnosis) -> None:
    """Up to the seven digits that the log has."""
    assert list(found.ops["name"]) == list(expected.ops["name"])
    assert found.samples == expected.samples
    assert list(found.ops) == list(expected.ops)
    for column in expected.ops:
        if expected.ops.column(column).type == "text":
            assert list(found.ops[column]) == list(expected.ops[column]), column
        else:
            np.testing.assert_allclose(found.ops[column], expected.ops[column], rtol=1e-6, err_msg=column)


def noise(diagnosis: inc_tb.Diagnosis) -> dict[str, float]:
    """What each op adds, in dB."""
    names = [str(name) for name in diagnosis.ops["name"]]
    return dict(zip(names, diagnosis.ops["added_sqnr_db"].tolist(), strict=True))


def steps(run: Path) -> list[int]:
    return sorted(inc_tb.load(run).diagnoses)


def runs(folder: Path) -> list[str]:
    return sorted({str(path.parent.relative_to(folder)) for path in folder.rglob("*tfevents*")})


def fresh(seed: int = 0) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def state(model: nn.Module) -> dict[str, Any]:
    """Everything that a callback might have changed."""
    return {
        "weights": {name: value.clone() for name, value in model.state_dict().items()},
        "modes": [module.training for module in model.modules()],
        "hooks": [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        "random": (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),
    }


def assert_unchanged(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["weights"].keys() == expected["weights"].keys()
    for name, value in expected["weights"].items():
        assert torch.equal(found["weights"][name], value), name
    for part in ("modes", "hooks", "random"):
        assert found[part] == expected[part], part
