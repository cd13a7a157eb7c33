"""Trials until the accuracy criterion holds: each is a quantization, its accuracy, and a run in TensorBoard.

What a strategy wants to try next depends on nothing but what came of its earlier trials. A search that was
interrupted therefore goes on by running the strategy again and answering from the history what is known already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from inc_tb.data import is_one_batch, load_function, split_function
from inc_tb.engines.models import open_model
from inc_tb.engines.named import On, opened
from inc_tb.errors import ModelError, UsageError
from inc_tb.frameworks.carried import Example
from inc_tb.frameworks.ops import Array
from inc_tb.frameworks.protocols import Quantizer
from inc_tb.locks import TemporaryFolder
from inc_tb.profiling.benchmark import Speed, as_told
from inc_tb.records import Trial, brief, plural
from inc_tb.search.comparison import Comparison
from inc_tb.shown import Shown
from inc_tb.store.hold import TUNING, held_alone
from inc_tb.store.workspace import make_newest
from inc_tb.tuning.attempt import Attempt, key_of
from inc_tb.tuning.calibration import calibration_data
from inc_tb.tuning.criterion import Criterion
from inc_tb.tuning.elsewhere import Asked, TrialsElsewhere
from inc_tb.tuning.files import is_file, stored, suffix_by
from inc_tb.tuning.history import History
from inc_tb.tuning.left_over import left_by_tool
from inc_tb.tuning.objectives import LATENCY, OPS, Evaluate, Objectives
from inc_tb.tuning.quantizers import find_quantizer
from inc_tb.tuning.runner import TrialRunner
from inc_tb.tuning.standings import ALIKE
from inc_tb.tuning.strategies.named import find_strategy
from inc_tb.tuning.strategies.workbench import Strategy

_LATER = ("op_types", "rewrites", "ranges")
"""Settings that older trials do not tell, because there were none."""
MOST_SEED = 2**32 - 1
"""What optimizers take."""
Calibration = str | PathLike[str] | Mapping[str, Array] | Array | Iterable[Any]


@dataclass(repr=False)
class Tuned(Shown):
    """What a tuning has found. `best` is the cheapest that meets the criterion, or else loses the least."""

    _card = "trials:tuned_card"

    baseline: float
    target: float
    met: bool
    best: Trial
    model: Path
    """Where the best model is saved: as a file to run, or for PyTorch the state_dict of `quantized`."""
    reason: str
    """Why it ended there."""
    trials: list[Trial] = field(default_factory=list)
    quantizations: int = 0
    evaluations: int = 0
    simulations: int = 0
    """Subsets that were evaluated in the simulated model."""
    wall_s: float = 0.0
    comparison: dict[str, Comparison] = field(default_factory=dict)
    """The outputs of fp32, of the simulation of all int8, and of the real one, where there was a simulation."""
    recipe: str = ""
    """The config of the best trial for the tool that made it."""
    quantized: Any = None
    """The best model itself, or its path."""
    tool: str = ""
    """The class of the quantizer that made it."""
    reference: Any = field(default=None, repr=False)
    """The fp32 model, as it was given."""
    examples: list[Example] = field(default_factory=list)
    """What the model was calibrated with: names, types and shapes."""
    benchmark: list[Speed] = field(default_factory=list)
    """Latency and throughput of fp32 and of the best model, by the size of the batches."""
    minimize: str = OPS
    """What is as small as was found: the name of an objective, or "ops"."""
    baseline_objectives: Mapping[str, float] = field(default_factory=dict)
    """Those of the fp32 model."""
    front: list[str] = field(default_factory=list)
    """Trials, and "fp32", of which none is both more accurate and cheaper; the cheapest first."""

    @property
    def all_int8(self) -> Trial | None:
        """The first trial with nothing in fp32."""
        return next((t for t in self.trials if not t.fallback and t.accuracy is not None), None)

    @property
    def int8_pays(self) -> bool | None:
        """Whether any model that meets the criterion takes less time than fp32, or if none does, any that was tried.

        By more than what is noise. None where they were not timed.
        """
        fp32 = self.baseline_objectives.get(LATENCY)
        of_interest = [trial for trial in self.trials if trial.is_met or not self.met]
        times = [trial.objectives[LATENCY] for trial in of_interest if LATENCY in trial.objectives]
        return ALIKE * min(times) < fp32 if times and fp32 is not None else None

    def __repr__(self) -> str:
        holds = "the criterion holds" if self.met else "the criterion does not hold"
        kept = f"{plural(len(self.best.fallback), 'op')} in fp32"
        number = "no accuracy" if self.best.accuracy is None else f"{self.best.accuracy:.6g}"
        against = f"fp32 {self.baseline:.6g}, wanted {self.target:.6g}"
        told = f"{brief(self.best.name)} has {number} ({against}), {kept}"
        return f"<Tuned: {holds}; {told}, {plural(len(self.trials), 'trial')}>"

    def to_json(self) -> dict[str, Any]:
        """What `inc-tb tune --json` prints."""

        def of(trial: Trial) -> dict[str, Any]:
            return {
                "trial": trial.name, "accuracy": trial.accuracy, "fallback": trial.fallback,
                "objectives": trial.objectives, "wall_s": trial.wall_s, "config": trial.config, "notes": trial.notes,
                "int8_macs": trial.int8_macs,
            }  # fmt: skip

        names = (
            "baseline", "target", "met", "reason", "quantizations", "evaluations", "simulations", "wall_s", "recipe",
            "minimize", "front", "int8_pays",
        )  # fmt: skip
        found = {name: getattr(self, name) for name in names}
        found["baseline_objectives"] = dict(self.baseline_objectives)
        found["comparison"] = msgspec.to_builtins(self.comparison)
        found["benchmark"] = as_told(self.benchmark)
        return {**found, "model": str(self.model), "best": of(self.best), "trials": [of(t) for t in self.trials]}


def tune(
    model: Any,
    calibration: Calibration,
    evaluate: str | Evaluate,
    *,
    tolerance: float = 0.01,
    relative: bool = True,
    higher_is_better: bool = True,
    strategy: str | Strategy = "probe",
    max_trials: int = 100,
    timeout: float = 0,
    objectives: Objectives = ("latency", "size"),
    quantizer: str | Quantizer | None = None,
    logdir: str | PathLike[str] = "nc_workspace",
    resume: bool = False,
    samples: int | None = None,
    probe_s: float = 60.0,
    diagnosis_samples: int = 8,
    profile_runs: int = 0,
    batch_sizes: Sequence[int] | None = None,
    random_seed: int = 0,
    minimize: str | None = None,
    rewrite: bool = True,
    progress: Callable[[Trial, bool], None] | None = None,
    probing: Callable[[int, int], None] | None = None,
    on: On | None = None,
) -> Tuned:
    """Find the cheapest quantized model whose accuracy holds, and prove it.

    `calibration` is data as for `diagnose`; `evaluate` gets the path of a candidate model (PyTorch: the module itself)
    and returns its accuracy, or is "file.py:function". A `timeout` of 0 stops at the first trial that meets the
    criterion; a number of seconds is used up for a better one. `strategy` is a name, an object as inc_tb.Strategy
    describes it, or "file.py:function"; `quantizer` is an object as inc_tb.Quantizer describes it, or
    "file.py:function" that returns one. Every trial is a run below `logdir`; with `resume` a
    tuning that was interrupted goes on there. `samples` limits the calibration data, `probe_s` the time for the
    simulation, `diagnosis_samples` what each trial is diagnosed with (0: not at all), and `profile_runs` is how often
    it is run to time its ops (0: not at all). `objectives` are measured for every trial: "latency", "throughput",
    "size", "memory", or functions like `evaluate`. `minimize` says which of them is to be small: "latency" unless told
    otherwise, where it is measured, or "ops", the number of ops in fp32; with anything but "ops" the search goes on
    after the first trial that meets the criterion as long as it sees something cheaper. With `rewrite` it may change
    the fp32 model without changing what it computes. `batch_sizes` are those for which the best model is timed beside
    fp32 in the end: 1 and 16 unless no trial was timed. `random_seed` is for strategies that draw at random: the same
    one makes the same trials. `progress` is called after each trial, and told whether it is the best so far; `probing`
    with the subsets simulated and how many there may be when the time is over. With `on`, trials that do not depend on
    each other are carried out side by side: by "processes:4", "ray://…", "dask://…", or an executor.
    """
    limits = (
        ("tolerance", tolerance, 0), ("max_trials", max_trials, 1), ("timeout", timeout, 0),
        ("profile_runs", profile_runs, 0), ("random_seed", random_seed, 0),
        *(("batch_sizes", size, 1) for size in batch_sizes or ()),
    )  # fmt: skip
    for name, value, least in limits:
        if value < least:
            raise UsageError(f"{name}={value} was given; expected {least} or more.")
    if random_seed > MOST_SEED:
        raise UsageError(f"random_seed={random_seed} was given; expected at most {MOST_SEED}.")
    strategy_name, chosen = find_strategy(strategy)
    told = evaluate
    if on is not None:
        if not isinstance(calibration, str | PathLike) and not is_one_batch(calibration):
            calibration = list(calibration)  # also for the workers
        asked = Asked(
            model, calibration, told, Criterion(tolerance, relative, higher_is_better), quantizer, objectives, samples,
            diagnosis_samples, profile_runs, random_seed, minimize,
        )  # fmt: skip
        model = open_model(model)
    if not callable(evaluate):
        evaluate = load_function(*split_function(evaluate))
    runner = TrialRunner(
        model, calibration, evaluate, Criterion(tolerance, relative, higher_is_better),
        quantizer=find_quantizer(quantizer, model), objectives=objectives,
        logdir=Path(logdir), samples=samples, probe_s=probe_s, diagnosis_samples=diagnosis_samples,
        profile_runs=profile_runs, probing=probing, random_seed=random_seed, minimize=minimize, rewrite=rewrite,
    )  # fmt: skip
    about = {
        "strategy": strategy_name, "model": runner.model_digest, "samples": samples, "probe_s": probe_s,
        "criterion": vars(runner.criterion), "settings": dict(runner.quantizer.settings),
        "calibration": runner.data_digest(), "diagnosis_samples": diagnosis_samples,
        "random_seed": random_seed, "minimize": minimize or "", "rewrite": rewrite,
    }  # fmt: skip
    if isinstance(told, str | PathLike):
        about["evaluate"] = str(Path(told).absolute())
    places = {"model": model, "calibration": calibration}
    given = {name: str(Path(p).absolute()) for name, p in places.items() if isinstance(p, str | PathLike)}
    with held_alone(Path(logdir), TUNING), runner, ExitStack() as stack:
        history = History(Path(logdir), about, {**given, "samples": samples}, resume=resume)
        workers = None
        if on is not None:
            engine = stack.enter_context(opened(on))
            workers = TrialsElsewhere(engine, asked, runner, lambda key: history.trial(key) is not None)
            stack.callback(workers.forget)
        found = _search(runner, history, (strategy_name, chosen), max_trials, timeout, progress, workers)
        found.benchmark = runner.speeds(found.quantized, batch_sizes)
        return found


def _search(
    runner: TrialRunner,
    history: History,
    strategy: tuple[str, Strategy],
    max_trials: int,
    timeout: float,
    progress: Callable[[Trial, bool], None] | None,
    workers: TrialsElsewhere | None,
) -> Tuned:
    began = time.monotonic()
    if history.baseline is None:
        history.set_baseline(*runner.measure_reference())
    runner.set_baseline(history.baseline or 0.0, history.baseline_objectives)
    name, start = strategy
    attempts = start(runner)
    tried: dict[str, Attempt] = {}
    is_new = False
    reason = ""
    try:
        attempt = next(attempts)
        while not reason:
            trial = history.trial(key_of(attempt))
            if trial is None:
                with runner.budget.paused():
                    trial = (workers or runner).carry_out(attempt, history.next_name())
                    if attempt.proves is not None and runner.is_met(trial):
                        attempt.proves()
                history.add(key_of(attempt), trial)
                is_new = True
            runner.trials.append(trial)
            tried[trial.name] = attempt
            # While trials are answered from the history, a better model may be on disk already; workers do not wait.
            if is_new and workers is None:
                _save_best(runner, history, tried)
            if progress is not None:
                progress(trial, runner.best is trial)
            reason = _why_stop(runner, trial, attempt, max_trials, timeout, time.monotonic() - began)
            if not reason:
                attempt = attempts.send(trial)
    except StopIteration:
        reason = f"the strategy {name} has nothing more to try"
    except ModelError as error:
        reason = str(error)
        if not runner.trials:
            raise
    except KeyboardInterrupt:
        reason = "interrupted, and can be resumed"
        if not runner.trials:
            raise
    _save_best(runner, history, tried)
    make_newest(runner.logdir / runner.best.name)  # a model may be a folder, too
    return _tuned(runner, tried, reason, time.monotonic() - began)


def _save_best(runner: TrialRunner, history: History, tried: Mapping[str, Attempt]) -> None:
    best = runner.best
    if history.saved != best.name or not runner.best_model.exists():
        runner.save(tried[best.name])
        history.mark_saved(best.name)


def _why_stop(
    runner: TrialRunner, trial: Trial, attempt: Attempt, max_trials: int, timeout: float, elapsed: float
) -> str:
    if timeout <= 0 and runner.is_met(trial) and not attempt.goes_on:
        return "the first trial that meets the criterion ends the search"
    if len(runner.trials) >= max_trials:
        return f"all {max_trials} trials are used up" if max_trials > 1 else "the only trial is used up"
    return f"the {timeout:g} s are used up" if 0 < timeout < elapsed else ""


def _tuned(runner: TrialRunner, tried: Mapping[str, Attempt], reason: str, wall_s: float) -> Tuned:
    best, target = runner.best, runner.criterion.target(runner.baseline)
    met = runner.is_met(best)
    if not met:
        sign = "at least" if runner.criterion.higher_is_better else "at most"
        has = "no accuracy" if best.accuracy is None else f"{best.accuracy:.4g}"
        reason = f"the best has {has}, {sign} {target:.4g} is wanted; {reason}"
        left = next((t for t in runner.trials if t.left_by_tool is not None), None)
        if left is not None and left.left_by_tool is not None:
            reason += f"; {left_by_tool(left.left_by_tool, len(left.fallback))} ({left.name})"
    return Tuned(
        runner.baseline, target, met, best, runner.best_model, reason, runner.trials, runner.quantizations,
        runner.evaluations, runner.simulated, wall_s, runner.comparison,
        _start_of_recipe(runner, best) + runner.quantizer.recipe(best.config, best.fallback),
        runner.best_quantized(tried[best.name]), type(runner.quantizer).__name__, runner.given, runner.examples,
        minimize=runner.minimize, baseline_objectives=runner.baseline_objectives,
        front=runner.front,
    )  # fmt: skip


def _start_of_recipe(runner: TrialRunner, best: Trial) -> str:
    count = len(best.config.get("rewrites") or ())
    run = str(runner.logdir / best.name)
    if is_file(runner.reference):
        told = f"# with the {plural(count, 'rewrite')} of {run}\n" if count else ""
        return f"{told}model_input = {str(runner.prepared)!r}  # your model, as it was quantized\n"
    if not count:
        return ""
    return f"import inc_tb\n\nmodel = inc_tb.apply(model, {run!r})  # {plural(count, 'rewrite')}\n"


def rebuild(
    model: Any,
    calibration: Calibration,
    trial: Trial,
    target: str | PathLike[str] | None = None,
    *,
    logdir: str | PathLike[str] = "nc_workspace",
    samples: int | None = None,
    quantizer: str | Quantizer | None = None,
) -> Path:
    """The model of a trial once more, from what its record says; without a `target` beside the trial's run."""
    tool = find_quantizer(quantizer, model, trial.config)
    settings = {**{name: tool.settings[name] for name in _LATER if name in tool.settings}, **trial.config}
    if set(settings) != set(tool.settings):
        raise UsageError(
            f"{trial.name}: its config has {sorted(trial.config)}, this quantizer takes {sorted(tool.settings)}. "
            "Rebuild a trial with the quantizer that made it."
        )
    with TemporaryFolder() as folder:
        prepared = tool.prepare(model, Path(folder))
        data = calibration_data(prepared, calibration, samples)
        suffix = suffix_by(tool, prepared)
        place = Path(folder, f"rebuilt{suffix}")
        made = tool.quantize(prepared, place, data, settings, trial.fallback)
        # A folder needs a name of its own beside that of the run.
        beside = Path(logdir, f"{trial.name}{suffix or '-model'}")
        written = stored(place if made is None else made, beside if target is None else Path(target))
    make_newest(Path(logdir, trial.name))
    return written
