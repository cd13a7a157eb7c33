"""Formats of weights by name, and what a matrix is once it has been through one.

Rounded is along the rows of a matrix as torch has it: inputs that share a scale lie beside each other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from inc_tb.errors import ModelError, UsageError
from inc_tb.frameworks.ops import Array

Floats = npt.NDArray[np.float32]
_GGUF = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
_TINY = np.float32(np.finfo(np.float32).eps)
_E4M3_TINY = np.float32(2.0**-6)
"""What torchao has as the least scale of a block of NVFP4."""
EXAMPLES = "int8, int4-g128, int4-g32-asym, fp8-e4m3, fp8-e5m2, mxfp8, mxfp6, mxfp4, nvfp4, nf4, bf16, q4_0"


class _Small(NamedTuple):
    """A floating type of a few bits."""

    bits: int
    mantissa: int
    lowest: int
    """The exponent of its smallest normal number."""
    largest: float

    @property
    def highest(self) -> int:
        return int(np.floor(np.log2(self.largest)))


_E4M3, _E5M2 = _Small(8, 3, -6, 448.0), _Small(8, 2, -14, 57344.0)
_E2M3, _E3M2, _E2M1 = _Small(6, 3, 0, 7.5), _Small(6, 2, -2, 28.0), _Small(4, 1, 0, 6.0)
_FP8 = {"fp8-e4m3": _E4M3, "fp8-e5m2": _E5M2}
_MX = {
    "mxfp8": _E4M3, "mxfp8-e4m3": _E4M3, "mxfp8-e5m2": _E5M2, "mxfp6": _E2M3, "mxfp6-e2m3": _E2M3,
    "mxfp6-e3m2": _E3M2, "mxfp4": _E2M1,
}  # fmt: skip
_NF4 = np.array([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
], np.float32)  # fmt: skip
"""Quantiles of a bell, as QLoRA has published them."""
_NF4_BORDERS = (_NF4[1:] + _NF4[:-1]) / 2


@dataclass(frozen=True)
class Format:
    name: str
    bits: float
    """Of a number by itself."""
    group: int | None
    """Numbers that share a scale; None for a whole row, 0 for none at all."""
    scale_bits: float
    """Of a group, with its zero point."""
    apply: Callable[[Floats], Floats]

    def round(self, weight: Array) -> Floats:
        """As a kernel sees it: packed and unpacked again."""
        return self.apply(np.ascontiguousarray(weight, np.float32))

    def bits_per_weight(self, columns: int) -> float:
        """Of a matrix with so many inputs, scales and zero points included."""
        if self.group == 0:
            return self.bits
        return self.bits + self.scale_bits / min(self.group or columns, columns)


@cache
def find_format(name: str) -> Format:
    asked = name.lower()
    plain = re.fullmatch(r"int([2-8])(?:-g(\d+))?(-asym)?", asked)
    if plain:
        bits, group = int(plain[1]), _group(name, plain[2])
        zero = bits if plain[3] else 0
        return Format(asked, bits, group, 16 + zero, partial(_grouped, group, partial(_integers, bits, bool(zero))))
    small = re.fullmatch(r"(fp8-e4m3|fp8-e5m2)(?:-g(\d+))?", asked)
    if small:
        group = _group(name, small[2])
        return Format(asked, 8, group, 32, partial(_grouped, group, partial(_floats, _FP8[small[1]])))
    normal = re.fullmatch(r"nf4(?:-g(\d+))?", asked)
    if normal:
        group = _group(name, normal[1]) or 64
        return Format(asked, 4, group, 32, partial(_grouped, group, _normal_floats))
    if asked in _MX:
        return Format(asked, _MX[asked].bits, 32, 8, partial(_grouped, 32, partial(_microscaled, _MX[asked])))
    if asked == "nvfp4":
        return Format(asked, 4, 16, 8, _nvfp4)
    if asked in ("bf16", "fp16", "fp32"):
        bits = int(asked[2:])
        return Format(asked, bits, 0, 0, _HALVES[asked])
    if asked in _GGUF:
        return _gguf(asked)
    raise UsageError(f"{name!r} is no format of weights; expected one such as {EXAMPLES}.")


class Loss(NamedTuple):
    """What rounding takes from numbers."""

    sqnr_db: float
    """Infinite where nothing was lost."""
    flushed: float
    """Share of those that were not zero before."""


@cache
def bell_loss(name: str) -> Loss:
    """Of numbers of a bell shape, as healthy weights are: what is normal for the format."""
    drawn = np.random.default_rng(0).standard_normal((512, 2048)).astype(np.float32)
    return loss(drawn, find_format(name).round(drawn))


def loss(weight: Array, rounded: Array) -> Loss:
    signal = float(np.square(weight, dtype=np.float64).sum())
    noise = float(np.square(np.subtract(weight, rounded, dtype=np.float64)).sum())
    ratio = math.inf if noise == 0 else 10 * math.log10(signal / noise) if signal else -math.inf
    was = weight != 0
    return Loss(ratio, float(((rounded == 0) & was).sum() / max(1, was.sum())))


def _group(name: str, told: str | None) -> int | None:
    if told is None:
        return None
    if not 2 <= int(told) <= 65536:
        raise UsageError(f"{name!r} has groups of {int(told)}; expected groups of 2 to 65536, such as int4-g128.")
    return int(told)


def _grouped(group: int | None, each: Callable[[Floats], Floats], weight: Floats) -> Floats:
    """The last group of a row may be shorter: zeros change no group's range."""
    rows, columns = weight.shape
    if group is None or group >= columns:
        return each(weight)
    padded = np.pad(weight, ((0, 0), (0, -columns % group)))
    return each(padded.reshape(-1, group)).reshape(rows, -1)[:, :columns]


def _integers(bits: int, has_zero_point: bool, w: Floats) -> Floats:
    """As torchao and llm-compressor choose them: symmetric steps reach half a step beyond the last one."""
    levels = 2**bits - 1
    if has_zero_point:
        low = np.minimum(w.min(axis=1, keepdims=True), np.float32(0))
        high = np.maximum(w.max(axis=1, keepdims=True), np.float32(0))
        step = np.maximum((high - low) / np.float32(levels), _TINY)
        zero = np.clip(-np.rint(low / step), 0, levels)
        steps = np.clip(np.rint(w * (1 / step)) + zero, 0, levels) - zero
    else:
        step = np.maximum(np.abs(w).max(axis=1, keepdims=True) / np.float32(levels / 2), _TINY)
        steps = np.clip(np.rint(w * (1 / step)), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return np.asarray(steps * step, np.float32)


def _floats(kind: _Small, w: Floats) -> Floats:
    scale = np.maximum(np.abs(w).max(axis=1, keepdims=True) / np.float32(kind.largest), np.float32(1e-12))
    return np.asarray(round_small(kind, w / scale) * scale, np.float32)


def _microscaled(kind: _Small, w: Floats) -> Floats:
    """Scales are powers of two, as in the specification of OCP: nothing is looked for, what is beyond is clipped."""
    _, exponent = np.frexp(np.abs(w).max(axis=1, keepdims=True))
    scale = np.ldexp(np.float32(1), np.maximum(exponent - 1 - kind.highest, -126))
    return np.asarray(round_small(kind, w / scale) * scale, np.float32)


def _nvfp4(weight: Floats) -> Floats:
    """Scales of blocks of 16 are fp8, and have a scale of their own for the whole matrix."""
    over = np.float32(np.abs(weight).max() / np.float32(448) / np.float32(6)) or np.float32(1)

    def each(w: Floats) -> Floats:
        wanted = np.clip(np.abs(w).max(axis=1, keepdims=True) / np.float32(6) / over, _E4M3_TINY, np.float32(448))
        scale = round_small(_E4M3, wanted)
        return np.asarray(round_small(_E2M1, w * (np.float32(1) / over / scale)) * (over * scale), np.float32)

    return _grouped(16, each, weight)


def _normal_floats(w: Floats) -> Floats:
    scale = np.abs(w).max(axis=1, keepdims=True)
    return np.asarray(_NF4[np.searchsorted(_NF4_BORDERS, w / np.maximum(scale, _TINY))] * scale, np.float32)


def round_small(kind: _Small, x: Floats) -> Floats:
    """To the nearest number of the type, ties to even; what is beyond its largest becomes that."""
    _, exponent = np.frexp(x)
    step = np.ldexp(np.float32(1), np.maximum(exponent - 1, kind.lowest) - kind.mantissa)
    return np.asarray(np.clip(np.rint(x / step) * step, -kind.largest, kind.largest), np.float32)


def _bfloat(w: Floats) -> Floats:
    bits = w.view(np.uint32)
    return np.asarray((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000), np.uint32).view(np.float32)


def _half(w: Floats) -> Floats:
    return w.astype(np.float16).astype(np.float32)


def _same(w: Floats) -> Floats:
    return w


_HALVES: dict[str, Callable[[Floats], Floats]] = {"bf16": _bfloat, "fp16": _half, "fp32": _same}


def _gguf(name: str) -> Format:
    """By llama.cpp's own package, as far as that can pack: of k-quants it can only read."""
    try:
        import gguf
        from gguf import quants
    except ModuleNotFoundError as error:
        raise ModelError(f"{name} is a format of GGUF, which needs the package gguf: pip install gguf.") from error
    kind = gguf.GGMLQuantizationType[name.upper()]
    group, taken = gguf.GGML_QUANT_SIZES[kind]
    bits = int(name[1])

    def each(w: Floats) -> Floats:
        packed: Any = quants.quantize(w, kind)
        return np.asarray(quants.dequantize(packed, kind), np.float32)

    return Format(name, bits, group, taken * 8 - bits * group, partial(_grouped, group, each))
