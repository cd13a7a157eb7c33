"""Carries out the trials that a strategy asks for, and measures what it wants to know."""

from __future__ import annotations

import hashlib
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from inc_tb.capture import (
    Array,
    Batch,
    Quantizer,
    digest_model,
    measure_latency,
    measure_memory,
    measure_size,
    measure_throughput,
    open_results,
    open_switches,
    read_inputs,
    save_model,
)
from inc_tb.data import (
    Data,
    as_batch,
    check_fit,
    cut,
    digest,
    is_one_batch,
    load_function,
    open_data,
    split_function,
    take,
)
from inc_tb.diagnose import diagnose
from inc_tb.diagnosis import Diagnosis
from inc_tb.errors import DataError, IncTbError, MismatchError, ModelError, UsageError
from inc_tb.journal import Journal
from inc_tb.measured import with_kept
from inc_tb.profile import profile
from inc_tb.records import Trial
from inc_tb.simulation import Comparison, Simulation
from inc_tb.strategies import Attempt

BEST_MODEL = "best_model"
PREPARED_MODEL = "prepared_model"
SIMULATIONS = "simulations"
_BATCH = 8
_SAMPLES = 16
_SCREEN_SAMPLES = 4
_MODELS_KEPT = 3
Evaluate = Callable[[Any], float]
"""Gets the path of a model, or the model itself where its quantizer makes objects."""
Objectives = Mapping[str, Evaluate] | Sequence[str | Evaluate]


@dataclass(frozen=True)
class Criterion:
    """How much accuracy may be lost."""

    tolerance: float = 0.01
    relative: bool = True
    higher_is_better: bool = True

    def target(self, baseline: float) -> float:
        loss = self.tolerance * abs(baseline) if self.relative else self.tolerance
        return baseline - loss if self.higher_is_better else baseline + loss

    def is_met(self, accuracy: float, baseline: float) -> bool:
        return self.loss(accuracy, self.target(baseline)) <= 0

    def loss(self, accuracy: float, than: float) -> float:
        """How much worse than something else."""
        return than - accuracy if self.higher_is_better else accuracy - than


class Tuner:
    """Carries out what a strategy asks for, and keeps count."""

    def __init__(
        self, model: Any, calibration: Any, evaluate: Evaluate, criterion: Criterion, *, quantizer: Quantizer,
        objectives: Objectives, logdir: Path, samples: int | None, probe_s: float, diagnosis_samples: int,
        profile_runs: int, probing: Callable[[int, int], None] | None,
    ) -> None:  # fmt: skip
        self.criterion = criterion
        self.quantizer = quantizer
        self.probe_s = probe_s
        self.probing = probing
        self.trials: list[Trial] = []
        self.baseline = math.nan
        self.quantizations = self.evaluations = 0
        self.comparison: dict[str, Comparison] = {}
        self._model = model
        self._evaluate = evaluate
        self.logdir = logdir
        self._diagnosis_samples = diagnosis_samples
        self._profile_runs = profile_runs
        read_inputs(model)
        missing = [
            name for name in ("prepare", "quantize", "recipe", "variants", "cures") if not hasattr(quantizer, name)
        ]
        if missing:
            raise UsageError(
                f"the quantizer {type(quantizer).__name__} has no {', '.join(missing)}; expected the methods of "
                "inc_tb.Quantizer."
            )
        if logdir.exists() and not logdir.is_dir():
            raise UsageError(f"{logdir}: is a file; expected a folder to write to. Choose another place.")
        self._objectives = self._named_objectives(objectives)
        self._folder = tempfile.TemporaryDirectory(prefix="inc_tb_tune_")
        try:
            self.reference = quantizer.prepare(model, Path(self._folder.name))
            self.batches = calibration_data(self.reference, calibration, samples)
            # Once: a function that gives the data may shuffle them.
            self._sample = take(self.batches, _SAMPLES, read_inputs(self.reference))
        except BaseException:
            self._folder.cleanup()
            raise
        self._suffix = suffix_by(quantizer, self.reference)
        self.best_model = logdir / f"{BEST_MODEL}{self._suffix}"
        self.prepared = logdir / f"{PREPARED_MODEL}{suffix_of(self.reference)}"
        self.model_digest = digest_model(self.reference)
        self._simulated = 0
        self._made: dict[str, Any] = {}
        self._simulations: dict[str, Simulation] = {}
        self._diagnoses: dict[str, Diagnosis] = {}

    def __enter__(self) -> Tuner:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    # What came of it

    @property
    def best(self) -> Trial:
        """The one that meets the criterion with the fewest ops in fp32, or else loses the least."""
        return min(self.trials, key=self._badness)

    def is_met(self, trial: Trial) -> bool:
        return trial.accuracy is not None and self.criterion.is_met(trial.accuracy, self.baseline)

    def loss(self, trial: Trial) -> float:
        """How much accuracy is lost against fp32."""
        return math.inf if trial.accuracy is None else self.criterion.loss(trial.accuracy, self.baseline)

    @property
    def simulated(self) -> int:
        """Subsets that were evaluated in a simulation."""
        return self._simulated + sum(simulation.evaluations for simulation in self._simulations.values())

    @property
    def allowed(self) -> float:
        """How much may be lost."""
        return self.criterion.loss(self.criterion.target(self.baseline), self.baseline)

    def _badness(self, trial: Trial) -> tuple[float, ...]:
        if self.is_met(trial):
            return 0, len(trial.fallback) + len(trial.config.get("int16_tensors", ())), self.loss(trial)
        return 1, self.loss(trial), len(trial.fallback)

    # One trial

    def carry_out(self, attempt: Attempt, name: str) -> Trial:
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
            found = self.evaluated(made)
            accuracy = found if math.isfinite(found) else None
            notes += [] if accuracy is not None else [f"evaluate returned {found}"]
            objectives = {key: self._objective(key, function, made) for key, function in self._objectives.items()}
        trial = Trial(
            name, accuracy, self.baseline, list(attempt.keep), dict(attempt.settings), objectives,
            notes=notes, target=self.criterion.target(self.baseline),
            lower_is_better=not self.criterion.higher_is_better,
        )  # fmt: skip
        self._log(trial, attempt, made is not None, began)
        return trial

    def _log(self, trial: Trial, attempt: Attempt, is_made: bool, began: float) -> None:
        from inc_tb.events import SummaryWriter

        folder = self.logdir / trial.name
        if folder.exists():  # of a trial that was cut off before the history had it
            shutil.rmtree(folder)
        times = None
        if is_made and self._profile_runs:
            try:
                made, first = self.quantized(attempt), self._first(1)
                times = profile(self.reference, first, quantized=made, runs=self._profile_runs)
            except IncTbError as error:
                trial.notes.append(f"not profiled: {error}")
        with SummaryWriter(folder) as writer:
            if is_made and self._diagnosis_samples:
                try:
                    found = self.diagnosis(attempt)
                    writer.add_diagnosis(times.join(found) if times is not None else found)
                except IncTbError as error:
                    trial.notes.append(f"not diagnosed: {error}")
            if times is not None:
                writer.add_profile(times)
            trial.wall_s = time.monotonic() - began
            writer.add_trial(trial)

    def accuracy(self, model: Any) -> float:
        return finite_number(self.evaluated(model), "evaluate")

    def evaluated(self, model: Any) -> float:
        """What the user's function says; a ruined model's loss may be infinite."""
        self.evaluations += 1
        return as_number(_told("evaluate", self._evaluate, self._shown(model)), "evaluate")

    def _shown(self, model: Any) -> Any:
        return self.quantizer.shown(model) if hasattr(self.quantizer, "shown") else model

    def _objective(self, name: str, function: Evaluate, model: Any) -> float:
        return finite_number(_told(f"objective {name}", function, self._shown(model)), name)

    def save(self, attempt: Attempt) -> None:
        """As the best model so far."""
        try:
            stored(self.quantized(attempt), self.best_model)
            if is_file(self.reference):
                stored(self.reference, self.prepared)  # from which the recipe makes it
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

    # What strategies ask

    def quantized(self, attempt: Attempt) -> Any:
        """The model of an attempt; the last few are kept."""
        key = key_of(attempt)
        if key not in self._made:
            while len(self._made) >= _MODELS_KEPT:
                forgotten = self._made.pop(next(iter(self._made)))
                if is_file(forgotten):
                    remove(forgotten)
            target = Path(self._folder.name, f"{key}{self._suffix}")
            self.quantizations += 1
            try:
                made = self.quantizer.quantize(self.reference, target, self.batches, attempt.settings, attempt.keep)
            except IncTbError:
                raise
            except Exception as error:  # a quantizer of others may raise anything
                raise ModelError(f"the quantizer failed: {type(error).__name__}: {error}") from error
            self._made[key] = target if made is None else made
        return self._made[key]

    def units(self, attempt: Attempt) -> list[str]:
        switches = open_switches(self.reference, self.quantized(attempt))
        switches.trace(self._sample[0])
        return [unit.name for unit in switches.units]

    def diagnosis(self, attempt: Attempt) -> Diagnosis:
        """On few samples: enough to see what is wrong, cheap enough for every trial."""
        key = key_of(attempt)
        if key not in self._diagnoses:
            batches = self._first(self._diagnosis_samples or _SCREEN_SAMPLES)
            found = diagnose(self.reference, self.quantized(attempt), batches)
            found.reference = name_of(self.model())
            found.quantized = f"{found.reference}, quantized" + (
                f", {len(attempt.keep)} ops in fp32" if attempt.keep else ""
            )
            self._diagnoses = {key: with_kept(found, attempt.keep)}
        return self._diagnoses[key]

    def simulation(self, attempt: Attempt, samples: int = _SAMPLES) -> Simulation:
        key = f"{key_of(attempt)}-{samples}"
        if key not in self._simulations:
            other = next((s for k, s in self._simulations.items() if k.startswith(key_of(attempt))), None)
            model = other.model if other is not None else open_switches(self.reference, self.quantized(attempt))
            made = Simulation(model, self._sample, samples=samples)
            made.remember(Journal(self.logdir / SIMULATIONS / f"{key}.jsonl"), key + self.model_digest)
            self._simulations[key] = made
        return self._simulations[key]

    def forget_simulations(self, but: Attempt) -> None:
        kept = {key: s for key, s in self._simulations.items() if key.startswith(key_of(but))}
        self._simulated += sum(s.evaluations for key, s in self._simulations.items() if key not in kept)
        self._simulations = kept

    def real_error(self, attempt: Attempt, simulation: Simulation) -> float:
        """Of a really quantized model's results, on the samples of the simulation."""
        run = open_results(self.quantized(attempt))
        return simulation.compared([run(batch) for batch in simulation.batches]).error

    def log_probed(self, trial: Trial, diagnosis: Diagnosis) -> None:
        """The diagnosis of a trial once more, with what the simulation has found out since."""
        from inc_tb.events import SummaryWriter, load

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
        return Path(self._model) if isinstance(self._model, str | PathLike) else self.reference

    def _named_objectives(self, given: Objectives) -> dict[str, Evaluate]:
        if isinstance(given, Mapping):
            return dict(given)
        known: dict[str, tuple[str, Evaluate]] = {
            "size": ("size_kb", measure_size),
            "latency": ("latency_ms", lambda model: measure_latency(model, self._first(1)[0])),
            "throughput": ("samples_per_s", lambda model: measure_throughput(model, self._first(_SAMPLES)[0])),
            "memory": ("memory_mb", lambda model: measure_memory(model, self._first(1)[0])),
        }
        found: dict[str, Evaluate] = {}
        for objective in given:
            if callable(objective):
                found[getattr(objective, "__name__", type(objective).__name__)] = objective
            elif objective in known:
                name, function = known[objective]
                found[name] = function
            elif ":" in objective:
                found[objective.rpartition(":")[2]] = load_function(*split_function(objective))
            else:
                expected = f"{', '.join(known)} or file.py:function"
                raise UsageError(f"objective {objective!r} was given; expected {expected}.")
        return found


def calibration_data(model: Any, given: Any, samples: int | None) -> Data:
    """Batches as the model takes them, which can be gone through again and again; files are read anew each time."""
    inputs = read_inputs(model)
    if isinstance(given, str | PathLike):
        given = open_data(given, inputs, _BATCH)
    elif is_one_batch(given):
        given = cut(as_batch(given, inputs), _BATCH, inputs)
    elif not isinstance(given, Data):
        given = list(given)
    data = given if isinstance(given, Data) else Data(lambda: given)
    data = data.first(samples)
    wanted = {i.name: i.dtype for i in inputs if i.is_known}

    def fitted(batch: Any) -> Batch:
        arrays = as_batch(batch, inputs)
        return {name: _as_dtype(name, array, wanted.get(name, array.dtype)) for name, array in arrays.items()}

    first = next(iter(data), None)
    if first is None:
        raise DataError("the calibration data has no samples; expected at least one batch. Check the data source.")
    check_fit(as_batch(first, inputs), inputs)
    bad = [name for name, a in as_batch(first, inputs).items() if a.dtype.kind == "f" and not np.isfinite(a).all()]
    if bad:
        raise DataError(
            f"the calibration data has NaN or infinite values in {', '.join(bad)}; expected finite numbers."
        )
    return Data(lambda: map(fitted, data))


def _as_dtype(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    try:
        return np.asarray(array, dtype, order="C")
    except (ValueError, TypeError) as error:  # text
        raise MismatchError(
            f"the array {name} holds {array.dtype}, the model expects {dtype}. Convert the data."
        ) from error


def key_of(attempt: Attempt) -> str:
    told = msgspec.json.encode([sorted(attempt.settings.items()), sorted(attempt.keep)])
    return hashlib.sha256(told).hexdigest()[:16]


def stored(model: Any, target: Path) -> Path:
    """All of the file, or of the folder, is there, or what was there before."""
    is_folder = is_file(model) and model.is_dir()
    if target.is_dir() and not is_folder:
        raise UsageError(f"{target}: is a folder; expected a file to write to. Choose another place.")
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.part")
    remove(beside)
    save_model(model, beside)
    if is_folder:
        remove(target)
    return beside.replace(target)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_file(model: Any) -> bool:
    return isinstance(model, Path)


def suffix_of(model: Any) -> str:
    return model.suffix if is_file(model) else ".pt"


def suffix_by(quantizer: Quantizer, prepared: Any) -> str:
    """Of the models that a quantizer makes."""
    found: str = getattr(quantizer, "suffix", suffix_of(prepared))
    return found


def name_of(model: Any) -> str:
    return str(model.name) if is_file(model) else type(model).__name__


def _told(what: str, function: Evaluate, model: Any) -> Any:
    """What a function of the user returns for a model, which it gets as a path if it is a file."""
    try:
        return function(str(model) if is_file(model) else model)
    except Exception as error:  # the user's own code may raise anything
        kind = {".onnx": "the path of an ONNX model", ".tflite": "the path of a TFLite model"}
        given = kind.get(suffix_of(model), "the model")
        raise UsageError(
            f"{what} failed on {name_of(model)}: {type(error).__name__}: {error}. It gets {given} and must return a "
            "number."
        ) from error


def as_number(value: Any, what: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{what} returned {value!r}; expected a finite number.") from None


def finite_number(value: Any, what: str) -> float:
    found = as_number(value, what)
    if not math.isfinite(found):
        raise UsageError(f"{what} returned {value!r}; expected a finite number.")
    return found
