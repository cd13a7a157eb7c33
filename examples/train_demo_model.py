"""Trains the small CNN that `inc-tb demo` ships, on scikit-learn's handwritten digits. Takes half a minute.

    python examples/train_demo_model.py [FOLDER]

Writes digits_cnn.onnx and digits.npz (images, labels, and which of them are held out) into FOLDER.
Needs torch, onnx and scikit-learn.
"""

import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from sklearn.datasets import load_digits
from torch import nn

TRAINING_SAMPLES = 1197


class DigitsCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.depthwise = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.pointwise = nn.Conv2d(32, 32, 1)
        self.conv3 = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv1(image))
        x = torch.relu(self.conv2(x))
        x = torch.relu(x + self.pointwise(torch.relu(self.depthwise(x))))
        x = torch.relu(self.conv3(x)).mean(dim=(2, 3))
        return self.fc2(torch.relu(self.fc1(x)))


def train(images: torch.Tensor, labels: torch.Tensor) -> DigitsCnn:
    torch.manual_seed(0)
    model = DigitsCnn()
    epochs = 60
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(64):
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    return model.eval()


def main(folder: Path) -> None:
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = digits.images[order].astype(np.uint8)
    labels = digits.target[order].astype(np.uint8)
    as_input = torch.from_numpy(images[:, None].astype(np.float32) / 16)
    model = train(as_input[:TRAINING_SAMPLES], torch.from_numpy(labels[:TRAINING_SAMPLES].astype(np.int64)))
    with torch.no_grad():
        right = model(as_input[TRAINING_SAMPLES:]).argmax(1).numpy() == labels[TRAINING_SAMPLES:]
    print(f"held-out accuracy {right.mean():.4f}")

    path = folder / "digits_cnn.onnx"
    with warnings.catch_warnings():
        # The exporter that keeps module paths as node names is called legacy.
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            model, (as_input[:1],), path, input_names=["image"], output_names=["logits"],
            dynamic_axes={"image": {0: "N"}, "logits": {0: "N"}}, opset_version=17, dynamo=False,
        )  # fmt: skip
    onnx.checker.check_model(path, full_check=True)
    np.savez_compressed(
        folder / "digits.npz", image=images, label=labels, held_out=np.arange(len(labels)) >= TRAINING_SAMPLES
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
