"""Runs below a logdir: what they are called, and what they hold already."""

from __future__ import annotations

from glob import escape as escape_glob
from pathlib import Path

from inc_tb.data import split_function
from inc_tb.errors import IncTbError, UsageError
from inc_tb.frameworks.registry import framework_of
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.store.eventfile import readable_run


def name_of(model: str) -> str:
    """What a run is called by its model: int8 for int8.onnx, make_int8 for models.py:make_int8."""
    if ".py:" in model:
        return split_function(model)[1]
    return framework_of(model).run_name(Path(model))


def run_folder(logdir: Path, run: str | None, name: str = "", option: str = "--run") -> Path:
    """The named run, or one that is not there yet: another model with the same name does not mix with the first."""
    if run is not None:
        parts = Path(run).parts
        if not parts or Path(run).is_absolute() or ".." in parts:
            raise UsageError(f"{option} {run}: expected a name below the logdir, such as trial-001.")
        if run != readable_run(run):
            raise UsageError(
                f"{option} {run!a}: TensorBoard's fast loader cannot read names with double quotes, backslashes or "
                f"control characters; expected one such as {readable_run(run)}."
            )
        return logdir / run
    name = readable_run(name)
    folder, count = logdir / name, 1
    while folder.exists():
        count += 1
        folder = logdir / f"{name}-{count}"
    return folder


def diagnosed(logdir: Path, model: str, quantized: str) -> Path | None:
    """The newest run that `inc-tb diagnose` has made of the two."""
    runs = (folder for folder in logdir.glob(f"{escape_glob(name_of(quantized))}*") if folder.is_dir())
    for folder in sorted(runs, key=lambda f: -f.stat().st_mtime):
        found = diagnosis_in(folder)
        if found is not None and is_of(found, model, quantized):
            return folder
    return None


def is_of(diagnosis: Diagnosis, model: str, quantized: str) -> bool:
    told = zip((diagnosis.reference, diagnosis.quantized), (model, quantized), strict=True)
    return all(a == b or (".py:" not in a and Path(a).resolve() == Path(b).resolve()) for a, b in told)


def diagnosis_in(folder: Path) -> Diagnosis | None:
    from inc_tb.store.reader import load

    try:
        return load(folder).diagnosis
    except IncTbError:  # another kind of run, or none yet
        return None


def refuse_taken(folder: Path, run: str, models: tuple[str, str], *, goes_on: bool, can_append: bool = True) -> None:
    """A diagnosis does not end up in a run that has one, unless it `goes_on` with one of the same models."""
    found = diagnosis_in(folder)
    if found is None or (goes_on and is_of(found, *models)):
        return
    from inc_tb.store.remote import shown

    told = f"a diagnosis of {found.reference} and {found.quantized}"
    instead = ", or log this one as its next step with --append" if can_append else ""
    raise UsageError(f"--run {run}: {shown(folder)} exists already and holds {told}; choose another name{instead}.")
