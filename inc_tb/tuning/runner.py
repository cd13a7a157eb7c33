"""Carries out the trials that a strategy asks for, and measures what it wants to know."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from inc_tb.advise.diagnose import compare
from inc_tb.advise.effects import with_kept
from inc_tb.data import digest, take
from inc_tb.errors import IncTbError, ModelError, UsageError
from inc_tb.frameworks.carried import Example
from inc_tb.frameworks.models import digest_model, open_results, open_switches, read_inputs
from inc_tb.frameworks.ops import Batch, RangesOffered
from inc_tb.frameworks.protocols import Quantizer
from inc_tb.frameworks.registry import framework_of
from inc_tb.locks import TemporaryFolder
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.profiling.benchmark import Speed, benchmark
from inc_tb.profiling.run import profile
from inc_tb.records import Trial, plural
from inc_tb.search.budget import Budget
from inc_tb.search.comparison import Comparison
from inc_tb.search.journal import Journal
from inc_tb.search.simulation import Simulation
from inc_tb.tuning.attempt import Attempt, key_of
from inc_tb.tuning.calibration import calibration_data
from inc_tb.tuning.criterion import Criterion
from inc_tb.tuning.files import is_file, name_of, stored, suffix_by, suffix_of
from inc_tb.tuning.left_over import difference, left_by_tool
from inc_tb.tuning.made import MadeModels
from inc_tb.tuning.objectives import (
    LATENCY,
    Evaluate,
    Objectives,
    as_number,
    finite_number,
    measure_latency,
    measure_ratio,
    minimized,
    named_objectives,
    told_by,
    with_minimized,
)
from inc_tb.tuning.pricing import MOST_SAMPLES, Pricing
from inc_tb.tuning.standings import Standings
from inc_tb.tuning.tried import Tried

BEST_MODEL = "best_model"
PREPARED_MODEL = "prepared_model"
SIMULATIONS, PRICES, BUDGET = ".simulations", "prices.jsonl", "budget.jsonl"
"""Not among the runs."""
_SCREEN_SAMPLES = 4
_MODELS_KEPT = 3
_BATCH_SIZES, _RUNS, _SECONDS = (1, 16), 20, 2.0
"""Of the benchmark at the end; the seconds are for each size."""


class TrialRunner(Standings):
    """Carries out what a strategy asks for, and keeps count."""

    def __init__(
        self, model: Any, calibration: Any, evaluate: Evaluate, criterion: Criterion, *, quantizer: Quantizer,
        objectives: Objectives, logdir: Path, samples: int | None, probe_s: float, diagnosis_samples: int,
        profile_runs: int, probing: Callable[[int, int], None] | None, random_seed: int = 0,
        minimize: str | None = None, rewrite: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(criterion)
        self._asked_to_minimize = minimize
        objectives = with_minimized(minimize, objectives)
        self.rewrite = rewrite
        self.quantizer = quantizer
        self.probe_s = probe_s
        self.probing = probing
        self.random_seed = random_seed
        self.width = 0
        self.evaluations = 0
        self.comparison: dict[str, Comparison] = {}
        self.given = model
        self._evaluate = evaluate
        self.logdir = logdir
        self._diagnosis_samples = diagnosis_samples
        self._profile_runs = profile_runs
        read_inputs(model)
        if logdir.exists() and not logdir.is_dir():
            raise UsageError(f"{logdir}: is a file; expected a folder to write to. Choose another place.")
        self._objectives = named_objectives(objectives, lambda samples: self._first(samples)[0], self._latency)
        self._folder = TemporaryFolder("tune")
        folder = Path(self._folder.name)
        try:
            self.reference = quantizer.prepare(model, folder)
            self.batches = calibration_data(self.reference, calibration, samples)
            # Once: a function that gives the data may shuffle them.
            self._sample = take(self.batches, MOST_SAMPLES, read_inputs(self.reference))
        except BaseException:
            self._folder.cleanup()
            raise
        first = next(iter(self.batches))
        self.examples = [Example(name, str(array.dtype), list(array.shape)) for name, array in first.items()]
        suffix = suffix_by(quantizer, self.reference)
        self._models = MadeModels(quantizer, self.reference, self.batches, folder, suffix)
        self.best_model = logdir / f"{BEST_MODEL}{suffix}"
        self.prepared = logdir / f"{PREPARED_MODEL}{suffix_of(self.reference)}"
        self.model_digest = digest_model(self.reference)
        self._rewrites: list[dict[str, Any]] | None = None
        self._simulated = 0
        self._units: dict[str, list[str]] = {}
        """All that the tool can be told to keep, by the attempt in which nothing is kept."""
        self._simulations: dict[str, dict[int, Simulation]] = {}
        """By attempt and by number of samples."""
        self._diagnoses: dict[str, Diagnosis] = {}

    def __enter__(self) -> TrialRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    @property
    def simulated(self) -> int:
        """Subsets that were evaluated in a simulation."""
        return self._simulated + sum(s.evaluations for of in self._simulations.values() for s in of.values())

    @property
    def quantizations(self) -> int:
        return self._models.quantizations

    # One trial

    def carry_out(self, attempt: Attempt, name: str) -> Trial:
        return self.tried(attempt).logged(self.logdir / name)

    def tried(self, attempt: Attempt) -> Tried:
        began = time.monotonic()
        notes = [attempt.note] if attempt.note else []
        accuracy: float | None = None
        objectives: dict[str, float] = {}
        made: Any = None
        try:
            made = self.quantized(attempt)
            run = open_results(made)  # what the runtime cannot open or run is a failed trial, not a failed evaluation
            if not is_file(made):
                run(self._first(1)[0])
        except ModelError as error:
            made = None
            notes.append(str(error))
        if made is not None:
            number = self.evaluated(made)
            accuracy = number if math.isfinite(number) else None
            notes += [] if accuracy is not None else [f"evaluate returned {number}"]
            objectives = {key: self._objective(key, function, made) for key, function in self._objectives.items()}
        left = self._left_by_tool(attempt) if made is not None else None
        notes += [left_by_tool(left, len(attempt.keep))] if left is not None else []
        trial = Trial(
            "", accuracy, self.baseline, list(attempt.keep), dict(attempt.settings), objectives,
            notes=notes, target=self.criterion.target(self.baseline),
            lower_is_better=not self.criterion.higher_is_better, left_by_tool=left,
            int8_macs=self.pricing.int8_share(made) if made is not None else None,
            baseline_objectives=dict(self.baseline_objectives),
        )  # fmt: skip
        found = self._looked_into(trial, attempt) if made is not None else Tried(trial)
        trial.wall_s = time.monotonic() - began
        return found

    def _left_by_tool(self, attempt: Attempt) -> float | None:
        """None unless everything is kept in fp32 that the tool can be told, and the results differ nevertheless."""
        units = self.known_units(attempt)
        if not units or not set(units) <= set(attempt.keep):
            return None
        return difference(self.reference, self.quantized(attempt), self._first(_SCREEN_SAMPLES))

    def _looked_into(self, trial: Trial, attempt: Attempt) -> Tried:
        times, diagnosis = None, None
        if self._profile_runs:
            try:
                made, first = self.quantized(attempt), self._first(1)
                times = profile(self.reference, first, quantized=made, runs=self._profile_runs)
            except IncTbError as error:
                trial.notes.append(f"not profiled: {error}")
        if self._diagnosis_samples:
            try:
                diagnosis = self.diagnosis(attempt)
            except IncTbError as error:
                trial.notes.append(f"not diagnosed: {error}")
        return Tried(trial, diagnosis, times)

    def count(self, quantizations: int, evaluations: int) -> None:
        """Those of a worker."""
        self._models.quantizations += quantizations
        self.evaluations += evaluations

    def measure_reference(self) -> tuple[float, dict[str, float]]:
        """The accuracy of fp32, and its objectives."""
        model = self.model()
        return self.accuracy(model), {key: self._objective(key, f, model) for key, f in self._objectives.items()}

    def set_baseline(self, accuracy: float, objectives: Mapping[str, float]) -> None:
        """As it was measured, now or before."""
        self.baseline, self.baseline_objectives = accuracy, objectives
        self.minimize = minimized(self._asked_to_minimize, objectives)

    def accuracy(self, model: Any) -> float:
        return finite_number(self.evaluated(model), "evaluate")

    def evaluated(self, model: Any) -> float:
        """What the user's function says; a ruined model's loss may be infinite."""
        self.evaluations += 1
        return as_number(told_by("evaluate", self._evaluate, self._shown(model)), "evaluate")

    def _shown(self, model: Any) -> Any:
        return self.quantizer.shown(model) if hasattr(self.quantizer, "shown") else model

    def _objective(self, name: str, function: Evaluate, model: Any) -> float:
        return finite_number(told_by(f"objective {name}", function, self._shown(model)), name)

    def _latency(self, model: Any) -> float:
        """Of trials beside fp32, in units of what that took at first, because they are compared with each other."""
        batch, of_fp32 = self._first(1)[0], self.baseline_objectives.get(LATENCY)
        if of_fp32 is None:
            return measure_latency(model, batch)
        return of_fp32 * measure_ratio(model, self._shown(self.reference), batch)

    def save(self, attempt: Attempt) -> None:
        """As the best model so far."""
        try:
            stored(self.quantized(attempt), self.best_model)
            if is_file(self.reference):
                stored(self._models.source_of(attempt), self.prepared)  # from which the recipe makes it
        except ModelError:
            return  # the trial says why there is no model

    def best_quantized(self, attempt: Attempt) -> Any:
        """The best model, or where it is; None where it could not be made."""
        if is_file(self.reference):
            return self.best_model
        try:
            return self.quantized(attempt)
        except ModelError:
            return None  # the trial says why

    def speeds(self, best: Any, batch_sizes: Sequence[int] | None) -> list[Speed]:
        """Of fp32 and of the best model; without any sizes where the trials were timed, too."""
        if batch_sizes is None:
            batch_sizes = _BATCH_SIZES if {"latency_ms", "samples_per_s"} & set(self._objectives) else ()
        if not batch_sizes or best is None or not framework_of(best).can("open_timer"):
            return []
        models = {"fp32": self._timed(self.reference), "int8": self._timed(best)}
        return benchmark(models, self._sample, batch_sizes, runs=_RUNS, warmup=1, threads=None, seconds=_SECONDS)

    def _timed(self, model: Any) -> Any:
        """What is shown is what ships, if it is a file."""
        shown = self._shown(model)
        return shown if is_file(shown) else model

    # What strategies ask

    def quantized(self, attempt: Attempt) -> Any:
        """The model of an attempt; the last few are kept."""
        with self.budget.paused():
            return self._models.quantized(attempt)

    def _fp32_of(self, attempt: Attempt) -> Any:
        return self._models.fp32_of(attempt)

    def units(self, attempt: Attempt) -> list[str]:
        key = key_of(attempt)
        if key not in self._units:
            switches = open_switches(self._fp32_of(attempt), self.quantized(attempt))
            switches.trace(self._sample[0])
            self._units[key] = [unit.name for unit in switches.units]
        return list(self._units[key])

    def known_units(self, attempt: Attempt) -> list[str]:
        """Of its settings, as far as they were asked for."""
        return self._units.get(key_of(Attempt(attempt.settings)), [])

    def know_units(self, attempt: Attempt, units: Sequence[str]) -> None:
        """What another process has found."""
        self._units[key_of(Attempt(attempt.settings))] = list(units)

    def prices(self, attempt: Attempt) -> dict[str, float]:
        """What it costs to keep each unit in fp32; nothing where all cost the same."""
        return self.pricing.prices(
            key_of(attempt), lambda: (self.quantized(attempt), self.units(attempt), self.diagnosis(attempt))
        )

    def slower_in_int8(self, attempt: Attempt) -> list[str]:
        self.prices(attempt)
        return self.pricing.slower(key_of(attempt))

    def without_multiplications(self, attempt: Attempt) -> list[str]:
        return self.pricing.without_multiplications(self.units(attempt), self.diagnosis(attempt))

    def is_faster(self, attempt: Attempt, than: Attempt) -> bool:
        """Without a trial of either, by more than what is noise."""
        if self.minimize != LATENCY:
            return False
        about = f"{key_of(attempt)} and {key_of(than)}"
        return self.pricing.is_faster(about, lambda: [self.quantized(one) for one in (attempt, than)])

    @cached_property
    def pricing(self) -> Pricing:
        return Pricing(self.reference, self._first(1)[0], self.minimize, self.logdir / SIMULATIONS / PRICES)

    @cached_property
    def budget(self) -> Budget:
        """For the simulation, without the time for quantizing, from the moment at which it is first asked for."""
        return Budget(self.probe_s, Journal(self.logdir / SIMULATIONS / BUDGET))

    def rewrites(self) -> list[dict[str, Any]]:
        """Those that the framework finds on the first samples; nothing where they are not wanted."""
        framework = framework_of(self.reference)
        if self._rewrites is None:
            can = self.rewrite and "rewrites" in self.quantizer.settings and framework.can("find_rewrites")
            found = framework.find_rewrites(self.reference, self._sample) if can else []
            self._rewrites = [msgspec.to_builtins(rewrite) for rewrite in found]
        return self._rewrites

    def ranges(self, attempt: Attempt) -> RangesOffered:
        return self.simulation(attempt).model.ranges(self._sample)

    def diagnosis(self, attempt: Attempt) -> Diagnosis:
        """On few samples: enough to see what is wrong, cheap enough for every trial."""
        key = key_of(attempt)
        if key not in self._diagnoses:
            batches = self._first(self._diagnosis_samples or _SCREEN_SAMPLES)
            found = compare(self._fp32_of(attempt), self.quantized(attempt), batches)
            found.reference = name_of(self.model())
            if found.origin is not None:
                found.origin.seed = self.random_seed
            found.quantized = f"{found.reference}, quantized" + (
                f", {plural(len(attempt.keep), 'op')} in fp32" if attempt.keep else ""
            )
            self._diagnoses[key] = with_kept(found, attempt.keep)
            while len(self._diagnoses) > _MODELS_KEPT:
                del self._diagnoses[next(iter(self._diagnoses))]
        return self._diagnoses[key]

    def simulation(self, attempt: Attempt, samples: int | None = None, *, is_rough: bool = False) -> Simulation:
        if samples is None:
            samples = self.pricing.affordable_samples(self.probe_s)[is_rough]
        known = self._simulations.setdefault(key_of(attempt), {})
        if samples not in known:
            other = next(iter(known.values()), None)
            fp32, int8 = self._fp32_of(attempt), self.quantized(attempt)
            model = other.model if other is not None else open_switches(fp32, int8)
            made = Simulation(model, self._sample, samples=samples)
            name = f"{key_of(attempt)}-{samples}"
            made.remember(Journal(self.logdir / SIMULATIONS / f"{name}.jsonl"), name + self.model_digest)
            made.progress = partial(self._tell_progress, 2 * len(model.sites))
            known[samples] = made
            self._units[key_of(attempt)] = [unit.name for unit in model.units]
        return known[samples]

    def _tell_progress(self, most: int) -> None:
        """To halve all groups down to single tensors takes `most`, unless the time is over before."""
        if self.probing is not None:
            done, used = self.simulated, self.budget.used
            self.probing(done, max(done, min(most, round(done / used)) if used > 0 else most))

    def forget_simulations(self, but: Attempt) -> None:
        before = self.simulated
        self._simulations = {key: s for key, s in self._simulations.items() if key == key_of(but)}
        self._simulated += before - self.simulated

    def real_error(self, attempt: Attempt, simulation: Simulation) -> float:
        """Of a really quantized model's results, on the samples of the simulation."""
        run = open_results(self.quantized(attempt))
        return simulation.compared([run(batch) for batch in simulation.batches]).error

    def log_probed(self, trial: Trial, diagnosis: Diagnosis) -> None:
        """The diagnosis of a trial once more, with what the simulation has found out since."""
        from inc_tb.store.reader import load
        from inc_tb.store.writer import SummaryWriter

        if self._diagnosis_samples:
            times = load(self.logdir / trial.name).profile
            with SummaryWriter(self.logdir / trial.name) as writer:
                writer.update_diagnosis(times.join(diagnosis) if times is not None else diagnosis)

    def _first(self, samples: int) -> list[Batch]:
        return take(self._sample, samples, read_inputs(self.reference))

    def data_digest(self) -> str:
        """Of the first calibration data."""
        return digest(self._sample)

    def model(self) -> Any:
        """The fp32 model as it was given, where that can be evaluated."""
        return Path(self.given) if isinstance(self.given, str | PathLike) else self.reference
