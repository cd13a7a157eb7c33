from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from inc_tb.frameworks.ops import Op, Quantization
from inc_tb.measure import metrics
from inc_tb.measure.op_table import COLUMNS, Measurement, Verdict, arrived_sqnr_db, op_table
from inc_tb.measure.stats import PairStats

DESIGNED = """name type block index unit weight_dtype weight_granularity act_dtype act_scale act_zero_point act_scheme
w_min w_max w_range w_mean w_std w_var a_min a_max a_range a_mean a_std a_var w_q_min w_q_max w_q_mean w_q_std w_q_var
a_q_min a_q_max a_q_mean a_q_std a_q_var w_mse w_nmse w_sqnr_db w_cosine w_max_abs w_rmse_lsb w_inc_mse
a_mse a_nmse a_sqnr_db a_cosine a_max_abs a_rmse_lsb a_inc_mse a_clipped a_range_used a_flushed a_kurtosis
w_channel_ratio a_channel_ratio w_worst_channel a_worst_channel w_worst_channel_sqnr_db a_worst_channel_sqnr_db
added_sqnr_db arrived_sqnr_db total_sqnr_db sensitivity sensitivity_low sensitivity_high recovery sensitivity_gradient
time_fp32_us time_int8_us convert_us speedup params sensitivity_rank module verdict reason""".split()


def stats(x: Any, y: Any, axis: int | None = None, limits: Any = None) -> PairStats:
    s = PairStats(axis, limits)
    s.update(np.asarray(x, np.float32), np.asarray(y, np.float32))
    return s


def int8(scale: Any, axis: int | None = None) -> Quantization:
    scales = np.atleast_1d(np.asarray(scale, np.float32))
    return Quantization("int8", scales, np.zeros(scales.shape, np.int64), -128, 127, axis)


def test_every_designed_column_is_there_with_its_explanation() -> None:
    assert {c.name for c in COLUMNS} == set(DESIGNED)
    for column in COLUMNS:
        assert column.label
        assert len(column.help) > 10
        assert column.help.rstrip().endswith(".")
        assert column.unit or column.type == "text"


def test_errors_worked_out_by_hand() -> None:
    # x = 3 4, y = 3 5: e² = 0 1, mean 0.5; power 25, so noise/signal 0.04 = 13.979 dB.
    s = stats([3, 4], [3, 5])
    assert metrics.mse(s) == 0.5
    assert metrics.nmse(s) == 1 / 25
    assert metrics.sqnr_db(s) == pytest.approx(13.9794, abs=1e-4)
    # cosine = (9 + 20) / (5 · √34)
    assert metrics.cosine(s) == pytest.approx(29 / (5 * math.sqrt(34)))
    assert metrics.max_abs(s) == 1
    # RMSE √0.5 in steps of 0.5
    assert metrics.rmse_lsb(s, int8(0.5)) == pytest.approx(math.sqrt(0.5) / 0.5)


def test_the_range_is_the_largest_minus_the_smallest_value() -> None:
    # x = -1.5 … 4 in two batches, and -2 … 1 quantized, which does not count
    s = stats([-1.5, 2], [-2, 1])
    s.update(np.float32([4, 0]), np.float32([1, 0]))
    assert metrics.value_range(s, "x") == 5.5
    assert metrics.value_range(s, "y") == 3
    assert metrics.value_range(stats([7, 7], [7, 7]), "x") == 0
    assert "no finite value" in str(metrics.value_range(stats([], []), "x"))
    op = Op("a", "Conv", 0)
    row = next(op_table([Measurement(op, weight=s, output=stats([-8, 8], [0, 0]))], {"a": Verdict()}).rows())
    assert (row["w_range"], row["a_range"]) == (5.5, 16)


def test_rmse_in_steps_uses_each_channels_own_step() -> None:
    # errors 1 1 | 2 2 with steps 1 and 4: 1 1 | 0.5 0.5 steps, mean square 0.625
    s = stats([[1, 1], [2, 2]], [[0, 0], [0, 0]], axis=0)
    assert metrics.rmse_lsb(s, int8([1, 4], axis=0)) == pytest.approx(math.sqrt(0.625))
    assert "another axis" in str(metrics.rmse_lsb(s, int8([1, 2, 3], axis=0)))


def test_pure_rounding_gives_0_289_steps() -> None:
    x = np.random.default_rng(0).uniform(-10, 10, 200_000)
    assert metrics.rmse_lsb(stats(x, np.round(x / 0.1) * 0.1), int8(0.1)) == pytest.approx(12**-0.5, rel=0.01)


def test_the_mse_of_neural_compressor() -> None:
    x = np.random.default_rng(1).normal(2, 3, 1000).astype(np.float32)
    y = x + np.random.default_rng(2).normal(0, 0.1, 1000).astype(np.float32)

    def scaled(v: np.ndarray) -> np.ndarray:
        wide = v.astype(np.float64)
        return (wide - wide.min()) / (wide.max() - wide.min())

    assert metrics.inc_mse(stats(x, y)) == pytest.approx(np.mean((scaled(x) - scaled(y)) ** 2), rel=1e-9)


def test_kurtosis_is_scipys() -> None:
    # 1 1 1 5: mean 2, deviations -1 -1 -1 3; fourth moment 84/4 = 21, variance 3: 21/9
    assert metrics.kurtosis(stats([1, 1, 1, 5], [0, 0, 0, 0])) == pytest.approx(21 / 9)


def test_causes() -> None:
    s = stats([0, 1, 2, 300], [0, 0, 2, 127], limits=(-128, 127))
    assert metrics.clipped(s, int8(1)) == 0.25
    assert metrics.flushed(s, int8(1)) == 1 / 3
    # 0 to 127 of the 255 from -128 to 127; in steps of 2 up to 254 of 510; -400 to -200 reach none of it
    assert metrics.range_used(s, int8(1)) == 127 / 255
    assert metrics.range_used(s, int8(2)) == 254 / 510
    assert metrics.range_used(stats([-400, -200], [0, 0]), int8(1)) == 0
    assert metrics.range_used(s, int8([1, 2], 0)) == "each channel has a range of its own"
    assert metrics.range_used(s, int8(0)) == "its range is empty"
    assert metrics.range_used(s, None) == "this tensor has no fixed range"


def test_channels() -> None:
    x = np.array([[1, 1], [2, -2], [100, 0], [0, 0]])
    y = x + np.array([[0.1, 0.1], [1, 1], [1, 1], [0, 0]])
    s = stats(x, y, axis=0)
    # ranges 1 2 100 (the dead channel does not count): median 2
    assert metrics.channel_ratio(s) == 50
    assert metrics.worst_channel(s) == 1
    # channel 1: power 8, error 2
    assert metrics.worst_channel_sqnr_db(s) == pytest.approx(10 * math.log10(4), rel=1e-5)


@pytest.mark.parametrize(
    ("x", "y", "metric", "reason"),
    [
        ([1, 2], [1, 2], metrics.sqnr_db, "no error"),
        ([0, 0], [1, 2], metrics.sqnr_db, "zero everywhere"),
        ([], [], metrics.mse, "no finite value"),
        ([np.nan], [1], metrics.mse, "no finite value"),
        ([5, 5], [5, 5], metrics.kurtosis, "constant"),
        ([5, 5], [1, 2], metrics.inc_mse, "constant"),
        ([1, 2], [0, 0], metrics.cosine, "zero everywhere"),
        ([1, 2], [1, 2], metrics.channel_ratio, "only one channel"),
    ],
)
def test_no_number_has_a_reason(x: list[float], y: list[float], metric: Any, reason: str) -> None:
    found = metric(stats(x, y), None)
    assert isinstance(found, str)
    assert reason in found


def test_a_constant_tensor_has_no_variance_whatever_the_rounding() -> None:
    assert metrics.variance(stats([0.1] * 999, [0.1] * 999), "x") == 0.0


def test_arrived_error_is_pooled_over_what_the_op_reads() -> None:
    m = Measurement(Op("add", "Add", 0), arrived=[stats([3, 4], [3, 5]), stats([5], [8])])
    # power 25 + 25, error 1 + 9
    assert arrived_sqnr_db(m) == pytest.approx(10 * math.log10(5))


def test_the_table_has_numbers_or_reasons() -> None:
    table = op_table([Measurement(Op("a", "Conv", 0, note="fused"))], {"a": Verdict()})
    assert math.isnan(table["a_mse"][0])
    assert table.why_null("a_mse", 0) == "fused"
    assert table.why_null("index", 0) == ""
    assert next(table.rows())["a_mse"] is None
