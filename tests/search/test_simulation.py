"""The error of a simulated model, by hand on tiny numbers, and what is remembered of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from inc_tb.frameworks.onnx.switch import OnnxSwitches
from inc_tb.frameworks.ops import Array, Batch, Input, Site, Unit
from inc_tb.frameworks.protocols import Outputs
from inc_tb.search.journal import Journal
from inc_tb.search.objective import WORST
from inc_tb.search.simulation import Simulation, interval, resampled
from tests.digits import DATA, digits
from tests.frameworks import onnx_zoo as zoo

Make = Callable[[Array, frozenset[str]], Sequence[Any]]


class Model:
    """A switchable model whose outputs a function makes of its input and what is on."""

    framework = "python"

    def __init__(self, scores: Make, results: Make | None = None, sites: Sequence[Site] | None = None) -> None:
        self.notes: list[str] = []
        self.inputs = [Input("x", np.dtype(np.float32), (None,))]
        self.units = [Unit(name, [name]) for name in "ab"]
        self.sites = sites or [Site(name, "activation", frozenset([name]), name) for name in "ab"]
        self._scores, self._results = scores, results or scores
        self.runs: list[frozenset[str]] = []

    def run(self, batch: Batch, on: Collection[str]) -> Outputs:
        key = frozenset(on)
        self.runs.append(key)
        return Outputs(*([np.asarray(a) for a in made(batch["x"], key)] for made in (self._scores, self._results)))

    def trace(self, batch: Batch) -> None:
        pass

    def gradients(self, batch: Batch) -> dict[str, Array]:
        return {}

    def run_real(self, batch: Batch) -> list[Array]:
        return [np.asarray(array) for array in self._results(batch["x"], frozenset("ab"))]


def simulate(scores: Make, samples: int = 2, batch: int | None = None, **more: Any) -> Simulation:
    """The input counts the samples."""
    count = np.arange(samples, dtype=np.float32)
    batches = [{"x": rows} for rows in np.split(count, range(batch, samples, batch))] if batch else {"x": count}
    return Simulation(Model(scores, **more), batches)


def column(*values: float) -> Array:
    return np.array(values, np.float32)[:, None]


# The error


def test_the_error_is_the_squared_difference_relative_to_how_much_scores_vary() -> None:
    """Scores 1 and 5: mean 3, variance 4. Off by 2 and by 1: 4/4 and 1/4."""
    found = simulate(lambda x, on: [column(1, 5) + (column(2, -1) if "a" in on else 0)])
    np.testing.assert_allclose(found.errors({"a"}), [1, 0.25])
    assert found.error({"a"}) == pytest.approx(0.625)
    assert found.errors({"b"}).tolist() == [0, 0]
    assert found.errors(()).tolist() == [0, 0]


def test_classes_of_a_sample_are_summed_up() -> None:
    """Samples (0, 3) and (4, 3): they vary by (2, 0) around (2, 3), so by 4; off by (1, 1): 2/4."""
    base = np.array([[0, 3], [4, 3]], np.float32)
    found = simulate(lambda x, on: [base + (1 if on else 0)])
    np.testing.assert_allclose(found.errors({"a"}), [0.5, 0.5])


def test_an_output_that_says_nothing_any_more_has_an_error_of_one() -> None:
    base = np.random.default_rng(0).normal(size=(40, 7)).astype(np.float32)
    found = simulate(lambda x, on: [np.broadcast_to(base.mean(axis=0), base.shape) if on else base], 40)
    assert found.error({"a"}) == pytest.approx(1, rel=1e-5)


def test_batches_are_one_set_of_samples() -> None:
    def scores(x: Array, on: frozenset[str]) -> list[Array]:
        return [np.stack([x, x * x], axis=1) * (1.5 if on else 1)]

    whole, parts = simulate(scores, 7), simulate(scores, 7, batch=3)
    assert [len(batch["x"]) for batch in parts.batches] == [3, 3, 1]
    np.testing.assert_allclose(parts.errors({"a"}), whole.errors({"a"}))


def test_samples_beyond_those_asked_for_are_not_used() -> None:
    model = Model(lambda x, on: [x[:, None]])
    found = Simulation(model, [{"x": np.arange(6, dtype=np.float32)} for _ in range(4)], samples=8)
    assert [len(batch["x"]) for batch in found.batches] == [6, 2]
    assert len(found.errors(())) == 8


def test_of_several_outputs_the_mean_counts() -> None:
    """Errors 1 and 0.25 as above, and of the other output (variance 1, off by 0 and 1) 0 and 1."""

    def scores(x: Array, on: frozenset[str]) -> list[Array]:
        return [column(1, 5) + (column(2, -1) if on else 0), column(0, 2) + (column(0, 1) if on else 0)]

    np.testing.assert_allclose(simulate(scores).errors({"a"}), [0.5, 0.625])


def test_an_output_of_whole_numbers_counts_those_that_are_different() -> None:
    off = np.array([[0, 0, 1, 0], [1, 1, 1, 0]])
    found = simulate(lambda x, on: [np.arange(8).reshape(2, 4) + (off if on else 0)])
    np.testing.assert_allclose(found.errors({"a"}), [0.25, 0.75])
    truths = simulate(lambda x, on: [np.array([[True], [bool(on)]])])
    assert truths.errors({"a"}).tolist() == [0, 1]


def test_an_output_of_one_number_is_measured_against_its_size() -> None:
    found = simulate(lambda x, on: [np.float32(4 + (1 if on else 0))], 6, batch=3)
    np.testing.assert_allclose(found.errors({"a"}), [1 / 16, 1 / 16])


def test_outputs_of_different_lengths_make_a_batch_one_sample() -> None:
    """One has a row a sample (variance 4, off by 2 and 1), the other one row (4, off by 1; its size is 16)."""

    def scores(x: Array, on: frozenset[str]) -> list[Any]:
        return [column(1, 5) + (column(2, -1) if on else 0), column(4 + (1 if on else 0))]

    np.testing.assert_allclose(simulate(scores).errors({"a"}), [(0.625 + 1 / 16) / 2])


def test_an_output_whose_length_is_not_that_of_the_batch_has_its_own_rows() -> None:
    """Three numbers whatever the batch is: mean 3, variance 8/3; off by 2 in the last one."""
    off = np.array([0, 0, 2], np.float32)
    found = simulate(lambda x, on: [np.array([1, 3, 5], np.float32) + (off if on else 0)], 8)
    np.testing.assert_allclose(found.errors({"a"}), [0, 0, 4 / (8 / 3)])


def test_an_output_without_rows_is_no_error() -> None:
    found = simulate(lambda x, on: [np.zeros((0, 4), np.float32), x[:, None] + (1 if on else 0)], 4)
    assert found.error({"a"}) > 0
    nothing = simulate(lambda x, on: [np.zeros((0, 4), np.float32)], 4)
    assert np.nan_to_num(nothing.error({"a"})) == 0


def test_another_number_of_rows_is_an_error_of_one() -> None:
    found = simulate(lambda x, on: [np.zeros((3 if on else 2, 4), np.float32)])
    assert found.errors({"a"}).tolist() == [1, 1]


def test_scores_that_do_not_vary_are_measured_against_their_size() -> None:
    same = simulate(lambda x, on: [column(3, 3) + (1 if on else 0)])
    np.testing.assert_allclose(same.errors({"a"}), [1 / 9, 1 / 9])
    zero = simulate(lambda x, on: [column(0, 0) + (2 if on else 0)])
    np.testing.assert_allclose(zero.errors({"a"}), [4, 4])
    one_sample = simulate(lambda x, on: [np.array([[3, 4]], np.float32) + (1 if on else 0)], 1)
    np.testing.assert_allclose(one_sample.errors({"a"}), [2 / 25])


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_result_that_is_not_finite_is_the_worst_there_is(broken: float) -> None:
    found = simulate(lambda x, on: [column(1, broken if on else 5)])
    assert found.errors({"a"}).tolist() == [0, WORST]


@pytest.mark.parametrize("masked", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_in_fp32_does_not_count(masked: float) -> None:
    """A mask, say. The rest is as if it were not there: 1 and 5 vary by 4, off by 2."""

    def scores(x: Array, on: frozenset[str]) -> list[Array]:
        return [np.array([[1, masked], [5 + (2 if on else 0), masked]], np.float32)]

    np.testing.assert_allclose(simulate(scores).errors({"a"}), [0, 1])


def test_half_precision_is_measured_in_full() -> None:
    base = np.array([[60000], [-60000]], np.float16)
    found = simulate(lambda x, on: [base - (np.float16(600) if on else np.float16(0)) * np.sign(base)])
    assert found.error({"a"}) == pytest.approx(1e-4, rel=0.05)


# Comparisons


def distributions(x: Array, on: frozenset[str]) -> list[Array]:
    return [np.array([[0.6, 0.4], [0.9, 0.1]] if not on else [[0.4, 0.6], [0.9, 0.1]], np.float32)]


def test_scores_before_a_softmax_give_the_error_and_results_the_comparison() -> None:
    found = simulate(lambda x, on: [column(1, 5) + (2 if on else 0)], results=distributions)
    assert found.error({"a"}) == pytest.approx(1)
    compared = found.compare()["simulated"]
    # (0.6, 0.4) and (0.9, 0.1) vary by 2 * 0.15²; the first one is off by 2 * 0.2².
    assert compared.error == pytest.approx(0.08 / 0.045 / 2, rel=1e-5)


def test_agreement_and_divergence_of_distributions() -> None:
    found = simulate(distributions).compare()
    assert (found["fp32"].error, found["fp32"].agreement, found["fp32"].divergence) == (0, 1, 0)
    divergence = (0.6 * np.log(0.6 / 0.4) + 0.4 * np.log(0.4 / 0.6)) / 2
    for form in ("simulated", "real"):
        assert found[form].agreement == 0.5
        assert found[form].divergence == pytest.approx(divergence, rel=1e-5)


def test_scores_have_an_agreement_but_no_divergence() -> None:
    found = simulate(lambda x, on: [np.array([[1, 2], [3, 0]], np.float32) * (-1 if on else 1)]).compare()
    assert (found["real"].agreement, found["real"].divergence) == (0, None)


def test_one_number_a_sample_is_no_decision() -> None:
    found = simulate(lambda x, on: [x[:, None] + (1 if on else 0)], 4).compare()
    assert (found["real"].agreement, found["real"].divergence) == (None, None)
    integers = simulate(lambda x, on: [np.arange(8).reshape(2, 4)]).compare()
    assert integers["real"].agreement is None


def test_classes_are_in_the_last_axis_or_in_the_channels_of_an_image() -> None:
    tokens = np.zeros((2, 3, 4), np.float32)
    tokens[..., 1] = 1

    def words(x: Array, on: frozenset[str]) -> list[Array]:
        changed = tokens.copy()
        changed[0, 0, 2] = 5 if on else 0  # one of six words
        return [changed]

    assert simulate(words).compare()["real"].agreement == pytest.approx(5 / 6)

    def pixels(x: Array, on: frozenset[str]) -> list[Array]:
        image = np.zeros((2, 3, 2, 2), np.float32)
        image[:, 1] = 1
        image[1, 2, 0, 1] = 5 if on else 0  # one of eight pixels
        return [image]

    assert simulate(pixels).compare()["real"].agreement == pytest.approx(7 / 8)


def test_the_forms_compared_are_nothing_on_all_on_and_the_model_itself() -> None:
    found = simulate(lambda x, on: [column(0, 2) + len(on)], 2)
    assert {name: form.error for name, form in found.compare().items()} == {"fp32": 0, "simulated": 4, "real": 4}


# Intervals


def test_the_interval_of_equal_errors_has_no_width() -> None:
    assert interval(np.full(20, 0.3)) == pytest.approx((0.3, 0.3))


def test_the_interval_is_that_of_the_normal_distribution_for_many_samples() -> None:
    """Zeros and ones: the mean of n has a standard deviation of 0.5 / sqrt(n)."""
    low, high = interval(np.repeat([0.0, 1.0], 200))
    assert (low, high) == pytest.approx((0.5 - 1.96 * 0.025, 0.5 + 1.96 * 0.025), abs=0.005)
    narrow = interval(np.repeat([0.0, 1.0], 3200))
    assert narrow[1] - narrow[0] == pytest.approx((high - low) / 4, rel=0.15)


def test_intervals_hold_the_mean_and_are_the_same_every_time() -> None:
    errors = np.random.default_rng(3).exponential(size=32)
    low, high = interval(errors)
    assert low < errors.mean() < high
    assert interval(errors) == (low, high)
    assert interval(errors, seed=1) != (low, high)


def test_resampling_keeps_what_belongs_to_the_same_sample_together() -> None:
    errors = np.random.default_rng(4).exponential(size=(3, 16))
    errors[1] = 2 * errors[0]
    errors[2] = errors[0] + 1
    means = resampled(errors)
    assert means.shape == (3, 1000)
    np.testing.assert_allclose(means[1], 2 * means[0])
    np.testing.assert_allclose(means[2], means[0] + 1)
    assert means[0].std() == pytest.approx(errors[0].std() / 4, rel=0.1)


# What is rounded, and what is remembered


def test_sites_without_units() -> None:
    sites = [
        Site("between", "activation", frozenset("ab"), "between"),
        Site("of a", "activation", frozenset("a"), "of a"),
        Site("weights", "weight", frozenset("b"), "weights", "weights again", (frozenset("ab"), frozenset("bc"))),
    ]
    found = simulate(lambda x, on: [x[:, None]], sites=sites)
    assert found.sites_without(()) == {"between", "of a", "weights"}
    assert found.sites_without(["a"]) == {"between", "weights"}
    assert found.sites_without(["b"]) == {"between", "of a", "weights again"}
    assert found.sites_without("ab") == set()
    assert found.sites_without("bc") == {"between", "of a"}
    assert found.sites_of("a") == ["between", "of a"]
    assert found.sites_of("b") == ["between", "weights"]
    assert found.sites_of("c") == []


def test_a_subset_runs_once() -> None:
    found = simulate(lambda x, on: [x[:, None] + len(on)], 4, batch=2)
    model = found.model
    assert isinstance(model, Model)
    assert (model.runs, found.evaluations) == ([frozenset(), frozenset()], 0)
    for on in (["a", "b"], ("b", "a"), {"a", "b"}):
        found.errors(on)
    assert (len(model.runs), found.evaluations) == (4, 1)
    found.error_keeping("b")
    found.error({"a"})
    assert (len(model.runs), found.evaluations) == (6, 2)
    assert found.is_known(["a"])
    assert found.is_known(())
    assert not found.is_known(["b"])
    found.errors(())
    assert len(model.runs) == 6


def test_no_session_is_opened_for_a_subset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = zoo.residual()
    path = net.save(tmp_path)
    feeds = zoo.data(net, 8)
    switches = OnnxSwitches(path, zoo.static(path, feeds))
    made = []
    construct = ort.InferenceSession

    def counted(*args: Any, **more: Any) -> ort.InferenceSession:
        made.append(args)
        return construct(*args, **more)

    monkeypatch.setattr(ort, "InferenceSession", counted)
    found = Simulation(switches, feeds)
    errors = {found.error([site.name]) for site in switches.sites}
    errors |= {found.error_keeping(unit.ops) for unit in switches.units}
    assert len(errors) > 5
    assert (len(made), found.evaluations) == (1, len(switches.sites) + len(switches.units))


def noisy(x: Array, on: frozenset[str]) -> list[Array]:
    return [np.stack([x, np.sin(x)], axis=1) * (1 + 0.1 * len(on)) + (0.3 if "a" in on else 0)]


def remembering(path: Path, about: str = "models", samples: int = 6, **more: Any) -> tuple[Simulation, Model]:
    found = simulate(noisy, samples, **more)
    found.remember(Journal(path), about)
    model = found.model
    assert isinstance(model, Model)
    model.runs.clear()
    return found, model


def test_what_an_earlier_run_found_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "probe.jsonl"
    first, _ = remembering(path)
    wanted = {on: first.errors(on) for on in ("a", "b", "ab")}
    second, model = remembering(path)
    for on, errors in wanted.items():
        np.testing.assert_array_equal(second.errors(on), errors)
    assert (model.runs, second.evaluations) == ([], 0)


def test_a_kill_while_a_line_is_written_loses_that_line_only(tmp_path: Path) -> None:
    path = tmp_path / "probe.jsonl"
    first, _ = remembering(path)
    wanted = {on: first.errors(on) for on in ("a", "b", "ab")}
    path.write_bytes(path.read_bytes()[:-9])
    second, model = remembering(path)
    assert second.is_known("b")
    assert not second.is_known("ab")
    for on, errors in wanted.items():
        np.testing.assert_array_equal(second.errors(on), errors)
    assert (model.runs, second.evaluations) == ([frozenset("ab")], 1)
    third, model = remembering(path)
    third.errors("ab")
    assert model.runs == []


@pytest.mark.parametrize(
    "other",
    [
        {"about": "other models"},
        {"samples": 5},
        {"sites": [Site(name, "activation", frozenset([name]), name) for name in "ba"]},
    ],
    ids=["models", "data", "sites"],
)
def test_other_models_or_data_start_anew(tmp_path: Path, other: dict[str, Any]) -> None:
    path = tmp_path / "probe.jsonl"
    first, _ = remembering(path)
    first.errors("a")
    second, model = remembering(path, **other)
    assert not second.is_known("a")
    second.errors("a")
    assert model.runs == [frozenset("a")]
    third, model = remembering(path, **other)
    third.errors("a")
    assert model.runs == []


def test_how_samples_are_batched_does_not_matter_to_what_is_remembered_of_them(tmp_path: Path) -> None:
    """Or it starts anew; what must not happen is that errors of other samples are taken."""
    path = tmp_path / "probe.jsonl"
    first, _ = remembering(path)
    second, _ = remembering(path, batch=2)
    np.testing.assert_allclose(second.errors("a"), first.errors("a"))


def test_a_real_model_loses_what_its_quantization_error_is(quantized: Callable[..., Path]) -> None:
    """By hand: outputs of both files, the difference squared, over the variance between samples."""
    images = digits(40)
    found = Simulation(OnnxSwitches(DATA / "hard.onnx", quantized("hard")), {"input": images}, samples=40).compare()

    def logits(path: Path) -> Array:
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        return np.asarray(session.run(None, {"input": images})[0], np.float64)

    fp32, int8 = logits(DATA / "hard.onnx"), logits(quantized("hard"))
    wanted = np.square(int8 - fp32).sum() / np.square(fp32 - fp32.mean(axis=0)).sum()
    assert found["real"].error == pytest.approx(wanted, rel=1e-4)
    assert found["simulated"].error == pytest.approx(wanted, rel=0.05)
    assert found["real"].agreement == pytest.approx((fp32.argmax(axis=1) == int8.argmax(axis=1)).mean())
    assert found["real"].divergence is None
