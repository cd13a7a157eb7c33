"""What samples look like, told by their shapes alone; of the worst ones, in any batches and processes."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import pytest

from inc_tb.frameworks.ops import Op, Pair
from inc_tb.measure.by_sample import Samples, in_turns
from inc_tb.measure.previews import MOST, Previews, preview_of
from inc_tb.measure.shards import Shard, packed, unpacked

OPS = [Op("out", "Gemm", 0, compared_at="out")]


def opened(data: bytes) -> Any:
    """A PNG of 8 bits whose lines are not filtered, as every browser reads it; its checksums are right."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    parts, at = {}, 8
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack_from(">I", data, at + 8 + size)[0] == zlib.crc32(kind + content)
        parts[kind], at = content, at + 12 + size
    width, height, bits, color = struct.unpack_from(">IIBB", parts[b"IHDR"])
    assert bits == 8
    lines = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape((height, width, 3) if color == 2 else (height, width))


@pytest.mark.parametrize(
    ("shape", "dtype", "kind"),
    [
        ((1, 8, 8), "f4", "image"), ((3, 8, 9), "f4", "image"), ((32, 32, 3), "u1", "image"),
        ((9, 8, 4), "f4", "image"),
        ((16000,), "f4", "audio"), ((1, 4000), "i2", "audio"),
        ((2, 8, 8), "f4", ""), ((3, 7, 8), "f4", ""), ((784,), "f4", ""), ((2, 16000), "f4", ""), ((128, 64), "f4", ""),
        ((), "f4", ""), ((1, 8, 8), "?", ""),
    ],
)  # fmt: skip
def test_kinds_by_shape(shape: tuple[int, ...], dtype: str, kind: str) -> None:
    found = preview_of(np.ones(shape, dtype), 5, "x")
    assert (found.kind if found else "") == kind


def test_pictures_are_stretched_and_small() -> None:
    pixels = np.zeros((1, 100, 200), np.float32)
    pixels[0, :, 100:] = -2.0
    found = preview_of(pixels, 0, "x")
    assert found is not None
    shown = opened(found.data)
    assert shown.shape == (25, 50)  # every 4 x 4
    assert set(shown[:, :25].ravel()) == {255}
    assert set(shown[:, 25:].ravel()) == {0}
    color = np.zeros((3, 8, 8), np.uint8)
    color[0] = 200
    found = preview_of(color, 0, "x")
    assert found is not None
    assert opened(found.data)[4, 4].tolist() == [255, 0, 0]


def test_outline_and_text() -> None:
    found = preview_of(np.linspace(-0.5, 1, 12800), 0, "x")
    assert found is not None
    low, high = np.frombuffer(found.data, np.int8).reshape(-1, 2).T
    assert (low[0], high[-1]) == (-64, 127)
    assert (low <= high).all()
    for text in (np.array("a text"), np.array(b"a text"), np.array(["a text"], object)):
        found = preview_of(text, 0, "x")
        assert found is not None
        assert found.text == "a text"


def seen(images: np.ndarray, errors: np.ndarray, size: int, *, parts: int = 1) -> list[Samples]:
    """Each batch of `size` goes to the next of so many processes."""
    found = [Samples(previews=Previews(is_wanted=True)) for _ in range(parts)]
    for one in found:
        one.set_ops(OPS)
    for turn, at in enumerate(range(0, len(images), size)):
        one, x = found[turn % parts], images[at : at + size]
        one.begin({"x": x}, len(x))
        for half in np.array_split(np.arange(at, at + len(x)), 2):
            reference = np.ones((len(half), 4), np.float32)
            one.see(Pair("out", "out", "output", reference, reference + errors[half, None], None))
            one.add(("out", "output"), reference, reference + errors[half, None])
        one.end()
    return found


def test_the_worst_of_all_batches_and_processes() -> None:
    random = np.random.default_rng(2)
    images = random.normal(size=(100, 1, 8, 8)).astype(np.float32)
    errors = random.permutation(100).astype(np.float32)
    worst = np.argsort(-errors)[:MOST].tolist()
    (whole,) = seen(images, errors, 7)
    found = whole.stored().previews
    assert [preview.sample for preview in found] == worst
    assert found[0] == preview_of(images[worst[0]], worst[0], "x")
    shards = [unpacked(packed(Shard(by_sample=one))).by_sample for one in seen(images, errors, 7, parts=3)]
    assert in_turns(shards).stored().previews == found
    assert not Samples().stored().previews


def test_tokens_are_read_by_their_tokenizer() -> None:
    found = Samples(previews=Previews(True, lambda ids: " ".join(map(str, ids))))
    found.set_ops(OPS)
    ids = np.array([[5, 6, 0], [7, 8, 9]])
    found.begin({"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64)}, 2)
    ones = np.ones((2, 4), np.float32)
    found.see(Pair("out", "out", "output", ones, 2 * ones, None))
    found.add(("out", "output"), ones, 2 * ones)
    found.end()
    assert [preview.text for preview in found.stored().previews] == ["5 6", "7 8 9"]
