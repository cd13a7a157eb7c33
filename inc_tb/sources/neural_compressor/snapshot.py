"""history.snapshot: every config that was tried, and what came of it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from inc_tb.errors import DataError
from inc_tb.records import Trial
from inc_tb.sources.neural_compressor.trials import Goal, accuracy_of, as_trial, gap_notes, number_of, text_of
from inc_tb.sources.pickles import Unknown, read_pickle

_FRAMEWORKS = {"onnx": "onnx", "pytorch": "torch", "torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow"}
_FRAMEWORKS |= {"mxnet": "mxnet"}
_MOST_TRIALS = 1_000_000
_BASELINE = re.compile(r"FP32 baseline is: \[Accuracy: ([-+.\de]+)")
_RESULT = re.compile(r"Tune (\d+) result is: \[Accuracy \(int8\|fp32\): ([^|,\]]+)\|([^|,\]]+)(.*)")
_BEST = re.compile(r"Best tune result is: \[Accuracy: ([-+.\de]+)")


class TriedConfig(NamedTuple):
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
    attempts: list[TriedConfig]


def framework_named(name: str) -> str:
    """In our words: onnx for onnxruntime, onnxrt_qlinearops …; "" where it is none that we know."""
    return next((ours for theirs, ours in _FRAMEWORKS.items() if name.lower().startswith(theirs)), "")


def read_history(path: Path) -> list[Session]:
    found = read_pickle(path)
    sessions = found.state.get("tuning_history") if isinstance(found, Unknown) else None
    if not isinstance(sessions, list) or not all(isinstance(session, dict) for session in sessions):
        raise DataError(f"{path}: holds no tuning history; expected a history.snapshot of Neural Compressor.")
    return [_session(session) for session in sessions]


def read_log(path: Path) -> list[Session]:
    """What its log says about trials, rounded as it is printed; one session for each baseline."""
    found: list[Session] = []
    for line in path.read_text("utf-8", "replace").splitlines():
        baseline, told = _BASELINE.search(line), _RESULT.search(line)
        if baseline or (told and not found):
            found.append(Session("", Goal(number_of(baseline[1] if baseline else told and told[3])), None, []))
        if told:
            session = found[-1]
            name = _free(f"trial-{int(told[1][-6:]):03d}", session.attempts)
            trial = as_trial(name, session.goal, number_of(told[2]), {})
            trial.target, trial.config = None, {}
            trial.notes.append("read off a log: four digits, and neither its config nor its fallback set")
            session.attempts.append(TriedConfig(name, trial))
            best = _BEST.search(told[4])
            found[-1] = session._replace(best=number_of(best[1]) if best else session.best)
    return [session for session in found if session.attempts]


def place_of(number: int) -> str:
    """Where the trials of a session go, counted from 1: the first one stays where it is when others come."""
    return f"session-{number}/" if number > 1 else ""


def _free(name: str, attempts: Sequence[TriedConfig]) -> str:
    taken = {attempt.name for attempt in attempts}
    return next(
        n for count in range(1, len(taken) + 2) if (n := name if count == 1 else f"{name}-{count}") not in taken
    )


def _session(stored: Mapping[str, Any]) -> Session:
    general = _find(stored.get("cfg"), "PostTrainingQuantConfig", "QuantizationAwareTrainingConfig")
    asked, tuning = (_find(general, name) for name in ("AccuracyCriterion", "TuningCriterion"))
    tolerable = number_of(asked.get("tolerable_loss"))
    goal = Goal(
        accuracy_of(stored.get("baseline")),
        0.01 if tolerable is None else tolerable,
        asked.get("criterion", "relative") != "absolute",
        asked.get("higher_is_better") is not False,
    )
    wanted = tuning.get("objective", "performance")
    objectives = [text_of(name) for name in (wanted if isinstance(wanted, list | tuple) else [wanted])]
    config = {
        "tool": f"Neural Compressor {text_of(stored.get('version'))}".strip(),
        "strategy": text_of(tuning.get("strategy")),
        "approach": text_of(general.get("approach")),
        "quant_format": text_of(general.get("quant_format")),
        **reduce_range_of(general),
    }
    attempts: list[TriedConfig] = []
    entries = stored.get("history")
    for place, entry in enumerate(entries if isinstance(entries, list) else (), start=1):
        if isinstance(entry, dict) and isinstance(entry.get("tune_cfg"), dict):
            attempts.append(_attempt(entry, place, goal, objectives, config, attempts))
    framework = framework_named(text_of(general.get("framework")))
    return Session(framework, goal, accuracy_of(stored.get("best_tune_result")), attempts)


def _attempt(
    entry: Mapping[str, Any], place: int, goal: Goal, objectives: list[str], config: dict[str, Any],
    before: Sequence[TriedConfig],
) -> TriedConfig:  # fmt: skip
    tune_cfg, q_config = entry["tune_cfg"], entry.get("q_config")
    told = number_of(tune_cfg.get("trial_number"))
    number = int(told) if told is not None and 0 <= told < _MOST_TRIALS else place
    name = _free(f"trial-{number:03d}", before)
    whole = {**config, **reduce_range_of(q_config)}
    trial = as_trial(name, goal, entry.get("tune_result"), tune_cfg, objectives, whole)
    trial.notes += gap_notes(number, place)
    return TriedConfig(name, trial, tune_cfg, q_config if isinstance(q_config, dict) else {})


def reduce_range_of(config: Any) -> dict[str, bool]:
    """Whether one bit was left unused, for which it asks the processor unless told."""
    told = config.get("reduce_range") if isinstance(config, dict) else None
    return {"reduce_range": told} if isinstance(told, bool) else {}


def _find(config: Any, *names: str) -> dict[str, Any]:
    """The settings of the first object of one of these classes, without the underscores of its attributes."""
    waiting, seen = deque([config]), set()
    while waiting:
        value = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Unknown):
            settings = {key.lstrip("_"): item for key, item in value.state.items()}
            if value.name.rpartition(".")[2] in names:
                return settings
            waiting.extend(settings.values())
        elif isinstance(value, dict):
            waiting.extend(value.values())
    return {}
