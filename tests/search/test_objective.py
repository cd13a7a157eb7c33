"""The error of results of which a part is much larger than the rest, by hand; and which figures fit results."""

from __future__ import annotations

import numpy as np
import pytest

from inc_tb.frameworks.ops import Array
from inc_tb.search.objective import Measure
from inc_tb.search.smallest import HEALTHY
from tests.search.test_simulation import simulate

RANDOM = np.random.default_rng(0)
BOXES = RANDOM.uniform(0, 640, (24, 4, 50)).astype(np.float32)
SCORES = RANDOM.uniform(0, 1, (24, 3, 50)).astype(np.float32)


def error(reference: Array, other: Array) -> float:
    return float(Measure.of([reference]).errors(other, reference, len(reference)).mean())


@pytest.mark.parametrize("axis", [1, 2], ids=["channels before places", "channels behind places"])
@pytest.mark.parametrize("order", [range(7), [4, 0, 5, 1, 2, 6, 3]], ids=["side by side", "mixed"])
def test_scores_do_not_hide_behind_boxes(axis: int, order: list[int]) -> None:
    """3 of 7 channels are lost; taken together they are less than a millionth of what varies."""

    def arranged(scores: Array) -> Array:
        return np.moveaxis(np.concatenate([BOXES, scores], axis=1)[:, list(order)], 1, axis)

    middle = np.broadcast_to(SCORES.mean(axis=0), SCORES.shape)
    whole = arranged(SCORES)
    assert np.square(arranged(middle) - whole).sum() / np.square(whole - whole.mean(axis=0)).sum() < 1e-5
    assert error(whole, arranged(middle)) == pytest.approx(3 / 7, rel=1e-5)
    lost = np.moveaxis(np.concatenate([BOXES * 0 + BOXES.mean(axis=0), SCORES], axis=1)[:, list(order)], 1, axis)
    assert error(whole, lost) == pytest.approx(4 / 7, rel=1e-5)


def test_channels_of_one_size_are_measured_together() -> None:
    """They vary by 225, 1 and 1, no channel 16 times less than the largest: off by 1 in one is 1/227."""
    base = np.array([[15, 1, 1], [-15, -1, -1]], np.float32)
    assert error(base, base + np.float32([0, 0, 1])) == pytest.approx(1 / 227)


def test_channels_sixteen_times_smaller_are_measured_by_themselves() -> None:
    """256 against 1 and 1: two of three channels are of the other kind, off by 1 of 2."""
    base = np.array([[16, 1, 1], [-16, -1, -1]], np.float32)
    assert error(base, base + np.float32([0, 0, 1])) == pytest.approx(2 / 3 * 1 / 2)


def test_what_fades_evenly_is_of_one_kind() -> None:
    """Each row of a picture is 1.5 times darker than the one before it, over a range of 50."""
    picture = RANDOM.normal(size=(8, 1, 10, 6)) * (1.5 ** -np.arange(10))[:, None] * 3
    assert Measure.of([picture.astype(np.float32)]).weights.shape == ()


def test_dead_channels_do_not_explode() -> None:
    base = np.concatenate([BOXES, np.zeros((24, 1, 50), np.float32), SCORES * np.float32(1e-4)], axis=1)
    noise = np.zeros_like(base)
    noise[:, 4:] = 0.05
    varies = np.square(BOXES - BOXES.mean(axis=0)).sum() / 24
    assert error(base, base + noise) == pytest.approx(4 * 50 * 0.05**2 / varies, rel=1e-4)


def test_classes_that_do_not_occur_are_of_the_same_kind_as_those_that_do() -> None:
    """Shares of 1: what rounding to steps of 1/255 leaves of a rare class is no loss."""
    scores = np.concatenate([SCORES, RANDOM.uniform(0, 1e-3, (24, 60, 50))], axis=1).astype(np.float32)
    assert error(scores, np.round(scores * 255) / 255) < 1e-3
    both = np.concatenate([BOXES, scores], axis=1)
    assert error(both, np.concatenate([BOXES, np.round(scores * 255) / 255], axis=1)) < HEALTHY


def test_lengths_that_differ_between_batches_are_measured_by_channels_at_the_end() -> None:
    """Squares of 100 and 1 in 5 rows of two batches; the channels count alike, and one of them is gone."""
    batches = [np.full((1, length, 2), [100, 1], np.float32) for length in (2, 3)]
    measure = Measure.of(batches)
    lost = [measure.errors(batch * np.float32([1, 0]), batch, 1)[0] for batch in batches]
    assert lost == pytest.approx([0.5 * 2 / 2.5, 0.5 * 3 / 2.5])


def test_targets_of_a_regression_count_alike() -> None:
    """Meters, degrees and a share: each varies by its own square."""
    base = np.array([[1000, 30, 0.9], [-1000, -30, 0.1]], np.float32)
    for target, size in enumerate((1000, 30, 0.4)):
        lost = base.copy()
        lost[:, target] = base[:, target].mean()
        assert error(base, lost) == pytest.approx(1 / 3, rel=1e-5), size


# Which figures fit


def figures(reference: Array, other: Array, *more: Array) -> tuple[float | None, float | None, float | None]:
    found = simulate(lambda x, on: [other if on else reference, *more], len(reference)).compare()["real"]
    return found.agreement, found.divergence, found.cosine


def test_states_of_a_recurrent_layer_have_no_top_1() -> None:
    states = np.tanh(RANDOM.normal(size=(6, 5, 8))).astype(np.float32)
    assert figures(states, -states) == (None, None, -1)


def test_an_embedding_has_a_cosine() -> None:
    """Turned by 60 degrees."""
    base = np.array([[1, 0], [0, -1], [0.6, -0.8]], np.float32)
    turned = base @ np.array([[0.5, np.sqrt(0.75)], [-np.sqrt(0.75), 0.5]], np.float32)
    assert figures(base, turned) == (None, None, pytest.approx(0.5, abs=1e-6))


def test_logarithms_of_shares_are_classes() -> None:
    shares = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]], np.float32)
    assert figures(np.log(shares), np.log(shares[:, ::-1])) == (0, None, None)


def test_boxes_and_scores_have_neither() -> None:
    both = np.concatenate([BOXES, SCORES], axis=1)
    assert figures(both, both * 2) == (None, None, None)


def test_outputs_beside_classes_do_not_change_their_figures() -> None:
    """The states of another layer have another number of rows."""
    logits = np.array([[3, -1], [-2, 5]], np.float32)
    agreement, _, cosine = figures(logits, logits[:, ::-1], RANDOM.normal(size=(1, 2, 4)).astype(np.float32) * 3)
    assert (agreement, cosine) == (0, None)
