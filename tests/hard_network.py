"""A small PyTorch network with two culprits, for the tools that quantize PyTorch models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Network(nn.Module):
    """Its own answers are the truth. Two channels are hundreds of times as large as the others."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2, padding=1)
        self.fc = nn.Linear(8 * 4 * 4, 10)
        with torch.no_grad():
            self.conv1.weight[:2] *= 300
            self.conv2.weight[:, :2] /= 300

    def forward(self, image: torch.Tensor) -> Any:
        x = torch.relu(self.conv2(torch.relu(self.conv1(image))))
        return self.fc(x.flatten(1))


def evaluation(network: nn.Module, images: torch.Tensor) -> Callable[[Any], float]:
    """The share of images for which a model answers as the network does now."""
    with torch.no_grad():
        own = network(images).argmax(1)

    def evaluate(model: Any) -> float:
        with torch.no_grad():
            return float((model(images).argmax(1) == own).float().mean())

    return evaluate
