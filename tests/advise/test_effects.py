"""What a probe adds to a diagnosis, with effects that are given."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from inc_tb.advise.effects import (
    EXPLAINING,
    FOUND,
    SPREAD_OVER,
    KeptSet,
    UnitEffect,
    with_effects,
    with_kept,
    with_measured_sets,
)
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.records import Effect, Suggestion
from tests.example_run import OPS, make_diagnosis

CONV1, RELU1, CONV2, RELU2, POOL, FLATTEN, GEMM = OPS
HOW = "measured somehow"
UNITS = {CONV1, CONV2, POOL, GEMM}
COLUMNS = ["sensitivity", "sensitivity_low", "sensitivity_high", "recovery"]


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory: pytest.TempPathFactory) -> Diagnosis:
    return make_diagnosis(tmp_path_factory.mktemp("models"))


def suggestion(rank: int, *ops: str) -> Suggestion:
    guess = Effect("recovers", "less error", 0.5, "share", "estimated", "a guess")
    cost = Effect("costs", "more bytes", 100.0, "bytes", "counted", "counted")
    return Suggestion(list(ops), f"rule{rank}", f"because {rank}", {"op": ops[0]}, rank=rank, effects=[guess, cost])


def column(diagnosis: Diagnosis, name: str) -> dict[str, object]:
    return dict(zip(diagnosis.ops["name"], diagnosis.ops[name].tolist(), strict=True))


# Columns


EFFECTS = [
    UnitEffect(CONV1, [CONV1, RELU1], 0.5, 0.4, 0.6, (1, 1), 0.75),
    UnitEffect(CONV2, [CONV2, RELU2], 0.25, 0.125, 0.375, (2, 4), None),
]


def test_every_op_of_a_unit_has_its_numbers(diagnosis: Diagnosis) -> None:
    found = with_effects(diagnosis, EFFECTS, {})
    for op in (CONV1, RELU1):
        assert [column(found, name)[op] for name in COLUMNS] == pytest.approx([0.5, 0.4, 0.6, 0.75])
    for op in (CONV2, RELU2):
        assert [column(found, name)[op] for name in COLUMNS[:3]] == pytest.approx([0.25, 0.125, 0.375])


def test_where_there_is_no_number_there_is_the_reason(diagnosis: Diagnosis) -> None:
    found = with_effects(diagnosis, EFFECTS, {GEMM: "no time"})
    rows = {op: row for row, op in enumerate(OPS)}
    for name in COLUMNS:
        assert found.ops.why_null(name, rows[GEMM]) == "no time"
        assert found.ops.why_null(name, rows[FLATTEN]) == "nothing starts to be rounded at this op"
        assert found.ops.why_null(name, rows[CONV1]) == ""
    assert "most sensitive" in found.ops.why_null("recovery", rows[CONV2])
    assert found.ops.why_null("sensitivity", rows[CONV2]) == ""


def test_before_a_probe_the_columns_are_empty_and_say_so(diagnosis: Diagnosis) -> None:
    for name in COLUMNS:
        assert np.isnan(diagnosis.ops[name]).all()
        assert all(diagnosis.ops.why_null(name, row) for row in range(len(OPS)))
    assert set(diagnosis.ops["sensitivity_rank"].tolist()) == {""}


def test_ranks_that_cannot_be_told_apart_are_a_range(diagnosis: Diagnosis) -> None:
    found = column(with_effects(diagnosis, EFFECTS, {}), "sensitivity_rank")
    assert found == {CONV1: "1", RELU1: "1", CONV2: "2–4", RELU2: "2–4", POOL: "", FLATTEN: "", GEMM: ""}
    assert UnitEffect("x", [], 1, 0, 2).rank_text == ""


def test_everything_else_of_the_diagnosis_stays(diagnosis: Diagnosis) -> None:
    found = with_effects(diagnosis, EFFECTS, {})
    assert found is not diagnosis
    assert np.isnan(diagnosis.ops["sensitivity"]).all()
    for name in diagnosis.ops:
        if name not in (*COLUMNS, "sensitivity_rank"):
            np.testing.assert_array_equal(found.ops[name], diagnosis.ops[name])
    assert found.histograms == diagnosis.histograms
    assert found.worst(1, "sensitivity") == [0]


# Suggestions


def test_suggestions_get_what_was_measured_instead_of_what_was_estimated(diagnosis: Diagnosis) -> None:
    given = replace(diagnosis, suggestions=[suggestion(1, CONV1), suggestion(2, GEMM)])
    found = with_measured_sets(given, None, {1: KeptSet([CONV1], 0.2, 0.8)}, UNITS, HOW)
    first, second = found.suggestions
    assert [(e.kind, e.value, e.basis, e.how) for e in first.effects] == [
        ("recovers", 0.8, "measured", HOW), ("costs", 100.0, "counted", "counted")
    ]  # fmt: skip
    assert second.effects == given.suggestions[1].effects
    assert given.suggestions[0].effects[0].basis == "estimated"


def test_suggestions_are_ranked_by_what_they_recover_and_those_not_measured_come_behind(diagnosis: Diagnosis) -> None:
    given = replace(diagnosis, suggestions=[suggestion(i, op) for i, op in enumerate(OPS[:5], start=1)])
    measured = {1: KeptSet([CONV1], 0.9, 0.1), 3: KeptSet([CONV2], 0.2, 0.8), 4: KeptSet([RELU2], 1.3, -0.3)}
    found = with_measured_sets(given, None, measured, UNITS, HOW).suggestions
    assert [s.rule for s in found] == ["rule3", "rule1", "rule2", "rule5", "rule4"]
    assert [s.rank for s in found] == [1, 2, 3, 4, 5]


def test_what_changes_nothing_by_itself_says_so(diagnosis: Diagnosis) -> None:
    given = replace(diagnosis, suggestions=[suggestion(1, CONV1), suggestion(2, CONV2)])
    measured = {1: KeptSet([CONV1], 0.99, 0.01), 2: KeptSet([CONV2], 0.97, 0.03)}
    found = with_measured_sets(given, None, measured, UNITS, HOW).suggestions
    assert [s.because for s in found] == [
        "because 2", "because 1. By itself this changes next to nothing at the output"
    ]  # fmt: skip


def test_a_set_of_two_causes_tells_both_and_that_they_must_go_together(diagnosis: Diagnosis) -> None:
    given = replace(diagnosis, suggestions=[suggestion(1, CONV1), suggestion(2, GEMM)])
    measured = {1: KeptSet([CONV1], 0.99, 0.01), 2: KeptSet([GEMM], 0.8, 0.2)}
    first = with_measured_sets(given, KeptSet([CONV1, GEMM], 0.01, 0.99), measured, UNITS, HOW).suggestions[0]
    assert first.because == (
        "keeping these 2 ops in fp32 together removes 99.0% of the error at the output. 2 causes: (1) because 1; "
        "(2) because 2. One by one they remove 1.0%, 20.0%: they must go together"
    )
    measured[2] = KeptSet([GEMM], 0.2, 0.8)
    first = with_measured_sets(given, KeptSet([CONV1, GEMM], 0.01, 0.99), measured, UNITS, HOW).suggestions[0]
    assert first.because.endswith("(1) because 1; (2) because 2")


def test_a_set_of_more_than_its_cause_explains_says_what_is_known(diagnosis: Diagnosis) -> None:
    given = replace(diagnosis, suggestions=[suggestion(1, CONV1, RELU1)])
    first = with_measured_sets(given, KeptSet([CONV1, GEMM], 0.01, 0.99), {}, UNITS, HOW).suggestions[0]
    assert first.because.endswith("of the error at the output. Of some of them this is known: because 1")


def test_a_set_that_no_whole_search_has_found_is_not_called_the_smallest(diagnosis: Diagnosis) -> None:
    given = replace(diagnosis, suggestions=[])
    (first,) = with_measured_sets(given, KeptSet([CONV1], 0.01, 0.99), {}, UNITS, HOW, is_smallest=False).suggestions
    assert first.rule == FOUND


def test_the_set_that_explains_the_loss_comes_first(diagnosis: Diagnosis) -> None:
    given = replace(diagnosis, suggestions=[suggestion(1, GEMM)])
    explaining = KeptSet([CONV1, CONV2], 0.01, 0.99)
    first, second = with_measured_sets(given, explaining, {1: KeptSet([GEMM], 0.5, 0.5)}, UNITS, HOW).suggestions
    assert (first.ops, first.rule, first.rank) == ([CONV1, CONV2], EXPLAINING, 1)
    assert (second.rule, second.rank) == ("rule1", 2)
    assert first.because == "keeping these 2 ops in fp32 together removes 99.0% of the error at the output"
    assert first.evidence == {"error_left": 0.01, "recovered": 0.99}
    assert (first.effects[0].value, first.effects[0].basis) == (0.99, "measured")
    assert {effect.kind for effect in first.effects} == {"recovers", "costs"}
    assert f'"{CONV1}"' in first.recipe
    assert f'"{CONV2}"' in first.recipe


def test_the_set_has_the_words_of_the_rule_that_found_the_same(diagnosis: Diagnosis) -> None:
    """And that suggestion is not there twice."""
    given = replace(diagnosis, suggestions=[suggestion(1, GEMM), suggestion(2, CONV1, RELU1, CONV2)])
    explaining = KeptSet([CONV1, CONV2], 0.01, 0.99)
    measured = {1: KeptSet([GEMM], 0.5, 0.5), 2: KeptSet([CONV1, CONV2], 0.01, 0.99)}
    found = with_measured_sets(given, explaining, measured, UNITS, HOW).suggestions
    assert [(s.rule, s.ops) for s in found] == [("rule2", [CONV1, CONV2]), ("rule1", [GEMM])]
    assert found[0].because.startswith("because 2; keeping these 2 ops")
    assert found[0].evidence["op"] == CONV1


def test_a_suggestion_that_holds_more_stays_beside_the_smaller_set(diagnosis: Diagnosis) -> None:
    given = replace(diagnosis, suggestions=[suggestion(1, CONV1, CONV2, GEMM)])
    measured = {1: KeptSet([CONV1, CONV2, GEMM], 0.005, 0.995)}
    found = with_measured_sets(given, KeptSet([CONV1], 0.01, 0.99), measured, UNITS, HOW).suggestions
    assert [(s.rule, s.ops) for s in found] == [("rule1", [CONV1]), ("rule1", [CONV1, CONV2, GEMM])]
    assert "keeping this op in fp32 removes 99.0%" in found[0].because


def test_a_suggestion_with_the_same_units_is_replaced_even_where_it_was_not_measured(diagnosis: Diagnosis) -> None:
    given = replace(diagnosis, suggestions=[suggestion(1, CONV1, RELU1, CONV2, FLATTEN)])
    (found,) = with_measured_sets(given, KeptSet([CONV1, CONV2], 0.01, 0.99), {}, UNITS, HOW).suggestions
    assert (found.ops, found.rule) == ([CONV1, CONV2], "rule1")


def test_nothing_is_said_to_be_removed_wholly(diagnosis: Diagnosis) -> None:
    given = replace(diagnosis, suggestions=[])
    for recovered, text in ((1.0, "over 99.9%"), (0.9995, "over 99.9%"), (0.998, "99.8%")):
        (found,) = with_measured_sets(given, KeptSet([CONV1], 0.0, recovered), {}, UNITS, HOW).suggestions
        assert f"removes {text} of the error" in found.because


def test_configs_go_on_keeping_what_the_model_keeps(diagnosis: Diagnosis) -> None:
    given = replace(diagnosis, suggestions=[suggestion(1, CONV2, CONV1)])
    assert with_kept(given, []) is given
    (found,) = with_kept(given, [GEMM, CONV1]).suggestions
    assert found.ops == [CONV2, CONV1]
    assert [found.recipe.count(f'"{name}"') for name in (CONV1, CONV2, GEMM, POOL)] == [1, 1, 1, 0]


@pytest.fixture
def with_setting(diagnosis: Diagnosis) -> Diagnosis:
    """Its first suggestion is to be cured by a scale per channel."""
    cured = msgspec.structs.replace(
        suggestion(1, CONV1, CONV2), because="one setting cures it",
        recipes={"onnxruntime-per-channel": "per_channel=True", "onnxruntime": "nodes_to_exclude"},
    )  # fmt: skip
    return replace(diagnosis, suggestions=[cured, suggestion(2, GEMM)])


def test_what_a_setting_cures_is_not_said_to_be_kept(with_setting: Diagnosis) -> None:
    """Its set explains the loss, and is measured in fp32: the sentence and the config remain those of the setting."""
    explaining = KeptSet([CONV1, CONV2], 0.01, 0.99)
    first, second = with_measured_sets(with_setting, explaining, {1: explaining}, UNITS, HOW).suggestions
    assert (first.because, first.recipe, first.rank) == ("one setting cures it", "per_channel=True", 1)
    (gain,) = (e for e in first.effects if e.what == "error")
    assert (gain.basis, gain.label, gain.value) == ("estimated", "less error at the output", 0.99)
    assert gain.how == f"{HOW}; the setting itself was not measured"
    assert second.rule == "rule2"


def test_a_smaller_set_to_keep_stands_beside_the_setting(with_setting: Diagnosis) -> None:
    measured = {1: KeptSet([CONV1, CONV2], 0.005, 0.995)}
    first, second, _ = with_measured_sets(with_setting, KeptSet([CONV1], 0.01, 0.99), measured, UNITS, HOW).suggestions
    assert first.because == "keeping this op in fp32 removes 99.0% of the error at the output"
    assert (first.rule, next(iter(first.recipes))) == (EXPLAINING, "onnxruntime")
    assert (second.because, second.recipe) == ("one setting cures it", "per_channel=True")


def test_the_setting_stays_first_where_ops_are_kept_already(with_setting: Diagnosis) -> None:
    first, second = with_kept(with_setting, [POOL]).suggestions
    assert next(iter(first.recipes)) == "onnxruntime-per-channel"
    assert next(iter(second.recipes)) == "onnxruntime"
    assert f'"{POOL}"' in second.recipe


def test_part_of_a_set_is_said_to_be_a_part(diagnosis: Diagnosis) -> None:
    given = replace(diagnosis, suggestions=[suggestion(1, CONV1, CONV2, GEMM)])
    first, _ = with_measured_sets(given, KeptSet([CONV1, CONV2], 0.01, 0.99), {}, UNITS, HOW).suggestions
    assert (
        first.because == "because 1; keeping 2 of these 3 ops in fp32 together removes 99.0% of the error at the output"
    )


def test_without_a_set_nothing_is_added(diagnosis: Diagnosis) -> None:
    given = replace(diagnosis, suggestions=[suggestion(1, GEMM)])
    for explaining in (None, KeptSet([], 0.0, 0.0)):
        found = with_measured_sets(given, explaining, {}, UNITS, HOW)
        assert [s.rule for s in found.suggestions] == ["rule1"]
        assert found.notes == diagnosis.notes


def healthy(diagnosis: Diagnosis, *ill: str) -> Diagnosis:
    verdicts = ["watch" if name in ill else "ok" for name in OPS]
    return replace(diagnosis, ops=diagnosis.ops.replaced({"verdict": verdicts}), suggestions=[])


def test_healthy_ops_are_no_cure_unless_the_output_is_lost(diagnosis: Diagnosis) -> None:
    spread = KeptSet([CONV1, CONV2], 0.002, 0.95)
    (lost,) = with_measured_sets(healthy(diagnosis), spread, {}, UNITS, HOW).suggestions
    assert lost.rule == EXPLAINING
    found = with_measured_sets(healthy(diagnosis), spread, {}, UNITS, HOW, is_lost=False)
    assert found.suggestions == []
    assert found.notes[-1] == (
        "error 0.04 at the output, and no op is to blame: it is the sum of healthy rounding. It would take 2 ops in "
        "fp32 to remove 95.0% of it"
    )


def test_most_of_the_healthy_ops_are_no_cure_of_a_lost_output(diagnosis: Diagnosis) -> None:
    found = with_measured_sets(healthy(diagnosis), KeptSet([CONV1, CONV2, POOL], 0.02, 0.9), {}, UNITS, HOW)
    assert found.suggestions == []
    assert "error 0.2 at the output, and no op is to blame" in found.notes[-1]
    assert "Other settings" in found.notes[-1]


def test_a_large_set_that_time_did_not_make_small_is_behind_a_small_one_with_a_cause(diagnosis: Diagnosis) -> None:
    given = replace(diagnosis, suggestions=[suggestion(1, CONV1)])
    measured = {1: KeptSet([CONV1], 0.3, 0.7)}
    for is_smallest, first in ((True, EXPLAINING), (False, "rule1")):
        found = with_measured_sets(
            given, KeptSet([CONV1, CONV2, POOL, GEMM], 0.0, 1.0), measured, UNITS, HOW, is_smallest=is_smallest
        )
        assert found.suggestions[0].rule == first


def test_an_op_that_is_ill_or_has_a_reason_is_to_blame_whatever_the_output(diagnosis: Diagnosis) -> None:
    spread = KeptSet([CONV1, CONV2], 0.002, 0.95)
    for given in (
        healthy(diagnosis, CONV2), replace(healthy(diagnosis), suggestions=[suggestion(1, CONV1)])
    ):  # fmt: skip
        first = with_measured_sets(given, spread, {}, UNITS, HOW, is_lost=False).suggestions[0]
        assert first.ops == [CONV1, CONV2]


@pytest.mark.parametrize(("recovered", "is_told"), [(0.958, False), (0.963, True)])
def test_few_ops_that_stand_out_by_far_are_to_blame(diagnosis: Diagnosis, recovered: float, is_told: bool) -> None:
    """Two of four units: each takes away 25 times what one of the others leaves at 25/26."""
    kept = KeptSet([CONV1, CONV2], 0.002, recovered)
    found = with_measured_sets(healthy(diagnosis), kept, {}, UNITS, HOW, is_lost=False)
    assert bool(found.suggestions) == is_told
    many = with_measured_sets(
        healthy(diagnosis), KeptSet([CONV1, CONV2, POOL], 0.002, 0.999), {}, UNITS, HOW, is_lost=False
    )
    assert many.suggestions == []


def test_a_spread_error_is_called_so(diagnosis: Diagnosis) -> None:
    few, many = ([f"{CONV1}{i}" for i in range(count)] for count in (SPREAD_OVER, SPREAD_OVER + 1))
    assert with_measured_sets(diagnosis, KeptSet(few, 0.1, 0.9), {}, UNITS, HOW).notes == diagnosis.notes
    (note,) = set(with_measured_sets(diagnosis, KeptSet(many, 0.1, 0.9), {}, UNITS, HOW).notes) - set(diagnosis.notes)
    assert "the error is spread: it takes 13 ops in fp32 to remove 90.0%" in note


def test_what_comes_out_can_be_stored(diagnosis: Diagnosis) -> None:
    found = with_measured_sets(with_effects(diagnosis, EFFECTS, {}), KeptSet([CONV1], 0.1, 0.9), {}, UNITS, HOW)
    stored = msgspec.json.decode(msgspec.json.encode(found.suggestions), type=list[Suggestion])
    assert stored == found.suggestions
    assert found.to_json()["ops"][0]["sensitivity"] == pytest.approx(0.5)


def test_the_set_costs_what_its_weights_take_in_fp32(diagnosis: Diagnosis) -> None:
    """conv1 has 4*2*9 weights, conv2 4*4*9: three bytes more each in fp32 than in int8."""
    found = with_measured_sets(diagnosis, KeptSet([CONV1, CONV2], 0.0, 1.0), {}, UNITS, HOW).suggestions[0]
    costs = {effect.unit: effect.value for effect in found.effects if effect.kind == "costs"}
    assert 3 * (72 + 144) in costs.values()
    assert 2 in costs.values()
