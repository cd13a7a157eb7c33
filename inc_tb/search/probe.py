"""Sensitivity at the output: what quantizing each unit alone does there, and what keeping it in fp32 gives back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from inc_tb.advise.diagnose import diagnose
from inc_tb.advise.effects import KeptSet, UnitEffect, with_effects, with_measured_sets
from inc_tb.data import open_data
from inc_tb.engines.models import open_model
from inc_tb.engines.named import On, opened
from inc_tb.frameworks.models import digest_model, open_switches, quantize_to_ranges
from inc_tb.frameworks.ops import Array
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.records import plural
from inc_tb.search.budget import Budget
from inc_tb.search.comparison import Comparison
from inc_tb.search.journal import Journal
from inc_tb.search.simulation import Simulation, interval, resampled
from inc_tb.search.smallest import HEALTHY, LOST, Search
from inc_tb.search.workers import Workers
from inc_tb.shown import Shown

if TYPE_CHECKING:
    from inc_tb.store.writer import SummaryWriter

JOURNAL = "probe.jsonl"
Progress = Callable[[int, int], None]
_LEFT_OUT = 16
"""Units that are also left out one by one, the most sensitive ones."""
_LEAST_RANKED = 3
_SUGGESTIONS = 20
_FIRST_LOG_S = 2.0
_SHARES = (0.5, 0.65, 0.9)
"""When the time for the units, for leaving them out and for the tensors around them is over, of the whole budget."""
_SAME = 0.95
"""With fewer of the same decisions an output is lost, whatever its error."""
_FIRST, _FIRST_IF_BRIEF = 0.3, 0.7
"""When that for what the diagnosis suggests is over, which comes before them."""


@dataclass(repr=False)
class Probe(Shown):
    """What a probe has found; `diagnosis` is the diagnosis with the columns and suggestions that follow from it."""

    _card = "diagnoses:probe_card"

    diagnosis: Diagnosis
    units: list[UnitEffect] = field(default_factory=list)
    """The most sensitive first."""
    comparison: dict[str, Comparison] = field(default_factory=dict)
    """fp32, simulated and real: the simulation rounds where the quantized model does, its kernels are fp32's."""
    explaining: KeptSet | None = None
    """The smallest set found that explains the loss; None where the error is spread over all of the model."""
    gradient_correlation: float | None = None
    """Rank correlation (Spearman) of the units' gradient scores with their sensitivities, where there are gradients."""
    evaluations: int = 0
    seconds: float = 0.0
    complete: bool = True
    """Whether every unit was reached within the budget."""

    def __repr__(self) -> str:
        reached = plural(len(self.units), "unit") + ("" if self.complete else ", not all within the time")
        took = f"{plural(self.evaluations, 'evaluation')} in {self.seconds:.1f} s"
        return f"<Probe: {reached}, {took}; {self.diagnosis.verdict}>"


def probe(
    model: Any,
    quantized: Any,
    batches: str | PathLike[str] | Mapping[str, Array] | Array | Iterable[Any],
    *,
    budget_s: float = 60.0,
    samples: int = 32,
    logdir: str | PathLike[str] | None = None,
    diagnosis: Diagnosis | None = None,
    progress: Progress | None = None,
    on: On | None = None,
) -> Probe:
    """Quantize one unit at a time, in one session, and see what that does to the model's output.

    `quantized` is the quantized model, or the calibrated range (low, high) of every tensor by its name. Units come in
    the order of the diagnosis, which is made unless it is given. Samples beyond `samples` are not used. With a `logdir`
    (the folder of a run) the op table is logged as it fills, and a probe that was interrupted goes on where it was.
    `progress` is called with the evaluations done and those there will be. With `on` subsets are evaluated side by
    side: by "processes:4", "ray://…", "dask://…", or an executor.
    """
    began = time.monotonic()
    told = model, quantized
    if on is not None:
        model = open_model(model)
        quantized = quantized if isinstance(quantized, Mapping) else open_model(quantized)
    if isinstance(quantized, Mapping):
        quantized = quantize_to_ranges(model, quantized)
    switches = open_switches(model, quantized)
    if isinstance(batches, str | PathLike):
        batches = open_data(batches, switches.inputs, samples)
    simulation = Simulation(switches, batches, samples=samples)
    writer = _writer(logdir) if logdir is not None else None
    with ExitStack() as stack:
        if writer is not None:
            stack.callback(writer.close)
        if on is not None:
            simulation.share_with(Workers(stack.enter_context(opened(on)), told, simulation.batches))
        if diagnosis is None:
            diagnosis = diagnose(model, quantized, simulation.batches, previews=False)
            if writer is not None:
                writer.add_diagnosis(diagnosis)
        diagnosis = replace(diagnosis, notes=[*diagnosis.notes, *switches.notes, *simulation.notes])
        if logdir is not None:
            simulation.remember(
                Journal(Path(logdir) / JOURNAL), digest_model(model)[:16] + digest_model(quantized)[:16]
            )
        return Prober(simulation, diagnosis, budget_s, writer, progress, began).run()


def _writer(logdir: str | PathLike[str]) -> SummaryWriter:
    from inc_tb.store.writer import SummaryWriter  # loads TensorBoard's protocol buffers

    return SummaryWriter(logdir)


class Prober:
    """Measures what there is time for, what is suggested first; a brief one leaves healthy outputs alone."""

    def __init__(
        self,
        simulation: Simulation,
        diagnosis: Diagnosis,
        budget_s: float,
        writer: SummaryWriter | None,
        progress: Progress | None,
        began: float,
        *,
        is_brief: bool = False,
    ) -> None:
        self._is_brief = is_brief
        self._simulation = simulation
        self._diagnosis = diagnosis
        self._budget_s = budget_s
        self._writer = writer
        self._progress = progress
        self._began = began
        self._logged = time.monotonic()
        self._wait_s = _FIRST_LOG_S
        self._done = 0
        self._total = 0
        self._gradients: dict[str, float] = {}
        self._measured: dict[int, KeptSet] = {}
        """By the rank of a suggestion."""
        self._result = Probe(diagnosis)
        self._screened = screened(diagnosis, [unit.name for unit in simulation.model.units])

    def run(self) -> Probe:
        self._result.comparison = self._simulation.compare()
        if self._is_brief and self._is_healthy():
            self._withdraw()
        else:
            self._search()
        return self._result

    def _search(self) -> None:
        self._total = len(self._screened) + min(_LEFT_OUT, len(self._screened))
        self._measure_suggestions()
        found = self._probe_units()
        self._leave_out(found)
        reached = [effect.name for effect in self._result.units]
        search = Search(self._simulation, [*reached, *(name for name in self._screened if name not in found)])
        self._total += len(search.grids)
        search.try_each_alone(self._deadline(2), lambda _, __: self._step())
        search.budget = Budget(self._began + self._budget_s - time.monotonic())
        if self._is_healthy():
            self._note_health()
        self._measure_sets(search)
        self._gradients = self._score_gradients()
        self._compare_gradients()
        self._finish()

    def _withdraw(self) -> None:
        """What single ops add is nothing to act on where nothing of it arrives."""
        left_out = len(self._diagnosis.suggestions)
        if left_out:
            self._note_health()
            of_ops = plural(left_out, "suggestion that follows", "suggestions that follow")
            note = f"{of_ops} from single ops alone left out; --probe 0 shows what single ops call for"
            self._diagnosis = replace(self._diagnosis, suggestions=[], notes=[*self._diagnosis.notes, note])
        self._result.diagnosis = self._diagnosis

    def _is_healthy(self) -> bool:
        return self._simulation.error_keeping(()) <= HEALTHY

    def _note_health(self) -> None:
        if self._simulation.model.sites:
            error = self._simulation.error_keeping(())
            healthy = (
                f"the output is as close to fp32 as healthy int8 gets: error {error:.2g}, up to {HEALTHY:g} is usual"
            )
            self._diagnosis = replace(self._diagnosis, notes=[*self._diagnosis.notes, healthy])

    def _compare_gradients(self) -> None:
        """How well one backward pass would have told the same."""
        units = [effect for effect in self._result.units if effect.name in self._gradients]
        if len(units) < _LEAST_RANKED:
            return
        pairs = [(effect.sensitivity, self._gradients[effect.name]) for effect in units]
        found = rank_correlation(np.array(pairs))
        if found is not None:
            self._result.gradient_correlation = found
            note = f"the gradient score ranks {len(units)} units as the probe does to {found:.2f} (rank correlation)"
            self._diagnosis = replace(self._diagnosis, notes=[*self._diagnosis.notes, note])

    def _score_gradients(self) -> dict[str, float]:
        scores: dict[str, list[Array]] = {}
        for batch in self._simulation.batches:
            if time.monotonic() > self._began + self._budget_s:
                return {}
            for op, found in self._simulation.model.gradients(batch).items():
                scores.setdefault(op, []).append(found)
        return {op: float(np.concatenate(found).mean()) for op, found in scores.items()}

    def _probe_units(self) -> dict[str, UnitEffect]:
        found: dict[str, UnitEffect] = {}
        self._simulation.foresee(map(self._simulation.sites_of, self._screened))
        ops = {unit.name: unit.ops for unit in self._simulation.model.units}
        for name in self._screened:
            sites = self._simulation.sites_of(name)
            if time.monotonic() > self._deadline(0) and not self._simulation.is_known(sites):
                self._result.complete = False
                break
            errors = self._simulation.errors(sites)
            found[name] = UnitEffect(name, ops[name], float(errors.mean()), *interval(errors))
            self._arrange(found)
            self._step()
        self._simulation.forget_foreseen()
        return found

    def _leave_out(self, found: Mapping[str, UnitEffect]) -> None:
        full = self._simulation.error_keeping(())
        most = self._result.units[:_LEFT_OUT]
        self._simulation.foresee(self._simulation.sites_without([effect.name]) for effect in most)
        for effect in most:
            sites = self._simulation.sites_without([effect.name])
            if full <= 0 or (time.monotonic() > self._deadline(1) and not self._simulation.is_known(sites)):
                break
            found[effect.name].recovery = 1 - self._simulation.error(sites) / full
            self._step()
        self._simulation.forget_foreseen()

    def _measure_suggestions(self) -> None:
        until = self._began + (_FIRST_IF_BRIEF if self._is_brief else _FIRST) * self._budget_s
        units = {unit.name for unit in self._simulation.model.units}
        sets = {s.rank: [op for op in s.ops if op in units] for s in self._diagnosis.suggestions[:_SUGGESTIONS]}
        self._simulation.foresee(self._simulation.sites_without(kept) for kept in sets.values() if kept)
        for rank, kept in sets.items():
            known = self._simulation.is_known(self._simulation.sites_without(kept))
            if kept and (known or time.monotonic() < until):
                self._measured[rank] = self._kept(kept)
        self._simulation.forget_foreseen()

    def _measure_sets(self, search: Search) -> None:
        explaining = search.explaining(kept.units for kept in self._measured.values())
        self._result.explaining = self._kept(explaining) if explaining else None
        samples = plural(len(self._simulation.errors(())), "sample")
        how = f"measured with these ops in fp32 and all others rounded, over {samples}, in fp32 kernels"
        units = {unit.name for unit in self._simulation.model.units}
        self._diagnosis = with_measured_sets(
            self._diagnosis, self._result.explaining, self._measured, units, how, is_smallest=search.is_whole,
            is_lost=self._is_lost(),
        )  # fmt: skip

    def _is_lost(self) -> bool:
        """Clearly: one decision more or less is chance."""
        simulated = self._result.comparison["simulated"]
        chance = 1 / max(1, len(self._simulation.errors(())))
        same = simulated.agreement
        return simulated.error > LOST or (same is not None and same + chance < _SAME)

    def _kept(self, units: Sequence[str]) -> KeptSet:
        full, left = self._simulation.error_keeping(()), self._simulation.error_keeping(units)
        return KeptSet(list(units), left, 1 - left / full if full > 0 else 0.0)

    def _arrange(self, found: Mapping[str, UnitEffect]) -> None:
        self._result.units = sorted(found.values(), key=lambda effect: -effect.sensitivity)

    def _step(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, max(self._done, self._total))
        if self._writer is not None and time.monotonic() - self._logged > self._wait_s:
            # Ever more rarely: the log holds each of them.
            self._logged, self._wait_s = time.monotonic(), self._wait_s * 1.5
            self._writer.update_diagnosis(self._filled(), is_last=False)

    def _filled(self) -> Diagnosis:
        self._rank()
        known = {effect.name for effect in self._result.units}
        late = f"not reached within the {self._budget_s:.3g} s of the probe; give it more time"
        why_not = {op: late for u in self._simulation.model.units if u.name not in known for op in u.ops}
        return with_effects(self._diagnosis, self._result.units, why_not, self._gradients)

    def _rank(self) -> None:
        if not self._result.units:
            return
        errors = np.stack([self._simulation.errors(self._simulation.sites_of(e.name)) for e in self._result.units])
        means = resampled(errors)
        for effect, own in zip(self._result.units, means, strict=True):
            best, worst = 1 + (means > own).sum(axis=0), (means >= own).sum(axis=0)
            effect.rank = int(np.quantile(best, 0.025, method="lower")), int(np.quantile(worst, 0.975, method="higher"))

    def _finish(self) -> None:
        result = self._result
        if not result.complete:
            reached = f"{len(result.units)} of {len(self._screened)} units"
            reached += f" were probed in {self._budget_s:.3g} s; give it more"
            self._diagnosis = replace(self._diagnosis, notes=[*self._diagnosis.notes, reached])
        result.diagnosis = self._filled()
        result.evaluations = self._simulation.evaluations
        result.seconds = time.monotonic() - self._began
        if self._writer is not None:
            self._writer.update_diagnosis(result.diagnosis)

    def _deadline(self, stage: int) -> float:
        return self._began + _SHARES[stage] * self._budget_s


def screened(diagnosis: Diagnosis, units: Sequence[str]) -> list[str]:
    """Units by the noise that they add, worst first, as far as the diagnosis tells; the others behind."""
    place = {str(diagnosis.ops["name"][row]): i for i, row in enumerate(diagnosis.worst())}
    return sorted(units, key=lambda name: place.get(name, len(place)))


def rank_correlation(pairs: npt.NDArray[np.float64]) -> float | None:
    """Spearman's, of two columns; None where one of them is all the same."""
    ranks = np.stack([_ranks(column) for column in pairs.T])
    if not ranks.std(axis=1).all():
        return None
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Equal values share the mean of their ranks."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[where]
