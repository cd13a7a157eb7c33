"""What every Timer promises, as tests. How long anything takes is no part of it.

A framework's tests subclass TimerContract, once for each runtime that it can time, and give one fixture: the network of
`tiny` in that framework. Every test is run with the reference and with the quantized model.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import pytest

from inc_tb.errors import MismatchError
from inc_tb.frameworks.models import name_twins, open_timer
from inc_tb.frameworks.protocols import Recorded, Timer
from tests.frameworks.contracts.tiny import READS, Tiny, X

RUNS = 3
Timed = tuple[Timer, list[Recorded]]


class TimerContract:
    @pytest.fixture(scope="class")
    @classmethod
    def tiny(cls) -> Tiny:
        raise NotImplementedError

    @pytest.fixture(scope="class", params=["reference", "quantized"])
    @classmethod
    def model(cls, request: pytest.FixtureRequest, tiny: Tiny) -> Any:
        return getattr(tiny, request.param)

    @pytest.fixture(scope="class")
    @classmethod
    def timed(cls, tiny: Tiny, model: Any) -> Timed:
        timer = open_timer(model, tiny.batch, like=tiny.reference)
        prepared = timer.prepare(tiny.batch)
        for _ in range(RUNS):
            timer.run(prepared)
            timer.run_profiled(prepared)
        return timer, timer.close()

    @pytest.fixture(scope="class")
    @classmethod
    def ops(cls, tiny: Tiny, model: Any) -> dict[str, list[str]]:
        """Op of the model -> ops of the reference that it stands for."""
        return name_twins(tiny.reference, model, tiny.batch)

    def test_what_a_timer_says_of_itself(self, tiny: Tiny, model: Any, timed: Timed) -> None:
        timer, _ = timed
        assert timer.is_quantized == (model is tiny.quantized)
        assert timer.resolution_us > 0
        assert all(isinstance(note, str) for note in timer.notes)
        assert all(isinstance(name, str) and isinstance(content, bytes) for name, content in timer.traces.items())

    def test_a_run_gives_the_seconds_that_it_took(self, tiny: Tiny, model: Any) -> None:
        timer = open_timer(model, tiny.batch)
        prepared = timer.prepare(tiny.batch)
        for run in (timer.run, timer.run_profiled):
            took = run(prepared)
            assert isinstance(took, float)
            assert took >= 0
        timer.close()

    def test_there_is_one_record_for_each_run_with_the_profiler(self, timed: Timed) -> None:
        _, recorded = timed
        assert len(recorded) == RUNS
        assert all(run.executions for run in recorded)
        assert all(run.slices for run in recorded)

    def test_without_a_profiled_run_there_is_nothing(self, tiny: Tiny, model: Any) -> None:
        timer = open_timer(model, tiny.batch)
        timer.run(timer.prepare(tiny.batch))
        assert timer.close() == []

    def test_no_execution_is_part_of_another(self, timed: Timed) -> None:
        timer, recorded = timed
        for run in recorded:
            by_thread = defaultdict(list)
            for execution in run.executions:
                assert execution.duration_us >= 0
                by_thread[execution.thread].append(execution)
            for executions in by_thread.values():
                for one, other in pairwise(sorted(executions, key=lambda e: e.start_us)):
                    assert one.start_us + one.duration_us <= other.start_us + 2 * timer.resolution_us

    def test_one_run_comes_after_the_other(self, timed: Timed) -> None:
        _, recorded = timed
        for one, other in pairwise(recorded):
            assert max(e.start_us for e in one.executions) < min(e.start_us for e in other.executions)

    def test_kernels_are_of_ops_of_the_model(self, tiny: Tiny, timed: Timed, ops: dict[str, list[str]]) -> None:
        _, recorded = timed
        for kernel in {execution.kernel for run in recorded for execution in run.executions}:
            assert kernel.name
            assert kernel.type
            assert kernel.ops, "in this network nothing is the runtime's own affair"
            assert set(kernel.ops) <= set(ops), kernel
        assert {op for twins in ops.values() for op in twins} <= set(tiny.names.values())

    def test_every_op_is_computed_in_one_kernel(self, tiny: Tiny, timed: Timed, ops: dict[str, list[str]]) -> None:
        """However often that is executed; conversions are only on its account."""
        _, recorded = timed
        for run in recorded:
            kernels = {execution.kernel for execution in run.executions if not execution.kernel.is_conversion}
            counted = Counter(op for kernel in kernels for op in kernel.ops)
            assert set(counted.values()) == {1}
            found = {reference for op in counted for reference in ops[op]}
            assert found == {tiny.names[name] for name in READS}

    def test_conversions_are_those_of_a_quantized_model(self, tiny: Tiny, model: Any, timed: Timed) -> None:
        _, recorded = timed
        is_converted = any(e.kernel.is_conversion for run in recorded for e in run.executions)
        assert model is tiny.quantized or not is_converted

    def test_every_run_has_the_same_kernels(self, timed: Timed) -> None:
        _, recorded = timed
        names = [Counter(e.kernel.name for e in run.executions) for run in recorded]
        assert all(found == names[0] for found in names)

    def test_batches_may_differ_in_length(self, tiny: Tiny, model: Any) -> None:
        timer = open_timer(model, tiny.batch)
        for count in (len(X), 1, 2):
            timer.run_profiled(timer.prepare({tiny.input: X[:count]}))
        assert len(timer.close()) == 3

    def test_data_that_does_not_fit_is_refused_in_one_line(self, tiny: Tiny, model: Any) -> None:
        timer = open_timer(model, tiny.batch)
        for wrong in tiny.wrong_batches:
            with pytest.raises(MismatchError) as caught:
                timer.run(timer.prepare(wrong))
            assert "\n" not in str(caught.value)
        timer.close()
