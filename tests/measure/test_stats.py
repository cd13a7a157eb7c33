from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inc_tb.errors import UsageError
from inc_tb.measure import stats as module
from inc_tb.measure.histogram import edges
from inc_tb.measure.stats import EXTREMES, SUMS, PairStats
from inc_tb.records.rows import BINS

finite = st.floats(-(2.0**100), 2.0**100, width=32)
anything = finite | st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -0.0, 2.0**126, 2.0**-140])


def both(*, elements: st.SearchStrategy[float]) -> st.SearchStrategy[tuple[np.ndarray, np.ndarray]]:
    shapes = hnp.array_shapes(min_dims=2, max_dims=4, min_side=1, max_side=18)
    return shapes.flatmap(lambda s: st.tuples(*[hnp.arrays(np.float32, s, elements=elements, fill=elements)] * 2))


def without_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_kernel", None)


def assert_same(a: PairStats, b: PairStats, rtol: float = 1e-12) -> None:
    # Sums of large values that cancel are only as exact as their largest term.
    scale = np.abs(a.sums).max(initial=0.0)
    np.testing.assert_allclose(a.sums, b.sums, rtol=rtol, atol=scale * 1e-13)
    counts = [
        i
        for i, name in enumerate(SUMS)
        if name in ("count", "nonzero", "flushed", "clipped", "nonfinite_x", "nonfinite_y")
    ]
    np.testing.assert_array_equal(a.sums[:, counts], b.sums[:, counts])
    # The kernel subtracts in float32, numpy in float64.
    np.testing.assert_allclose(a.extremes, b.extremes, rtol=2.0**-23)
    for mine, other in zip(a._histograms(), b._histograms(), strict=True):
        assert mine.top == other.top
        np.testing.assert_array_equal(mine.counts, other.counts)


def test_values_worked_out_by_hand() -> None:
    # x = 1 2 | 3 -4, y = 1 0 | 4 -4: e = 0 2 | -1 0; limits -3…3 leave out -4; 2 became zero.
    s = PairStats(channel_axis=0, limits=(-3, 3))
    s.update(np.array([[1, 2], [3, -4]], np.float32), np.array([[1, 0], [4, -4]], np.float32))
    by_channel = dict(zip(SUMS, s.sums.T.tolist(), strict=True))
    assert by_channel == {
        "count": [2, 2], "x": [3, -1], "x2": [5, 25], "x3": [9, -37], "x4": [17, 337], "y": [1, 0], "y2": [1, 32],
        "xy": [1, 28], "e": [2, -1], "e2": [4, 1], "nonzero": [2, 2], "flushed": [1, 0], "clipped": [0, 1],
        "nonfinite_x": [0, 0], "nonfinite_y": [0, 0],
    }  # fmt: skip
    assert dict(zip(EXTREMES, s.extremes.T.tolist(), strict=True)) == {
        "neg_x_min": [-1, 4], "x_max": [2, 3], "neg_y_min": [0, 4], "y_max": [1, 4], "e_abs": [2, 1],
    }  # fmt: skip
    assert s.total("e2") == 5
    assert s.extreme("x_max") == 3
    assert s.reference.total == s.quantized.total == s.error.total == 4


@settings(max_examples=100)
@given(arrays=both(elements=anything), axis=st.integers(0, 1), limit=st.floats(0, 100))
def test_the_kernel_and_numpy_agree(arrays: tuple[np.ndarray, np.ndarray], axis: int, limit: float) -> None:
    assert module._kernel is not None, "these tests need a C compiler at install time"
    compiled, plain = PairStats(axis, (-limit, limit)), PairStats(axis, (-limit, limit))
    compiled.update(*arrays)
    with pytest.MonkeyPatch.context() as patch:
        without_kernel(patch)
        plain.update(*arrays)
    assert_same(compiled, plain, rtol=1e-9)


@pytest.mark.parametrize("kernel", [True, False])
@settings(max_examples=40)
@given(arrays=both(elements=finite), cuts=st.lists(st.integers(0, 18), max_size=4), data=st.data())
def test_splitting_and_merging_in_any_order_gives_the_same(
    kernel: bool, arrays: tuple[np.ndarray, np.ndarray], cuts: list[int], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if not kernel:
            without_kernel(patch)
        whole = PairStats(channel_axis=1)
        whole.update(*arrays)
        x, y = (np.split(a, sorted(cuts)) for a in arrays)
        parts = []
        for a, b in zip(x, y, strict=True):
            parts.append(PairStats(channel_axis=1))
            parts[-1].update(a, b)
        merged = PairStats(channel_axis=1)
        for part in data.draw(st.permutations(parts)):
            merged.merge(part)
    assert_same(whole, merged, rtol=1e-9)


def test_an_outlier_that_comes_last_folds_what_was_counted_before() -> None:
    values = np.array([1e-6, 1.0, -1.0, 3.0], np.float32)
    s = PairStats()
    s.update(values, values)
    s.update(np.array([1e6], np.float32), np.array([1e6], np.float32))
    # 1e6 is in the octave of 2^19; the 16 octaves from there down end at 2^4: all four others are around zero now.
    assert s.reference.counts[BINS // 2] == 4
    assert s.reference.counts[BINS // 2 + 1 :].sum() == 1


@given(hnp.arrays(np.float32, st.integers(1, 300), elements=finite))
def test_every_value_lies_in_its_bin(values: np.ndarray) -> None:
    s = PairStats()
    s.update(values, values)
    borders = edges(s.reference.top)
    at = np.flatnonzero(s.reference.counts)
    expected, _ = np.histogram(np.abs(values), np.r_[0, borders[BINS // 2 + 1 :]])
    folded = s.reference.counts[BINS // 2 :].copy()
    folded[1:] += s.reference.counts[: BINS // 2][::-1]
    # numpy's last bin is closed and binary edges are exact, so magnitudes must agree count for count
    # except for negative values exactly on an edge, which the mirrored bins close on the other side.
    np.testing.assert_array_equal(folded, expected)
    assert at.size
    assert s.reference.total == values.size


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_values_are_counted_apart(bad: float, kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernel:
        without_kernel(monkeypatch)
    s = PairStats()
    s.update(np.array([1, bad, 3], np.float32), np.array([1, 2, bad], np.float32))
    assert (s.total("nonfinite_x"), s.total("nonfinite_y"), s.total("count")) == (1, 1, 1)
    assert (s.total("x"), s.extreme("x_max"), s.reference.total) == (1, 1, 1)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int8, np.int64])
def test_dtypes_are_exact(dtype: np.dtype) -> None:
    x, y = np.array([1, 2, -3], dtype), np.array([1, 1, -3], dtype)
    s = PairStats()
    s.update(x, y)
    assert (s.total("x2"), s.total("e2"), s.extreme("neg_x_min")) == (14, 1, 3)


@pytest.mark.parametrize("kernel", [True, False])
def test_a_difference_too_large_for_float32_stays_countable(kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernel:
        without_kernel(monkeypatch)
    s = PairStats()
    s.update(np.array([3e38], np.float32), np.array([-3e38], np.float32))
    assert s.error.counts[-1] == s.error.total == 1
    assert s.extreme("e_abs") >= float(np.finfo(np.float32).max)
    assert np.isfinite(s.sums).all()


def test_float64_keeps_what_float32_would_lose() -> None:
    s = PairStats()
    s.update(np.array([1e8 + 1, 1e8]), np.array([1e8, 1e8]))
    assert s.total("e2") == 1.0


def test_sums_of_float32_are_accumulated_in_float64() -> None:
    # 2^24 + 1 is where float32 stops counting.
    x = np.ones(2**24 + 8, np.float32)
    s = PairStats()
    s.update(x, np.zeros_like(x))
    assert s.total("x") == s.total("e2") == 2**24 + 8


def test_empty_and_constant_arrays() -> None:
    s = PairStats(channel_axis=1)
    s.update(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32))
    assert s.total("count") == 0
    assert np.isnan(s.extreme("x_max"))
    s.update(np.full((2, 3), 7, np.float32), np.full((2, 3), 7, np.float32))
    assert (s.total("count"), s.extreme("x_max"), s.extreme("neg_x_min")) == (6, 7, -7)


def test_an_axis_whose_length_varies_has_no_channels_whatever_the_order() -> None:
    def run(lengths: list[int]) -> PairStats:
        s = PairStats(channel_axis=-1)
        for n in lengths:
            s.update(np.ones((2, n), np.float32), np.zeros((2, n), np.float32))
        return s

    a, b = run([3, 4, 3]), run([4, 3, 3])
    assert a.channels == b.channels == 1
    assert_same(a, b)


def test_other_memory_layouts_give_the_same() -> None:
    x = np.random.default_rng(0).standard_normal((6, 5, 4)).astype(np.float32)
    plain, strided = PairStats(1), PairStats(1)
    plain.update(x, x * 2)
    strided.update(np.asfortranarray(x), (x * 2)[:, ::-1][:, ::-1])
    assert_same(plain, strided)


def test_energies_of_rows_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 7, 67)).astype(np.float32)
    x[3, 5] = np.inf
    compiled = module.energies(x, y[:, ::-1])
    monkeypatch.setattr(module, "_energies", None)
    np.testing.assert_allclose(compiled, module.energies(x, y[:, ::-1]), rtol=1e-5)
    assert np.isinf([found[3] for found in compiled]).all()


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(UsageError, match=r"\(2,\).*\(3,\)"):
        PairStats().update(np.zeros(2), np.zeros(3))


def test_limits_per_channel() -> None:
    s = PairStats(channel_axis=0, limits=([-1, -10], [1, 10]))
    s.update(np.array([[5, 0.5], [5, 20]], np.float32), np.zeros((2, 2), np.float32))
    assert s.channel_sums("clipped").tolist() == [1, 1]


@pytest.fixture(scope="module")
def plain_c(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kernel as a processor without vector instructions runs it."""
    library = tmp_path_factory.mktemp("kernel") / "plain.so"
    source = Path(module.__file__).with_name("_stats.c")
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-DPLAIN_C", "-shared", "-fPIC"]
    command = ["cc", *flags, "-o", library, source, "-lm"]
    subprocess.run(command, check=True)
    function = ctypes.CDLL(str(library)).inc_tb_update
    function.restype = None
    return function


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((2, 3, 50000), 1), ((70000, 2), 1), ((9, 100, 15), 1), ((4, 17, 16), 1), ((3, 33, 17), 1), ((100000,), None),
        ((50, 5000), 1), ((40, 3001, 3), 1), ((64, 64, 64), 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("bad", [True, False])
def test_the_kernels_agree_on_layouts_larger_than_their_blocks(
    shape: tuple[int, ...], axis: int | None, bad: bool, plain_c: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    x = np.maximum(rng.standard_normal(shape), -0.1).astype(np.float32)
    y = (np.round(x * 8) / 8).astype(np.float32)  # of which many are zero, and some are -0
    x[rng.random(shape) < 0.4] = 0
    if bad:
        x.flat[[3, 40]], y.flat[[5, 40]] = np.nan, np.inf
    found = []
    for kernel in (module._kernel, plain_c, None):
        monkeypatch.setattr(module, "_kernel", kernel)
        found.append(PairStats(axis, (-1, 1)))
        found[-1].update(x, y)
    assert_same(found[0], found[2])
    assert_same(found[1], found[2])
    np.testing.assert_array_equal(found[0].extremes, found[1].extremes)
