"""What every Adapter promises, as tests.

A framework's tests subclass AdapterContract, once for each kind of models, and give three fixtures: the adapter, a
batch and the names of the ops in their order. They subclass TableContract as well and give one fixture, the network of
`tiny`, for which every value is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import inc_tb
from inc_tb.errors import MismatchError, UsageError
from inc_tb.frameworks.models import open_pair, open_results
from inc_tb.frameworks.ops import Op, Pair
from inc_tb.frameworks.protocols import Adapter
from tests.frameworks.contracts.tiny import READS, RESULTS, STEP, WEIGHTS, Tiny, by_row, computed

ROLES = {"weight", "input", "output", "isolated"}


class AdapterContract:
    """`adapter` is opened on a small pair of models; the other two describe what it must find there."""

    @pytest.fixture
    def adapter(self) -> Adapter:
        raise NotImplementedError

    @pytest.fixture
    def batch(self) -> Mapping[str, npt.NDArray[Any]]:
        """At least two samples."""
        raise NotImplementedError

    @pytest.fixture
    def expected_ops(self) -> list[str]:
        """Names in graph order."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _traced(self, adapter: Adapter, batch: Mapping[str, npt.NDArray[Any]]) -> None:
        adapter.trace(batch)

    def test_names_its_framework(self, adapter: Adapter) -> None:
        assert adapter.framework

    def test_ops_are_in_graph_order(self, adapter: Adapter, expected_ops: list[str]) -> None:
        ops = adapter.ops()
        assert [op.name for op in ops] == expected_ops
        assert [op.index for op in ops] == list(range(len(ops)))

    def test_names_are_unique_and_types_known(self, adapter: Adapter) -> None:
        ops = adapter.ops()
        assert len({op.name for op in ops}) == len(ops)
        assert all(op.name and op.type and op.unit for op in ops)

    def test_edges_go_forward_and_are_known_at_both_ends(self, adapter: Adapter) -> None:
        by_name = {op.name: op for op in adapter.ops()}
        for op in by_name.values():
            assert all(by_name[name].index < op.index for name in op.inputs), op.name
            assert all(op.name in by_name[name].consumers for name in op.inputs), op.name
            assert all(op.name in by_name[name].inputs for name in op.consumers), op.name
            assert op.unit in by_name

    def test_quantization_is_complete(self, adapter: Adapter) -> None:
        found = [q for op in adapter.ops() for q in (op.weight, op.activation) if q is not None]
        assert found, "a quantized model has something quantized"
        for quantization in found:
            assert quantization.low < quantization.high
            assert (quantization.scale is None) == (quantization.zero_point is None)
            if quantization.scale is not None and quantization.zero_point is not None:
                assert quantization.scale.shape == quantization.zero_point.shape
                assert (quantization.scale > 0).all()

    def test_weights(self, adapter: Adapter) -> None:
        known = {op.name for op in adapter.ops()}
        pairs = list(adapter.weights())
        assert pairs
        assert {pair.role for pair in pairs} == {"weight"}
        assert len({pair.op for pair in pairs}) == len(pairs), "one main weight an op"
        assert {pair.op for pair in pairs} <= known
        for pair in pairs:
            check_pair(pair)

    def test_pairs(self, adapter: Adapter, batch: Mapping[str, npt.NDArray[Any]]) -> None:
        known = {op.name for op in adapter.ops()}
        pairs = list(adapter.run(batch))
        assert {pair.op for pair in pairs} <= known
        assert {pair.role for pair in pairs} <= ROLES - {"weight"}
        for role in ("output", "isolated"):
            ops = [pair.op for pair in pairs if pair.role == role]
            assert ops, role
            assert len(set(ops)) == len(ops), role
        for pair in pairs:
            check_pair(pair)

    def test_an_isolated_op_is_compared_with_the_same_reference(
        self, adapter: Adapter, batch: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        pairs = {(pair.op, pair.role): pair for pair in adapter.run(batch)}
        for (op, role), pair in pairs.items():
            if role == "isolated":
                np.testing.assert_array_equal(pair.reference, pairs[op, "output"].reference)

    def test_every_op_has_pairs_or_a_note(self, adapter: Adapter, batch: Mapping[str, npt.NDArray[Any]]) -> None:
        compared = {pair.op for pair in adapter.run(batch) if pair.role == "output"}
        for op in adapter.ops():
            assert (op.name in compared) != bool(op.note), op
            assert op.compared_at in {"", *compared}, op
            assert (op.compared_at == op.name) == (op.name in compared), op

    def test_what_is_part_of_an_op_changes_precision_with_it(self, adapter: Adapter) -> None:
        by_name = {op.name: op for op in adapter.ops()}
        assert all(op.unit == by_name[op.compared_at].unit for op in by_name.values() if op.compared_at)

    def test_ops_that_were_given_do_not_change_while_the_models_run(
        self, adapter: Adapter, batch: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        given = adapter.ops()
        before = [replace(op) for op in given]
        for _ in adapter.run(batch):
            assert list(given) == before

    def test_running_twice_gives_the_same(self, adapter: Adapter, batch: Mapping[str, npt.NDArray[Any]]) -> None:
        first, second = list(adapter.run(batch)), list(adapter.run(batch))
        assert [pair[:3] for pair in first] == [pair[:3] for pair in second]
        for a, b in zip(first, second, strict=True):
            np.testing.assert_array_equal(a.reference, b.reference)
            np.testing.assert_array_equal(a.quantized, b.quantized)

    def test_samples_do_not_depend_on_their_batch(
        self, adapter: Adapter, batch: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        """Of the reference, that is: dynamic quantization chooses its ranges for the batch."""
        whole = {pair.op: pair for pair in adapter.run(batch) if pair.role == "output"}
        part = adapter.run({name: array[:1] for name, array in batch.items()})
        for pair in part:
            if pair.role == "output" and pair.reference.shape[1:] == whole[pair.op].reference.shape[1:]:
                np.testing.assert_allclose(
                    pair.reference, whole[pair.op].reference[:1], rtol=1e-4, atol=1e-5, err_msg=pair.op
                )

    def test_inputs_describe_the_data(self, adapter: Adapter, batch: Mapping[str, npt.NDArray[Any]]) -> None:
        inputs = {i.name: i for i in adapter.inputs()}
        assert set(inputs) == set(batch)
        for name, array in batch.items():
            assert inputs[name].dtype == array.dtype
            assert len(inputs[name].shape) == array.ndim
            assert all(n in (None, m) for n, m in zip(inputs[name].shape, array.shape, strict=True))
        assert adapter.batch_size() >= 1

    def test_data_that_does_not_fit_is_refused(self, adapter: Adapter, batch: Mapping[str, npt.NDArray[Any]]) -> None:
        name = next(iter(batch))
        others = {key: array for key, array in batch.items() if key != name}
        for wrong in ({**others, "nonsense": batch[name]}, {**others, name: batch[name][None]}):
            with pytest.raises(MismatchError, match=name):
                list(adapter.run(wrong))


class TableContract:
    """The table of `tiny`, worked out by hand: the same for every framework, but for the grids that its tool chose."""

    @pytest.fixture(scope="class")
    @classmethod
    def tiny(cls) -> Tiny:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def adapter(cls, tiny: Tiny) -> Adapter:
        adapter = open_pair(tiny.reference, tiny.quantized)
        adapter.trace(tiny.batch)
        return adapter

    @pytest.fixture(scope="class")
    @classmethod
    def ops(cls, tiny: Tiny, adapter: Adapter) -> dict[str, Op]:
        """By their names in `tiny`."""
        found = {op.name: op for op in adapter.ops()}
        return {name: found[theirs] for name, theirs in tiny.names.items()}

    def test_who_reads_whom(self, tiny: Tiny, adapter: Adapter) -> None:
        found = [(op.name, list(op.inputs), op.params) for op in adapter.ops()]
        params = {name: weights.size for name, weights in WEIGHTS.items()}
        assert found == [
            (tiny.names[name], [tiny.names[read] for read in reads], params.get(name, 0))
            for name, reads in READS.items()
        ]

    def test_weights_are_rounded_to_the_grid_that_the_op_tells(
        self, tiny: Tiny, adapter: Adapter, ops: dict[str, Op]
    ) -> None:
        pairs = {pair.op: pair for pair in adapter.weights()}
        assert set(pairs) == {tiny.names[name] for name in WEIGHTS}
        for name, weights in WEIGHTS.items():
            pair, grid = pairs[tiny.names[name]], ops[name].weight
            np.testing.assert_array_equal(by_row(pair.reference, name), weights)
            assert pair.channel_axis is not None
            assert pair.reference.shape[pair.channel_axis] == len(weights)
            assert grid is not None
            assert grid.scale is not None
            assert grid.zero_point is not None
            np.testing.assert_allclose(grid.scale, STEP, rtol=0.01)  # some make 127.5 steps of the largest weight
            scales, zeros = grid.scale.reshape(-1, 1), grid.zero_point.reshape(-1, 1)
            steps = by_row(pair.quantized, name) / scales
            np.testing.assert_allclose(steps, np.rint(steps), atol=1e-4)
            assert np.abs(steps - weights / scales).max() < 0.5001
            assert grid.low - 0.0001 < (steps + zeros).min() < (steps + zeros).max() < grid.high + 0.0001

    def test_the_reference_computes_what_can_be_computed_by_hand(
        self, tiny: Tiny, adapter: Adapter, ops: dict[str, Op]
    ) -> None:
        values = computed()
        pairs = {pair.op: pair for pair in adapter.run(tiny.batch) if pair.role == "output"}
        for at in {op.compared_at for op in ops.values()}:
            last = [name for name, op in ops.items() if op.compared_at == at][-1]
            np.testing.assert_allclose(pairs[at].reference, values[last], rtol=1e-6, err_msg=last)

    def test_what_is_compared_are_the_results_of_the_models(
        self, tiny: Tiny, adapter: Adapter, ops: dict[str, Op]
    ) -> None:
        """To a step of their grid: kernels that ship may round a value that lies between two the other way."""
        pairs = {pair.op: pair for pair in adapter.run(tiny.batch) if pair.role == "output"}
        results = open_results(tiny.reference)(tiny.batch), open_results(tiny.quantized)(tiny.batch)
        for name, reference, quantized in zip(RESULTS, *results, strict=True):
            pair, grid = pairs[tiny.names[name]], ops[name].activation
            step = float(grid.scale.max()) if grid is not None and grid.scale is not None else 0
            np.testing.assert_allclose(pair.reference, reference, rtol=1e-6)
            np.testing.assert_allclose(pair.quantized, quantized, rtol=1e-5, atol=1.01 * step)

    def test_the_wrong_order_is_told_before_anything_is_compared(self, tiny: Tiny) -> None:
        def no_more() -> Iterator[Mapping[str, npt.NDArray[Any]]]:
            yield tiny.batch
            raise AssertionError("a second batch was asked for")

        with pytest.raises(UsageError, match=r"given first, is quantized, and .*Swap the two"):
            inc_tb.diagnose(tiny.quantized, tiny.reference, no_more())

    def test_one_model_given_twice_is_told(self, tiny: Tiny) -> None:
        for model in (tiny.reference, tiny.quantized):
            with pytest.raises(UsageError, match="given twice; expected the fp32 model, then"):
                inc_tb.diagnose(model, model, tiny.batch)

    def test_what_an_op_adds_itself_is_what_its_weights_and_inputs_lose(self, tiny: Tiny, adapter: Adapter) -> None:
        """Neither more than half a step of each makes, nor nothing."""
        adds = {p.op: np.abs(p.quantized - p.reference).max() for p in adapter.run(tiny.batch) if p.role == "isolated"}
        for name in WEIGHTS:
            assert 0 < adds[tiny.names[name]] < 0.1


def check_pair(pair: Pair) -> None:
    assert pair.tensor, pair.op
    assert pair.reference.shape == pair.quantized.shape, pair.op
    assert pair.reference.size, pair.op
    for array in (pair.reference, pair.quantized):
        assert array.dtype.kind == "f", pair.op
        assert np.isfinite(array).all(), pair.op
    if pair.channel_axis is not None:
        assert -pair.reference.ndim <= pair.channel_axis < pair.reference.ndim, pair.op
