"""Each rule with numbers just either side of where it speaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inc_tb.advise import effects
from inc_tb.advise.judge import EVIDENCE, judge
from inc_tb.frameworks.ops import Op, Quantization
from inc_tb.measure.op_table import Measurement, Verdict
from inc_tb.measure.stats import PairStats
from inc_tb.profiling import join
from inc_tb.records import Suggestion

rng = np.random.default_rng(0)
BELL = rng.standard_normal((64, 8, 32)).astype(np.float32)


def int8(scale: float) -> Quantization:
    return Quantization("int8", np.float32([scale]), np.int64([0]), -128, 127)


def pair(x: np.ndarray, y: np.ndarray, quantization: Quantization | None = None) -> PairStats:
    stats = PairStats(1, quantization.limits if quantization is not None else None)
    stats.update(x, y)
    return stats


def noisy(x: np.ndarray, db: float) -> np.ndarray:
    """x with noise of this signal to noise ratio."""
    noise = rng.standard_normal(x.shape)
    return (x + noise * np.sqrt((x**2).mean() / (noise**2).mean() / 10 ** (db / 10))).astype(np.float32)


def rounded(x: np.ndarray, q: Quantization) -> np.ndarray:
    assert q.scale is not None
    return (np.clip(np.round(x / q.scale), q.low, q.high) * q.scale).astype(np.float32)


def op(
    name: str,
    kind: str = "Conv",
    inputs: Sequence[str] = (),
    *,
    x: np.ndarray = BELL,
    added: np.ndarray | float = 40.0,
    step: float | None = 0.04,
    index: int = 0,
    params: int = 0,
    weight: Any = None,
    total: np.ndarray | None = None,
) -> Measurement:
    activation = int8(step) if step is not None else None
    isolated = noisy(x, added) if isinstance(added, float) else added
    m = Measurement(
        Op(name, kind, index, unit=name, inputs=list(inputs), compared_at=name, activation=activation, params=params),
        output=pair(x, isolated if total is None else total, activation),
        isolated=pair(x, isolated),
    )
    if weight is not None:
        m.op, m.weight = replace(m.op, weight=weight[0]), weight[1]
    return m


def judged(*ops: Measurement) -> list[Suggestion]:
    for i, m in enumerate(ops):
        m.op = replace(m.op, index=i)
    by_name = {m.op.name: m for m in ops}
    for m in ops:
        m.arrived = [by_name[name].output for name in m.op.inputs if by_name[name].output is not None]
    found, _ = judge(ops, "onnx")
    described = {column.name for column in EVIDENCE if column.label and column.help}
    assert all(set(suggestion.evidence) <= described for suggestion in found)
    return found


def verdicts(*ops: Measurement) -> list[Verdict]:
    return list(judge(ops, "onnx")[1].values())


def only(*ops: Measurement) -> Suggestion:
    found = judged(*ops)
    assert len(found) == 1, [(s.rule, s.ops) for s in found]
    return found[0]


def test_healthy_ops_get_no_suggestion_and_the_verdict_ok() -> None:
    ops = op("a"), op("b", inputs=["a"]), op("c", inputs=["b"])
    assert judged(*ops) == []
    assert [v.verdict for v in verdicts(*ops)] == ["ok", "ok", "ok"]


@pytest.mark.parametrize(("db", "speaks"), [(14.8, True), (15.2, False)])
def test_high_error(db: float, speaks: bool) -> None:
    ops = op("a", "Relu"), op("b", "Sigmoid", ["a"], added=db), op("c", "Tanh", ["b"]), op("d", "Tanh", ["c"])
    found = judged(*ops)
    assert [(s.rule, s.ops) for s in found] == ([("high_error", ["b"])] if speaks else [])
    assert verdicts(*ops)[1].verdict == ("bad" if speaks else "watch")
    if speaks:
        assert "dB" in found[0].because
        assert found[0].evidence["added_sqnr_db"] == pytest.approx(db, abs=0.1)


def test_where_the_output_is_lost_smaller_errors_count() -> None:
    lost = noisy(BELL, 5.0)
    assert only(op("a", "Sigmoid", added=24.0), op("end", "Tanh", ["a"], total=lost)).ops == ["a"]
    assert judged(op("a", "Sigmoid", added=26.0), op("end", "Tanh", ["a"], total=lost)) == []


@pytest.mark.parametrize(("factor", "speaks"), [(40.0, True), (2.0, False)])
def test_outlier_channels_name_the_whole_edge(factor: float, speaks: bool) -> None:
    x = BELL.copy()
    x[:, 0] *= factor
    q = int8(float(np.abs(x).max()) / 127)
    ops = op("a", x=x, added=rounded(x, q), step=float(q.scale[0])), op("b", inputs=["a"]), op("c", inputs=["a"])
    found = judged(*ops)
    assert [(s.rule, s.ops) for s in found] == ([("outlier_channels", ["a", "b", "c"])] if speaks else [])
    if speaks:
        assert found[0].evidence["channels"] == [0]
        assert "1 of 8 channels" in found[0].because
        assert [v.verdict for v in verdicts(*ops)] == ["bad"] * 3


@pytest.mark.parametrize(("limit", "speaks"), [(1.0, True), (3.9, False)])
def test_clipped_range(limit: float, speaks: bool) -> None:
    q = int8(limit / 127)
    found = judged(op("a", x=BELL, added=rounded(BELL, q), step=limit / 127), op("b", inputs=["a"]))
    assert [(s.rule, s.ops) for s in found] == ([("clipped_range", ["a", "b"])] if speaks else [])
    if speaks:
        # 31.7 % of a bell curve lie beyond one sigma, 30.3 % beyond 1.03, where the next bin of the histogram begins
        assert found[0].because.startswith("29.97%")
        assert "Calibrate" in found[0].because


@pytest.mark.parametrize(("lowest", "speaks"), [(-0.1, True), (-0.02, False)])
def test_lost_sign(lowest: float, speaks: bool) -> None:
    # A quarter of the values is just as far below 0 as given; a step is 0.03.
    x = np.abs(BELL)
    x.flat[::4] = lowest
    q = Quantization("int8", np.float32([0.03]), np.int64([0]), 0, 127)
    m = op("a", "Relu", x=x, added=12.0)
    m.op, m.output = replace(m.op, activation=q), pair(x, np.maximum(rounded(x, q), 0), q)
    found = judged(m, op("b", "Tanh", ["a"]), op("c", "Tanh", ["b"]))
    assert [(s.rule, s.ops) for s in found if s.rule == "lost_sign"] == ([("lost_sign", ["a"])] if speaks else [])
    if speaks:
        assert found[0].because.startswith("25.00% of the output of a lie below 0 and are lost")


def test_values_a_fraction_of_a_step_outside_are_not_called_clipped() -> None:
    # Half of the values sit 0.3 steps below the range; what is wrong is something else.
    x = np.where(BELL > 0, BELL, np.float32(-0.012))
    q = Quantization("uint8", np.float32([0.04]), np.int64([0]), 0, 255)
    m = op("a", "Relu", x=x, added=12.0)
    m.op, m.output = replace(m.op, activation=q), pair(x, noisy(x, 12.0), q)
    assert m.output.total("clipped") > 0.4 * x.size
    assert only(m, op("b", "Tanh", ["a"]), op("c", "Tanh", ["b"])).rule != "clipped_range"


def test_few_values_far_outside_do_not_make_many_just_outside_clipped() -> None:
    # Like hard-swish: half of the values 0.3 steps below the range, 1 in 10,000 far above it.
    x = np.where(BELL > 0, BELL, np.float32(-0.012))
    x.flat[:: x.size // (x.size // 10_000)] = 15.0
    q = Quantization("uint8", np.float32([0.04]), np.int64([0]), 0, 255)
    m = op("a", "Relu", x=x, added=12.0)
    m.op, m.output = replace(m.op, activation=q), pair(x, noisy(x, 12.0), q)
    assert m.output.total("clipped") > 0.4 * x.size
    assert only(m, op("b", "Tanh", ["a"]), op("c", "Tanh", ["b"])).rule != "clipped_range"


def test_clipped_input_of_the_model() -> None:
    m = op("a", added=8.0)
    m.arrived = [pair(BELL, np.clip(BELL, -0.5, 0.5))]
    found, _ = judge([m, op("b", inputs=["a"])], "onnx")
    assert (found[0].rule, found[0].ops) == ("clipped_range", ["a"])


def weights(x: np.ndarray, db: float | None = None) -> tuple[Quantization, PairStats]:
    q = int8(float(np.abs(x).max()) / 127)
    stats = PairStats(0, q.limits)
    stats.update(x, rounded(x, q) if db is None else noisy(x, db))
    return q, stats


def test_weights_per_tensor_where_a_scale_per_channel_would_help() -> None:
    w = rng.standard_normal((16, 64)).astype(np.float32)
    w[3] *= 100
    bad = op("b", inputs=["a"], added=8.0, weight=weights(w), params=w.size)
    found = only(op("a", "Relu"), bad, op("c", "Tanh", ["b"]))
    assert (found.rule, found.ops) == ("weights_per_tensor", ["b"])
    assert found.evidence["expected_gain_db"] > 6
    assert "per_channel=True" in found.because


def test_one_setting_cures_all_weights_per_tensor() -> None:
    """One suggestion for all of them, whose first config keeps nothing in fp32."""
    w = rng.standard_normal((16, 64)).astype(np.float32)
    w[3] *= 100
    ops = [op("a", "Relu")]
    for name, before, added in (("stem", "a", 8.0), ("head", "stem", 4.0), ("other", "head", 6.0)):
        ops.append(op(name, inputs=[before], added=added, weight=weights(w), params=w.size))
    found = only(*ops, op("z", "Tanh", ["other"]))
    assert found.ops == ["stem", "head", "other"]
    assert "the weights of head" in found.because
    assert "The same in 3 places" in found.because
    assert next(iter(found.recipes)) == "onnxruntime-per-channel"
    assert "per_channel=True" in found.recipe
    assert "exclude" not in found.recipe


def test_weight_outliers_where_a_scale_per_channel_would_not_help() -> None:
    # One weight of 20 in every channel carries nearly all the energy, so the SQNR is fine, but the step that it
    # forces, 20/127, makes zeros of all the others.
    w = (rng.standard_normal((4, 256)) * 0.01).astype(np.float32)
    w[:, 0] = 20.0
    bad = op("b", inputs=["a"], added=8.0, weight=weights(w), params=w.size)
    found = only(op("a", "Relu"), bad, op("c", "Tanh", ["b"]))
    assert (found.rule, found.ops) == ("weight_outliers", ["b"])
    assert found.evidence["flushed"] == pytest.approx(255 / 256)


def test_weights_are_not_blamed_when_they_are_fine() -> None:
    w = rng.standard_normal((16, 64)).astype(np.float32)
    bad = op("b", "Conv", inputs=["a"], added=8.0, weight=weights(w), params=w.size)
    assert only(op("z", params=1), op("a", "Relu", ["z"]), bad, op("c", "Conv", ["b"], params=1)).rule == "high_error"


@pytest.mark.parametrize(("ratio", "speaks"), [(20.0, True), (10.0, False)])
def test_unbalanced_inputs(ratio: float, speaks: bool) -> None:
    parts = op("a"), op("b", x=BELL / np.float32(ratio), step=0.04 / ratio)
    found = judged(*parts, op("add", "Concat", ["a", "b"], added=12.0), op("c", "Tanh", ["add"]))
    assert found[0].rule == ("unbalanced_inputs" if speaks else "high_error")
    assert "add" in found[0].ops


def test_dispersed_range_counts_the_tails() -> None:
    # Two values of 200 among 32,768 from a bell curve: the step 200/127 is larger than most values.
    x = rng.standard_normal((64, 2, 256)).astype(np.float32)
    x[0, :, 0] = 200.0  # in both channels, so that no channel stands out
    q = int8(200 / 127)
    found = only(
        op("a", "Relu", x=x, added=rounded(x, q), step=200 / 127), op("b", "Tanh", ["a"]), op("c", "Tanh", ["b"])
    )
    assert (found.rule, found.ops) == ("dispersed_range", ["a", "b"])
    assert found.evidence["share_in_tails"] == pytest.approx(2 / x.size)


def test_flushed_to_zero() -> None:
    x = (rng.uniform(0.1, 1, BELL.shape) * 0.4).astype(np.float32)
    found = judged(
        op("a", "Relu", x=x, added=rounded(x, int8(0.7)), step=0.7), op("b", "Tanh", ["a"]), op("c", "Tanh", ["b"])
    )
    assert found[0].rule in ("constant", "flushed_to_zero")
    x = (rng.uniform(0.1, 1, BELL.shape)).astype(np.float32)
    found = judged(
        op("a", "Relu", x=x, added=rounded(x, int8(1.3)), step=1.3), op("b", "Tanh", ["a"]), op("c", "Tanh", ["b"])
    )
    assert found[0].rule == "flushed_to_zero"
    assert found[0].evidence["flushed"] == pytest.approx(0.6, abs=0.02)


def test_a_tensor_that_became_constant() -> None:
    zero = np.zeros_like(BELL)
    found = judged(op("a", "Sigmoid", added=zero, total=zero), op("b", "Tanh", ["a"]), op("c", "Tanh", ["b"]))
    assert found[0].rule == "constant"


def test_non_finite_values_come_first() -> None:
    broken = BELL.copy()
    broken[0, 0, 0] = np.inf
    ops = op("a", "Sigmoid", added=5.0), op("b", "Exp", ["a"], total=broken), op("c", "Tanh", ["b"])
    found = judged(*ops)
    assert found[0].rule == "non_finite"
    assert "b" in found[0].ops
    assert "1 values" in found[0].because


@pytest.mark.parametrize("kind", ["Softmax", "LayerNormalization", "Gelu", "Erf"])
def test_delicate_neighbourhoods(kind: str) -> None:
    found = only(op("z", "Relu"), op("a", kind, ["z"], added=12.0), op("b", "Tanh", ["a"]), op("c", "Tanh", ["b"]))
    assert (found.rule, found.ops) == ("delicate_neighbourhood", ["a", "b"])


def test_residual_sums() -> None:
    found = only(op("a"), op("b"), op("add", "Add", ["a", "b"], added=12.0), op("c", "Tanh", ["add"]))
    assert (found.rule, found.evidence["type"]) == ("delicate_neighbourhood", "residual")


@pytest.mark.parametrize(("at", "place"), [(0, "first"), (2, "last")])
def test_first_and_last_layer(at: int, place: str) -> None:
    ops = [
        op(name, "Conv", [before] if before else [], params=9) for name, before in (("a", ""), ("b", "a"), ("c", "b"))
    ]
    ops[at] = op("abc"[at], "Conv", ops[at].op.inputs, params=9, added=12.0)
    assert only(*ops, op("d", "Tanh", ["c"]), op("e", "Tanh", ["d"])).evidence["place"] == place


def test_edges_reach_through_ops_that_only_rearrange() -> None:
    x = BELL.copy()
    x[:, 0] *= 100
    q = int8(float(np.abs(x).max()) / 127)
    a = op("a", x=x, added=rounded(x, q), step=float(q.scale[0]))
    assert only(a, op("r", "Reshape", ["a"]), op("b", "MatMul", ["r"]), op("c", "Tanh", ["b"])).ops == ["a", "r", "b"]


def test_layers_merge_into_a_pattern() -> None:
    ops = [op(f"/encoder/layer.{i}/output/Add", "Sigmoid", added=10.0 + i) for i in range(4)]
    found = only(*ops, op("/head", "Tanh", [m.op.name for m in ops]), op("/end", "Tanh", ["/head"]))
    assert found.pattern == r"/encoder/layer\.\d+/output/Add"
    assert found.ops == [m.op.name for m in ops]
    assert found.evidence["matches"] == 4
    assert "4 places" in found.because
    assert found.pattern in found.recipes["inc"].replace("\\\\", "\\")


def test_names_that_are_mere_numbers_do_not_merge() -> None:
    bad = [op(f"Add.{i}", "Sigmoid", added=10.0) for i in range(2)]
    good = [op(f"Add.{i}", "Sigmoid") for i in range(2, 12)]
    found = judged(*bad, *good, op("end", "Tanh", [m.op.name for m in (*bad, *good)]))
    assert [s.pattern for s in found] == ["", ""]


def test_ranks_follow_the_harm() -> None:
    ops = (
        op("a", "Sigmoid", added=12.0),
        op("b", "Tanh", ["a"], added=3.0),
        op("c", "Exp", ["b"]),
        op("d", "Exp", ["c"]),
    )
    found = judged(*ops)
    assert [(s.rank, s.ops) for s in found] == [(1, ["b"]), (2, ["a"])]


def test_ops_that_only_rearrange_are_not_blamed() -> None:
    ops = op("a", "Relu"), op("s", "Slice", ["a"], added=-3.0), op("b", "Tanh", ["s"]), op("c", "Tanh", ["b"])
    assert judged(*ops) == []
    assert verdicts(*ops)[1].verdict == "watch"
    assert "wrong place" in verdicts(*ops)[1].reason


def test_evidence_of_one_name_means_one_thing() -> None:
    columns = [*EVIDENCE, *effects.EVIDENCE, *join.EVIDENCE]
    assert {c.name: c for c in columns} == {c.name: c for c in reversed(columns)}
    assert all(c.label and c.help and (c.unit or c.type != "number" or c.name == "kurtosis") for c in columns)


def test_weights_say_which_of_their_channels_are_too_large() -> None:
    x = BELL[0].copy()
    x[5] *= 50
    quantization, stats = weights(x)
    found = only(op("a", added=12.0, weight=(quantization, stats)))
    assert found.evidence["weight_channels"] == [5]
