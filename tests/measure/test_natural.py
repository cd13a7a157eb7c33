"""What formats leave of numbers of a bell shape, against rounding such numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from inc_tb.frameworks.ops import Quantization
from inc_tb.measure.natural import natural, usual
from inc_tb.measure.stats import PairStats


def stats_of(x: np.ndarray) -> PairStats:
    stats = PairStats(0)
    stats.update(x, x)
    return stats


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("bits", "group"), [(2, 32), (3, 32), (4, 16), (4, 32), (4, 128), (4, 1024), (8, 32), (8, 4096), (16, 1024)]
)
def test_it_is_what_rounding_leaves(bits: int, group: int, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((64, 4096)).astype(np.float32)
    groups, levels = x.astype(float).reshape(-1, group), 2**bits - 1
    step = np.abs(groups).max(1, keepdims=True) * 2 / levels
    y = np.clip(np.round(groups / step), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1) * step
    db = 10 * math.log10((groups**2).sum() / ((groups - y) ** 2).sum())
    low = -(2 ** (bits - 1))
    found = natural(Quantization("int", None, None, low, low + levels, axis=0, block=group), stats_of(x))
    assert found.sqnr_db == pytest.approx(db, abs=0.5)
    assert found.flushed == pytest.approx(float((y == 0).mean()), abs=0.02)


def test_scales_are_shared_by_a_channel_or_by_all() -> None:
    stats = stats_of(np.zeros((64, 256), np.float32))
    scales = Quantization("int8", np.ones(64, np.float32), np.zeros(64, np.int64), -128, 127, axis=0)
    one = Quantization("int8", np.float32(1), np.int64(0), -128, 127)
    blocks = Quantization("int8", None, None, -128, 127, axis=0, block=256)
    assert natural(scales, stats) == natural(blocks, stats)
    assert natural(one, stats).sqnr_db < natural(scales, stats).sqnr_db < 45


@pytest.mark.parametrize(
    ("dtype", "db"), [("float8_e4m3fn", 32.5), ("float8e5m2", 26.5), ("bfloat16", 56.6), ("float16", 74.7)]
)
def test_floats_have_the_same_noise_at_any_size(dtype: str, db: float) -> None:
    """Between 1 and 2 a step is 2 to the power of minus the mantissa's bits, and the mean square of a number 7/3."""
    found = natural(Quantization(dtype, None, None, 0, 0), stats_of(np.zeros((4, 4), np.float32)))
    assert found.sqnr_db == pytest.approx(db, abs=0.1)


def test_the_format_of_most_weights_is_the_usual_one() -> None:
    few, many = stats_of(np.zeros((4, 32), np.float32)), stats_of(np.zeros((64, 32), np.float32))
    four, eight = (Quantization(f"int{b}", None, None, -(2 ** (b - 1)), 2 ** (b - 1) - 1, 0, 32) for b in (4, 8))
    assert usual([(eight, few), (four, many), (eight, few)]) == natural(four, many)
    assert usual([]) is None
