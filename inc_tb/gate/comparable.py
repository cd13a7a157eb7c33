"""What two runs do not have in common, so that their numbers may differ for that reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inc_tb.records import Origin, brief, listed
from inc_tb.store.reader import Run

_MODELS = {"reference": "the fp32 model", "data": "the data"}


def notes_on(base: Run, new: Run) -> list[str]:
    """One for each difference; the quantized model is what is compared, so that it may be another."""
    ours, theirs = base.diagnosis.origin, new.diagnosis.origin
    missing = [run.name for run, origin in ((base, ours), (new, theirs)) if origin is None]
    if missing:
        found = [f"not recorded for {' and '.join(missing)}: models, data, settings and versions"]
    else:
        assert ours is not None
        assert theirs is not None
        found = list(_of_origins(ours, theirs))
    return [*found, *_of_trials(base, new)]


def _of_origins(base: Origin, new: Origin) -> Iterator[str]:
    for name, what in _MODELS.items():
        mine, other = getattr(base, name), getattr(new, name)
        if not (mine and other):
            yield f"{what}: not recorded"
        elif mine != other:
            yield f"{what} is not the same"
    if base.quantized and base.quantized == new.quantized:
        yield "the quantized model is the same in both"
    yield from _differences("measured with", base.settings, new.settings)
    yield from _differences("version of", base.versions, new.versions)
    if base.seed != new.seed:
        yield f"seed: {_told(base.seed)} → {_told(new.seed)}"
    lost, won = (
        [name for name in one if name not in other] for one, other in ((base.cpu, new.cpu), (new.cpu, base.cpu))
    )
    if lost or won:
        only = [
            f"only {which} has {listed(names)}" for which, names in (("the base", lost), ("the new one", won)) if names
        ]
        yield f"processor: {', '.join(only)}"


def _of_trials(base: Run, new: Run) -> Iterator[str]:
    if base.trial is not None and new.trial is not None:
        yield from _differences("setting", base.trial.config, new.trial.config)
        lost, won = (set(one.fallback) - set(other.fallback) for one, other in (
            (base.trial, new.trial), (new.trial, base.trial)))  # fmt: skip
        if lost or won:
            told = [f"{what} {listed(sorted(ops))}" for what, ops in (("no longer", lost), ("now also", won)) if ops]
            yield f"kept in fp32: {', '.join(told)}"


def _differences(what: str, base: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*base, *new]):
        if base.get(name) != new.get(name):
            yield f"{what} {name}: {_told(base.get(name))} → {_told(new.get(name))}"


def _told(value: Any) -> str:
    return "not given" if value is None else brief(str(value), 40)
