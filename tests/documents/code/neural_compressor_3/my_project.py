"""Calibration and evaluation of a PyTorch model; its own answers are the truth."""

from typing import Any

import torch
from neural_compressor.torch.export import export

from inc_tb.demo import load_digits
from tests.hard_network import Network, evaluation

torch.manual_seed(0)
images = torch.from_numpy(load_digits()[0][:200])
network = Network().eval()
evaluate = evaluation(network, images)


def exported_model() -> Any:
    return export(network, (images[:8],), dynamic_shapes={"image": {0: torch.export.Dim("batch", min=2)}})


def calibrate(model: Any) -> None:
    for rows in images[:64].split(16):
        model(rows)
