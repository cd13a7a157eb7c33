"""`inc-tb tune --rebuild`: the model of a logged trial once more, of a tuning of ours or of Neural Compressor's."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from inc_tb.commands.runs import run_folder
from inc_tb.commands.terminal import print_json, say
from inc_tb.engines.models import open_model
from inc_tb.errors import DataError, UsageError
from inc_tb.frameworks.protocols import Quantizer
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.records import Trial
from inc_tb.sources.neural_compressor.rebuilding import is_foreign, translated
from inc_tb.store.eventfile import event_files
from inc_tb.store.reader import load


def rebuild_trial(
    name: str, model: str | None, data: str | None, logdir: Path, output: Path | None, quantizer: str | None,
    as_json: bool,
) -> int:  # fmt: skip
    from inc_tb.tuning.loop import rebuild

    trial, given, diagnosis = _found(logdir, name)
    told, calibration = model or given.get("model"), data or given.get("calibration")
    if told is None or calibration is None:
        raise UsageError(f"{logdir}: does not say which model and data the tuning had; give MODEL and --data.")
    for what, option, place, is_given in (("model", "MODEL", told, model), ("data", "--data", calibration, data)):
        if not is_given:
            _refuse_code(what, option, place)
    samples, opened = given.get("samples"), open_model(told)
    tool: str | Quantizer | None = quantizer
    notes: list[str] = []
    is_theirs = quantizer is None and is_foreign(trial)
    if is_theirs:
        tool, trial, samples, notes = translated(trial, diagnosis, opened)
    for note in notes:
        say(f"note: {note}")
    target = rebuild(opened, calibration, trial, output, logdir=logdir, samples=samples, quantizer=tool)
    if as_json:
        made = {"model": str(target), "fallback": trial.fallback, "config": trial.config, "notes": notes}
        print_json({"trial": name, **made})
    else:
        kept = ", ".join(trial.fallback) or "nothing"
        say(f"Wrote {target}: {name}, {_accuracy(trial, is_theirs)}, kept in fp32: {kept}.")
    return 0


def _accuracy(trial: Trial, is_theirs: bool) -> str:
    told = "no number" if trial.accuracy is None else f"{trial.accuracy:.4f}"
    return f"whose accuracy as Neural Compressor made it was {told}" if is_theirs else f"accuracy {told}"


def _refuse_code(what: str, option: str, place: str) -> None:
    """What the log names is read, but no code of it is run."""
    if ".py:" in place:
        raise UsageError(
            f"the log names code for the {what} ({place}), which is run only if it is given; if you trust it, give "
            f"{option}."
        )


def _found(logdir: Path, name: str) -> tuple[Trial, dict[str, Any], Diagnosis | None]:
    """From the history of a tuning, or else from the run of that name."""
    from inc_tb.tuning.history import FILE, find_trial

    folder = run_folder(logdir, name, option="--rebuild")
    has_run = folder.is_dir() and bool(event_files(folder))
    if (logdir / FILE).exists() and not (has_run and folder.parent != logdir):
        return *find_trial(logdir, name), None
    if not has_run:
        raise _no_such(logdir, name)
    run = load(folder)
    if run.trial is None:
        raise DataError(f"{folder}: is not the run of a trial; expected one such as trial-001.")
    if folder.parent != logdir and (folder.parent / FILE).exists():
        return *find_trial(folder.parent, folder.name), None
    return run.trial, {}, run.diagnosis if run.diagnoses else None


def _no_such(logdir: Path, name: str) -> UsageError:
    runs = sorted(
        path.parent.relative_to(logdir).as_posix() for path in logdir.glob("**/trial-*/events.out.tfevents.*")
    )
    names = list(dict.fromkeys(runs))
    if not names:
        return UsageError(
            f"{logdir}: holds no tuning; expected a folder that inc-tb tune or inc-tb import has written."
        )
    wanted = Path(name).name
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.8) or [n for n in names if Path(n).name == wanted][:3]
    return UsageError(
        f"{name}: no such trial in {logdir}; expected one of its {len(names)}, such as {', '.join(close or names[:3])}."
    )
