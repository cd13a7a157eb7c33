"""A run against an earlier one: whether an output of the model got worse, and which op did it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from inc_tb.errors import DataError, MismatchError
from inc_tb.gate.changes import LEAST_SAMPLES, Change, Pairing, change, noise, pair
from inc_tb.gate.comparable import notes_on
from inc_tb.measure.by_sample import numbers
from inc_tb.records import SampleRow, Trial, listed, plural, short_repr
from inc_tb.store.reader import Run

OUTPUT_DB, OP_DB = 0.5, 3.0
"""A smaller change is none, of an output of the model and of what an op adds."""
_ABOUT = 0.25
OUTPUT, ADDED, TOTAL = "output_sqnr_db", "added_sqnr_db", "total_sqnr_db"
_WORDS = {OUTPUT: "the output", ADDED: "what it adds itself", TOTAL: "its result, first of all"}


class Changed(NamedTuple):
    """Something that differs by more than chance. Numbers are in dB of signal to noise: lower is worse."""

    what: str
    op: str
    base: float | None
    new: float | None
    low: float | None = None
    """The interval that holds the difference, where it is known how much chance there is in it."""
    high: float | None = None
    fails: bool = False
    because: str = ""

    def __str__(self) -> str:
        numbers_told = [
            f"{name} {value:.6g}" for name, value in (("base", self.base), ("new", self.new)) if value is not None
        ]
        return f"{self.op or self.what}: {self.because or ', '.join(numbers_told)}"


@dataclass(repr=False)
class Compared:
    """What came of it."""

    __repr__ = short_repr

    base: str
    new: str
    changes: list[Changed] = field(default_factory=list)
    comparable: list[str] = field(default_factory=list)
    """What the two do not have in common."""
    culprit: str = ""
    """The op that did it, if an output got worse and that can be told."""
    paired: int = 0
    """How many samples both have seen, where those were compared one by one."""

    @property
    def ok(self) -> bool:
        return not any(change.fails for change in self.changes)


class _Two(NamedTuple):
    """What both runs know of one op, and whether it is an output of the model."""

    base: SampleRow
    new: SampleRow


def compare(base: Run, new: Run) -> Compared:
    """Errors are compared sample by sample where both runs have seen the same ones."""
    pairing = pair(*(_samples_of(run) for run in (base, new)))
    both = _in_both(base, new)
    outputs = {name: two for name, two in both.items() if two.base.is_output and two.new.is_output}
    if not outputs:
        raise MismatchError(
            f"{base.name} and {new.name} have no output in common ({_outputs(base)}; {_outputs(new)}); expected two "
            "runs of one model. Compare others."
        )
    found = list(_of_outputs(outputs, pairing))
    if not found:
        raise DataError(
            f"{base.name} and {new.name} have fewer than {LEAST_SAMPLES} samples with a signal; too few to tell a "
            "change from noise. Diagnose both with more."
        )
    is_better = any(is_changed and not one.fails for one, is_changed in found)
    changed = [one for one, is_changed in found if is_changed]
    of_ops = _of_ops(both, pairing, fails=not is_better)
    changed += of_ops
    fails = any(one.fails for one in changed)
    if fails and not of_ops:
        of_ops = _first_worse(both, pairing)
        changed += of_ops
    notes = notes_on(base, new)
    if not pairing.is_paired:
        notes.append(
            "the samples are not the same, so that they are not compared one by one: small changes stay unseen"
        )
    changed += _of_trials(base.trial, new.trial)
    culprit = of_ops[0].op if fails and of_ops else ""
    return Compared(base.name, new.name, changed, notes, culprit, len(pairing.base) if pairing.is_paired else 0)


def _samples_of(run: Run) -> bytes:
    held = run.diagnosis.by_sample
    if not held:
        raise DataError(
            f"{run.name}: the errors of single samples were not recorded, as in runs of older versions and imported "
            "ones; diagnose the two models again, or hold the run to limits with inc-tb check."
        )
    return held.ids


def _in_both(base: Run, new: Run) -> dict[str, _Two]:
    """In the order of the new run's graph."""
    theirs = {row.op: row for row in base.diagnosis.by_sample.rows}
    place = {name: row for row, name in enumerate(new.ops["name"].tolist())}
    rows = sorted(new.diagnosis.by_sample.rows, key=lambda row: place.get(row.op, len(place)))
    return {row.op: _Two(theirs[row.op], row) for row in rows if row.op in theirs}


def _outputs(run: Run) -> str:
    return listed(row.op for row in run.diagnosis.by_sample.rows if row.is_output) or "none"


def _change(two: _Two, name: str, pairing: Pairing, tests: int) -> Change | None:
    base, new = (noise(numbers(row.power), numbers(getattr(row, name))) for row in two)
    return change(base, new, pairing, tests)


def _of_outputs(outputs: Mapping[str, _Two], pairing: Pairing) -> Iterator[tuple[Changed, bool]]:
    """Each that can be told, and whether it changed."""
    for op, two in outputs.items():
        found = _change(two, "error", pairing, len(outputs))
        if found is not None:
            worse = found.is_worse(OUTPUT_DB)
            yield _told(OUTPUT, op, found, worse), worse or found.is_better(OUTPUT_DB)


def _of_ops(both: Mapping[str, _Two], pairing: Pairing, *, fails: bool) -> list[Changed]:
    """Those that add more than before, the culprit first.

    A tensor between two ops is rounded for both. So of those that add about as much it is the first in the graph.
    """
    known = {op: two for op, two in both.items() if two.base.added and two.new.added}
    found = ((op, _change(two, "added", pairing, len(known))) for op, two in known.items())
    worse = [(op, one) for op, one in found if one is not None and one.is_worse(OP_DB)]
    most = max((_more_noise(one) for _, one in worse), default=0.0)
    worse.sort(key=lambda pair: min(_more_noise(pair[1]), _ABOUT * most), reverse=True)
    return [_told(ADDED, op, one, fails) for op, one in worse]


def _first_worse(both: Mapping[str, _Two], pairing: Pairing) -> list[Changed]:
    """Where no op is known to add more than before: the first one that what happened shows at."""
    for op, two in both.items():
        found = _change(two, "error", pairing, len(both))
        if found is not None and found.is_worse(OUTPUT_DB):
            return [_told(TOTAL, op, found, True)]
    return []


def _more_noise(found: Change) -> float:
    """Relative to the signal: what is far below it does not matter, however much it changed."""
    return float(10 ** (found.new / 10) - 10 ** (found.base / 10))


def _told(what: str, op: str, found: Change, fails: bool) -> Changed:
    """As signal to noise, so the other way round."""
    base, new = -found.base, -found.new
    how = "worse" if new < base else "better"
    because = (
        f"{_WORDS[what]} has {new:.1f} dB signal to noise where it had {base:.1f}, {abs(new - base):.1f} dB {how} "
        f"({-found.high:+.1f} to {-found.low:+.1f}, {plural(found.samples, 'sample')})"
    )
    if found.rare:
        because += f"; {plural(found.rare, 'sample is', 'samples are')} over 6 dB worse"
    if found.lost:
        because += f"; {plural(found.lost, 'sample has', 'samples have')} no finite result any more"
    return Changed(what, op, base, new, -found.high, -found.low, fails, because)


def _of_trials(base: Trial | None, new: Trial | None) -> list[Changed]:
    """How much chance is in them is not known; but a target that was met is a promise."""
    if base is None or new is None:
        return []
    found = []
    if base.accuracy is not None and new.accuracy is not None and base.accuracy != new.accuracy:
        missed = _meets(base) and new.target is not None and not _meets(new)
        because = f"accuracy {new.accuracy:.6g} where it was {base.accuracy:.6g}"
        if missed:
            because += f", and the target of {new.target:.6g} is missed"
        found.append(Changed("accuracy", "", base.accuracy, new.accuracy, fails=missed, because=because))
    for name, value in new.objectives.items():
        if name in base.objectives and name.startswith("size") and base.objectives[name] != value:
            because = f"{name} {value:.6g} where it was {base.objectives[name]:.6g}"
            found.append(Changed(name, "", base.objectives[name], value, because=because))
    return found


def _meets(trial: Trial) -> bool:
    if trial.target is None or trial.accuracy is None:
        return False
    return trial.accuracy <= trial.target if trial.lower_is_better else trial.accuracy >= trial.target


def to_json(found: Compared) -> dict[str, Any]:
    """What `inc-tb compare --json` prints."""
    changes: Sequence[dict[str, Any]] = [one._asdict() for one in found.changes]
    return {"ok": found.ok, "base": found.base, "new": found.new, "culprit": found.culprit, "changes": changes,
            "comparable": found.comparable, "paired": found.paired}  # fmt: skip
