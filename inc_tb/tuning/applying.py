"""What a trial has changed about its fp32 model, done once more; and a record of it that people can read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from inc_tb.errors import DataError, IncTbError, ModelError, UsageError
from inc_tb.frameworks.models import default_quantizer
from inc_tb.frameworks.registry import framework_of
from inc_tb.locks import TemporaryFolder
from inc_tb.records import Rewrite
from inc_tb.tuning.files import stored

_SETTING = "rewrites"
_VALUES = "values"


class Cure(NamedTuple):
    rewrites: list[Rewrite]
    settings: Mapping[str, Any]
    """Of the trial, which say how its model was prepared; nothing of a file."""


class Applied(NamedTuple):
    model: Any
    """As the model's framework has it: of ONNX a ModelProto, of PyTorch a module."""
    was_prepared: bool
    """Batch norms folded and ops named first, as before the trial."""


def apply(model: Any, cure: str | PathLike[str] | Sequence[Rewrite]) -> Any:
    """The fp32 model with the rewrites of a trial, which change nothing of what it computes but for shifted biases.

    `cure` is the folder of the trial's run, a file that `inc-tb apply` has written beside a model, or the rewrites
    themselves. A model that they were not found for is refused. Gives what its framework has: of ONNX a ModelProto, of
    PyTorch a module.
    """
    found = read_cure(cure) if isinstance(cure, str | PathLike) else Cure(list(cure), {})
    return rewritten(model, found).model


def read_cure(place: str | PathLike[str]) -> Cure:
    path = Path(place)
    if path.is_file():
        return Cure(_read_record(path), {})
    from inc_tb.store.reader import load

    trial = load(path).trial
    told = trial.config.get(_SETTING) if trial is not None else None
    if trial is None or not told:
        raise UsageError(
            f"{path}: is the run of no trial with rewrites; expected one whose config has some, or a file of them."
        )
    try:
        return Cure(msgspec.convert(told, list[Rewrite]), trial.config)
    except msgspec.ValidationError as error:
        raise DataError(f"{path}: the rewrites of its trial are damaged ({error}). Tune again.") from error


def rewritten(model: Any, cure: Cure) -> Applied:
    """The given model is prepared as the tuning has done it where the ops are not there otherwise."""
    framework = framework_of(model)
    framework.require("apply_rewrites")
    try:
        return Applied(framework.apply_rewrites(model, cure.rewrites), was_prepared=False)
    except ModelError as refused:
        with TemporaryFolder() as folder:
            try:
                prepared = default_quantizer(model, cure.settings).prepare(model, Path(folder))
                return Applied(framework.apply_rewrites(prepared, cure.rewrites), was_prepared=True)
            except IncTbError:
                raise refused from None


def write(model: Any, cure: Cure, target: Path) -> Path:
    """Stores a rewritten model, and beside it what was done; returns where that is."""
    beside = target.with_suffix(".rewrites.json")
    stored(model, target)
    beside.write_text(as_text(cure.rewrites), encoding="utf-8")
    return beside


def as_text(rewrites: Sequence[Rewrite]) -> str:
    """JSON for people: what was done in lines of their own, the numbers last and in one."""
    blocks = []
    for rewrite in rewrites:
        told = {name: value for name, value in msgspec.to_builtins(rewrite).items() if name != _VALUES}
        lines = [
            f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in (*told.items(), (_VALUES, rewrite.values))
        ]
        blocks.append("{\n" + ",\n".join(lines) + "\n}")
    return "[\n" + ",\n".join(blocks) + "\n]\n"


def _read_record(path: Path) -> list[Rewrite]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Rewrite])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: holds no rewrites ({error}); expected the folder of a trial's run, or a .rewrites.json that "
            "inc-tb apply has written."
        ) from error
