"""Networks whose tuned models are stored, and the other process that loads them.

python -m tests.tuning.carried FOLDER     loads every folder in FOLDER, and writes what each model gives beside it
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import inc_tb
from inc_tb.frameworks.models import open_results

Arrays = Mapping[str, np.ndarray]


class Images(nn.Module):
    """What FX and PT2E make of convolutions, batch norms, transposed ones, sums, functions with weights of their own,
    a buffer that is in no state_dict, and an attribute that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.up = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ConvTranspose2d(8, 8, 2)
        self.group, self.fc, self.last = nn.GroupNorm(2, 8), nn.Linear(8, 4), nn.Linear(4, 4)
        self.table = nn.Parameter(torch.randn(4, 8))
        self.register_buffer("shift", torch.randn(4), persistent=False)
        self.factor = torch.randn(1)

    def forward(self, image: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(image)))
        x = self.group(self.up(x) + 1).mean((2, 3))
        return self.last(self.fc(x).relu()) + self.shift * self.factor + nn.functional.linear(x, self.table)


class Sequences(nn.Module):
    """Every kind of recurrent layer, and two linear ones that share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 6, 2, bidirectional=True, batch_first=True)
        self.gru, self.cell, self.plain, self.gate = (
            nn.GRU(12, 5),
            nn.LSTMCell(5, 5),
            nn.RNNCell(5, 4),
            nn.GRUCell(4, 4),
        )
        self.fc1, self.fc2, self.fc3 = nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.fc3.weight = self.fc2.weight

    def forward(self, steps: Tensor) -> Tensor:
        x = self.gru(self.lstm(steps)[0])[0]
        return self.fc3(self.fc2(self.fc1(self.gate(self.plain(self.cell(x[:, 0])[0])))))


_RNG = np.random.default_rng(0)
IMAGES = {"image": _RNG.normal(size=(4, 3, 8, 8)).astype(np.float32)}
STEPS = {"steps": _RNG.normal(size=(4, 5, 8)).astype(np.float32)}
TOKENS = {"input_ids": _RNG.integers(0, 50, (4, 7))}
NETWORKS: Mapping[str, tuple[Any, Arrays]] = {"images": (Images, IMAGES), "steps": (Sequences, STEPS)}


def results(model: Any, batch: Arrays) -> np.ndarray:
    return np.concatenate([array.ravel() for array in open_results(model)(batch)])


def data_for(name: str) -> Arrays:
    """By the first word of a folder's name."""
    first = name.partition("-")[0]
    if first == "onnx":
        from tests.digits import digits

        return {"input": digits(8)}
    return NETWORKS[first][1] if first in NETWORKS else TOKENS


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        made = NETWORKS.get(place.name.partition("-")[0])
        torch.manual_seed(9)  # other weights than those that were tuned
        model = inc_tb.load_model(place, made and made[0])
        results(model, data_for(place.name)).tofile(folder / f"{place.name}.bits")
        if "transformers" in place.name:
            from transformers import AutoModelForSequenceClassification

            theirs = AutoModelForSequenceClassification.from_pretrained(place).eval()
            results(theirs, TOKENS).tofile(folder / f"{place.name}.theirs")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
