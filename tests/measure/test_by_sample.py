"""The error of single samples: by hand, in any batches, and of several processes as of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inc_tb
from inc_tb.frameworks.ops import Op, Pair
from inc_tb.measure.by_sample import (
    ID_BYTES,
    MOST_OF_OPS,
    MOST_OF_OUTPUTS,
    Samples,
    SampleSums,
    in_turns,
    numbers,
    outputs_of,
)
from tests.example_run import batches, make_models

OPS = [Op("a", "Conv", 0, compared_at="a"), Op("b", "Gemm", 1, inputs=["a"], compared_at="b")]


def collected(parts: Sequence[np.ndarray], add: float = 0.5) -> Samples:
    """`a` gives what is read, and one half more when quantized; `b` the sum of it all, twice as much when quantized."""
    found = Samples()
    found.set_ops(OPS)
    for x in parts:
        found.begin({"x": x}, len(x))
        total = x.sum(axis=1)
        for pair in (
            Pair("a", "a", "output", x, x + np.float32(add), None),
            Pair("a", "a", "isolated", x, x + np.float32(add / 2), None),
            Pair("b", "b", "output", total, 2 * total, None),
        ):
            found.see(pair)
            found.add((pair.op, pair.role), pair.reference, pair.quantized)
        found.end()
    return found


def test_energies_by_hand() -> None:
    stored = collected([np.array([[1, 2, -2], [0, 0, 4]], np.float32)]).stored()
    a, b = stored.rows
    assert (a.op, numbers(a.power).tolist(), numbers(a.error).tolist()) == ("a", [9.0, 16.0], [0.75, 0.75])
    assert numbers(a.added).tolist() == [0.1875, 0.1875]
    assert not a.is_output
    assert (b.op, numbers(b.power).tolist(), numbers(b.error).tolist()) == ("b", [1.0, 16.0], [1.0, 16.0])
    assert b.added == b""
    assert b.is_output
    assert len(stored.ids) == 2 * ID_BYTES


@given(st.lists(st.integers(0, 9), max_size=4), st.integers(1, 4))
def test_batches_and_processes_make_no_difference(cuts: list[int], processes: int) -> None:
    data = np.arange(30, dtype=np.float32).reshape(10, 3)
    parts = [part for part in np.split(data, sorted(cuts)) if len(part)]
    whole = collected(parts)
    shards = [collected(parts[k::processes]) for k in range(processes)]
    for found in (in_turns(shards), in_turns([whole])):
        assert found.stored() == whole.stored() == collected([data]).stored()
        assert found.ids.digest(10) == whole.ids.digest(10)
        assert found.batches == [len(part) for part in parts]


def test_the_digest_of_data_does_not_depend_on_their_order_and_that_of_a_sample_only_on_it() -> None:
    data = np.arange(12, dtype=np.float32).reshape(4, 3)
    one, other, more = collected([data]), collected([data[::-1]]), collected([data + 1])
    assert one.ids.digest(4) == other.ids.digest(4) != more.ids.digest(4)
    assert other.ids.first == b"".join(one.ids.first[i : i + 8] for i in range(24, -1, -8))


def test_inputs_that_all_samples_share_count_for_each() -> None:
    def ids(mask: float) -> bytes:
        found = Samples()
        found.begin({"x": np.ones((2, 3), np.float32), "mask": np.array(mask)}, 2)
        return found.ids.first

    assert ids(1.0)[:ID_BYTES] == ids(1.0)[ID_BYTES:] != ids(2.0)[:ID_BYTES]


def test_memory_does_not_grow_with_the_samples() -> None:
    found = collected([np.ones((500, 3), np.float32)] * 10)
    assert len(found.sums["a", "output"].power) == MOST_OF_OPS
    assert len(found.sums["b", "output"].power) == MOST_OF_OUTPUTS
    assert len(found.ids.first) == MOST_OF_OUTPUTS * ID_BYTES


@pytest.mark.parametrize(
    "shapes",
    [
        pytest.param([(7, 4), (7, 4)], id="another axis first"),
        pytest.param([(4, 7), (7, 4)], id="in one batch only"),
        pytest.param([(), ()], id="a single number"),
        pytest.param([None, (4, 7)], id="not from the beginning"),
        pytest.param([(4, 7), None], id="not to the end"),
    ],
)
def test_what_does_not_count_samples_is_left_out(shapes: list[tuple[int, ...] | None]) -> None:
    found = Samples()
    found.set_ops(OPS)
    for shape in shapes:
        found.begin({"x": np.ones((4, 2))}, 4)
        for op, own in (("a", shape), ("b", (4, 2))):
            if own is not None:
                pair = Pair(op, op, "output", np.ones(own), np.ones(own), None)
                found.see(pair)
                found.add((op, "output"), pair.reference, pair.quantized)
        found.end()
    assert [row.op for row in found.stored().rows] == ["b"]


@pytest.mark.parametrize(
    ("reference", "quantized", "power", "error"),
    [
        pytest.param([3.0, np.nan], [1.0, 5.0], 9.0, 4.0, id="the reference is not finite"),
        pytest.param([3.0, 4.0], [3.0, np.inf], 25.0, np.inf, id="the quantized model is not finite"),
        pytest.param([1e25, 0.0], [0.0, 0.0], np.inf, np.inf, id="too large to be squared"),
    ],
)
def test_odd_numbers(reference: Any, quantized: Any, power: float, error: float) -> None:
    found = SampleSums(8)
    found.update(np.array([reference], np.float32), np.array([quantized], np.float32))
    assert (found.power.tolist(), found.error.tolist()) == ([power], [error])


def test_half_precision_does_not_overflow() -> None:
    found = SampleSums(8)
    found.update(np.array([[300.0, 400.0]], np.float16), np.zeros((1, 2), np.float16))
    assert found.power.tolist() == found.error.tolist() == [250_000.0]


def test_outputs_are_the_nearest_ops_that_are_known() -> None:
    ops = [
        Op("conv", "Conv", 0, compared_at="conv"),
        Op("gone", "Mul", 1, inputs=["conv"], note="no counterpart"),
        Op("softmax", "Softmax", 2, inputs=["gone"], note="no counterpart"),
        Op("fc", "Gemm", 3, inputs=["conv"], compared_at="fc"),
        Op("relu", "Relu", 4, inputs=["fc"], compared_at="fc", note="part of fc"),
    ]
    assert outputs_of(ops, {"conv", "fc"}) == {"conv", "fc"}
    assert outputs_of(ops, set()) == set()


def test_a_diagnosis_has_them_and_where_they_come_from(tmp_path: Path) -> None:
    models = make_models(tmp_path)
    found = inc_tb.diagnose(*models, batches())
    with inc_tb.SummaryWriter(tmp_path / "run") as writer:
        writer.add_diagnosis(found)
    read = inc_tb.load(tmp_path / "run").diagnosis
    assert read.by_sample == found.by_sample
    assert read.origin == found.origin
    assert found.origin is not None
    (output,) = (row for row in read.by_sample.rows if row.is_output)
    assert output.op == "/fc/Gemm"
    place = read.ops["name"].tolist().index("/conv2/Conv")
    (row,) = (row for row in read.by_sample.rows if row.op == "/conv2/Conv")
    for error, column in ((row.error, "total_sqnr_db"), (row.added, "added_sqnr_db")):
        together = 10 * np.log10(numbers(row.power).sum() / numbers(error).sum())
        assert together == pytest.approx(read.ops[column][place], abs=1e-4)
    again = inc_tb.diagnose(*models, np.concatenate([batch["input"] for batch in batches()]), batch_size=4)
    assert again.origin is not None
    assert again.origin.settings == {"samples": 16, "batch_size": 4}
    assert [getattr(again.origin, name) for name in ("reference", "quantized", "data", "versions", "cpu")] == [
        getattr(found.origin, name) for name in ("reference", "quantized", "data", "versions", "cpu")
    ]
    other = inc_tb.diagnose(*models, batches()[:1])
    assert other.origin is not None
    assert other.origin.data != found.origin.data
