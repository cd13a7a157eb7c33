"""Networks with one outlier channel that changes nothing in fp32, wherever a layer's result is another's input."""

from __future__ import annotations

import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

Data = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


class Images(nn.Module):
    """Convolutions, one of them depthwise, behind norms, pools and activations in place and as functions."""

    shape = (3, 14, 14)

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm, self.relu = nn.BatchNorm2d(16), nn.ReLU(inplace=True)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.grouped = nn.Conv2d(16, 24, 1, groups=2)
        self.last = nn.Conv2d(24, 8, 3)
        self.head = nn.Linear(8 * 5 * 5, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.depthwise(self.relu(self.norm(self.first(x)))))
        x = torch.relu(nn.functional.max_pool2d(self.grouped(x), 2))
        head: Tensor = self.head(torch.relu(self.last(x)).flatten(1))
        return head


class Plain(Images):
    """Without the norm, which the exporter would fold."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Identity()  # type: ignore[assignment]


class Tokens(nn.Module):
    """A transformer's block, whose values reach the projection through heads and the attention."""

    shape = (6, 8)

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm1, self.norm2 = nn.Linear(8, 32), nn.LayerNorm(32), nn.LayerNorm(32)
        self.query, self.key, self.value, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.up, self.down, self.head = nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        normed = self.norm1(x)
        query, key, value = (
            layer(normed).unflatten(-1, (4, 8)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        attended = torch.softmax(query @ key.transpose(-1, -2) / 8**0.5, -1) @ value
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        x = x + self.down(torch.relu(self.up(self.norm2(x))))
        head: Tensor = self.head(x.mean(1))
        return head


INJECTED = [
    (Images, "norm", ("depthwise",)), (Images, "depthwise", ("grouped",)), (Images, "grouped", ("last",)),
    (Images, "last", ("head",)), (Tokens, "norm1", ("query", "key", "value")), (Tokens, "value", ("out",)),
    (Tokens, "norm2", ("up",)), (Tokens, "up", ("down",)),
]  # fmt: skip


ONNX_INJECTED = [
    (Plain, "first" if made == "norm" else made, read) if kind is Images else (kind, made, read)
    for kind, made, read in INJECTED
]  # fmt: skip


def seeded(kind: type[nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = kind().eval()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):  # no two of them alike
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    return model


def injected(kind: type[nn.Module], made: str, read: tuple[str, ...], seed: int, factor: float) -> nn.Module:
    """A network with one outlier channel that changes nothing in fp32."""
    model, channel = seeded(kind, seed), 1 + 2 * seed
    with torch.no_grad():
        producer = model.get_submodule(made)
        for tensor in producer.parameters(recurse=False):
            tensor[channel] *= factor
        for name in read:
            reader = model.get_submodule(name)
            weight, channels = reader.get_parameter("weight"), len(producer.get_parameter("weight"))
            if isinstance(reader, nn.Linear):
                each = reader.in_features // channels
                weight[:, channel * each : (channel + 1) * each] /= factor
            else:
                assert isinstance(reader, nn.Conv2d)
                within, outs = reader.in_channels // reader.groups, reader.out_channels // reader.groups
                group = channel // within
                weight[group * outs : (group + 1) * outs, channel % within] /= factor
    return model


def samples(kind: type[nn.Module], seed: int) -> Data:
    return {"x": np.random.default_rng(seed).normal(size=(32, *kind.shape)).astype(np.float32)}  # type: ignore[attr-defined]


@cache
def _exported(kind: type[nn.Module]) -> tuple[bytes, dict[str, tuple[str, bool]]]:
    """As torch's exporter writes it, and which parameter each constant is, as it is or transposed."""
    model = seeded(kind, 0)
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
    ):  # it uses what torch itself calls deprecated
        warnings.simplefilter("ignore")
        path, shape = Path(folder, "model.onnx"), getattr(kind, "shape")  # noqa: B009  torch says that a module has any
        torch.onnx.export(
            model, (torch.zeros(2, *shape),), path, dynamo=True, external_data=False, verbose=False,
            input_names=["x"], dynamic_shapes=({0: torch.export.Dim("N")},),
        )  # fmt: skip
        proto = onnx.load(path)
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    found = {}
    for name, parameter in model.named_parameters():
        own = parameter.detach().numpy()
        for constant, values in held.items():
            if np.array_equal(values, own) or np.array_equal(values, own.T):
                found[constant] = name, not np.array_equal(values, own)
    return proto.SerializeToString(), found


def as_onnx(model: nn.Module) -> onnx.ModelProto:
    """A network of this file, as torch's exporter writes it, which is asked once for each kind."""
    data, found = _exported(type(model))
    proto = onnx.ModelProto.FromString(data)
    for tensor in proto.graph.initializer:
        if tensor.name in found:
            name, is_transposed = found[tensor.name]
            values = model.get_parameter(name).detach().numpy()
            tensor.CopyFrom(
                numpy_helper.from_array(np.ascontiguousarray(values.T if is_transposed else values), tensor.name)
            )
    return proto


def lost(own: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> float:
    """Relative to how much the results vary."""
    return float(np.square(own - theirs).sum() / np.square(own - own.mean(axis=0)).sum())
