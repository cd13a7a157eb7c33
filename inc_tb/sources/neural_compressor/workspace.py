"""A workspace of Neural Compressor: what is in it, whatever of it is there, and the runs that come of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from inc_tb.errors import DataError, IncTbError
from inc_tb.frameworks.models import read_graph
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.records import GraphNode, listed
from inc_tb.sources.imported import Imported, ImportedRun
from inc_tb.sources.neural_compressor.diagnosed import NOTHING, Files, as_diagnosis, read_files
from inc_tb.sources.neural_compressor.dump import FOLDER, INT8
from inc_tb.sources.neural_compressor.layout import lacking
from inc_tb.sources.neural_compressor.snapshot import Session, TriedConfig, place_of, read_history, read_log
from inc_tb.sources.neural_compressor.tables import has_tables
from inc_tb.sources.neural_compressor.trials import fallback_of, op_configs, settings_of
from inc_tb.sources.pickles import read_if_there, why_unread
from inc_tb.sources.profiles import WORKSPACE as PROFILED
from inc_tb.sources.profiles import import_profile

HISTORY = "history.snapshot"
_MODELS = ("Optimized_model.onnx", "input_model.onnx")
_LOGS = (".log", ".txt")
_BEGINNING = 16 << 20
_PARAMETERS = re.compile(r"Total params:\s*([\d,]+)")
_STALE = (
    "the tensors that were dumped here are of none of the trials: their config is another one. They are a run of their "
    "own"
)
_Diagnose = Callable[..., Diagnosis | None]
_DEPLOYED = re.compile(r"^\s*(device|backend):\s*(\S+)\s*$", re.MULTILINE)


def find_workspaces(path: Path) -> Iterator[Path]:
    """The folders at or below a path that Neural Compressor has tuned or diagnosed in."""
    for place, folders, files in os.walk(path):
        folders.sort()
        here = Path(place)
        if is_workspace(here, files):
            folders[:] = [name for name in folders if name != FOLDER]
            yield here


def is_workspace(folder: Path, files: Sequence[str]) -> bool:
    if HISTORY in files or has_tables(folder, files) or (folder / FOLDER).is_dir():
        return True
    return any(tells_trials(folder / name) for name in files if name.endswith(_LOGS))


def read_workspace(folder: Path, name: str, graph: Sequence[GraphNode] = ()) -> Imported:
    """Whatever can be read of it; a file that cannot is a note. `graph` is of the fp32 model, for who reads whom."""
    found = Imported(name, folder)
    sessions = _sessions(folder, found)
    attempts = [attempt for session in sessions for attempt in session.attempts]
    unread: list[str] = []
    files, dumped_with = read_files(folder, unread), read_if_there(folder / FOLDER / "cfg.pkl", unread)
    found.note_unread(unread)
    framework = next((s.framework for s in sessions if s.framework), "") or _guess_framework(folder, files)
    configs = [dumped_with, *(attempt.tune_cfg for attempt in attempts)]
    ops = [*files.ops, *(op for config in configs for op, _, _ in op_configs(config))]
    graph = _that_fits(graph, ops, found.notes) or _stored_graph(folder, framework, found)
    diagnose = partial(as_diagnosis, framework=framework, graph=graph)
    dumped = None if files.is_empty else _dumped(attempts, dumped_with)
    _add_trials(found, sessions, diagnose, dumped, files)
    if dumped is None and not files.is_empty:
        _add_diagnosis(found, partial(diagnose, dumped_with, {}, files), has_trials=bool(attempts))
    _add_profile(folder, found)
    _add_notes(folder, found)
    return found


def _add_trials(
    found: Imported, sessions: Sequence[Session], diagnose: _Diagnose, dumped: TriedConfig | None, files: Files
) -> None:
    """`files` are of the attempt that was `dumped`."""
    folder = found.source
    settings = dict(_DEPLOYED.findall(_text(folder / "deploy.yaml")))
    for number, session in enumerate(sessions, start=1):
        for attempt in session.attempts:
            attempt.trial.config.update(settings)
            has_tensors = attempt is dumped
            made = partial(
                diagnose, attempt.tune_cfg, attempt.q_config, files if has_tensors else NOTHING,
                names=(_reference(folder), f"{folder.name}, {attempt.name}"),
            )  # fmt: skip
            place = f"{place_of(number)}{attempt.name}"
            found.runs.append(ImportedRun(place, attempt.trial, has_tensors=has_tensors, make=made))
            found.ops = sum(1 for _ in op_configs(attempt.tune_cfg)) or found.ops
        found.baseline = session.goal.baseline if session.goal.baseline is not None else found.baseline
        found.best = session.best if session.best is not None else found.best


def _add_diagnosis(found: Imported, diagnose: _Diagnose, *, has_trials: bool) -> None:
    """Of tensors that are of no trial."""
    folder = found.source
    run = ImportedRun("diagnosis", has_tensors=True, make=partial(diagnose, names=(_reference(folder), folder.name)))
    if run.diagnosis is not None:
        found.runs.append(run)
        found.ops = found.ops or run.diagnosis.ops.count
        found.notes += [_STALE] if has_trials else []


def _reference(folder: Path) -> str:
    return f"the fp32 model of {folder.name}"


def _dumped(attempts: Sequence[TriedConfig], config: Mapping[Any, Any]) -> TriedConfig | None:
    """The attempt whose tensors were dumped: a workspace may keep those of a diagnosis while others are tried in it."""
    if not config.get("op"):
        return attempts[0] if len(attempts) == 1 else None
    return next((attempt for attempt in reversed(attempts) if _told(attempt.tune_cfg) == _told(config)), None)


def _told(config: Mapping[Any, Any]) -> Any:
    ops = [(op, kind) for op, kind, _ in op_configs(config)]
    return ops, fallback_of(config), settings_of({"op": config.get("op")})


def _sessions(folder: Path, found: Imported) -> list[Session]:
    """From the history, or where there is none from a log."""
    if (folder / HISTORY).is_file():
        try:
            return read_history(folder / HISTORY)
        except (DataError, OSError) as error:
            found.note_unread([why_unread(folder / HISTORY, error)])
    for path in sorted(folder.iterdir()):
        if path.suffix in _LOGS and tells_trials(path):
            found.notes.append(f"there is no usable {HISTORY}; trials are those that {path.name} tells of")
            return read_log(path)
    return []


def _guess_framework(folder: Path, files: Files) -> str:
    if any(folder.glob("*.onnx")):
        return "onnx"
    if any(folder.glob("*.pb")) or any(str(name).endswith(INT8) for op in _weights(files).values() for name in op):
        return "tensorflow"
    return "torch" if any(folder.glob("*.pt")) or (folder / "model_summary.txt").exists() else ""


def _weights(files: Files) -> dict[str, Any]:
    weights = files.sides["quan"].get("weight")
    return {op: found for op, found in weights.items() if isinstance(found, dict)} if isinstance(weights, dict) else {}


def _that_fits(graph: Sequence[GraphNode], ops: Sequence[str], notes: list[str]) -> Sequence[GraphNode]:
    """Nothing where it is of another model."""
    missing = lacking(graph, ops) if graph else []
    if not missing:
        return graph
    told = f"{listed(missing)} of this workspace" if len(missing) < len(set(ops)) else "any op of this workspace"
    if 2 * len(missing) > len(set(ops)):
        notes.append(f"the model that was given does not have {told}, so it was not used; expected its fp32 model")
        return ()
    notes.append(f"the model that was given does not have {told}, which cannot be told about then")
    return graph


def _stored_graph(folder: Path, framework: str, found: Imported) -> Sequence[GraphNode]:
    """Of a model of ONNX that the workspace holds."""
    for path in (folder / name for name in _MODELS if framework == "onnx"):
        if path.is_file():
            try:
                return read_graph(path)
            except IncTbError as error:
                found.notes.append(f"{path.name} was not used: {error}")
    return ()


def _add_profile(folder: Path, found: Imported) -> None:
    if not any((folder / name).is_file() for name in PROFILED):
        return
    try:
        profile = import_profile(folder)
    except DataError as error:
        found.note_unread([str(error)])
        return
    found.runs.append(ImportedRun("profile", profile=profile))
    found.ops = found.ops or sum(bool(row.op) for row in profile.rows)
    found.notes += profile.notes


def _add_notes(folder: Path, found: Imported) -> None:
    """Those of its runs, each once; what differs in nothing but a number is told once."""
    told = [note for run in found.runs if run.has_tensors and run.diagnosis is not None for note in run.diagnosis.notes]
    told += [note for trial in found.trials for note in trial.notes]
    if counted := _PARAMETERS.search(_text(folder / "model_summary.txt")):
        told.append(f"the model has {counted[1]} parameters")
    seen = {re.sub(r"\d+", "#", note) for note in found.notes}
    for note in told:
        if (shape := re.sub(r"\d+", "#", note)) not in seen:
            seen.add(shape)
            found.notes.append(note)
    if not found.runs and not found.notes:
        found.notes.append("nothing was tried or dumped here yet.")


def tells_trials(path: Path) -> bool:
    """Whether it is a log of a tuning. The first trials are not far from the beginning."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return b" result is: [Accuracy (int8|fp32):" in file.read(_BEGINNING)


def _text(path: Path) -> str:
    return path.read_text("utf-8", "replace") if path.is_file() else ""
