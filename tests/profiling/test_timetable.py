"""From executions of kernels, made up by hand, to the rows of a profile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pytest

from inc_tb.frameworks.protocols import Execution, Kernel, Recorded
from inc_tb.frameworks.traces import Slice
from inc_tb.profiling.timetable import KEPT_RUNS, Side, Timed, tabulate
from inc_tb.records import ProfileRow, Span

CONV, RELU, FC = Kernel("conv", "Conv", ("conv",)), Kernel("relu", "Relu", ("relu",)), Kernel("fc", "Gemm", ("fc",))


def _run(*parts: tuple[Kernel, float], start: float = 0.0, thread: str = "main") -> list[Execution]:
    """One after the other."""
    found = []
    for kernel, took in parts:
        found.append(Execution(kernel, thread, start, took))
        start += took
    return found


def _measured(runs: Sequence[list[Execution]], plain: Iterable[float] = (), **more: float) -> Timed:
    whole = list(plain) or [sum(e.duration_us for e in run) for run in runs]
    return Timed(plain=whole, profiled=whole, runs=list(runs), **more)  # type: ignore[arg-type]


def _rows(
    measured: Mapping[Side, Timed],
    twins: Mapping[str, Sequence[str]] | None = None,
    blocks: Sequence[int] | None = None,
) -> dict[str, ProfileRow]:
    count = len(next(iter(measured.values())).runs)
    rows, _ = tabulate(measured, twins or {}, blocks or [count])
    assert len({row.op for row in rows}) == len(rows)
    return {row.op: row for row in rows}


def _same(*parts: tuple[Kernel, float], runs: int = 3) -> Timed:
    return _measured([_run(*parts) for _ in range(runs)])


def test_median_p95_and_mean_are_those_of_numpy() -> None:
    random = np.random.default_rng(0)
    times = random.gamma(2, 10, (3, 31))
    kernels = (CONV, RELU, FC)
    rows = _rows({"fp32": _measured([_run(*zip(kernels, run, strict=True)) for run in times.T])})
    for kernel, of_op in zip(kernels, times, strict=True):
        row = rows[kernel.name]
        assert row.fp32_us == pytest.approx(np.median(of_op))
        assert row.fp32_p95_us == pytest.approx(np.percentile(of_op, 95))
        assert row.fp32_mean_us == pytest.approx(np.mean(of_op))
        assert (row.int8_us, row.int8_p95_us, row.int8_mean_us, row.convert_us) == (None, None, None, 0.0)
        assert (row.differs, row.difference_us, row.low_us, row.high_us) == (None, None, None, None)


def test_a_kernel_that_runs_several_times_in_a_run_counts_as_often() -> None:
    """As in a loop, or on several threads; where it does not run at all, that run has none of its time."""
    runs = [_run((CONV, 2.0), (CONV, 3.0)), _run((CONV, 4.0)), _run((FC, 1.0))]
    rows = _rows({"fp32": _measured(runs)})
    assert rows["conv"].fp32_us == 4.0
    assert rows["conv"].fp32_mean_us == 3.0
    assert rows["fc"].fp32_us == 0.0


def test_rows_are_in_the_order_of_the_model_and_the_rest_comes_last() -> None:
    only_int8 = Kernel("extra", "Cast", ("extra",))
    rows, _ = tabulate(
        {"fp32": _same((CONV, 1), (RELU, 1), (FC, 1)), "int8": _same((FC, 1), (only_int8, 1), (CONV, 1), (RELU, 1))},
        {}, [3],
    )  # fmt: skip
    assert [row.op for row in rows] == ["conv", "relu", "fc", "extra", ""]


@pytest.mark.parametrize("fused_in", ["fp32", "int8"])
def test_what_one_model_has_fused_is_one_row_of_both(fused_in: Side) -> None:
    fused = Kernel("conv+relu", "FusedConv", ("conv", "relu"))
    together, apart = _same((fused, 10), (FC, 2)), _same((CONV, 7), (RELU, 5), (FC, 2))
    measured: dict[Side, Timed] = {"fp32": apart, "int8": apart}
    measured[fused_in] = together
    row = _rows(measured)["conv"]
    assert row.ops == ["relu"]
    assert getattr(row, f"{fused_in}_us") == 10
    assert getattr(row, f"{'int8' if fused_in == 'fp32' else 'fp32'}_us") == 12
    assert row.type == ("FusedConv" if fused_in == "fp32" else "Conv")
    assert _rows(measured).keys() == {"conv", "fc", ""}


def test_fusions_of_both_models_that_overlap_are_one_row() -> None:
    """conv+relu here and relu+fc there: no time of the three can be told from the others' in both models."""
    fp32 = _same((Kernel("a", "FusedConv", ("conv", "relu")), 10), (FC, 3))
    int8 = _same((CONV, 2), (Kernel("b", "QGemm", ("fc", "relu")), 4))
    rows = _rows({"fp32": fp32, "int8": int8})
    assert rows.keys() == {"conv", ""} or rows.keys() == {"fc", ""}
    row = next(iter(rows.values()))
    assert {row.op, *row.ops} == {"conv", "relu", "fc"}
    assert (row.fp32_us, row.int8_us) == (13, 6)


def test_a_fused_row_has_the_name_of_the_op_that_the_kernel_names_first() -> None:
    """The one with the weights, wherever it stands."""
    kernel = Kernel("pad+conv", "Conv", ("conv", "pad"))
    rows = _rows({"fp32": _same((kernel, 5))})
    assert rows["conv"].ops == ["pad"]


def test_ops_of_the_quantized_model_stand_for_those_of_the_reference() -> None:
    renamed = Kernel("conv_quant", "QLinearConv", ("conv_quant",))
    rows = _rows(
        {"fp32": _same((CONV, 9), (RELU, 1), (FC, 4)), "int8": _same((renamed, 3), (FC, 1))},
        {"conv_quant": ["conv", "relu"], "fc": ["fc"]},
    )
    assert rows.keys() == {"conv", "fc", ""}
    assert rows["conv"].ops == ["relu"]
    assert (rows["conv"].fp32_us, rows["conv"].int8_us) == (10, 3)
    assert rows["conv"].type == "Conv"


def test_names_of_the_reference_are_not_taken_for_others_of_the_quantized_model() -> None:
    """`b` of the int8 model is `a` of the reference, which has a `b`, too."""
    a, b = Kernel("a", "Conv", ("a",)), Kernel("b", "Conv", ("b",))
    rows = _rows({"fp32": _same((a, 9), (b, 5)), "int8": _same((b, 3), (a, 1))}, {"b": ["a"], "a": ["b"]})
    assert (rows["a"].fp32_us, rows["a"].int8_us) == (9, 3)
    assert (rows["b"].fp32_us, rows["b"].int8_us) == (5, 1)


QUANTIZE = Kernel("conv_QuantizeLinear", "QuantizeLinear", ("conv",), is_conversion=True)
DEQUANTIZE = Kernel("fc_DequantizeLinear", "DequantizeLinear", ("fc",), is_conversion=True)


def test_conversions_are_apart_on_the_op_that_they_are_there_for() -> None:
    int8 = _same((QUANTIZE, 0.5), (CONV, 3), (RELU, 1), (FC, 1), (DEQUANTIZE, 0.25))
    rows = _rows({"fp32": _same((CONV, 9), (RELU, 1), (FC, 4)), "int8": int8})
    assert {name: (row.int8_us, row.convert_us) for name, row in rows.items() if name} == {
        "conv": (3, 0.5), "relu": (1, 0.0), "fc": (1, 0.25),
    }  # fmt: skip
    assert rows["conv"].type == "Conv"
    assert [row.op for row in rows.values()] == ["conv", "relu", "fc", ""]


def test_a_conversion_joins_nothing() -> None:
    """Also where it says that it is there for several ops."""
    both = Kernel("q", "QuantizeLinear", ("conv", "fc"), is_conversion=True)
    rows = _rows({"fp32": _same((CONV, 9), (FC, 4)), "int8": _same((both, 0.5), (CONV, 3), (FC, 1))})
    assert rows["conv"].convert_us == 0.5
    assert rows["fc"].convert_us == 0.0
    assert rows["conv"].ops == rows["fc"].ops == []


def test_a_conversion_for_a_fused_op_is_in_its_row() -> None:
    fused = Kernel("conv+relu", "FusedConv", ("conv", "relu"))
    behind = Kernel("dq", "DequantizeLinear", ("relu",), is_conversion=True)
    rows = _rows({"fp32": _same((fused, 9)), "int8": _same((CONV, 3), (RELU, 1), (behind, 0.5))})
    assert rows.keys() == {"conv", ""}
    assert (rows["conv"].int8_us, rows["conv"].convert_us) == (4, 0.5)


def test_conversions_of_the_reference_are_part_of_its_time() -> None:
    """Reordering for a layout of blocks, or casts of half precision: there is no other precision to blame."""
    reorder = Kernel("reorder", "ReorderInput", ("conv",), is_conversion=True)
    rows = _rows({"fp32": _same((reorder, 2), (CONV, 9)), "int8": _same((CONV, 3))})
    assert (rows["conv"].fp32_us, rows["conv"].int8_us, rows["conv"].convert_us) == (11, 3, 0.0)
    assert rows["conv"].type == "Conv"


def test_an_op_of_which_only_conversions_are_left_has_no_time_in_int8() -> None:
    """A Relu that the quantized model has worked into a range."""
    left = Kernel("q", "QuantizeLinear", ("relu",), is_conversion=True)
    row = _rows({"fp32": _same((RELU, 2)), "int8": _same((left, 0.5))})["relu"]
    assert (row.fp32_us, row.int8_us, row.int8_p95_us, row.convert_us) == (2, None, None, 0.5)
    assert row.type == "Relu"


def test_kernels_that_are_nobodys_have_rows_of_their_own() -> None:
    own = Kernel("MemcpyToHost", "Memcpy", ())
    rows = _rows({"fp32": _same((CONV, 9), (own, 1)), "int8": _same((CONV, 3))})
    assert rows["MemcpyToHost"].fp32_us == 1
    assert rows["MemcpyToHost"].int8_us is None
    assert rows["MemcpyToHost"].type == "Memcpy"


def test_the_rest_is_what_whole_runs_take_beyond_their_ops() -> None:
    fp32 = _measured([_run((CONV, 9), (FC, 4))] * 3, plain=[20, 15, 14])
    int8 = _measured([_run((CONV, 3), (FC, 1))] * 3, plain=[3.5, 3.5, 3.5])
    rows, total = tabulate({"fp32": fp32, "int8": int8}, {}, [3])
    assert (rows[-1].op, rows[-1].type) == ("", "")
    assert (rows[-1].fp32_us, rows[-1].int8_us) == (2, 0)  # never less than nothing
    assert (total.op, total.fp32_us, total.int8_us) == ("", 15, 3.5)
    assert total.fp32_p95_us == pytest.approx(np.percentile([20, 15, 14], 95))
    assert total.fp32_mean_us == pytest.approx(49 / 3)


def test_noise_that_hits_one_op_in_each_run_is_not_missing_from_the_sum() -> None:
    """The medians of three ops add up to 3, a whole run takes 12."""
    kernels = (CONV, RELU, FC)
    runs = [_run(*((kernel, 10.0 if i == slow else 1.0) for i, kernel in enumerate(kernels))) for slow in range(3)]
    found = _measured(runs)
    assert found.accounted_us == 12
    assert _rows({"fp32": found})[""].fp32_us == 0


def _noisy(random: np.random.Generator, *middles: float, runs: int = 50) -> Timed:
    kernels = (CONV, RELU, FC)
    times = random.normal(middles, 0.2, (runs, len(middles)))
    return _measured([_run(*zip(kernels, run, strict=False)) for run in times])


def test_differences_are_told_from_noise() -> None:
    random = np.random.default_rng(1)
    blocks = [5] * 10
    measured: dict[Side, Timed] = {"fp32": _noisy(random, 10, 5, 3), "int8": _noisy(random, 6, 5, 3.01)}
    rows, total = tabulate(measured, {}, blocks)
    conv, relu, fc, rest = rows
    assert conv.differs
    assert relu.differs is False
    assert fc.differs is False
    assert rest.differs is None
    for row in (conv, relu, fc, total):
        assert row.low_us is not None
        assert row.high_us is not None
        assert row.difference_us is not None
        assert row.low_us < row.difference_us < row.high_us
    assert conv.difference_us == pytest.approx(-4, abs=0.3)
    assert total.differs
    assert total.difference_us == pytest.approx(-4, abs=0.5)


def test_conversions_count_in_the_difference() -> None:
    int8 = _same((QUANTIZE, 3), (CONV, 8), runs=10)
    row = _rows({"fp32": _same((CONV, 10), runs=10), "int8": int8}, blocks=[2] * 5)["conv"]
    assert row.difference_us == 1
    assert row.differs


def test_a_difference_below_the_clocks_resolution_is_none() -> None:
    fp32, int8 = _same((CONV, 10), runs=10), _same((CONV, 10.4), runs=10)
    int8.resolution_us = 1.0
    assert _rows({"fp32": fp32, "int8": int8}, blocks=[2] * 5)["conv"].differs is False
    int8.resolution_us = 0.1
    assert _rows({"fp32": fp32, "int8": int8}, blocks=[2] * 5)["conv"].differs


def test_with_one_opening_nothing_is_said_about_differences() -> None:
    rows = _rows({"fp32": _same((CONV, 10)), "int8": _same((CONV, 3))})
    assert rows["conv"].differs is None
    assert rows["conv"].low_us is None


def test_spans_are_those_of_the_typical_run() -> None:
    runs = [
        _run((CONV, 100), (FC, 100), start=1000),
        _run((CONV, 5), (FC, 3), start=2000),
        _run((CONV, 4), (FC, 3), start=3000),
    ]
    rows = _rows({"fp32": _measured(runs)})
    assert rows["conv"].spans == [Span("fp32", 0, 0.0, 5)]
    assert rows["fc"].spans == [Span("fp32", 0, 5.0, 3)]
    assert rows[""].spans == []


def test_spans_tell_threads_and_models_apart() -> None:
    fp32 = _measured([[*_run((CONV, 5), thread="a", start=100), *_run((FC, 3), thread="b", start=102)]])
    int8 = _measured([_run((QUANTIZE, 1), (CONV, 2), thread="b", start=900)])
    rows = _rows({"fp32": fp32, "int8": int8})
    assert rows["conv"].spans == [Span("fp32", 0, 0.0, 5), Span("int8", 0, 0.0, 1), Span("int8", 0, 1.0, 2)]
    assert rows["fc"].spans == [Span("fp32", 1, 2.0, 3)]


def test_a_quantized_model_alone() -> None:
    """Its conversions are apart, and its ops keep their own names."""
    rows, total = tabulate({"int8": _same((QUANTIZE, 0.5), (CONV, 3))}, {"conv": ["something"]}, [3])
    assert [row.op for row in rows] == ["conv", ""]
    assert (rows[0].fp32_us, rows[0].int8_us, rows[0].convert_us) == (None, 3, 0.5)
    assert rows[0].differs is None
    assert (total.fp32_us, total.int8_us) == (None, 3.5)


class _Timer:
    resolution_us, is_quantized = 0.5, True
    notes: Sequence[str] = ["a note"]
    traces: Mapping[str, bytes] = {"trace.json": b"[]"}

    def close(self) -> list[Recorded]:
        return [Recorded(_run((CONV, i)), [Slice("", "t", "conv", i, i)]) for i in range(6)]


def test_of_several_openings_the_last_one_is_kept_whole() -> None:
    found = Timed()
    found.add(_Timer(), 5, is_last=False)  # type: ignore[arg-type]
    assert (found.slices, found.traces, found.notes) == ([], {}, [])
    found.add(_Timer(), 5, is_last=True)  # type: ignore[arg-type]
    assert len(found.runs) == 10
    assert [s.start_us for s in found.slices] == [3, 4, 5]
    assert len(found.slices) == KEPT_RUNS
    assert (found.resolution_us, found.is_quantized, found.notes) == (0.5, True, ["a note"])


def test_overhead_is_how_much_longer_runs_take_with_the_profiler() -> None:
    assert Timed(plain=[10, 10, 500], profiled=[12, 12, 900]).overhead == pytest.approx(0.2)
