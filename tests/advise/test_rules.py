"""Each rule with numbers just either side of where it speaks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inc_tb.advise import effects
from inc_tb.advise.judge import EVIDENCE, judge
from inc_tb.frameworks.ops import Op, Quantization
from inc_tb.measure.op_table import Measurement, Verdict, op_table
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


def test_an_op_in_fp32_is_not_called_quantized() -> None:
    """What it reads is rounded, which spares nobody who keeps it alone."""
    first, mean = op("a", "Add", ["z"]), op("mean", "ReduceMean", ["a"], step=None, added=3.5)
    found = only(op("z", "Relu"), first, mean, op("c", "Tanh", ["mean"]))
    assert (found.rule, found.ops) == ("high_error", ["a", "mean"])
    assert found.because.startswith("mean is in fp32, but what a hands it is rounded, which leaves it 3.5 dB signal")


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


@pytest.mark.parametrize(("factor", "speaks"), [(40.0, True), (6.0, False)])
def test_outlier_channels_of_the_models_own_output(factor: float, speaks: bool) -> None:
    """No op reads it; 6 times is under the ratio of 8 that counts, though the small channels have 14 dB there."""
    x = BELL * np.float32(0.1)
    x[:, 0] *= factor
    step = 2.0 * float(np.abs(x[:, 1:]).std())
    found = judged(op("a", "Relu"), op("b", "Mul", ["a"], x=x, added=rounded(x, int8(step)), step=step))
    assert ("outlier_channels" in [s.rule for s in found]) == speaks
    if speaks:
        assert (found[0].rule, found[0].ops) == ("outlier_channels", ["b"])
        assert re.match(r"1 of 8 channels is \d+ times the median one, of the output of b;", found[0].because)


@pytest.mark.parametrize(("most", "speaks"), [(1.01, True), (0.99, False)])
def test_rare_classes_of_an_output_are_no_outliers(most: float, speaks: bool) -> None:
    """Shares of 1 that stay near 0 need no finer steps than those near 1."""
    x = np.abs(BELL) * np.float32(0.001)
    x[:, 0] *= most / x[:, 0].max()
    step = 0.01
    found = judged(op("a", "Relu"), op("b", "Sigmoid", ["a"], x=x, added=rounded(x, int8(step)), step=step))
    assert bool(found) == speaks


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
    # The large channel has the noise of its step whatever is done; the others gain their ratio to it.
    assert found.evidence["expected_gain_db"] == pytest.approx(20 * np.log10(100), abs=3)
    assert "give each channel a scale of its own" in found.because
    assert "gain" not in found.because  # which is not measured
    assert "per_channel" not in found.because  # which other tools do not know


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


def outlier_layers(*kinds: str) -> list[Measurement]:
    """Each with one channel of its weights far larger than the others, though all share a scale."""
    w = rng.standard_normal((16, 64)).astype(np.float32)
    w[3] *= 100
    ops = [op("start", "Relu")]
    for i, kind in enumerate(kinds):
        ops.append(op(f"{kind}_{i}", kind, [ops[-1].op.name], added=8.0, weight=weights(w), params=w.size))
    return [*ops, op("end", "Tanh", [ops[-1].op.name])]


def test_no_setting_is_said_to_cure_what_none_does() -> None:
    """A scale per channel is what other layers have already, and nothing that tables have."""
    mixed = outlier_layers("Conv", "Conv", "MatMul")
    assert mixed[1].op.weight is not None
    per_channel = replace(mixed[1].op.weight, scale=np.full(16, 0.1, np.float32), axis=0)
    assert per_channel.granularity == "per channel"
    healthy = op("fine", "Conv", ["start"], params=9, weight=(per_channel, weights(np.eye(16, dtype=np.float32))[1]))
    for ops in ([mixed[0], healthy, *mixed[1:]], outlier_layers("Gather", "Gather", "Gather")):
        found = [s for s in judged(*ops) if s.rule == "weights_per_tensor"]
        assert found
        for suggestion in found:
            assert "one setting" not in suggestion.because
            assert next(iter(suggestion.recipes)) == "onnxruntime"
            assert {e.label for e in suggestion.effects if e.what == "ops"} == {"ops that stay in fp32"}


def test_what_one_setting_cures_costs_no_ops_in_fp32() -> None:
    (found,) = [s for s in judged(*outlier_layers("Conv", "Gemm", "MatMul")) if s.rule == "weights_per_tensor"]
    assert "The same in 3 places, which one setting cures" in found.because
    assert all(effect.label.endswith("with these ops in fp32 instead") for effect in found.effects)


def test_a_setting_covers_nothing_else_at_its_ops() -> None:
    """A scale per channel does nothing for what is wrong with the activations between the same ops."""
    ops = outlier_layers("Conv", "Conv", "Conv")
    large = BELL.copy()
    large[:, 3] *= 200
    q = float(np.abs(large).max()) / 127
    inner = op("inner", "Conv", ["Conv_1"], x=large, added=rounded(large, int8(q)), step=q)
    w = rng.standard_normal((16, 64)).astype(np.float32)
    w[3] *= 100
    after = op("after", "Conv", ["inner"], added=2.0, weight=weights(w), params=w.size)
    rules = {s.rule for s in judged(*ops[:-1], inner, after, op("end", "Tanh", ["after"]))}
    assert {"weights_per_tensor", "outlier_channels"} <= rules


def layer(i: int, x: np.ndarray, before: str) -> list[Measurement]:
    """A MatMul, its bias and a residual sum, in all of which one channel is as large; a MatMul reads them."""
    q = float(np.abs(x).max()) / 127
    added = rounded(x, int8(q))
    names = [f"/l.{i}/dense/MatMul", f"/l.{i}/dense/Add", f"/l.{i}/Add"]
    chain = []
    for name, reads in zip(names, ([before], names[:1], [names[1], before]), strict=True):
        chain.append(op(name, name.rpartition("/")[2], reads, x=x, added=added, step=q))
    return [*chain, op(f"/l.{i}/next/MatMul", "MatMul", names[2:])]


@pytest.mark.parametrize("found_in", [range(4), range(3)])
def test_a_chain_in_every_layer_is_one_suggestion(found_in: range) -> None:
    large = BELL.copy()
    large[:, 3] *= 200
    ops = [op("/start", "Relu")]
    for i in range(4):
        ops += layer(i, large if i in found_in else BELL, ops[-1].op.name)
    first, *others = [s for s in judged(*ops) if s.rule == "outlier_channels"]
    assert others == []
    chain = [f"/l.{i}/{name}" for i in found_in for name in ("dense/MatMul", "dense/Add", "Add")]
    assert set(chain) <= set(first.ops)
    number = r"\d+" if len(found_in) == 4 else "(0|1|2)"
    assert {rf"/l\.{number}/{name}" for name in ("dense/MatMul", "dense/Add", "Add")} <= set(patterns_in(first))
    assert [m.op.name for m in ops if re.fullmatch(first.pattern, m.op.name)] == first.ops
    assert f"The same in {3 * len(found_in)} places" in first.because


def patterns_in(suggestion: Suggestion) -> list[str]:
    told: dict[str, Any] = {}
    exec(suggestion.recipes["inc"].partition("names = ")[2].partition("#")[0].join(["names = ", ""]), told)
    return list(told["names"])


def test_outliers_of_other_channels_are_another_suggestion() -> None:
    """A convolution mixes channels: the same number behind it is another channel."""
    large = BELL.copy()
    large[:, 3] *= 200
    q = float(np.abs(large).max()) / 127
    ops = [op("start", "Relu")]
    for name in ("one", "two", "three"):
        ops.append(op(name, "Conv", [ops[-1].op.name], x=large, added=rounded(large, int8(q)), step=q, params=9))
    found = [s.ops for s in judged(*ops, op("four", "Conv", ["three"]))]
    assert ["one", "two"] in found
    assert ["two", "three"] in found


@pytest.mark.parametrize(("mixing", "is_one"), [({}, True), ({"params": 9}, False)])
def test_a_chain_through_heads_is_one_suggestion_from_the_producer_on(mixing: dict[str, int], is_one: bool) -> None:
    """Channel 5 of 8 is in the third of four heads; a product with weights of its own would make its own channels."""
    large = BELL.copy()
    large[:, 5] *= 200
    heads = large.reshape(64, 4, 64)
    step = float(np.abs(large).max()) / 127
    wide, narrow = ({"x": x, "added": rounded(x, int8(step)), "step": step} for x in (large, heads))
    found = judged(
        op("start", "Relu"), op("share", "Softmax"),
        op("value", "MatMul", ["start"], params=64, **wide), op("bias", "Add", ["value"], params=8, **wide),
        op("heads", "Reshape", ["bias"], **narrow), op("mixed", "MatMul", ["share", "heads"], **mixing, **narrow),
        op("joined", "Reshape", ["mixed"], **wide), op("project", "MatMul", ["joined"], params=64),
        op("end", "Tanh", ["project"]),
    )  # fmt: skip
    first = next(s.ops for s in found if s.rule == "outlier_channels" and "value" in s.ops)
    assert ({"value", "bias", "mixed", "project"} <= set(first)) == is_one
    assert {"value", "bias", "mixed"} <= set(first)


def test_weight_outliers_where_a_scale_per_channel_would_not_help() -> None:
    # One weight of 20 in every channel carries nearly all the energy, so the SQNR is fine, but the step that it
    # forces, 20/127, makes zeros of all the others.
    w = (rng.standard_normal((4, 256)) * 0.01).astype(np.float32)
    w[:, 0] = 20.0
    bad = op("b", inputs=["a"], added=8.0, weight=weights(w), params=w.size)
    found = only(op("a", "Relu"), bad, op("c", "Tanh", ["b"]))
    assert (found.rule, found.ops) == ("weight_outliers", ["b"])
    assert found.evidence["flushed"] == pytest.approx(255 / 256)


def bearing(x: np.ndarray, y: np.ndarray, q: Quantization, added: float = 3.0) -> list[Measurement]:
    """An op with these weights between others; only weights are rounded."""
    stats = PairStats(0, q.limits)
    stats.update(x.astype(np.float32), y.astype(np.float32))
    bad = op("b", "MatMul", inputs=["a"], added=added, weight=(q, stats), params=x.size, step=None)
    return [op("a", "Relu", step=None), bad, op("c", "Tanh", ["b"], step=None)]


INT4 = Quantization("int4", None, None, -8, 7, axis=0, block=32)


def grouped(x: np.ndarray, size: int = 32, levels: int = 15) -> np.ndarray:
    groups = x.reshape(-1, size)
    step = np.abs(groups).max(1, keepdims=True) * 2 / levels
    return (np.clip(np.round(groups / step), -(levels + 1) // 2, levels // 2) * step).reshape(x.shape)


@pytest.mark.parametrize(("factor", "speaks"), [(1.12, True), (1.06, False)])
def test_weights_with_a_wrong_scale(factor: float, speaks: bool) -> None:
    """Rounding leaves 20.5 dB, 0.009 of the energy; a factor of 1.12 adds 0.0144, more than that, 1.06 0.0036."""
    w = rng.standard_normal((16, 64))
    found = judged(*bearing(w, grouped(w) * factor, INT4, added=11.0))
    assert [s.rule for s in found] == (["misfit_weights"] if speaks else ["high_error"])
    if speaks:
        assert found[0].ops == ["b"]
        assert found[0].evidence["factor"] == pytest.approx(factor, abs=0.05)
        assert "Their scale does not fit them" in found[0].because


def test_weights_with_a_wrong_zero_point() -> None:
    w = rng.standard_normal((16, 64))
    found = only(*bearing(w, grouped(w) - 0.6, INT4))
    assert found.rule == "misfit_weights"
    assert found.evidence["shift"] == pytest.approx(-0.6, abs=0.05)
    assert "Their zero point does not fit them" in found.because


@pytest.mark.parametrize(("away", "rule"), [(0.49, "weights_per_tensor"), (0.52, "misfit_weights")])
def test_weights_within_half_a_step_are_rounded_whatever_a_line_says(away: float, rule: str) -> None:
    """All channels but the large one lie within half a step of 0, and become that: 0.00 times what they were."""
    w = rng.uniform(-0.45, 0.45, (8, 256))
    w[0] = np.linspace(-127, 127, 256)
    w[1, 0] = away
    y = np.where(np.arange(8)[:, None] == 0, np.round(w), 0)
    y[1:] += 0.0 if away < 0.5 else -0.3
    stats = PairStats(0, int8(1.0).limits)
    stats.update(w.astype(np.float32), y.astype(np.float32))
    bad = op("b", "MatMul", ["a"], added=3.0, weight=(int8(1.0), stats), params=w.size)
    (found,) = judged(op("a", "Relu"), bad, op("c", "Tanh", ["b"]))
    assert found.rule == rule


@pytest.mark.parametrize(("beyond", "speaks"), [(0.0, True), (0.25, False)])
def test_weights_that_wrapped_around(beyond: float, speaks: bool) -> None:
    """Integers above 255 start again at 0: the largest weights come out as the smallest, a range of 256 steps away.

    Where the largest of the weights is a quarter above all others, 256 steps are less than 0.9 of the range.
    """
    q = Quantization("uint8", np.float32(1 / 100), np.int64(128), 0, 255)
    w = rng.uniform(-1.3, 1.35, (16, 64))
    w[0, 0] = 1.35 * (1 + 2 * beyond)
    w[0, 1] = -1.28
    y = (((np.round(w / 0.01) + 128) % 256) - 128) * 0.01
    found = judged(*bearing(w, y, q))
    assert [s.rule for s in found] == (["wrapped_weights"] if speaks else ["weights_worse_than_usual"])
    if speaks:
        # what is above 1.27 or below -1.28: 0.1 of 2.65
        assert found[0].evidence["wrapped"] == pytest.approx(np.mean(np.abs(w - y) > 1), rel=0.1)
        assert found[0].evidence["max_abs"] == pytest.approx(2.56, abs=0.01)
        assert "times the median" not in found[0].because


def test_negative_integers_that_were_read_without_their_sign_wrapped_around() -> None:
    q = Quantization("uint8", np.float32(0.01), np.int64(0), 0, 255)
    w = rng.uniform(-1.27, 1.27, (16, 64))
    y = np.round(w / 0.01).astype(np.int8).view(np.uint8) * 0.01
    found = only(*bearing(w, y, q))
    assert found.rule == "wrapped_weights"
    assert found.evidence["wrapped"] == pytest.approx(0.5, abs=0.1)


def test_weights_that_are_all_moved_far_did_not_wrap() -> None:
    w = rng.uniform(-1, 1, (16, 64))
    assert only(*bearing(w, w + 2.4, Quantization("uint8", np.float32(0.01), np.int64(0), 0, 255))).rule == (
        "misfit_weights"
    )


@pytest.mark.parametrize(
    ("dtype", "bits", "block"), [("int8", 8, 0), ("int4", 4, 32), ("uint4", 4, 128), ("int3", 3, 32), ("int2", 2, 32)]
)
def test_few_bits_for_weights_are_no_finding_by_themselves(dtype: str, bits: int, block: int) -> None:
    low = 0 if dtype.startswith("u") else -(2 ** (bits - 1))
    q = Quantization(dtype, None, None, low, low + 2**bits - 1, axis=0, block=block)
    for seed in range(3):
        w = np.random.default_rng(seed).standard_normal((64, 256))
        y = grouped(w, block or 256, 2**bits - 1)
        db = float(10 * np.log10((w**2).sum() / ((w - y) ** 2).sum()))
        ops = bearing(w, y, q, db)
        assert judged(*ops) == []
        assert [v.verdict for v in verdicts(*ops)] == ["ok", "ok", "ok"]
        table = op_table(ops, judge(ops, "onnx")[1])
        normal = {column.name: column.normal for column in table.columns}
        for name in ("w_sqnr_db", "added_sqnr_db"):
            assert normal[name][0] == pytest.approx(min(25, db - 3), abs=0.5)
        assert normal["w_nmse"][1] == pytest.approx(max(0.003, 10 ** (0.3 - db / 10)), rel=0.2)


def test_nothing_is_said_of_activations_that_are_not_rounded() -> None:
    """Channels of very different size are no trouble in fp32; what is wrong is wrong with the weights."""
    x = BELL.copy()
    x[:, 0] *= 100
    w = rng.standard_normal((16, 64))
    ops = bearing(w, grouped(w), INT4)
    ops[0], ops[2] = op("a", "Softmax", x=x, step=None), op("c", "Add", ["b", "a"], x=x, step=None, added=3.0)
    found = judged(*ops)
    assert [s.rule for s in found] == ["high_error", "high_error"]
    assert all("drown" not in s.because and "scale that all share" not in s.because for s in found)


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


@pytest.mark.parametrize(("ratio", "speaks"), [(20.0, True), (10.0, False)])
def test_unbalanced_parts_of_the_models_own_output(ratio: float, speaks: bool) -> None:
    """As a whole it has 40 dB; the smaller part, whose power is 1 / ratio², 38.8 dB less the square of the ratio."""
    parts = op("a"), op("b", x=BELL / np.float32(ratio), step=0.04 / ratio)
    found = judged(*parts, op("join", "Concat", ["a", "b"], added=40.0))
    assert [(s.rule, s.ops) for s in found] == ([("unbalanced_inputs", ["join"])] if speaks else [])
    assert not speaks or "joins a (up to" in found[0].because


def test_parts_that_are_joined_are_told_before_their_channels() -> None:
    """A channel of the large part is an outlier of the whole, whoever reads it."""
    x = np.concatenate([BELL[:, :1] * np.float32(600), BELL[:, 1:]], axis=1)
    step = float(np.abs(x).max()) / 127
    parts = op("boxes", x=BELL * np.float32(600), step=20.0), op("scores")
    joined = op("join", "Concat", ["boxes", "scores"], x=x, added=rounded(x, int8(step)), step=step)
    for behind in ((), (op("end", "Transpose", ["join"], x=x, step=step),)):
        assert [s.rule for s in judged(*parts, joined, *behind)][:1] == ["unbalanced_inputs"]


@pytest.mark.parametrize(("low", "speaks"), [(-3.4e38, True), (-170.0, True), (-140.0, False)])
@pytest.mark.parametrize("between", [(), ("Reshape",)], ids=["", "behind a reshape"])
def test_a_mask_in_one_range_with_scores(low: float, speaks: bool, between: Sequence[str]) -> None:
    """Steps of -170 / 255 leave 14.3 dB of a difference of 1, those of -140 / 255 16."""
    x = np.where(rng.random(BELL.shape) < 0.3, np.float32(low), BELL)
    ops = [op("scores", "MatMul"), op("mask", "Add", ["scores"], x=x, added=x, step=-low / 255)]
    ops += [op("between", kind, ["mask"], x=x, added=x, step=-low / 255) for kind in between]
    ops.append(op("attention", "Softmax", [ops[-1].op.name]))
    found = judged(*ops)
    assert [s.rule for s in found] == (["mask_constant"] if speaks else [])
    if speaks:
        assert {"mask", "attention"} <= set(found[0].ops)
        assert found[0].evidence["scores"] == pytest.approx(np.abs(BELL).max())
        assert f"a huge number ({low:.3g})" in found[0].because


def test_scores_that_reach_far_themselves_are_not_masked() -> None:
    x = BELL * np.float32(40)
    ops = op("scores", "MatMul", x=x, step=1.4), op("bias", "Add", ["scores"], x=x - 170, added=x - 170, step=1.4)
    assert judged(*ops, op("attention", "Softmax", ["bias"])) == []


@pytest.mark.parametrize(("mean", "speaks"), [(20.0, True), (12.0, False)])
def test_a_difference_of_nearly_equal_numbers(mean: float, speaks: bool) -> None:
    """Both arrive with at least 20 dB and have reach of 16 times what is left, which has 0 dB; or less than that."""
    other = rng.standard_normal(BELL.shape).astype(np.float32)
    left = (BELL - other) / np.float32(1.41)
    a, b = left + np.float32(mean) + other, other + np.float32(mean)
    numbers = op("square", "Mul", x=a, added=40.0), op("mean.square", "Mul", x=b, added=40.0)
    end = op("variance", "Sub", ["square", "mean.square"], x=left, added=left, total=noisy(left, 0.0), step=None)
    found = judged(*numbers, end, op("end", "Tanh", ["variance"], total=noisy(BELL, 0.0)))
    assert [s.rule for s in found] == (["near_equal_difference"] if speaks else [])
    if speaks:
        assert found[0].ops == ["square", "mean.square", "variance", "end"]
        assert "square and mean.square" in found[0].because


@pytest.mark.parametrize(("size", "speaks"), [(17.0, True), (15.0, False)])
@pytest.mark.parametrize("between", [(), ("Relu",)], ids=["", "behind a relu"])
def test_a_bias_that_is_large_beside_the_products(size: float, speaks: bool, between: Sequence[str]) -> None:
    """They vary by 1; beside 16 times that much they are no more than a sixteenth of the range."""
    found = _biased(size, arrives=BELL, between=between)
    assert (found[0].rule == "large_bias") == speaks
    if speaks:
        assert {"biased", "reader"} <= set(found[0].ops)
        assert found[0].evidence["offset"] == pytest.approx(size, rel=0.01)
        assert found[0].because.startswith("the bias of biased is large beside its products")


def test_a_constant_part_that_was_there_before_is_no_bias() -> None:
    """What arrives lies at 20, and weights that sum up to 1 leave it there."""
    assert [s.rule for s in _biased(20.0, arrives=BELL)] == ["large_bias"]
    assert [s.rule for s in _biased(20.0, arrives=BELL + np.float32(20))] == ["first_or_last_layer"]


def test_what_the_products_may_have_made_is_no_bias() -> None:
    """One channel arrives at 60, and it is not known which weights read it."""
    arrives = BELL.copy()
    arrives[:, 0] += 60
    assert "large_bias" not in [s.rule for s in _biased(20.0, arrives=arrives)]


def test_an_op_that_adds_has_moved_only_what_was_elsewhere_before() -> None:
    x = BELL.copy()
    x[:, 0] += 20 * np.sqrt(np.float32(8))
    step = float(x.max()) / 127
    for arrives, speaks in ((x, False), (BELL, True)):
        ops = op("start", "MatMul", x=arrives, params=9), op("adds", "Add", ["start"], x=x, step=step, params=8)
        found = judged(*ops, op("reader", "Conv", ["adds"], added=12.0, params=9), op("end", "Tanh", ["reader"]))
        assert (found[0].rule == "large_bias") == speaks


def _biased(size: float, arrives: np.ndarray, between: Sequence[str] = ()) -> list[Suggestion]:
    """Channels at this distance from 0, which the op behind them takes back; weights of each sum up to 1."""
    x = BELL + np.float32(size)
    step = float(x.max()) / 127
    biased = op(
        "biased", "Conv", ["start"], x=x, step=step, weight=weights(np.full((8, 4), 0.25, np.float32)), params=40
    )
    ops = [op("start", "Sigmoid", x=arrives), biased]
    ops += [op("between", kind, ["biased"], x=x, step=step) for kind in between]
    return judged(*ops, op("reader", "Conv", [ops[-1].op.name], added=12.0, params=9), op("end", "Tanh", ["reader"]))


def test_a_difference_of_what_was_lost_before_is_not_to_blame() -> None:
    a = BELL + np.float32(50)
    numbers = op("a", "Mul", x=a, total=noisy(a, 15.0)), op("b", "Mul", x=a - BELL / 2, total=noisy(a, 40.0))
    end = op("variance", "Sub", ["a", "b"], x=BELL / 2, added=BELL / 2, total=noisy(BELL, 0.0), step=None)
    assert judged(*numbers, end) == []


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


def test_what_is_constant_because_nothing_else_arrives_is_not_to_blame() -> None:
    """The second op gives nothing, too, but what it adds itself is little; the first one is named."""
    zero = np.zeros_like(BELL)
    lost = op("a", "Sigmoid", added=zero, total=zero)
    found = judged(lost, op("b", "Sigmoid", ["a"], added=10.0, total=zero), op("c", "Tanh", ["b"]))
    assert [(s.rule, s.ops) for s in found] == [("constant", ["a", "b"])]


def test_non_finite_values_come_first() -> None:
    broken = BELL.copy()
    broken[0, 0, 0] = np.inf
    ops = op("a", "Sigmoid", added=5.0), op("b", "Exp", ["a"], total=broken), op("c", "Tanh", ["b"])
    found = judged(*ops)
    assert found[0].rule == "non_finite"
    assert "b" in found[0].ops
    assert "NaN or infinite values (1, " in found[0].because


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
