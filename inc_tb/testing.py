"""A pytest plugin by which a project holds its quantized models to their fp32 models.

Switched on by `pytest_plugins = ["inc_tb.testing"]` in the project's conftest.py, or by `pytest -p inc_tb.testing`.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import pytest

from inc_tb.advise.diagnose import diagnose
from inc_tb.errors import UsageError
from inc_tb.gate.comparing import compare
from inc_tb.gate.configured import limits_of, limits_of_project
from inc_tb.gate.limits import Limit, check
from inc_tb.gate.outcome import Outcome, as_text, of_checks, of_comparison
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.store.reader import Run, load
from inc_tb.store.writer import SummaryWriter

_MARKER = "inc_tb(*limits, max_bad=None, base=None): what hold_to_fp32 holds the quantized model of this test to"
_KNOWN = {"max_bad", "base"}


class Hold(Protocol):
    """Compares a quantized model with its fp32 model, and fails the test where it does not hold."""

    def __call__(
        self, reference: Any, quantized: Any, batches: Any, *, run: str | PathLike[str] | None = None
    ) -> Diagnosis:
        """As `inc_tb.diagnose`; `run` is a folder to log it to, to be looked at or to be the next base."""
        ...


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def hold_to_fp32(request: pytest.FixtureRequest) -> Hold:
    """Holds a model to the limits of the marker inc_tb, else to those of pyproject.toml, else to no op being bad.

    With `base`, the folder of a run, it must not be worse than that by more than chance, either.
    """
    marker = request.node.get_closest_marker("inc_tb")
    told = {} if marker is None else dict(marker.kwargs)
    if not told.keys() <= _KNOWN:
        raise UsageError(
            f"the marker inc_tb was given {sorted(told.keys() - _KNOWN)}; expected limits, max_bad or base."
        )
    limits = limits_of(marker.args if marker is not None else (), told.get("max_bad"))
    base: str | PathLike[str] | None = told.get("base")
    if not limits and base is None:
        limits = limits_of_project(request.config.rootpath) or limits_of((), 0)

    def hold(reference: Any, quantized: Any, batches: Any, *, run: str | PathLike[str] | None = None) -> Diagnosis:
        found = diagnose(reference, quantized, batches, previews=False)
        if run is not None:
            with SummaryWriter(run, whole=True) as writer:
                writer.add_diagnosis(found)
        name = found.quantized if run is None else str(run)
        for outcome in _outcomes(Run(name, {0: found}), limits, base):
            if not outcome.ok:
                pytest.fail(f"{outcome.title}\n{as_text(outcome)}", pytrace=False)
        return found

    return hold


def _outcomes(run: Run, limits: list[Limit], base: str | PathLike[str] | None) -> list[Outcome]:
    found = [of_checks(check(run, limits))] if limits else []
    return found if base is None else [*found, of_comparison(compare(load(Path(base)), run))]
