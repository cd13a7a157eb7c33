"""The first whole path on real models with a known culprit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_dynamic

import inc_tb
from inc_tb.errors import DataError, MismatchError
from tests.digits import DATA, digits

WAYS = list(
    itertools.product((QuantFormat.QDQ, QuantFormat.QOperator), (False, True), (QuantType.QInt8, QuantType.QUInt8))
)


@pytest.mark.parametrize(("form", "per_channel", "kind"), WAYS)
def test_the_first_suggestion_covers_the_known_culprit(
    quantized: Callable[..., Path], form: QuantFormat, per_channel: bool, kind: QuantType
) -> None:
    int8 = quantized("hard", quant_format=form, per_channel=per_channel, activation_type=kind)
    found = inc_tb.diagnose(DATA / "hard.onnx", int8, {"input": digits(100)})
    first = found.suggestions[0]
    assert {"/conv1/Conv", "/conv2/Conv"} <= set(first.ops)
    assert first.rule == "outlier_channels"
    assert first.evidence["channel_ratio"] > 100
    # The op that suffers stands out; where Neural Compressor's MSE looks, it does not.
    assert found.ops["name"][found.worst(1)[0]] == "/conv2/Conv"
    by_mse = [i for i in found.worst(sort="a_inc_mse") if not np.isnan(found.ops["a_inc_mse"][i])]
    assert found.ops["name"][by_mse[-1]] == "/conv1/Conv"


def test_a_suggestion_says_what_it_gives_and_what_it_costs(quantized: Callable[..., Path]) -> None:
    found = inc_tb.diagnose(DATA / "hard.onnx", quantized("hard"), {"input": digits(100)})
    first = found.suggestions[0]
    recovers, size, count = first.effects
    noise = {
        name: 10 ** (-db / 10)
        for name, db in zip(found.ops["name"], found.ops["added_sqnr_db"], strict=True)
        if db == db
    }
    share = sum(noise.get(name, 0) for name in first.ops) / sum(noise.values())
    assert (recovers.kind, recovers.basis, recovers.value) == ("recovers", "estimated", pytest.approx(share))
    assert share > 0.9
    params = sum(p for name, p in zip(found.ops["name"], found.ops["params"], strict=True) if name in first.ops)
    assert (size.kind, size.basis, size.value) == ("costs", "counted", 3 * params)  # 4 bytes instead of 1
    assert (count.value, count.unit) == (len(first.ops), "count")


@pytest.mark.parametrize(("form", "per_channel", "kind"), WAYS)
def test_a_healthy_model_gets_no_suggestion(
    quantized: Callable[..., Path], form: QuantFormat, per_channel: bool, kind: QuantType
) -> None:
    int8 = quantized("clean", quant_format=form, per_channel=per_channel, activation_type=kind)
    found = inc_tb.diagnose(DATA / "clean.onnx", int8, {"input": digits(100)})
    assert found.suggestions == []
    assert set(found.ops["verdict"]) == {"ok"}


@pytest.mark.parametrize("method", [CalibrationMethod.Entropy, CalibrationMethod.Percentile])
def test_other_calibrators_of_a_healthy_model(quantized: Callable[..., Path], method: CalibrationMethod) -> None:
    int8 = quantized("clean", calibrate_method=method)
    assert inc_tb.diagnose(DATA / "clean.onnx", int8, {"input": digits(100)}).suggestions == []


def test_dynamic_quantization(tmp_path: Path) -> None:
    for name, expected in (("hard", {"/conv1/Conv", "/conv2/Conv"}), ("clean", set())):
        quantize_dynamic(DATA / f"{name}.onnx", tmp_path / "dynamic.onnx")
        found = inc_tb.diagnose(DATA / f"{name}.onnx", tmp_path / "dynamic.onnx", {"input": digits(100)})
        assert {op for s in found.suggestions[:1] for op in s.ops} >= expected
        assert bool(found.suggestions) == bool(expected)
        assert set(found.ops["act_scheme"]) == {"dynamic", ""}


def test_wrong_calibration_data_are_named(tmp_path: Path, quantized: Callable[..., Path]) -> None:
    """Calibrated on digits, used on digits eight times brighter."""
    found = inc_tb.diagnose(DATA / "clean.onnx", quantized("clean"), {"input": digits(100) * 8})
    assert {s.rule for s in found.suggestions} == {"clipped_range"}
    assert "/conv1/Conv" in found.suggestions[0].ops


def test_batches_any_way_give_the_same_table(quantized: Callable[..., Path]) -> None:
    images = digits(50)
    whole = inc_tb.diagnose(DATA / "hard.onnx", quantized("hard"), {"input": images})
    pieces = np.array_split(images, 7)
    for batches in ([{"input": p} for p in pieces], pieces, ((p,) for p in pieces)):
        split = inc_tb.diagnose(DATA / "hard.onnx", quantized("hard"), batches)
        assert split.samples == whole.samples == 50
        for column in whole.ops:
            if whole.ops.column(column).type == "number":
                np.testing.assert_allclose(split.ops[column], whole.ops[column], rtol=1e-9, atol=1e-12)


def test_models_as_objects(quantized: Callable[..., Path]) -> None:
    import onnx

    found = inc_tb.diagnose(onnx.load(DATA / "hard.onnx"), onnx.load(quantized("hard")), {"input": digits(8)})
    assert found.ops.count == 17
    assert "ModelProto" in found.reference


def test_every_op_has_numbers_or_a_reason(quantized: Callable[..., Path]) -> None:
    found = inc_tb.diagnose(DATA / "hard.onnx", quantized("hard"), {"input": digits(8)})
    for row, name in enumerate(found.ops["name"]):
        for column in found.ops.columns:
            if column.type == "number" and np.isnan(found.ops[column.name][row]):
                assert found.ops.why_null(column.name, row), (name, column.name)
    relu = found.ops["name"].tolist().index("/Relu")
    assert found.ops["reason"][relu]


def test_no_batches_and_wrong_batches(quantized: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match="no samples"):
        inc_tb.diagnose(DATA / "hard.onnx", quantized("hard"), [])
    with pytest.raises(MismatchError, match="2 arrays"):
        inc_tb.diagnose(DATA / "hard.onnx", quantized("hard"), [(digits(2), digits(2))])


def test_csv_has_neural_compressors_columns_first(tmp_path: Path, quantized: Callable[..., Path]) -> None:
    found = inc_tb.diagnose(DATA / "hard.onnx", quantized("hard"), {"input": digits(8)})
    activations, weights = (path.read_text().splitlines() for path in found.to_csv(tmp_path))
    assert activations[0].startswith("OP name,MSE,Activation min,Activation max,")
    assert weights[0].startswith("OP name,MSE,Input model min,Input model max,Input model mean,")
    assert "added_sqnr_db" in activations[0]
    assert activations[1].startswith("/conv2/Conv,")  # worst first
    assert len(weights) == 1 + 8


def test_pandas(quantized: Callable[..., Path]) -> None:
    frame = inc_tb.diagnose(DATA / "hard.onnx", quantized("hard"), {"input": digits(8)}).to_pandas()
    assert frame.loc["/conv2/Conv", "verdict"] == "bad"
    assert frame["added_sqnr_db"].idxmin() == "/conv2/Conv"


def test_what_the_reader_should_know_first_is_noted(quantized: Callable[..., Path], tmp_path: Path) -> None:
    import onnx

    hard = DATA / "hard.onnx"
    images = digits(8)
    images[0] = np.nan
    found = inc_tb.diagnose(hard, quantized("hard"), images)
    assert any("NaN or infinite" in note for note in found.notes)
    unnamed = onnx.load(hard)
    for node in unnamed.graph.node:
        node.name = ""
    assert any("have no name" in note for note in inc_tb.diagnose(unnamed, quantized("hard"), digits(4)).notes)


def test_nothing_but_nan_gets_no_verdict(quantized: Callable[..., Path]) -> None:
    found = inc_tb.diagnose(DATA / "clean.onnx", quantized("clean"), np.full((2, 1, 8, 8), np.nan, np.float32))
    assert set(found.ops["verdict"]) == {""}
    assert found.suggestions == []


def test_a_scale_of_zero_is_named(quantized: Callable[..., Path]) -> None:
    import onnx
    from onnx import numpy_helper

    broken = onnx.load(quantized("clean"))
    (scale,) = (t for t in broken.graph.initializer if t.name == "r2_scale")
    scale.CopyFrom(numpy_helper.from_array(np.float32(0), scale.name))
    found = inc_tb.diagnose(DATA / "clean.onnx", broken, digits(8))
    assert any("scale 0" in s.because or s.rule in ("non_finite", "constant") for s in found.suggestions)


def test_rows_without_a_value_come_last(quantized: Callable[..., Path]) -> None:
    found = inc_tb.diagnose(DATA / "hard.onnx", quantized("hard"), digits(8))
    for column in ("added_sqnr_db", "sensitivity", "verdict", "name"):
        assert sorted(found.worst(sort=column)) == list(range(found.ops.count))
    missing = np.isnan(found.ops["added_sqnr_db"][found.worst()])
    assert (np.diff(missing.astype(int)) >= 0).all()
    assert found.ops["verdict"][found.worst(1, sort="verdict")[0]] == "bad"
