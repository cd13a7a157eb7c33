"""The smallest network that shows everything: five ops, two results, and numbers that can be checked by hand.

    x ── first ── relu ──┬── second ── softmax ──
                         └── side ───────────────

`first`, `second` and `side` are products with constant weights and no bias. Every framework builds it of its own
layers, under whatever names it gives them, and the contracts hold it to the values here, which no framework has
computed. Data are multiples of 1/16 and weights of 1/256, so fp32 adds them up exactly, in any order: the first value
is (16 * 127 + 8 * 3.25 - 4 * 10.25 + 2 * 5.25) / 16 / 64 = 2027.5 / 1024.

Weights are told in steps of the int8 grid that the largest of each row makes, 127 of them; the others are a quarter of
a step beside it, which is what rounding takes away. Of two weights side by side the positive parts are 128 steps
together at the most, and so are the negative ones: kernels that add two products in 16 bits, as those for CPUs without
VNNI do, have nothing to cut off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
STEP = 1 / 64
X = np.array(
    [[16, -8, 4, 2], [-16, 12, -6, 5], [3, 7, 15, -9], [-4, -16, 10, 16], [9, 1, -13, -2], [-7, 14, 8, -11]], np.float32
) / np.float32(16)
"""From -1 to 1; the first axis counts the samples."""
WEIGHTS: Mapping[str, Array] = {
    name: np.array(steps, np.float32) * np.float32(STEP)
    for name, steps in {
        "first": [[127, -3.25, -10.25, 5.25], [-127, 20.25, 8.25, -2.25], [6.25, -30.25, 127, -12.25]],
        "second": [[127, -16.25, 4.25], [-9.25, 127, -40.25]],
        "side": [[-33.25, 127, 11.25], [50.25, -7.25, 127]],
    }.items()
}
"""Op -> a row for each of its results, with as many columns as it reads."""
READS: Mapping[str, list[str]] = {
    "first": [], "relu": ["first"], "second": ["relu"], "softmax": ["second"], "side": ["relu"],
}  # fmt: skip
"""Op -> the ops that it reads, in the order of the graph."""
SCORES, RESULTS = ("second", "side"), ("softmax", "side")


def computed(x: Array = X, **instead: Array) -> dict[str, Array]:
    """What each op gives, with other weights for those that are named."""
    weights = {**WEIGHTS, **instead}
    found = {"first": x @ weights["first"].T}
    found["relu"] = np.maximum(found["first"], 0)
    found["second"] = found["relu"] @ weights["second"].T
    found["softmax"] = softmax(found["second"])
    found["side"] = found["relu"] @ weights["side"].T
    return found


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def by_row(weights: Array, name: str) -> Array:
    """However a framework stores them."""
    return weights if weights.shape == WEIGHTS[name].shape else weights.T


@dataclass(frozen=True)
class Tiny:
    """The network in one framework, and what it is in int8."""

    reference: Any
    quantized: Any
    names: Mapping[str, str] = field(default_factory=lambda: {name: name for name in READS})
    """What an op is called there."""
    input: str = "x"

    @property
    def batch(self) -> dict[str, Array]:
        return {self.input: X}

    @property
    def wrong_batches(self) -> list[dict[str, Array]]:
        return [{**self.batch, "nonsense": X}, {self.input: X[:, :3]}, {self.input: X.astype(str)}]
