"""What every adapter promises, as tests. A framework's tests subclass AdapterContract and give three fixtures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from inc_tb.capture import Adapter, Pair
from inc_tb.errors import MismatchError

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


def check_pair(pair: Pair) -> None:
    assert pair.tensor, pair.op
    assert pair.reference.shape == pair.quantized.shape, pair.op
    assert pair.reference.size, pair.op
    for array in (pair.reference, pair.quantized):
        assert array.dtype.kind == "f", pair.op
        assert np.isfinite(array).all(), pair.op
    if pair.channel_axis is not None:
        assert -pair.reference.ndim <= pair.channel_axis < pair.reference.ndim, pair.op
