"""history.snapshot: every config that was tried, and what came of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from inc_tb.errors import DataError
from inc_tb.importers.neural_compressor.trials import Goal, as_trial, gap_notes, number_of
from inc_tb.importers.pickles import Unknown, read_pickle
from inc_tb.records import Trial

_FRAMEWORKS = {"onnx": "onnx", "pytorch": "torch", "torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow"}
_FRAMEWORKS |= {"mxnet": "mxnet"}
_BASELINE = re.compile(r"FP32 baseline is: \[Accuracy: ([-+.\de]+)")
_RESULT = re.compile(r"Tune (\d+) result is: \[Accuracy \(int8\|fp32\): ([-+.\de]+)\|([-+.\de]+)(.*)")
_BEST = re.compile(r"Best tune result is: \[Accuracy: ([-+.\de]+)")


class Attempt(NamedTuple):
    """One config that was quantized."""

    name: str
    trial: Trial
    tune_cfg: Mapping[Any, Any] = {}
    q_config: Mapping[Any, Any] = {}


class Session(NamedTuple):
    """The attempts with one configuration by the user."""

    framework: str
    goal: Goal
    best: float | None
    """The accuracy of the best attempt that meets the goal, as Neural Compressor has it."""
    attempts: list[Attempt]


def framework_of(name: str) -> str:
    """In our words: onnx for onnxruntime, onnxrt_qlinearops …; "" where it is none that we know."""
    return next((ours for theirs, ours in _FRAMEWORKS.items() if name.lower().startswith(theirs)), "")


def read_history(path: Path) -> list[Session]:
    found = read_pickle(path)
    sessions = found.state.get("tuning_history") if isinstance(found, Unknown) else None
    if not isinstance(sessions, list) or not all(isinstance(session, dict) for session in sessions):
        raise DataError(f"{path}: holds no tuning history; expected a history.snapshot of Neural Compressor.")
    return [_session(session) for session in sessions]


def read_log(path: Path) -> list[Session]:
    """What its log says about trials, rounded as it is printed; nothing where it says nothing."""
    baseline, best, attempts = None, None, []
    for line in path.read_text("utf-8", "replace").splitlines():
        if told := _BASELINE.search(line):
            baseline = number_of(told[1])
        if told := _RESULT.search(line):
            baseline = number_of(told[3])
            got = _BEST.search(told[4])
            best = number_of(got[1]) if got else best
            name = f"trial-{int(told[1]):03d}"
            trial = as_trial(name, Goal(baseline), number_of(told[2]), {})
            trial.target, trial.config = None, {}
            trial.notes.append("read off a log: four digits, and neither its config nor its fallback set")
            attempts.append(Attempt(name, trial))
    return [Session("", Goal(baseline), best, attempts)] if attempts else []


def _session(stored: Mapping[str, Any]) -> Session:
    general = _find(stored.get("cfg"), "PostTrainingQuantConfig", "QuantizationAwareTrainingConfig")
    asked, tuning = (_find(general, name) for name in ("AccuracyCriterion", "TuningCriterion"))
    tolerable = number_of(asked.get("tolerable_loss"))
    goal = Goal(
        _first(stored.get("baseline")),
        0.01 if tolerable is None else tolerable,
        asked.get("criterion", "relative") != "absolute",
        asked.get("higher_is_better") is not False,
    )
    wanted = tuning.get("objective", "performance")
    objectives = [str(name) for name in wanted] if isinstance(wanted, list | tuple) else [str(wanted)]
    config = {
        "tool": f"Neural Compressor {stored.get('version', '')}".strip(),
        "strategy": str(tuning.get("strategy", "")),
        "approach": str(general.get("approach", "")),
        "quant_format": str(general.get("quant_format", "")),
    }
    attempts: list[Attempt] = []
    entries = stored.get("history")
    for place, entry in enumerate(entries if isinstance(entries, list) else (), start=1):
        if isinstance(entry, dict) and isinstance(entry.get("tune_cfg"), dict):
            attempts.append(_attempt(entry, place, goal, objectives, config, {a.name for a in attempts}))
    framework = framework_of(str(general.get("framework", "")))
    return Session(framework, goal, _first(stored.get("best_tune_result")), attempts)


def _attempt(
    entry: Mapping[str, Any], place: int, goal: Goal, objectives: list[str], config: dict[str, Any], taken: set[str]
) -> Attempt:
    tune_cfg, q_config = entry["tune_cfg"], entry.get("q_config")
    number = number_of(tune_cfg.get("trial_number"))
    name = f"trial-{place if number is None else int(number):03d}"
    if name in taken:
        name = next(f"{name}-{count}" for count in range(2, place + 2) if f"{name}-{count}" not in taken)
    trial = as_trial(name, goal, entry.get("tune_result"), tune_cfg, objectives, config)
    trial.notes += gap_notes(int(number), place) if number is not None else []
    return Attempt(name, trial, tune_cfg, q_config if isinstance(q_config, dict) else {})


def _find(config: Any, *names: str) -> dict[str, Any]:
    """The settings of the first object of one of these classes, without the underscores of its attributes."""
    waiting = [config]
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, Unknown):
            settings = {key.lstrip("_"): item for key, item in value.state.items()}
            if value.name.rpartition(".")[2] in names:
                return settings
            waiting += settings.values()
        elif isinstance(value, dict):
            waiting += value.values()
    return {}


def _first(result: Any) -> float | None:
    accuracy = result[0] if isinstance(result, tuple | list) and result else result
    return number_of(accuracy[0] if isinstance(accuracy, list | tuple) and accuracy else accuracy)
