"""What the worst samples look like: small pictures, outlines of sound, beginnings of texts.

Which samples are worst is known once all are through, and nothing is kept that was not among the worst at its time:
memory does not grow with the number of samples.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from inc_tb.frameworks.ops import Array, Batch
from inc_tb.records import Preview

MOST = 40
"""Samples of a diagnosis that have one."""
_MOST_PIXELS = 64
_FEWEST_PIXELS = 8
_FEWEST_SOUNDS = 4000
"""Numbers in a row that may be sound: fewer are features."""
_OUTLINE = 128
_MOST_LETTERS = 400
_TOKENS, _MASK = "input_ids", "attention_mask"

Decode = Callable[[Sequence[int]], str]
Ranked = tuple[float, Preview]


@dataclass
class Previews:
    """Those of the samples whose result is furthest from the reference so far."""

    is_wanted: bool = False
    decode: Decode | None = None
    """Makes text of tokens; without it tokens have no preview."""
    worst: list[Ranked] = field(default_factory=list)
    """The worst first: error over signal, and what to show."""
    _batch: Batch = field(default_factory=dict)
    _first: int = 0
    _shares: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))

    def begin(self, batch: Batch, samples: int, first: int, most: int) -> None:
        """`first` is the place of the batch's first sample in the data, of which only so many have a place."""
        self._batch = {name: array for name, array in batch.items() if array.ndim and len(array) == samples}
        self._first = first
        can_show = self.is_wanted and samples and self._shown(0) is not None
        self._shares = np.full(max(0, min(samples, most - first)) if can_show else 0, -np.inf)

    def see(self, row: int, power: npt.NDArray[Any], error: npt.NDArray[Any]) -> None:
        """Energies of samples of this batch, from the `row`-th on, at an output."""
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(error > 0, error.astype(np.float64) / power, -np.inf)
        here = self._shares[row : row + len(share)]
        np.fmax(here, share[: len(here)], out=here)

    @property
    def is_looking(self) -> bool:
        return bool(len(self._shares))

    def end(self) -> None:
        """Of a batch, all outputs of which were seen."""
        least = self.worst[-1][0] if len(self.worst) >= MOST else -np.inf
        worst = np.argsort(-self._shares, kind="stable")[:MOST]
        for i in worst[self._shares[worst] > least].tolist():
            shown = self._shown(i)
            if shown is not None:
                self.worst.append((float(self._shares[i]), shown))
        self.worst = ranked(self.worst)
        self._batch, self._shares = {}, np.empty(0)

    def _shown(self, i: int) -> Preview | None:
        place = self._first + i
        if self.decode is not None and _TOKENS in self._batch and self._batch[_TOKENS].ndim == 2:
            ids = self._batch[_TOKENS][i]
            mask = self._batch.get(_MASK)
            kept = ids[mask[i] > 0] if mask is not None and mask.shape == self._batch[_TOKENS].shape else ids
            return Preview(place, _TOKENS, "text", text=self.decode(kept.tolist())[:_MOST_LETTERS])
        for name, array in self._batch.items():
            found = preview_of(array[i], place, name)
            if found is not None:
                return found
        return None


def ranked(found: Sequence[Ranked]) -> list[Ranked]:
    return sorted(found, key=lambda one: (-one[0], one[1].sample))[:MOST]


def preview_of(sample: Any, place: int, name: str) -> Preview | None:
    """None where the shape of a sample does not tell that it is something to look at."""
    array: Array = np.asarray(sample)
    if array.dtype.kind in "OSU" and array.size == 1:
        text = array.reshape(-1)[0]
        told = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
        return Preview(place, name, "text", text=told[:_MOST_LETTERS])
    if array.dtype.kind not in "fiu":
        return None
    pixels = _as_pixels(array)
    if pixels is not None:
        return Preview(place, name, "image", _png(_small(pixels)))
    sound = array.reshape(-1)
    if len(sound) == max(array.shape, default=0) >= _FEWEST_SOUNDS and array.dtype.kind in "fi":
        return Preview(place, name, "audio", _outline(sound.astype(np.float32)))
    return None


def _as_pixels(array: Array) -> npt.NDArray[np.float32] | None:
    """Height, width, one or three colors: of (colors, height, width), or as they are."""
    if array.ndim != 3:
        return None
    if array.shape[0] in (1, 3) and min(array.shape[1:]) >= _FEWEST_PIXELS:
        array = array.transpose(1, 2, 0)
    elif array.shape[2] not in (1, 3, 4) or min(array.shape[:2]) < _FEWEST_PIXELS:
        return None
    return array[:, :, : 3 if array.shape[2] >= 3 else 1].astype(np.float32)


def _small(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """At most so many pixels a side, means of squares; from the darkest to the brightest value of the sample."""
    by = -(-max(pixels.shape[:2]) // _MOST_PIXELS)
    height, width = (max(1, side // by) for side in pixels.shape[:2])
    cut = pixels[: height * by, : width * by]
    rows, columns = (min(by, side) for side in cut.shape[:2])
    means = np.nan_to_num(cut.reshape(height, rows, width, columns, -1).mean(axis=(1, 3)), posinf=0, neginf=0)
    low, span = means.min(), float(np.ptp(means)) or 1.0
    shades: npt.NDArray[np.uint8] = np.round((means - low) / span * 255).astype(np.uint8)
    return shades


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    height, width, colors = pixels.shape
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if colors == 3 else 0, 0, 0, 0)
    lines = b"".join(b"\0" + row.tobytes() for row in pixels)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )


def _outline(sound: npt.NDArray[np.float32]) -> bytes:
    """Lowest and highest value in each of so many stretches, as shares of the largest magnitude in 127ths."""
    known = np.nan_to_num(sound, posinf=0, neginf=0)
    largest = float(np.abs(known).max()) or 1.0
    parts = np.array_split(known / largest, _OUTLINE)
    return np.round([(127 * part.min(), 127 * part.max()) for part in parts]).astype(np.int8).tobytes()
