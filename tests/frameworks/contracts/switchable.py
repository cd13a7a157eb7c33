"""What every Switchable promises, as tests.

A framework's tests subclass SwitchableContract, once for each kind of quantized models that it can switch, and give one
fixture: the network of `tiny` in that framework, quantized so. Where weights cannot be rounded without what is read,
as dynamic quantization has them in one, `test_the_weights_of_one_op` is set to None.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from inc_tb.errors import MismatchError
from inc_tb.frameworks.models import open_pair, open_results, open_switches
from inc_tb.frameworks.ops import Op, Pair
from inc_tb.frameworks.protocols import Outputs, Switchable
from tests.frameworks.contracts.tiny import RESULTS, SCORES, WEIGHTS, Tiny, X, by_row, computed, softmax

FEW_STEPS = 3
"""Of a result's grid, by which kernels that ship may differ: a value between two steps may be rounded either way."""


class SwitchableContract:
    @pytest.fixture(scope="class")
    @classmethod
    def tiny(cls) -> Tiny:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def switches(cls, tiny: Tiny) -> Switchable:
        switches = open_switches(tiny.reference, tiny.quantized)
        switches.trace(tiny.batch)
        return switches

    @pytest.fixture(scope="class")
    @classmethod
    def ops(cls, tiny: Tiny) -> dict[str, Op]:
        """As a diagnosis has them, by their names in `tiny`."""
        adapter = open_pair(tiny.reference, tiny.quantized)
        adapter.trace(tiny.batch)
        found = {op.name: op for op in adapter.ops()}
        return {name: found[theirs] for name, theirs in tiny.names.items()}

    # What it says

    def test_it_tells_whose_it_is_and_what_it_takes(self, switches: Switchable, tiny: Tiny) -> None:
        adapter = open_pair(tiny.reference, tiny.quantized)
        adapter.trace(tiny.batch)
        assert switches.framework == adapter.framework
        assert [i.name for i in switches.inputs] == [i.name for i in adapter.inputs()] == [tiny.input]
        assert all(isinstance(note, str) for note in switches.notes)

    def test_units_are_sets_of_the_ops_of_a_diagnosis(self, switches: Switchable, ops: dict[str, Op]) -> None:
        known = {op.name for op in ops.values()}
        names = [unit.name for unit in switches.units]
        members = [op for unit in switches.units for op in unit.ops]
        assert len(set(names)) == len(names)
        assert len(set(members)) == len(members), "an op is in one unit at most"
        assert set(members) <= known
        assert all(unit.name in unit.ops for unit in switches.units)
        assert {ops[name].name for name in WEIGHTS} <= set(names), "whatever has weights can be kept in fp32"

    def test_sites_are_in_the_hands_of_units(self, switches: Switchable) -> None:
        units = {unit.name for unit in switches.units}
        names = [name for site in switches.sites for name in (site.name, site.instead) if name]
        assert len(set(names)) == len(names)
        for site in switches.sites:
            assert site.units, site
            assert site.units <= units, site
            assert site.grid, site
            assert all(way and way <= site.units for way in site.ways), site
            assert bool(site.instead) == bool(site.ways), site
            assert site.is_spared(units), site
            assert not site.is_spared(frozenset()), site

    def test_every_op_with_weights_has_a_site_for_them(self, switches: Switchable, tiny: Tiny) -> None:
        found = [site.units for site in switches.sites if site.kind == "weight"]
        assert sorted(map(sorted, found)) == sorted([tiny.names[name]] for name in WEIGHTS)

    # What it computes

    def test_all_off_is_the_reference(self, switches: Switchable, tiny: Tiny) -> None:
        """Exactly: sums of these numbers do not depend on their order."""
        found, values = switches.run(tiny.batch, ()), computed()
        for name, array in zip(SCORES, found.scores, strict=True):
            np.testing.assert_array_equal(array, values[name], err_msg=name)
        for name, array in zip(RESULTS, found.results, strict=True):
            np.testing.assert_allclose(array, values[name], rtol=1e-6, err_msg=name)

    def test_scores_are_those_before_a_softmax(self, switches: Switchable, tiny: Tiny) -> None:
        weights = [site.name for site in switches.sites if site.kind == "weight"]
        found = switches.run(tiny.batch, weights)
        np.testing.assert_allclose(softmax(found.scores[0]), found.results[0], rtol=1e-5)
        np.testing.assert_array_equal(found.scores[1], found.results[1])

    def test_all_on_is_the_quantized_model(self, switches: Switchable, tiny: Tiny, ops: dict[str, Op]) -> None:
        found = switches.run(tiny.batch, _all(switches)).results
        for name, simulated, real in zip(RESULTS, found, switches.run_real(tiny.batch), strict=True):
            np.testing.assert_allclose(simulated, real, rtol=1e-5, atol=FEW_STEPS * _step(ops[name]), err_msg=name)
            assert not np.array_equal(simulated, computed()[name]), name

    def test_the_real_model_is_the_one_that_ships(self, switches: Switchable, tiny: Tiny) -> None:
        for found, wanted in zip(switches.run_real(tiny.batch), open_results(tiny.quantized)(tiny.batch), strict=True):
            np.testing.assert_array_equal(found, wanted)

    def test_the_weights_of_one_op(self, switches: Switchable, tiny: Tiny) -> None:
        """Rounded as those of the quantized model, and nothing else."""
        rounded = {pair.op: pair.quantized for pair in _weights(tiny)}
        for name in WEIGHTS:
            found = switches.run(tiny.batch, _weight_sites(switches, tiny.names[name])).scores
            wanted = computed(**{name: by_row(rounded[tiny.names[name]], name)})
            for score, array in zip(SCORES, found, strict=True):
                np.testing.assert_allclose(array, wanted[score], rtol=1e-5, atol=1e-6, err_msg=f"{score} of {name}")

    @pytest.mark.parametrize(("name", "reached"), [("first", (0, 1)), ("second", (0,)), ("side", (1,))])
    def test_a_site_changes_what_is_behind_it_and_nothing_else(
        self, switches: Switchable, tiny: Tiny, name: str, reached: tuple[int, ...]
    ) -> None:
        off = switches.run(tiny.batch, ()).scores
        on = switches.run(tiny.batch, _weight_sites(switches, tiny.names[name])).scores
        assert tuple(i for i in range(len(off)) if not np.array_equal(off[i], on[i])) == reached

    def test_neither_order_nor_what_ran_before_matters(self, switches: Switchable, tiny: Tiny) -> None:
        sites = _all(switches)
        asked: list[Sequence[str]] = [(), sites[:1], sites[1:], sites[::-1], sites, sites[:1], ()]
        found = {}
        for on in asked:
            outputs = switches.run(tiny.batch, on)
            first = found.setdefault(frozenset(on), outputs)
            _check_same(first, outputs)
        for kind in (tuple, set, frozenset):
            _check_same(found[frozenset(sites[1:])], switches.run(tiny.batch, kind(sites[1:])))

    def test_a_sample_does_not_depend_on_the_others(self, switches: Switchable, tiny: Tiny) -> None:
        """With all off, that is: dynamic quantization chooses its ranges for the batch."""
        whole = switches.run(tiny.batch, ())
        for at in (0, len(X) - 1):
            alone = switches.run({tiny.input: X[at : at + 1]}, ())
            for a, b in zip((*alone.scores, *alone.results), (*whole.scores, *whole.results), strict=True):
                np.testing.assert_allclose(a, b[at : at + 1], rtol=1e-6)

    def test_gradients_are_a_number_for_each_sample_or_nothing(
        self, switches: Switchable, tiny: Tiny, ops: dict[str, Op]
    ) -> None:
        found = switches.gradients(tiny.batch)
        assert set(found) <= {op.name for op in ops.values()}
        for scores in found.values():
            assert scores.dtype == np.float64
            assert scores.shape == (len(X),)
            assert np.isfinite(scores).all()

    def test_the_batch_is_left_as_it_was(self, switches: Switchable, tiny: Tiny) -> None:
        batch = {tiny.input: X.copy()}
        switches.run(batch, _all(switches))
        switches.run_real(batch)
        switches.gradients(batch)
        np.testing.assert_array_equal(batch[tiny.input], X)

    def test_data_that_does_not_fit_is_refused_in_one_line(self, switches: Switchable, tiny: Tiny) -> None:
        for wrong in tiny.wrong_batches:
            for run in (partial(switches.run, on=()), switches.run_real):
                with pytest.raises(MismatchError) as caught:
                    run(wrong)
                assert "\n" not in str(caught.value)
        switches.run(tiny.batch, ())  # which is not lost over it


def _all(switches: Switchable) -> list[str]:
    """As the quantized model has them: nothing of what the runtime rounds where the quantizer did not."""
    return [site.name for site in switches.sites]


def _weight_sites(switches: Switchable, unit: str) -> list[str]:
    return [site.name for site in switches.sites if site.kind == "weight" and site.units == {unit}]


def _weights(tiny: Tiny) -> list[Pair]:
    adapter = open_pair(tiny.reference, tiny.quantized)
    adapter.trace(tiny.batch)
    return list(adapter.weights())


def _step(op: Op) -> float:
    grid = op.activation
    return float(np.max(grid.scale)) if grid is not None and grid.scale is not None else 1e-6


def _check_same(one: Outputs, other: Outputs) -> None:
    for a, b in zip(itertools.chain(*one), itertools.chain(*other), strict=True):
        np.testing.assert_array_equal(a, b)
