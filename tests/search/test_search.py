"""The search for the smallest set of ops to keep, on models whose errors are known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inc_tb.frameworks.onnx.sites import rounds_weights_again
from inc_tb.frameworks.onnx.switch import OnnxSwitches
from inc_tb.frameworks.ops import Array, Batch, Input, Site, Unit
from inc_tb.frameworks.protocols import Outputs
from inc_tb.search.budget import Budget
from inc_tb.search.simulation import Simulation
from inc_tb.search.smallest import HEALTHY, Search, grids_of
from tests.digits import DATA, digits
from tests.frameworks import onnx_zoo as zoo


class Rounded(NamedTuple):
    """A site, and how far it moves which coordinate of the output."""

    site: Site
    shift: float
    at: str


def edge(name: str, units: str, error: float, at: str = "", grid: str = "") -> Rounded:
    """Errors add up, unless sites move the same coordinate."""
    sign = -1 if error < 0 else 1
    return Rounded(
        Site(name, "activation", frozenset(units), grid or name), sign * abs(error) ** 0.5, at or grid or name
    )


class Additive:
    """Scores of two samples that vary by 1, so that the error is the sum of the squared shifts."""

    framework = "python"

    def __init__(self, rounded: Iterable[Rounded], units: str = "") -> None:
        self.rounded = list(rounded)
        self.notes: list[str] = []
        self.inputs = [Input("x", np.dtype(np.float32), (None,))]
        self.sites = [r.site for r in self.rounded]
        names = units or "".join(sorted(frozenset().union(*(site.units for site in self.sites))))
        self.units = [Unit(name, [name]) for name in names]

    def run(self, batch: Batch, on: Collection[str]) -> Outputs:
        by_grid: dict[tuple[str, str], float] = {}
        for r in self.rounded:
            if r.site.name in on or r.site.instead in on:
                by_grid[r.site.grid, r.at] = r.shift  # the same grid once more changes nothing
        places = sorted({r.at for r in self.rounded})
        moved = [sum(shift for (_, at), shift in by_grid.items() if at == place) for place in places]
        rows = np.array([-1.0, 1.0])[:, None]
        scores = np.concatenate([rows, np.zeros((2, len(places))) + np.array(moved)], axis=1)
        return Outputs([scores], [scores])

    def trace(self, batch: Batch) -> None:
        pass

    def gradients(self, batch: Batch) -> dict[str, Array]:
        return {}

    def run_real(self, batch: Batch) -> list[Array]:
        return self.run(batch, [site.name for site in self.sites]).results


def simulate(rounded: Iterable[Rounded], units: str = "") -> Simulation:
    return Simulation(Additive(rounded, units), {"x": np.zeros(2, np.float32)})


def searched(rounded: Iterable[Rounded], units: str = "", screened: Sequence[str] = ()) -> Search:
    simulation = simulate(rounded, units)
    search = Search(simulation, screened or [unit.name for unit in simulation.model.units])
    search.try_each_alone(math.inf)
    return search


def best(simulation: Simulation, limit: float) -> int | None:
    """How many units the smallest set has, by trying all of them."""
    units = [unit.name for unit in simulation.model.units]
    for size in range(len(units) + 1):
        if any(simulation.error_keeping(kept) <= limit for kept in itertools.combinations(units, size)):
            return size
    return None


def alone(**errors: float) -> list[Rounded]:
    return [edge(f"of {unit}", unit, error) for unit, error in errors.items()]


# The smallest set


def test_the_additive_model_is_what_it_says() -> None:
    found = simulate([*alone(a=0.25, b=4), edge("between", "ab", 1)])
    assert found.error_keeping("") == pytest.approx(5.25)
    assert found.error_keeping("a") == pytest.approx(5)
    assert found.error_keeping("b") == pytest.approx(1.25)
    assert found.error_keeping("ab") == 0


def test_nothing_is_kept_where_the_error_is_within_the_limit() -> None:
    search = searched(alone(a=0.5, b=0.5))
    assert search.smallest(1.01) == []


def test_the_worst_units_are_kept_and_come_in_the_order_of_the_model() -> None:
    search = searched(alone(a=0.2, b=3, c=0.1, d=0.05, e=2), screened="abcde")
    assert search.smallest(6) == []
    assert search.smallest(2.5) == ["b"]
    assert search.smallest(0.4) == ["b", "e"]
    assert search.smallest(0.2) == ["a", "b", "e"]
    assert search.smallest(0) == ["a", "b", "c", "d", "e"]


def test_there_is_no_set_where_something_cannot_be_spared() -> None:
    class Stuck(Additive):
        def run(self, batch: Batch, on: Collection[str]) -> Outputs:
            return super().run(batch, {*on, "of b"} if on else on)

    simulation = Simulation(Stuck([*alone(a=1, b=1, c=1)]), {"x": np.zeros(2, np.float32)})
    search = Search(simulation, "abc")
    search.try_each_alone(math.inf)
    # With nothing on at all the model is fp32, so only that is free of b's error.
    assert search.smallest(0.5) == ["a", "b", "c"]
    assert search.smallest(-1) is None


@given(
    st.lists(st.floats(1e-3, 10), min_size=1, max_size=8),
    st.floats(0, 1.2),
    st.randoms(use_true_random=False),
)
def test_the_smallest_set_of_independent_units_is_found(errors: list[float], share: float, random: object) -> None:
    rounded = [edge(f"of {unit}", unit, error) for unit, error in zip("abcdefgh", errors, strict=False)]
    order = [r.site.name[-1] for r in rounded]
    random.shuffle(order)  # type: ignore[attr-defined]
    search = searched(rounded, screened=order)
    limit = share * sum(errors)
    found = search.smallest(limit)
    assert found is not None
    assert search.simulation.error_keeping(found) <= limit
    worst = [r.site.name[-1] for r in sorted(rounded, key=lambda r: -r.shift)]
    needed = next(n for n in range(len(worst) + 1) if search.simulation.error_keeping(worst[:n]) <= limit)
    assert len(found) == needed


def network(rng: np.random.Generator, units: str = "abcdefgh") -> list[Rounded]:
    """Weights of every unit, and tensors between two or three of them, few of which matter much."""
    found = [edge(f"weights of {unit}", unit, float(rng.lognormal(-4, 2))) for unit in units]
    for i in range(len(units)):
        ends = "".join(rng.choice(list(units), size=int(rng.integers(2, 4)), replace=False))
        found.append(edge(f"tensor {i}", ends, float(rng.lognormal(-3, 2))))
    return found


def test_sets_in_random_networks_are_within_the_limit_tight_and_mostly_the_smallest() -> None:
    rng = np.random.default_rng(5)
    sizes = []
    for _ in range(40):
        search = searched(network(rng))
        simulation = search.simulation
        limit = float(rng.choice([0.02, 0.1, 0.3])) * simulation.error_keeping(())
        found = search.smallest(limit)
        assert found is not None
        assert simulation.error_keeping(found) <= limit
        for unit in found:
            assert simulation.error_keeping([u for u in found if u != unit]) > limit, f"{unit} could be quantized"
        smallest = best(simulation, limit)
        assert smallest is not None
        sizes.append((len(found), smallest))
    assert all(found - smallest <= 1 for found, smallest in sizes)
    assert np.mean([found == smallest for found, smallest in sizes]) >= 0.85


def test_a_tensor_needs_both_of_its_ends() -> None:
    search = searched([*alone(a=0.01, b=0.01, c=0.01), edge("a to b", "ab", 5), edge("b to c", "bc", 0.02)])
    assert search.smallest(0.1) == ["a", "b"]
    assert search.prefixes()[0] == {"a", "b"}


def test_a_tensor_with_many_readers_needs_all_of_them() -> None:
    rounded = [*alone(q=0.01, k=0.01, v=0.01, n=0.01, x=0.3), edge("read by all", "nqkv", 5)]
    search = searched(rounded, units="nqkvx")
    assert search.smallest(0.4) == ["n", "q", "k", "v"]
    assert search.smallest(0.1) == ["n", "q", "k", "v", "x"]


def test_useless_units_are_pruned() -> None:
    """Most gain for the fewest ops first: a, then the pair; but the pair alone is enough."""
    search = searched([*alone(a=1.0), edge("b to c", "bc", 1.9), *alone(d=0.001)])
    assert search.prefixes()[0] == {"a"}
    assert search.smallest(1.1) == ["b", "c"]
    assert search.pruned(["a", "b", "c", "d"], 1.1) == ["b", "c"]
    assert search.pruned(["a"], 2) == ["a"]


def test_pruning_does_not_depend_on_the_order_in_which_units_are_given() -> None:
    """Sets of names have another order in every process; a tuning that is resumed has to come to the same."""
    search = searched(alone(**dict.fromkeys("abcdefghijkl", 1.0)))
    assert (
        search.pruned("abcdefghijkl", 4.0) == search.pruned("lkjihgfedcba", 4.0) == search.pruned("fbkaclhdgjie", 4.0)
    )


def test_pruning_keeps_what_it_was_given_where_only_the_rough_simulation_agrees() -> None:
    fine = simulate(alone(a=1, b=1, c=1))
    rough = simulate(alone(a=1, b=1e-6, c=1e-6))
    search = Search(fine, "abc", rough)
    search.try_each_alone(math.inf)
    assert search.smallest(0.5) == ["a", "b", "c"]


def test_single_grids_are_measured_in_the_rough_simulation() -> None:
    fine, rough = simulate(alone(a=1, b=0.1, c=0.1)), simulate(alone(a=1, b=0.1, c=0.1))
    search = Search(fine, "abc", rough)
    search.try_each_alone(math.inf)
    assert (fine.evaluations, rough.evaluations) == (0, 3)
    assert search.smallest(0.3) == ["a"]
    assert fine.evaluations > 0


# Errors that do not add up


def test_a_set_is_measured_as_a_set() -> None:
    """a and b move the output in opposite directions: together they do nothing, and keeping one makes it worse."""
    search = searched([edge("of a", "a", 4, at="same"), edge("of b", "b", -4, at="same"), *alone(c=0.5)])
    simulation = search.simulation
    assert simulation.error_keeping("") == pytest.approx(0.5)
    assert simulation.error_keeping("a") == pytest.approx(4.5)
    assert search.smallest(0.6) == []
    found = search.smallest(0.1)
    assert found is not None
    assert simulation.error_keeping(found) <= 0.1
    assert "c" in found


def test_errors_that_grow_together_are_not_underestimated() -> None:
    """Two shifts of 1 at the same place make 4, not 2."""
    search = searched([edge("of a", "a", 1, at="same"), edge("of b", "b", 1, at="same")])
    assert search.simulation.error_keeping("") == pytest.approx(4)
    assert search.smallest(2.5) in (["a"], ["b"])
    assert search.smallest(0.9) == ["a", "b"]


@given(st.lists(st.tuples(st.floats(-3, 3), st.sampled_from("pqr")), min_size=2, max_size=7), st.floats(0, 1))
def test_no_set_exceeds_the_limit_whatever_cancels(shifts: list[tuple[float, str]], share: float) -> None:
    rounded = [
        Rounded(Site(f"of {unit}", "activation", frozenset(unit), f"of {unit}"), shift, at)
        for unit, (shift, at) in zip("abcdefg", shifts, strict=False)
    ]
    search = searched(rounded)
    limit = share * search.simulation.error_keeping(())
    found = search.smallest(limit)
    assert found is None or search.simulation.error_keeping(found) <= limit
    kept = search.explaining()
    assert search.simulation.error_keeping(kept) <= max(search.simulation.error_keeping(()), 0)


# The set that explains the loss


def test_what_explains_the_loss_is_what_removes_nine_tenths_of_it() -> None:
    search = searched([edge("a to b", "ab", 10), *alone(a=0.1, b=0.1, c=0.4, d=0.3, e=0.2)])
    assert search.explaining() == ["a", "b"]


def test_more_is_kept_as_long_as_that_halves_what_is_left() -> None:
    search = searched([edge("a to b", "ab", 10), *alone(c=0.5, d=0.01, e=0.01, f=0.01)])
    assert search.explaining() == ["a", "b", "c"]


def test_what_is_left_of_a_healthy_model_is_left_alone() -> None:
    search = searched([edge("a to b", "ab", 10), *alone(c=0.9 * HEALTHY, d=0.05 * HEALTHY)])
    assert search.explaining() == ["a", "b"]
    more = searched([edge("a to b", "ab", 10), *alone(c=1.1 * HEALTHY, d=0.05 * HEALTHY)])
    assert more.explaining() == ["a", "b", "c"]


@pytest.mark.parametrize(("left", "known", "grows"), [(0.04, "ab", False), (0.06, "ab", True), (0.04, "ad", True)])
def test_a_known_cause_does_not_grow_once_what_is_left_matters_little(left: float, known: str, grows: bool) -> None:
    """One op has most of what is left; 95 % and a cause are enough, but not 94 %, nor a cause of other ops."""
    search = searched([edge("a to b", "ab", 1 - left), *alone(c=0.75 * left, d=0.25 * left)])
    assert ("c" in search.explaining([known])) == grows
    lost = searched([edge("a to b", "ab", 100 * (1 - left)), *alone(c=75 * left, d=25 * left)])
    assert "c" in lost.explaining([known])


def test_an_error_spread_over_everything_needs_nearly_everything() -> None:
    search = searched(alone(**dict.fromkeys("abcdefghij", 1.0)))
    found = search.explaining()
    assert len(found) >= 9


def test_a_model_that_loses_nothing_needs_no_explanation() -> None:
    assert searched(alone(a=0, b=0)).explaining() == []
    assert searched([], units="ab").explaining() == []
    assert searched([], units="ab").smallest(0.1) == []
    assert searched([], units="ab").most() == []


def test_most_is_every_unit_that_matters() -> None:
    assert searched(alone(a=1, b=0, c=1e-9)).most() == ["a", "c"]


# Grids and ways


def test_sites_with_one_grid_are_spared_together() -> None:
    rounded = [edge("t", "ab", 1, grid="t"), edge("pooled t", "bc", 1, grid="t"), *alone(d=0.1)]
    simulation = simulate(rounded)
    grids = grids_of(simulation)
    assert grids["t"].sites == ["t", "pooled t"]
    assert grids["t"].units == {"a", "b", "c"}
    assert grids["t"].ways == (frozenset("abc"),)
    assert simulation.error_keeping("") == pytest.approx(1.1)
    assert simulation.error_keeping("ab") == pytest.approx(1.1)
    search = searched(rounded)
    assert search.smallest(0.2) == ["a", "b", "c"]


def weights(name: str, ways: Sequence[str], error: float) -> Rounded:
    site = Site(name, "weight", frozenset("b"), name, f"{name} again", tuple(frozenset(way) for way in ways))
    return Rounded(site, error**0.5, name)


def test_of_several_ways_the_cheapest_is_taken() -> None:
    """b's weights are rounded again by the runtime unless a, or c, d and e, are in fp32 with it."""
    search = searched([weights("w", ["bcde", "ab"], 5), *alone(a=0.1, b=0.1, c=0.1, d=0.1, e=0.1)])
    assert search.simulation.error_keeping("b") == pytest.approx(5.4)
    assert search.smallest(1) == ["a", "b"]
    assert search.explaining()[:2] == ["a", "b"]


def test_the_way_that_is_worth_it_for_other_reasons_is_taken() -> None:
    rounded = [weights("w", ["ab", "bc"], 5), edge("b to c", "bc", 5), *alone(a=0.1)]
    assert searched(rounded).smallest(0.5) == ["b", "c"]


def test_sets_with_ways_are_as_small_as_can_be() -> None:
    rng = np.random.default_rng(6)
    for _ in range(10):
        rounded = network(rng, "abcdef")
        ways = ["b" + "".join(rng.choice(list("acdef"), size=2, replace=False)) for _ in range(2)]
        search = searched([*rounded, weights("w", ways, 1.0)])
        limit = 0.1 * search.simulation.error_keeping(())
        found, smallest = search.smallest(limit), best(search.simulation, limit)
        assert found is not None
        assert smallest is not None
        assert search.simulation.error_keeping(found) <= limit
        assert len(found) <= smallest + 1


# Time


def test_grids_that_were_not_reached_count_less_than_any_that_was() -> None:
    """In the order of the screen, so the search still finds a set, with more evaluations."""
    simulation = simulate(alone(a=0.1, b=0.2, c=3, d=0.1))
    search = Search(simulation, "cbad")
    search.try_each_alone(-math.inf)
    assert simulation.evaluations == 0
    assert search.prefixes() == [set("c"), set("cb"), set("cba"), set("cbad")]
    assert search.smallest(0.5) == ["c"]


def test_what_is_known_is_used_after_the_deadline_as_far_as_it_goes() -> None:
    simulation = simulate(alone(a=0.1, b=0.2, c=3, d=0.1))
    for name in ("of b", "of a"):
        simulation.error([name])
    search = Search(simulation, "bacd")
    seen: list[tuple[int, int]] = []
    search.try_each_alone(-math.inf, lambda done, of: seen.append((done, of)))
    assert (simulation.evaluations, seen) == (2, [(1, 4), (2, 4)])
    assert search.prefixes()[:2] == [set("b"), set("ba")]
    found = search.smallest(0.5)
    assert found is not None
    assert simulation.error_keeping(found) <= 0.5
    assert found == ["c"]


def test_measuring_goes_on_where_it_was() -> None:
    simulation = simulate(alone(a=0.1, b=0.2, c=3))
    search = Search(simulation, "abc")
    search.try_each_alone(-math.inf)
    assert search.prefixes()[0] == {"a"}
    search.try_each_alone(math.inf)
    assert search.prefixes()[0] == {"c"}
    assert simulation.evaluations == 3


def test_sets_are_no_longer_made_smaller_once_the_time_is_over() -> None:
    search = searched(alone(a=1, b=1e-3, c=1e-3))
    search.budget = Budget(-1)
    assert search.pruned("abc", 0.1) == ["a", "b", "c"]
    search.budget = Budget()
    assert search.pruned("abc", 0.1) == ["a"]


# Groups


def test_two_culprits_among_many_are_found_in_few_runs() -> None:
    """64 grids: each culprit is halved out in at most 6 steps of 2 runs, and all that is harmless stays in groups."""
    names = [chr(200 + i) for i in range(64)]
    errors = dict.fromkeys(names, 1e-09) | {names[10]: 1.0, names[50]: 2.0}
    simulation = simulate(alone(**errors))
    search = Search(simulation, names)
    search.try_in_groups()
    assert simulation.evaluations <= 1 + 2 * (6 + 6)
    assert search.smallest(0.5) == [names[10], names[50]]


def test_two_causes_of_which_each_is_enough_are_both_found() -> None:
    """Leaving out either alone changes nothing, because the output is lost all the same."""
    lost = 1e6
    search = Search(simulate(alone(a=0.01, b=lost, c=0.01, d=lost, e=0.01)), "abcde")
    search.try_in_groups()
    assert search.prefixes()[0] in ({"b"}, {"d"})
    assert search.smallest(1.0) == ["b", "d"]


def test_groups_that_were_not_halved_share_their_error() -> None:
    simulation = simulate(alone(a=0.4, b=0.2, c=3, d=1))
    search = Search(simulation, "abcd", budget=Budget(-1))
    search.try_in_groups()
    assert simulation.evaluations == 1
    assert search.prefixes() == [set("a"), set("ab"), set("abc"), set("abcd")], "in the order of the screen"
    assert search.smallest(0.5) == ["a", "b", "c", "d"], "nothing is made smaller without time"


def test_whole_families_are_tried_without_a_look_at_their_members() -> None:
    """The errors are 3 for a and b, 0.2 for c and d, and 1 for e and f; g costs ten times as much as another."""
    simulation = simulate(alone(a=1, b=2, c=0.1, d=0.1, e=0.5, f=0.5, g=2.5))
    search = Search(simulation, "abcdefg", prices={"g": 10.0})
    families = ["ab", "cd", "ef", "g"]
    assert search.smallest_of(families, 4) == ["a", "b"]
    assert search.smallest_of(families, 3) == ["a", "b", "e", "f"]
    assert search.smallest_of(families, 0.1) == ["a", "b", "c", "d", "e", "f", "g"]
    assert search.smallest_of(["ab"], 1) is None


def test_what_is_given_is_in_every_set_and_not_looked_at() -> None:
    simulation = simulate([*alone(a=1, b=1, c=3, d=0.1), edge("b to c", "bc", 0.5)])
    search = Search(simulation, "abcd", given="a")
    search.try_in_groups()
    assert not simulation.is_known(["of a"])
    assert search.prefixes()[0] == {"a"}
    assert search.smallest(1.7) == ["a", "c"]
    assert search.pruned("abcd", 1.7) == ["a", "c"]
    assert search.smallest_of(["ad", "bc"], 0.2) == ["a", "b", "c"]


# Real models


def test_the_outliers_of_the_digits_cnn_are_between_two_convolutions(quantized: Callable[..., Path]) -> None:
    simulation = Simulation(OnnxSwitches(DATA / "hard.onnx", quantized("hard")), {"input": digits(32)})
    units = [unit.name for unit in simulation.model.units]
    search = Search(simulation, units)
    search.try_each_alone(math.inf)
    assert search.explaining() == ["/conv1/Conv", "/conv2/Conv"]
    full = simulation.error_keeping(())
    for share in (0.5, 0.1, 0.01):
        found = search.smallest(share * full)
        assert found is not None
        assert simulation.error_keeping(found) <= share * full
        pairs = [p for size in range(len(found)) for p in itertools.combinations(units, size)]
        assert all(simulation.error_keeping(pair) > share * full for pair in pairs)


def test_the_smallest_set_of_a_real_model_holds_when_it_is_quantized(tmp_path: Path) -> None:
    """All off but the search's own choice, as the quantizer writes it; the limit is met by the real model."""
    net = zoo.residual()
    path = net.save(tmp_path)
    feeds = zoo.data(net, 16)
    simulation = Simulation(OnnxSwitches(path, zoo.static(path, feeds)), feeds)
    search = Search(simulation, [unit.name for unit in simulation.model.units])
    search.try_each_alone(math.inf)
    limit = 0.3 * simulation.error_keeping(())
    found = search.smallest(limit)
    assert found
    assert len(found) == best(simulation, limit)
    kept = OnnxSwitches(path, zoo.static(path, feeds, nodes_to_exclude=found))
    real: Mapping[str, float] = {name: form.error for name, form in Simulation(kept, feeds).compare().items()}
    assert real["real"] < (1.5 if rounds_weights_again() else 1.2) * limit
